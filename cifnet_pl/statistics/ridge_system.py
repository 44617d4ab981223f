"""Ridge regression and the discriminant of the same sums, by one Cholesky factorisation.

With the centred Gram matrix G_c, group means μ_g and weights n_g, the scatter within groups is
``S = G_c − Σ n_g (μ_g − μ)(μ_g − μ)ᵀ``. So with ``G_c + λI = LLᵀ`` and E the matrix of the columns
``√n_g L⁻¹(μ_g − μ)``,

    xᵀ(S + λI)⁻¹y = (L⁻¹x)ᵀ(L⁻¹y) + (R⁻¹EᵀL⁻¹x)ᵀ(R⁻¹EᵀL⁻¹y)        with RRᵀ = I − EᵀE

(Woodbury): the factor of ridge regression serves the discriminant, too, with as many more
coordinates, the Woodbury coordinates, as there are groups. For p features, m rows and C classes it
costs

* p³/3 operations for L, p³/3 more for the degrees of freedom;
* p²m for the whitened rows ``L⁻¹x`` of m rows;
* pm·(m/C) for the inner products of rows of one class. Whatever is asked then, of any groups of
  rows, has the size of the groups.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.distances import Removable
from cifnet_pl.statistics.leaving_out import (
    ClassBlocks,
    Products,
    RowProducts,
    left_out_by_products,
)
from cifnet_pl.statistics.ridge import Centred
from cifnet_pl.statistics.solving import factorise, solve_back, whiten
from cifnet_pl.statistics.targets import signed_targets

WIDTH_TO_INVERT = 256
"""Width up to which a triangular matrix is inverted in one step."""


class RidgeSystem:
    """The sums of a head, centred.

    Args:
        gram: (p+1, p+1) ``Σ ω x̃x̃ᵀ`` of all rows, with ``x̃ = [1; x]``; overwritten.
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
        self.gram = gram[1:, 1:].addr_(self.mean, self.mean, alpha=-float(self.mass))
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
        tss = square - self.mass * target_mean.square().sum()
        moment = 2 * self.limit * self.deviations[: self.classes, :width].T
        gram = self.gram[:width, :width]
        mean = self.mean[:width]
        return Centred(gram, moment, mean, target_mean, tss, self.samples)


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
        self.spread = whiten(self.factor, deviations).T  # E
        self.mean = whiten(self.factor, system.mean.double()[None])[0]
        # (C, p) L⁻¹μ_c
        own_spread = self.spread[:, : system.classes].T
        self.means = own_spread / self.class_mass.sqrt()[:, None] + self.mean

    @cached_property
    def root(self) -> Tensor:
        """(G, G) lower R."""
        gram = -self.spread.T @ self.spread
        return factorise(gram, torch.ones_like(self.mass))

    def coordinates(self, whitened: Tensor) -> Tensor:
        """Return the Woodbury coordinates (n, G) ``R⁻¹EᵀL⁻¹x`` of rows ``L⁻¹x`` (n, p)."""
        return whiten(self.root, whitened @ self.spread)

    @cached_property
    def mean_coordinates(self) -> Tensor:
        """(C, G) Woodbury coordinates of the class means."""
        return self.coordinates(self.means)

    @cached_property
    def moment(self) -> Tensor:
        """(p, C) ``L⁻¹Q_c``."""
        own_spread = self.spread[:, : self.system.classes]
        return 2 * self.system.limit * own_spread * self.class_mass.sqrt()

    def regression_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of ridge regression, the bias in row 0."""
        weights = solve_back(self.factor, self.moment.T).T
        bias = self.system.target_mean - self.system.mean.double() @ weights
        return torch.cat([bias[None], weights])

    def discriminant_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of the discriminant, the bias in row 0."""
        coordinates = self.mean_coordinates
        correction = solve_back(self.root, coordinates) @ self.spread.T
        direction = self.mass * solve_back(self.factor, self.means + correction).T
        rows = torch.cat([self.means, coordinates], dim=1)
        square = rows.square().sum(dim=1) / 2
        bias = self.degrees_of_freedom / (2 * self.class_mass) - self.mass * square
        return torch.cat([bias[None], direction])

    @cached_property
    def degrees_of_freedom(self) -> Tensor:
        """() degrees of freedom ``tr (S + λI)⁻¹S`` of the discriminant."""
        # tr (S + λI)⁻¹ = ‖L⁻¹‖² + ‖L⁻ᵀER⁻ᵀ‖²
        solved = solve_back(self.factor, self.spread.T)
        correction = whiten(self.root, solved.T)
        trace = inverse_square(self.factor) + squared_norm(correction)
        degrees_of_freedom: Tensor = len(self.factor) - self.ridge * trace
        return degrees_of_freedom


def inverse_square(factor: Tensor) -> Tensor:
    """Return the squared Frobenius norm () of the inverse of a lower triangular matrix (p, p).

    By halves, with ``L = [[A, 0], [B, C]]``: the inverse has the blocks ``A⁻¹``, ``C⁻¹`` and
    ``−C⁻¹BA⁻¹``. It takes p³/3 operations.
    """
    width = len(factor)
    if width <= WIDTH_TO_INVERT:
        identity = torch.eye(width, dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor, identity, upper=False)
        return squared_norm(inverse)
    half = width // 2
    first = factor[:half, :half]
    last = factor[half:, half:]
    below = torch.linalg.solve_triangular(last, factor[half:, :half], upper=False)
    below = torch.linalg.solve_triangular(first, below, upper=False, left=False)
    return inverse_square(first) + inverse_square(last) + squared_norm(below)


def squared_norm(matrix: Tensor) -> Tensor:
    """Return the squared Frobenius norm ()."""
    norm: Tensor = matrix.square().sum()
    return norm


class RowsToRegress(NamedTuple):
    """What leave-one-group-out scores of ridge regression are computed from, on the CPU.

    Attributes:
        scores: (m, C) of all rows, which were learned.
        products: of the rows.
        targets: (m, C).
    """

    scores: Tensor
    products: Products
    targets: Tensor


class ProductsFromPoints(NamedTuple):
    """Inner products of rows, each less a point.

    Attributes:
        parts: products whose sum is that of the rows themselves.
        along: (m, P) products of each row with each point.
        squares: (P, P) products of the points.
        points: (m,) int64 point of each row.
    """

    parts: tuple[Products, ...]
    along: Tensor
    squares: Tensor
    points: Tensor

    def among(self, rows: Tensor) -> Tensor:
        """Return (g, k, k) products of the rows of each of g groups of k, at positions (g, k)."""
        points = self.points[rows]
        others = points[:, None].expand(-1, rows.shape[1], -1)
        products = self.squares[points].gather(2, others)
        along = self.along[rows].gather(2, others)
        products = products - along - along.mT
        for part in self.parts:
            products = products + part.among(rows)
        return products


class LearnedRows:
    """Rows that are in the sums of a :class:`RidgeFactor`, each of weight 1, to be left out.

    What has the width of the features is computed once, on the device of the sums. The rest has the
    size of the groups, and is computed on the CPU.

    Args:
        factor: of these sums.
        whitened: (m, p) float64 rows ``L⁻¹x``.
        columns: (m,) int64 class of each.
    """

    def __init__(self, factor: RidgeFactor, whitened: Tensor, columns: Tensor):
        self.factor = factor
        self.columns = columns.cpu()
        self.device = whitened.device
        self.whitened = whitened
        self._products = self._by_class(RowProducts(whitened))

    @classmethod
    def of_features(
        cls, factor: RidgeFactor, x: Tensor, columns: Tensor
    ) -> LearnedRows:
        """Return the rows of features x (m, p), of classes ``columns`` (m,)."""
        return cls(factor, whiten(factor.factor, x.double()), columns)

    def at(self, rows: Tensor) -> LearnedRows:
        """Return some of the rows, at positions (k,) int64."""
        columns = self.columns[rows.cpu()]
        return LearnedRows(self.factor, self.whitened[rows], columns)

    def _by_class(self, products: Products) -> ClassBlocks:
        return ClassBlocks(products, self.columns)

    @cached_property
    def _regression(self) -> RowsToRegress:
        factor = self.factor
        system = factor.system
        bias = system.target_mean - factor.mean @ factor.moment
        scores = self.whitened @ factor.moment + bias
        # Products of [1/√n; L⁻¹(x − μ)], with n the total weight and μ the mean of all rows.
        along = self.whitened @ factor.mean[:, None]
        square = 1 / factor.mass + factor.mean.square().sum()
        products = ProductsFromPoints(
            (self._products,),
            along.cpu(),
            square.cpu()[None, None],
            torch.zeros_like(self.columns),
        )
        targets = signed_targets(self.columns, system.classes, system.limit)
        return RowsToRegress(scores.cpu(), self._by_class(products), targets)

    def regression(self, groups: Tensor | None) -> Tensor:
        """Return (m, C) leave-one-group-out scores of ridge regression."""
        rows = self._regression
        scores = left_out_by_products(rows.scores, rows.products, rows.targets, groups)
        return scores.to(self.device)

    @cached_property
    def _coordinates(self) -> Tensor:
        """(m, G) Woodbury coordinates of the rows."""
        return self.factor.coordinates(self.whitened)

    @cached_property
    def _removable(self) -> Removable:
        factor = self.factor
        of_means = factor.mean_coordinates
        to_means = self.whitened @ factor.means.T + self._coordinates @ of_means.T
        of_rows = to_means.cpu()
        means = (factor.means @ factor.means.T + of_means @ of_means.T).cpu()
        correction = RowProducts(self._coordinates)
        # Products of x − μ_c by (S + λI)⁻¹, with c the class of x.
        products = ProductsFromPoints(
            (self._products, self._by_class(correction)), of_rows, means, self.columns
        )
        along = of_rows - means[self.columns]
        return Removable(
            self._by_class(products), along, means, factor.class_mass, self.columns
        )

    def discriminant(self, groups: Tensor | None) -> Tensor:
        """Return (m, C) leave-one-group-out scores of the discriminant.

        They are NaN for a class that had no other row. The degrees of freedom stay those of all
        rows, as λ does; without a row they would be smaller by less than one.

        Args:
            groups: (m,) int64 group of each row; None where each is its own.
        """
        return self._discriminant(groups, float(self.factor.degrees_of_freedom))

    def uncorrected_discriminant(self, groups: Tensor | None) -> Tensor:
        """Return the scores of :meth:`discriminant` with the length of the means as it is.

        It needs no degrees of freedom. Of classes with as many rows each it changes little.
        """
        return self._discriminant(groups, 0.0)

    def _discriminant(self, groups: Tensor | None, degrees_of_freedom: float) -> Tensor:
        mass = float(self.factor.mass)
        return self._removable.discriminant(mass, groups, degrees_of_freedom).to(
            self.device
        )
