"""Shapes of stored tensors are known before anything is loaded."""

from __future__ import annotations

import pytest
import torch

from cifnet_pl.heads.base import fits, grown_sizes, renamed
from tests.heads.suite import HEADS


def test_sizes_follow_from_one_and_two_classes():
    assert grown_sizes((1, 5), (2, 5), 4, False) == (frozenset({4}), frozenset({5}))
    assert grown_sizes((0,), (0,), 4, False) == (frozenset({0, 4}),)
    assert grown_sizes((0, 3), (0, 3), 4, True) == (None, frozenset({3}))
    assert fits((9, 3), (None, frozenset({3})))
    assert not fits((9, 4), (None, frozenset({3})))
    assert not fits((9,), (None, frozenset({3})))


def test_names_get_another_prefix():
    assert renamed({"a.x": (None,), "b": (None,)}, "a.", "c.") == {"c.x": (None,)}


@pytest.mark.parametrize("case", HEADS)
def test_every_head_expects_what_it_stores(case):
    head, d = case.make(6), 6
    for classes in ([3, 1], [2]):
        z = torch.randn(5 * len(classes), d, generator=torch.Generator().manual_seed(len(classes)))
        head.begin_task(classes, [5] * len(classes))
        head.observe(z, torch.tensor(classes).repeat_interleave(5))
        head.solve()
    expected = head.expected_shapes([2, 1])
    for name, tensor in head.state_dict().items():
        if tensor.numel():
            assert fits(tuple(tensor.shape), expected[name]), name
