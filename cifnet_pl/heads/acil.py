"""ACIL: ridge regression on a random projection of the embedding (Zhuang et al., NeurIPS 2022)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, Head, LeftOut, check_ridge
from cifnet_pl.heads.sums import SumsHead, kept_weights
from cifnet_pl.statistics import (
    Choice,
    ClassMoments,
    Position,
    Ridge,
    Sums,
    half_products,
    left_out_together,
    solve,
)
from cifnet_pl.utilities.errors import CheckpointError, UsageError, check_that


class ACILHead(SumsHead):
    """Ridge regression of one-hot targets on ``h = ReLU(P z)``, without bias, over all data ever
    seen.

    ``W = (G + γI)⁻¹ Q`` with ``G = Σ h hᵀ`` and ``Q[:, c] = Σ_{y=c} h``: the joint solution that
    ACIL's recursion over inverse Gram matrices reaches step by step, here from sums and one
    Cholesky factorisation a task. The sums are exact under ``merge_`` and ``subtract_``, where the
    recursion could only add. At most three and a half matrices of B² numbers are alive at a time,
    four with "gcv".

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; that of ``projection`` where one is given.
        ridge: γ added to the unweighted Gram matrix of the random features, or "gcv" (chosen anew
            at every solve).
        projection: (B, d) matrix P, which is then part of the state; None to draw it from the seed,
            uniform in ±1/√d (the default of a linear layer), in which case the state holds only its
            fingerprint.
        seed: of the projection.
        dtype: of the sums and the projection, "float64" or "float32".
    """

    title = "ACIL"
    leaves_one_out = True

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
                raise UsageError(
                    f"projection has shape {tuple(projection.shape)}, expected (width,"
                    f" {in_features})"
                )
            width = len(projection)
        check_that(width >= 1, "width", width, "at least 1")
        super().__init__(in_features, width, dtype)
        self.width = width
        self.ridge = check_ridge(ridge)
        self.seed = seed
        self.position: Position = "given"
        self.given = projection is not None
        matrix = (self._draw() if projection is None else projection).double()
        self.projection: Tensor = nn.Buffer(matrix.to(self.dtype, copy=True), persistent=self.given)
        self.fingerprint: Tensor = nn.Buffer(torch.tensor(fingerprint(matrix)))
        self.ridge_used: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))

    def _draw(self) -> Tensor:
        """Return the (B, d) float64 projection that the seed gives."""
        return draw_projection(self.width, self.in_features, self.seed)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on; of a matrix that was
        given, that it was.
        """
        settings = super().settings()
        del settings["projection"]
        return settings | ({"projection": "given"} if self.given else {})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ACILHead:
        """Return an empty head (see :meth:`Head.from_settings`); a matrix that was given is zero
        until it is loaded.
        """
        if "projection" not in settings:
            return cls(**settings)
        shape = int(settings["width"]), int(settings["in_features"])
        return cls(**{**settings, "projection": torch.zeros(shape, dtype=torch.float64)})

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

    def _rows(self, z: Tensor) -> Tensor:
        return self._features(z)

    def _moments(self) -> ClassMoments:
        return ClassMoments.of(
            self.sums.gram, self.sums.class_sums, self.sums.class_mass, None, self.sums.mass
        )

    def _solve(self) -> None:
        self._fold()
        self.weights, choice = solve_stream(self.sums, self.sums.class_mass.sum(), self.ridge)
        self.ridge_used.fill_(choice.ridge)
        self.position = choice.position

    def choices(self) -> list[Choice]:
        """Return the ridge of all classes."""
        return [Choice(float(self.ridge_used), self.position)]

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        h = self._features(z)
        half = half_products(self.sums.gram, self.ridge_used.to(h), h)
        targets = torch.nn.functional.one_hot(columns, len(self.labels))
        return partial(
            left_out_together, h @ self.weights, half, torch.ones_like(half[:, 0]), targets
        )

    def _same_kind(self, other: Head) -> None:
        super()._same_kind(other)
        assert isinstance(other, ACILHead)
        if int(self.fingerprint) != int(other.fingerprint):
            raise UsageError(
                "cannot combine heads with different projections: use the same seed or matrix"
            )

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: B(B+1)/2 + 2CB, and Bd for a projection that was
        given.
        """
        return {
            "projection": self.projection.numel() if self.given else 0
        } | super().state_elements()

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        if not self.given:
            check_drawn(state, self.fingerprint, f"width {self.width} and seed {self.seed}")
        matrix = state.get("projection")
        if isinstance(matrix, Tensor) and matrix.shape != self.projection.shape:
            raise CheckpointError(
                f"stored projection has shape {tuple(matrix.shape)}, expected"
                f" {tuple(self.projection.shape)}"
            )


def solve_stream(sums: Sums, target_energy: Tensor, ridge: Ridge) -> tuple[Tensor, Choice]:
    """Solve ridge regression without bias: weights (p, C) on sums whose ``class_sums`` are the
    moments, and the ridge.

    Args:
        sums: over the features of one stream.
        target_energy: () sum of the squared targets; with one-hot targets, of the sample weights.
        ridge: a number, or "gcv".
    """
    weights, choice = solve(
        sums.gram, sums.class_sums.T, ridge, target_energy, int(sums.seen), spare=True
    )
    # Row-major, as after loading: products round differently with the solver's column-major result.
    return weights.contiguous(), choice


def draw_projection(width: int, in_features: int, seed: int) -> Tensor:
    """Draw a projection, uniform in ±1/√d, the same for ever.

    Only raw output of the bit generator is used, which NumPy never changes: a state that does not
    hold its projection can be loaded under any later release.

    Args:
        width: number of random features B.
        in_features: width d of the embeddings.
        seed: of the bit generator.

    Returns:
        (width, in_features) float64.
    """
    raw = np.random.PCG64(seed).random_raw((width, in_features)) >> np.uint64(
        11
    )  # the 53 bits of a double
    uniform: Tensor = torch.from_numpy(raw.astype(np.float64) * 2.0**-52 - 1)
    return uniform / math.sqrt(in_features)


def fingerprint(matrix: Tensor) -> int:
    """Return 63 bits of the SHA-256 of a float64 matrix and its shape."""
    content = (
        str(tuple(matrix.shape)).encode() + matrix.detach().cpu().contiguous().numpy().tobytes()
    )
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


def check_drawn(state: Mapping[str, Any], own: Tensor, arguments: str) -> None:
    """Raise CheckpointError if a stored head drew another projection than ``arguments`` give here.

    Args:
        state: of the head, with the fingerprint of its projection.
        own: () fingerprint of the projection here.
        arguments: which ones, for the error.
    """
    stored = state.get("fingerprint")
    if isinstance(stored, Tensor) and int(stored) != int(own):
        raise CheckpointError(
            f"the stored head used another projection than {arguments} give for embeddings of this"
            " width: use the arguments that it was made with"
        )


class DSALHead(ACILHead):
    """Two ridge regressions on one random projection: ReLU main stream, tanh compensation stream.

    The main stream is ACIL's. After task k the compensation stream is taught, on ``φ = tanh(P z)``,
    the residual ``y − W_kᵀh`` of the main stream for the classes of task k; the residual of earlier
    classes is set to zero (previous label cleansing). ``score = Wᵀh + C·Vᵀφ`` with C the
    compensation ratio.

    In sums: ``Φ = Σ φφᵀ`` over all data; the moment of a class of task k is ``Σ_k φ y − (Σ_k φ hᵀ)
        W_k`` over the
    samples of task k alone, since its target is zero in every other task; ``V = (Φ + γI)⁻¹`` times
    the moments. The cross product ``Σ_k φ hᵀ`` is needed during task k only. All samples of a task
    are taken together, as one batch of the authors' recursion, so batch size and order do not
    matter. The residual targets depend on the weights at their time, so the statistics cannot be
    merged over sites. At most five matrices of B² numbers are alive at a time, seven with "gcv".

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; that of ``projection`` where one is given.
        ridge: γ of both streams; with "gcv" each stream's is chosen on its own.
        projection: (B, d) matrix P, or None to draw it from the seed; see :class:`ACILHead`.
        seed: of the projection.
        compensation_ratio: C.
        dtype: of the sums and the projection, "float64" or "float32".
    """

    title = "DS-AL"
    merges = pools = subtracts = False
    reason = "its residual targets were fixed by the weights that each site had at the time"

    def __init__(
        self,
        in_features: int,
        width: int = 8192,
        ridge: Ridge = 0.1,
        projection: Tensor | None = None,
        seed: int = 0,
        compensation_ratio: float = 0.6,
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, width, ridge, projection, seed, dtype)
        fits = 0 <= compensation_ratio < float("inf")
        check_that(fits, "compensation_ratio", compensation_ratio, "a number of at least 0")
        self.compensation_ratio = compensation_ratio
        # Its class_sums are the moments of the residual targets.
        self.compensation = Sums(self.width, dtype=self.dtype)
        self.compensation_increment: Sums | None = None
        self.compensation_position: Position = "given"
        self.cross: Tensor = nn.Buffer(torch.zeros(0, 0, dtype=self.dtype))
        self.compensation_weights: Tensor = nn.Buffer(torch.zeros(self.width, 0, dtype=self.dtype))
        self.compensation_ridge: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.residual_energy: Tensor = nn.Buffer(torch.zeros(0, dtype=self.dtype))

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        super()._begin(new, counts)
        self.compensation.grow(new)
        self.residual_energy = torch.cat(
            [self.residual_energy, self.residual_energy.new_zeros(new)]
        )

    def _open_increment(self) -> Sums:
        if self.compensation_increment is None:
            self.compensation_increment = self.compensation.empty(len(self.labels))
            self.cross = self.sums.products.new_zeros(self.width, self.width)
        return super()._open_increment()

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        main = self._open_increment()
        assert self.compensation_increment is not None
        projected = self._projected(z)
        h = projected.relu()
        phi = projected.tanh_()
        main.add(h, columns, weight)
        self.compensation_increment.add(phi, columns, weight)
        if weight is None:
            weighted = phi
        else:
            weighted = phi * weight.to(phi)[:, None]
        self.cross.addmm_(weighted.T, h)

    def _note_duplicates(self, count: int) -> None:
        super()._note_duplicates(count)
        assert self.compensation_increment is not None
        self.compensation_increment.note_duplicates(count)

    def choices(self) -> list[Choice]:
        """Return the ridges of the main stream and of the compensation stream."""
        return [
            *super().choices(),
            Choice(float(self.compensation_ridge), self.compensation_position),
        ]

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        super()._reduce(sum_in_place)
        assert self.compensation_increment is not None
        self.compensation_increment.reduce(sum_in_place)
        sum_in_place(self.cross)

    def _solve(self) -> None:
        observed = self.increment
        if self.compensation_increment is not None:
            self.compensation.merge(self.compensation_increment)
            self.compensation_increment = None
        self._fold()
        if observed is not None and self.ridge != "gcv":
            observed.drop_gram()  # only the energy for gcv needs it
        super()._solve()
        if observed is not None:
            self._teach(observed)
            self.cross = self.cross.new_zeros(0, 0)
            del observed  # at full width every matrix counts
        weights, choice = solve_stream(self.compensation, self.residual_energy.sum(), self.ridge)
        self.compensation_weights = weights
        self.compensation_ridge.fill_(choice.ridge)
        self.compensation_position = choice.position

    def _teach(self, observed: Sums) -> None:
        """Replace the compensation moments of the classes just learned by those of their residual
        targets.
        """
        seen = observed.counts > 0
        if not seen.any():  # all classes of the task were removed again
            return
        current = self.task_of == self.task_of[seen].max()
        weights = self.weights[:, current]
        self.compensation.class_sums[current] -= (self.cross @ weights).T
        if self.ridge == "gcv":
            fitted = (weights * (observed.gram @ weights - 2 * observed.class_sums[current].T)).sum(
                dim=0
            )
            self.residual_energy[current] += observed.class_mass[current] + fitted

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        """Leave samples out of the main stream exactly; the other stream's targets come from the
        current main weights.

        The effect of a sample on the residual targets of others is ignored: it would need the
        weights at its time.
        """
        main = super()._leaving_out(z, columns)
        projected = self._projected(z)
        residual = (
            torch.nn.functional.one_hot(columns, len(self.labels)) - projected.relu() @ self.weights
        )
        own_task = self.task_of[columns][:, None] == self.task_of
        phi = projected.tanh_()
        half = half_products(self.compensation.gram, self.compensation_ridge.to(phi), phi)
        compensation_scores = phi @ self.compensation_weights
        ones = torch.ones_like(half[:, 0])
        compensation = partial(
            left_out_together, compensation_scores, half, ones, residual * own_task
        )
        return lambda groups: main(groups) + self.compensation_ratio * compensation(groups)

    def _scores(self, z: Tensor) -> Tensor:
        projected = self._projected(z)
        main = projected.relu() @ self.weights
        return (
            main + self.compensation_ratio * (projected.tanh_() @ self.compensation_weights)
        ).double()

    def _discard(self) -> None:
        super()._discard()
        self.compensation_increment = None
        self.cross = self.cross.new_zeros(0, 0)

    def _keep(self, columns: Tensor) -> None:
        # Nothing is folded: the residual targets of a task that is under way are still to be made.
        sums = [self.sums, self.compensation, self.increment, self.compensation_increment]
        for class_sums in sums:
            if class_sums is not None:
                class_sums.keep(columns)
        self.residual_energy = self.residual_energy[columns]
        self.weights = kept_weights(self.weights, columns)
        self.compensation_weights = kept_weights(self.compensation_weights, columns)

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: B(B+1) + 4CB, and Bd for a projection that was
        given.
        """
        second = {
            "factors": self.compensation.products.numel(),
            "moments": self.compensation.class_sums.numel(),
            "weights": self.compensation_weights.numel(),
        }
        return {
            name: count + second.get(name, 0) for name, count in super().state_elements().items()
        }

    def _before_load(self, state: Mapping[str, Any]) -> None:
        self.compensation_increment = None
        super()._before_load(state)
