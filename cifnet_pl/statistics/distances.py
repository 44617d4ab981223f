"""Mahalanobis distances to class means from sums, also without learned rows."""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.statistics.leaving_out import ROUNDING, ScatteredRows
from cifnet_pl.statistics.ridge import factorise, whiten

NOVELTY_RIDGE = 3.0
"""λ of the novelty score, as a share of the mean eigenvalue of the scatter within classes.

Chosen by the mean AUROC of four pairs of sets (``docs/studies/unknowns.md``).
"""

OVERALL_SHARE = 0.5
"""Share of the distance to the mean of all that is subtracted: 0 plain, 1 relative distance.

Mean AUROC of four pairs of sets: 87.3 with a half, 85.8 with 0, 80.7 with 1
(``docs/studies/unknowns.md``)."""


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
        gram: (p+1, p+1) ``Σ ω x̃x̃ᵀ`` of the rows that were learned, with ``x̃ = [1; x]``.
        class_sums: (C, p+1) ``Σ_{y=c} ω x̃`` of the classes. Rows that belong to none of them, as
            those of a removed class, are a group of their own.
        mass: () ``Σ ω`` over the rows that the scatter within groups is made of.

    Attributes:
        overall: share of the distance to the mean of all rows that is subtracted.
    """

    overall: float = OVERALL_SHARE

    def __init__(self, gram: Tensor, class_sums: Tensor, mass: Tensor):
        self.mass = mass.double()
        eps = torch.finfo(gram.dtype).eps
        gram = gram.double()
        sums = class_sums.double()
        classes = len(sums)
        self.class_mass = sums[:, 0]
        rest = gram[:1] - sums.sum(dim=0)
        # What is left of sums that were subtracted again is rounding, and no group.
        if rest[0, 0] > 10 * max(eps, ROUNDING) * self.mass:
            sums = torch.cat([sums, rest])
        weights, sums = sums.tensor_split([1], dim=1)
        gram = gram[1:, 1:]
        self.weight = weights.sum()
        self.centre = sums.sum(dim=0) / self.weight
        self.square = gram.trace()  # Σ ω ‖x‖²
        self.length = (self.square / self.mass).sqrt()
        group_means = sums / weights
        self.means = group_means[:classes] - self.centre
        between = sums.T @ group_means
        within = gram - between
        of_centre = self.weight * torch.outer(self.centre, self.centre)
        total = gram - of_centre
        tiny = torch.finfo(torch.float64).tiny
        rounding = 10 * eps * self.square
        smallest = rounding.clamp_min(tiny)
        ridge = NOVELTY_RIDGE * within.diagonal().mean()
        if ridge <= smallest:  # every class is a single point
            ridge = NOVELTY_RIDGE * total.diagonal().mean()
        ridge = torch.maximum(ridge, smallest)
        self.within_factor = factorise(within, ridge)
        self.total_factor = factorise(total, ridge)

    @cached_property
    def relative(self) -> Callable[[Tensor], Tensor]:
        """Function from rows (n, p) to ``near(x) − overall·overall(x)`` (n,).

        It takes one product with a (p, p) matrix.
        """
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
            return self.mass * (square + nearest)

        return relative_distance

    def left_out(self, x: Tensor, columns: Tensor, groups: Tensor) -> Tensor:
        """Return the relative distance of learned rows, each without itself or its group.

        Args:
            x: (n, p), each of weight 1 in the sums.
            columns: (n,) class of each.
            groups: (n,) int64 number of each row's group.

        Returns:
            (n,) float64; NaN where no row of the class is left, or none at all.
        """
        x = x.double()
        mass = self.class_mass
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
        groups: Tensor,
    ) -> Tensor:
        """Return (n,) distance of each row to the nearest mean without the rows of its group."""
        total = self.mass
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
        distance = torch.empty_like(squares)
        for found in scattered.distances(groups, stretched):
            nearest = found.square.min(dim=2).values
            rows_left = total - found.members.shape[1]
            distance[found.members] = rows_left * nearest
        return distance
