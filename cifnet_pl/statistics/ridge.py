"""Ridge regression on sums by one Cholesky factorisation, at a given ridge or at a chosen one.

Ridges are chosen by generalised cross-validation, from the sums alone."""

import math
import sys
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CifnetError, check_that

Ridge = float | Literal["gcv"]
"""A positive number, or "gcv": chosen by generalised cross-validation at every solve."""

LARGEST_DF_SHARE = 0.5
"""Largest degrees of freedom, as a share of the distinct samples.

Duplicates that are not counted look like samples that are fitted without error, so that λ → 0 would
be chosen. Distinct images ask for 0.22 to 0.53 of their number (``docs/studies/duplicates.md``).
"""

RIDGE_TOLERANCE = 0.1
"""Step of the logarithm of candidate ridges.

Three times the ridge costs at most 0.8 points (``docs/studies/duplicates.md``)."""


def check_ridge(
    ridge: Ridge,
    name: str = "ridge",
    largest: float = sys.float_info.max,
    expected: str = "a positive number or gcv",
) -> Ridge:
    """Check an argument that is a positive number, or "gcv", and return it.

    Args:
        ridge: the argument.
        name: its name, for the error.
        largest: the largest number allowed.
        expected: what the error says was expected.

    Raises:
        UsageError: neither.
    """
    if ridge == "gcv":
        return "gcv"
    fits = isinstance(ridge, int | float) and 0 < ridge <= largest
    check_that(fits, name, ridge, expected)
    return float(ridge)


def factorise(gram: Tensor, penalty: Tensor) -> Tensor:
    """Compute the lower Cholesky factor (p, p) of ``gram + diag(penalty)``.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        penalty: (p,) or () ridge added to the diagonal.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    # In place, as a Gram matrix may be most of the memory; restored exactly.
    diagonal = gram.diagonal()
    before = diagonal.clone()
    diagonal.add_(penalty)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(gram)
    diagonal.copy_(before)
    # A value that is not finite anywhere in a row of the factor makes that row's diagonal element
    # so too.
    if info.item() or not torch.isfinite(factor.diagonal()).all():
        raise CifnetError(
            f"the Gram matrix plus ridge {penalty.min().item():g} is not positive definite: use a"
            " larger ridge, or ridge: gcv"
        )
    return factor


def solve_ridge(gram: Tensor, moment: Tensor, penalty: Tensor) -> Tensor:
    """Return ``(gram + diag(penalty))⁻¹ moment``: eq:weights_rrls without the SVD.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        penalty: (p,) or () ridge added to the diagonal.

    Returns:
        (p, C) weights, in the dtype of ``gram``.

    Raises:
        CifnetError: the sum is not positive definite.

    Example:
        >>> gram, moment = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([[4.0], [8.0]])
        >>> solve_ridge(gram, moment, torch.tensor(1.0)).flatten().tolist()
        [2.0, 2.0]
    """
    return torch.cholesky_solve(moment, factorise(gram, penalty))


def whiten(factor: Tensor, x: Tensor) -> Tensor:
    """Return ``L⁻¹x`` for rows x (n, p), with a lower Cholesky factor L (p, p).

    With ``LLᵀ = A`` these are rows B with ``B Bᵀ = X A⁻¹Xᵀ``.
    """
    whitened: Tensor = torch.linalg.solve_triangular(factor, x.T, upper=False)
    return whitened.T


def gcv_ridge(
    gram: Tensor,
    moment: Tensor,
    tss: Tensor,
    samples: int,
    free: int,
) -> float:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    With ``G = V diag(e) Vᵀ`` and ``a_i = ‖(VᵀQ)_i‖²``

        RSS(λ) = tr(Y_cᵀY_c) − Σ a_i (e_i + 2λ)/(e_i + λ)²
        df(λ) = free + Σ e_i/(e_i + λ)
        GCV(λ) = n·RSS/(n − df)²

    The range is bounded: below by ``df ≤ n/2`` and by the rounding of the largest eigenvalue,
    above by the trace of G, where less than one degree of freedom is left.

    Args:
        gram: (p, p) G, centred where the bias is free.
        moment: (p, C) Q, centred likewise.
        tss: () total sum of squares of the targets, likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.

    Raises:
        CifnetError: the sums overflowed.
    """
    if not torch.isfinite(gram.trace()):
        raise CifnetError(
            f"the Gram matrix overflowed {gram.dtype}: scale the embeddings down"
        )
    # Eigenvalues near zero can keep LAPACK from converging: they are moved away from it.
    shift = float(gram.diagonal().mean())
    shifted = gram.double().clone()
    shifted.diagonal().add_(shift)
    if shifted.device.type == "cpu":  # NumPy's is faster there
        in_numpy = np.linalg.eigh(shifted.numpy())
        shifted_values, vectors = map(torch.from_numpy, in_numpy)
    else:
        shifted_values, vectors = torch.linalg.eigh(shifted)
    rotated = vectors.T @ moment.double()
    values = (shifted_values - shift).clamp_min(0).cpu().numpy()
    squares = rotated.square().sum(dim=1).cpu().numpy()
    largest = float(values.sum())
    # All embeddings alike: any ridge gives zero weights.
    if largest == 0.0 or samples <= free:
        return 1.0

    rounding = len(gram) * torch.finfo(gram.dtype).eps * float(values[-1])
    low = math.log(rounding)
    high = math.log(largest)
    # There may be several minima, which a search by intervals would not see.
    logarithms = np.arange(high, low, -RIDGE_TOLERANCE)
    candidates = np.exp(logarithms)[:, None]
    freedom = free + (values / (values + candidates)).sum(axis=1)
    is_allowed = freedom <= LARGEST_DF_SHARE * samples
    # Targets that are all alike, as of a single class, need no weights.
    if tss == 0 or not is_allowed.any():
        return largest
    ridges = candidates[is_allowed]
    penalised = values + ridges
    explained = squares * (penalised + ridges) / penalised**2
    rss = tss.item() - explained.sum(axis=1)
    scores = rss / (samples - freedom[is_allowed]) ** 2
    return float(ridges[scores.argmin(), 0])


def gcv_ridge_of_free_bias(
    gram: Tensor,
    moment: Tensor,
    target_square: Tensor,
    samples: int,
) -> float:
    """Return the ridge of :func:`gcv_ridge` from sums over ``x̃ = [1; z]``, the bias free.

    Args:
        gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
        moment: (d+1, C) ``Σ ω x̃ tᵀ``.
        target_square: () ``Σ ω t²`` over all samples and classes.
        samples: number of distinct samples.
    """
    share = gram[:, :1] / gram[0, 0]  # [1; mean of z]
    of_mean = share @ gram[:1]
    of_both_means = share @ moment[:1]
    centred_gram = (gram - of_mean)[1:, 1:]
    centred_moment = (moment - of_both_means)[1:]
    tss = target_square - moment[0].square().sum() / gram[0, 0]
    return gcv_ridge(centred_gram, centred_moment, tss, samples, free=1)
