"""Ridge regression and the discriminant of the same sums, by one Cholesky factorisation.

With the centred Gram matrix G_c, group means μ_g and weights n_g, the scatter within groups is
``S = G_c − Σ n_g (μ_g − μ)(μ_g − μ)ᵀ``. So with ``G_c + λI = LLᵀ`` and E the matrix of the columns
``√n_g L⁻¹(μ_g − μ)``,

    xᵀ(S + λI)⁻¹y = (L⁻¹x)ᵀ(L⁻¹y) + (R⁻¹EᵀL⁻¹x)ᵀ(R⁻¹EᵀL⁻¹y)        with RRᵀ = I − EᵀE

(Woodbury): the factor of ridge regression serves the discriminant, too, with as many further
coordinates as there are groups. For p features, m rows and C classes it costs

* p³/3 operations for L, p³/3 more for the degrees of freedom;
* p²m for ``L⁻¹x`` of m rows, and as much for the change of the degrees of freedom;
* pm·(m/C) for the inner products of rows of one class. Whatever is asked then, of any groups of
  rows, has the size of the groups.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from cifnet_pl.statistics.distances import InnerProducts, Removable
from cifnet_pl.statistics.leaving_out import RowProducts, left_out_by_products
from cifnet_pl.statistics.ridge import Centred
from cifnet_pl.statistics.solving import factorise
from cifnet_pl.statistics.targets import signed_targets

COLUMNS_PER_STEP = 512
"""Columns of an inverse that are computed at a time."""


class RidgeSystem:
    """The sums of a head, centred.

    Args:
        gram: (p+1, p+1) ``Σ ω x̃x̃ᵀ`` of all rows, with ``x̃ = [1; x]``.
        class_sums: (C, p+1) ``Σ_{y=c} ω x̃`` of the classes.
        removed_sums: (R, p+1) the same of classes that were removed.
        samples: number of distinct rows.
        limit: target of a positive; that of a negative is ``−limit``.
    """

    def __init__(
        self,
        gram: Tensor,
        class_sums: Tensor,
        removed_sums: Tensor,
        samples: int,
        limit: float,
    ):
        self.mass = gram[0, 0]
        self.mean = gram[0, 1:] / self.mass
        self.gram = gram[1:, 1:] - self.mass * torch.outer(self.mean, self.mean)
        sums = torch.cat([class_sums, removed_sums])
        self.group_mass = sums[:, 0]
        self.deviations = sums[:, 1:] - self.group_mass[:, None] * self.mean
        self.classes = len(class_sums)
        self.samples = samples
        self.limit = limit

    @property
    def class_mass(self) -> Tensor:
        """(C,) weight of each class."""
        return self.group_mass[: self.classes]

    @property
    def target_mean(self) -> Tensor:
        """(C,) mean of the targets of each class."""
        return self.limit * (2 * self.class_mass / self.mass - 1)

    def regression(self, width: int | None = None) -> Centred:
        """Return the regression on the first ``width`` features, or on all of them."""
        target_mean = self.target_mean
        square = self.limit**2 * self.mass * self.classes
        energy = square - self.mass * target_mean.square().sum()
        moment = 2 * self.limit * self.deviations[: self.classes, :width].T
        gram = self.gram[:width, :width]
        mean = self.mean[:width]
        return Centred(gram, moment, mean, target_mean, energy, self.samples)


class RidgeFactor:
    """Factorisation at one ridge λ, used by both decision rules.

    Args:
        system: the sums.
        ridge: λ.

    Raises:
        CifnetError: the centred Gram matrix plus λ is not positive definite.
    """

    def __init__(self, system: RidgeSystem, ridge: float):
        self.system = system
        self.ridge = ridge
        self.mass = system.mass.double()
        self.class_mass = system.class_mass.double()
        penalty = torch.tensor(ridge, dtype=torch.float64, device=system.gram.device)
        self.factor = factorise(system.gram.double(), penalty)
        group_mass = system.group_mass.double()
        deviations = system.deviations.double() / group_mass.sqrt()[:, None]
        self.spread = self._solved(deviations).T  # E
        self.mean = self._solved(system.mean.double()[None])[0]
        # (C, p) L⁻¹μ_c
        own_spread = self.spread[:, : system.classes].T
        self.means = own_spread / self.class_mass.sqrt()[:, None] + self.mean

    def _solved(self, x: Tensor) -> Tensor:
        """Return ``L⁻¹x`` for rows x (n, p)."""
        half: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False)
        return half.T

    def _solved_back(self, half: Tensor) -> Tensor:
        """Return ``L⁻ᵀx`` for rows x (n, p)."""
        back: Tensor = torch.linalg.solve_triangular(self.factor.T, half.T, upper=True)
        return back.T

    @cached_property
    def root(self) -> Tensor:
        """(G, G) lower R."""
        gram = -self.spread.T @ self.spread
        return factorise(gram, torch.ones_like(self.mass), overwrite=True)

    def further(self, half: Tensor) -> Tensor:
        """Return the further coordinates (n, G) of rows ``L⁻¹x`` (n, p) for the discriminant."""
        further: Tensor = torch.linalg.solve_triangular(
            self.root, self.spread.T @ half.T, upper=False
        )
        return further.T

    def within_solved(self, half: Tensor, further: Tensor) -> Tensor:
        """Return ``(S + λI)⁻¹x`` (n, p) for rows with these coordinates."""
        correction = torch.linalg.solve_triangular(self.root.T, further.T, upper=True)
        return self._solved_back(half + (self.spread @ correction).T)

    @cached_property
    def moment(self) -> Tensor:
        """(p, C) ``L⁻¹Q_c``."""
        own_spread = self.spread[:, : self.system.classes]
        return 2 * self.system.limit * own_spread * self.class_mass.sqrt()

    def regression_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of ridge regression, the bias in row 0."""
        weights = self._solved_back(self.moment.T).T
        bias = self.system.target_mean - self.system.mean.double() @ weights
        return torch.cat([bias[None], weights])

    def discriminant_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of the discriminant, the bias in row 0."""
        further = self.further(self.means)
        direction = self.mass * self.within_solved(self.means, further).T
        square = (self.means.square().sum(dim=1) + further.square().sum(dim=1)) / 2
        bias = self.freedom / (2 * self.class_mass) - self.mass * square
        return torch.cat([bias[None], direction])

    @cached_property
    def freedom(self) -> Tensor:
        """() ``tr (S + λI)⁻¹S``."""
        width = len(self.factor)
        square = torch.zeros_like(self.mass)
        for start in range(0, width, COLUMNS_PER_STEP):
            lower = self.factor[start:, start:]
            columns = min(COLUMNS_PER_STEP, width - start)
            identity = torch.eye(
                width - start, columns, dtype=lower.dtype, device=lower.device
            )
            inverse = torch.linalg.solve_triangular(lower, identity, upper=False)
            projected = self.spread[start:].T @ inverse
            further = torch.linalg.solve_triangular(self.root, projected, upper=False)
            square += inverse.square().sum() + further.square().sum()
        return width - self.ridge * square


class LearnedRows:
    """Rows that are in the sums of a :class:`RidgeFactor`, each of weight 1, to be left out.

    Args:
        factor: of these sums.
        x: (m, p) features of the rows.
        columns: (m,) int64 class of each.
    """

    def __init__(self, factor: RidgeFactor, x: Tensor, columns: Tensor):
        self.factor = factor
        self.columns = columns
        self.half = factor._solved(x.double())

    @cached_property
    def _regression(self) -> tuple[Tensor, RowProducts]:
        centred = self.half - self.factor.mean
        scores = centred @ self.factor.moment + self.factor.system.target_mean
        bias = centred.new_ones(len(centred), 1) / self.factor.mass.sqrt()
        rows = torch.cat([bias, centred], dim=1)
        return scores, RowProducts(rows, self.columns)

    def regression(self, groups: Tensor | None) -> Tensor:
        """Return (m, C) leave-one-group-out scores of ridge regression."""
        scores, products = self._regression
        system = self.factor.system
        targets = signed_targets(self.columns, system.classes, system.limit)
        return left_out_by_products(scores, products, targets, groups)

    @cached_property
    def _removable(self) -> Removable:
        factor = self.factor
        rows = torch.cat([self.half, factor.further(self.half)], dim=1)
        means = torch.cat([factor.means, factor.further(factor.means)], dim=1)
        away = rows - means[self.columns]
        return Removable(away, means, factor.class_mass, self.columns)

    @cached_property
    def _within_solved(self) -> RowProducts:
        """Inner products of ``(S + λI)⁻¹v`` of the rows' differences v from their means."""
        away = self._removable.away
        width = self.half.shape[1]
        solved = self.factor.within_solved(away[:, :width], away[:, width:])
        return RowProducts(solved, self.columns)

    def discriminant(self, groups: Tensor | None, exact: bool = True) -> Tensor:
        """Return (m, C) leave-one-group-out scores of the discriminant.

        They are NaN for a class that had no other row.

        Args:
            groups: (m,) int64 group of each row; None where each is its own.
            exact: whether the length of the means is corrected. Of classes with as many rows each
                it changes little, and costs p³/3 + p²m operations.
        """
        if not exact:
            return self._removable.discriminant(self.factor.mass, groups)
        factor = self.factor

        def freedom(rows: Tensor, products: InnerProducts) -> Tensor:
            # The trace of the inverse grows by that of what is added to it.
            turn = products.turn
            added = turn @ self._within_solved.among(rows) * turn
            return factor.freedom - factor.ridge * added.sum(dim=(1, 2))

        return self._removable.discriminant(factor.mass, groups, freedom)
