"""ACIL: ridge regression on a random projection of the embedding (Zhuang et al., NeurIPS 2022)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Dtype, Ridge, check_ridge
from cifnet_pl.heads.base import Head
from cifnet_pl.heads.shared import LinearSumsHead
from cifnet_pl.statistics import Choice, Place, Sums, half_products, left_out_together, solve_gcv, solve_ridge
from cifnet_pl.utilities.errors import CheckpointError, UsageError


class ACILHead(LinearSumsHead):
    """Ridge regression of one-hot targets on ``h = ReLU(P z)``, without bias, over all data ever seen.

    ``W = (G + γI)⁻¹ Q`` with ``G = Σ h hᵀ`` and ``Q[:, c] = Σ_{y=c} h``: the joint solution that ACIL's recursion
    over inverse Gram matrices reaches step by step, here from sums and one Cholesky factorisation a task. The sums
    are exact under ``merge_`` and ``subtract_``, where the recursion could only add. At most three and a half
    matrices of B² numbers are alive at a time, four with "gcv".

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; that of ``projection`` where one is given.
        ridge: γ added to the unweighted Gram matrix of the random features, or "gcv" (chosen anew at every solve).
        projection: (B, d) matrix P, which is then part of the state; None to draw it from the seed, uniform in
            ±1/√d (the default of a linear layer), in which case the state holds only its fingerprint.
        seed: of the projection.
        dtype: of the sums and the projection, "float64" or "float32".
    """

    title = "ACIL"
    leaves_one_out = True
    has_bias = False

    projection: Tensor
    fingerprint: Tensor
    ridge_used: Tensor

    def __init__(
        self,
        in_features: int,
        width: int = 8192,
        ridge: Ridge = 0.1,
        projection: Tensor | None = None,
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        if projection is not None:
            if projection.ndim != 2 or projection.shape[1] != in_features:
                raise UsageError(f"projection has shape {tuple(projection.shape)}, expected (width, {in_features})")
            width = len(projection)
        if width < 1:
            raise UsageError(f"width is {width}, expected at least 1")
        super().__init__(in_features, width, dtype)
        self.width, self.ridge, self.seed = width, check_ridge(ridge), seed
        self.place: Place = "given"
        self.given = projection is not None
        matrix = (self._draw() if projection is None else projection).double()
        self.register_buffer("projection", matrix.to(self.dtype, copy=True), persistent=self.given)
        self.register_buffer("fingerprint", torch.tensor(fingerprint(matrix)))
        self.register_buffer("ridge_used", torch.zeros((), dtype=torch.float64))

    def _draw(self) -> Tensor:
        """Return the (B, d) float64 projection that the seed gives."""
        return draw_projection(self.width, self.in_features, self.seed)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on."""
        settings = super().settings()
        seed = settings.pop("seed")
        return settings | {"projection": "given" if self.given else f"seed {seed}"}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ACILHead:
        """Return an empty head (see :meth:`Head.from_settings`).

        A projection that was given is zero until it is loaded.
        """
        arguments = dict(settings)
        kind, _, seed = str(arguments.pop("projection")).partition(" ")
        if kind == "given":
            shape = int(arguments["width"]), int(arguments["in_features"])
            return cls(**arguments, projection=torch.zeros(shape, dtype=torch.float64))
        return cls(**arguments, seed=int(seed))

    def fresh(self) -> ACILHead:
        """Return an empty head with the same projection."""
        empty = super().fresh()
        empty.projection.copy_(self.projection)
        empty.fingerprint.copy_(self.fingerprint)
        return empty

    def _projected(self, z: Tensor) -> Tensor:
        return z.to(self.dtype) @ self.projection.T

    def _features(self, z: Tensor) -> Tensor:
        return self._projected(z).relu_()

    def _solve(self) -> None:
        self._fold()
        self.weights, choice = solve_stream(self.sums, self.sums.class_mass.sum(), self.ridge)
        self.ridge_used.fill_(choice.ridge)
        self.place = choice.place

    def choices(self) -> list[Choice]:
        """Return the ridge of all classes."""
        return [Choice(float(self.ridge_used), self.place)]

    def _leave_one_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        h = self._features(z)
        half = half_products(self.sums.gram, self.ridge_used.to(h), h)
        targets = torch.nn.functional.one_hot(columns, len(self.labels))
        return left_out_together(h @ self.weights, half, torch.ones_like(half[:, 0]), targets, groups)

    def _same_kind(self, other: Head) -> None:
        super()._same_kind(other)
        assert isinstance(other, ACILHead)
        if int(self.fingerprint) != int(other.fingerprint):
            raise UsageError("cannot combine heads with different projections: use the same seed or matrix")

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: B(B+1)/2 + 2CB, and Bd for a projection that was given."""
        return {"projection": self.projection.numel() if self.given else 0} | super().state_elements()

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        stored = state.get("fingerprint")
        if isinstance(stored, Tensor) and not self.given and int(stored) != int(self.fingerprint):
            raise CheckpointError(
                f"the stored head used another projection than width {self.width} and seed {self.seed} give "
                f"for embeddings of width {self.in_features}: use the arguments that it was made with"
            )
        matrix = state.get("projection")
        if isinstance(matrix, Tensor) and matrix.shape != self.projection.shape:
            raise CheckpointError(
                f"stored projection has shape {tuple(matrix.shape)}, expected {tuple(self.projection.shape)}"
            )


def solve_stream(sums: Sums, target_energy: Tensor, ridge: Ridge) -> tuple[Tensor, Choice]:
    """Solve ridge regression without bias: weights (p, C) on sums whose ``class_sums`` are the moments, and the ridge.

    Args:
        sums: over the features of one stream.
        target_energy: () sum of the squared targets; with one-hot targets, of the sample weights.
        ridge: a number, or "gcv".
    """
    moment = sums.class_sums.T
    if ridge == "gcv":
        weights, chosen = solve_gcv(sums.gram, moment, target_energy, int(sums.seen))
    else:
        weights = solve_ridge(sums.gram, moment, moment.new_tensor(ridge), overwrite=True)
        chosen = Choice(float(ridge), "given")
    # Row-major, as after loading: products round differently with the solver's column-major result.
    return weights.contiguous(), chosen


def draw_projection(width: int, in_features: int, seed: int) -> Tensor:
    """Draw a projection, uniform in ±1/√d, the same for ever.

    Only raw output of the bit generator is used, which NumPy never changes: a state that does not hold its projection
    can be loaded under any later release.

    Args:
        width: number of random features B.
        in_features: width d of the embeddings.
        seed: of the bit generator.

    Returns:
        (width, in_features) float64.
    """
    raw = np.random.PCG64(seed).random_raw((width, in_features)) >> np.uint64(11)  # the 53 bits of a double
    uniform: Tensor = torch.from_numpy(raw.astype(np.float64) * 2.0**-52 - 1)
    return uniform / math.sqrt(in_features)


def fingerprint(matrix: Tensor) -> int:
    """Return 63 bits of the SHA-256 of a float64 matrix and its shape."""
    content = str(tuple(matrix.shape)).encode() + matrix.detach().cpu().contiguous().numpy().tobytes()
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1
