from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cifnet_pl.statistics import GCV_GRID, Centred, Sums, augment, gcv_ridge, solve_gcv, solve_ridge
from cifnet_pl.statistics.sums import BLOCK
from cifnet_pl.utilities.errors import CheckpointError, CifnetError


def samples(n: int, width: int = 3, classes: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    index = torch.randint(-1, classes, (n,), generator=generator)
    return x, index, torch.rand(n, generator=generator, dtype=torch.float64) + 0.5


def assert_close(a: Sums, b: Sums, tolerance: float = 1e-12) -> None:
    for name, value in a.state_dict().items():
        assert torch.allclose(value, b.state_dict()[name], rtol=tolerance, atol=tolerance), name


@pytest.mark.parametrize("per_class", [False, True])
def test_sums_are_what_they_say(per_class: bool) -> None:
    x, index, weight = samples(20)
    sums = Sums(3, 2, per_class=per_class)
    sums.add(x, index, weight)
    outer = weight[:, None, None] * x[:, :, None] * x[:, None, :]
    assert torch.allclose(sums.gram, outer.sum(dim=0))
    assert int(sums.seen) == 20
    assert sums.mass.item() == pytest.approx(weight.sum().item())
    for c in range(2):
        of_class = index == c
        assert torch.allclose(sums.class_sums[c], (weight[of_class, None] * x[of_class]).sum(dim=0))
        assert int(sums.counts[c]) == int(of_class.sum())
        if per_class:
            assert torch.allclose(sums.class_gram(c), outer[of_class].sum(dim=0))
    assert len(sums.class_grams) == (2 if per_class else 0)


@pytest.mark.parametrize("per_class", [False, True])
@given(n=st.integers(0, 12), cut=st.integers(0, 12), seed=st.integers(0, 99))
def test_sums_add_up_and_can_be_taken_apart(per_class: bool, n: int, cut: int, seed: int) -> None:
    x, index, weight = samples(n, seed=seed)
    whole, first, second = (Sums(3, 2, per_class=per_class) for _ in range(3))
    whole.add(x, index, weight)
    first.add(x[:cut], index[:cut], weight[:cut])
    second.add(x[cut:], index[cut:], weight[cut:])
    merged = Sums(3, 2, per_class=per_class)
    merged.merge(first)
    merged.merge(second)
    assert_close(merged, whole)
    merged.merge(second, sign=-1)
    assert_close(merged, first)


def test_merge_matches_columns() -> None:
    x, index, weight = samples(30, classes=3)
    renamed = torch.tensor([2, 0, 1, -1])[index]  # class c of one is class (2, 0, 1)[c] of the other
    mine, theirs, expected = Sums(3, 3, per_class=True), Sums(3, 3, per_class=True), Sums(3, 3, per_class=True)
    theirs.add(x, index, weight)
    expected.add(x, renamed, weight)
    mine.merge(theirs, torch.tensor([2, 0, 1]))
    assert_close(mine, expected)


def test_grow_and_keep_change_the_classes_and_not_the_common_sums() -> None:
    x, index, weight = samples(30, classes=3)
    sums, grown = Sums(3, 3, per_class=True), Sums(3, 1, per_class=True)
    sums.add(x, index, weight)
    grown.grow(2)
    grown.add(x, index, weight)
    assert_close(grown, sums)
    gram = sums.gram.clone()
    sums.keep(torch.tensor([2, 0]))
    assert torch.equal(sums.gram, gram)
    assert int(sums.seen) == 30
    assert torch.equal(sums.class_sums, grown.class_sums[[2, 0]])
    assert torch.equal(sums.counts, grown.counts[[2, 0]])
    assert torch.equal(sums.class_grams, grown.class_grams[[2, 0]])


def test_rows_of_other_sums_count_as_rows_of_no_class() -> None:
    x, index, weight = samples(10)
    mine, theirs, expected = Sums(3, 2), Sums(3, 2), Sums(3, 2)
    theirs.add(x, index, weight)
    expected.add(x, torch.full_like(index, -1), weight)
    mine.add_gram_of(theirs)
    assert_close(mine, expected)


def test_the_gram_matrix_is_whole_whenever_it_is_read() -> None:
    width = 3 * BLOCK
    x, index, weight = samples(9, width=width)
    expected = x.T @ (weight[:, None] * x)

    def added() -> Sums:
        sums = Sums(width, 2)
        sums.add(x, index, weight)
        return sums

    merged, shown, taken, loaded, reduced = added(), added(), added(), Sums(width, 2), added()
    merged.merge(added())
    shown.add_gram_of(added())
    assert torch.allclose(taken.gram, expected, rtol=1e-12, atol=1e-12)
    taken.merge(added(), sign=-1)
    loaded.load_state_dict(added().state_dict())
    reduced.reduce(lambda tensor: tensor.mul_(2))
    for sums, times in ((added(), 1), (merged, 2), (shown, 2), (taken, 0), (loaded, 1), (reduced, 2)):
        assert torch.allclose(sums.gram, times * expected, rtol=1e-12, atol=1e-12)


def test_what_is_stored_does_not_depend_on_what_was_read() -> None:
    x, index, weight = samples(9, width=2 * BLOCK)
    one, other = Sums(2 * BLOCK, 2), Sums(2 * BLOCK, 2)
    for sums in (one, other):
        sums.add(x, index, weight)
        assert sums is other or len(sums.gram)
        sums.add(x, index)
    stored = other.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in one.state_dict().items())


def test_reduce_visits_every_sum_once_in_a_fixed_order() -> None:
    sums = Sums(3, 2, per_class=True)
    visited: list[Tensor] = []
    sums.reduce(visited.append)
    assert {id(t) for t in visited} == {id(t) for t in sums.buffers()}
    assert len(visited) == len(list(sums.buffers()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_does_not_round_sums(dtype: torch.dtype) -> None:
    x, index, weight = samples(20)
    plain, cast = Sums(3, 2, per_class=True, dtype=dtype), Sums(3, 2, per_class=True, dtype=dtype)
    plain.add(x.float(), index, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast.add(x.float(), index, weight)
    for name, value in plain.named_buffers():
        assert torch.equal(value, dict(cast.named_buffers())[name])
        assert value.dtype in (dtype, torch.int64)


def test_a_state_of_another_width_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"\(5, 2\), expected \(3, 2\)"):
        Sums(3).load_state_dict(Sums(4, 2).state_dict())


def test_augment_puts_the_bias_first() -> None:
    assert augment(torch.tensor([[2.0, 3.0]])).tolist() == [[1.0, 2.0, 3.0]]
    assert augment(torch.zeros(0, 3)).shape == (0, 4)


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
    weights, (ridge, _) = solve_gcv(z.T @ z, z.T @ t, t.square().sum(), n, free=int(free_bias))
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
        solve_gcv(gram, torch.ones(2, 1), torch.tensor(1.0), 5)
