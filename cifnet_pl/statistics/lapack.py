"""Call two routines of scipy's LAPACK without Python's lock, so that other threads can run meanwhile.

scipy's own wrappers hold the lock until the routine returns, which for a wide Gram matrix takes seconds.
Up to a width of ``ONE_THREAD`` they compute in one thread. Several would wait for each other after every column, and
where other programs use the cores, too, that takes ten to twenty times as long.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import cython_lapack

from cifnet_pl.utilities.blas_threads import one_thread

ONE_THREAD = 2048
"""Width of a matrix up to which one thread computes: 1280 takes it 0.2 s."""

PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


def _few_threads(width: int) -> AbstractContextManager[None]:
    """Have one thread compute within the block, if matrices are narrow."""
    return one_thread if width <= ONE_THREAD else nullcontext()


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    """Return a LAPACK routine, all of whose arguments are pointers; ctypes lets go of Python's lock while it runs."""
    capsule = cython_lapack.__pyx_capi__[name]
    interface = ctypes.pythonapi
    interface.PyCapsule_GetName.restype, interface.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    interface.PyCapsule_GetPointer.restype = ctypes.c_void_p
    interface.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = interface.PyCapsule_GetPointer(capsule, interface.PyCapsule_GetName(capsule))
    routine: Callable[..., None] = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)(address)
    return routine


def _call(name: str, dtype: np.dtype[Any], *arguments: bytes | int | np.ndarray) -> int:
    """Call a routine with its arguments but the last, ``info``, which is returned."""
    info = ctypes.c_int()
    held = [ctypes.c_int(one) if isinstance(one, int) else one for one in arguments]
    pointers = [
        one.ctypes.data
        if isinstance(one, np.ndarray)
        else ctypes.addressof(one)
        if isinstance(one, ctypes.c_int)
        else ctypes.cast(ctypes.c_char_p(one), ctypes.c_void_p)
        for one in held
    ]
    _routine(PREFIX[dtype] + name, len(pointers) + 1)(*pointers, ctypes.addressof(info))
    return info.value


def sytrd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a symmetric matrix to tridiagonal form, ``G = Q T Qᵀ``.

    Args:
        matrix: (p, p) float64 or float32, of which the lower triangle is read.

    Returns:
        (p, p) Q as Householder reflectors below the first subdiagonal, in Fortran's order; (p,) diagonal and (p−1,)
        subdiagonal of T; (p−1,) scales of the reflectors.
    """
    count, dtype = len(matrix), matrix.dtype
    packed = np.array(matrix, order="F")
    diagonal, below, scales = (np.empty(max(1, count - less), dtype) for less in (0, 1, 1))
    size = np.empty(1, dtype)
    _call("sytrd", dtype, b"L", count, packed, count, diagonal, below, scales, size, -1)
    work = np.empty(max(1, int(size[0])), dtype)
    with _few_threads(count):
        _call("sytrd", dtype, b"L", count, packed, count, diagonal, below, scales, work, len(work))
    return packed, diagonal, below[: count - 1], scales[: count - 1]


def stevd(diagonal: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
    """Compute the eigendecomposition of a tridiagonal matrix by divide and conquer.

    Args:
        diagonal, below: (p,) and (p−1,), float64 or float32.

    Returns:
        (p,) eigenvalues, ascending; (p, p) eigenvectors in columns; whether it failed to converge.
    """
    count, dtype = len(diagonal), diagonal.dtype
    values, rest = diagonal.copy(), np.append(below, np.zeros(1, dtype))
    vectors = np.empty((count, count), dtype, order="F")
    # Sizes as LAPACK's documentation gives them for jobz = "V".
    work, whole = np.empty(1 + 4 * count + count**2, dtype), np.empty(3 + 5 * count, np.intc)
    with _few_threads(count):
        failed = _call("stevd", dtype, b"V", count, values, rest, vectors, count, work, len(work), whole, len(whole))
    return values, vectors, bool(failed)
