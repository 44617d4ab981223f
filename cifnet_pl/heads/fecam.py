"""FeCAM: Mahalanobis distances to class means, with a covariance for each class (Goswami et al., NeurIPS 2023)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Dtype
from cifnet_pl.heads.exactness import exact
from cifnet_pl.heads.prototypes import class_means
from cifnet_pl.heads.shared import SharedSumsHead
from cifnet_pl.statistics import ClassMoments, augment, factorise
from cifnet_pl.statistics.class_grams import ClassGrams
from cifnet_pl.statistics.packed_triangle import unpack
from cifnet_pl.utilities.errors import UsageError

SMALLEST = 1e-9
"""Added to the diagonal of a correlation matrix, so that samples that are all alike leave it invertible."""


class FeCAMHead(SharedSumsHead):
    """``score_c = −(x̂ − μ̂_c)ᵀ R_c⁻¹ (x̂ − μ̂_c)`` with x̂, μ̂ of unit length and R_c the class's correlation matrix.

    The features are ``sign(z)·|z|^power`` (Tukey's ladder). A class's covariance Σ is shrunk to
    ``Σ + γ₁V₁I + γ₂V₂(1 − I)``, V₁ the mean of its diagonal and V₂ of the rest, and then normalised to correlations.
    The paper's, but for sums instead of a pass over each class's samples, and Cholesky for the pseudo-inverse.
    C(d+1)(d+2)/2 numbers are kept, and as many as C·d² are made for prediction.

    Args:
        in_features: width d of the embeddings.
        power: of Tukey's ladder, in (0, 1].
        shrinkage: γ₁ = γ₂.
        dtype: of the sums, "float64" or "float32".
    """

    title = "FeCAM"
    counterexamples = False
    tells_novelty = True
    sums_type = ClassGrams
    sums: ClassGrams

    def __init__(self, in_features: int, power: float = 0.5, shrinkage: float = 1.0, dtype: Dtype = "float64"):
        super().__init__(in_features, in_features + 1, dtype)
        for name, value, most in (("power", power, 1.0), ("shrinkage", shrinkage, float("inf"))):
            if not 0 < value <= most or value == float("inf"):
                raise UsageError(f"{name} is {value:g}, expected a positive number" + " of at most 1" * (most == 1))
        self.power, self.shrinkage = float(power), float(shrinkage)
        self._inverses: Tensor | None = None

    def _features(self, z: Tensor) -> Tensor:
        z = z.to(self.dtype)
        return augment(z.sign() * z.abs() ** self.power)

    def _rows(self, z: Tensor) -> Tensor:
        return self._features(z)[:, 1:]

    def _moments(self) -> ClassMoments:
        gram = unpack(self.sums.grams.sum(dim=0), self.sums.width)
        sums = self.sums.class_sums
        return ClassMoments.of(gram[1:, 1:], sums[:, 1:], sums[:, 0], None, sums[:, 0].sum())

    def _solve(self) -> None:
        self._fold()
        self._inverses = None

    def _correlation(self, column: int) -> Tensor:
        """Return (d, d) shrunk correlation matrix of the class at ``column``, float64."""
        gram = self.sums.gram(column).double()
        mean = gram[0, 1:] / gram[0, 0]
        covariance = gram[1:, 1:] / gram[0, 0] - torch.outer(mean, mean)
        spread, d = covariance.diagonal().mean(), len(covariance)
        identity = torch.eye(d, dtype=torch.float64, device=gram.device)
        if spread <= SMALLEST * gram.diagonal()[1:].mean() / gram[0, 0]:  # all samples alike
            return identity
        rest = (covariance.sum() - d * spread) / max(1, d * (d - 1))
        shrunk = covariance + self.shrinkage * (spread * identity + rest * (1 - identity))
        scale = shrunk.diagonal().rsqrt()
        return scale[:, None] * shrunk * scale

    @exact
    def refresh(self) -> None:
        """Invert the correlation matrices, if they are not inverted yet."""
        if self._inverses is None and len(self.labels):
            matrices = [self._correlation(column) for column in range(len(self.labels))]
            small = torch.tensor(SMALLEST, dtype=torch.float64)
            self._inverses = torch.stack([torch.cholesky_inverse(factorise(m, small.to(m))) for m in matrices])

    def _scores(self, z: Tensor) -> Tensor:
        return self.scoring()(z)

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores as a function (see :meth:`Head.scoring`); the correlation matrices are inverted first."""
        self.refresh()
        assert self._inverses is not None
        inverses = self._inverses
        means = torch.nn.functional.normalize(class_means(self.sums).double(), dim=1)

        def score(z: Tensor) -> Tensor:
            unit = torch.nn.functional.normalize(self._features(z)[:, 1:].double(), dim=1)
            columns = []
            for mean, inverse in zip(means, inverses, strict=True):
                away = unit - mean
                columns.append(-((away @ inverse) * away).sum(dim=1))
            return torch.stack(columns, dim=1)

        return score

    def _keep(self, columns: Tensor) -> None:
        super()._keep(columns)
        self._inverses = None

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: C(d+1)(d+2)/2 for the covariances and C(d+1) for the means."""
        return {"factors": self.sums.grams.numel(), **super().state_elements()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self._inverses = None
        return super()._apply(fn, recurse)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        self._inverses = None
