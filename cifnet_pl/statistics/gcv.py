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

LARGEST_DF_SHARE = 0.5
"""Largest degrees of freedom, as a share of the samples: more are chosen because of duplicates."""

NOTHING_TO_FIT = 1000
"""Squared norm of the targets per sample up to which there is nothing to fit, in units of rounding.

It is so with one class."""

FEWEST_DIRECTIONS = 32
"""With fewer eigendirections duplicates are not looked for."""

WINDOW_SHARE = 0.02
SMALLEST_WINDOW = 8
"""Squared norms are averaged over this share of the directions, at least so many."""

EMPTY_SHARE = 0.1
"""A direction whose squared norm is a smaller share of the median is empty."""

EMPTY_NULL_SHARE = 0.4
"""The same for directions of the null space, relative to those with the smallest eigenvalues.

On images this ratio is 0.73 to 1 where all are distinct, and at most 0.39 where each has a
duplicate."""

LARGEST_NULL_RATIO = 8
"""Largest dimension of the null space, as a multiple of the rank: beyond it duplicates hardly
matter."""

Position = Literal["inside", "cap", "smallest", "largest", "given"]
"""Position of a ridge among the candidates.

"smallest" and "largest" are the edges of the grid, "inside" is between them. "cap": generalised
cross-validation asks for more degrees of freedom than ``LARGEST_DF_SHARE`` allows, and the ridge is
the best one that is allowed. "given": the ridge was not chosen at this solve; it is an argument, or
was loaded."""


class RidgeChoice(NamedTuple):
    """A ridge, and its position among the candidates (:data:`Position`)."""

    ridge: float
    position: Position


class ErrorShares(NamedTuple):
    """Share of the residual, from 0 to 1, that is not caused by duplicates.

    Attributes:
        directions: (m,) of each eigendirection of the features.
        null_space: of each direction of the null space, to which no feature contributes.
    """

    directions: Tensor
    null_space: float


def shares_of_independent_error(
    squares: Tensor, null_directions: int, unexplained: Tensor
) -> ErrorShares:
    """Estimate, for each eigendirection, the share of the residual not caused by duplicates.

    n distinct samples span n directions, and the targets' error has about the same norm in each.
    A duplicate adds a direction, its difference from the original, in which the targets do not
    differ. Its norm is zero. Counting it as a free direction would make the residual variance
    look too small. Directions with small eigenvalues hold hardly anything but error, so their
    squared norms show how many of them are such differences.

    Args:
        squares: (m,) squared norm of the targets along each eigendirection of the features, by
            falling eigenvalue.
        null_directions: dimension of the null space, to which no feature contributes.
        unexplained: () squared norm of the targets in the null space.

    Returns:
        The shares; all 1 where the samples look distinct.
    """
    all_distinct = ErrorShares(torch.ones_like(squares), 1.0)
    if len(squares) < FEWEST_DIRECTIONS:
        return all_distinct
    share = round(WINDOW_SHARE * len(squares))
    width = max(SMALLEST_WINDOW, share)
    local_mean = _moving_mean(squares, width)
    median_square = _median_square(local_mean)
    occupied = local_mean > EMPTY_SHARE * median_square
    null_share = 1.0
    if 0 < null_directions <= LARGEST_NULL_RATIO * len(squares):
        twentieth = int(occupied.sum()) // 20
        last = max(1, twentieth)
        smallest = squares[occupied][-last:]
        tail = smallest.mean()
        noise = unexplained / null_directions
        null_share = (noise / tail).item()
    if null_share >= EMPTY_NULL_SHARE:
        if occupied.all():
            return all_distinct
        null_share = 1.0
    shares = (local_mean / median_square).clamp_max(1)
    return ErrorShares(shares, null_share)


def _moving_mean(values: Tensor, width: int) -> Tensor:
    """Return (m,) mean of the ``width`` values around each, or of the first or last ones."""
    windows = values.unfold(0, width, 1)
    means = windows.mean(dim=1)
    positions = torch.arange(len(values), device=values.device)
    shifted = positions - width // 2
    first = shifted.clamp(0, len(means) - 1)
    return means[first]


def _median_square(local_mean: Tensor) -> Tensor:
    """Return the median squared norm of the directions that are not empty."""
    median_square = local_mean.mean()
    while True:
        occupied = local_mean > EMPTY_SHARE * median_square
        if not occupied.any():
            return median_square
        median = local_mean[occupied].median()
        if median >= median_square:
            return median_square
        median_square = median


def gcv_ridge(
    eigenvalues: Tensor,
    squares: Tensor,
    tss: Tensor,
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
        squares: (d,) a_i, squared norms of the rotated moment, centred likewise.
        tss: () total sum of squares tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.

    Returns:
        The choice; ridge 1 "inside" if the embeddings do not differ.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return RidgeChoice(1.0, "inside")
    rank = int((eigenvalues > 0).sum())
    order = eigenvalues.argsort(descending=True)[:rank]
    eigenvalues = eigenvalues[order]
    explained = squares[order] / eigenvalues
    null_directions = max(samples - free - rank, 0)
    unexplained = torch.zeros_like(tss)
    if null_directions:
        unexplained = (tss - explained.sum()).clamp_min(0)
    share, null_share = shares_of_independent_error(
        explained, null_directions, unexplained
    )
    grid = GCV_GRID.to(eigenvalues) * mean
    column = grid[:, None]
    shrinkage = column / (eigenvalues + column)
    remaining = (explained * shrinkage.square()).sum(1)
    rss = unexplained + remaining
    shrunk = (share * shrinkage).sum(1)
    residual_df = null_share * null_directions + shrunk  # n − df
    score = rss / residual_df.square()
    rounding = torch.finfo(grid.dtype).eps
    largest = eigenvalues.max()
    limit = SMALLEST_RIDGE * rounding * largest
    too_small = grid < limit
    excluded = (residual_df <= 0) | too_small
    score[excluded] = torch.inf
    effective_samples = free + share.sum() + null_share * null_directions
    too_flexible = residual_df < (1 - LARGEST_DF_SHARE) * effective_samples
    allowed = score.masked_fill(too_flexible, torch.inf)
    best = _last_smallest(allowed)
    position: Position = "inside"
    if tss > NOTHING_TO_FIT * rounding * samples:
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
