"""Heads around class means: nearest class mean, discriminant analysis, and their variants."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cifnet_pl.heads.acil import ACILHead
from cifnet_pl.heads.base import Dtype, Metric, in_full_precision, scalar
from cifnet_pl.heads.sums import SumsHead
from cifnet_pl.statistics import (
    ClassDistances,
    LeftOut,
    Ridge,
    ScatteredRows,
    Sums,
    augment,
    check_projection,
    check_ridge,
    draw_normal,
    draw_phases,
    factorise,
    gcv_ridge_of_free_bias,
    projection_fingerprint,
    solve_ridge,
    whiten,
)
from cifnet_pl.statistics.leaving_out import ROUNDING
from cifnet_pl.statistics.sums import add_product_, unpack
from cifnet_pl.utilities.errors import (
    check_choice,
    check_count,
    check_positive,
    check_that,
)


class NCMHead(SumsHead):
    """Nearest class mean: one mean ``μ_c = Σ_{y=c} z / n_c`` for each class (Mensink et al., 2013).

    Scores: "cosine" gives the cosine between z and μ_c, "euclidean" gives ``−‖z − μ_c‖²``.

    Args:
        in_features: width d of the embeddings.
        metric: "cosine" or "euclidean".
        dtype: of the sums, "float64" or "float32".
    """

    title = "NCM"
    counterexamples = False
    linear = False
    tells_novelty = False

    def __init__(
        self,
        in_features: int,
        metric: Metric = "cosine",
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, in_features + 1, dtype, gram=False)
        check_choice("metric", metric, Metric)
        self.metric = metric

    def _scores(self, z: Tensor) -> Tensor:
        z = z.to(self.dtype)
        means = class_means(self.sums)
        if self.metric == "euclidean":
            lengths = z.square().sum(dim=1, keepdim=True)
            squares = lengths + means.square().sum(dim=1)
            scores = 2 * z @ means.T - squares
        else:
            unit = normalize(z, dim=1)
            unit_means = normalize(means, dim=1)
            scores = unit @ unit_means.T
        return scores.double()


class SLDAHead(SumsHead):
    """Linear discriminant analysis with one covariance for all classes.

    The exact form of streaming LDA (Hayes and Kanan, 2020). ``score_c = zᵀΛμ_c − ½ μ_cᵀΛμ_c`` with
    ``Λ = ((1−α)S + α·s·I)⁻¹``, S the covariance within classes and ``s = tr(S)/d``. The priors are
    equal, so the softmax of the scores is the posterior of the model. The paper's streaming update
    of S depends on the order of the samples. S from sums over all data, ``Σ zzᵀ − Σ_c n_c μ_c
    μ_cᵀ``, does not.

    Args:
        in_features: width d of the embeddings.
        shrinkage: α in (0, 1], or "gcv" to choose it at every solve from the sums alone. "gcv" uses
            the ridge λ that generalised cross-validation chooses for regression on class
            indicators, which spans the same directions as the LDA with ``α/(1−α) = λ/(n·s)``.
        dtype: of the sums, "float64" or "float32".
    """

    title = "SLDA"
    leaves_one_out = True

    def __init__(
        self,
        in_features: int,
        shrinkage: Ridge = "gcv",
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, in_features + 1, dtype)
        expected = "a number in (0, 1] or gcv"
        self.shrinkage = check_ridge(shrinkage, "shrinkage", 1.0, expected)
        self.shrinkage_used = scalar(0.0)

    def _solve(self) -> None:
        self._commit_increment()
        means = class_means(self.sums)
        covariance = self._covariance()
        scale = covariance.diagonal().mean()
        alpha = self.shrinkage
        if alpha == "gcv":
            gram = self.sums.gram
            # The weight of the classes that are still here.
            target_square = gram[0, 0]
            samples = int(self.sums.seen)
            moment = self.sums.class_sums.T
            ridge = gcv_ridge_of_free_bias(gram, moment, target_square, samples)
            scatter_scale = float(self.sums.mass * scale)
            alpha = ridge / (ridge + scatter_scale)
        gram = (1 - alpha) * covariance
        inverse_means = solve_ridge(gram, means.T, alpha * scale)
        bias = -0.5 * (means.T * inverse_means).sum(dim=0)
        self.weights = torch.cat([bias[None], inverse_means])
        self.shrinkage_used.fill_(alpha)

    def _covariance(self) -> Tensor:
        """Return (d, d) S; the identity where every class is a single point."""
        within = self.within_scatter() / self.sums.mass
        if within.trace() <= 0:
            return torch.eye(len(within)).to(within)
        return within

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        mass = self.sums.mass.double()
        scatter = mass * self._covariance().double()
        # With a shrinkage of 1 the scatter would be lost.
        alpha = min(self.shrinkage_used.item(), 1 - ROUNDING)
        # The ridge stays as it is.
        ridge = alpha / (1 - alpha) * scatter.diagonal().mean()
        factor = factorise(scatter, ridge)
        features = self._novelty_features(z).double()
        rows = whiten(factor, features)
        means = whiten(factor, class_means(self.sums).double())
        class_mass = self.sums.class_sums[:, 0].double()
        scattered = ScatteredRows(rows, means, columns, class_mass)

        def left_out(groups: Tensor) -> Tensor:
            return scattered.discriminant(groups, mass) / (1 - alpha)

        return left_out

    def within_scatter(self) -> Tensor:
        """Return (d, d) ``Σ ω zzᵀ − Σ_c n_c μ_c μ_cᵀ`` over all samples.

        Those of removed classes are included.
        """
        sums = self.sums.class_sums[:, 1:]
        between = sums.T @ class_means(self.sums)
        return self.sums.gram[1:, 1:] - between

    def _keep(self, columns: Tensor) -> None:
        self._commit_increment()
        # Of a removed class the scatter around its mean stays, not the mean itself.
        removed = self.sums.counts > 0
        removed[columns] = False
        sums = self.sums.class_sums[removed]
        means = sums / sums[:, :1].sqrt()
        add_product_(self.sums.packed_gram, -means, means)
        super()._keep(columns)


def class_means(sums: Sums) -> Tensor:
    """Return the weighted means of the classes, (C, p−1).

    Args:
        sums: over ``[1; z]``, of width p.
    """
    return sums.class_sums[:, 1:] / sums.class_sums[:, :1]


class RanPACHead(ACILHead):
    """``score_c = hᵀ(G + λI)⁻¹ Σ_{y=c} h`` with ``h = ReLU(P z)`` and P of standard normal values.

    The closed form is ACIL's, on another projection (McDonnell et al., 2023). The first phase of
    the paper, which adapts the backbone to the first task by parameter-efficient tuning, is left
    out, as the backbone is frozen here. λ is chosen by generalised cross-validation on all data,
    where the paper takes the best of 17 powers of ten on a fifth of each task's samples.

    Args:
        in_features, projection, dtype: as for :class:`ACILHead`.
        width: number of random features; the paper's is 10000.
        ridge: λ, or "gcv" (chosen anew at every solve).
        seed: of the projection.
    """

    title = "RanPAC"
    _draw = staticmethod(draw_normal)

    def __init__(
        self,
        in_features: int,
        width: int = 10_000,
        ridge: Ridge = "gcv",
        projection: Tensor | None = None,
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, width, ridge, projection, seed, dtype)


class KLDAHead(SLDAHead):
    """:class:`SLDAHead` on random Fourier features of a Gaussian kernel.

    Inner products of the features ``√(2/B)·cos(√(2γ)·Ωz/‖z‖ + b)`` approximate ``exp(−γ‖x − y‖²)``.
    Ω is standard normal and b uniform in [0, 2π) (Rahimi and Recht, 2007); both are drawn from the
    seed and not stored. Embeddings are L2-normalised first, so that γ has a meaning whatever the
    backbone. The paper chooses γ for each backbone, and inverts the covariance with a
    pseudo-inverse where ours is shrunk.

    Args:
        in_features: width d of the embeddings.
        width: number B of random features; the paper's is 5000.
        gamma: γ of the kernel.
        shrinkage: as for :class:`SLDAHead`.
        seed: of Ω and b.
        dtype: of the sums, "float64" or "float32".
    """

    title = "KLDA"

    def __init__(
        self,
        in_features: int,
        width: int = 5000,
        gamma: float = 1.0,
        shrinkage: Ridge = "gcv",
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        check_count("width", width)
        check_positive("gamma", gamma)
        super().__init__(in_features, shrinkage, dtype)
        self.sums = Sums(width + 1, dtype=self.dtype)
        self.weights = self.weights.new_zeros(width + 1, 0)
        self.width = width
        self.gamma = float(gamma)
        self.seed = seed
        phases = draw_phases(width, seed)
        directions = math.sqrt(2 * gamma) * draw_normal(width, in_features, seed)
        self.directions: Tensor = nn.Buffer(directions.to(self.dtype), persistent=False)
        drawn = torch.tensor(projection_fingerprint(directions))
        self.fingerprint: Tensor = nn.Buffer(drawn)
        self.phases: Tensor = nn.Buffer(phases.to(self.dtype), persistent=False)

    def _features(self, z: Tensor) -> Tensor:
        unit = normalize(z.to(self.dtype), dim=1)
        waves = (unit @ self.directions.T + self.phases).cos()
        return augment(waves * math.sqrt(2 / self.width))

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        check_projection(state, self.fingerprint)


class FeCAMHead(SumsHead):
    """``score_c = −(x̂ − μ̂_c)ᵀ R_c⁻¹ (x̂ − μ̂_c)``, with the correlation matrix R_c of each class.

    x̂ and μ̂ have unit length. The features are ``sign(z)·|z|^power`` (Tukey's ladder). A class's
    covariance Σ is shrunk to ``Σ + γ₁V₁I + γ₂V₂(1 − I)``, V₁ the mean of its diagonal and V₂ of the
    rest, and then normalised to correlations (Goswami et al., 2023). We sum instead of passing over
    each class's samples, and use Cholesky factors instead of the pseudo-inverse. C(d+1)(d+2)/2
    values are kept, and C·d² are computed for prediction.

    Args:
        in_features: width d of the embeddings.
        power: of Tukey's ladder, in (0, 1].
        shrinkage: γ₁ = γ₂.
        dtype: of the sums, "float64" or "float32".
    """

    title = "FeCAM"
    counterexamples = False
    linear = False
    computed = (*SumsHead.computed, "_inverses")

    def __init__(
        self,
        in_features: int,
        power: float = 0.5,
        shrinkage: float = 1.0,
        dtype: Dtype = "float64",
    ):
        super().__init__(
            in_features, in_features + 1, dtype, gram=False, per_class=True
        )
        check_that(0 < power <= 1, "power", power, "a positive number of at most 1")
        check_positive("shrinkage", shrinkage)
        self.power = float(power)
        self.shrinkage = float(shrinkage)
        self._inverses: Tensor | None = None  # (C, d, d), since the sums changed

    def _features(self, z: Tensor) -> Tensor:
        z = z.to(self.dtype)
        return augment(z.sign() * z.abs() ** self.power)

    def _class_distances(self) -> ClassDistances:
        gram = unpack(self.sums.class_grams.sum(dim=0), self.sums.width)
        return ClassDistances(gram, self.sums.class_sums, gram[0, 0])

    def _correlation(self, column: int) -> Tensor:
        """Return (d, d) shrunk correlation matrix of the class at ``column``, float64."""
        sums = self.sums.class_gram(column)
        gram = sums.double()
        moments = gram / gram[0, 0]
        mean = moments[0, 1:]
        second_moment = moments[1:, 1:]
        covariance = second_moment - torch.outer(mean, mean)
        d = len(covariance)
        identity = torch.eye(d).to(covariance)
        variance = covariance.diagonal().mean()
        eps = 10 * torch.finfo(sums.dtype).eps
        smallest = max(eps, ROUNDING) * second_moment.diagonal().mean()
        if variance <= smallest:  # all samples alike
            return identity
        off_diagonal = covariance.sum() - d * variance
        rest = off_diagonal / max(1, d * (d - 1))
        prior = variance * identity + rest * (1 - identity)
        shrunk = covariance + self.shrinkage * prior
        scale = shrunk.diagonal().rsqrt()
        return scale[:, None] * shrunk * scale

    def _solve(self) -> None:
        super()._solve()
        self._inverse_correlations()

    @in_full_precision
    def _inverse_correlations(self) -> Tensor:
        """Return (C, d, d) inverses of the correlation matrices, computed once for each change."""
        if self._inverses is None:
            # So that each can be inverted.
            ridge = self.labels.new_tensor(ROUNDING, dtype=torch.float64)
            factors = [
                factorise(self._correlation(column), ridge)
                for column in range(len(self.labels))
            ]
            self._inverses = torch.cholesky_inverse(torch.stack(factors))
        return self._inverses

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores as a function (see :meth:`Head.scoring`)."""
        self._inverse_correlations()
        return self._scores

    def _scores(self, z: Tensor) -> Tensor:
        means = normalize(class_means(self.sums).double(), dim=1)
        features = self._features(z)[:, 1:].double()
        unit = normalize(features, dim=1)
        inverses = self._inverse_correlations()
        columns = []
        for mean, inverse in zip(means, inverses, strict=True):
            centred = unit - mean
            solved = centred @ inverse
            distance = (solved * centred).sum(dim=1)
            columns.append(-distance)
        return torch.stack(columns, dim=1)
