"""Confusions and top-5 hits, of equal probabilities the first class."""

from __future__ import annotations

import torch

from cifnet_pl.learning.evaluation import AnswerCounts
from cifnet_pl.model.metrics import first_classes


def test_counts_of_two_batches():
    counts = AnswerCounts(7)
    probabilities = torch.tensor([[0.4, 0.3, 0.1, 0.05, 0.05, 0.05, 0.05], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    counts.update(probabilities, torch.tensor([0, 6]))
    counts.update(probabilities, torch.tensor([6, 0]))  # class 6 is the last of seven in the first row
    confusion, among_first = counts.compute()
    expected = torch.zeros(7, 7, dtype=torch.int64)
    expected[0, 0] = expected[6, 6] = expected[6, 0] = expected[0, 6] = 1
    assert torch.equal(confusion.long(), expected)
    assert int(among_first) == 3


def test_first_classes_begin_with_the_answer():
    columns, values = first_classes(torch.tensor([[0.2, 0.4, 0.4]]))
    assert columns.tolist() == [[1, 2, 0]]
    assert values.tolist()[0] == sorted(values.tolist()[0], reverse=True)
    assert first_classes(torch.rand(2, 9))[0].shape == (2, 5)
