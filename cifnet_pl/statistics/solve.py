"""Solve ridge systems by one Cholesky factorisation."""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CifnetError


def solve_ridge(gram: Tensor, moment: Tensor, penalty: Tensor, overwrite: bool = False) -> Tensor:
    """Return ``(gram + diag(penalty))⁻¹ moment`` by one Cholesky factorisation (eq:weights_rrls without the SVD).

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        penalty: (p,) or () ridge added to the diagonal.
        overwrite: whether ``gram`` may be changed, which saves a copy.

    Returns:
        (p, C) weights, in the dtype of ``gram``.

    Raises:
        CifnetError: the sum is not positive definite.

    Example:
        >>> gram, moment = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([[4.0], [8.0]])
        >>> solve_ridge(gram, moment, torch.tensor(1.0)).flatten().tolist()
        [2.0, 2.0]
    """
    return torch.cholesky_solve(moment, factorise(gram, penalty, overwrite))


def factorise(gram: Tensor, penalty: Tensor, overwrite: bool = False) -> Tensor:
    """Compute the lower Cholesky factor (p, p) of ``gram + diag(penalty)``.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        penalty: (p,) or () ridge added to the diagonal.
        overwrite: whether ``gram`` may be changed, which saves a copy.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    system = gram if overwrite else gram.clone()
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
