"""Keep the Gram matrices of chosen classes apart, so that they can be subtracted again exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.statistics.packed_triangle import pack, packed_shape
from cifnet_pl.statistics.sums import ClassSums, Sums
from cifnet_pl.utilities.errors import CheckpointError


class RememberingSums(Sums):
    """:class:`Sums` with a Gram matrix for each of some classes.

    Buffers, besides those of :class:`Sums`:
        place: (C,) int64, position of each class's matrix in ``own``; −1 for a class without one.
        own: (R, …), ``Σ_{y=c} ω x xᵀ`` of R classes, as triangles.

    Args:
        width, classes, dtype: as for :class:`Sums`.
    """

    place: Tensor
    own: Tensor

    def __init__(self, width: int, classes: int = 0, *, dtype: torch.dtype = torch.float64):
        super().__init__(width, classes, dtype=dtype)
        self.register_buffer("place", torch.full((classes,), -1, dtype=torch.int64))
        self.register_buffer("own", torch.zeros(0, *packed_shape(width), dtype=dtype))

    def remember(self, columns: Tensor) -> None:
        """Keep the matrices of the classes at ``columns`` (n,) from now on; they must have no rows yet."""
        new = columns[self.place[columns] < 0]
        self.place[new] = torch.arange(len(self.own), len(self.own) + len(new), device=self.place.device)
        self.own = torch.cat([self.own, self.own.new_zeros(len(new), *self.own.shape[1:])])

    def share(self, column: int) -> RememberingSums | None:
        """Return the sums over the rows of one class.

        Args:
            column: of the class.

        Returns:
            Sums of that class alone; None if its matrix is not kept.
        """
        if self.place[column] < 0:
            return None
        sums = RememberingSums(self.width, 1, dtype=self.class_sums.dtype).to(self.class_sums.device)
        sums.class_sums[0], sums.counts[0] = self.class_sums[column], self.counts[column]
        sums.seen += self.counts[column]
        sums.mass += self.class_sums[column, 0]
        sums.remember(torch.zeros_like(self.place[:1]))
        sums.own[0] = self.own[self.place[column]]
        sums.products = sums.own[0].clone()
        return sums

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums and without a matrix."""
        super().grow(classes)
        self.place = torch.cat([self.place, self.place.new_full((classes,), -1)])

    def _add_rows(self, x: Tensor, weighted: Tensor, index: Tensor) -> None:
        super()._add_rows(x, weighted, index)
        for c in torch.unique(index[index >= 0]).tolist():
            if self.place[c] >= 0:
                self.own[self.place[c]] += pack(weighted[index == c].T @ x[index == c])

    def merge(self, other: ClassSums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add or subtract the sums of another object.

        A class stays remembered if the matrices of all its rows are kept on both sides.

        Args:
            other: sums of the same kind and width.
            columns: (C',) int64 column of each of its classes here; None if the classes are the same.
            sign: 1 to add, -1 to subtract.
        """
        into = torch.arange(len(other.counts)) if columns is None else columns
        before = self.counts[into] > 0
        super().merge(other, columns, sign)
        place = other.place if isinstance(other, RememberingSums) else torch.full_like(other.counts, -1)
        for c, column in enumerate(into.tolist()):
            if not other.counts[c]:
                continue
            if place[c] < 0:
                self._drop(column)
            elif not before[c]:
                self.remember(into[c : c + 1])
            if self.place[column] >= 0:
                assert isinstance(other, RememberingSums)
                self.own[self.place[column]] += sign * other.own[place[c]].to(self.own.device)

    def _drop(self, column: int) -> None:
        gone = int(self.place[column])
        if gone >= 0:
            self.own = torch.cat([self.own[:gone], self.own[gone + 1 :]])
            self.place[column] = -1
            self.place[self.place > gone] -= 1

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``, and their matrices."""
        super().keep(columns)
        place = self.place[columns]
        kept = place[place >= 0]
        self.own = self.own[kept]
        place[place >= 0] = torch.arange(len(kept), device=place.device)
        self.place = place

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes.

        Args:
            sum_in_place: replaces a tensor by its sum over processes; called for every tensor, in a fixed order.
        """
        super().reduce(sum_in_place)
        sum_in_place(self.own)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        place, matrices = state.get("place"), state.get("own")
        if isinstance(place, Tensor) and isinstance(matrices, Tensor):
            used = place[place >= 0].sort().values
            shape = packed_shape(self.width)
            if matrices.shape[1:] != shape or not torch.equal(used.cpu(), torch.arange(len(matrices))):
                raise CheckpointError("the stored matrices of single classes do not fit its classes: it is damaged")
