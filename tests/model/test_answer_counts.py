"""The most probable classes of an image begin with the answer."""

from __future__ import annotations

import torch

from cifnet_pl.model.metrics import first_classes


def test_first_classes_begin_with_the_answer():
    columns, values = first_classes(torch.tensor([[0.2, 0.4, 0.4]]))
    assert columns.tolist() == [[1, 2, 0]]
    assert values.tolist()[0] == sorted(values.tolist()[0], reverse=True)
    assert first_classes(torch.rand(2, 9))[0].shape == (2, 5)
