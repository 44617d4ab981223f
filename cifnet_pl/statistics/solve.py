"""Ridge solves by one Cholesky factorisation, and the leverages and leave-one-out scores that come from it."""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CifnetError

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""


def solve_ridge(gram: Tensor, moment: Tensor, penalty: Tensor) -> Tensor:
    """``(gram + diag(penalty))⁻¹ moment`` by one Cholesky factorisation (eq:weights_rrls without the SVD).

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        penalty: (p,) or () ridge added to the diagonal.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    return torch.cholesky_solve(moment, factorise(gram, penalty))


def factorise(gram: Tensor, penalty: Tensor) -> Tensor:
    """Lower Cholesky factor (p, p) of ``gram + diag(penalty)``; arguments and error as for :func:`solve_ridge`."""
    system = gram.clone()
    system.diagonal().add_(penalty)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(system)
    # A number that is not finite anywhere in a row of the factor makes that row's diagonal element so too.
    if info.item() or not torch.isfinite(factor.diagonal()).all():
        smallest = penalty.min().item() if penalty.ndim else penalty.item()
        raise CifnetError(
            f"the Gram matrix plus ridge {smallest:g} is not positive definite: use a larger ridge, or ridge: gcv"
        )
    return factor


def leverages(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """``xᵀ(gram + diag(penalty))⁻¹x`` of every row of x (n, p): (n,); errors as for :func:`solve_ridge`.

    Times the weight of a sample that is in the sums, this is what its own target contributes to its own score.
    """
    factor = factorise(gram.double(), penalty.double())  # a ridge that eigh solves with may be small for float32
    half: Tensor = torch.linalg.solve_triangular(factor, x.T.double(), upper=False)
    return half.square().sum(dim=0)


def left_out(scores: Tensor, share: Tensor, targets: Tensor) -> Tensor:
    """Scores (n, C) of samples whose own targets (n, C) no longer share in them: ``(score − h·y)/(1 − h)``.

    Args:
        scores: (n, C) of samples that were learned.
        share: h, (n,) or (n, C): the sample's weight times its leverage; 0 where it was never seen.
        targets: (n, C) targets that the solve used.

    Returns:
        (n, C) float64; NaN where h is 1 but for rounding: without the sample nothing is known of its score.
    """
    share = (share if share.ndim == 2 else share[:, None]).double()
    found = (scores.double() - share * targets) / (1 - share)
    return found.masked_fill(1 - share < ROUNDING, torch.nan)
