"""Generalised cross-validation where samples come more than once, or nearly so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from cifnet_pl.statistics import Centred, Choice, Ridge, augment
from cifnet_pl.statistics.ridge import shares_of_independent_error

CLASSES, PER_CLASS, WIDTH = 12, 25, 400
"""Fewer samples than features, as when a shop has learned a few classes."""


def draw(per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings of overlapping classes whose spectrum falls as that of photos does, and their classes."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, WIDTH)) * 0.35
    scale = np.arange(1, WIDTH + 1) ** -0.5
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(CLASSES), per_class)
    z = (centres[y] + rng.normal(size=(len(y), WIDTH))) * scale
    return torch.from_numpy(z), torch.from_numpy(y)


def learn(z: Tensor, y: Tensor, samples: int | None = None, ridge: Ridge = "gcv") -> tuple[Tensor, Choice]:
    """Weights and λ of ridge regression on ±1 targets; ``samples`` of them are distinct."""
    x, target = augment(z), 2 * torch.nn.functional.one_hot(y, CLASSES).double() - 1
    energy = target.square().sum()
    return Centred.from_augmented(x.T @ x, x.T @ target, energy, samples or len(z)).solve(ridge)


def accuracy(weights: Tensor) -> float:
    z, y = draw(200, seed=1)
    return 100 * ((augment(z) @ weights).argmax(1) == y).double().mean().item()


def near(z: Tensor, rows: Tensor, seed: int = 2) -> Tensor:
    """Copies of ``rows`` with 5 % of noise."""
    noise = torch.randn(len(rows), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return z[rows] + 0.05 * noise * (z[rows].norm(dim=1) / noise.norm(dim=1))[:, None]


Z, Y = draw(PER_CLASS, seed=0)
ORDER = torch.randperm(len(Z), generator=torch.Generator().manual_seed(3))
DISTINCT = learn(Z, Y)


@pytest.mark.parametrize("count", [3, 15, 60, 300])
@pytest.mark.parametrize("kind", ["exact", "near", "bursts"])
def test_copies_do_not_collapse_the_ridge(kind: str, count: int) -> None:
    rows = ORDER[:count] if kind != "bursts" else ORDER[: -(-count // 9)].repeat_interleave(9)[:count]
    more = Z[rows] if kind == "exact" else near(Z, rows)
    z, y = torch.cat([Z, more]), torch.cat([Y, Y[rows]])
    weights, choice = learn(z, y)
    # A photo that counts ten times costs accuracy at any ridge.
    best = max(accuracy(learn(z, y, ridge=DISTINCT[1].ridge * factor)[0]) for factor in (0.3, 1, 3, 10, 30))
    assert accuracy(weights) > best - 1
    assert 0.1 < choice.ridge / DISTINCT[1].ridge < 30


def test_the_rule_without_the_cap_and_the_shares_would_collapse() -> None:
    # What the tests above guard against: the least score of plain GCV interpolates, and loses 5 points and more.
    rows = ORDER[:60]
    z, y = torch.cat([Z, near(Z, rows)]), torch.cat([Y, Y[rows]])
    target = 2 * torch.nn.functional.one_hot(y, CLASSES).double() - 1
    z, target = z - z.mean(0), target - target.mean(0)
    values, vectors = torch.linalg.eigh(z @ z.T)
    values, energy = values[1:], (vectors.T @ target).square().sum(1)[1:]

    def score(ridge: Tensor) -> Tensor:
        left = ridge / (values + ridge)
        return (energy * left.square()).sum() / left.sum().square()

    grid = torch.logspace(-5, 1, 25).double() * DISTINCT[1].ridge
    plain = grid[torch.stack([score(ridge) for ridge in grid]).argmin()]
    assert plain < DISTINCT[1].ridge / 1000


def test_each_sample_twice_is_each_once_where_the_distinct_ones_are_counted() -> None:
    twice, choice = learn(torch.cat([Z, Z]), torch.cat([Y, Y]), samples=len(Z))
    assert choice.ridge == pytest.approx(2 * DISTINCT[1].ridge, rel=1e-9)
    assert choice.position == DISTINCT[1].position == "inside"
    torch.testing.assert_close(twice, DISTINCT[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(("per_class", "classes"), [(3, 12), (25, 12), (25, 2), (60, 12), (400, 12)])
def test_distinct_samples_all_have_error_of_their_own(per_class: int, classes: int) -> None:
    z, y = draw(per_class, seed=4)
    z, y = z[y < classes], y[y < classes]
    target = torch.nn.functional.one_hot(y, CLASSES).double()
    z, target = z - z.mean(0), target - target.mean(0)
    left, values, _ = torch.linalg.svd(z, full_matrices=False)
    left = left[:, values > 1e-9]
    energy = (left.T @ target).square().sum(1)
    spare = len(z) - 1 - len(energy)
    shares, beyond = shares_of_independent_error(energy, spare, target.square().sum() - energy.sum())
    assert shares.min() == 1
    assert beyond == 1


def test_with_nothing_to_learn_the_largest_ridge_is_chosen_and_said() -> None:
    z = torch.randn(300, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert learn(z, torch.arange(300) % CLASSES)[1].position == "largest"


def test_one_class_alone_is_no_edge_of_the_grid() -> None:
    assert learn(Z[Y == 0], Y[Y == 0])[1].position == "inside"


def test_a_rule_without_error_takes_the_smallest_ridge_and_says_so() -> None:
    z = torch.randn(2000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target = z[:, :1]
    x = augment(z)
    _, choice = Centred.from_augmented(x.T @ x, x.T @ target, target.square().sum(), 2000).solve("gcv")
    assert choice.position == "smallest"


def test_few_easy_samples_are_at_the_cap() -> None:
    z, y = Z[::8] + 5 * torch.nn.functional.one_hot(Y[::8], WIDTH), Y[::8]
    _, choice = learn(z, y)
    assert choice.position == "cap"
    values = torch.linalg.eigvalsh((z - z.mean(0)) @ (z - z.mean(0)).T).clamp_min(0)
    assert 1 + (values / (values + choice.ridge)).sum() <= 0.5 * len(z)
