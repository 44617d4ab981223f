"""Ridge regression and the discriminant of the same sums, by one Cholesky factorisation.

With the centred Gram matrix G, class means μ_c and weights n_c, the scatter within classes is ``S =
G − EᵀE``, E the rows ``√n_c (μ_c − μ)``. With ``S + λI = LLᵀ`` and ``Ê = EL⁻ᵀ`` ridge regression
needs ``(G + λI)⁻¹Eᵀ = L⁻ᵀÊᵀ(I + ÊÊᵀ)⁻¹`` (Woodbury), a further system of as many equations as there
are classes: both rules lie in the same directions (Hastie, Tibshirani and Buja, 1994).
"""

from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from cifnet_pl.statistics.leaving_out import LearnedRows, LeftOut, ScatteredRows
from cifnet_pl.statistics.ridge import factorise, gcv_ridge, whiten


class RidgeSystem:
    """The sums of a head, centred, and the targets of ridge regression.

    The targets are ``mean_c + scale_c·(1[y = c] − n_c/n)`` in the column of class c.

    Args:
        gram: (p+1, p+1) ``Σ ω x̃x̃ᵀ`` of all rows, with ``x̃ = [1; x]``; overwritten.
        class_sums: (C, p+1) ``Σ_{y=c} ω x̃`` of the classes.
        removed_sums: (R, p+1) the same of classes that were removed.
        samples: number of distinct rows.
        limit: the target of a positive, where that of a negative is its opposite (the paper's).
            None for targets that are larger for rare classes, so that all columns have about the
            same length (Ye, 2007), and for features that are scaled: the penalty of a feature is
            the mean of 1 and its variance within classes, relative to the mean variance. That is
            half-way between the two usual targets of shrinkage, equal and unequal variances
            (Schäfer and Strimmer, 2005). Features are divided by its square root.

    Attributes:
        factors: (p,) by which features are multiplied.
        spread: (C + R, p) rows E.
        target_scale: (C,).
        target_mean: (C,).
        target_length: (C,) ``scale_c √n_c``, by which a row of E gives the moment of a class.
    """

    def __init__(
        self,
        gram: Tensor,
        class_sums: Tensor,
        removed_sums: Tensor,
        samples: int,
        limit: float | None,
    ):
        self.mass = gram[0, 0].double()
        self.mean = gram[0, 1:] / gram[0, 0]
        self.gram = gram[1:, 1:].addr_(self.mean, self.mean, alpha=-float(self.mass))
        self.classes = len(class_sums)
        self.samples = samples
        sums = torch.cat([class_sums, removed_sums])
        root = sums[:, :1].sqrt()
        self.class_mass = class_sums[:, 0].double()
        self.spread = sums[:, 1:] / root - root * self.mean
        if limit is not None:
            self.factors = torch.ones_like(self.mean)
            self.target_scale = torch.full_like(self.class_mass, 2 * limit)
            self.target_mean = limit * (2 * self.class_mass / self.mass - 1)
        else:
            self.factors = self._penalty().rsqrt()
            self.gram *= self.factors
            self.gram *= self.factors[:, None]
            self.spread = self.spread * self.factors
            self.target_scale = (self.mass / self.class_mass).sqrt()
            self.target_mean = torch.zeros_like(self.class_mass)
        self.target_length = self.target_scale * self.class_mass.sqrt()

    def _penalty(self) -> Tensor:
        """Return the penalty (p,) of each feature, relative to λ: ``D = ½(1 + diag(S)/mean)``."""
        total = self.gram.diagonal()
        between = self.spread.square().sum(dim=0)
        variance = (total - between).clamp_min(0)
        smallest = torch.finfo(variance.dtype).tiny
        mean = variance.mean().clamp_min(smallest)
        return (1 + variance / mean) / 2

    def choose_ridge(self, width: int) -> float:
        """Return the ridge of generalised cross-validation for the first ``width`` features."""
        gram = self.gram[:width, :width]
        spread = self.spread[: self.classes, :width]
        length = self.target_length.to(spread)
        moment = spread.T * length
        share = self.class_mass / self.mass
        squares = self.target_length.square() * (1 - share)
        tss = squares.sum().to(moment)
        return gcv_ridge(gram, moment, tss, self.samples, free=1)


class RidgeFactor:
    """Factorisation at one ridge λ, used by both decision rules.

    Args:
        system: the sums.
        ridge: λ.

    Raises:
        CifnetError: the scatter within classes plus λ is not positive definite.
    """

    def __init__(self, system: RidgeSystem, ridge: float):
        self.system = system
        self.ridge = ridge
        spread = system.spread.double()
        within = system.gram.double() - spread.T @ spread
        penalty = torch.tensor(ridge, dtype=torch.float64, device=spread.device)
        self.factor = factorise(within, penalty)
        self.spread = whiten(self.factor, spread)  # Ê
        own = self.spread[: system.classes]
        self.means = own / system.class_mass.sqrt()[:, None]  # L⁻¹(μ_c − μ)

    def whitened(self, x: Tensor) -> Tensor:
        """Return rows ``L⁻¹(x − μ)`` of features x (m, p)."""
        system = self.system
        scaled = system.factors * (x - system.mean)
        return whiten(self.factor, scaled.double())

    @cached_property
    def regression_directions(self) -> Tensor:
        """(C, p) whitened weights of ridge regression."""
        system = self.system
        solved = torch.cholesky_solve(self.spread, self._inner_factor)
        own = solved[: system.classes]
        return system.target_length[:, None] * own

    @cached_property
    def _inner_factor(self) -> Tensor:
        """(C + R, C + R) lower Cholesky factor of ``I + ÊÊᵀ``."""
        between = self.spread @ self.spread.T
        return factorise(between, torch.ones_like(self.system.mass))

    def regression_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of ridge regression, the bias in row 0."""
        return self._weights(self.regression_directions, self.system.target_mean)

    def discriminant_weights(self) -> Tensor:
        """Return (p+1, C) weights of ``[1; x]`` of the discriminant, the bias in row 0.

        ``n (x − μ)ᵀ(S + λI)⁻¹(μ_c − μ) − ½ n (μ_c − μ)ᵀ(S + λI)⁻¹(μ_c − μ) + df/(2n_c)``: equal
        priors, and a mean of n_c rows is too long by ``df/n_c`` on average.
        """
        system = self.system
        excess_length = self.degrees_of_freedom / system.class_mass
        mean_squares = self.means.square().sum(dim=1)
        bias = excess_length - system.mass * mean_squares
        return self._weights(system.mass * self.means, bias / 2)

    def _weights(self, whitened: Tensor, centre: Tensor) -> Tensor:
        """Return weights of ``[1; x]`` from whitened directions (C, p) and scores (C,) of μ."""
        # L⁻ᵀ of each row.
        upper = self.factor.T
        solved = torch.linalg.solve_triangular(upper, whitened.T, upper=True)
        directions = self.system.factors * solved.T
        bias = centre - directions @ self.system.mean.double()
        # Row-major, as after loading: products round differently otherwise.
        return torch.cat([bias[:, None], directions], dim=1).T.contiguous()

    @cached_property
    def degrees_of_freedom(self) -> float:
        """Degrees of freedom ``tr (S + λI)⁻¹S`` of the discriminant."""
        inverse = torch.cholesky_inverse(self.factor)
        trace_of_inverse = float(inverse.trace())
        return len(inverse) - self.ridge * trace_of_inverse

    def discriminant_left_out(self, rows: Tensor, columns: Tensor) -> LeftOut:
        """Prepare the scores of the discriminant for learned rows without their groups.

        μ and df stay those of all rows, as λ and D do. μ moves the scores of all classes alike.

        Args:
            rows: (m, p) :meth:`whitened`, each of weight 1 in the sums.
            columns: (m,) int64 class of each.
        """
        mass = self.system.mass
        freedom = self.degrees_of_freedom
        scattered = ScatteredRows(rows, self.means, columns, self.system.class_mass)

        return partial(scattered.discriminant, mass=mass, freedom=freedom)

    def regression_left_out(self, rows: Tensor, columns: Tensor) -> LeftOut:
        """Prepare the scores of ridge regression for learned rows without their groups.

        The hat matrix is ``1/n + R(I + ÊᵀÊ)⁻¹Rᵀ = 1/n + RRᵀ − MMᵀ`` with ``MMᵀ = RÊᵀ(I +
        ÊÊᵀ)⁻¹ÊRᵀ`` (Woodbury).

        Args:
            rows: (m, p) R, :meth:`whitened`, each of weight 1 in the sums.
            columns: (m,) int64 class of each.
        """
        system = self.system
        own_class = one_hot(columns, system.classes)
        share = system.class_mass / system.mass
        targets = system.target_mean + system.target_scale * (own_class - share)
        projected = rows @ self.regression_directions.T
        scores = system.target_mean + projected
        towards_spread = rows @ self.spread.T
        between = whiten(self._inner_factor, towards_spread)
        ones = rows.new_ones(len(rows), 1)
        bias = ones / system.mass.sqrt()
        design = torch.cat([bias, rows], dim=1)
        learned = LearnedRows(design, between)
        return partial(learned.scores, scores, targets)
