"""Leave learned rows, or groups of them, out of least squares without solving again.

With a design X of n rows and ``A = XᵀX + D`` the hat matrix is ``H = X A⁻¹Xᵀ``. Without the rows K
the inverse grows by ``A⁻¹X_Kᵀ(I − H_KK)⁻¹X_K A⁻¹`` (Woodbury), so that whatever is asked needs one
system of as many equations as the group has rows. λ stays as it is. A group without which a column
that is not penalised would be lost has a singular system, and nothing is known without it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

LeftOut = Callable[[Tensor], Tensor]
"""Function from the groups of samples, (n,) int64, to their scores.

The scores (n, C) are those of a head that never learned the sample or its group; NaN where nothing
is known without it."""

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""

ROWS_PER_STEP = 1024
"""Rows whose groups are left out at a time; it bounds memory."""


class GroupsLeftOut(NamedTuple):
    """Some groups of one size, and the systems that leaving them out takes.

    Attributes:
        members: (g, k) int64 rows of each group.
        hat: (g, k, k) blocks H_KK of the hat matrix.
        root: (g, k, 1) square root of each row's weight.
        factor: (g, k, k) lower Cholesky factors of ``I − H_KK``, each row and column of H times its
            root.
        singular: (g, 1, 1) bool, where nothing is known without the group.
    """

    members: Tensor
    hat: Tensor
    root: Tensor
    factor: Tensor
    singular: Tensor


@dataclass(eq=False)
class LearnedRows:
    """Learned rows of a design, with the hat matrix ``H = RRᵀ − MMᵀ``, to be left out in groups.

    Args:
        rows: (n, p) float64 R, such as :func:`~cifnet_pl.statistics.whiten` gives.
        between: (n, q) M; None for none.
        weight: (n,) ω of each row in the sums, 0 where it was never seen; None for ones.

    Example:
        >>> learned = LearnedRows(torch.tensor([[0.5**0.5]]).double())  # leverage 0.5
        >>> scores, targets = 2 * torch.ones(1, 1), torch.tensor([[3.0]])
        >>> learned.scores(scores, targets, torch.tensor([0])).round()
        tensor([[1.]], dtype=torch.float64)
    """

    rows: Tensor
    between: Tensor | None = None
    weight: Tensor | None = None

    def leave_out(self, groups: Tensor) -> Iterator[GroupsLeftOut]:
        """Yield all groups, many of one size at a time.

        Args:
            groups: (n,) int64 group of each row.
        """
        roots = torch.ones_like(self.rows[:, :1])
        if self.weight is not None:
            roots = self.weight.double().sqrt()[:, None]
        order = torch.argsort(groups, stable=True)
        sizes = torch.unique_consecutive(groups[order], return_counts=True)[1]
        starts = sizes.cumsum(0) - sizes
        for size in torch.unique(sizes).tolist():
            first = starts[sizes == size]
            positions = first[:, None] + torch.arange(size, device=order.device)
            groups_per_step = max(1, ROWS_PER_STEP // size)
            for members in torch.split(order[positions], groups_per_step):
                rows = self.rows[members]
                hat = rows @ rows.mT
                if self.between is not None:
                    between = self.between[members]
                    hat = hat - between @ between.mT
                root = roots[members]
                weighted = root * hat * root.mT
                identity = torch.eye(size).to(hat)
                factor, failed = torch.linalg.cholesky_ex(identity - weighted)
                pivots = factor.diagonal(dim1=1, dim2=2).square()
                regular = (failed == 0) & (pivots.amin(dim=1) > ROUNDING)
                singular = ~regular[:, None, None]
                yield GroupsLeftOut(members, hat, root, factor, singular)

    def scores(self, scores: Tensor, targets: Tensor, groups: Tensor) -> Tensor:
        """Return the scores (n, C) of ridge regression for rows without their group.

        For one alone it is ``(score − h·y)/(1 − h)`` with h its weight times its leverage. In
        general the residuals are ``(I − HΩ)⁻¹(Y − S)``, with S the scores of a group, Ω its weights
        and Y its targets.

        Args:
            scores: (n, C) of these rows.
            targets: (n, C) targets that the solve used.
            groups: (n,) int64 group of each row.

        Returns:
            (n, C) float64; NaN where without the group nothing is known of a row's score.
        """
        scores = scores.double()
        residuals = targets.double() - scores
        result = torch.empty_like(scores)
        for group in self.leave_out(groups):
            members = group.members
            weighted = group.root * residuals[members]
            solved = torch.cholesky_solve(weighted, group.factor)
            change = group.hat @ (group.root * solved)
            left_out = scores[members] - change
            result[members] = left_out.masked_fill(group.singular, torch.nan)
        return result


class LeftOutDistances(NamedTuple):
    """Distances of queries to the class means, without some groups of one size of learned rows.

    Attributes:
        members: (g, k) int64 rows of each group.
        square: (g, k, C) ``(q − μ_c)ᵀ(S + λI)⁻¹(q − μ_c)``; NaN where nothing is known.
        length: (g, k, 1) ``qᵀ(S + λI)⁻¹q``.
        remaining: (g, 1, C) number of rows that each class has left.
    """

    members: Tensor
    square: Tensor
    length: Tensor
    remaining: Tensor


class ScatteredRows(LearnedRows):
    """Learned rows, whose groups can be left out of the scatter within classes.

    The scatter S within classes is what is left of ``Σ xxᵀ`` after a regression on the classes,
    whose coefficients are the class means and are not penalised. So its design has the rows
    ``[e_c; x]``, the block of the hat matrix is ``H_ij = δ/n_c + v_iᵀ(S + λI)⁻¹v_j`` with ``v = x −
    μ_c``, and the distance of q to the mean of class c is ``[e_c; q]A⁻¹[e_c; q]ᵀ − 1/n_c``.

    Args:
        x: (n, p) float64 learned rows ``L⁻¹x``, with ``S + λI = LLᵀ``, each of weight 1.
        means: (C, p) class means ``L⁻¹μ_c``.
        columns: (n,) int64 class of each row.
        mass: (C,) number of rows n_c of each class.
    """

    def __init__(self, x: Tensor, means: Tensor, columns: Tensor, mass: Tensor):
        self.v = x - means[columns]
        self.means = means
        self.columns = columns
        self.mass = mass
        self.own = one_hot(columns, len(mass)).to(x)
        indicators = self.own / mass.sqrt()
        design = torch.cat([indicators, self.v], dim=1)
        super().__init__(design)
        to_means = self.v @ means.T
        self.mean_squares = means.square().sum(dim=1)
        # [e_i; x_i]A⁻¹[e_c; 0]
        self.to_classes = self.own / mass - to_means

    def distances(
        self,
        groups: Tensor,
        queries: Callable[[Tensor], Tensor],
    ) -> Iterator[LeftOutDistances]:
        """Yield the distances of queries to the class means without each row's group.

        Args:
            groups: (n,) int64 group of each row.
            queries: function from positions (g, k) of whole groups to the q (g, k, p) of their
                rows.
        """
        for group in self.leave_out(groups):
            members = group.members
            own = self.own[members]
            to_class = self.to_classes[members]
            q = queries(members)
            to_query = self.v[members] @ q.mT
            inner = q @ self.means.T
            query_square = q.square().sum(dim=2)
            size = members.shape[1]
            both = torch.cat([to_query, to_class], dim=2)
            solved = torch.linalg.solve_triangular(group.factor, both, upper=False)
            of_query = solved[..., :size]
            of_class = solved[..., size:]
            added_to_query = of_query.square().sum(dim=1)
            added_to_mean = of_class.square().sum(dim=1, keepdim=True)
            query_square = (query_square + added_to_query)[..., None]
            mean_square = self.mean_squares + added_to_mean
            inner = inner - of_query.mT @ of_class
            lost = own.sum(dim=1, keepdim=True)
            rest = self.mass - lost
            distance = query_square - 2 * inner + mean_square
            distance = distance + 1 / self.mass - 1 / rest
            square = distance.masked_fill(group.singular, torch.nan)
            yield LeftOutDistances(members, square, query_square, rest)

    def _rows(self, members: Tensor) -> Tensor:
        """Return the rows x (g, k, p) at some positions (g, k)."""
        return self.v[members] + self.means[self.columns[members]]

    def discriminant(
        self,
        groups: Tensor,
        mass: Tensor,
        freedom: float = 0.0,
    ) -> Tensor:
        """Return the scores (n, C) of the discriminant for each row without its group.

        They are ``½ (df/n_c + n‖x‖² − n‖x − μ_c‖²)`` with n, n_c and the distances of the rows that
        are left.

        Args:
            groups: (n,) int64 group of each row.
            mass: () number n of all rows.
            freedom: degrees of freedom df, which stay as they are.
        """
        scores = torch.empty_like(self.own)
        for found in self.distances(groups, self._rows):
            others = mass - found.members.shape[1]
            excess = freedom / found.remaining
            relative = found.length - found.square
            scores[found.members] = (excess + others * relative) / 2
        return scores
