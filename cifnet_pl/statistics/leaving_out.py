"""Leave samples, or groups of them, out of a ridge regression without solving again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from cifnet_pl.statistics.solving import factorise, whiten

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""

ROWS_PER_STEP = 1024
"""Rows whose groups are left out at a time."""


def whitened_rows(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """Compute the rows B with ``B Bᵀ = X(gram + diag(penalty))⁻¹Xᵀ``.

    Args:
        gram: (p, p) Gram matrix of all learned samples.
        penalty: (p,) ridge of each feature, 0 for one that is free.
        x: (n, p) rows.

    Returns:
        (n, p) float64.

    Raises:
        CifnetError: ``gram + diag(penalty)`` is not positive definite.
    """
    # A ridge that eigh solves with may be small for float32.
    factor = factorise(gram.double(), penalty.double())
    return whiten(factor, x.double())


class GroupRows(NamedTuple):
    """Rows of g groups, each filled up to k rows.

    Attributes:
        rows: (g, k) int64 positions; where a group has fewer rows, its first one stands in.
        present: (g, k) bool, whether it is a row of the group.
    """

    rows: Tensor
    present: Tensor

    @property
    def sizes(self) -> Tensor:
        """(g,) rows of each group."""
        return self.present.sum(dim=1)

    @property
    def pairs(self) -> Tensor:
        """(g, k, k) bool, whether both rows are of the group."""
        return self.present[:, :, None] & self.present[:, None]


def padded_groups(groups: Tensor | None, count: int) -> Iterator[GroupRows]:
    """Yield the rows of all groups, many groups of about the same size at a time, on the CPU.

    Sizes are rounded up to a power of two, so that there are few of them. Each step has about
    ``ROWS_PER_STEP`` rows.

    Args:
        groups: (count,) int64 number of each row's group; None where each is its own.
        count: number of rows.
    """
    if groups is None:
        groups = torch.arange(count)
    groups = groups.cpu()
    order = torch.argsort(groups, stable=True)
    sizes = torch.unique_consecutive(groups[order], return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    powers = 2 ** torch.arange(count.bit_length() + 1)
    width = powers[torch.searchsorted(powers, sizes)]
    for size in torch.unique(width).tolist():
        of_size = width == size
        offsets = torch.arange(size)
        present = offsets < sizes[of_size, None]
        rows = order[starts[of_size, None] + offsets * present]
        groups_per_step = max(1, ROWS_PER_STEP // size)
        of_rows = torch.split(rows, groups_per_step)
        of_present = torch.split(present, groups_per_step)
        yield from map(GroupRows, of_rows, of_present)


def equal_groups(groups: Tensor | None, count: int) -> Iterator[Tensor]:
    """Yield the rows of all groups of one size, (g, k) int64, for each size.

    Args:
        groups: (count,) int64 number of each row's group; None where each is its own.
        count: number of rows.
    """
    for padded in padded_groups(groups, count):
        sizes = padded.sizes
        for size in torch.unique(sizes).tolist():
            yield padded.rows[sizes == size, :size]


def left_out_together(
    scores: Tensor,
    whitened: Tensor,
    weight: Tensor,
    targets: Tensor,
    groups: Tensor | None,
) -> Tensor:
    """Return the scores (n, C) of samples without all samples of their group, at the same ridge.

    For one alone it is ``(score − h·y)/(1 − h)`` with h its weight times its leverage. In general,
    with S the scores of a group, H its block of the hat matrix, Ω its weights, Y its targets and
    ``V = Ω^½B``, it is ``(I − HΩ)⁻¹R = R + B(I − VᵀV)⁻¹VᵀΩ^½R`` with ``R = S − HΩY``: a system of
    as many equations as the group has rows, or of p, whichever is smaller, so that no matrix grows
    with the square of a group.

    Args:
        scores: (n, C) of samples that were learned.
        whitened: (n, p) from :func:`whitened_rows`.
        weight: (n,) of each sample in the sums; 0 where it was never seen.
        targets: (n, C) targets that the solve used.
        groups: (n,) int64 number of each sample's group; None where each is its own.

    Returns:
        (n, C) float64; NaN where without the group nothing is known of a sample's score.

    Example:
        >>> whitened = torch.tensor([[0.5**0.5]])  # leverage 0.5
        >>> one = torch.ones(1)
        >>> scores, targets = 2 * torch.ones(1, 1), torch.tensor([[3.0]])
        >>> left_out_together(scores, whitened, one, targets, None).round()
        tensor([[1.]], dtype=torch.float64)
    """
    result = torch.empty_like(scores, dtype=torch.float64)
    for rows in equal_groups(groups, len(scores)):
        b = whitened[rows].double()
        root = weight[rows].double().sqrt()[..., None]
        targeted = root * targets[rows].double()
        of_rows = scores[rows].double()
        v = root * b
        if v.shape[1] <= v.shape[2]:
            hat = b @ v.mT
            rest = of_rows - hat @ targeted
            system = _solved(v @ v.mT, root * rest)
            without = rest + hat @ system.solution
        else:
            rest = of_rows - b @ (v.mT @ targeted)
            system = _solved(v.mT @ v, v.mT @ (root * rest))
            without = rest + b @ system.solution
        result[rows] = without.masked_fill(system.gap < ROUNDING, torch.nan)
    return result


LARGEST_BLOCKS = 2**24
"""Most inner products of rows of one class that are kept."""


class Products(Protocol):
    """Inner products of rows, asked for group by group."""

    def among(self, rows: Tensor) -> Tensor:
        """Return (g, k, k) products of the rows of each of g groups of k, at positions (g, k)."""


class RowProducts:
    """Inner products of rows.

    Args:
        rows: (n, p), on any device.
    """

    def __init__(self, rows: Tensor):
        self.rows = rows

    def among(self, rows: Tensor) -> Tensor:
        """Return (g, k, k) products of the rows of each of g groups of k, at positions (g, k)."""
        members = self.rows[rows.to(self.rows.device)]
        return members @ members.mT


class ClassBlocks:
    """Inner products of rows that are asked for again and again, group by group, on the CPU.

    Those of rows of one class are computed once, if they are not too many, where the rows are.
    Groups are small and many: on a GPU each would wait for a launch.

    Args:
        products: of the rows.
        columns: (n,) int64 class of each row, on the CPU.
    """

    def __init__(self, products: Products, columns: Tensor):
        self.products = products
        self.columns = columns
        self.count = torch.bincount(columns)

    def among(self, rows: Tensor) -> Tensor:
        """Return (g, k, k) products of the rows of each of g groups of k, at positions (g, k)."""
        columns = self.columns[rows]
        first = columns[:, :1]
        crosses = (columns != first).any()
        if crosses or self.count.square().sum() > LARGEST_BLOCKS:
            return self.products.among(rows).cpu()
        place = self._place[rows]
        start = self._first_block[first] + place * self.count[first]
        return self._blocks[start[..., None] + place[:, None]]

    @cached_property
    def _first_block(self) -> Tensor:
        """(C,) where the products of each class begin."""
        size = self.count.square()
        return size.cumsum(0) - size

    @cached_property
    def _order(self) -> Tensor:
        """(n,) positions of the rows, class after class."""
        return torch.argsort(self.columns, stable=True)

    @cached_property
    def _place(self) -> Tensor:
        """(n,) place of each row within its class."""
        first = self.count.cumsum(0) - self.count
        order = self._order
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        return place - first[self.columns]

    @cached_property
    def _blocks(self) -> Tensor:
        """(Σ n_c²,) products of the rows of each class."""
        blocks = list[Tensor]()
        for members in torch.split(self._order, self.count.tolist()):
            blocks.append(self.products.among(members[None]).flatten())
        return torch.cat(blocks).cpu()


def left_out_by_products(
    scores: Tensor, products: Products, targets: Tensor, groups: Tensor | None
) -> Tensor:
    """Return the scores of :func:`left_out_together` by inner products, each sample of weight 1.

    Args:
        scores: (n, C) of samples that were learned.
        products: of the rows of :func:`whitened_rows`.
        targets: (n, C) targets that the solve used.
        groups: (n,) int64 number of each sample's group; None where each is its own.
    """
    result = torch.empty_like(scores, dtype=torch.float64)
    for group in padded_groups(groups, len(scores)):
        hat = products.among(group.rows) * group.pairs
        rest = scores[group.rows] - hat @ targets[group.rows]
        factor = definite_factor(torch.eye(hat.shape[1], dtype=hat.dtype) - hat)
        gap = factor.diagonal(dim1=1, dim2=2).square().amin(dim=1)
        without = torch.cholesky_solve(rest, factor)
        # Its smallest squared diagonal element is at most k times the smallest eigenvalue.
        unknown = (gap < 2 * ROUNDING * hat.shape[1])[:, None, None]
        without = without.masked_fill(unknown, torch.nan)
        result[group.rows[group.present]] = without[group.present]
    return result


def definite_factor(matrices: Tensor) -> Tensor:
    """Return the lower Cholesky factors of matrices that are positive definite but for rounding.

    Args:
        matrices: (g, k, k) symmetric. Eigenvalues below ``ROUNDING`` are replaced by it.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrices)
    if not failed.any():
        return factor
    values, vectors = torch.linalg.eigh(matrices)
    root = values.clamp_min(ROUNDING).sqrt()[:, None] * vectors
    # Of a matrix with M Mᵀ = A the triangular factor of Mᵀ = QR is a Cholesky factor of A.
    upper = torch.linalg.qr(root.mT).R
    sign = upper.diagonal(dim1=1, dim2=2).sign()
    positive: Tensor = sign[..., None] * upper
    return positive.mT


class _Solved(NamedTuple):
    """Solutions of g systems.

    Attributes:
        solution: (g, k, C) ``(I − P)⁻¹R``.
        gap: (g, 1, 1) smallest eigenvalue of I − P.
    """

    solution: Tensor
    gap: Tensor


def _solved(products: Tensor, right: Tensor) -> _Solved:
    values, vectors = torch.linalg.eigh(products)
    gaps = 1 - values[..., None]
    rotated = vectors.mT @ right
    return _Solved(vectors @ (rotated / gaps.clamp_min(ROUNDING)), gaps[:, -1:])
