"""Transform embeddings before they are added to the sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor


def sqrt_l2(z: Tensor) -> Tensor:
    """Return the signed square root of (n, d) embeddings, L2-normalised."""
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def l2(z: Tensor) -> Tensor:
    """Return L2-normalised (n, d) embeddings."""
    return torch.nn.functional.normalize(z, dim=1)


def joined(z: Tensor) -> Tensor:
    """Join L2-normalised (n, d) embeddings and their :func:`sqrt_l2`: (n, 2d)."""
    return torch.cat([l2(z), sqrt_l2(z)], dim=1)


Transform = Literal["none", "l2", "sqrt_l2", "joined"]
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "l2": l2,
    "sqrt_l2": sqrt_l2,
    "joined": joined,
}
"""Name of each :data:`Transform` → its function."""
