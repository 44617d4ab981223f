"""Hold the sums that the classes of one task of :class:`CIFNetHead` share, and note which samples are in them."""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.statistics import Choice, Place, Sums
from cifnet_pl.utilities.growing_tensors import GrowingModule


def common_weights(columns: Tensor, weight: Tensor, classes: int) -> Tensor:
    """Return the weight that the samples of each class have in common.

    Args:
        columns: (n,) class of each sample.
        weight: (n,) of each sample.
        classes: number of classes.

    Returns:
        (classes,); 0 for a class without samples, −1 for one whose samples have different weights.
    """
    low, high = (weight.new_zeros(classes).scatter_reduce(0, columns, weight, how, include_self=False)
                 for how in ("amin", "amax"))  # fmt: skip
    return torch.where(low == high, high, -torch.ones_like(high))


def joined_weights(one: Tensor, other: Tensor) -> Tensor:
    """Return what :func:`common_weights` would give for the samples of both."""
    same = (one == other) | (one == 0) | (other == 0)
    return torch.where(same, torch.where(one == 0, other, one), -torch.ones_like(one))


class TaskStatistics(GrowingModule):
    """All neurons that one task introduced: they have seen the same samples, so they share one Gram matrix.

    Buffers:
        sums: over ``x̃`` (not scaled by the slope).
        weights: (d+1, C_j).
        stale: () bool, whether the sums have changed since the weights were solved.
        past: () number of calibration samples in the sums.
        past_weight: (classes before this cohort,) weight that the calibration samples of each class had; 0: none were
            shown; −1: they had different weights.
        ridge_used: (C_j,) float64, λ of each class.

    Attributes:
        places: where each λ of the last solve lies (:class:`~cifnet_pl.statistics.Choice`); not stored.
    """

    weights: Tensor
    stale: Tensor
    past: Tensor
    past_weight: Tensor
    ridge_used: Tensor

    def __init__(self, sums: Sums, before: int = 0):
        super().__init__()
        self.sums = sums
        self.register_buffer("weights", sums.products.new_zeros(sums.width, 0))
        self.register_buffer("stale", torch.tensor(True))
        self.register_buffer("past", torch.zeros((), dtype=torch.int64))
        self.register_buffer("past_weight", torch.zeros(before, dtype=torch.float64))
        self.register_buffer("ridge_used", torch.zeros(0, dtype=torch.float64))
        self.places: list[Place] = []
        self.to(sums.products.device)

    def choices(self) -> list[Choice]:
        """Return the ridge of each class at the last solve."""
        ridges = self.ridge_used.tolist()
        unknown: list[Place] = ["given"] * len(ridges)  # after loading, or after a class was removed
        places = self.places if len(self.places) == len(ridges) else unknown
        return [Choice(ridge, remark) for ridge, remark in zip(ridges, places, strict=True)]
