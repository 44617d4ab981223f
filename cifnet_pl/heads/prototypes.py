"""Heads around class means: nearest class mean, and linear discriminant analysis with one shared covariance."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Dtype, Metric, check_share
from cifnet_pl.heads.shared import LinearSumsHead, SharedSumsHead
from cifnet_pl.statistics import Centred, ClassSums, Discriminant, gcv_ridge, shared_groups, solve_ridge
from cifnet_pl.statistics.spectral import spectrum
from cifnet_pl.utilities.errors import check_choice

Shrinkage = float | Literal["gcv", "oas"]
"""A share in (0, 1], or how it is chosen."""

ALMOST_ONE = 1 - 1e-9
"""A shrinkage that differs from 1 by less than rounding does, but still has a scatter."""


class NCMHead(SharedSumsHead):
    """Nearest class mean: one mean ``μ_c = Σ_{y=c} z / n_c`` for each class (Mensink et al., 2013).

    Scores: "cosine" gives the cosine between z and μ_c, "euclidean" gives ``−‖z − μ_c‖²``.

    Args:
        in_features: width d of the embeddings.
        metric: "cosine" or "euclidean".
        dtype: of the sums, "float64" or "float32".
    """

    title = "NCM"
    counterexamples = False

    def __init__(self, in_features: int, metric: Metric = "cosine", dtype: Dtype = "float64"):
        super().__init__(in_features, in_features + 1, dtype)
        check_choice("metric", metric, Metric)
        self.metric = metric

    @property
    def means(self) -> Tensor:
        """(C, d) means of the classes, in column order."""
        return class_means(self.sums)

    def _scores(self, z: Tensor) -> Tensor:
        z = z.to(self.dtype)
        if self.metric == "cosine":
            unit = torch.nn.functional.normalize(z, dim=1)
            return (unit @ torch.nn.functional.normalize(self.means, dim=1).T).double()
        means = self.means
        squares = z.square().sum(dim=1)[:, None] + means.square().sum(dim=1)
        return (2 * z @ means.T - squares).double()


class SLDAHead(LinearSumsHead):
    """Linear discriminant analysis with one covariance for all classes (streaming LDA, Hayes and Kanan, 2020).

    ``score_c = zᵀΛμ_c − ½ μ_cᵀΛμ_c`` with ``Λ = ((1−α)S + α·s·I)⁻¹``, S the covariance within classes and
    ``s = tr(S)/d``; equal priors, so the softmax of the scores is the model's posterior. The paper's streaming update
    of S depends on the order of the samples; S from sums over all data, ``Σ zzᵀ − Σ_c n_c μ_c μ_cᵀ``, does not.

    Args:
        in_features: width d of the embeddings.
        shrinkage: α in (0, 1], or chosen at every solve from the sums alone: "gcv" takes the ridge λ that generalised
            cross-validation chooses for regression on class indicators, which spans the same directions as the LDA
            with ``α/(1−α) = λ/(n·s)``; "oas" is the oracle approximating shrinkage of Chen et al. (2010).
        dtype: of the sums, "float64" or "float32".
    """

    title = "SLDA"
    leaves_one_out = True

    shrinkage_used: Tensor

    def __init__(self, in_features: int, shrinkage: Shrinkage = "gcv", dtype: Dtype = "float64"):
        super().__init__(in_features, in_features + 1, dtype)
        self.shrinkage = check_share("shrinkage", shrinkage, ("gcv", "oas"))
        self.register_buffer("shrinkage_used", torch.zeros((), dtype=torch.float64))

    def _solve(self) -> None:
        self._fold()
        means, (within, scale) = class_means(self.sums), self._covariance()
        alpha = self._choose_shrinkage(within, scale.item())
        inverse_means = solve_ridge((1 - alpha) * within, means.T, alpha * scale)
        bias = -0.5 * (means.T * inverse_means).sum(dim=0)
        self.weights = torch.cat([bias[None], inverse_means])
        self.shrinkage_used.fill_(alpha)

    def _covariance(self) -> tuple[Tensor, Tensor]:
        """Return S (d, d) and s."""
        within = self.within_scatter() / self.sums.mass
        scale = within.diagonal().mean()
        if scale <= 0:  # every class is a single point: nothing is known about directions
            return torch.zeros_like(within), torch.ones_like(scale)
        return within, scale

    def _leave_one_out(self, z: Tensor, columns: Tensor, groups: Tensor | None = None) -> Tensor:
        (within, scale), sums = self._covariance(), self.sums
        alpha = min(self.shrinkage_used.item(), ALMOST_ONE)
        ridge = alpha / (1 - alpha) * (sums.mass * scale).item()  # that of the scatter; it stays as it is
        rule = Discriminant.from_sums(sums.mass * within, sums.class_sums, sums.mass, ridge)
        rows, weight = self._rows(z), self._learned_weight(columns)
        scores = rule.left_out(rows, columns, weight)
        for group in shared_groups(groups) if groups is not None else ():
            scores[group] = rule.left_out_together(rows[group], columns[group], weight[group])
        return scores / (1 - alpha)

    def within_scatter(self) -> Tensor:
        """Return (d, d) ``Σ ω zzᵀ − Σ_c n_c μ_c μ_cᵀ`` over all samples, those of removed classes included."""
        weight, sums = self.sums.class_sums[:, :1], self.sums.class_sums[:, 1:]
        return self.sums.gram[1:, 1:] - sums.T @ (sums / weight)

    def _choose_shrinkage(self, within: Tensor, scale: float) -> float:
        if isinstance(self.shrinkage, float):
            return self.shrinkage
        if self.shrinkage == "oas":
            return oas_shrinkage(within, int(self.sums.seen))
        moment = self.sums.class_sums.T
        gram = self.sums.gram  # its corner is the weight of the classes that are still here
        centred = Centred.from_augmented(gram, moment, gram[0, 0], int(self.sums.seen))
        eigen = spectrum(centred.gram, centred.samples - 1, moment.shape[1])
        energy = eigen.rotate(centred.moment).square().sum(dim=1)
        ridge = gcv_ridge(eigen.values, energy, centred.target_energy, centred.samples).ridge
        return ridge / (ridge + self.sums.mass.item() * scale)

    def _keep(self, columns: Tensor) -> None:
        self._fold()
        # Of a removed class the scatter around its mean stays, not the mean itself.
        gone = self.sums.counts > 0
        gone[columns] = False
        sums = self.sums.class_sums[gone]
        self.sums.subtract_products(sums / sums[:, :1].sqrt())
        super()._keep(columns)


def class_means(sums: ClassSums) -> Tensor:
    """Return the weighted means of the classes, (C, p−1).

    Args:
        sums: over ``[1; z]``, of width p.
    """
    return sums.class_sums[:, 1:] / sums.class_sums[:, :1]


def oas_shrinkage(covariance: Tensor, samples: int) -> float:
    """Compute the oracle approximating shrinkage to the scaled identity (Chen, Wiesel, Eldar and Hero, 2010, eq. 23).

    As in scikit-learn, the terms 2/p are left out.

    Args:
        covariance: (p, p) maximum-likelihood estimate.
        samples: number of samples that it was estimated from.
    """
    p = len(covariance)
    square = covariance.square().sum().item()  # tr(S²)
    trace = covariance.trace().item() ** 2
    spread = (samples + 1) * (square - trace / p)
    if spread <= 0:  # already a multiple of the identity
        return 1.0
    return float(min(1.0, (square + trace) / spread))
