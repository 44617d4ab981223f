"""What heads have in common whose statistics are one set of sums, shared by all classes and tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from cifnet_pl.heads.base import Head, exact
from cifnet_pl.statistics import Sums
from cifnet_pl.utilities.errors import UsageError


class SharedSumsHead(Head):
    """A head whose statistics are one set of sums shared by all classes: what a task adds, and all before."""

    sums_type: ClassVar[type[Sums]] = Sums

    def __init__(self, in_features: int, width: int, dtype: str = "float64"):
        super().__init__(in_features, dtype)
        self.sums = self.sums_type(width, dtype=self.dtype)
        self.increment: Sums | None = None

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.sums.grow(new)

    def _open_increment(self) -> Sums:
        if self.increment is None:
            sums = self.sums_type(self.sums.width, len(self.labels), dtype=self.dtype)
            self.increment = sums.to(self.labels.device)
        return self.increment

    def _fold(self) -> None:
        """Move what the current task observed into the common sums, from where it cannot be taken back."""
        self.under_way.fill_(False)
        if self.increment is not None:
            self.sums.merge(self.increment)
            self.increment = None

    @exact
    def reduce_(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes (see :meth:`Head.reduce_`)."""
        self._open_increment().reduce(sum_in_place)

    def class_counts(self) -> dict[int, int]:
        """Distinct samples seen of each class, by label."""
        counts = self.sums.counts.clone()
        if self.increment is not None:
            counts += self.increment.counts
        return dict(zip(self.classes, counts.tolist(), strict=True))

    @exact
    def merge_(self, other: Head) -> None:
        """Add the sums of ``other``; classes are matched by label, new ones are appended. Exact."""
        self._same_kind(other)
        assert isinstance(other, SharedSumsHead)
        self._fold()
        other._fold()
        self._begin_tasks_of(other)
        self.sums.merge(other.sums, self._columns(other.labels.to(self.labels.device)))
        self.solved.fill_(False)
        self.under_way.fill_(False)

    @exact
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
