"""What all heads have in common: labels and tasks, abilities, stored samples, sizes of stored tensors."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.heads import HEADS, Head, RidgeHead
from cifnet_pl.heads.base import Samples, fits, grown_sizes
from cifnet_pl.testing import WIDTH
from cifnet_pl.utilities.errors import CheckpointError, UnsupportedError

ABILITIES = {
    "CIFNetHead": "merges reduces leaves_one_out tells_novelty uses_buffer counterexamples",
    "RidgeHead": "merges pools subtracts reduces leaves_one_out tells_novelty counterexamples",
    "ACILHead": "merges pools subtracts reduces leaves_one_out tells_novelty counterexamples",
    "DSALHead": "reduces leaves_one_out tells_novelty counterexamples",
    "SLDAHead": "merges pools subtracts reduces leaves_one_out tells_novelty counterexamples",
    "NCMHead": "merges pools subtracts reduces",
    "FeCAMHead": "merges pools subtracts reduces tells_novelty",
    "KLDAHead": "merges pools subtracts reduces leaves_one_out tells_novelty counterexamples",
    "RanPACHead": "merges pools subtracts reduces leaves_one_out tells_novelty counterexamples",
    "KNNHead": "merges pools",
    "LogisticHead": "uses_buffer counterexamples",
    "SGDHead": "uses_buffer counterexamples",
}
ALL = ["merges", "pools", "subtracts", "reduces", "leaves_one_out", "tells_novelty", "uses_buffer", "counterexamples"]


def declared(head: Head | type[Head]) -> str:
    return " ".join(name for name in ALL if getattr(head, name))


def test_abilities_are_those_of_the_table() -> None:
    assert {name: declared(kind) for name, kind in HEADS.items()} == ABILITIES


def test_an_argument_takes_abilities_away_from_that_head_only() -> None:
    assert declared(RidgeHead(WIDTH, balanced=True)) == "reduces leaves_one_out tells_novelty counterexamples"
    assert declared(RidgeHead(WIDTH)) == ABILITIES["RidgeHead"]
    with pytest.raises(UnsupportedError, match="RidgeHead cannot merge: balanced=True weighs samples"):
        RidgeHead(WIDTH, balanced=True).require("merges")


def test_a_head_says_why_it_cannot() -> None:
    with pytest.raises(
        UnsupportedError, match=r"CIFNetHead cannot merge whole sites, or add samples .*: its oversampling"
    ):
        HEADS["CIFNetHead"](WIDTH).require("pools")
    with pytest.raises(UnsupportedError, match="NCMHead cannot leave samples out: it has no closed form"):
        HEADS["NCMHead"](WIDTH).require("leaves_one_out")


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


def test_sizes_follow_from_one_and_two_classes():
    assert grown_sizes((1, 5), (2, 5), 4, False) == (frozenset({4}), frozenset({5}))
    assert grown_sizes((0,), (0,), 4, False) == (frozenset({0, 4}),)
    assert grown_sizes((0, 3), (0, 3), 4, True) == (None, frozenset({3}))
    assert fits((9, 3), (None, frozenset({3})))
    assert not fits((9, 4), (None, frozenset({3})))
    assert not fits((9,), (None, frozenset({3})))
