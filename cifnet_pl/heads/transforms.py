"""Transform embeddings before they are added to the sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.heads.ranpac import draw_normal

SHARE = 0.5
"""Norm of the random products beside an embedding of norm 1."""


def sqrt_l2(z: Tensor) -> Tensor:
    """Return the signed square root of (n, d) embeddings, L2-normalised."""
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def l2(z: Tensor) -> Tensor:
    """Return L2-normalised (n, d) embeddings."""
    return torch.nn.functional.normalize(z, dim=1)


def joined(z: Tensor) -> Tensor:
    """Join L2-normalised (n, d) embeddings and their :func:`sqrt_l2`: (n, 2d)."""
    return torch.cat([l2(z), sqrt_l2(z)], dim=1)


def products(z: Tensor, drawn: Tensor | None = None) -> Tensor:
    """Return L2-normalised (n, d) embeddings beside 1.5 d random products of them: (n, d + 3d/2).

    A product is ``(p·z)(q·z)`` with p and q standard normal, scaled so that inner products of the result approximate
    ``x·y + (x·y)²/4`` (Kar and Karnick, AISTATS 2012). p and q depend on d alone, are drawn anew in each process and
    are not part of the state.

    Args:
        z: (n, d) embeddings.
        drawn: what :func:`directions` returns, in the dtype and on the device of ``z``; None to draw it.
    """
    unit = l2(z)
    first, second = (directions(z.shape[1]).to(z) if drawn is None else drawn).chunk(2)
    return torch.cat([unit, SHARE * len(first) ** -0.5 * (unit @ first.T) * (unit @ second.T)], dim=1)


@lru_cache(maxsize=4)
def directions(in_features: int) -> Tensor:
    """Draw the 2·⌈1.5 d⌉ directions (…, d) float64 of :func:`products`, the same ones always."""
    return draw_normal(2 * -(-3 * in_features // 2), in_features, seed=0)


Transform = Literal["none", "l2", "sqrt_l2", "joined", "products"]
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "l2": l2,
    "sqrt_l2": sqrt_l2,
    "joined": joined,
    "products": products,
}
"""Name of each :data:`Transform` → its function."""


def transformed(z: Tensor, transform: Transform, dtype: torch.dtype, drawn: Tensor | None) -> Tensor:
    """Return transformed embeddings; without a transform as they are, of whatever dtype.

    Args:
        z: (n, d) embeddings.
        transform: its name.
        dtype: of the result of a transform.
        drawn: directions of :func:`products`, in this dtype and on the device of ``z``.
    """
    if transform == "products":
        return products(z.to(dtype), drawn)
    return z if transform == "none" else TRANSFORMS[transform](z.to(dtype))
