"""Ridge regression on sums, at a given ridge or at the one of generalised cross-validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.leaving_out import whitened_rows
from cifnet_pl.statistics.solving import Ridge, solve_ridge
from cifnet_pl.utilities.errors import CifnetError

LARGEST_DF_SHARE = 0.5
"""Largest degrees of freedom, as a share of the distinct samples.

Duplicates that are not counted look like samples that are fitted without error, so that λ → 0 would
be chosen. Distinct images ask for 0.22 to 0.53 of their number (``docs/studies/duplicates.md``).
"""

RIDGE_TOLERANCE = 0.1
"""Precision of the logarithm of a chosen ridge.

Three times the ridge costs at most 0.8 points (``docs/studies/duplicates.md``)."""

Position = Literal["inside", "largest", "given"]
"""Position of a ridge among the candidates.

"largest": generalised cross-validation finds nothing that a linear model explains. "given": the
ridge was not chosen at this solve; it is an argument, or was loaded."""


class RidgeChoice(NamedTuple):
    """A ridge, and its position among the candidates (:data:`Position`)."""

    ridge: float
    position: Position


def gcv_ridge(
    gram: Tensor, moment: Tensor, tss: Tensor, samples: int, free: int
) -> RidgeChoice:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − ⟨Q, W⟩ − λ‖W‖²``, ``W = (G + λI)⁻¹Q`` and
    ``df = free + Σ e_i/(e_i+λ)`` over the eigenvalues of G. The search is bounded: below by ``df ≤
    n/2`` and by the rounding of the largest eigenvalue, above by the trace of G, where less than
    one degree of freedom is left. It takes the eigenvalues of G and one Cholesky factor for each λ
    that is visited.

    Args:
        gram: (p, p) G, centred where the bias is free.
        moment: (p, C) Q, centred likewise.
        tss: () total sum of squares of the targets, likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.

    Raises:
        CifnetError: the sums overflowed.
    """
    from scipy.optimize import minimize_scalar  # to classify needs none of it

    if not torch.isfinite(gram.trace()):
        raise CifnetError(
            f"the Gram matrix overflowed {gram.dtype}: scale the embeddings down, or use dtype:"
            " float64"
        )
    values = torch.linalg.eigvalsh(gram).clamp_min(0).double()
    largest = float(values.sum())
    # All embeddings alike: any ridge gives zero weights.
    if largest == 0.0 or samples <= free:
        return RidgeChoice(1.0, "inside")

    def freedom(ridge: float) -> float:
        return free + float((values / (values + ridge)).sum())

    def score(logarithm: float) -> float:
        ridge = math.exp(logarithm)
        weights = solve_ridge(gram, moment, gram.new_tensor(ridge))
        explained = (moment * weights).sum() + ridge * weights.square().sum()
        return float(tss - explained) / (samples - freedom(ridge)) ** 2

    rounding = len(gram) * torch.finfo(gram.dtype).eps * float(values[-1])
    smallest = _ridge_of_freedom(values, LARGEST_DF_SHARE * samples - free, rounding)
    if smallest >= largest:
        return RidgeChoice(largest, "inside")
    low = math.log(smallest)
    high = math.log(largest)
    options = {"xatol": RIDGE_TOLERANCE}
    found = minimize_scalar(
        score, bounds=(low, high), method="bounded", options=options
    )
    position: Position = "inside"
    if high - found.x < 2 * RIDGE_TOLERANCE:
        position = "largest"
    return RidgeChoice(math.exp(found.x), position)


def _ridge_of_freedom(values: Tensor, freedom: float, smallest: float) -> float:
    """Return the ridge from which on ``Σ e_i/(e_i+λ)`` is at most ``freedom``.

    Args:
        values: (p,) eigenvalues e_i.
        freedom: degrees of freedom.
        smallest: ridge that is returned where every larger one is allowed.
    """
    from scipy.optimize import brentq

    def excess(logarithm: float) -> float:
        return float((values / (values + math.exp(logarithm))).sum()) - freedom

    low = math.log(smallest)
    high = math.log(float(values.sum()))
    if excess(low) <= 0:
        return smallest
    if excess(high) >= 0:
        return math.exp(high)
    return math.exp(brentq(excess, low, high))


def solve(
    gram: Tensor,
    moment: Tensor,
    ridge: Ridge,
    tss: Tensor,
    samples: int,
    free: int = 0,
) -> tuple[Tensor, RidgeChoice]:
    """Return ``(gram + λI)⁻¹ moment``, and λ with its position among the candidates.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        ridge: λ, or "gcv": the one that :func:`gcv_ridge` chooses.
        tss: () total sum of squares of the targets.
        samples: number of distinct samples.
        free: parameters of each class that are fitted without penalty, and are already out of the
            sums.

    Raises:
        CifnetError: the sums overflowed, or with this ridge they are not positive definite.
    """
    if ridge == "gcv":
        choice = gcv_ridge(gram, moment, tss, samples, free)
    else:
        choice = RidgeChoice(float(ridge), "given")
    return solve_ridge(gram, moment, gram.new_tensor(choice.ridge)), choice


@dataclass(frozen=True)
class Centred:
    """Weighted least squares with a free bias, after centring features and targets.

    Attributes:
        gram: (d, d) ``Σ ω z zᵀ − n μ μᵀ``.
        moment: (d, C) ``Σ ω z tᵀ − n μ t̄ᵀ``.
        mean: (d,) μ.
        target_mean: (C,) t̄.
        tss: () total sum of squares, ``tr(Y_cᵀ Y_c)``.
        samples: number of distinct samples.
    """

    gram: Tensor
    moment: Tensor
    mean: Tensor
    target_mean: Tensor
    tss: Tensor
    samples: int

    @classmethod
    def from_augmented(
        cls, gram: Tensor, moment: Tensor, target_square: Tensor, samples: int
    ) -> Centred:
        """Centre sums over ``x̃ = [1; z]``.

        Args:
            gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
            moment: (d+1, C) ``Σ ω x̃ tᵀ``.
            target_square: () ``Σ ω t²`` over all samples and classes.
            samples: number of distinct samples.
        """
        total = gram[0, 0]
        mean = gram[0, 1:] / total
        target_mean = moment[0] / total
        centred_gram = gram[1:, 1:] - total * torch.outer(mean, mean)
        centred_moment = moment[1:] - total * torch.outer(mean, target_mean)
        tss = target_square - total * target_mean.square().sum()
        return cls(centred_gram, centred_moment, mean, target_mean, tss, samples)

    def solve(self, ridge: Ridge) -> tuple[Tensor, RidgeChoice]:
        """Solve for the weights.

        Args:
            ridge: a number to add to the diagonal of the centred Gram matrix, or "gcv" (generalised
                cross-validation).

        Returns:
            The weights (d+1, C) with the bias in row 0, and the ridge used.
        """
        weights, chosen = solve(
            self.gram, self.moment, ridge, self.tss, self.samples, free=1
        )
        bias = self.target_mean - self.mean @ weights
        return torch.cat([bias[None], weights]), chosen

    def choose_ridge(self) -> RidgeChoice:
        """Return the ridge of generalised cross-validation, without the weights."""
        return gcv_ridge(self.gram, self.moment, self.tss, self.samples, free=1)

    def whitened_rows(self, z: Tensor, ridge: float, mass: Tensor) -> Tensor:
        """Return :func:`~cifnet_pl.statistics.whitened_rows` of embeddings, with a free bias.

        Args:
            z: (n, d) embeddings.
            ridge: λ of the solve.
            mass: () ``Σ ω``, the total weight.

        Returns:
            (n, d+1) float64.
        """
        whitened = whitened_rows(self.gram, self.gram.new_tensor(ridge), z - self.mean)
        bias = whitened.new_ones(len(whitened), 1) / mass.double().sqrt()
        return torch.cat([bias, whitened], dim=1)
