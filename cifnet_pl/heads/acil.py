"""ACIL and DS-AL: ridge regression on a random projection of the embedding."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from cifnet_pl.heads.base import Dtype, scalar
from cifnet_pl.heads.sums import SumsHead, kept_weights
from cifnet_pl.statistics import (
    ClassDistances,
    LearnedRows,
    LeftOut,
    Ridge,
    Sums,
    check_projection,
    check_ridge,
    draw_projection,
    factorise,
    gcv_ridge,
    projection_fingerprint,
    solve_ridge,
    whiten,
)
from cifnet_pl.utilities.errors import UsageError, check_count, check_that
from cifnet_pl.utilities.growing_tensors import no_rows


class ACILHead(SumsHead):
    """Ridge regression of one-hot targets on ``h = ReLU(P z)``, without bias, over all data seen.

    ``W = (G + γI)⁻¹ Q`` with ``G = Σ h hᵀ`` and ``Q[:, c] = Σ_{y=c} h`` (Zhuang et al., NeurIPS
    2022). ACIL reaches this joint solution by a recursion over inverse Gram matrices; here it comes
    from sums and one Cholesky factorisation a task. The sums are exact under ``merge_`` and
    ``subtract_``, where the recursion could only add. At most three and a half matrices of B²
    values are in memory at a time, four with "gcv". B(B+1)/2 + 2CB values are kept between tasks,
    and Bd for a given projection.

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; that of ``projection`` where one is given.
        ridge: γ added to the unweighted Gram matrix of the random features, or "gcv" (chosen anew
            at every solve).
        projection: (B, d) matrix P, which is then part of the state. None draws it from the seed,
            uniform in ±1/√d (the default of a linear layer); then the state holds only its
            fingerprint.
        seed: of the projection.
        dtype: of the sums and the projection, "float64" or "float32".
    """

    title = "ACIL"
    leaves_one_out = True
    _draw = staticmethod(draw_projection)

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
        check_count("width", width)
        super().__init__(in_features, width, dtype)
        self.width = width
        self.ridge = check_ridge(ridge)
        self.seed = seed
        self.given = projection is not None
        if projection is None:
            projection = self._draw(width, in_features, seed)
        matrix = projection.double()
        self.projection: Tensor = nn.Buffer(
            matrix.to(self.dtype, copy=True), persistent=self.given
        )
        self.fingerprint: Tensor = nn.Buffer(
            torch.tensor(projection_fingerprint(matrix))
        )
        self.ridge_used = scalar(0.0)

    def settings(self) -> dict[str, Any]:
        """Return the constructor arguments that a stored state depends on.

        Of a projection that was given, only its fingerprint.
        """
        settings = super().settings()
        del settings["projection"]
        if self.given:
            settings["projection"] = int(self.fingerprint)
        return settings

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return an empty head (see :meth:`Head.from_settings`).

        A projection that was given is zero until it is loaded.
        """
        if "projection" not in settings:
            return cls(**settings)
        shape = (settings["width"], settings["in_features"])
        zeros = torch.zeros(shape, dtype=torch.float64)
        arguments = dict(settings, projection=zeros)
        head = cls(**arguments)
        head.fingerprint.fill_(settings["projection"])
        return head

    def fresh(self) -> Self:
        """Return an empty head with the same projection."""
        empty = super().fresh()
        empty.projection.copy_(self.projection)
        return empty

    def _projected(self, z: Tensor) -> Tensor:
        return z.to(self.dtype) @ self.projection.T

    def _features(self, z: Tensor) -> Tensor:
        return self._projected(z).relu_()

    def _novelty_features(self, z: Tensor) -> Tensor:
        return self._features(z)

    def _class_distances(self) -> ClassDistances:
        sums = self.sums
        class_sums = torch.cat([sums.class_mass[:, None], sums.class_sums], dim=1)
        # Of rows of removed classes the sum is not known: it is taken to be zero.
        total = class_sums.sum(dim=0, keepdim=True)
        total[0, 0] = sums.mass
        below = torch.cat([total[:, 1:].T, sums.gram], dim=1)
        return ClassDistances(torch.cat([total, below]), class_sums, sums.mass)

    def _solve(self) -> None:
        self._commit_increment()
        tss = self.sums.class_mass.sum()
        self.weights, ridge = solve_stream(self.sums, tss, self.ridge)
        self.ridge_used.fill_(ridge)

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        targets = one_hot(columns, len(self.labels))
        return leaving_out_of_stream(
            self.sums, self.ridge_used, self.weights, self._features(z), targets
        )

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        if not self.given:
            check_projection(state, self.fingerprint)


def solve_stream(sums: Sums, tss: Tensor, ridge: Ridge) -> tuple[Tensor, float]:
    """Solve ridge regression without bias on sums whose ``class_sums`` are the moments.

    Args:
        sums: over the features of one stream.
        tss: () sum of the squared targets; with one-hot targets, of the sample weights.
        ridge: a number, or "gcv".

    Returns:
        Weights (p, C), and the ridge.
    """
    gram = sums.gram
    moment = sums.class_sums.T
    if ridge == "gcv":
        ridge = gcv_ridge(gram, moment, tss, int(sums.seen), free=0)
    weights = solve_ridge(gram, moment, gram.new_tensor(ridge))
    # Row-major, as after loading: products round differently with the solver's column-major result.
    return weights.contiguous(), ridge


def leaving_out_of_stream(
    sums: Sums,
    ridge: Tensor,
    weights: Tensor,
    features: Tensor,
    targets: Tensor,
) -> LeftOut:
    """Prepare the leave-one-group-out scores of a stream for learned samples.

    Args:
        sums: over the features of the stream.
        ridge: () of its solve.
        weights: (p, C), solved.
        features: (n, p) of the samples.
        targets: (n, C) of the samples.
    """
    penalty = ridge.to(features).double()  # as rounded for the solve
    factor = factorise(sums.gram.double(), penalty)
    whitened = whiten(factor, features.double())
    scores = features @ weights
    return partial(LearnedRows(whitened).scores, scores, targets)


class DSALHead(ACILHead):
    """Two ridge regressions on one random projection: ReLU main stream, tanh compensation stream.

    The main stream is ACIL's. After task k the compensation stream is fitted, on ``φ = tanh(P z)``,
    to the residual ``y − W_kᵀh`` of the main stream for the classes of task k. The residual of
    earlier classes is set to zero (previous label cleansing). ``score = Wᵀh + C·Vᵀφ`` with C the
    compensation ratio.

    In sums: ``Φ = Σ φφᵀ`` over all data. The moment of a class of task k is ``Σ_k φ y − (Σ_k φ hᵀ)
    W_k`` over the samples of task k alone, since its target is zero in every other task. ``V = (Φ +
    γI)⁻¹`` times the moments. The cross product ``Σ_k φ hᵀ`` is needed during task k only.

    All samples of a task are taken together, as one batch of the authors' recursion, so batch size
    and order do not matter. The residual targets depend on the weights at their time, so the
    statistics cannot be merged over sites. At most five matrices of B² values are in memory at a
    time, seven with "gcv". B(B+1) + 4CB values are kept between tasks, and Bd for a given
    projection.

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
    merges = False
    subtracts = False
    reason = (
        "its residual targets were fixed by the weights that each site had at the time"
    )

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
        check_that(
            fits, "compensation_ratio", compensation_ratio, "a number of at least 0"
        )
        self.compensation_ratio = compensation_ratio
        # Its class_sums are the moments of the residual targets.
        self.compensation = Sums(self.width, dtype=self.dtype)
        self.compensation_increment: Sums | None = None
        # (B, B) ``Σ_k φ hᵀ`` over the samples of the current task; empty between tasks.
        self.cross = no_rows(self.dtype, 0)
        self.compensation_weights: Tensor = nn.Buffer(
            torch.zeros(self.width, 0, dtype=self.dtype)
        )
        self.compensation_ridge = scalar(0.0)
        # (C,) squared norm of each class's residual targets, which GCV of the second λ needs.
        self.residual_energy = no_rows(self.dtype)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        super()._begin(new, counts)
        self.compensation.grow(new)
        zeros = self.residual_energy.new_zeros(new)
        self.residual_energy = torch.cat([self.residual_energy, zeros])

    def _open_compensation(self) -> Sums:
        if self.compensation_increment is None:
            self.compensation_increment = self.compensation.empty(len(self.labels))
            self.cross = self.sums.packed_gram.new_zeros(self.width, self.width)
        return self.compensation_increment

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        compensation = self._open_compensation()
        main = self._open_increment()
        projected = self._projected(z)
        h = projected.relu()
        phi = projected.tanh_()
        main.add(h, columns, weight)
        compensation.add(phi, columns, weight)
        weighted = phi * weight.to(phi)[:, None]
        self.cross.addmm_(weighted.T, h)

    def _count_duplicates(self, count: int) -> None:
        super()._count_duplicates(count)
        self._open_compensation().seen -= count

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        super()._reduce(sum_in_place)
        self._open_compensation().reduce(sum_in_place)
        sum_in_place(self.cross)

    def _solve(self) -> None:
        observed = self.increment
        if self.compensation_increment is not None:
            self.compensation.merge(self.compensation_increment)
            self.compensation_increment = None
        super()._solve()
        if observed is not None:
            self._fit_residuals(observed)
            self._discard()
            del observed  # at full width every matrix counts
        tss = self.residual_energy.sum()
        self.compensation_weights, ridge = solve_stream(
            self.compensation, tss, self.ridge
        )
        self.compensation_ridge.fill_(ridge)

    def _fit_residuals(self, observed: Sums) -> None:
        """Replace the compensation moments of new classes by those of the residual targets."""
        seen = observed.counts > 0
        if not seen.any():  # all classes of the task were removed again
            return
        current = self.task_of == self.task_of[seen].max()
        weights = self.weights[:, current]
        self.compensation.class_sums[current] -= (self.cross @ weights).T
        if self.ridge == "gcv":
            moment = observed.class_sums[current].T
            change = observed.gram @ weights - 2 * moment
            fitted = (weights * change).sum(dim=0)
            self.residual_energy[current] += observed.class_mass[current] + fitted

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        """Leave samples out of the main stream exactly, of the compensation stream approximately.

        The residual targets are computed again from the current main weights: those of the sample's
        task are not kept. That a sample also changes the residual targets of others is ignored.
        """
        main = super()._leaving_out(z, columns)
        projected = self._projected(z)
        targets = one_hot(columns, len(self.labels))
        residual = targets - projected.relu() @ self.weights
        # Residual targets are 0 for classes of other tasks, as in _fit_residuals.
        is_own_task = self.task_of[columns][:, None] == self.task_of
        compensation = leaving_out_of_stream(
            self.compensation,
            self.compensation_ridge,
            self.compensation_weights,
            projected.tanh_(),
            residual * is_own_task,
        )

        def left_out(groups: Tensor) -> Tensor:
            return main(groups) + self.compensation_ratio * compensation(groups)

        return left_out

    def _scores(self, z: Tensor) -> Tensor:
        projected = self._projected(z)
        main = projected.relu() @ self.weights
        compensation = projected.tanh_() @ self.compensation_weights
        return (main + self.compensation_ratio * compensation).double()

    def _discard(self) -> None:
        super()._discard()
        self.compensation_increment = None
        self.cross = self.cross.new_zeros(0, 0)

    def _keep(self, columns: Tensor) -> None:
        # Nothing is folded: the residual targets of a task that is under way are still to be made.
        increments = (self.increment, self.compensation_increment)
        for sums in (self.sums, self.compensation, *increments):
            if sums is not None:
                sums.keep(columns)
        self.residual_energy = self.residual_energy[columns]
        self.weights = kept_weights(self.weights, columns)
        self.compensation_weights = kept_weights(self.compensation_weights, columns)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        self.compensation_increment = None
        if self.increment is not None:
            self._open_compensation()
