"""Solve ridge regression with a free bias: centre features and targets, then solve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cifnet_pl.statistics.gcv import Choice, solve_gcv
from cifnet_pl.statistics.leave_one_out import half_products
from cifnet_pl.statistics.solve import solve_ridge


@dataclass(frozen=True)
class Centred:
    """Weighted least squares with a free bias, after centring features and targets.

    Attributes:
        gram: (d, d) ``Σ ω z zᵀ − n μ μᵀ``.
        moment: (d, C) ``Σ ω z tᵀ − n μ t̄ᵀ``.
        mean: (d,) μ.
        target_mean: (C,) t̄.
        target_energy: () ``tr(Y_cᵀ Y_c)``.
        samples: number of distinct samples.
    """

    gram: Tensor
    moment: Tensor
    mean: Tensor
    target_mean: Tensor
    target_energy: Tensor
    samples: int

    @classmethod
    def from_augmented(cls, gram: Tensor, moment: Tensor, target_square: Tensor, samples: int) -> Centred:
        """Centre sums over ``x̃ = [1; z]``.

        Args:
            gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
            moment: (d+1, C) ``Σ ω x̃ tᵀ``.
            target_square: () ``Σ ω t²`` over all samples and classes.
            samples: number of distinct samples.
        """
        total = gram[0, 0]
        mean, target_mean = gram[0, 1:] / total, moment[0] / total
        return cls(
            gram=gram[1:, 1:] - total * torch.outer(mean, mean),
            moment=moment[1:] - total * torch.outer(mean, target_mean),
            mean=mean,
            target_mean=target_mean,
            target_energy=target_square - total * target_mean.square().sum(),
            samples=samples,
        )

    def solve(self, ridge: float | str) -> tuple[Tensor, Choice]:
        """Solve for the weights.

        Args:
            ridge: a number to add to the diagonal of the centred Gram matrix, or "gcv" (generalised cross-validation).

        Returns:
            The weights (d+1, C) with the bias in row 0, and the ridge used.
        """
        if ridge == "gcv":
            weights, chosen = solve_gcv(self.gram, self.moment, self.target_energy, self.samples, free=1)
        else:
            chosen = Choice(float(ridge), "given")
            weights = solve_ridge(self.gram, self.moment, self.gram.new_tensor(chosen.ridge))
        bias = self.target_mean - self.mean @ weights
        return torch.cat([bias[None], weights]), chosen

    def half_products(self, z: Tensor, ridge: float, mass: Tensor) -> Tensor:
        """Return :func:`~cifnet_pl.statistics.leave_one_out.half_products` of embeddings, with a free bias.

        Args:
            z: (n, d) embeddings.
            ridge: λ of the solve.
            mass: () ``Σ ω``, the total weight.

        Returns:
            (n, d+1) float64.
        """
        half = half_products(self.gram, self.gram.new_tensor(ridge), z - self.mean)
        return torch.cat([half.new_full((len(half), 1), 1) / mass.double().sqrt(), half], dim=1)
