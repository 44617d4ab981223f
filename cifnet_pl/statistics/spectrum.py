"""The eigendecomposition of a Gram matrix, by LAPACK on a processor.

ctypes lets go of Python's lock while LAPACK runs. scipy's own wrappers hold it: a service could not
answer for 0.12 s (p = 1281) or 16 s (4096).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import cython_lapack
from torch import Tensor

from cifnet_pl.statistics.solving import added_to_diagonal
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.memory import one_thread

WIDTH_FOR_ONE_THREAD = 1024
"""Width of a matrix up to which one thread computes.

On two cores sytrd takes 0.15 s with one thread and 0.11 with two at width 1280, 0.28 and 0.21 at
1584; at 512 and below both take as long."""

LAPACK_PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}

LARGEST_RANK_SHARE = 0.65
"""A matrix whose rank is at most this share of its width is decomposed by a factor of low rank.

At width 1584 that takes 0.08 instead of 0.29 s with rank 400, and 0.24 instead of 0.34 s with 1000.
"""

WIDTH_FOR_FACTORS = 64
"""Smallest width for which the eigenvectors are left as factors; below, any form takes no time."""


def _few_threads(width: int) -> AbstractContextManager[None]:
    """Have one thread compute within the block, if matrices are narrow."""
    if width <= WIDTH_FOR_ONE_THREAD:
        return one_thread
    return nullcontext()


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    """Return a LAPACK routine, all of whose arguments are pointers."""
    capsule = cython_lapack.__pyx_capi__[name]
    interface = ctypes.pythonapi
    interface.PyCapsule_GetName.restype = ctypes.c_char_p
    interface.PyCapsule_GetName.argtypes = [ctypes.py_object]
    interface.PyCapsule_GetPointer.restype = ctypes.c_void_p
    interface.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    signature = interface.PyCapsule_GetName(capsule)
    address = interface.PyCapsule_GetPointer(capsule, signature)
    pointers = [ctypes.c_void_p] * arguments
    prototype = ctypes.CFUNCTYPE(None, *pointers)
    routine: Callable[..., None] = prototype(address)
    return routine


def _call(name: str, dtype: np.dtype[Any], *arguments: bytes | int | np.ndarray) -> int:
    """Call a routine with its arguments but the last, ``info``, which is returned."""
    info = ctypes.c_int()
    held = list[Any]()  # until the routine returns
    pointers = list[Any]()
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            pointers.append(argument.ctypes.data)
        elif isinstance(argument, int):
            held.append(ctypes.c_int(argument))
            pointers.append(ctypes.addressof(held[-1]))
        else:
            held.append(ctypes.c_char_p(argument))
            last = held[-1]
            pointers.append(ctypes.cast(last, ctypes.c_void_p))
    symbol = LAPACK_PREFIX[dtype] + name
    routine = _routine(symbol, len(pointers) + 1)
    routine(*pointers, ctypes.addressof(info))
    return info.value


class Tridiagonal(NamedTuple):
    """A symmetric matrix in tridiagonal form, ``G = Q T Qᵀ``.

    Attributes:
        reflectors: (p, p) Q as Householder reflectors below the first subdiagonal, in Fortran
            order.
        diagonal: (p,) of T.
        below: (p−1,) subdiagonal of T.
        scales: (p−1,) of the reflectors.
    """

    reflectors: np.ndarray
    diagonal: np.ndarray
    below: np.ndarray
    scales: np.ndarray


def sytrd(matrix: np.ndarray) -> Tridiagonal:
    """Reduce a symmetric matrix to tridiagonal form.

    Args:
        matrix: (p, p) float64 or float32, of which the lower triangle is read.
    """
    p = len(matrix)
    dtype = matrix.dtype
    packed = np.array(matrix, order="F")
    diagonal = np.empty(max(1, p), dtype)
    off_diagonal = max(1, p - 1)
    below = np.empty(off_diagonal, dtype)
    scales = np.empty(max(1, p - 1), dtype)
    size = np.empty(1, dtype)
    _call("sytrd", dtype, b"L", p, packed, p, diagonal, below, scales, size, -1)
    length = max(1, int(size[0]))
    work = np.empty(length, dtype)
    with _few_threads(p):
        _call(
            "sytrd", dtype, b"L", p, packed, p, diagonal, below, scales, work, len(work)
        )
    off_diagonal_values = below[: p - 1]
    return Tridiagonal(packed, diagonal, off_diagonal_values, scales[: p - 1])


def stevd(diagonal: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the eigendecomposition of a tridiagonal matrix by divide and conquer.

    Args:
        diagonal: (p,) float64 or float32.
        below: (p−1,) subdiagonal.

    Returns:
        (p,) eigenvalues, ascending; (p, p) eigenvectors in columns.
    """
    p = len(diagonal)
    dtype = diagonal.dtype
    values = diagonal.copy()
    zero = np.zeros(1, dtype)
    rest = np.append(below, zero)
    vectors = np.empty((p, p), dtype, order="F")
    # Sizes as LAPACK's documentation gives them for jobz = "V".
    work = np.empty(1 + 4 * p + p**2, dtype)
    integers = np.empty(3 + 5 * p, np.intc)
    sizes = (work, len(work), integers, len(integers))
    with _few_threads(p):
        failed = _call("stevd", dtype, b"V", p, values, rest, vectors, p, *sizes)
    if failed:
        raise np.linalg.LinAlgError(
            "the eigenvalues of the Gram matrix did not converge"
        )
    return values, vectors


@dataclass(frozen=True)
class Spectrum:
    """The eigendecomposition ``V diag(values) Vᵀ``.

    Attributes:
        values: (p,) eigenvalues, ascending; exactly zero beyond the rank.
        rotate: function (p, C) → ``Vᵀx``, for columns x in the range of the matrix.
        back: function (p, C) → ``Vx``, of what ``rotate`` returns.
    """

    values: Tensor
    rotate: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def spectrum(gram: Tensor, rank: int, columns: int) -> Spectrum:
    """Compute the eigendecomposition of a Gram matrix.

    Eigenvalues beyond the rank, and those below the precision, hold only rounding: they are zero
    here.

    Args:
        gram: (p, p) float64 or float32.
        rank: an upper bound of its rank.
        columns: how many columns will be rotated, which decides in which form the eigenvectors are
            kept.

    Raises:
        CifnetError: the sums overflowed.
    """
    if not torch.isfinite(gram.trace()):
        raise CifnetError(
            f"the Gram matrix overflowed {gram.dtype}: scale the embeddings down, or use dtype:"
            " float64"
        )
    if gram.device.type == "cpu" and rank <= LARGEST_RANK_SHARE * len(gram):
        result = _of_low_rank(gram, rank, columns)
    else:
        result = _of_any_rank(gram, rank, columns)
    values = result.values
    # The usual tolerance of a numerical rank, as in LAPACK's pstrf: rounding errors of the Gram
    # matrix and of its decomposition reach about the width times the precision.
    rounding = len(gram) * torch.finfo(gram.dtype).eps
    values[values <= rounding * values[-1]] = 0
    return result


def _of_any_rank(gram: Tensor, rank: int, columns: int) -> Spectrum:
    """Return the decomposition with the eigenvalues beyond the rank set to zero."""
    # Few samples leave many eigenvalues that are zero but for rounding, over which divide and
    # conquer can fail to converge. Moved away from zero they are equal to working precision, and
    # deflate.
    shift = gram.diagonal().mean()
    with added_to_diagonal(gram, shift):
        result = _decomposed(gram, columns)
    result.values.sub_(shift)
    beyond_rank = max(0, len(gram) - rank)
    result.values[:beyond_rank] = 0
    return result


def _of_low_rank(gram: Tensor, rank: int, columns: int) -> Spectrum:
    """Return the decomposition of ``G = B Bᵀ`` with B (p, r), from that of ``BᵀB = U diag(s) Uᵀ``.

    B is the Cholesky factor with complete pivoting (LAPACK's pstrf), which ends at the rank. It
    takes pr² operations. ``V = B U diag(s)^-½`` is never formed.

    Args:
        gram: (p, p).
        rank: an upper bound of its rank.
        columns: as for :func:`spectrum`.
    """
    width = len(gram)
    values = gram.new_zeros(width)
    factor = pivoted_cholesky(gram, rank)
    found = factor.shape[1]
    if not found:
        return Spectrum(values, torch.zeros_like, torch.zeros_like)
    inner = _of_any_rank(factor.T @ factor, found, columns)
    squares = inner.values
    # Of a direction that holds only rounding the length is not known, and it is not used.
    smallest = torch.finfo(gram.dtype).eps * squares[-1]
    lengths = squares.clamp_min(smallest).sqrt()[:, None]
    start = width - found
    values[start:] = squares.clamp_min(0)

    def rotate(x: Tensor) -> Tensor:
        rotated = torch.zeros_like(x)
        rotated[start:] = inner.rotate(factor.T @ x) / lengths
        return rotated

    def back(x: Tensor) -> Tensor:
        return factor @ inner.back(x[start:] / lengths)

    return Spectrum(values, rotate, back)


def pivoted_cholesky(matrix: Tensor, rank: int) -> Tensor:
    """Return B (p, r) with ``B Bᵀ`` equal to a positive semi-definite matrix but for rounding.

    Args:
        matrix: (p, p) float64 or float32, on the CPU.
        rank: largest r.
    """
    p = len(matrix)
    reduced = np.array(matrix.numpy().T, order="F")
    dtype = reduced.dtype
    pivots = np.empty(p, np.intc)
    found = np.zeros(1, np.intc)
    default_tolerance = np.full(1, -1, dtype)
    work = np.empty(2 * p, dtype)
    results = (pivots, found, default_tolerance, work)
    with _few_threads(p):
        _call("pstrf", dtype, b"L", p, reduced, p, *results)
    columns = min(int(found[0]), rank)
    factor = np.zeros((p, columns), dtype)
    factor[pivots - 1] = np.tril(reduced[:, :columns])
    return torch.from_numpy(factor)


def _decomposed(gram: Tensor, columns: int) -> Spectrum:
    # Factors rotate there and back in 8p²C operations instead of 4p²C, and save the 2p³ of their
    # product.
    narrowest = max(WIDTH_FOR_FACTORS, 2 * columns)
    if gram.device.type == "cpu" and len(gram) >= narrowest:
        return _factored(gram)
    values, vectors = torch.linalg.eigh(gram)
    return Spectrum(values, lambda x: vectors.T @ x, lambda x: vectors @ x)


def _factored(gram: Tensor) -> Spectrum:
    """Return ``G = Q T Qᵀ`` with T tridiagonal, ``T = U diag(values) Uᵀ``: V = QU is never formed.

    Without the product QU it takes half as long (p = 1280, few columns). LAPACK's sytrd leaves Q as
    Householder reflectors of all rows but the first, in the form that ormqr applies, as LAPACK's
    own ormtr does.
    """
    form = sytrd(gram.numpy().T)
    values, vectors = stevd(form.diagonal, form.below)
    lower = torch.from_numpy(form.reflectors)
    reflectors = lower[1:, :-1]
    scales = torch.from_numpy(form.scales)
    inner = torch.from_numpy(vectors)

    def reflected(x: Tensor, transpose: bool) -> Tensor:
        rest = torch.ormqr(reflectors, scales, x[1:], transpose=transpose)
        return torch.cat([x[:1], rest])

    return Spectrum(
        torch.from_numpy(values),
        lambda x: inner.T @ reflected(x, True),
        lambda x: reflected(inner @ x, False),
    )
