"""The base class of heads whose statistics are one set of sums, shared by all classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, Head
from cifnet_pl.statistics import ClassDistances, Sums, augment
from cifnet_pl.statistics.leaving_out import ROWS_PER_STEP
from cifnet_pl.utilities.errors import UsageError


class SumsHead(Head):
    """A head whose statistics are one set of sums shared by all classes.

    Most have a Gram matrix, and scores that are linear in their features, ``features(z) ·
    weights``: these set ``weights`` (width, C) in ``_solve``. A head that is not ``linear`` chooses
    other sums, and implements its own scores.

    Args:
        in_features: width d of the embeddings.
        width: of the features that the sums are over; d + 1 unless a subclass overrides them.
        dtype: of the sums.
        gram: whether the sums hold the Gram matrix of all samples.
        per_class: whether they hold one of each class.

    Attributes:
        linear: whether scores are linear in the features.
        sums: of all tasks that were solved.
        increment: sums of what was observed since; None before the first sample.
    """

    merges = True
    subtracts = True
    reduces = True
    tells_novelty = True
    linear: ClassVar[bool] = True

    def __init__(
        self,
        in_features: int,
        width: int,
        dtype: Dtype = "float64",
        *,
        gram: bool = True,
        per_class: bool = False,
    ):
        super().__init__(in_features, dtype)
        self.sums = Sums(width, gram=gram, per_class=per_class, dtype=self.dtype)
        self.increment: Sums | None = None
        if self.linear:
            self.weights: Tensor = nn.Buffer(torch.zeros(width, 0, dtype=self.dtype))

    def _features(self, z: Tensor) -> Tensor:
        """Return (n, width) features of embeddings (n, d), in the dtype of the sums.

        These are ``x̃ = [1; z]`` unless a subclass overrides this.
        """
        return augment(z, self.dtype)

    def _scores(self, z: Tensor) -> Tensor:
        return (self._features(z) @ self.weights).double()

    def _novelty_features(self, z: Tensor) -> Tensor:
        return self._features(z)[:, 1:]

    def _class_distances(self) -> ClassDistances:
        sums = self.sums
        return ClassDistances(sums.gram, sums.class_sums, sums.mass)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.sums.grow(new)

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        increment = self._open_increment()
        # Features may be many times as wide as embeddings.
        parts = [torch.split(rows, ROWS_PER_STEP) for rows in (z, columns, weight)]
        for part, own_columns, own_weight in zip(*parts, strict=True):
            increment.add(self._features(part), own_columns, own_weight)

    def _count_duplicates(self, count: int) -> None:
        increment = self._open_increment()
        increment.seen -= count

    def _open_increment(self) -> Sums:
        if self.increment is None:
            self.increment = self.sums.empty(len(self.labels))
        return self.increment

    def _solve(self) -> None:
        self._commit_increment()

    def _commit_increment(self) -> None:
        """Add what the current task observed to the common sums; it cannot be discarded then."""
        self.under_way.fill_(False)
        if self.increment is not None:
            self.sums.merge(self.increment)
            self.increment = None

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        self._open_increment().reduce(sum_in_place)

    def _class_counts(self) -> Tensor:
        if self.increment is None:
            return self.sums.counts
        return self.sums.counts + self.increment.counts

    def _merge(self, other: Self) -> None:
        self._commit_increment()
        other._commit_increment()
        self.sums.merge(other.sums, self._columns(other.labels.to(self.labels.device)))

    def _subtract(self, other: Self) -> None:
        self._commit_increment()
        other._commit_increment()
        columns = self._columns(other.labels.to(self.labels.device))
        if (self.sums.counts[columns] < other.sums.counts.to(columns.device)).any():
            raise UsageError(
                "cannot subtract more samples of a class than were observed"
            )
        self.sums.merge(other.sums, columns, sign=-1)

    def _discard(self) -> None:
        self.increment = None

    def _keep(self, columns: Tensor) -> None:
        self._commit_increment()
        self.sums.keep(columns)
        if self.linear:
            self.weights = kept_weights(self.weights, columns)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        self.increment = None
        if any(key.startswith("increment.") for key in state):
            self._open_increment()


def kept_weights(weights: Tensor, columns: Tensor) -> Tensor:
    """Return the ``columns`` of ``weights`` (p, C); classes that are not solved yet have none."""
    return weights[:, columns[columns < weights.shape[1]]]
