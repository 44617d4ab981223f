"""Estimate how many samples have independent errors, which generalised cross-validation assumes of all."""

from __future__ import annotations

import torch
from torch import Tensor

FEWEST = 32
"""With fewer directions nothing is concluded from their energies."""

WINDOW, LEAST = 0.02, 8
"""Energies are averaged over this share of the directions, at least so many."""

EMPTY = 0.1
"""A direction with a smaller share of the median energy has none."""

EMPTY_BEYOND = 0.4
"""The same for the directions that no feature reaches, as a share of the energy of the last that one does.

On photos this ratio is 0.73 to 1 where all are distinct, and at most 0.39 where each has a copy.
"""

REACH = 8
"""With more directions beyond the features than this many times their number, copies hardly change the choice."""


def shares_of_independent_error(energy: Tensor, spare: int, unexplained: Tensor) -> tuple[Tensor, float]:
    """Return how much independent error each direction of the samples' space carries, from 0 to 1.

    n distinct samples span n directions, and the targets' error has about the same energy in each. A copy, or a photo
    that differs little from another, adds a direction, the difference of the two, along which the targets do not
    differ: its energy is zero, and so it is no evidence that what is not fitted is small. Directions with small
    eigenvalues hold hardly anything but error, so their energies show how many of them are such differences.

    Args:
        energy: (m,) squared norm of the targets along each direction of the features, by falling eigenvalue.
        spare: number of directions that no feature reaches.
        unexplained: () squared norm of the targets in all of those.

    Returns:
        (m,) shares of the directions, and the share of each of the others; all 1 where the samples look distinct.
    """
    ones = torch.ones_like(energy)
    if len(energy) < FEWEST:
        return ones, 1.0
    local = _moving_mean(energy, max(LEAST, round(WINDOW * len(energy))))
    level, live = _level(local)
    tail = energy[live][-max(1, int(live.sum()) // 20) :].mean()
    beyond = (unexplained / spare / tail).item() if 0 < spare <= REACH * len(energy) else 1.0
    if live.all() and beyond >= EMPTY_BEYOND:
        return ones, 1.0
    return (local / level).clamp_max(1), beyond if beyond < EMPTY_BEYOND else 1.0


def _moving_mean(values: Tensor, width: int) -> Tensor:
    """Return (m,) mean of the ``width`` values around each; at the ends, of the first and the last ones."""
    means = values.unfold(0, width, 1).mean(dim=1)
    first = (torch.arange(len(values), device=values.device) - width // 2).clamp(0, len(means) - 1)
    return means[first]


def _level(local: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median energy of the directions that have some, and which these are: (m,) bool."""
    level = local.mean()
    while True:
        live = local > EMPTY * level
        median = local[live].median() if live.any() else level
        if median >= level:
            return level, live
        level = median
