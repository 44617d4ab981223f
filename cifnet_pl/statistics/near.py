"""Find near-copies: embeddings of one class whose photos are of one moment, or one edited from the other.

How alike two embeddings are is said relative to photos of different classes, as networks differ in what is common to
all their embeddings: ``(s − b)/(1 − b)`` with s the cosine of the two and b the median cosine between classes.
``benchmarks/near_copies.py`` measures the limit with the default backbone at 128 px. Of 25 000 photos of 100 classes
(Tiny-ImageNet) 4 are above it, of 5975 photos of 101 classes (Caltech-101) 393: there mirrored, cut or re-coloured
versions, and drawings of one sign. Of pairs of photos that differ by 4 % of the frame 77 and 93 % are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SIMILAR = 0.83
"""Similarity, 1 for equal and 0 for photos of different classes, from which two photos of a class are near-copies."""

BLOCK = 1024
"""Rows compared at once: at most BLOCK² similarities are in memory."""

SAMPLED = 512
"""Photos that the similarity between classes is measured on, at most."""


def comparable(z: Tensor) -> Tensor:
    """Return the signed square roots of (n, d) embeddings, L2-normalised, float32: their products are cosines."""
    z = z.float()
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def near_limit(u: Tensor, y: Tensor) -> float | None:
    """Return the cosine from which two photos of a class are near-copies.

    Args:
        u: (n, d) from :func:`comparable`, of photos of any classes by the same network.
        y: (n,) their labels.

    Returns:
        The limit; None without photos of two classes.
    """
    step = -(-len(u) // SAMPLED)
    order = torch.argsort(y, stable=True)[:: max(step, 1)]  # of all classes alike
    sample, labels = u[order].float(), y[order]
    similar = (sample @ sample.T)[labels[:, None] != labels]
    if not len(similar):
        return None
    between = float(similar.median())
    return between + SIMILAR * (1 - between)


def resembles(u: Tensor, y: Tensor, others: Tensor, labels: Tensor, limit: float) -> Tensor:
    """Find the samples that have a near-copy of their class among others.

    Args:
        u: (n, d) from :func:`comparable`.
        y: (n,) their labels.
        others: (m, d) from :func:`comparable`.
        labels: (m,) labels of ``others``.
        limit: from :func:`near_limit`.

    Returns:
        (n,) bool.
    """
    near = torch.zeros(len(u), dtype=torch.bool, device=u.device)
    for label in torch.unique(y).tolist():
        rows, same_class = (y == label).nonzero().flatten(), others[labels == label].float()
        for chunk in torch.split(rows, BLOCK):
            for block in torch.split(same_class, BLOCK):
                near[chunk] |= (u[chunk].float() @ block.T > limit).any(dim=1)
    return near


def left_out_groups(groups: Tensor, y: Tensor) -> Tensor:
    """Return which samples are left out together: those of one group, if it has at most half of its class.

    The others stand alone: without their group little would be known of the class.

    Args:
        groups: (n,) int64 from :func:`near_groups`.
        y: (n,) labels.
    """
    of_class = torch.unique(y, return_inverse=True)[1]
    too_large = 2 * groups.bincount()[groups] > of_class.bincount()[of_class]
    alone = len(y) + torch.arange(len(y), device=y.device)
    return torch.where(too_large, alone, groups)


def near_groups(u: Tensor, y: Tensor, limit: float) -> Tensor:
    """Join near-copies of one class, and near-copies of near-copies, into groups.

    Args:
        u: (n, d) from :func:`comparable`.
        y: (n,) labels; samples of different classes are never joined.
        limit: from :func:`near_limit`.

    Returns:
        (n,) int64 number of each sample's group.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    pairs = [np.zeros((2, 0), dtype=np.int64)]
    for label in torch.unique(y).tolist():
        parts = torch.split((y == label).nonzero().flatten(), BLOCK)
        for i, one in enumerate(parts):
            for other in parts[: i + 1]:
                pair = (u[one].float() @ u[other].float().T > limit).nonzero(as_tuple=True)
                pairs.append(np.stack([one[pair[0]].cpu().numpy(), other[pair[1]].cpu().numpy()]))
    rows, columns = np.concatenate(pairs, axis=1)
    graph = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(u), len(u)))
    groups = connected_components(graph, directed=False)[1]
    return torch.from_numpy(groups.astype(np.int64)).to(u.device)
