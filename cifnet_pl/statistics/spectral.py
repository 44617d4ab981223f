"""Decompose a Gram matrix for ridge regression: the spectrum, and a few rotated columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.statistics.lapack import stevd, sytrd
from cifnet_pl.utilities.errors import CifnetError

FACTORED_FROM = 64
"""Smallest width for which the eigenvectors are left as factors; below, any way takes no time."""


@dataclass(frozen=True)
class Spectrum:
    """The eigendecomposition ``V diag(values) Vᵀ``.

    Attributes:
        values: (p,) eigenvalues, ascending; exactly zero beyond the rank.
        rotate: function (p, C) → ``Vᵀx``.
        back: function (p, C) → ``Vx``.
    """

    values: Tensor
    rotate: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def spectrum(gram: Tensor, rank: int, columns: int) -> Spectrum:
    """Compute the eigendecomposition of a Gram matrix.

    Eigenvalues beyond the rank, and those below the precision, hold only rounding: they are zero here.

    Args:
        gram: (p, p) float64 or float32.
        rank: an upper bound of its rank.
        columns: how many columns will be rotated, which decides in which form the eigenvectors are kept.

    Raises:
        CifnetError: the sums overflowed.
    """
    if not torch.isfinite(gram.trace()):
        raise CifnetError(f"the Gram matrix overflowed {gram.dtype}: scale the embeddings down, or use dtype: float64")
    # Few samples leave many eigenvalues that are zero but for rounding, over which divide and conquer can fail to
    # converge. Moved away from zero they are equal to working precision, and deflate. In place, and put back
    # exactly: a Gram matrix may be most of the memory.
    diagonal = gram.diagonal().clone()
    shift = diagonal.mean()
    # Factors rotate there and back in 8p²C operations instead of 4p²C, and save the 2p³ of their product.
    factored = gram.device.type == "cpu" and len(gram) >= max(FACTORED_FROM, 2 * columns)
    try:
        gram.diagonal().add_(shift)
        result = _factored(gram) if factored else _whole(gram)
    finally:
        gram.diagonal().copy_(diagonal)
    result.values.sub_(shift)
    result.values[: len(gram) - min(len(gram), rank)] = 0
    result.values[result.values <= torch.finfo(gram.dtype).eps * result.values[-1]] = 0
    return result


def _whole(gram: Tensor) -> Spectrum:
    values, vectors = torch.linalg.eigh(gram)
    return Spectrum(values, lambda x: vectors.T @ x, lambda x: vectors @ x)


def _factored(gram: Tensor) -> Spectrum:
    """Return ``G = Q T Qᵀ`` with T tridiagonal, ``T = U diag(values) Uᵀ``: V = QU is never formed.

    Without the product QU it takes half as long (p = 1280, few columns). LAPACK's sytrd leaves Q as Householder
    reflectors of all rows but the first, in the form that ormqr applies, as LAPACK's own ormtr does.
    """
    packed, diagonal, below, scales = sytrd(gram.numpy().T)
    values, vectors, failed = stevd(diagonal, below)
    if failed:
        raise np.linalg.LinAlgError("the eigenvalues of the Gram matrix did not converge")
    reflectors, scale, inner = torch.from_numpy(packed)[1:, :-1], torch.from_numpy(scales), torch.from_numpy(vectors)

    def reflected(x: Tensor, transpose: bool) -> Tensor:
        return torch.cat([x[:1], torch.ormqr(reflectors, scale, x[1:], transpose=transpose)])

    return Spectrum(
        torch.from_numpy(values), lambda x: inner.T @ reflected(x, True), lambda x: reflected(inner @ x, False)
    )
