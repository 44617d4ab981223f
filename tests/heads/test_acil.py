from __future__ import annotations

import copy

import pytest
import torch

from cifnet_pl.heads import ACILHead
from cifnet_pl.heads.acil import draw_projection
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.heads.projected import PROJECTION, golden_steps, learn_random, matrices_alive


@pytest.mark.parametrize("batch", [37, 10_000])
def test_scores_of_the_official_recursion(batch: int) -> None:
    for scores, golden, accuracy, expected in golden_steps(ACILHead(64, projection=PROJECTION), batch, "acil"):
        assert (scores - golden).norm() < 1e-7 * golden.norm()
        assert (scores - golden).abs().max() < 1e-7 * golden.abs().max()
        assert accuracy == pytest.approx(expected)


def test_float32_gives_the_same_decisions() -> None:
    head = ACILHead(64, projection=PROJECTION, dtype="float32")
    for scores, golden, accuracy, expected in golden_steps(head, 64, "acil"):
        assert head.sums.gram.dtype == torch.float32
        assert (scores - golden).norm() < 1e-3 * golden.norm()
        assert accuracy == pytest.approx(expected, abs=0.5)


def test_a_weight_of_three_is_three_copies() -> None:
    weighted, copied = ACILHead(5, width=30), ACILHead(5, width=30)
    z = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y = torch.arange(20) % 2
    weight = 1 + 2 * (torch.arange(20) % 3 == 0).double()
    copies = torch.arange(20).repeat_interleave(weight.long())
    for head, rows, omega in ((weighted, torch.arange(20), weight), (copied, copies, None)):
        head.begin_task([0, 1])
        head.observe(z[rows], y[rows], omega)
        head.solve()
    assert torch.allclose(weighted(z), copied(z), rtol=1e-10)
    assert int(weighted.sums.mass) == len(copies)


# ---------------------------------------------------------------------- generalised cross-validation


def test_gcv_takes_the_ridge_with_the_least_score_of_the_hat_matrix() -> None:
    head = ACILHead(6, width=30, ridge="gcv")
    (z, y), *rest = learn_random(head, tasks=2, per_task=45)
    z, y = torch.cat([z, rest[0][0]]), torch.cat([y, rest[0][1]])
    h = torch.relu(z @ head.projection.T)
    targets = torch.nn.functional.one_hot(y, 6).double()
    n, chosen = len(z), head.ridge_used.item()

    def score(ridge: float) -> float:
        hat = h @ torch.linalg.inv(h.T @ h + ridge * torch.eye(30, dtype=torch.float64)) @ h.T
        return (n * (targets - hat @ targets).square().sum() / (n - hat.trace()) ** 2).item()

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
    assert torch.allclose(head.weights, torch.linalg.solve(system, h.T @ targets), rtol=1e-8, atol=1e-10)


# ---------------------------------------------------------------------- projection


def test_the_projection_of_a_seed_never_changes() -> None:
    drawn = draw_projection(3, 4, seed=0)
    expected = [0.1369616873214543, -0.2302132862361297, -0.4590264760638053, -0.4834723644714709]
    assert drawn[0].tolist() == pytest.approx(expected, abs=1e-15)
    large = draw_projection(400, 25, seed=1)
    assert large.dtype == torch.float64
    assert large.abs().max() <= 0.2
    assert large.mean().abs() < 0.005
    assert large.var().item() == pytest.approx(0.2**2 / 3, rel=0.05)
    assert not torch.equal(draw_projection(3, 4, seed=2), drawn)


def test_a_drawn_projection_is_not_stored_and_a_given_one_is() -> None:
    drawn, options = ACILHead(4, width=10, seed=3), ACILHead(4, projection=draw_projection(10, 4, seed=3))
    assert "projection" not in drawn.state_dict()
    assert torch.equal(options.state_dict()["projection"], drawn.projection)
    for head in (drawn, options):
        learn_random(head)
    assert torch.equal(drawn.weights, options.weights)
    assert drawn.state_elements() == {"projection": 0, "factors": 55, "moments": 90, "weights": 90}
    assert options.state_elements()["projection"] == 40


def test_a_given_projection_comes_back_from_the_state() -> None:
    head = ACILHead(4, projection=draw_projection(10, 4, seed=3))
    learn_random(head)
    again = ACILHead(4, projection=torch.zeros(10, 4))
    again.load_state_dict(head.state_dict())
    z = torch.randn(5, 4)
    assert torch.equal(again(z), head(z))
    assert int(again.fingerprint) == int(head.fingerprint)
    with pytest.raises(CheckpointError, match="projection has shape"):
        ACILHead(4, projection=torch.zeros(11, 4)).load_state_dict(head.state_dict())


def test_the_given_matrix_is_copied() -> None:
    matrix = draw_projection(10, 4, seed=3)
    head = ACILHead(4, projection=matrix)
    matrix.zero_()
    assert head.projection.abs().sum() > 0


@pytest.mark.parametrize("other", [{"seed": 1}, {"width": 11}, {"in_features": 5}])
def test_a_state_with_another_projection_is_refused(other: dict[str, int]) -> None:
    head = ACILHead(4, width=10)
    learn_random(head)
    with pytest.raises(CheckpointError, match="another projection"):
        ACILHead(**{"in_features": 4, "width": 10, **other}).load_state_dict(head.state_dict())


def test_heads_with_different_projections_do_not_combine() -> None:
    here = ACILHead(4, width=10)
    learn_random(here)
    before = copy.deepcopy(here.state_dict())
    with pytest.raises(UsageError, match="different seed: 0 and 1"):
        here.merge_(ACILHead(4, width=10, seed=1))
    one, two = (ACILHead(4, projection=draw_projection(10, 4, seed)) for seed in (1, 2))
    for combine in (one.merge_, one.subtract_):
        with pytest.raises(UsageError, match="different projections"):
            combine(two)
    assert all(torch.equal(value, before[key]) for key, value in here.state_dict().items())


def test_projections_and_widths_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UsageError, match=r"shape \(10, 3\), expected \(width, 4\)"):
        ACILHead(4, projection=torch.zeros(10, 3))
    with pytest.raises(UsageError, match="width is 0"):
        ACILHead(4, width=0)


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(("ridge", "bound"), [(0.1, 3.6), ("gcv", 4.1)])
def test_few_matrices_of_the_full_width_are_alive_at_a_time(ridge: float | str, bound: float) -> None:
    def run() -> None:
        head = ACILHead(6, width=300, ridge=ridge)
        learn_random(head)
        head(torch.randn(4, 6))

    alive = matrices_alive(run, 300)
    assert 2 <= alive <= bound  # at least the sums before the task, and what the task adds
