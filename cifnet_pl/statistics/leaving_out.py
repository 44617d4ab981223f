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

from cifnet_pl.statistics.solving import factorise, whiten

LeftOut = Callable[[Tensor | None], Tensor]
"""Function from the groups of samples, (n,) int64 or None where each is its own, to their scores.

The scores (n, C) are those of a head that never learned the sample or its group; NaN where nothing
is known without it."""

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""

ROWS_PER_STEP = 1024
"""Rows whose groups are left out at a time; it bounds memory."""


def whitened_rows(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """Compute the rows B with ``B Bᵀ = X(gram + diag(penalty))⁻¹Xᵀ``.

    Args:
        gram: (p, p) Gram matrix of all learned samples.
        penalty: (p,) or () ridge of each feature, 0 for one that is free.
        x: (n, p) rows.

    Returns:
        (n, p) float64.

    Raises:
        CifnetError: ``gram + diag(penalty)`` is not positive definite.
    """
    factor = factorise(gram.double(), penalty.double())
    return whiten(factor, x.double())


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
    scores: Tensor,
    whitened: Tensor,
    weight: Tensor,
    targets: Tensor,
    groups: Tensor | None,
) -> Tensor:
    """Return the scores (n, C) of ridge regression for samples without their group.

    For one alone it is ``(score − h·y)/(1 − h)`` with h its weight times its leverage. In general
    the residuals are ``(I − HΩ)⁻¹(Y − S)``, with S the scores of a group, Ω its weights and Y its
    targets.

    Args:
        scores: (n, C) of samples that were learned.
        whitened: (n, p) rows B with ``H = B Bᵀ``, as of :func:`whitened_rows`.
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
        observed = root * b
        systems = GroupSystems.of(observed @ observed.mT)
        own_targets = targets[rows].double()
        residual = own_targets - scores[rows].double()
        system = torch.cholesky_solve(root * residual, systems.factor)
        without = own_targets - residual - b @ (observed.mT @ system)
        result[rows] = without.masked_fill(systems.singular, torch.nan)
    return result


class LeftOutDistances(NamedTuple):
    """Distances of learned rows to the class means, without their groups.

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


def left_out_distances(
    rows: Tensor,
    means: Tensor,
    columns: Tensor,
    mass: Tensor,
    groups: Tensor | None,
    queries: Callable[[Tensor], Tensor] | None = None,
) -> LeftOutDistances:
    """Return Mahalanobis distances to class means without each row's group.

    The scatter S within classes is what is left of ``Σ xxᵀ`` after a regression on the classes,
    whose coefficients are the class means and are not penalised. So its design has the rows
    ``[e_c; x]``, the block of the hat matrix is ``H_ij = δ/n_c + v_iᵀ(S + λI)⁻¹v_j`` with ``v = x −
    μ_c``, and the distance of q to the mean of class c is ``[e_c; q]A⁻¹[e_c; q]ᵀ − 1/n_c``.

    Args:
        rows: (n, p) float64 learned rows ``L⁻¹x``, with ``S + λI = LLᵀ``, each of weight 1.
        means: (C, p) class means ``L⁻¹μ_c``.
        columns: (n,) int64 class of each row.
        mass: (C,) number of rows n_c of each class.
        groups: (n,) int64 group of each row; None where each is its own.
        queries: function from positions (g, k) of whole groups to the q (g, k, p) of their rows;
            None where these are the rows themselves.
    """
    shape = (len(rows), len(mass))
    square = rows.new_empty(shape)
    remaining = rows.new_empty(shape)
    length = rows.new_empty(len(rows), 1)
    left_out = rows.new_empty(len(rows), 1)
    mean_square = means.square().sum(dim=1)
    for members in equal_groups(groups, len(rows)):
        x = rows[members]
        q = x
        if queries is not None:
            q = queries(members)
        v = x - means[columns[members]]
        own = torch.nn.functional.one_hot(columns[members], len(mass)).to(v)
        share = own / mass
        systems = GroupSystems.of(v @ v.mT + share @ own.mT)
        # What each row says of a query, apart from its class, and of each class.
        said = torch.cat([v @ q.mT, share - v @ means.T], dim=2)
        solved = torch.linalg.solve_triangular(systems.factor, said, upper=False)
        of_query, of_class = solved.tensor_split([q.shape[1]], dim=2)
        own_length = q.square().sum(dim=2) + of_query.square().sum(dim=1)
        to_mean = mean_square + of_class.square().sum(dim=1, keepdim=True)
        inner = q @ means.T - of_query.mT @ of_class
        rest = mass - own.sum(dim=1, keepdim=True)
        distance = own_length[..., None] - 2 * inner + to_mean + 1 / mass - 1 / rest
        square[members] = distance.masked_fill(systems.singular, torch.nan)
        remaining[members] = rest.expand_as(distance)
        length[members] = own_length[..., None]
        left_out[members] = float(members.shape[1])
    return LeftOutDistances(square, length, remaining, left_out)
