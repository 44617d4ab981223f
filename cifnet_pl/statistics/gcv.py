"""Choose the ridge by generalised cross-validation, from the sums alone."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cifnet_pl.statistics.independent_errors import shares_of_independent_error
from cifnet_pl.statistics.spectral import spectrum

GCV_GRID = torch.logspace(-7, 3, 101, dtype=torch.float64)
"""Candidate ridges of generalised cross-validation, as multiples of the mean eigenvalue."""

SMALLEST = 10
"""The smallest candidate, in units of the rounding of the largest eigenvalue: binds in float32 only."""


MOST_FREEDOM = 0.5
"""The largest share of degrees of freedom among samples: a fit with more has been chosen by copies, not by error."""


NOTHING = 1000
"""Energy of the targets per sample, in units of rounding, up to which there is nothing to fit, as with one class."""


Place = Literal["inside", "cap", "smallest", "largest", "given"]
"""Where a ridge lies: "cap" if generalised cross-validation asks for more freedom than is allowed, "smallest" and
"largest" at an edge of the grid, else "inside"; "given" if it was not chosen now."""


class Choice(NamedTuple):
    """A ridge, and where it lies."""

    ridge: float
    place: Place


def solve_gcv(
    gram: Tensor, moment: Tensor, target_energy: Tensor, samples: int, free: int = 0
) -> tuple[Tensor, Choice]:
    """Return ``(gram + λI)⁻¹ moment`` and the λ that :func:`gcv_ridge` chooses, from one eigendecomposition.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        target_energy: () sum of the squared targets.
        samples: number of distinct samples.
        free: parameters of each class that are fitted without penalty, and are already out of the sums.

    Raises:
        CifnetError: the sums overflowed.
    """
    eigen = spectrum(gram, samples - free, moment.shape[1])
    rotated = torch.where(eigen.values[:, None] > 0, eigen.rotate(moment), 0)
    choice = gcv_ridge(eigen.values, rotated.square().sum(dim=1), target_energy, samples, free)
    return eigen.back(rotated / (eigen.values + choice.ridge)[:, None]), choice


def gcv_ridge(eigenvalues: Tensor, energy: Tensor, target_energy: Tensor, samples: int, free: int = 1) -> Choice:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − 2Σ a_i/(e_i+λ) + Σ e_i a_i/(e_i+λ)²`` and
    ``df = free + Σ e_i/(e_i+λ)``, over a log grid around the mean eigenvalue. Candidates with ``df > n/2`` are out, and
    so are those that are lost in the rounding of the largest eigenvalue.
    RSS is what no λ can fit, ``tr(Y_cᵀY_c) − Σ a_i/e_i``, plus ``Σ (a_i/e_i)·(λ/(e_i+λ))²``: with no more samples than
    features both RSS and n − df fall to zero with λ, and the first form would leave only rounding of their ratio.

    Copies of samples, and samples that differ little from others, add directions without error, in which ``n − df``
    stays positive while RSS is zero, so that GCV would be won by λ → 0. Each direction counts in n and in df by its
    share of independent error, which is 1 where samples are distinct
    (:func:`~cifnet_pl.statistics.independent_errors.shares_of_independent_error`).

    Args:
        eigenvalues: (d,) e_i ≥ 0 of the Gram matrix, centred where the bias is free; exactly zero beyond its rank.
        energy: (d,) a_i, squared norms of the rotated moment, centred likewise.
        target_energy: () tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return Choice(1.0, "inside")
    order = eigenvalues.argsort(descending=True)[: int((eigenvalues > 0).sum())]
    eigenvalues, explained = eigenvalues[order], energy[order] / eigenvalues[order]
    spare = max(samples - free - len(eigenvalues), 0)
    unexplained = (target_energy - explained.sum()).clamp_min(0) if spare else torch.zeros_like(target_energy)
    share, beyond = shares_of_independent_error(explained, spare, unexplained)
    grid = GCV_GRID.to(eigenvalues) * mean
    left = grid[:, None] / (eigenvalues + grid[:, None])
    rss = unexplained + (explained * left.square()).sum(1)
    freedom = beyond * spare + (share * left).sum(1)  # n − df
    score = rss / freedom.square()
    score[(freedom <= 0) | (grid < SMALLEST * torch.finfo(grid.dtype).eps * eigenvalues.max())] = torch.inf
    allowed = torch.where(freedom < (1 - MOST_FREEDOM) * (free + share.sum() + beyond * spare), torch.inf, score)
    best = _last_smallest(allowed)
    return Choice(
        grid[best].item(), _place(score, best, bool(target_energy > NOTHING * torch.finfo(grid.dtype).eps * samples))
    )


def _last_smallest(score: Tensor) -> int:
    # Ties go to the largest ridge: with nothing to fit (one class so far) the simplest solution is right.
    """Return the position of the smallest score; of several, the one with the largest ridge."""
    return len(score) - 1 - int(score.flip(0).argmin())


def _place(score: Tensor, best: int, learnable: bool) -> Place:
    if not learnable:
        return "inside"
    if _last_smallest(score) < best:
        return "cap"
    if best == len(score) - 1:
        return "largest"
    return "smallest" if best == int(score.isfinite().int().argmax()) else "inside"
