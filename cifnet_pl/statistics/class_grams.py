"""Sum a Gram matrix for each class, and none for all rows together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cifnet_pl.statistics.packed_triangle import pack, packed_shape, unpack
from cifnet_pl.statistics.sums import ClassSums


class ClassGrams(ClassSums):
    """:class:`ClassSums` and the Gram matrix of each class, which leaves with its class.

    Buffers, besides those of :class:`ClassSums`:
        grams: (C, …), ``Σ_{y=c} ω x xᵀ`` as triangles (:mod:`cifnet_pl.statistics.packed_triangle`).

    Args:
        width, classes, dtype: as for :class:`ClassSums`.
    """

    grams: Tensor

    def __init__(self, width: int, classes: int = 0, *, dtype: torch.dtype = torch.float64):
        super().__init__(width, classes, dtype=dtype)
        self.register_buffer("grams", torch.zeros(classes, *packed_shape(width), dtype=dtype))

    def gram(self, column: int) -> Tensor:
        """Return (p, p) ``Σ_{y=c} ω x xᵀ`` of the class at ``column``."""
        return unpack(self.grams[column], self.width)

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        super().grow(classes)
        self.grams = torch.cat([self.grams, self.grams.new_zeros(classes, *self.grams.shape[1:])])

    def _add_rows(self, x: Tensor, weighted: Tensor, index: Tensor) -> None:
        super()._add_rows(x, weighted, index)
        for c in torch.unique(index[index >= 0]).tolist():
            self.grams[c] += pack(weighted[index == c].T @ x[index == c])

    def merge(self, other: ClassSums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add or subtract the sums of another object.

        Args:
            other: sums of the same kind and width.
            columns: (C',) int64 column of each of its classes here; None if the classes are the same.
            sign: 1 to add, -1 to subtract.
        """
        assert isinstance(other, ClassGrams)
        super().merge(other, columns, sign)
        device = self.grams.device
        into = torch.arange(len(other.counts), device=device) if columns is None else columns
        self.grams.index_add_(0, into, sign * other.grams.to(device))

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``."""
        super().keep(columns)
        self.grams = self.grams[columns]

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes.

        Args:
            sum_in_place: replaces a tensor by its sum over processes; called for every tensor, in a fixed order.
        """
        super().reduce(sum_in_place)
        sum_in_place(self.grams)
