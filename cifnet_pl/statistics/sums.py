"""Sufficient statistics: sums over embeddings that can be added to, merged, subtracted and reduced over processes.

All sums are additive over samples, so any batch order, batch size or split over processes gives the same
statistics up to rounding. Nothing here knows about tasks, labels or Lightning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.statistics.symmetric import add_lower_, mirror_
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.growing import GrowingModule


def augment(z: Tensor) -> Tensor:
    """Prepend the bias feature: (n, d) → (n, d+1), ``x̃ = [1; z]``."""
    return torch.cat([z.new_ones(len(z), 1), z], dim=1)


class ClassSums(GrowingModule):
    """Sums and counts of weighted rows ``x`` of width p, some of them belonging to one of C classes.

    Buffers (dtype as given, float64 unless told otherwise):
        class_sums: (C, p), ``Σ_{y=c} ω x``. With a leading bias feature its first column is the class's weight.
        counts: (C,) int64, number of distinct rows of each class.
        seen: () int64, number of distinct rows in all, whether or not they belong to one of the classes.
        mass: () ``Σ ω`` over all rows.

    Args:
        width: number of features p, the bias feature included where there is one.
        classes: number of classes C.
        dtype: of the sums.
    """

    class_sums: Tensor
    counts: Tensor
    seen: Tensor
    mass: Tensor

    def __init__(self, width: int, classes: int = 0, *, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.register_buffer("class_sums", torch.zeros(classes, width, dtype=dtype))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mass", torch.zeros((), dtype=dtype))

    @property
    def width(self) -> int:
        """Number of features p, the bias feature included where there is one."""
        return self.class_sums.shape[1]

    @property
    def class_mass(self) -> Tensor:
        """(C,) total weight of each class's rows, were all weights alike; of one with a bias feature, its own sums."""
        return self.mass * self.counts / self.seen

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        self.class_sums = torch.cat([self.class_sums, self.class_sums.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])

    def add(self, x: Tensor, index: Tensor, weight: Tensor | None = None) -> None:
        """Add rows.

        Args:
            x: (n, p), any floating dtype; converted to the dtype of the sums before any product.
            index: (n,) int64, class column of each row, or -1 for a row that belongs to none of the classes.
            weight: (n,) non-negative, or None for all ones. A weight does not change the distinct counts.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.class_sums.dtype)
            weighted = x if weight is None else x * weight.to(x)[:, None]
            self.seen += len(x)
            self.mass += len(x) if weight is None else weight.to(x).sum()
            self._add_rows(x, weighted, index)

    def _add_rows(self, x: Tensor, weighted: Tensor, index: Tensor) -> None:
        """Add rows (n, p) and their weighted form (n, p) to what depends on their classes ``index`` (n,)."""
        member = index >= 0
        if not member.all():
            weighted, index = weighted[member], index[member]
        self.class_sums.index_add_(0, index, weighted)
        self.counts += torch.bincount(index, minlength=len(self.counts))

    def merge(self, other: ClassSums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add (``sign=1``) or subtract (``-1``) sums whose class c is this object's class ``columns[c]``."""
        device = self.class_sums.device
        if columns is None:
            columns = torch.arange(len(other.counts), device=device)
        self.class_sums.index_add_(0, columns, sign * other.class_sums.to(device))
        self.counts.index_add_(0, columns, sign * other.counts.to(device))
        self.seen += sign * other.seen.to(device)
        self.mass += sign * other.mass.to(device)

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``."""
        self.class_sums = self.class_sums[columns]
        self.counts = self.counts[columns]

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes: call ``sum_in_place`` on every tensor, in a fixed order."""
        for tensor in (self.class_sums, self.counts, self.seen, self.mass):
            sum_in_place(tensor)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any, **kwargs: Any) -> None:
        for name in ("products", "class_grams"):  # versions before 0.2 stored them empty where there is no Gram matrix
            if name not in self._buffers and prefix + name in state_dict and not state_dict[prefix + name].numel():
                del state_dict[prefix + name]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _before_load(self, own: Mapping[str, Any]) -> None:
        stored = own.get("class_sums")
        if isinstance(stored, Tensor) and stored.shape[1:] != (self.width,):
            raise CheckpointError(
                f"stored class sums have shape {tuple(stored.shape)}, expected (classes, {self.width}): "
                "they are of embeddings of another width"
            )


class Sums(ClassSums):
    """:class:`ClassSums` and the Gram matrix of all rows.

    Buffers, besides those of :class:`ClassSums`:
        products: (p, p), the blocks on and below the diagonal of ``Σ ω x xᵀ`` over all rows. What stands above them
            has no meaning: additions leave it out, and ``gram`` fills it in. Read ``gram``.
        class_grams: (C, p, p), ``Σ_{y=c} ω x xᵀ``; empty (0, p, p) unless ``per_class``.

    Args:
        width, classes, dtype: as for :class:`ClassSums`.
        per_class: whether to keep a Gram matrix for each class.
    """

    products: Tensor
    class_grams: Tensor

    def __init__(self, width: int, classes: int = 0, *, per_class: bool = False, dtype: torch.dtype = torch.float64):
        super().__init__(width, classes, dtype=dtype)
        self.per_class = per_class
        self.register_buffer("products", torch.zeros(width, width, dtype=dtype))
        self.register_buffer("class_grams", torch.zeros(classes if per_class else 0, width, width, dtype=dtype))

    @property
    def gram(self) -> Tensor:
        """(p, p) ``Σ ω x xᵀ`` over all rows; the tensor itself, not a copy. Each reading copies half of it."""
        return mirror_(self.products)

    def drop_gram(self) -> None:
        """Free the memory of the Gram matrix; only the sums of the classes are of use afterwards."""
        self.products = self.products.new_zeros(0, 0)

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        super().grow(classes)
        if self.per_class:
            more = self.class_grams.new_zeros(classes, self.width, self.width)
            self.class_grams = torch.cat([self.class_grams, more])

    def _add_rows(self, x: Tensor, weighted: Tensor, index: Tensor) -> None:
        add_lower_(self.products, weighted, x)
        super()._add_rows(x, weighted, index)
        for c in torch.unique(index[index >= 0]).tolist() if self.per_class else ():
            self.class_grams[c] += weighted[index == c].T @ x[index == c]

    def add_gram_of(self, other: Sums) -> None:
        """Add the rows of ``other`` as rows that belong to none of these classes."""
        self.products.add_(other.products)
        self.seen += other.seen
        self.mass += other.mass

    def merge(self, other: ClassSums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add (``sign=1``) or subtract (``-1``) sums whose class c is this object's class ``columns[c]``."""
        assert isinstance(other, Sums)
        device = self.products.device
        super().merge(other, columns, sign)
        self.products.add_(other.products.to(device), alpha=sign)
        if self.per_class:
            into = torch.arange(len(other.counts), device=device) if columns is None else columns
            self.class_grams.index_add_(0, into, sign * other.class_grams.to(device))

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``; their rows stay in ``gram`` as rows of no class."""
        super().keep(columns)
        if self.per_class:
            self.class_grams = self.class_grams[columns]

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes: call ``sum_in_place`` on every tensor, in a fixed order."""
        sum_in_place(self.gram)
        super().reduce(sum_in_place)
        sum_in_place(self.class_grams)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        mirror_(self.products)  # so that what is stored does not depend on what was read before
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _before_load(self, own: Mapping[str, Any]) -> None:
        gram, shape = own.get("products"), self.products.shape
        if isinstance(gram, Tensor) and gram.shape != shape:
            raise CheckpointError(
                f"stored sums have a Gram matrix of shape {tuple(gram.shape)}, expected {tuple(shape)}: "
                "they are of embeddings of another width"
            )
