"""Mahalanobis distances to class means, and linear discriminants, from sums.

Both also give the scores of learned rows as if the row, or its group, had not been learned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.leaving_out import ROUNDING, equal_groups
from cifnet_pl.statistics.solving import factorise


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

    They are those without the group. ``inner`` and ``square`` have the scatter of all rows. For the
    rows that are left out, the inner product of further coordinates of a and of b is added to each.

    Attributes:
        inner: (g, k, C) of each row with each mean.
        square: (g, 1, C) of each mean with itself.
        rows: (g, k, k) further coordinates of each row.
        means: (g, k, C) further coordinates of each mean.
        remaining: (g, 1, C) weight of the other rows of each class; zero for one that has none.
        turn: (g, k, k) further coordinates of each row's difference from the mean of its class.
    """

    inner: Tensor
    square: Tensor
    rows: Tensor
    means: Tensor
    remaining: Tensor
    turn: Tensor

    @property
    def gone(self) -> Tensor:
        """(g, 1, C) bool, which classes have no other row."""
        return self.remaining == 0


class Removable:
    """Learned rows that can be left out of a scatter within classes and of the class means.

    With ``S + λI = LLᵀ`` all inner products are those of ``L⁻¹x``. Without k rows of class c, each
    of weight 1, and ``v = z − μ_c``, the scatter loses ``Σ vvᵀ + ssᵀ/(n_c − k)`` with ``s = Σ v``,
    and the mean loses ``s/(n_c − k)``. So it loses ``VᵀDV`` with V the rows v, and products grow by
    ``aᵀVᵀ(D⁻¹ − VVᵀ)⁻¹Vb`` (Woodbury; Sherman and Morrison where one is left out): a system of as
    many equations as the group has rows. λ stays the same.

    Args:
        factor: (p, p) L.
        means: (C, p) of the classes.
        class_mass: (C,) n_c.
        x: (n, p) the rows.
        columns: (n,) int64 class of each.
    """

    def __init__(
        self,
        factor: Tensor,
        means: Tensor,
        class_mass: Tensor,
        x: Tensor,
        columns: Tensor,
    ):
        self.factor = factor
        self.class_mass = class_mass
        self.columns = columns
        self.means = self.half(means)
        self.away = self.half(x - means[columns])
        self.along = self.away @ self.means.T
        self.square = self.means.square().sum(dim=1)

    def half(self, x: Tensor) -> Tensor:
        """Return ``L⁻¹x`` for rows x (n, p)."""
        half: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False)
        return half.T

    def without(self, rows: Tensor, q: Tensor) -> InnerProducts:
        """Return the products of some rows with the class means, without all rows of their group.

        Args:
            rows: (g, k) positions of the rows of g groups of k.
            q: (g, k, p) what is compared with the means, as ``L⁻¹q``.
        """
        away = self.away[rows]
        own = torch.nn.functional.one_hot(self.columns[rows], len(self.means)).to(
            away
        )  # (g, k, C)
        remaining = self.class_mass - own.sum(dim=1)
        gone = remaining <= ROUNDING * self.class_mass
        shift = (
            own / remaining.masked_fill(gone, torch.inf)[:, None]
        )  # zero for other classes
        lost = torch.eye(rows.shape[1]).to(own) + own @ shift.mT  # D
        root = torch.linalg.cholesky(lost)
        products = away @ away.mT
        values, vectors = torch.linalg.eigh(root.mT @ products @ root)
        gap = (1 - values).clamp_min(ROUNDING)
        turn = (root @ vectors / gap.sqrt()[:, None]).mT
        moved = products @ shift  # products of the rows with what each mean loses
        along = self.along[rows]
        square = self.square + (shift * (moved - 2 * along)).sum(dim=1)
        to_rows = q @ away.mT
        inner = q @ self.means.T - to_rows @ shift
        remaining = remaining.masked_fill(gone, 0.0)[:, None]
        return InnerProducts(
            inner,
            square[:, None],
            to_rows @ turn.mT,
            turn @ (along - moved),
            remaining,
            turn,
        )


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
        near = Removable(self.within_factor, self.means, class_weights, away, columns)
        one_class = torch.zeros_like(columns)
        no_mean = away.new_zeros(1, x.shape[1])
        overall = Removable(
            self.total_factor, no_mean, weights.sum()[None], away, one_class
        )
        return self._left_out(x, near, groups), self._left_out(x, overall, groups)

    def _left_out(
        self, x: Tensor, removable: Removable, groups: Tensor | None
    ) -> Tensor:
        """Return (n,) distance of each row to the nearest mean without the rows of its group."""
        moments = self.moments
        squares = x.square().sum(dim=1)
        direction = removable.half(torch.nn.functional.normalize(x, dim=1))
        centre = removable.half(self.centre[None])
        distances = x.new_empty(len(x))
        for rows in equal_groups(groups, len(x)):
            mass = moments.mass - rows.shape[1]
            mass = mass.masked_fill(mass <= ROUNDING * moments.mass, torch.nan)
            square = (moments.square - squares[rows].sum(dim=1)).clamp_min(0)
            length = (square[:, None] / mass).sqrt().nan_to_num()
            q = length[..., None] * direction[rows] - centre
            distances[rows] = mass * _nearest(q, removable.without(rows, q))
        return distances


def _nearest(q: Tensor, products: InnerProducts) -> Tensor:
    """Return (g, k) squared distance of each row to the nearest class mean; NaN without classes."""
    exact = "donot_use_mm_for_euclid_dist"
    further = torch.cdist(products.rows, products.means.mT, compute_mode=exact).square()
    square = q.square().sum(dim=2, keepdim=True)
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


@dataclass(frozen=True)
class Discriminant:
    """``score_c(z) = zᵀΛμ_c − ½ μ_cᵀΛμ_c`` with ``Λ = ((S + λI)/n)⁻¹``, S the scatter within
    classes.

    The priors are equal. The mean of n_c rows is too long by chance: ``μ_cᵀΛμ_c`` is ``df/n_c`` too
    large on average, with ``df = tr (S + λI)⁻¹S``, so that a class of few rows is rarely predicted.
    ``unbiased`` scores correct that by half of it. Where classes are even, it is the same for all.

    Attributes:
        factor: (d, d) lower Cholesky factor of S + λI, float64 as all others.
        means: (C, d) μ.
        class_mass: (C,) n_c, the weight of each class's rows.
        mass: () n, the weight of all rows.
        ridge: λ.
        unbiased: whether ``½ df/n_c`` is added to the scores.
    """

    factor: Tensor
    means: Tensor
    class_mass: Tensor
    mass: Tensor
    ridge: float
    unbiased: bool

    @classmethod
    def from_sums(
        cls,
        within: Tensor,
        class_sums: Tensor,
        mass: Tensor,
        ridge: float,
        unbiased: bool = False,
    ) -> Discriminant:
        """Factorise, in float64.

        Args:
            within: (d, d) scatter within classes, see :func:`within_scatter`.
            class_sums: (C, d+1) ``Σ_{y=c} ω [1; z]`` of the classes to tell apart.
            mass: () total weight of all rows.
            ridge: λ, added to the scatter.
            unbiased: whether the length of the means is corrected.

        Raises:
            CifnetError: the sum is not positive definite.
        """
        sums = class_sums.double()
        factor = factorise(
            within.double(),
            torch.tensor(ridge, dtype=torch.float64, device=within.device),
        )
        return cls(
            factor,
            sums[:, 1:] / sums[:, :1],
            sums[:, 0],
            mass.double(),
            ridge,
            unbiased,
        )

    def weights(self) -> Tensor:
        """Return (d+1, C) weights of ``[1; z]``, the bias in row 0."""
        direction = self.mass * torch.cholesky_solve(self.means.T, self.factor)
        bias = -0.5 * (self.means.T * direction).sum(dim=0)
        if self.unbiased:
            bias = bias + self.freedom / (2 * self.class_mass)
        return torch.cat([bias[None], direction])

    @cached_property
    def freedom(self) -> Tensor:
        """() ``tr (S + λI)⁻¹S``."""
        width = len(self.factor)
        identity = torch.eye(width).to(self.factor)
        inverse = torch.linalg.solve_triangular(self.factor, identity, upper=False)
        freedom: Tensor = width - self.ridge * inverse.square().sum()
        return freedom

    def leaving_out(
        self, z: Tensor, columns: Tensor
    ) -> Callable[[Tensor | None], Tensor]:
        """Prepare the scores of learned rows, each without itself or its group, at the same λ.

        Args:
            z: (n, d) rows that are in the sums, each of weight 1.
            columns: (n,) int64 class of each.

        Returns:
            Function from the number of each row's group (n,) int64, or None where each is its own,
            to scores (n, C); NaN for a class that had no other row.
        """
        removable = Removable(
            self.factor, self.means, self.class_mass, z.double(), columns
        )
        half = removable.away + removable.means[columns]
        if self.unbiased:
            freedom = self.freedom
            further = torch.linalg.solve_triangular(
                self.factor, removable.away, left=False, upper=False
            )

        def left_out(groups: Tensor | None) -> Tensor:
            result = half.new_empty(len(z), len(self.means))
            for rows in equal_groups(groups, len(z)):
                p = removable.without(rows, half[rows])
                inner = p.inner + p.rows @ p.means
                square = p.square + p.means.square().sum(dim=1, keepdim=True)
                score = (self.mass - rows.shape[1]) * (inner - square / 2)
                if (
                    self.unbiased
                ):  # the trace of the inverse grows by that of what is added to it
                    lost = self.ridge * (p.turn @ further[rows]).square().sum(
                        dim=(1, 2)
                    )
                    score = score + (freedom - lost)[:, None, None] / (2 * p.remaining)
                result[rows] = score.masked_fill(p.gone, torch.nan)
            return result

        return left_out
