from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.heads.base import Samples
from cifnet_pl.utilities.errors import CheckpointError


def rows(seed: int, n: int = 12) -> tuple[Tensor, Tensor, Tensor]:
    """Embeddings of few distinct values, so that many rows are alike or alike at the start."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randint(-1, 2, (n, 3), generator=generator).double()
    y = torch.randint(-(2**62), 2**62, (n,), generator=generator)
    return z, y, torch.randint(1, 3, (n,), generator=generator).double()


@given(st.integers(0, 1000), st.integers(1, 12))
def test_sorting_forgets_order_and_batches(seed: int, batch: int) -> None:
    z, y, weight = rows(seed)
    once, often = Samples(3, torch.float64), Samples(3, torch.float64)
    once.add(z, y, weight)
    for chunk in torch.split(torch.randperm(12, generator=torch.Generator().manual_seed(seed)), batch):
        often.add(z[chunk], y[chunk], weight[chunk])
    for each in (once, often):
        each.sort()
    for name in ("z", "y", "weight"):
        assert torch.equal(getattr(once, name), getattr(often, name))
    assert sorted(map(tuple, z.tolist())) == sorted(map(tuple, once.z.tolist()))


def test_sorting_does_not_look_at_labels_of_different_embeddings() -> None:
    z, y, weight = torch.randn(8, 3, dtype=torch.float64), torch.arange(8), torch.ones(8)
    renamed = torch.tensor([5, -3, 77, 0, 2**60, -9, 4, 1])
    one, other = Samples(3, torch.float64), Samples(3, torch.float64)
    one.add(z, y, weight)
    other.add(z, renamed[y], weight)
    for each in (one, other):
        each.sort()
    assert torch.equal(renamed[one.y], other.y)


def test_what_is_added_is_copied() -> None:
    samples = Samples(2, torch.float64)
    z, y = torch.ones(3, 2, dtype=torch.float64), torch.ones(3, dtype=torch.int64)
    samples.add(z, y)
    z.zero_()
    y.zero_()
    samples.gather()
    assert samples.z.sum() == 6
    assert samples.y.sum() == 3
    assert samples.weight.tolist() == [1.0, 1.0, 1.0]


def test_length_counts_and_dropping() -> None:
    samples = Samples(2, torch.float32)
    samples.add(torch.zeros(3, 2), torch.tensor([7, 8, 7]))
    samples.add(torch.ones(2, 2), torch.tensor([-1, 8]))
    assert len(samples) == 5
    assert samples.counts(torch.tensor([8, 7, -1, 5])).tolist() == [2, 2, 1, 0]
    samples.keep_labels(torch.tensor([8, 5]))
    assert samples.y.tolist() == [8, 8]
    samples.clear()
    assert len(samples) == 0
    assert samples.z.shape == (0, 2)


def test_state_holds_what_was_just_added() -> None:
    samples, again = Samples(2, torch.float32), Samples(2, torch.float32)
    samples.add(torch.eye(2), torch.tensor([1, 2]), torch.tensor([0.5, 2.0]))
    again.add(torch.zeros(1, 2), torch.tensor([9]))
    again.load_state_dict(samples.state_dict())
    assert len(again) == 2
    assert torch.equal(again.z, torch.eye(2))
    assert again.weight.tolist() == [0.5, 2.0]
    with pytest.raises(CheckpointError, match=r"shape \(2, 2\), expected \(n, 3\)"):
        Samples(3, torch.float32).load_state_dict(samples.state_dict())


def test_embeddings_that_want_a_gradient_lose_it() -> None:
    samples = Samples(2, torch.float64)
    samples.add(torch.ones(1, 2, dtype=torch.float64, requires_grad=True), torch.tensor([1]))
    samples.gather()
    assert not samples.z.requires_grad
