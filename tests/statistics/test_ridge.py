"""Ridge solves, generalised cross-validation, scores without a group, and the eigendecomposition
below them.
"""

import threading
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy.linalg import get_lapack_funcs
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cifnet_pl.statistics import (
    GCV_GRID,
    Centred,
    Ridge,
    RidgeChoice,
    augment,
    gcv_ridge,
    left_out_together,
    solve,
    solve_ridge,
    whitened_rows,
)
from cifnet_pl.statistics import spectrum as lapack
from cifnet_pl.statistics.gcv import shares_of_independent_error
from cifnet_pl.statistics.spectrum import WIDTH_FOR_FACTORS, spectrum
from cifnet_pl.utilities.errors import CifnetError


@pytest.mark.parametrize("value", [-1.0, torch.nan, torch.inf])
def test_what_is_not_positive_definite_is_refused(value: float) -> None:
    gram = torch.eye(3, dtype=torch.float64)
    gram[1, 1] = value
    with pytest.raises(CifnetError, match="not positive definite"):
        solve_ridge(gram, torch.ones(3, 1, dtype=torch.float64), torch.tensor(0.01))


def exact_gcv(x: Any, target: Any, ridge: Any, free_bias: bool) -> Any:
    """GCV of one ridge, from the hat matrix, in 60 digits."""
    n = x.rows
    features = x.cols
    if free_bias:
        bias = mpmath.ones(n, n) / n
    else:
        bias = mpmath.zeros(n, n)
    x = x - bias * x
    hat = bias + x * mpmath.inverse(x.T * x + ridge * mpmath.eye(features)) * x.T
    residual = target - hat * target
    freedom = sum(hat[i, i] for i in range(n))
    return (
        n
        * mpmath.norm(residual, 2 if target.cols == 1 else "f") ** 2
        / (n - freedom) ** 2
    )


@pytest.mark.parametrize("free_bias", [True, False])
@pytest.mark.parametrize("n", [3, 5, 6, 7, 12])
def test_gcv_is_right_with_fewer_samples_than_features_too(
    n: int, free_bias: bool
) -> None:
    # With n ≤ d both RSS and n − df vanish with the ridge; in float64 a hat matrix would leave only
    # rounding.
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 6))
    target = rng.choice([-3.0, 3.0], size=(n, 1))
    target[:2, 0] = [-3, 3]

    def centre(a: np.ndarray) -> np.ndarray:
        if free_bias:
            return a - a.mean(axis=0)
        return a

    z = torch.from_numpy(centre(x))
    t = torch.from_numpy(centre(target))
    weights, (ridge, _) = solve(
        z.T @ z, z.T @ t, "gcv", t.square().sum(), n, free=int(free_bias)
    )
    eigenvalues = torch.linalg.eigvalsh(z.T @ z)

    def freedom(ridge: float) -> float:
        return int(free_bias) + (eigenvalues / (eigenvalues + ridge)).sum().item()

    assert freedom(ridge) <= n / 2
    with mpmath.workdps(60):
        mean = z.square().sum().item() / 6
        candidates = [
            r for g in GCV_GRID.tolist()[::5] if freedom(r := g * mean) <= n / 2
        ] + [ridge]
        exact = [
            exact_gcv(
                mpmath.matrix(x.tolist()), mpmath.matrix(target.tolist()), r, free_bias
            )
            for r in candidates
        ]
        assert exact[-1] <= min(exact) * (1 + mpmath.mpf("1e-9"))
    solution = torch.linalg.lstsq(
        torch.cat([z, ridge**0.5 * torch.eye(6, dtype=torch.float64)]),
        torch.cat([t, t.new_zeros(6, 1)]),
    ).solution
    assert torch.allclose(weights, solution, rtol=1e-7, atol=1e-10)


def test_gcv_of_embeddings_that_are_all_alike() -> None:
    zero = torch.zeros(3, dtype=torch.float64)
    ridge = gcv_ridge(zero, zero, torch.tensor(1.0, dtype=torch.float64), 10).ridge
    assert ridge > 0
    z = torch.ones(10, 3, dtype=torch.float64)
    target = torch.tensor([[1.0], [-1.0]] * 5, dtype=torch.float64)
    tilde = augment(z)
    weights, _ = Centred.from_augmented(
        tilde.T @ tilde, tilde.T @ target, target.square().sum(), 10
    ).solve("gcv")
    assert torch.equal(weights, torch.zeros(4, 1, dtype=torch.float64))


class LargestTensor(TorchDispatchMode):
    """Notes the most elements of a tensor that was made meanwhile."""

    elements = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [
            leaf.numel()
            for leaf in tree_leaves(result)
            if isinstance(leaf, torch.Tensor)
        ]
        self.elements = max(self.elements, *made, 0)
        return result


def test_nothing_grows_with_the_square_of_a_group():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(600, 4, generator=draw).double()
    y = torch.randn(600, 3, generator=draw).double()
    groups = torch.arange(600).clamp_max(200)  # the last 400 are one
    penalty = torch.full((4,), 0.3, dtype=torch.float64)
    half = whitened_rows(x.T @ x, penalty, x)
    scores = x @ solve_ridge(x.T @ x, x.T @ y, penalty)
    with LargestTensor() as made:
        result = left_out_together(
            scores, half, torch.ones(600, dtype=torch.float64), y, groups
        )
    expected = x[200:] @ solve_ridge(x[:200].T @ x[:200], x[:200].T @ y[:200], penalty)
    torch.testing.assert_close(result[200:], expected, rtol=0, atol=1e-9)
    assert made.elements <= x.numel()


# ---------------------------------------------------------------------- samples that come more than
# once, or nearly so

CLASSES = 12
PER_CLASS = 25
WIDTH = 400
"""Fewer samples than features, as when a shop has learned a few classes."""


def draw(per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Embeddings of overlapping classes whose spectrum falls as that of images does, and their
    classes.
    """
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, WIDTH)) * 0.35
    scale = np.arange(1, WIDTH + 1) ** -0.5
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(CLASSES), per_class)
    z = (centres[y] + rng.normal(size=(len(y), WIDTH))) * scale
    return torch.from_numpy(z), torch.from_numpy(y)


def learn(
    z: Tensor, y: Tensor, samples: int | None = None, ridge: Ridge = "gcv"
) -> tuple[Tensor, RidgeChoice]:
    """Weights and λ of ridge regression on ±1 targets; ``samples`` of them are distinct."""
    x = augment(z)
    target = 2 * torch.nn.functional.one_hot(y, CLASSES).double() - 1
    energy = target.square().sum()
    return Centred.from_augmented(
        x.T @ x, x.T @ target, energy, samples or len(z)
    ).solve(ridge)


def accuracy(weights: Tensor) -> float:
    z, y = draw(200, seed=1)
    return 100 * ((augment(z) @ weights).argmax(1) == y).double().mean().item()


def near(z: Tensor, rows: Tensor, seed: int = 2) -> Tensor:
    """Copies of ``rows`` with 5 % of noise."""
    noise = torch.randn(
        len(rows),
        WIDTH,
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )
    return z[rows] + 0.05 * noise * (z[rows].norm(dim=1) / noise.norm(dim=1))[:, None]


Z, Y = draw(PER_CLASS, seed=0)
ORDER = torch.randperm(len(Z), generator=torch.Generator().manual_seed(3))
DISTINCT = learn(Z, Y)


@pytest.mark.parametrize("count", [3, 15, 60, 300])
@pytest.mark.parametrize("kind", ["exact", "near", "bursts"])
def test_copies_do_not_collapse_the_ridge(kind: str, count: int) -> None:
    if kind != "bursts":
        rows = ORDER[:count]
    else:
        rows = ORDER[: -(-count // 9)].repeat_interleave(9)[:count]
    more = Z[rows] if kind == "exact" else near(Z, rows)
    z = torch.cat([Z, more])
    y = torch.cat([Y, Y[rows]])
    weights, choice = learn(z, y)
    # An image that counts ten times costs accuracy at any ridge.
    best = max(
        accuracy(learn(z, y, ridge=DISTINCT[1].ridge * factor)[0])
        for factor in (0.3, 1, 3, 10, 30)
    )
    assert accuracy(weights) > best - 1
    assert 0.1 < choice.ridge / DISTINCT[1].ridge < 30


@pytest.mark.parametrize(
    ("per_class", "classes"), [(3, 12), (25, 12), (25, 2), (60, 12), (400, 12)]
)
def test_distinct_samples_all_have_error_of_their_own(
    per_class: int, classes: int
) -> None:
    z, y = draw(per_class, seed=4)
    z = z[y < classes]
    y = y[y < classes]
    target = torch.nn.functional.one_hot(y, CLASSES).double()
    z = z - z.mean(0)
    target = target - target.mean(0)
    left, values, _ = torch.linalg.svd(z, full_matrices=False)
    left = left[:, values > 1e-9]
    energy = (left.T @ target).square().sum(1)
    spare = len(z) - 1 - len(energy)
    shares, beyond = shares_of_independent_error(
        energy, spare, target.square().sum() - energy.sum()
    )
    assert shares.min() == 1
    assert beyond == 1


def test_with_nothing_to_learn_the_largest_ridge_is_chosen_and_said() -> None:
    z = torch.randn(
        300, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    assert learn(z, torch.arange(300) % CLASSES)[1].position == "largest"


def test_one_class_alone_is_no_edge_of_the_grid() -> None:
    assert learn(Z[Y == 0], Y[Y == 0])[1].position == "inside"


def test_a_rule_without_error_takes_the_smallest_ridge_and_says_so() -> None:
    z = torch.randn(
        2000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    target = z[:, :1]
    x = augment(z)
    _, choice = Centred.from_augmented(
        x.T @ x, x.T @ target, target.square().sum(), 2000
    ).solve("gcv")
    assert choice.position == "smallest"


def test_few_easy_samples_are_at_the_cap() -> None:
    z = Z[::8] + 5 * torch.nn.functional.one_hot(Y[::8], WIDTH)
    y = Y[::8]
    _, choice = learn(z, y)
    assert choice.position == "cap"
    values = torch.linalg.eigvalsh((z - z.mean(0)) @ (z - z.mean(0)).T).clamp_min(0)
    assert 1 + (values / (values + choice.ridge)).sum() <= 0.5 * len(z)


# ---------------------------------------------------------------------- the eigendecomposition

WIDTHS = [1, 2, WIDTH_FOR_FACTORS - 1, WIDTH_FOR_FACTORS, 200]


def gram_of(samples: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    z = torch.randn(
        samples,
        width,
        generator=torch.Generator().manual_seed(width),
        dtype=torch.float64,
    )
    return (z.T @ z).to(dtype)


@pytest.mark.parametrize("columns", [0, 1000])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)]
)
@pytest.mark.parametrize("width", WIDTHS)
def test_eigenvalues_and_rotations_make_up_the_matrix(width, dtype, tolerance, columns):
    gram = gram_of(2 * width, width, dtype)
    before = gram.clone()
    result = spectrum(gram, 2 * width, columns)
    assert torch.equal(gram, before)
    identity = torch.eye(width, dtype=dtype)
    rotation = result.rotate(identity)
    scale = tolerance * gram.abs().max().item()
    assert torch.allclose(
        rotation.T @ (result.values[:, None] * rotation), gram, atol=scale
    )
    assert torch.allclose(result.back(rotation), identity, atol=100 * tolerance)
    assert torch.allclose(result.values, torch.linalg.eigvalsh(gram), atol=scale)
    assert (result.values.dtype, rotation.dtype, result.back(identity).dtype) == (
        dtype,
    ) * 3


@pytest.mark.parametrize("columns", [0, 1, 3])
@pytest.mark.parametrize("width", WIDTHS)
def test_some_columns_are_those_of_the_whole(width: int, columns: int) -> None:
    result = spectrum(gram_of(2 * width, width), 2 * width, columns)
    identity = torch.eye(width, dtype=torch.float64)
    x = torch.randn(
        width, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    assert torch.allclose(result.rotate(x), result.rotate(identity) @ x, atol=1e-12)
    assert torch.allclose(result.back(x), result.back(identity) @ x, atol=1e-12)
    assert torch.allclose(
        result.rotate(x.T.contiguous().T), result.rotate(x), atol=1e-12
    )


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_beyond_the_rank_eigenvalues_are_zero(width: int) -> None:
    for rank in (1, width // 2):
        values = spectrum(gram_of(rank, width), rank, 1).values
        assert int((values > 0).sum()) == rank
        assert torch.equal(
            values[: width - rank], torch.zeros(width - rank, dtype=torch.float64)
        )
    assert torch.equal(
        spectrum(torch.zeros(width, width), 5, 1).values, torch.zeros(width)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("width", [20, 192, 500])
def test_more_samples_than_the_rank_give_no_eigenvalues_of_rounding(
    width: int, dtype: torch.dtype
) -> None:
    """Features that are constant, such as the border of digits, leave the centred Gram matrix with
    a rank below what is known of it."""
    generator = torch.Generator().manual_seed(width)
    samples = 3 * width
    rank = width // 2
    coordinates = torch.randn(samples, rank, generator=generator)
    directions = torch.randn(rank, width, generator=generator)
    z = coordinates.double() @ directions.double()
    gram = (z.T @ z).to(dtype)
    values = spectrum(gram, samples, 1).values
    assert int((values > 0).sum()) == rank


@pytest.mark.parametrize("rank", [1, 7, 30, 65])
def test_a_matrix_of_low_rank_is_decomposed_as_any_other(rank: int) -> None:
    width = 100
    gram = gram_of(rank, width)
    result = spectrum(gram, rank, 1)
    expected = torch.linalg.eigvalsh(gram)[-rank:]
    assert torch.allclose(result.values[-rank:], expected)
    rotated = result.rotate(gram)
    assert torch.allclose(result.back(rotated), gram, atol=1e-10)
    squares = result.values[:, None].square()
    assert torch.allclose(rotated.square().sum(dim=1, keepdim=True), squares)


@pytest.mark.parametrize("width", [2, 200])
def test_sums_that_overflowed_are_refused(width: int) -> None:
    with pytest.raises(CifnetError, match="overflowed"):
        spectrum(torch.full((width, width), torch.inf), 5, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_threads_go_on_meanwhile(dtype: torch.dtype) -> None:
    """A service answers while it learns: Python's lock is not held while LAPACK works."""
    x = torch.randn(1300, 1200, dtype=dtype, generator=torch.Generator().manual_seed(0))
    ended = threading.Event()
    turns = 0

    def count() -> None:
        nonlocal turns
        while not ended.wait(0.001):
            turns += 1

    thread = threading.Thread(target=count)
    thread.start()
    lapack.sytrd((x.T @ x).numpy())
    ended.set()
    thread.join()
    assert turns > 2  # a lock that was held would leave none but before and after


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("width", [2, 3, 90])
def test_the_same_numbers_as_scipys_wrappers(width: int, dtype: type) -> None:
    x = np.random.default_rng(0).normal(size=(2 * width, width)).astype(dtype)
    gram = x.T @ x
    theirs, lwork, stevd = get_lapack_funcs(("sytrd", "sytrd_lwork", "stevd"), (gram,))
    with threadpool_limits(1, "blas"):
        expected = theirs(gram, lower=1, lwork=int(lwork(width, lower=1)[0]))[:4]
        eigen = stevd(expected[1], expected[2])[:2]
    result = lapack.sytrd(gram)
    assert all(
        np.array_equal(ours, other)
        for ours, other in zip(result, expected, strict=True)
    )
    for ours, other in zip(lapack.stevd(result[1], result[2]), eigen, strict=True):
        assert np.array_equal(ours, other)
