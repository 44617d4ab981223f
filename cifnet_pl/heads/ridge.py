"""The exact head: one shared Gram matrix, joint ridge regression over everything ever seen, no buffer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.errors import UsageError, unknown_name
from cifnet_pl.heads.base import Head, Ridge, check_ridge
from cifnet_pl.statistics import Centred, Sums, augment

TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda z: z,
    "sqrt_l2": lambda z: torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1),
}
"""Feature maps applied to an embedding before the sums; "sqrt_l2" is the signed square root, L2-normalised."""


class SharedSumsHead(Head):
    """A head whose statistics are one set of sums shared by all classes: what a task adds, and all before."""

    def __init__(self, in_features: int, width: int, dtype: str = "float64"):
        super().__init__(in_features, dtype)
        self.sums = Sums(width, dtype=self.dtype)
        self.increment: Sums | None = None

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.sums.grow(new)

    def _open_increment(self) -> Sums:
        if self.increment is None:
            sums = Sums(self.sums.width, len(self.labels), dtype=self.dtype)
            self.increment = sums.to(self.labels.device)
        return self.increment

    def _fold(self) -> None:
        """Move what the current task observed into the common sums."""
        if self.increment is not None:
            self.sums.merge(self.increment)
            self.increment = None

    @torch.no_grad()
    def reduce_(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes (see :meth:`Head.reduce_`)."""
        self._open_increment().reduce(sum_in_place)

    def class_counts(self) -> dict[int, int]:
        """Distinct samples seen of each class, by label."""
        counts = self.sums.counts.clone()
        if self.increment is not None:
            counts += self.increment.counts
        return dict(zip(self.classes, counts.tolist(), strict=True))

    @torch.no_grad()
    def merge_(self, other: Head) -> None:
        """Add the sums of ``other``; classes are matched by label, new ones are appended. Exact."""
        self._same_kind(other)
        assert isinstance(other, SharedSumsHead)
        self._fold()
        other._fold()
        for task in other.tasks:
            new = [label for label in task if label not in self.classes]
            if new:
                self.solved.fill_(True)
                self.begin_task(new)
        self.sums.merge(other.sums, self._columns(other.labels.to(self.labels.device)))
        self.solved.fill_(False)

    @torch.no_grad()
    def subtract_(self, other: Head) -> None:
        """Take the sums of ``other`` out: as if its samples had never been observed. Exact to rounding."""
        self._same_kind(other)
        assert isinstance(other, SharedSumsHead)
        self._fold()
        other._fold()
        columns = self._columns(other.labels.to(self.labels.device))
        if (self.sums.counts[columns] < other.sums.counts.to(columns.device)).any():
            raise UsageError("cannot subtract more samples of a class than were observed")
        self.sums.merge(other.sums, columns, sign=-1)
        self.solved.fill_(False)

    def _discard(self) -> None:
        self.increment = None

    def _keep(self, columns: Tensor) -> None:
        self._fold()
        self.sums.keep(columns)

    def _before_load(self, own: Mapping[str, Any]) -> None:
        super()._before_load(own)
        self.increment = None
        if any(key.startswith("increment.") for key in own):
            self._open_increment()


class RidgeHead(SharedSumsHead):
    """Ridge regression on targets ±L over all data ever seen; exact, whatever the number of tasks.

    The joint optimum needs no buffer: for a class never seen before all earlier samples are negatives, and
    their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``, ``b = t̄ − Wᵀμ`` with
    centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ x̃)``, ``L = logit(1 − ε)``.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        transform: "none", or "sqrt_l2" for the signed square root followed by L2 normalisation.
        balanced: weigh each sample by (mean class count) / (count of its class). Needs ``counts`` in
            ``begin_task``, and refuses ``merge_`` and ``subtract_``: a class's count must be final.
        dtype: of the sums, "float64" or "float32".
    """

    weights: Tensor
    class_weight: Tensor
    ridge_used: Tensor

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = "gcv",
        epsilon: float = 0.05,
        transform: str = "none",
        balanced: bool = False,
        dtype: str = "float64",
    ):
        super().__init__(in_features, in_features + 1, dtype)
        if transform not in TRANSFORMS:
            raise unknown_name("transform", transform, TRANSFORMS)
        self.ridge = check_ridge(ridge)
        self.limit = target_limit(epsilon)
        self.epsilon, self.transform, self.balanced = epsilon, transform, balanced
        self.register_buffer("weights", torch.zeros(in_features + 1, 0, dtype=self.dtype))
        self.register_buffer("class_weight", torch.zeros(0, dtype=self.dtype))
        self.register_buffer("ridge_used", torch.zeros((), dtype=torch.float64))

    def settings(self) -> dict[str, Any]:
        """Constructor arguments that a stored state depends on."""
        own = {"ridge": self.ridge, "epsilon": self.epsilon}
        return super().settings() | own | {"transform": self.transform, "balanced": self.balanced}

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        super()._begin(new, counts)
        if self.balanced:
            if counts is None:
                raise UsageError("balanced=True needs the class counts before the samples: begin_task(classes, counts)")
            weight = 1 / self.class_weight.new_tensor(counts)
            self.class_weight = torch.cat([self.class_weight, weight])

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        if self.balanced:
            own = self.class_weight[columns]
            weight = own if weight is None else own * weight.to(own)
        self._open_increment().add(augment(self._features(z)), columns, weight)

    def _features(self, z: Tensor) -> Tensor:
        return TRANSFORMS[self.transform](z.to(self.dtype))

    def _solve(self) -> None:
        self._fold()
        # Balanced weights average to one, so that a numeric ridge means the same with and without them.
        scale = (1 / self.class_weight).mean() if self.balanced else 1.0
        gram, total = scale * self.sums.gram, scale * self.sums.gram[0]
        moment = self.limit * (2 * scale * self.sums.class_sums - total).T
        square = self.limit**2 * gram[0, 0] * len(self.labels)
        centred = Centred.from_augmented(gram, moment, square, int(self.sums.seen))
        self.weights, ridge = centred.solve(self.ridge)
        self.ridge_used.fill_(ridge)

    def _scores(self, z: Tensor) -> Tensor:
        return (augment(self._features(z)) @ self.weights).double()

    @torch.no_grad()
    def merge_(self, other: Head) -> None:
        """Add the sums of ``other``: equal to one head that saw both sites' samples."""
        self._refuse_balanced("merge")
        super().merge_(other)

    @torch.no_grad()
    def subtract_(self, other: Head) -> None:
        """Take the sums of ``other`` out: equal to never having seen its samples."""
        self._refuse_balanced("subtract")
        super().subtract_(other)

    def _refuse_balanced(self, what: str) -> None:
        if self.balanced:
            raise self._cannot(what, "balanced=True weighs samples by final class counts")

    def _keep(self, columns: Tensor) -> None:
        super()._keep(columns)
        if self.weights.shape[1]:  # else not solved yet
            self.weights = self.weights[:, columns]
        if self.balanced:
            self.class_weight = self.class_weight[columns]

    def state_elements(self) -> dict[str, int]:
        """Numbers kept between tasks: (d+1)² + 2C(d+1)."""
        return {
            "factors": self.sums.gram.numel(),
            "moments": self.sums.class_sums.numel(),
            "weights": self.weights.numel(),
        }


def target_limit(epsilon: float) -> float:
    """``L = logit(1 − ε)``, the target of a positive after clipping to [ε, 1−ε] (eq:delinear)."""
    if not 0 < epsilon < 0.5:
        raise UsageError(f"epsilon is {epsilon:g}, expected a number between 0 and 0.5")
    return math.log((1 - epsilon) / epsilon)
