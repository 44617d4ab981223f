"""The eigendecomposition: both ways agree with the matrix, whatever its rank, and leave it as it was."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from scipy.linalg import get_lapack_funcs
from threadpoolctl import threadpool_limits
from torch import Tensor

from cifnet_pl.statistics import ridge as lapack
from cifnet_pl.statistics.ridge import FACTORED_FROM, spectrum
from cifnet_pl.utilities.errors import CifnetError
from tests.utilities.test_memory import blas_threads

WIDTHS = [1, 2, FACTORED_FROM - 1, FACTORED_FROM, 200]


def gram_of(samples: int, width: int, dtype: torch.dtype = torch.float64) -> Tensor:
    z = torch.randn(samples, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    return (z.T @ z).to(dtype)


@pytest.mark.parametrize("columns", [0, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
@pytest.mark.parametrize("width", WIDTHS)
def test_eigenvalues_and_rotations_make_up_the_matrix(
    width: int, dtype: torch.dtype, tolerance: float, columns: int
) -> None:
    gram = gram_of(2 * width, width, dtype)
    before = gram.clone()
    result = spectrum(gram, 2 * width, columns)
    assert torch.equal(gram, before)
    identity = torch.eye(width, dtype=dtype)
    rotation = result.rotate(identity)
    scale = tolerance * gram.abs().max().item()
    assert torch.allclose(rotation.T @ (result.values[:, None] * rotation), gram, atol=scale)
    assert torch.allclose(result.back(rotation), identity, atol=100 * tolerance)
    assert torch.allclose(result.values, torch.linalg.eigvalsh(gram), atol=scale)
    assert (result.values.dtype, rotation.dtype, result.back(identity).dtype) == (dtype,) * 3


@pytest.mark.parametrize("columns", [0, 1, 3])
@pytest.mark.parametrize("width", WIDTHS)
def test_some_columns_are_those_of_the_whole(width: int, columns: int) -> None:
    result, identity = spectrum(gram_of(2 * width, width), 2 * width, columns), torch.eye(width, dtype=torch.float64)
    x = torch.randn(width, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.allclose(result.rotate(x), result.rotate(identity) @ x, atol=1e-12)
    assert torch.allclose(result.back(x), result.back(identity) @ x, atol=1e-12)
    assert torch.allclose(result.rotate(x.T.contiguous().T), result.rotate(x), atol=1e-12)


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_beyond_the_rank_eigenvalues_are_zero(width: int) -> None:
    for samples in (1, width // 2):
        values = spectrum(gram_of(samples, width), samples, 1).values
        assert int((values > 0).sum()) == samples
        assert torch.equal(values[: width - samples], torch.zeros(width - samples, dtype=torch.float64))
    assert torch.equal(spectrum(torch.zeros(width, width), 5, 1).values, torch.zeros(width))


@pytest.mark.parametrize("width", [2, 200])
def test_sums_that_overflowed_are_refused(width: int) -> None:
    with pytest.raises(CifnetError, match="overflowed"):
        spectrum(torch.full((width, width), torch.inf), 5, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_other_threads_go_on_meanwhile(dtype: torch.dtype) -> None:
    """A service answers while it learns: Python's lock is not held while LAPACK works."""
    x = torch.randn(1300, 1200, dtype=dtype, generator=torch.Generator().manual_seed(0))
    ended, turns = threading.Event(), 0

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
    assert all(np.array_equal(ours, other) for ours, other in zip(result, expected, strict=True))
    for ours, other in zip(lapack.stevd(result[1], result[2]), eigen, strict=True):
        assert np.array_equal(ours, other)


def test_narrow_matrices_are_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several would wait for each other after every column; how many there are elsewhere stays as it was."""
    computed: list[set[int]] = []

    def call(name: str, *arguments: object) -> int:
        computed.append(blas_threads())
        return routines(name, *arguments)

    routines = lapack._call
    monkeypatch.setattr(lapack, "_call", call)
    with threadpool_limits(2, "blas"):
        _, diagonal, below, _ = lapack.sytrd(np.eye(8))
        lapack.stevd(diagonal, below)
        assert computed[1:] == [{1}, {1}]  # the first call asks for the size of the work space
        monkeypatch.setattr(lapack, "ONE_THREAD", 7)
        lapack.stevd(diagonal, below)
        assert computed[-1] == blas_threads() == {2}


def test_narrow_matrices_of_several_threads_are_computed_at_once() -> None:
    with lapack._few_threads(8):
        other = threading.Thread(target=lapack.stevd, args=(np.ones(3), np.ones(2)), daemon=True)
        other.start()
        other.join(timeout=60)
        assert not other.is_alive()
