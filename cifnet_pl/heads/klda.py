"""KLDA: linear discriminant analysis on random features of a Gaussian kernel (Momeni, Mazumder and Liu, AAAI 2025)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.heads.acil import fingerprint
from cifnet_pl.heads.arguments import Dtype, check_share
from cifnet_pl.heads.prototypes import Shrinkage, SLDAHead
from cifnet_pl.heads.ranpac import draw_normal
from cifnet_pl.heads.shared import LinearSumsHead
from cifnet_pl.statistics import augment
from cifnet_pl.utilities.errors import CheckpointError, UsageError


class KLDAHead(SLDAHead):
    """:class:`SLDAHead` on ``√(2/B)·cos(√(2γ)·Ωz/‖z‖ + b)``, whose products approximate ``exp(−γ‖x − y‖²)``.

    Ω is standard normal and b uniform in [0, 2π) (Rahimi and Recht, 2007); both are drawn from the seed and not stored.
    Embeddings are L2-normalised first, so that γ has a meaning whatever the backbone; the paper chooses γ for each
    backbone, and inverts the covariance with a pseudo-inverse where ours is shrunk.

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; the paper's is 5000.
        gamma: γ of the kernel.
        shrinkage: as for :class:`SLDAHead`.
        seed: of Ω and b.
        dtype: of the sums, "float64" or "float32".
    """

    title = "KLDA"

    directions: Tensor
    phases: Tensor
    fingerprint: Tensor

    def __init__(
        self,
        in_features: int,
        width: int = 5000,
        gamma: float = 1.0,
        shrinkage: Shrinkage = "gcv",
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        if width < 1:
            raise UsageError(f"width is {width}, expected at least 1")
        if not 0 < gamma < float("inf"):
            raise UsageError(f"gamma is {gamma:g}, expected a positive number")
        LinearSumsHead.__init__(self, in_features, width + 1, dtype)
        self.shrinkage = check_share("shrinkage", shrinkage, ("gcv", "oas"))
        self.width, self.gamma, self.seed = width, float(gamma), seed
        raw = np.random.PCG64(seed).jumped().random_raw(width) >> np.uint64(11)
        phases = torch.from_numpy(raw.astype(np.float64) * 2.0**-53) * (2 * math.pi)
        directions = math.sqrt(2 * gamma) * draw_normal(width, in_features, seed)
        self.register_buffer("shrinkage_used", torch.zeros((), dtype=torch.float64))
        self.register_buffer("directions", directions.to(self.dtype), persistent=False)
        self.register_buffer("fingerprint", torch.tensor(fingerprint(directions)))
        self.register_buffer("phases", phases.to(self.dtype), persistent=False)

    def _features(self, z: Tensor) -> Tensor:
        unit = torch.nn.functional.normalize(z.to(self.dtype), dim=1)
        return augment((unit @ self.directions.T + self.phases).cos() * math.sqrt(2 / self.width))

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        stored = state.get("fingerprint")
        if isinstance(stored, Tensor) and int(stored) != int(self.fingerprint):
            raise CheckpointError(
                f"the stored head used other random features than width {self.width}, gamma {self.gamma:g} and seed "
                f"{self.seed} give for embeddings of width {self.in_features}: use the arguments that it was made with"
            )
