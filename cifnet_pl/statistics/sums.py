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


class Sums(GrowingModule):
    """Sufficient statistics of weighted rows ``x`` of width p, some of them belonging to one of C classes.

    Buffers (dtype as given, float64 unless told otherwise):
        products: (p, p), ``Σ ω x xᵀ`` over all rows, symmetric; after an addition only the blocks on and below its
            diagonal are up to date, see ``gram``.
        class_sums: (C, p), ``Σ_{y=c} ω x``. With a leading bias feature its first column is the class's weight.
        counts: (C,) int64, number of distinct rows of each class.
        seen: () int64, number of distinct rows in all, whether or not they belong to one of the classes.
        mass: () ``Σ ω`` over all rows.
        class_grams: (C, p, p), ``Σ_{y=c} ω x xᵀ``; empty (0, p, p) unless ``per_class``.
    """

    products: Tensor
    class_sums: Tensor
    counts: Tensor
    seen: Tensor
    mass: Tensor
    class_grams: Tensor

    def __init__(self, width: int, classes: int = 0, *, per_class: bool = False, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.per_class = per_class
        self._lower_only = False
        self.register_buffer("products", torch.zeros(width, width, dtype=dtype))
        self.register_buffer("class_sums", torch.zeros(classes, width, dtype=dtype))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mass", torch.zeros((), dtype=dtype))
        self.register_buffer("class_grams", torch.zeros(classes if per_class else 0, width, width, dtype=dtype))

    def _before_load(self, own: Mapping[str, Any]) -> None:
        gram, shape = own.get("products"), self.products.shape
        if isinstance(gram, Tensor) and gram.shape != shape:
            raise CheckpointError(
                f"stored sums have a Gram matrix of shape {tuple(gram.shape)}, expected {tuple(shape)}: "
                "they are of embeddings of another width"
            )
        self._lower_only = False

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._complete()  # so that what is stored does not depend on what was read before
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @property
    def gram(self) -> Tensor:
        """(p, p) ``Σ ω x xᵀ`` over all rows; the tensor itself, not a copy."""
        self._complete()
        return self.products

    def _complete(self) -> None:
        if self._lower_only:
            mirror_(self.products)
            self._lower_only = False

    @property
    def width(self) -> int:
        """Number of features p, the bias feature included where there is one."""
        return self.products.shape[0]

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        self.class_sums = torch.cat([self.class_sums, self.class_sums.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        if self.per_class:
            more = self.class_grams.new_zeros(classes, self.width, self.width)
            self.class_grams = torch.cat([self.class_grams, more])

    def add(self, x: Tensor, index: Tensor, weight: Tensor | None = None) -> None:
        """Add rows.

        Args:
            x: (n, p), any floating dtype; converted to the dtype of the sums before any product.
            index: (n,) int64, class column of each row, or -1 for a row that belongs to none of the classes.
            weight: (n,) non-negative, or None for all ones. A weight does not change the distinct counts.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.products.dtype)
            weighted = x if weight is None else x * weight.to(x)[:, None]
            add_lower_(self.products, weighted, x)
            self._lower_only = True
            self.seen += len(x)
            self.mass += len(x) if weight is None else weight.to(x).sum()
            own = index >= 0
            if not own.all():
                x, weighted, index = x[own], weighted[own], index[own]
            self.class_sums.index_add_(0, index, weighted)
            self.counts += torch.bincount(index, minlength=len(self.counts))
            if self.per_class:
                for c in torch.unique(index).tolist():
                    self.class_grams[c] += weighted[index == c].T @ x[index == c]

    @property
    def class_mass(self) -> Tensor:
        """(C,) total weight of each class's rows, were all weights alike; of one with a bias feature, its own sums."""
        return self.mass * self.counts / self.seen

    def add_gram_of(self, other: Sums) -> None:
        """Add the rows of ``other`` as rows that belong to none of these classes."""
        self._add_products(other, 1)
        self.seen += other.seen
        self.mass += other.mass

    def merge(self, other: Sums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add (``sign=1``) or subtract (``-1``) sums whose class c is this object's class ``columns[c]``."""
        device = self.products.device
        if columns is None:
            columns = torch.arange(len(other.counts), device=device)
        self._add_products(other, sign)
        self.class_sums.index_add_(0, columns, sign * other.class_sums.to(device))
        self.counts.index_add_(0, columns, sign * other.counts.to(device))
        self.seen += sign * other.seen.to(device)
        self.mass += sign * other.mass.to(device)
        if self.per_class:
            self.class_grams.index_add_(0, columns, sign * other.class_grams.to(device))

    def _add_products(self, other: Sums, sign: int) -> None:
        self.products.add_(other.products.to(self.products.device), alpha=sign)
        self._lower_only |= other._lower_only

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``; their rows stay in ``gram`` as rows of no class."""
        self.class_sums = self.class_sums[columns]
        self.counts = self.counts[columns]
        if self.per_class:
            self.class_grams = self.class_grams[columns]

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes: call ``sum_in_place`` on every tensor, in a fixed order."""
        for tensor in (self.gram, self.class_sums, self.counts, self.seen, self.mass, self.class_grams):
            sum_in_place(tensor)
