"""Score learned samples as if their whole group (a burst, copies, near-copies) had never been learned.

Without the rows X of a group, with weights Ω and targets Y, ridge regression gives these very samples the scores
``(I − HΩ)⁻¹(S − HΩY)`` with S their scores and ``H = X(A + D)⁻¹Xᵀ`` (Woodbury). For one row that is
``(s − h·y)/(1 − h)``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cifnet_pl.statistics.solve import factorise

ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""


def half_products(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """Compute the rows B with ``B Bᵀ = X(gram + diag(penalty))⁻¹Xᵀ``.

    Args:
        gram: (p, p) Gram matrix of all learned samples.
        penalty: (p,) ridge of each feature, 0 for one that is free.
        x: (n, p) rows.

    Returns:
        (n, p) float64.

    Raises:
        CifnetError: ``gram + diag(penalty)`` is not positive definite.
    """
    factor = factorise(gram.double(), penalty.double())  # a ridge that eigh solves with may be small for float32
    half: Tensor = torch.linalg.solve_triangular(factor, x.T.double(), upper=False)
    return half.T


def left_out(scores: Tensor, share: Tensor, targets: Tensor) -> Tensor:
    """Return the scores of samples without their own part in the solve: ``(score − h·y)/(1 − h)``.

    Args:
        scores: (n, C) of samples that were learned.
        share: h, (n,) or (n, C): the sample's weight times its leverage; 0 where it was never seen.
        targets: (n, C) targets that the solve used.

    Returns:
        (n, C) float64; NaN where h is 1 but for rounding: without the sample nothing is known of its score.

    Example:
        >>> left_out(torch.tensor([[2.0]]), torch.tensor([0.5]), torch.tensor([[3.0]])).item()
        1.0
    """
    share = (share if share.ndim == 2 else share[:, None]).double()
    result = (scores.double() - share * targets) / (1 - share)
    return result.masked_fill(1 - share < ROUNDING, torch.nan)


def shared_groups(groups: Tensor) -> Iterator[Tensor]:
    """Yield the rows of every group (n,) int64 that has more than one."""
    order = torch.argsort(groups, stable=True)
    sizes = torch.unique_consecutive(groups[order], return_counts=True)[1]
    for rows in torch.split(order, sizes.tolist()):
        if len(rows) > 1:
            yield rows


def left_out_together(scores: Tensor, half: Tensor, weight: Tensor, targets: Tensor, groups: Tensor | None) -> Tensor:
    """Return the scores (n, C) of samples without all samples of their group, at the same ridge.

    Args:
        scores: (n, C) of samples that were learned.
        half: (n, p) from :func:`half_products`.
        weight: (n,) of each sample in the sums; 0 where it was never seen.
        targets: (n, C) targets that the solve used.
        groups: (n,) int64 number of each sample's group; None where each stands alone.

    Returns:
        (n, C) float64; NaN where without the group nothing is known of a sample's score.
    """
    weight, targets, scores = weight.double(), targets.double(), scores.double()
    result = left_out(scores, weight * half.square().sum(dim=1), targets)
    for rows in shared_groups(groups) if groups is not None else ():
        result[rows] = _without_all(scores[rows], half[rows], weight[rows], targets[rows])
    return result


def _without_all(scores: Tensor, half: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Return the scores (m, C) of m samples without all of them.

    With ``R = S − HΩY`` and ``V = Ω^½B``, ``(I − HΩ)⁻¹R = R + BVᵀ(I − VVᵀ)⁻¹Ω^½R = R + B(I − VᵀV)⁻¹VᵀΩ^½R``: a system
    of m equations or of p, whichever is smaller, so that no matrix grows with m².
    """
    root = weight.sqrt()[:, None]
    v = root * half
    few = len(half) <= half.shape[1]
    products = v @ v.T if few else v.T @ v
    system = torch.eye(len(products), dtype=products.dtype, device=products.device) - products
    if torch.linalg.eigvalsh(system)[0] <= ROUNDING:
        return torch.full_like(scores, torch.nan)
    rest = scores - half @ (v.T @ (root * targets))
    solve = torch.linalg.solve
    result: Tensor = rest + half @ (v.T @ solve(system, root * rest) if few else solve(system, v.T @ (root * rest)))
    return result


def fewest_rows(rows: Tensor) -> Tensor:
    """Return rows R with ``RᵀR = XᵀX`` for the rows X (n, p), float64: X itself, or p of them where n is larger."""
    return rows if len(rows) <= rows.shape[1] else torch.linalg.qr(rows, mode="r").R
