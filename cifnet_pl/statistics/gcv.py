"""Generalised cross-validation: choose a ridge from the sums alone, also with duplicates."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

GCV_GRID = torch.logspace(-7, 3, 101, dtype=torch.float64)
"""Candidate ridges, as multiples of the mean eigenvalue."""

SMALLEST_RIDGE = 10
"""Smallest candidate, in units of the rounding of the largest eigenvalue; it binds in float32
only.
"""

LARGEST_FREEDOM = 0.5
"""Largest share of degrees of freedom among samples: a freer fit was chosen by duplicates."""

NOTHING_TO_FIT = 1000
"""Energy of the targets per sample up to which there is nothing to fit, in units of rounding.

It is so with one class."""

FEWEST_DIRECTIONS = 32
"""With fewer directions nothing is concluded from their energies."""

WINDOW_SHARE = 0.02
SMALLEST_WINDOW = 8
"""Energies are averaged over this share of the directions, at least so many."""

EMPTY_ENERGY = 0.1
"""A direction with a smaller share of the median energy has none."""

EMPTY_ENERGY_BEYOND = 0.4
"""The same for directions that no feature reaches, relative to the last that one reaches.

On images this ratio is 0.73 to 1 where all are distinct, and at most 0.39 where each has a
duplicate."""

LARGEST_BEYOND = 8
"""With more directions beyond the features, as a multiple of these, duplicates hardly matter."""

Position = Literal["inside", "cap", "smallest", "largest", "given"]
"""Position of a ridge among the candidates: "smallest" and "largest" at an edge of the grid, else
"inside"; "cap" if generalised cross-validation asks for more freedom than is allowed; "given" if it
was not chosen now."""


class RidgeChoice(NamedTuple):
    """A ridge, and its position among the candidates."""

    ridge: float
    position: Position


class ErrorShares(NamedTuple):
    """Share of the residual, from 0 to 1, that is not caused by duplicates.

    Attributes:
        directions: (m,) of each eigendirection of the features.
        beyond: of each direction that no feature reaches.
    """

    directions: Tensor
    beyond: float


def shares_of_independent_error(
    energy: Tensor, spare: int, unexplained: Tensor
) -> ErrorShares:
    """Estimate, for each eigendirection, the share of the residual not caused by duplicates.

    n distinct samples span n directions, and the targets' error has about the same energy in each.
    A duplicate adds a direction, its difference from the original, in which the targets do not
    differ. Its energy is zero, so it is no evidence that what is not fitted is small. Directions
    with small eigenvalues hold hardly anything but error, so their energies show how many of them
    are such differences.

    Args:
        energy: (m,) squared norm of the targets along each direction of the features, by falling
            eigenvalue.
        spare: number of directions that no feature reaches.
        unexplained: () squared norm of the targets in all of those.

    Returns:
        The shares; all 1 where the samples look distinct.
    """
    all_distinct = ErrorShares(torch.ones_like(energy), 1.0)
    if len(energy) < FEWEST_DIRECTIONS:
        return all_distinct
    share = round(WINDOW_SHARE * len(energy))
    width = max(SMALLEST_WINDOW, share)
    local = _moving_mean(energy, width)
    level = _median_energy(local)
    live = local > EMPTY_ENERGY * level
    beyond = 1.0
    if 0 < spare <= LARGEST_BEYOND * len(energy):
        twentieth = int(live.sum()) // 20
        last = max(1, twentieth)
        smallest = energy[live][-last:]
        tail = smallest.mean()
        noise = unexplained / spare
        beyond = (noise / tail).item()
    if beyond >= EMPTY_ENERGY_BEYOND:
        if live.all():
            return all_distinct
        beyond = 1.0
    shares = (local / level).clamp_max(1)
    return ErrorShares(shares, beyond)


def _moving_mean(values: Tensor, width: int) -> Tensor:
    """Return (m,) mean of the ``width`` values around each, or of the first or last ones."""
    windows = values.unfold(0, width, 1)
    means = windows.mean(dim=1)
    positions = torch.arange(len(values), device=values.device)
    shifted = positions - width // 2
    first = shifted.clamp(0, len(means) - 1)
    return means[first]


def _median_energy(local: Tensor) -> Tensor:
    """Return the median energy of the directions that have some."""
    level = local.mean()
    while True:
        live = local > EMPTY_ENERGY * level
        if not live.any():
            return level
        median = local[live].median()
        if median >= level:
            return level
        level = median


def gcv_ridge(
    eigenvalues: Tensor,
    energy: Tensor,
    target_energy: Tensor,
    samples: int,
    free: int = 1,
) -> RidgeChoice:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − 2Σ a_i/(e_i+λ) + Σ e_i a_i/(e_i+λ)²`` and
    ``df = free + Σ e_i/(e_i+λ)``, over a log grid around the mean eigenvalue. Candidates with ``df
    > n/2`` are out, and so are those that are lost in the rounding of the largest eigenvalue.

    RSS is what no λ can fit, ``tr(Y_cᵀY_c) − Σ a_i/e_i``, plus ``Σ (a_i/e_i)·(λ/(e_i+λ))²``. With
    no more samples than features both RSS and n − df fall to zero with λ, and the first form would
    leave only rounding of their ratio.

    Duplicates, and samples that differ little from others, add directions without error, in which
    ``n − df`` stays positive while RSS is zero, so that λ → 0 would be chosen. Each direction
    counts in n and in df by its share of independent error (:func:`shares_of_independent_error`).

    Args:
        eigenvalues: (d,) e_i ≥ 0 of the Gram matrix, centred where the bias is free; exactly zero
            beyond its rank.
        energy: (d,) a_i, squared norms of the rotated moment, centred likewise.
        target_energy: () tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return RidgeChoice(1.0, "inside")
    rank = int((eigenvalues > 0).sum())
    order = eigenvalues.argsort(descending=True)[:rank]
    eigenvalues = eigenvalues[order]
    explained = energy[order] / eigenvalues
    spare = max(samples - free - rank, 0)
    unexplained = torch.zeros_like(target_energy)
    if spare:
        unexplained = (target_energy - explained.sum()).clamp_min(0)
    share, beyond = shares_of_independent_error(explained, spare, unexplained)
    grid = GCV_GRID.to(eigenvalues) * mean
    column = grid[:, None]
    left = column / (eigenvalues + column)
    remaining = (explained * left.square()).sum(1)
    rss = unexplained + remaining
    used = (share * left).sum(1)
    freedom = beyond * spare + used  # n − df
    score = rss / freedom.square()
    rounding = torch.finfo(grid.dtype).eps
    largest = eigenvalues.max()
    limit = SMALLEST_RIDGE * rounding * largest
    too_small = grid < limit
    hopeless = (freedom <= 0) | too_small
    score[hopeless] = torch.inf
    effective_samples = free + share.sum() + beyond * spare
    too_free = freedom < (1 - LARGEST_FREEDOM) * effective_samples
    allowed = score.masked_fill(too_free, torch.inf)
    best = _last_smallest(allowed)
    position: Position = "inside"
    if target_energy > NOTHING_TO_FIT * rounding * samples:
        position = _position(score, best)
    return RidgeChoice(grid[best].item(), position)


def _position(score: Tensor, best: int) -> Position:
    """Return the position of a choice among the scores of all candidates, allowed or not."""
    if _last_smallest(score) < best:
        return "cap"
    if best == len(score) - 1:
        return "largest"
    first_finite = int(score.isfinite().int().argmax())
    if best == first_finite:
        return "smallest"
    return "inside"


def _last_smallest(score: Tensor) -> int:
    """Return the position of the smallest score; of several, the one with the largest ridge.

    With nothing to fit (one class so far) all are equal, and the simplest solution is right.
    """
    from_end = int(score.flip(0).argmin())
    return len(score) - 1 - from_end
