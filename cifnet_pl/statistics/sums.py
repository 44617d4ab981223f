"""Sums over embeddings: sufficient statistics to add to, merge, subtract and reduce.

All sums are additive over samples, so any batch order, batch size or split over processes gives the
same statistics up to rounding. Nothing here knows about tasks, labels or Lightning.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.growing_tensors import GrowingModule

BLOCK = 192
"""Columns of a Gram matrix computed at a time.

Narrower blocks skip more, but are slower. A power of two is slower, too: its columns share lines of
the processor's cache."""


def add_product_(packed: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the symmetric ``leftᵀ right`` (p, p) to a packed matrix, in place, block by block.

    The format is LAPACK's rectangular full packed one (``TRANSR = N, UPLO = L``): the last columns
    of the lower triangle are as short as the free corner above its first ones, which holds them
    transposed.

    Args:
        packed: p(p+1)/2 numbers: (p, (p+1)/2) for an odd width p, (p+1, p/2) for an even one.
        left, right: (n, p), in the dtype of ``packed``.

    Example:
        >>> rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> packed = torch.zeros(3, 1)
        >>> add_product_(packed, rows, rows)
        >>> unpack(packed, 2).equal(rows.T @ rows)
        True
    """
    width = left.shape[1]
    rows, columns = packed.shape
    rest = width - columns
    first_columns = packed[rows - width :]
    first_rows = first_columns[:columns]
    corner = packed[:rest, columns - rest :]
    _add_triangle_(first_rows.T, right[:, :columns], left[:, :columns])
    _add_triangle_(corner, left[:, columns:], right[:, columns:])
    first_columns[columns:].addmm_(left[:, columns:].T, right[:, :columns])


def _add_triangle_(target: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``leftᵀ right`` to ``target`` on and above the diagonal; what is below is not changed.

    Args:
        target: (p, p), a view of a packed matrix that holds other numbers below the diagonal.
        left, right: (n, p).
    """
    for start in range(0, len(target), BLOCK):
        stop = start + BLOCK
        own = left[:, start:stop].T
        block = own @ right[:, start:stop]
        target[start:stop, start:stop] += block.triu_()
        target[start:stop, stop:].addmm_(own, right[:, stop:])


def unpack(packed: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix (``width``, ``width``) that was packed into (rows, columns)."""
    rows, columns = packed.shape
    rest = width - columns
    matrix = packed.new_empty(width, width)
    matrix[:, :columns] = packed[rows - width :]
    corner = packed[:rest, columns - rest :]
    matrix[columns:, columns:] = corner.T
    # What is above the diagonal is copied from below it.
    for start in range(0, width, BLOCK):
        stop = start + BLOCK
        matrix[:start, start:stop] = matrix[start:stop, :start].T
        block = matrix[start:stop, start:stop]
        lower = block.tril()
        upper = block.tril(-1).T
        block.copy_(lower + upper)
    return matrix


def augment(z: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Prepend the bias feature, ``x̃ = [1; z]``.

    Args:
        z: (n, d), any floating dtype.
        dtype: of the result; None for that of ``z``. A wider one takes no copy of ``z`` besides.

    Returns:
        (n, d+1).

    Example:
        >>> augment(torch.tensor([[5.0, 7.0]])).tolist()
        [[1.0, 5.0, 7.0]]
    """
    dtype = dtype or z.dtype
    # Like a column, so that its length stays open where a graph is traced.
    ones = torch.ones_like(z[:, :1], dtype=dtype)
    return torch.cat([ones, z], dim=1).to(dtype)


class Sums(GrowingModule):
    """Sums and counts of weighted rows ``x`` of width p, of which some belong to one of C classes.

    Buffers (dtype as given, float64 unless told otherwise):
        class_sums: (C, p), ``Σ_{y=c} ω x``. With a leading bias feature its first column is the
            class's weight.
        counts: (C,) int64, number of rows of each class.
        seen: () int64, number of distinct rows in all, whether or not they belong to one of the
            classes; known duplicates do not count.
        mass: () ``Σ ω`` over all rows.
        packed_gram: with ``gram`` only, ``Σ ω x xᵀ`` over all rows, packed as
            :func:`add_product_` has it. Read ``gram``.
        class_grams: with ``per_class`` only, (C, …), ``Σ_{y=c} ω x xᵀ``, packed. Dropped with their
            class.

    Args:
        width: number of features p, the bias feature included where there is one.
        classes: number of classes C.
        gram: whether to keep the Gram matrix of all rows.
        per_class: whether to keep a Gram matrix of each class.
        dtype: of the sums.

    Attributes:
        by_class: names of the buffers that have a row for each class.
    """

    def __init__(
        self,
        width: int,
        classes: int = 0,
        *,
        gram: bool = True,
        per_class: bool = False,
        dtype: torch.dtype = torch.float64,
    ):
        super().__init__()
        self.width = width
        self.has_gram = gram
        self.per_class = per_class
        self.by_class = ["class_sums", "counts"]
        shape = (width + 1 - width % 2, (width + 1) // 2)
        self.class_sums: Tensor = nn.Buffer(torch.zeros(classes, width, dtype=dtype))
        self.counts: Tensor = nn.Buffer(torch.zeros(classes, dtype=torch.int64))
        self.seen: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.mass: Tensor = nn.Buffer(torch.zeros((), dtype=dtype))
        if gram:
            self.packed_gram: Tensor = nn.Buffer(torch.zeros(shape, dtype=dtype))
        if per_class:
            self.by_class.append("class_grams")
            class_grams = torch.zeros(classes, *shape, dtype=dtype)
            self.class_grams: Tensor = nn.Buffer(class_grams)

    @property
    def gram(self) -> Tensor:
        """(p, p) ``Σ ω x xᵀ`` over all rows; a copy, made at each reading."""
        return unpack(self.packed_gram, self.width)

    def class_gram(self, column: int) -> Tensor:
        """Return (p, p) ``Σ_{y=c} ω x xᵀ`` of the class at ``column``; only ``per_class``."""
        return unpack(self.class_grams[column], self.width)

    @property
    def class_mass(self) -> Tensor:
        """(C,) estimated weight of each class: ``mass`` divided in proportion to ``counts``.

        It is exact if all weights are equal. Where there is a bias feature, read the first column
        of ``class_sums`` instead, which is exact.
        """
        rows = torch.maximum(self.seen, self.counts.sum())
        return self.mass * self.counts / rows

    def empty(self, classes: int) -> Sums:
        """Return sums of the same kind over no rows of ``classes`` classes, on the same device."""
        sums = Sums(
            self.width,
            classes,
            gram=self.has_gram,
            per_class=self.per_class,
            dtype=self.mass.dtype,
        )
        return sums.to(self.mass.device)

    def of_class(self, column: int) -> Sums:
        """Return the sums over the rows of one class; only ``per_class`` and with ``gram``.

        The features must begin with a bias feature, whose sum is the weight of the class. ``seen``
        counts all rows of the class, duplicates included.

        Args:
            column: of the class.
        """
        sums = self.empty(0)
        for name in self.by_class:
            setattr(sums, name, getattr(self, name)[[column]])
        sums.seen += sums.counts[0]
        sums.mass += sums.class_sums[0, 0]
        sums.packed_gram = sums.class_grams[0].clone()
        return sums

    # ------------------------------------------------------------------ rows

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        for name in self.by_class:
            known = getattr(self, name)
            new = known.new_zeros(classes, *known.shape[1:])
            setattr(self, name, torch.cat([known, new]))

    def add(self, x: Tensor, index: Tensor, weight: Tensor) -> None:
        """Add rows.

        Args:
            x: (n, p), any floating dtype; converted to the dtype of the sums before any product.
            index: (n,) int64, class column of each row.
            weight: (n,) non-negative; weights do not change ``counts`` and ``seen``.
        """
        x = x.to(self.class_sums.dtype)
        self.seen += len(x)
        weight = weight.to(x)
        weighted = x * weight[:, None]
        self.mass += weight.sum()
        if self.has_gram:
            add_product_(self.packed_gram, weighted, x)
        self.class_sums.index_add_(0, index, weighted)
        self.counts += torch.bincount(index, minlength=len(self.counts))
        if self.per_class:
            for c in torch.unique(index).tolist():
                rows = index == c
                add_product_(self.class_grams[c], weighted[rows], x[rows])

    # ------------------------------------------------------------------ other sums

    def merge(self, other: Sums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add or subtract the sums of another object.

        Args:
            other: sums of the same kind and width.
            columns: (C',) int64 column of each of its classes here; None if the classes are the
                same, in the same order. It is not checked: :meth:`grow` first for classes that are
                new here.
            sign: 1 to add, -1 to subtract.
        """
        device = self.class_sums.device
        if columns is None:
            columns = torch.arange(len(other.counts), device=device)
        for name in self.by_class:
            theirs = getattr(other, name).to(device)
            getattr(self, name).index_add_(0, columns, theirs, alpha=sign)
        self.add_rows_of(other, sign)

    def add_rows_of(self, other: Sums, sign: int = 1) -> None:
        """Add the rows of ``other`` as rows that belong to none of these classes.

        Args:
            other: sums of the same width; only its Gram matrix, number of rows and total weight are
                read.
            sign: 1 to add, -1 to subtract.
        """
        device = self.mass.device
        self.seen += sign * other.seen.to(device)
        self.mass += sign * other.mass.to(device)
        if self.has_gram:
            self.packed_gram.add_(other.packed_gram.to(device), alpha=sign)

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``; their rows stay in ``gram``, without class."""
        for name in self.by_class:
            setattr(self, name, getattr(self, name)[columns])

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes.

        Args:
            sum_in_place: replaces a tensor by its sum over processes; called for every tensor, in a
                fixed order.
        """
        for tensor in self.buffers():
            sum_in_place(tensor)
