"""Find look-alikes: embeddings of one class whose photos are of one moment, or one edited from the other.

How alike two embeddings are is said relative to photos of different classes, as networks differ in what is common to
all their embeddings: ``(s − b)/(1 − b)`` with s the cosine of the two and b the median cosine between classes.
The limit was measured with the default backbone at 128 px. Of 25 000 photos of 100 classes
(Tiny-ImageNet) 4 are above it, of 5975 photos of 101 classes (Caltech-101) 393: there mirrored, cut or re-coloured
versions, and drawings of one sign. Of pairs of photos that differ by 4 % of the frame 77 and 93 % are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

SIMILAR = 0.83
"""Similarity, 1 for equal and 0 for photos of different classes, from which two photos of a class are near-copies."""

COPY = 0.96
"""Cosine from which two look-alikes are told to the user as near-copies: one scene, edited or moved a little.

Of pairs of groceries above it all are of one heap of fruit; around 0.94 they are of different heaps. Of photos that
were saved anew or moved by 2 % of the frame 8 of 10 are above, of those 10 % brighter all.
"""

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


def copy_limit(u: Tensor, y: Tensor) -> float | None:
    """Return the cosine from which two photos of a class are told as near-copies, as :func:`near_limit`.

    It does not move with the classes, unless the network's embeddings of all photos are alike.
    """
    limit = near_limit(u, y)
    return None if limit is None else max(limit, COPY)


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
    groups = torch.arange(len(u), device=u.device)
    for label in torch.unique(y).tolist():
        rows = (y == label).nonzero().flatten()
        groups[rows] = rows[joined(partial(_picked, u, rows), len(rows), limit).to(u.device)]
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    return numbers


def _picked(u: Tensor, rows: Tensor, part: Tensor) -> Tensor:
    return u[rows[part.to(rows.device)]]


def joined(read: Callable[[Tensor], Tensor], count: int, limit: float) -> Tensor:
    """Join near-copies among samples of one class, of which ``2·BLOCK`` are in memory at once.

    Args:
        read: (m,) positions → (m, d) embeddings from :func:`comparable`.
        count: number of samples n.
        limit: from :func:`near_limit`.

    Returns:
        (n,) int64 position of the first sample of each one's group.
    """
    first = np.arange(count)
    parts = torch.split(torch.arange(count), BLOCK)
    for i, one in enumerate(parts):
        left = read(one).float()
        for j, other in enumerate(parts[: i + 1]):
            right = left if j == i else read(other).float()
            pairs = (left @ right.T > limit).nonzero().cpu() + torch.tensor([one[0], other[0]])
            if len(pairs) > (len(one) if j == i else 0):  # more than each one with itself
                first = _first_of_components(np.concatenate([pairs.numpy().T, [np.arange(count), first]], axis=1))
    return torch.from_numpy(first)


def _first_of_components(pairs: np.ndarray) -> np.ndarray:
    """Return the smallest vertex that is connected with each of 0 … n−1, for the edges (2, m) of a graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    vertices = int(pairs.max()) + 1
    graph = coo_array((np.ones(pairs.shape[1], dtype=bool), tuple(pairs)), shape=(vertices, vertices))
    _, components = connected_components(graph, directed=False)
    return np.asarray(np.unique(components, return_index=True)[1][components])
