"""Mahalanobis distances to class means from sums, also without learned rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.leaving_out import (
    ROUNDING,
    ClassBlocks,
    GroupRows,
    Products,
    RowProducts,
    definite_factor,
    padded_groups,
)
from cifnet_pl.statistics.solving import factorise, whiten


@dataclass(frozen=True)
class ClassMoments:
    """First and second moments of weighted rows x of p features, without a bias feature; float64.

    Attributes:
        gram: (p, p) ``Σ ω x xᵀ`` over all rows.
        sums: (G, p) ``Σ ω x`` of each group of rows; the first C groups are the classes.
        weights: (G,) ``Σ ω`` of each group.
        classes: C; a further group holds the rows of classes that were removed.
        mass: () ``Σ ω`` over the rows that the scatter within groups is made of.
        rounding: relative, of the sums.
    """

    gram: Tensor
    sums: Tensor
    weights: Tensor
    classes: int
    mass: Tensor
    rounding: float

    @classmethod
    def of(
        cls,
        gram: Tensor,
        sums: Tensor,
        weights: Tensor,
        total: Tensor | None,
        mass: Tensor,
    ) -> ClassMoments:
        """Put the rows that belong to none of the classes into a group of their own.

        Args:
            gram: as above, any floating dtype.
            sums: (C, p) of the classes.
            weights: (C,) of the classes.
            total: (p+1,) ``Σ ω [1; x]`` over all rows of the Gram matrix; None where that is not
                known, and the removed rows are taken to have mean zero.
            mass: () total weight.
        """
        rounding = torch.finfo(gram.dtype).eps
        gram = gram.double()
        sums = sums.double()
        weights = weights.double()
        mass = mass.double()
        classes = len(weights)
        if total is None:
            rest_weight = mass - weights.sum()
            rest = torch.zeros_like(sums[0])
        else:
            rest_weight = total[0].double() - weights.sum()
            rest = total[1:].double() - sums.sum(dim=0)
        # What is left of sums that were subtracted again is rounding, and no group.
        if rest_weight > max(rounding, ROUNDING) * 10 * mass:
            sums = torch.cat([sums, rest[None]])
            weights = torch.cat([weights, rest_weight[None]])
        return cls(gram, sums, weights, classes, mass, rounding)

    @property
    def group_means(self) -> Tensor:
        """(G, p) mean of each group."""
        return self.sums / self.weights[:, None]

    @property
    def mean(self) -> Tensor:
        """(p,) mean of all rows."""
        return self.sums.sum(dim=0) / self.weights.sum()

    @property
    def square(self) -> Tensor:
        """() ``Σ ω ‖x‖²``."""
        return self.gram.trace()

    def within(self) -> Tensor:
        """Return (p, p) scatter of the rows around the means of their groups."""
        return self.gram - self.sums.T @ self.group_means

    def total(self) -> Tensor:
        """Return (p, p) scatter of the rows around the mean of all."""
        return self.gram - self.weights.sum() * torch.outer(self.mean, self.mean)


class InnerProducts(NamedTuple):
    """Inner products ``aᵀ(S + λI)⁻¹b`` of the rows of g groups of k with the class means.

    They are those without the group. ``inner`` and ``square`` have the scatter of all rows. The
    Woodbury correction for the rows that are left out adds the inner product of the coordinates
    ``rows`` of a, or ``means`` of b.

    Attributes:
        inner: (g, k, C) of each row with each mean.
        square: (g, 1, C) of each mean with itself.
        rows: (g, k, k) coordinates of each row for the correction.
        means: (g, k, C) coordinates of each mean for the correction.
        remaining: (g, 1, C) weight of the other rows of each class; zero for one that has none.
    """

    inner: Tensor
    square: Tensor
    rows: Tensor
    means: Tensor
    remaining: Tensor

    @property
    def gone(self) -> Tensor:
        """(g, 1, C) bool, which classes have no other row."""
        return self.remaining == 0


class Removable:
    """Learned rows that can be left out of a scatter within classes and of the class means.

    With ``S + λI = LLᵀ`` all inner products are those of the whitened rows ``L⁻¹x``. Without k rows
    of class c, each of weight 1, and ``v = z − μ_c``, the scatter loses ``Σ vvᵀ + ssᵀ/(n_c − k)``
    with ``s = Σ v``, and the mean loses ``s/(n_c − k)``. So it loses ``VᵀDV`` with V the rows v and
    ``D⁻¹ = I − 11ᵀ/n_c``, and products grow by ``aᵀVᵀ(D⁻¹ − VVᵀ)⁻¹Vb`` (Woodbury): a system of as
    many equations as the group has rows. λ stays the same. All of it is on the CPU, as it is small.

    Args:
        products: of the whitened differences v.
        along: (n, C) inner products of v with the whitened class means.
        mean_products: (C, C) inner products of the whitened class means.
        class_mass: (C,) n_c.
        columns: (n,) int64 class of each row.
    """

    def __init__(
        self,
        products: Products,
        along: Tensor,
        mean_products: Tensor,
        class_mass: Tensor,
        columns: Tensor,
    ):
        self.products = products
        self.along = along.cpu()
        self.mean_products = mean_products.cpu()
        self.class_mass = class_mass.cpu()
        self.columns = columns.cpu()

    @classmethod
    def of_rows(
        cls, away: Tensor, means: Tensor, class_mass: Tensor, columns: Tensor
    ) -> Removable:
        """Compute the inner products of rows.

        Args:
            away: (n, p) ``L⁻¹v``.
            means: (C, p) ``L⁻¹μ_c``.
            class_mass: (C,) n_c.
            columns: (n,) int64 class of each row.
        """
        products = ClassBlocks(RowProducts(away), columns.cpu())
        return cls(products, away @ means.T, means @ means.T, class_mass, columns)

    def without(
        self, group: GroupRows, products: Tensor, to_rows: Tensor, to_means: Tensor
    ) -> InnerProducts:
        """Return the products of any q with the class means, without all rows of some groups.

        Args:
            group: k rows of each of g groups.
            products: (g, k, k) of their differences v.
            to_rows: (g, q, k) products of each q with these.
            to_means: (g, q, C) products of each q with the class means.
        """
        present = group.present[..., None].to(products)
        products = products * group.pairs
        to_rows = to_rows * present.mT
        along = present * self.along[group.rows]
        columns = self.columns[group.rows]
        # (g, k, C)
        own = torch.nn.functional.one_hot(columns, len(self.class_mass)) * present
        remaining = self.class_mass - own.sum(dim=1)
        gone = remaining <= ROUNDING * self.class_mass
        # Zero for other classes. Of a class without other rows nothing is asked.
        shift = own / remaining.masked_fill(gone, torch.inf)[:, None]
        mass = self.class_mass.expand_as(gone).masked_fill(gone, torch.inf)
        identity = torch.eye(own.shape[1], dtype=own.dtype)
        inverse = identity - own @ (own / mass[:, None]).mT  # D⁻¹
        factor = definite_factor(inverse - products)
        moved = products @ shift  # products of the rows with what each mean loses
        own_square = self.mean_products.diagonal()
        square = own_square + (shift * (moved - 2 * along)).sum(dim=1)
        inner = to_means - to_rows @ shift
        coordinates = torch.linalg.solve_triangular(
            factor, torch.cat([to_rows.mT, along - moved], dim=2), upper=False
        )
        of_rows, of_means = coordinates.tensor_split([to_rows.shape[1]], dim=2)
        return InnerProducts(
            inner,
            square[:, None],
            of_rows.mT,
            of_means,
            remaining.masked_fill(gone, 0.0)[:, None],
        )

    def _without_themselves(self, group: GroupRows) -> InnerProducts:
        """Return the products of the rows of some groups with the class means, without these."""
        products = self.products.among(group.rows)
        along = self.along[group.rows]
        columns = self.columns[group.rows]
        of_own_means = along.mT.gather(1, columns[..., None].expand_as(products))
        to_means = along + self.mean_products[columns]
        return self.without(group, products, products + of_own_means, to_means)

    def discriminant(
        self,
        mass: float,
        groups: Tensor | None,
        degrees_of_freedom: float = 0.0,
    ) -> Tensor:
        """Return ``xᵀΛμ_c − ½ μ_cᵀΛμ_c`` of the rows x, without the rows of their group.

        ``Λ = ((S + λI)/n)⁻¹``; the priors are equal. The mean of n_c rows is too long by chance:
        ``μ_cᵀΛμ_c`` is ``df/n_c`` too large on average, with ``df = tr (S + λI)⁻¹S``, so that a
        class of few rows is rarely predicted. Half of that is added.

        Args:
            mass: n, total weight.
            groups: (n,) int64 group of each row; None where each is its own.
            degrees_of_freedom: df; 0 to leave the means as long as they are.

        Returns:
            (n, C) on the CPU; NaN for a class that had no other row.
        """
        result = torch.empty_like(self.along)
        for group in padded_groups(groups, len(result)):
            p = self._without_themselves(group)
            inner = p.inner + p.rows @ p.means
            square = p.square + p.means.square().sum(dim=1, keepdim=True)
            score = (mass - group.sizes)[:, None, None] * (inner - square / 2)
            score = score + degrees_of_freedom / (2 * p.remaining)
            score = score.masked_fill(p.gone, torch.nan)
            result[group.rows[group.present]] = score[group.present]
        return result


class ClassDistances:
    """Squared Mahalanobis distances to the nearest class mean, and to the mean of all rows.

    With the scatters ``S_w`` within classes and ``S_t`` around the mean μ of all N rows, and λ a
    share of the mean eigenvalue of ``S_w``,

        near(x) = min_c N·(q − μ_c)ᵀ(S_w + λI)⁻¹(q − μ_c)
        overall(x) = N·(q − μ)ᵀ(S_t + λI)⁻¹(q − μ)

    where q is x stretched to the root mean square length of the rows: the length of an embedding
    depends more on the contrast of an image than on its content (Mahalanobis++, Mueller and Hein,
    2025, normalise rows, too). The difference of the two is the relative distance of Ren et al.
    (2021).

    Args:
        moments: of the rows that were learned.
        share: λ as a share of the mean eigenvalue of ``S_w``.
    """

    def __init__(self, moments: ClassMoments, share: float):
        self.moments = moments
        within = moments.within()
        total = moments.total()
        scale = within.diagonal().mean()
        rounding = 10 * moments.rounding * moments.square
        smallest = rounding.clamp_min(torch.finfo(torch.float64).tiny)
        if share * scale <= smallest:  # every class is a single point
            scale = total.diagonal().mean()
        self.ridge = torch.maximum(share * scale, smallest)
        self.length = (moments.square / moments.mass).sqrt()
        self.centre = moments.mean
        self.means = moments.group_means[: moments.classes] - self.centre
        self.within_factor = factorise(within, self.ridge)
        self.total_factor = factorise(total, self.ridge)

    def relative(self, share: float) -> Callable[[Tensor], Tensor]:
        """Return a function that computes relative distances by one product with a (p, p) matrix.

        Args:
            share: of the overall distance that is subtracted; 0 for the distance to the nearest
                class mean alone.

        Returns:
            Function from rows (n, p) to (n,) ``near(x) − share·overall(x)``.
        """
        within = torch.cholesky_inverse(self.within_factor)
        inverse = within - share * torch.cholesky_inverse(self.total_factor)
        towards = within @ self.means.T
        offset = (self.means.T * towards).sum(dim=0)

        def relative_distance(x: Tensor) -> Tensor:
            direction = torch.nn.functional.normalize(x.double(), dim=1)
            q = self.length * direction - self.centre
            square = (q * (q @ inverse)).sum(dim=1)
            nearest = (offset - 2 * q @ towards).min(dim=1).values
            return self.moments.mass * (square + nearest)

        return relative_distance

    def left_out(
        self, x: Tensor, columns: Tensor, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the distances near and overall of learned rows, each without itself or its group.

        Args:
            x: (n, p), each of weight 1 in the sums.
            columns: (n,) class of each.
            groups: (n,) int64 number of each row's group; None where each stands alone.

        Returns:
            (n,) twice, float64. The only row of a class gets its distance to the other classes; NaN
            where there is no other.
        """
        x = x.double()
        away = x - self.centre
        weights = self.moments.weights
        class_weights = weights[: self.moments.classes]
        away_from_class = whiten(self.within_factor, away - self.means[columns])
        means = whiten(self.within_factor, self.means)
        one_class = torch.zeros_like(columns)
        no_mean = away.new_zeros(1, x.shape[1])
        away_from_all = whiten(self.total_factor, away)
        near = Removable.of_rows(away_from_class, means, class_weights, columns)
        overall = Removable.of_rows(
            away_from_all, no_mean, weights.sum()[None], one_class
        )
        return (
            self._left_out(x, near, away_from_class, means, self.within_factor, groups),
            self._left_out(
                x, overall, away_from_all, no_mean, self.total_factor, groups
            ),
        )

    def _left_out(
        self,
        x: Tensor,
        removable: Removable,
        away: Tensor,
        means: Tensor,
        factor: Tensor,
        groups: Tensor | None,
    ) -> Tensor:
        """Return (n,) distance of each row to the nearest mean without the rows of its group."""
        moments = self.moments
        squares = x.square().sum(dim=1)
        direction = whiten(factor, torch.nn.functional.normalize(x, dim=1))
        centre = whiten(factor, self.centre[None])
        distances = x.new_empty(len(x))
        for group in padded_groups(groups, len(x)):
            rows = group.rows.to(x.device)
            present = group.present.to(x.device)
            mass = moments.mass - present.sum(dim=1, keepdim=True)
            mass = mass.masked_fill(mass <= ROUNDING * moments.mass, torch.nan)
            lost = (squares[rows] * present).sum(dim=1, keepdim=True)
            square = (moments.square - lost).clamp_min(0)
            length = (square / mass).sqrt().nan_to_num()
            q = length[..., None] * direction[rows] - centre
            to_rows = (q @ away[rows].mT).cpu()
            to_means = (q @ means.T).cpu()
            own_square = q.square().sum(dim=2, keepdim=True).cpu()
            products = removable.products.among(group.rows)
            left = removable.without(group, products, to_rows, to_means)
            nearest = mass * _nearest(own_square, left).to(x.device)
            distances[rows[present]] = nearest[present]
        return distances


def _nearest(square: Tensor, products: InnerProducts) -> Tensor:
    """Return (g, k) squared distance of each row to the nearest class mean; NaN without classes.

    Args:
        square: (g, k, 1) squared norm of each row.
        products: of each row with the means.
    """
    exact = "donot_use_mm_for_euclid_dist"
    further = torch.cdist(products.rows, products.means.mT, compute_mode=exact).square()
    distance = square - 2 * products.inner + products.square + further
    nearest: Tensor = distance.masked_fill(products.gone, torch.inf).min(dim=2).values
    return nearest.masked_fill(nearest.isinf(), torch.nan)


def within_scatter(gram: Tensor, class_sums: Tensor) -> Tensor:
    """Return ``Σ ω zzᵀ − Σ_c n_c μ_c μ_cᵀ`` (d, d), from sums over ``x̃ = [1; z]``.

    Args:
        gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
        class_sums: (C, d+1) ``Σ_{y=c} ω x̃`` of every class that has rows in ``gram``.
    """
    weight = class_sums[:, :1]
    sums = class_sums[:, 1:]
    return gram[1:, 1:] - sums.T @ (sums / weight)
