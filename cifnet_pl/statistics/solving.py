"""Solve ridge systems by one Cholesky factorisation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CifnetError, UsageError, check_that

Ridge = float | Literal["gcv"]
"""A positive number, or "gcv": chosen by generalised cross-validation at every solve."""


def number_or_gcv(
    name: str, value: float | str, expected: str, largest: float = sys.float_info.max
) -> Ridge:
    """Check an argument that is a positive number, or "gcv".

    Args:
        name: of the argument, for the error.
        value: the argument.
        expected: what the error says was expected.
        largest: the largest number allowed.

    Returns:
        The number as a float, or "gcv".

    Raises:
        UsageError: neither.
    """
    if value == "gcv":
        return "gcv"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is '{value}', expected {expected}") from None
    check_that(0 < number <= largest, name, number, expected)
    return number


def check_ridge(ridge: Ridge) -> Ridge:
    """Check a ridge as :func:`number_or_gcv`."""
    return number_or_gcv("ridge", ridge, "a positive number or gcv")


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


@contextmanager
def added_to_diagonal(matrix: Tensor, amount: Tensor) -> Iterator[None]:
    """Add to the diagonal of a matrix within the block, and restore it exactly.

    In place, as a Gram matrix may be most of the memory.

    Args:
        matrix: (p, p).
        amount: (p,) or ().
    """
    diagonal = matrix.diagonal().clone()
    try:
        matrix.diagonal().add_(amount)
        yield
    finally:
        matrix.diagonal().copy_(diagonal)


def factorise(gram: Tensor, penalty: Tensor) -> Tensor:
    """Compute the lower Cholesky factor (p, p) of ``gram + diag(penalty)``.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        penalty: (p,) or () ridge added to the diagonal.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    factor: Tensor
    with added_to_diagonal(gram, penalty):
        factor, info = torch.linalg.cholesky_ex(gram)
    # A value that is not finite anywhere in a row of the factor makes that row's diagonal element
    # so too.
    if info.item() or not torch.isfinite(factor.diagonal()).all():
        raise CifnetError(
            f"the Gram matrix plus ridge {penalty.min().item():g} is not positive definite: use a"
            " larger ridge, or ridge: gcv"
        )
    return factor


def whiten(factor: Tensor, x: Tensor) -> Tensor:
    """Return ``L⁻¹x`` for rows x (n, p), with a lower Cholesky factor L (p, p)."""
    whitened: Tensor = torch.linalg.solve_triangular(factor, x.T, upper=False)
    return whitened.T


def solve_back(factor: Tensor, x: Tensor) -> Tensor:
    """Return ``L⁻ᵀx`` for rows x (n, p), with a lower Cholesky factor L (p, p)."""
    solved: Tensor = torch.linalg.solve_triangular(factor.T, x.T, upper=True)
    return solved.T
