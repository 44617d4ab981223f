"""Leave learned rows, or groups of them, out of least squares without solving again.

With a design X of n rows and ``A = XᵀX + D`` the hat matrix is ``H = X A⁻¹Xᵀ``. Without the rows K
the inverse grows by ``A⁻¹X_Kᵀ(I − H_KK)⁻¹X_K A⁻¹`` (Woodbury), so that whatever is asked needs one
system of as many equations as the group has rows. λ stays as it is. A group without which a column
that is not penalised would be lost has a singular system, and nothing is known without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

LeftOut = Callable[[Tensor | None], Tensor]
"""Function from the groups of samples, (n,) int64 or None where each is its own, to their scores.

The scores (n, C) are those of a head that never learned the sample or its group; NaN where nothing
is known without it."""

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""

ROWS_PER_STEP = 1024
"""Rows whose groups are left out at a time; it bounds memory."""


def equal_groups(groups: Tensor | None, count: int) -> Iterator[Tensor]:
    """Yield the rows (g, k) int64 of groups of one size k, many groups at a time.

    Args:
        groups: (count,) int64 group of each row; None where each is its own.
        count: number of rows.
    """
    if groups is None:
        groups = torch.arange(count)
    order = torch.argsort(groups, stable=True)
    sizes = torch.unique_consecutive(groups[order], return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    for size in torch.unique(sizes).tolist():
        first = starts[sizes == size]
        within = torch.arange(size, device=order.device)
        rows = order[first[:, None] + within]
        yield from torch.split(rows, max(1, ROWS_PER_STEP // size))


class GroupSystems(NamedTuple):
    """Cholesky factors of the systems of some groups.

    Attributes:
        factor: (g, k, k) lower, of ``I − H_KK``.
        singular: (g, 1, 1) bool, where nothing is known without the group.
    """

    factor: Tensor
    singular: Tensor

    @classmethod
    def of(cls, hat: Tensor) -> GroupSystems:
        """Factorise ``I − H_KK`` for blocks (g, k, k) of the hat matrix."""
        identity = torch.eye(hat.shape[1], dtype=hat.dtype, device=hat.device)
        factor, failed = torch.linalg.cholesky_ex(identity - hat)
        gap = factor.diagonal(dim1=1, dim2=2).square().amin(dim=1)
        singular = (failed > 0) | ~(gap > ROUNDING)
        return cls(factor, singular[:, None, None])


def left_out_together(
    rows: Tensor,
    scores: Tensor,
    targets: Tensor,
    groups: Tensor | None,
    weight: Tensor | None = None,
    between: Tensor | None = None,
) -> Tensor:
    """Return the scores (n, C) of ridge regression for samples without their group.

    For one alone it is ``(score − h·y)/(1 − h)`` with h its weight times its leverage. In general
    the residuals are ``(I − HΩ)⁻¹(Y − S)``, with S the scores of a group, Ω its weights and Y its
    targets.

    Args:
        rows: (n, p) R of samples that were learned, with ``H = RRᵀ``: those of
            :func:`~cifnet_pl.statistics.whitened_rows`.
        scores: (n, C) of these samples.
        targets: (n, C) targets that the solve used.
        groups: (n,) int64 number of each sample's group; None where each is its own.
        weight: (n,) of each sample in the sums, 0 where it was never seen; None for ones.
        between: (n, q) M with ``H = RRᵀ − MMᵀ``, or None.

    Returns:
        (n, C) float64; NaN where without the group nothing is known of a sample's score.

    Example:
        >>> rows = torch.tensor([[0.5**0.5]])  # leverage 0.5
        >>> scores, targets = 2 * torch.ones(1, 1), torch.tensor([[3.0]])
        >>> left_out_together(rows, scores, targets, None).round()
        tensor([[1.]], dtype=torch.float64)
    """
    result = torch.empty_like(scores, dtype=torch.float64)
    if weight is None:
        weight = torch.ones_like(rows[:, 0])
    for members in equal_groups(groups, len(scores)):
        own = rows[members].double()
        block = own @ own.mT
        if between is not None:
            own_between = between[members]
            block = block - own_between @ own_between.mT
        root = weight[members].double().sqrt()[..., None]
        systems = GroupSystems.of(root * block * root.mT)
        own_targets = targets[members].double()
        residual = own_targets - scores[members].double()
        system = torch.cholesky_solve(root * residual, systems.factor)
        without = own_targets - residual - block @ (root * system)
        result[members] = without.masked_fill(systems.singular, torch.nan)
    return result


class LeftOutDistances(NamedTuple):
    """Distances of queries to the class means, without the groups of learned rows.

    Attributes:
        square: (n, C) ``(q − μ_c)ᵀ(S + λI)⁻¹(q − μ_c)``; NaN where nothing is known.
        length: (n, 1) ``qᵀ(S + λI)⁻¹q``.
        remaining: (n, C) number of rows that each class has left.
        left_out: (n, 1) number of rows that are left out with each, itself included.
    """

    square: Tensor
    length: Tensor
    remaining: Tensor
    left_out: Tensor


class ScatteredRows:
    """Learned rows, whose groups can be left out of the scatter within classes.

    The scatter S within classes is what is left of ``Σ xxᵀ`` after a regression on the classes,
    whose coefficients are the class means and are not penalised. So its design has the rows
    ``[e_c; x]``, the block of the hat matrix is ``H_ij = δ/n_c + v_iᵀ(S + λI)⁻¹v_j`` with ``v = x −
    μ_c``, and the distance of q to the mean of class c is ``[e_c; q]A⁻¹[e_c; q]ᵀ − 1/n_c``.

    Args:
        rows: (n, p) float64 learned rows ``L⁻¹x``, with ``S + λI = LLᵀ``, each of weight 1.
        means: (C, p) class means ``L⁻¹μ_c``.
        columns: (n,) int64 class of each row.
        mass: (C,) number of rows n_c of each class.
    """

    def __init__(self, rows: Tensor, means: Tensor, columns: Tensor, mass: Tensor):
        self.v = rows - means[columns]
        self.means = means
        self.columns = columns
        self.mass = mass
        self.to_means = self.v @ means.T
        self.between_means = means @ means.T

    def distances(
        self, groups: Tensor | None, queries: Callable[[Tensor], Tensor] | None = None
    ) -> LeftOutDistances:
        """Return the distances of queries to the class means without each row's group.

        Args:
            groups: (n,) int64 group of each row; None where each is its own.
            queries: function from positions (g, k) of whole groups to the q (g, k, p) of their
                rows; None where these are the rows themselves.
        """
        count = len(self.v)
        square = torch.empty_like(self.to_means)
        remaining = torch.empty_like(self.to_means)
        length = self.v.new_empty(count, 1)
        left_out = self.v.new_empty(count, 1)
        for members in equal_groups(groups, count):
            v = self.v[members]
            q = v + self.means[self.columns[members]]
            if queries is not None:
                q = queries(members)
            own = torch.nn.functional.one_hot(self.columns[members], len(self.mass))
            own = own.to(v)
            share = own / self.mass
            systems = GroupSystems.of(v @ v.mT + share @ own.mT)
            # What each row says of a query, apart from its class, and of each class.
            said = torch.cat([v @ q.mT, share - self.to_means[members]], dim=2)
            solved = torch.linalg.solve_triangular(systems.factor, said, upper=False)
            of_query, of_class = solved.tensor_split([q.shape[1]], dim=2)
            own_length = q.square().sum(dim=2) + of_query.square().sum(dim=1)
            to_mean = of_class.square().sum(dim=1, keepdim=True)
            to_mean = to_mean + self.between_means.diagonal()
            inner = q @ self.means.T - of_query.mT @ of_class
            rest = self.mass - own.sum(dim=1, keepdim=True)
            distance = own_length[..., None] - 2 * inner + to_mean
            distance = distance + 1 / self.mass - 1 / rest
            square[members] = distance.masked_fill(systems.singular, torch.nan)
            remaining[members] = rest.expand_as(distance)
            length[members] = own_length[..., None]
            left_out[members] = float(members.shape[1])
        return LeftOutDistances(square, length, remaining, left_out)
