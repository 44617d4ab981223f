"""Mahalanobis distances to class means from sums, also without learned rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.statistics.leaving_out import ROUNDING, ScatteredRows
from cifnet_pl.statistics.ridge import factorise, whiten


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
        total: Tensor,
        total_weight: Tensor,
        mass: Tensor,
    ) -> ClassMoments:
        """Put the rows that belong to none of the classes into a group of their own.

        Args:
            gram: as above, any floating dtype.
            sums: (C, p) of the classes.
            weights: (C,) of the classes.
            total: (p,) ``Σ ω x`` over all rows of the Gram matrix.
            total_weight: () ``Σ ω`` over these rows.
            mass: () total weight.
        """
        rounding = torch.finfo(gram.dtype).eps
        gram = gram.double()
        sums = sums.double()
        weights = weights.double()
        mass = mass.double()
        classes = len(weights)
        rest = total.double() - sums.sum(dim=0)
        rest_weight = total_weight.double() - weights.sum()
        # What is left of sums that were subtracted again is rounding, and no group.
        smallest = 10 * max(rounding, ROUNDING) * mass
        if rest_weight > smallest:
            sums = torch.cat([sums, rest[None]])
            weights = torch.cat([weights, rest_weight[None]])
        return cls(gram, sums, weights, classes, mass, rounding)

    @classmethod
    def of_augmented(cls, gram: Tensor, sums: Tensor, mass: Tensor) -> ClassMoments:
        """Take the moments from sums over ``[1; x]``.

        Args:
            gram: (p+1, p+1).
            sums: (C, p+1) of the classes.
            mass: () total weight.
        """
        total_weight = gram[0, 0]
        total = gram[0, 1:]
        weights = sums[:, 0]
        return cls.of(gram[1:, 1:], sums[:, 1:], weights, total, total_weight, mass)


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
        overall: share of the distance to the mean of all rows that is subtracted; 0 for the
            distance to the nearest class mean alone.
    """

    def __init__(self, moments: ClassMoments, share: float, overall: float):
        self.moments = moments
        self.overall = overall
        self.weight = moments.weights.sum()
        self.centre = moments.sums.sum(dim=0) / self.weight
        self.square = moments.gram.trace()  # Σ ω ‖x‖²
        mean_square = self.square / moments.mass
        self.length = mean_square.sqrt()
        group_means = moments.sums / moments.weights[:, None]
        self.means = group_means[: moments.classes] - self.centre
        between = moments.sums.T @ group_means
        within = moments.gram - between
        of_centre = self.weight * torch.outer(self.centre, self.centre)
        total = moments.gram - of_centre
        tiny = torch.finfo(torch.float64).tiny
        rounding = 10 * moments.rounding * self.square
        smallest = rounding.clamp_min(tiny)
        ridge = share * within.diagonal().mean()
        if ridge <= smallest:  # every class is a single point
            ridge = share * total.diagonal().mean()
        self.ridge = torch.maximum(ridge, smallest)
        self.within_factor = factorise(within, self.ridge)
        self.total_factor = factorise(total, self.ridge)

    @cached_property
    def relative(self) -> Callable[[Tensor], Tensor]:
        """Function from rows (n, p) to ``near(x) − overall·overall(x)`` (n,).

        It takes one product with a (p, p) matrix.
        """
        mass = self.moments.mass
        inverse_within = torch.cholesky_inverse(self.within_factor)
        inverse_total = torch.cholesky_inverse(self.total_factor)
        inverse = inverse_within - self.overall * inverse_total
        towards_means = inverse_within @ self.means.T
        mean_squares = (self.means.T * towards_means).sum(dim=0)

        def relative_distance(x: Tensor) -> Tensor:
            direction = normalize(x.double(), dim=1)
            q = self.length * direction - self.centre
            products = q @ inverse
            square = (q * products).sum(dim=1)
            inner = q @ towards_means
            to_means = mean_squares - 2 * inner
            nearest = to_means.min(dim=1).values
            return mass * (square + nearest)

        return relative_distance

    def left_out(self, x: Tensor, columns: Tensor, groups: Tensor | None) -> Tensor:
        """Return the relative distance of learned rows, each without itself or its group.

        Args:
            x: (n, p), each of weight 1 in the sums.
            columns: (n,) class of each.
            groups: (n,) int64 number of each row's group; None where each stands alone.

        Returns:
            (n,) float64; NaN where no row of the class is left, or none at all.
        """
        x = x.double()
        mass = self.moments.weights[: self.moments.classes]
        near = self._left_out(x, self.within_factor, self.means, columns, mass, groups)
        # All rows are one class, with mean μ.
        mean = torch.zeros_like(self.means[:1])
        column = torch.zeros_like(columns)
        weight = self.weight[None]
        overall = self._left_out(x, self.total_factor, mean, column, weight, groups)
        return near - self.overall * overall

    def _left_out(
        self,
        x: Tensor,
        factor: Tensor,
        means: Tensor,
        columns: Tensor,
        mass: Tensor,
        groups: Tensor | None,
    ) -> Tensor:
        """Return (n,) distance of each row to the nearest mean without the rows of its group."""
        total = self.moments.mass
        squares = x.square().sum(dim=1)
        unit = normalize(x, dim=1)
        direction = whiten(factor, unit)
        centre = whiten(factor, self.centre[None])

        def stretched(members: Tensor) -> Tensor:
            lost = squares[members].sum(dim=1, keepdim=True)
            square_left = (self.square - lost).clamp_min(0)
            rows_left = total - members.shape[1]
            length = (square_left / rows_left).sqrt()
            return length[..., None] * direction[members] - centre

        rows = whiten(factor, x - self.centre)
        whitened_means = whiten(factor, means)
        scattered = ScatteredRows(rows, whitened_means, columns, mass)
        found = scattered.distances(groups, stretched)
        nearest = found.square.min(dim=1).values
        rows_left = total - found.left_out[:, 0]
        return rows_left * nearest
