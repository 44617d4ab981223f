"""RanPAC's second phase: class prototypes in a random projection, decorrelated (McDonnell et al., NeurIPS 2023)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.heads.acil import ACILHead
from cifnet_pl.heads.arguments import Dtype, Ridge


class RanPACHead(ACILHead):
    """``score_c = hᵀ(G + λI)⁻¹ Σ_{y=c} h`` with ``h = ReLU(P z)`` and P of standard normal numbers, not trained.

    The same closed form as ACIL's, on another projection. The first phase of the paper, which adapts the network to the
    first task by parameter-efficient tuning, is left out, as the backbone is frozen here; λ is chosen by generalised
    cross-validation on all data, where the paper takes the best of 17 powers of ten on a fifth of each task's samples.

    Args:
        in_features, projection, dtype: as for :class:`ACILHead`.
        width: number of random features; the paper's is 10000.
        ridge: λ, or "gcv" (chosen anew at every solve).
        seed: of the projection.
    """

    title = "RanPAC"

    def __init__(
        self,
        in_features: int,
        width: int = 10_000,
        ridge: Ridge = "gcv",
        projection: Tensor | None = None,
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, width, ridge, projection, seed, dtype)

    def _draw(self) -> Tensor:
        return draw_normal(self.width, self.in_features, self.seed)


def draw_normal(width: int, in_features: int, seed: int) -> Tensor:
    """Draw standard normal numbers by Box and Muller from raw random bits.

    As for :func:`cifnet_pl.heads.acil.draw_projection`, any later release draws the same numbers.

    Args:
        width: number of rows.
        in_features: number of columns.
        seed: of the random bits.

    Returns:
        (width, in_features) float64.
    """
    raw = np.random.PCG64(seed).random_raw((2, width, in_features)) >> np.uint64(11)
    radius, angle = (raw.astype(np.float64) + 0.5) * 2.0**-53
    normal: Tensor = torch.from_numpy(np.sqrt(-2 * np.log(radius)) * np.cos(2 * np.pi * angle))
    return normal
