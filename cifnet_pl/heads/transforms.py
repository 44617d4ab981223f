"""Transform embeddings before they are added to the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.heads.ranpac import draw_normal

SHARE = 0.5
"""Norm of the random products beside an embedding of norm 1 (``python -m benchmarks.products``)."""


def sqrt_l2(z: Tensor) -> Tensor:
    """Return the signed square root of (n, d) embeddings, L2-normalised."""
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def l2(z: Tensor) -> Tensor:
    """Return L2-normalised (n, d) embeddings."""
    return torch.nn.functional.normalize(z, dim=1)


def joined(z: Tensor) -> Tensor:
    """Join L2-normalised (n, d) embeddings and their :func:`sqrt_l2`: (n, 2d)."""
    return torch.cat([l2(z), sqrt_l2(z)], dim=1)


def products(z: Tensor) -> Tensor:
    """Return L2-normalised (n, d) embeddings beside 1.5 d random products of them: (n, d + 3d/2).

    A product is ``(p·z)(q·z)`` with p and q standard normal, scaled so that inner products of the result approximate
    ``x·y + (x·y)²/4`` (Kar and Karnick, AISTATS 2012). p and q depend on d alone, are drawn anew in each process and
    are not part of the state.
    """
    unit = l2(z)
    first, second = directions(z.shape[1]).to(dtype=z.dtype, device=z.device).chunk(2)
    return torch.cat([unit, SHARE * len(first) ** -0.5 * (unit @ first.T) * (unit @ second.T)], dim=1)


DRAWN: dict[int, Tensor] = {}
"""Width d → what :func:`directions` drew: a plain table, as the ONNX exporter would trace through ``lru_cache``."""


def directions(in_features: int) -> Tensor:
    """Draw the 2·⌈1.5 d⌉ directions (…, d) float64 of :func:`products`, the same ones always."""
    if in_features not in DRAWN:
        DRAWN[in_features] = draw_normal(2 * -(-3 * in_features // 2), in_features, seed=0)
    return DRAWN[in_features]


Transform = Literal["none", "l2", "sqrt_l2", "joined", "products"]
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "l2": l2,
    "sqrt_l2": sqrt_l2,
    "joined": joined,
    "products": products,
}
"""Name of each :data:`Transform` → its function."""
