"""Ridge solves, generalised cross-validation, and scores without a sample or its group, against dense systems."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.statistics import (
    GCV_GRID,
    Centred,
    augment,
    equal_groups,
    gcv_ridge,
    half_products,
    left_out_together,
    solve,
    solve_ridge,
)
from cifnet_pl.utilities.errors import CifnetError
from tests.largest_tensor import LargestTensor
from tests.statistics.test_sums import samples


@pytest.mark.parametrize("penalty", [torch.tensor(0.5), torch.tensor([0.0, 0.5, 2.0])])
def test_solve_ridge_solves_the_system(penalty: Tensor) -> None:
    x, _, _ = samples(10)
    gram, moment = x.T @ x, x.T @ x[:, :2].square()
    weights = solve_ridge(gram, moment, penalty.double())
    assert torch.allclose((gram + torch.diag(penalty.double().expand(3))) @ weights, moment)


@pytest.mark.parametrize("value", [-1.0, torch.nan, torch.inf])
def test_what_is_not_positive_definite_is_refused(value: float) -> None:
    gram = torch.eye(3, dtype=torch.float64)
    gram[1, 1] = value
    with pytest.raises(CifnetError, match="not positive definite"):
        solve_ridge(gram, torch.ones(3, 1, dtype=torch.float64), torch.tensor(0.01))


def test_centring_equals_sums_over_centred_samples() -> None:
    x, _, weight = samples(20)
    target = torch.stack([x[:, 0].sign(), x[:, 1]], dim=1)
    tilde = augment(x)
    gram = tilde.T @ (weight[:, None] * tilde)
    centred = Centred.from_augmented(gram, tilde.T @ (weight[:, None] * target), (weight @ target.square()).sum(), 20)
    mean, target_mean = weight @ x / weight.sum(), weight @ target / weight.sum()
    z, t = x - mean, target - target_mean
    assert torch.allclose(centred.mean, mean)
    assert torch.allclose(centred.target_mean, target_mean)
    assert torch.allclose(centred.gram, z.T @ (weight[:, None] * z))
    assert torch.allclose(centred.moment, z.T @ (weight[:, None] * t))
    assert torch.allclose(centred.target_energy, (weight @ t.square()).sum())


def exact_gcv(x: Any, target: Any, ridge: Any, free_bias: bool) -> Any:
    """GCV of one ridge, from the hat matrix, in 60 digits."""
    n, features = x.rows, x.cols
    bias = mpmath.ones(n, n) / n if free_bias else mpmath.zeros(n, n)
    x = x - bias * x
    hat = bias + x * mpmath.inverse(x.T * x + ridge * mpmath.eye(features)) * x.T
    residual = target - hat * target
    freedom = sum(hat[i, i] for i in range(n))
    return n * mpmath.norm(residual, 2 if target.cols == 1 else "f") ** 2 / (n - freedom) ** 2


@pytest.mark.parametrize("free_bias", [True, False])
@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
def test_gcv_is_right_with_fewer_samples_than_features_too(n: int, free_bias: bool) -> None:
    # With n ≤ d both RSS and n − df vanish with the ridge; in float64 a hat matrix would leave only rounding.
    rng = np.random.default_rng(n)
    x, target = rng.normal(size=(n, 6)), rng.choice([-3.0, 3.0], size=(n, 1))
    target[:2, 0] = [-3, 3]
    centre = (lambda a: a - a.mean(axis=0)) if free_bias else (lambda a: a)
    z, t = torch.from_numpy(centre(x)), torch.from_numpy(centre(target))
    weights, (ridge, _) = solve(z.T @ z, z.T @ t, "gcv", t.square().sum(), n, free=int(free_bias))
    eigenvalues = torch.linalg.eigvalsh(z.T @ z)

    def freedom(ridge: float) -> float:
        return int(free_bias) + (eigenvalues / (eigenvalues + ridge)).sum().item()

    assert freedom(ridge) <= n / 2
    with mpmath.workdps(60):
        mean = z.square().sum().item() / 6
        candidates = [r for g in GCV_GRID.tolist()[::5] if freedom(r := g * mean) <= n / 2] + [ridge]
        exact = [exact_gcv(mpmath.matrix(x.tolist()), mpmath.matrix(target.tolist()), r, free_bias) for r in candidates]
        assert exact[-1] <= min(exact) * (1 + mpmath.mpf("1e-9"))
    solution = torch.linalg.lstsq(
        torch.cat([z, ridge**0.5 * torch.eye(6, dtype=torch.float64)]), torch.cat([t, t.new_zeros(6, 1)])
    ).solution
    assert torch.allclose(weights, solution, rtol=1e-7, atol=1e-10)


@given(d=st.integers(1, 6), extra=st.integers(2, 20), log_energy=st.integers(-3, 3), seed=st.integers(0, 2**32 - 1))
def test_gcv_follows_its_formula(d: int, extra: int, log_energy: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = d + extra
    e, a = rng.uniform(0.1, 10, d), rng.uniform(0, 10, d) * 10.0**log_energy
    target_energy = (a / e).sum() + rng.uniform(0.1, 10)
    chosen = gcv_ridge(*(torch.tensor(v, dtype=torch.float64) for v in (e, a, target_energy)), samples=n).ridge

    def gcv(ridge: float) -> float:
        rss = target_energy - 2 * (a / (e + ridge)).sum() + (e * a / (e + ridge) ** 2).sum()
        freedom = 1 + (e / (e + ridge)).sum()
        return n * rss / (n - freedom) ** 2 if freedom <= n / 2 else np.inf

    grid = GCV_GRID.numpy() * e.mean()
    assert np.isclose(grid, chosen, rtol=1e-12).any()
    assert gcv(chosen) <= min(map(gcv, grid)) * (1 + 1e-9)


def test_gcv_of_embeddings_that_are_all_alike() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    ridge = gcv_ridge(zero, zero, torch.tensor(1.0, dtype=torch.float64), 10).ridge
    assert ridge > 0
    z = torch.ones(10, 3, dtype=torch.float64)
    target = torch.tensor([[1.0], [-1.0]] * 5, dtype=torch.float64)
    tilde = augment(z)
    weights, _ = Centred.from_augmented(tilde.T @ tilde, tilde.T @ target, target.square().sum(), 10).solve("gcv")
    assert torch.equal(weights, torch.zeros(4, 1, dtype=torch.float64))


def test_gcv_of_sums_that_overflowed_is_refused() -> None:
    gram = torch.full((2, 2), torch.inf)
    with pytest.raises(CifnetError, match="overflowed"):
        solve(gram, torch.ones(2, 1), "gcv", torch.tensor(1.0), 5)


def test_equals_a_solve_without_the_group():
    """Of groups of fewer rows than features, and of one with more."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(18, 4, generator=draw).double(), torch.randn(18, 3, generator=draw).double()
    groups = torch.tensor([0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9])
    penalty = torch.full((4,), 0.3, dtype=torch.float64)
    weights = solve_ridge(x.T @ x, x.T @ y, penalty)
    half = half_products(x.T @ x, penalty, x)
    scores = left_out_together(x @ weights, half, torch.ones(18, dtype=torch.float64), y, groups)
    for group in groups.unique():
        rest = groups != group
        expected = x[~rest] @ solve_ridge(x[rest].T @ x[rest], x[rest].T @ y[rest], penalty)
        torch.testing.assert_close(scores[~rest], expected, rtol=0, atol=1e-10)
    assert [rows.tolist() for rows in equal_groups(groups, 18)] == [
        [[0], [4], [5], [8], [9], [10], [11]],
        [[6, 7]],
        [[1, 2, 3]],
        [[*range(12, 18)]],
    ]


def test_a_sample_that_was_never_seen_keeps_its_score():
    x = torch.eye(3, dtype=torch.float64)
    half = half_products(x, torch.ones(3, dtype=torch.float64), x)
    scores = torch.tensor([[1.0], [2.0], [3.0]])
    weight = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    result = left_out_together(scores, half, weight, torch.zeros(3, 1, dtype=torch.float64), None)
    assert result[0].item() == 1.0
    torch.testing.assert_close(result[1:].flatten(), torch.tensor([4.0, 6.0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_nothing_grows_with_the_square_of_a_group():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(600, 4, generator=draw).double(), torch.randn(600, 3, generator=draw).double()
    groups = torch.arange(600).clamp_max(200)  # the last 400 are one
    penalty = torch.full((4,), 0.3, dtype=torch.float64)
    half, scores = half_products(x.T @ x, penalty, x), x @ solve_ridge(x.T @ x, x.T @ y, penalty)
    with LargestTensor() as made:
        result = left_out_together(scores, half, torch.ones(600, dtype=torch.float64), y, groups)
    expected = x[200:] @ solve_ridge(x[:200].T @ x[:200], x[:200].T @ y[:200], penalty)
    torch.testing.assert_close(result[200:], expected, rtol=0, atol=1e-9)
    assert made.elements <= x.numel()


def test_nothing_is_known_without_all_that_was_learned():
    x, y = torch.eye(2, dtype=torch.float64).repeat(3, 1), torch.ones(6, 1, dtype=torch.float64)
    penalty = torch.full((2,), 1e-12, dtype=torch.float64)
    half = half_products(x.T @ x, penalty, x)
    for groups in (torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1, 0, 2, 0, 3])):  # of six rows, and of three
        result = left_out_together(y, half, torch.ones(6, dtype=torch.float64), y, groups)
        assert result[groups == 0].isnan().all()
        assert result[groups != 0].isfinite().all()
