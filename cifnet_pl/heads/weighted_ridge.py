"""Solve the weights of one task's classes from their sums: the weighted ridge regression of :class:`CIFNetHead`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Ridge
from cifnet_pl.heads.targets import Weighting
from cifnet_pl.heads.task_statistics import TaskStatistics
from cifnet_pl.statistics import Centred, Choice, half_products, left_out_together, solve_ridge


@dataclass(frozen=True)
class WeightedRidge:
    """Ridge regression of signed targets, every sample weighted by the squared slope at its target.

    Attributes:
        ridge: λ, or "gcv".
        weighting: which slopes these are; with "released" every class has a Gram matrix of its own.
        limit: L, the targets are ±L.
        slopes: squared slopes of positive and of negative targets.
    """

    ridge: Ridge
    weighting: Weighting
    limit: float
    slopes: tuple[float, float]

    def solve(self, cohort: TaskStatistics) -> None:
        """Solve the cohort's weights, and the λ of each of its classes, from its sums."""
        sums, (positive, negative) = cohort.sums, self.slopes
        total = sums.gram[0]
        moment = self.limit * (positive * sums.class_sums - negative * (total - sums.class_sums)).T
        square = self.limit**2 * (positive * sums.class_sums[:, 0] + negative * (total[0] - sums.class_sums[:, 0]))
        samples = int(sums.seen)
        solved = [
            self._solve_system(gram, moment[:, columns], square[columns].sum(), samples)
            for columns, gram in self.systems(cohort)
        ]
        cohort.weights = torch.cat([weights for weights, _ in solved], dim=1)
        cohort.ridge_used = torch.cat([cohort.ridge_used.new_full((w.shape[1],), choice.ridge) for w, choice in solved])
        cohort.places = [choice.place for weights, choice in solved for _ in range(weights.shape[1])]
        cohort.stale.fill_(False)

    def systems(self, cohort: TaskStatistics) -> Iterator[tuple[slice, Tensor]]:
        """Yield the columns of the cohort that share a Gram matrix, and this matrix (d+1, d+1), weighted by slopes."""
        sums, (positive, negative) = cohort.sums, self.slopes
        if self.weighting == "derivative":
            yield slice(None), negative * sums.gram
        else:
            gram = sums.gram
            for c in range(len(sums.class_grams)):
                yield slice(c, c + 1), negative * gram + (positive - negative) * sums.class_gram(c)

    def _solve_system(self, gram: Tensor, moment: Tensor, square: Tensor, samples: int) -> tuple[Tensor, Choice]:
        if self.ridge == "gcv":
            return Centred.from_augmented(gram, moment, square, samples).solve("gcv")
        return solve_ridge(gram, moment, gram.new_tensor(self.ridge)), Choice(float(self.ridge), "given")

    def left_out(
        self, cohort: TaskStatistics, x: Tensor, scores: Tensor, targets: Tensor, weight: Tensor, groups: Tensor | None
    ) -> Tensor:
        """Return the scores (n, C_j) of learned samples without those of their group.

        Args:
            cohort: solved.
            x: (n, d+1) ``[1; z]`` of the samples.
            scores: (n, C_j) of the cohort's classes.
            targets: (n, C_j), ±L.
            weight: (n,) of each sample in the cohort's sums; 0 where it was never seen.
            groups: (n,) int64 number of each sample's group; None where each stands alone.
        """
        positive, negative = self.slopes
        result = scores.double().clone()
        for columns, gram in self.systems(cohort):
            ridge = cohort.ridge_used[columns][0].item()
            if self.ridge == "gcv":
                centred = Centred.from_augmented(gram, gram[:, :0], gram.new_zeros(()), 0)
                half = centred.half_products(x[:, 1:], ridge, gram[0, 0])
            else:
                half = half_products(gram, gram.new_tensor(ridge), x)
            # Both slopes are equal unless each class has a system of its own, of one column.
            slope = negative + (positive - negative) * (targets[:, columns][:, 0] > 0).double()
            result[:, columns] = left_out_together(
                scores[:, columns], half, slope * weight, targets[:, columns], groups
            )
        return result
