"""Define and check arguments that several heads take."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import UsageError, check_embeddings

Dtype = Literal["float64", "float32"]
"""Precision of the statistics."""

Ridge = float | Literal["gcv"]
"""A positive number, or "gcv": chosen by generalised cross-validation at every solve."""

Metric = Literal["cosine", "euclidean"]
"""How two embeddings are compared."""


def check_ridge(ridge: Ridge) -> Ridge:
    """Check a ridge.

    Args:
        ridge: a positive number, or "gcv".

    Returns:
        The number as a float, or "gcv".

    Raises:
        UsageError: neither.
    """
    return ridge if ridge == "gcv" else _positive("ridge", ridge, "a positive number or gcv")


def check_share(name: str, value: float | str, choices: tuple[str, ...]) -> float | str:
    """Check a share.

    Args:
        name: of the argument, for the error.
        value: a number in (0, 1], or one of ``choices``.
        choices: names that are allowed instead of a number.

    Returns:
        The number as a float, or the name.

    Raises:
        UsageError: neither.
    """
    expected = f"a number in (0, 1], {' or '.join(choices)}"
    if isinstance(value, str) and value in choices:
        return value
    number = _positive(name, value, expected)
    if number > 1:
        raise UsageError(f"{name} is {number:g}, expected {expected}")
    return number


def _positive(name: str, value: float | str, expected: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is '{value}', expected {expected}") from None
    if not 0 < number < float("inf"):
        raise UsageError(f"{name} is {number:g}, expected {expected}")
    return number


def check_samples(z: Tensor, y: Tensor, weight: Tensor | None, width: int) -> None:
    """Check a batch at the boundary.

    Args:
        z: (n, ``width``) finite float embeddings.
        y: (n,) int64 labels.
        weight: (n,) positive finite sample weights, or None.
        width: of the embeddings.

    Raises:
        UsageError: labels or weights that do not fit.
        CifnetError: embeddings of another width or dtype, or that hold NaN or Inf.
    """
    check_embeddings(z, width)
    if y.shape != (len(z),) or y.dtype != torch.int64:
        raise UsageError(f"labels have shape {tuple(y.shape)} and dtype {y.dtype}, expected ({len(z)},) int64")
    if weight is not None:
        if weight.shape != (len(z),):
            raise UsageError(f"weights have shape {tuple(weight.shape)}, expected ({len(z)},)")
        if not (torch.isfinite(weight) & (weight > 0)).all():
            raise UsageError("sample weights must be positive and finite")
