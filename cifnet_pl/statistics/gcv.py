"""Choose the ridge by generalised cross-validation, from the sums alone."""

from __future__ import annotations

import torch
from torch import Tensor

from cifnet_pl.statistics.spectral import spectrum

GCV_GRID = torch.logspace(-7, 3, 101, dtype=torch.float64)
"""Candidate ridges of generalised cross-validation, as multiples of the mean eigenvalue."""

SMALLEST = 10
"""The smallest candidate, in units of the rounding of the largest eigenvalue: binds in float32 only."""


def solve_gcv(gram: Tensor, moment: Tensor, target_energy: Tensor, samples: int, free: int = 0) -> tuple[Tensor, float]:
    """``(gram + λI)⁻¹ moment`` and the λ that :func:`gcv_ridge` chooses, from one eigendecomposition.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        target_energy: () sum of the squared targets.
        samples: number of distinct samples.
        free: parameters of each class that are fitted without penalty, and are already out of the sums.

    Raises:
        CifnetError: the sums overflowed.
    """
    found = spectrum(gram, samples - free, moment.shape[1])
    rotated = torch.where(found.values[:, None] > 0, found.rotate(moment), 0)
    ridge = gcv_ridge(found.values, rotated.square().sum(dim=1), target_energy, samples, free)
    return found.back(rotated / (found.values + ridge)[:, None]), ridge


def gcv_ridge(eigenvalues: Tensor, energy: Tensor, target_energy: Tensor, samples: int, free: int = 1) -> float:
    """The ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − 2Σ a_i/(e_i+λ) + Σ e_i a_i/(e_i+λ)²`` and
    ``df = free + Σ e_i/(e_i+λ)``, over a log grid around the mean eigenvalue. Candidates with ``df ≥ n`` are out, and
    so are those that are lost in the rounding of the largest eigenvalue.
    RSS is what no λ can fit, ``tr(Y_cᵀY_c) − Σ a_i/e_i``, plus ``Σ (a_i/e_i)·(λ/(e_i+λ))²``: with no more samples than
    features both RSS and n − df fall to zero with λ, and the first form would leave only rounding of their ratio.

    Args:
        eigenvalues: (d,) e_i ≥ 0 of the Gram matrix, centred where the bias is free; exactly zero beyond its rank.
        energy: (d,) a_i, squared norms of the rotated moment, centred likewise.
        target_energy: () tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return 1.0
    used = eigenvalues > 0
    eigenvalues, explained = eigenvalues[used], energy[used] / eigenvalues[used]
    spare = samples - free - len(eigenvalues)
    unexplained = (target_energy - explained.sum()).clamp_min(0) if spare > 0 else torch.zeros_like(target_energy)
    grid = GCV_GRID.to(eigenvalues) * mean
    left = grid[:, None] / (eigenvalues + grid[:, None])
    rss = unexplained + (explained * left.square()).sum(1)
    freedom = spare + left.sum(1)  # n − df
    score = samples * rss / freedom.square()
    score[(freedom <= 0) | (grid < SMALLEST * torch.finfo(grid.dtype).eps * eigenvalues.max())] = torch.inf
    # Ties go to the largest ridge: with nothing to fit (one class so far) the simplest solution is right.
    return grid[len(grid) - 1 - score.flip(0).argmin()].item()
