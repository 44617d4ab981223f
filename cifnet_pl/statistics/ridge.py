"""Ridge regression on sums, at a given ridge or at the one of generalised cross-validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.gcv import RidgeChoice, gcv_ridge
from cifnet_pl.statistics.leaving_out import whitened_rows
from cifnet_pl.statistics.solving import Ridge, solve_ridge
from cifnet_pl.statistics.spectrum import Spectrum, spectrum


def solve(
    gram: Tensor,
    moment: Tensor,
    ridge: Ridge,
    tss: Tensor,
    samples: int,
    free: int = 0,
) -> tuple[Tensor, RidgeChoice]:
    """Return ``(gram + λI)⁻¹ moment``, and λ with its position among the candidates.

    It takes one Cholesky factorisation, or one eigendecomposition with "gcv".

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
    if ridge != "gcv":
        weights = solve_ridge(gram, moment, gram.new_tensor(ridge))
        return weights, RidgeChoice(float(ridge), "given")
    found = choose_by_gcv(gram, moment, tss, samples, free)
    shrunk = found.rotated / (found.eigen.values + found.choice.ridge)[:, None]
    return found.eigen.back(shrunk), found.choice


class GcvChoice(NamedTuple):
    """The ridge of generalised cross-validation, and what it was chosen by.

    Attributes:
        choice: the ridge.
        eigen: decomposition of the Gram matrix.
        rotated: (p, C) the moment along its eigenvectors.
    """

    choice: RidgeChoice
    eigen: Spectrum
    rotated: Tensor


def choose_by_gcv(
    gram: Tensor, moment: Tensor, tss: Tensor, samples: int, free: int
) -> GcvChoice:
    """Choose a ridge by :func:`gcv_ridge`; the arguments are those of :func:`solve`."""
    eigen = spectrum(gram, samples - free, moment.shape[1])
    rotated = torch.where(eigen.values[:, None] > 0, eigen.rotate(moment), 0)
    squares = rotated.square().sum(dim=1)
    choice = gcv_ridge(eigen.values, squares, tss, samples, free)
    return GcvChoice(choice, eigen, rotated)


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
        found = choose_by_gcv(self.gram, self.moment, self.tss, self.samples, free=1)
        return found.choice

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
