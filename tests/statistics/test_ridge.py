"""Ridge solves and generalised cross-validation."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cifnet_pl.heads import RidgeHead
from cifnet_pl.statistics import augment, gcv_ridge, gcv_ridge_of_free_bias, solve_ridge
from cifnet_pl.utilities.errors import CifnetError
from tests.heads.suite import normal, teach


def test_what_is_not_positive_definite_is_refused() -> None:
    for value in (-1.0, torch.nan, torch.inf):
        gram = torch.diag(torch.tensor([1, value, 1], dtype=torch.float64))
        with pytest.raises(CifnetError, match="not positive definite"):
            solve_ridge(gram, torch.ones(3, 1).double(), torch.tensor(0.01))


def test_gcv_of_embeddings_that_are_all_alike() -> None:
    zero = torch.zeros(3, 3, dtype=torch.float64)
    tss = torch.tensor(1.0, dtype=torch.float64)
    assert gcv_ridge(zero, zero[:, :1], tss, 10, free=1) > 0
    z = torch.ones(10, 3, dtype=torch.float64)
    target = torch.tensor([[1.0], [-1.0]] * 5, dtype=torch.float64)
    tilde = augment(z)
    energy = target.square().sum()
    ridge = gcv_ridge_of_free_bias(tilde.T @ tilde, tilde.T @ target, energy, 10)
    assert ridge > 0


def test_gcv_of_a_single_class_is_large() -> None:
    """Its targets are all alike: what is left of them without their mean is rounding."""
    target = torch.ones(200, 1, dtype=torch.float64)
    for seed in range(10):
        spread = torch.randn(200, 2, generator=torch.Generator().manual_seed(seed))
        z = 1000 + spread.double()
        tilde = augment(z)
        gram = tilde.T @ tilde
        ridge = gcv_ridge_of_free_bias(gram, tilde.T @ target, target.sum(), 200)
        assert ridge > 100
        head = RidgeHead(2, decision="auto", product_features="auto")
        teach(head, z, torch.zeros(200, dtype=torch.long))


def choose(z: Tensor, y: Tensor) -> float:
    """The ridge of regression on class indicators."""
    x = augment(z)
    target = one_hot(y).double()
    energy = target.square().sum()
    return gcv_ridge_of_free_bias(x.T @ x, x.T @ target, energy, len(z))


def test_with_nothing_to_learn_the_largest_ridge_is_chosen() -> None:
    z = normal(300, 20)
    squares = (z - z.mean(dim=0)).square().sum().item()
    assert choose(z, torch.arange(300) % 12) > 0.9 * squares


def test_few_easy_samples_have_half_as_many_degrees_of_freedom() -> None:
    """So that copies that are not counted, which look like them, do not collapse the ridge."""
    y = torch.arange(38) % 12
    z = normal(38, 400) + 50 * one_hot(y, 400)
    values = torch.linalg.eigvalsh((z - z.mean(0)) @ (z - z.mean(0)).T).clamp_min(0)
    freedom = 1 + (values / (values + choose(z, y))).sum()
    assert 0.45 * len(z) < freedom <= 0.5 * len(z) + 1e-9


@pytest.mark.parametrize("free", [1, 0])
@pytest.mark.parametrize("seed", [25, 104, 108])
def test_the_ridge_is_the_best_of_several_minima(seed: int, free: int) -> None:
    """Of spectra over several decades, with several minima, and of few samples."""
    draw = np.random.default_rng(seed)
    n, p, c = (int(draw.integers(*ends)) for ends in ((10, 200), (3, 60), (1, 6)))
    scale = 10.0 ** draw.uniform(-4, 1, p)
    x = scale * draw.normal(size=(n, p))
    weights = 10.0 ** draw.uniform(-3, 0, (p, 1)) * draw.normal(size=(p, c))
    y = (x / scale) @ weights + 10.0 ** draw.uniform(-1, 2) * draw.normal(size=(n, c))
    x -= free * x.mean(axis=0)
    y -= free * y.mean(axis=0)
    sums = (x.T @ x, x.T @ y, np.square(y).sum())
    ridge = gcv_ridge(*map(torch.tensor, sums), n, free)
    u, s, _ = np.linalg.svd(x, full_matrices=False)
    squares = np.square(u.T @ y).sum(axis=1)
    rest = np.square(y).sum() - squares.sum()

    def freedom(ridge: np.ndarray | float) -> np.ndarray:
        return free + (s**2 / (s**2 + np.asarray(ridge)[..., None])).sum(axis=-1)

    def score(ridge: float) -> float:
        residual = rest + (squares * np.square(ridge / (s**2 + ridge))).sum()
        return residual / (n - freedom(ridge)) ** 2

    candidates = np.geomspace(1e-10, 1, 1000) * (s**2).sum()
    allowed = candidates[freedom(candidates) <= n / 2]
    best = min(allowed, key=score)
    assert freedom(ridge) <= n / 2
    assert score(ridge) < 1.05 * score(best)
