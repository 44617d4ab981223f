"""ACIL and DS-AL against the authors' recursions and golden vectors."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import ACILHead, DSALHead, Head
from cifnet_pl.statistics import draw_projection
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.heads.suite import scans, teach

GOLDEN: dict[str, Any] = dict(
    np.load(Path(__file__).parents[1] / "data" / "acil_dsal_digits.npz")
)
PROJECTION = torch.from_numpy(GOLDEN["projection"])
X, Y = scans()


def golden_steps(
    head: Head, batch: int, name: str
) -> Iterator[tuple[Tensor, Tensor, float, float]]:
    """After each task: our scores, the golden ones, our accuracy and the golden one in percent."""
    train, test = (
        torch.from_numpy(GOLDEN[f"{split}_rows"]) for split in ("train", "test")
    )
    order = torch.from_numpy(GOLDEN["class_order"])
    for k in range(5):
        classes = order[2 * k : 2 * k + 2]
        head.begin_task(classes.tolist())
        rows = train[torch.isin(Y[train], classes)]
        for split in torch.split(rows, batch):
            head.observe(X[split], Y[split])
        head.solve()
        seen = test[torch.isin(Y[test], order[: 2 * k + 2])]
        accuracy = 100 * (head.predict(X[seen]) == Y[seen]).double().mean().item()
        yield (
            head(X[seen]),
            torch.from_numpy(GOLDEN[f"{name}_test_scores{k + 1}"]),
            accuracy,
            GOLDEN[f"{name}_acc"][k],
        )


def learn_random(
    head: Head, tasks: int = 3, per_task: int = 40, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """Learn ``tasks`` tasks of three classes of normal embeddings; returns what was learned."""
    generator = torch.Generator().manual_seed(seed)
    seen = []
    for k in range(tasks):
        z = torch.randn(
            per_task, head.in_features, generator=generator, dtype=torch.float64
        )
        y = 3 * k + torch.arange(per_task) % 3
        teach(head, z, y)
        seen.append((z, y))
    return seen


HEADS = {"acil": ACILHead, "dsal": DSALHead}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("batch", [37, 10_000])
def test_scores_of_the_official_recursion(name: str, batch: int) -> None:
    for scores, golden, accuracy, expected in golden_steps(
        HEADS[name](64, projection=PROJECTION), batch, name
    ):
        assert (scores - golden).norm() < 1e-7 * golden.norm()
        assert (scores - golden).abs().max() < 1e-7 * golden.abs().max()
        assert accuracy == pytest.approx(expected)


# ---------------------------------------------------------------------- generalised
# cross-validation


def test_gcv_takes_the_ridge_with_the_least_score_of_the_hat_matrix() -> None:
    head = ACILHead(6, width=30, ridge="gcv")
    (z, y), *rest = learn_random(head, tasks=2, per_task=45)
    z = torch.cat([z, rest[0][0]])
    y = torch.cat([y, rest[0][1]])
    h = torch.relu(z @ head.projection.T)
    targets = torch.nn.functional.one_hot(y, 6).double()
    n = len(z)
    chosen = head.ridge_used.item()

    def score(ridge: float) -> float:
        hat = (
            h
            @ torch.linalg.inv(h.T @ h + ridge * torch.eye(30, dtype=torch.float64))
            @ h.T
        )
        return (
            n * (targets - hat @ targets).square().sum() / (n - hat.trace()) ** 2
        ).item()

    step = 10**0.1  # of the grid
    assert score(chosen) <= min(score(chosen * step), score(chosen / step))

    # Samples of a class that was removed stay, with targets of zero.
    head.remove_classes([0, 1, 4])
    head.solve()
    targets = targets[:, [2, 3, 5]]
    chosen = head.ridge_used.item()
    assert score(chosen) <= min(score(chosen * step), score(chosen / step))
    assert score(chosen) < min(score(chosen * 10), score(chosen / 10))
    system = h.T @ h + chosen * torch.eye(30, dtype=torch.float64)
    assert torch.allclose(
        head.weights, torch.linalg.solve(system, h.T @ targets), rtol=1e-8, atol=1e-10
    )


# ---------------------------------------------------------------------- projection


def test_the_projection_of_a_seed_never_changes() -> None:
    drawn = draw_projection(3, 4, seed=0)
    expected = [
        0.1369616873214543,
        -0.2302132862361297,
        -0.4590264760638053,
        -0.4834723644714709,
    ]
    assert drawn[0].tolist() == pytest.approx(expected, abs=1e-15)
    large = draw_projection(400, 25, seed=1)
    assert large.dtype == torch.float64
    assert large.abs().max() <= 0.2
    assert large.mean().abs() < 0.005
    assert large.var().item() == pytest.approx(0.2**2 / 3, rel=0.05)
    assert not torch.equal(draw_projection(3, 4, seed=2), drawn)


def test_a_drawn_projection_is_not_stored_and_a_given_one_is() -> None:
    drawn = ACILHead(4, width=10, seed=3)
    options = ACILHead(4, projection=draw_projection(10, 4, seed=3))
    assert "projection" not in drawn.state_dict()
    assert torch.equal(options.state_dict()["projection"], drawn.projection)
    for head in (drawn, options):
        learn_random(head)
    assert torch.equal(drawn.weights, options.weights)
    assert drawn.state_elements() == {
        "factors": 55,
        "moments": 90,
        "weights": 90,
    }
    assert options.state_elements()["projection"] == 40


@pytest.mark.parametrize("other", [{"seed": 1}, {"width": 11}, {"in_features": 5}])
def test_a_state_with_another_projection_is_refused(other: dict[str, int]) -> None:
    head = ACILHead(4, width=10)
    learn_random(head)
    with pytest.raises(CheckpointError, match="another projection"):
        ACILHead(**{"in_features": 4, "width": 10, **other}).load_state_dict(
            head.state_dict()
        )


def test_heads_with_different_projections_do_not_combine() -> None:
    here = ACILHead(4, width=10)
    learn_random(here)
    before = copy.deepcopy(here.state_dict())
    with pytest.raises(UsageError, match="different seed: 0 and 1"):
        here.merge_(ACILHead(4, width=10, seed=1))
    one, two = (ACILHead(4, projection=draw_projection(10, 4, seed)) for seed in (1, 2))
    for combine in (one.merge_, one.subtract_):
        with pytest.raises(UsageError, match="different projection"):
            combine(two)
    assert all(
        torch.equal(value, before[key]) for key, value in here.state_dict().items()
    )


def test_the_target_energy_for_gcv_is_that_of_the_residuals() -> None:
    head = DSALHead(6, width=20, ridge="gcv")
    energy = 0.0
    for k in range(3):
        z = torch.randn(
            40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(k)
        )
        y = 2 * k + torch.arange(40) % 2
        weight = 1 + torch.arange(40).double() % 3
        teach(head, z, y, weight)
        residual = (
            torch.nn.functional.one_hot(y, 2 * k + 2).double()
            - (z @ head.projection.T).relu() @ head.weights
        )
        energy += (weight[:, None] * residual[:, -2:].square()).sum().item()
        assert head.residual_energy.sum().item() == pytest.approx(energy, rel=1e-9)
    assert head.compensation_ridge > 0
