from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import ACILHead, DSALHead
from cifnet_pl.utilities.errors import UsageError
from tests.heads.projected import PROJECTION, golden_steps, learn_random, matrices_alive


@pytest.mark.parametrize("batch", [37, 10_000])
def test_scores_of_the_official_recursion(batch: int) -> None:
    for scores, golden, accuracy, expected in golden_steps(DSALHead(64, projection=PROJECTION), batch, "dsal"):
        assert (scores - golden).norm() < 1e-7 * golden.norm()
        assert (scores - golden).abs().max() < 1e-7 * golden.abs().max()
        assert accuracy == pytest.approx(expected)


class Recursion:
    """Recursive ridge regression by the Woodbury identity: one update for a batch of rows."""

    def __init__(self, width: int, ridge: float):
        self.inverse = torch.eye(width, dtype=torch.float64) / ridge
        self.weights = torch.zeros(width, 0, dtype=torch.float64)

    def update(self, x: Tensor, targets: Tensor) -> None:
        missing = targets.shape[1] - self.weights.shape[1]
        self.weights = torch.cat([self.weights, self.weights.new_zeros(len(self.weights), missing)], dim=1)
        gain = torch.linalg.inv(torch.eye(len(x), dtype=torch.float64) + x @ self.inverse @ x.T)
        self.inverse = self.inverse - self.inverse @ x.T @ gain @ x @ self.inverse
        self.weights = self.weights + self.inverse @ x.T @ (targets - x @ self.weights)


@pytest.mark.parametrize("ratio", [0.6, 1.5])
def test_equals_the_recursion_of_two_streams(ratio: float) -> None:
    head = DSALHead(6, width=50, ridge=0.5, seed=4, compensation_ratio=ratio)
    main, compensation = Recursion(50, 0.5), Recursion(50, 0.5)
    tasks = learn_random(head, tasks=4, per_task=25)
    for k, (z, y) in enumerate(tasks):
        projected = z @ head.projection.T
        targets = torch.nn.functional.one_hot(y, 3 * k + 3).double()
        main.update(projected.relu(), targets)
        residual = targets - projected.relu() @ main.weights
        residual[:, : 3 * k] = 0
        compensation.update(projected.tanh(), residual)
    z = torch.cat([z for z, _ in tasks])
    projected = z @ head.projection.T
    expected = projected.relu() @ main.weights + ratio * projected.tanh() @ compensation.weights
    assert torch.allclose(head(z), expected, rtol=1e-9, atol=1e-9)


def test_without_compensation_it_is_acil() -> None:
    dsal, acil = DSALHead(6, width=50, compensation_ratio=0), ACILHead(6, width=50)
    learn_random(dsal)
    z = learn_random(acil)[0][0]
    assert torch.equal(dsal.weights, acil.weights)
    assert torch.allclose(dsal(z), acil(z), rtol=1e-12)


def test_the_target_energy_for_gcv_is_that_of_the_residuals() -> None:
    head = DSALHead(6, width=20, ridge="gcv")
    energy = 0.0
    for k in range(3):
        z = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(k))
        y = 2 * k + torch.arange(40) % 2
        weight = 1 + torch.arange(40).double() % 3
        head.begin_task([2 * k, 2 * k + 1])
        head.observe(z, y, weight)
        head.solve()
        residual = torch.nn.functional.one_hot(y, 2 * k + 2).double() - (z @ head.projection.T).relu() @ head.weights
        energy += (weight[:, None] * residual[:, -2:].square()).sum().item()
        assert head.residual_energy.sum().item() == pytest.approx(energy, rel=1e-9)
    assert head.compensation_ridge > 0


def test_the_energy_of_a_removed_class_goes_with_it() -> None:
    head = DSALHead(6, width=20, ridge="gcv")
    energies = []
    for k, (z, y) in enumerate(learn_random(copy.deepcopy(head))):
        head.begin_task([3 * k, 3 * k + 1, 3 * k + 2])
        head.observe(z, y)
        head.solve()
        targets = torch.nn.functional.one_hot(y, 3 * k + 3).double()
        residual = (targets - (z @ head.projection.T).relu() @ head.weights)[:, -3:]
        energies += residual.square().sum(dim=0).tolist()
    head.remove_classes([0, 4, 5, 8])
    assert head.residual_energy.sum().item() == pytest.approx(sum(energies[c] for c in (1, 2, 3, 6, 7)), rel=1e-9)
    head.solve()


def test_removing_the_classes_of_the_task_under_way_leaves_the_others_alone() -> None:
    head, other = DSALHead(6, width=20), DSALHead(6, width=20)
    for each in (head, other):
        learn_random(each, tasks=1)
    before = head.compensation.class_sums.clone()
    head.begin_task([70, 71])
    head.observe(torch.randn(6, 6), torch.tensor([70, 71, 70, 71, 70, 71]))
    head.remove_classes([70, 71])
    head.solve()
    assert head.classes == [0, 1, 2]
    assert torch.equal(head.compensation.class_sums, before)
    assert head.cross.numel() == 0


def test_classes_removed_after_they_were_learned_take_their_columns_along() -> None:
    head = DSALHead(6, width=20)
    (z, _), *_ = learn_random(head)
    scores = head(z)
    head.remove_classes([1, 5])
    assert torch.allclose(head(z), scores[:, [0, 2, 3, 4, 6, 7, 8]], rtol=1e-12)


@pytest.mark.parametrize("ratio", [-0.1, float("inf"), float("nan")])
def test_an_impossible_ratio_is_refused(ratio: float) -> None:
    with pytest.raises(UsageError, match="compensation_ratio"):
        DSALHead(6, compensation_ratio=ratio)


@pytest.mark.parametrize(("ridge", "bound"), [(0.1, 5.1), ("gcv", 7.1)])
def test_few_matrices_of_the_full_width_are_alive_at_a_time(ridge: float | str, bound: float) -> None:
    alive = matrices_alive(lambda: learn_random(DSALHead(6, width=300, ridge=ridge)), 300)
    assert 4 <= alive <= bound  # at least two sums as triangles, what the task adds to both, and the cross product
