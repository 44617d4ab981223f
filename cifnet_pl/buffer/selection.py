"""Strategies that select the samples of a class which the calibration buffer keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""Increment of SplitMix64: 2⁶⁴ divided by the golden ratio."""

SPLIT_MIX_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shift and factor of the two steps of SplitMix64's finaliser."""


def split_mix(x: np.ndarray) -> np.ndarray:
    """Mix the bits of (…) uint64 by SplitMix64's finaliser; the same on every machine."""
    with np.errstate(over="ignore"):
        for shift, factor in SPLIT_MIX_STEPS:
            shifted = x >> np.uint64(shift)
            mixed = x ^ shifted
            x = mixed * np.uint64(factor)
    shifted = x >> np.uint64(31)
    return np.asarray(x ^ shifted)


def mix_keys(keys: Tensor, seed: int) -> Tensor:
    """Hash sample keys with a seed, uniformly.

    Args:
        keys: (n,) int64.
        seed: 0 or more.

    Returns:
        (n,) int64.
    """
    with np.errstate(over="ignore"):
        offset = np.uint64(seed + 1) * GOLDEN
        values = keys.cpu().numpy().astype(np.uint64)
        x = values + offset
    hashes = split_mix(x).astype(np.int64)
    return torch.from_numpy(hashes).to(keys.device)


def select_random(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` samples with the smallest seeded hash, in that order (bottom-k).

    The selection depends on the keys alone, not on batch order, batch size or process. The
    selection from a union is the bottom-k of the selections from its parts.

    Example:
        >>> keys = torch.arange(100)
        >>> picks = select_random(torch.zeros(100, 1), keys, seed=0, quota=3)
        >>> parts = [half[select_random(torch.zeros(50, 1), half, 0, 3)] for half in keys.split(50)]
        >>> set(picks.tolist()) <= set(torch.cat(parts).tolist())
        True
    """
    hashes = mix_keys(keys, seed)
    return torch.argsort(hashes, stable=True)[:quota]


def select_centroid(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` embeddings nearest to the mean of the class, nearest first.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    z = z.double()
    centred = z - z.mean(dim=0)
    squared_distance = centred.square().sum(dim=1)
    return torch.argsort(squared_distance, stable=True)[:quota]


def select_herding(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select by herding (iCaRL): each pick brings the mean of the picks closest to the class mean.

    As in iCaRL the embeddings are L2-normalised first. The first k picks are herding's choice of k.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    doubles = z.double()
    z = torch.nn.functional.normalize(doubles, dim=1)
    mean = z.mean(dim=0)
    norms = z.square().sum(dim=1)
    total = torch.zeros_like(mean)
    picked = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    picks = list[Tensor]()
    count = min(quota, len(z))
    for k in range(1, count + 1):
        # ‖(total + z_i)/k − mean‖² without the terms that are common to all i.
        target = k * mean - total
        projected = z @ target
        distance = norms - 2 * projected
        remaining = distance.masked_fill(picked, torch.inf)
        nearest = remaining.argmin()
        picks.append(nearest)
        picked[nearest] = True
        total += z[nearest]
    return torch.stack(picks)


def select_kmeans(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the member nearest to the centre of each of ``quota`` k-means clusters.

    Members of large clusters come first. With fewer distinct embeddings than ``quota`` some
    clusters are empty: further members follow, those nearest to a centre first.

    Returns:
        (min(quota, n),) int64 positions of the samples, best first.
    """
    from sklearn.cluster import KMeans

    if quota >= len(z):
        return select_centroid(z, keys, seed, quota)
    points = z.double().cpu()
    distinct = torch.unique(points, dim=0)
    clusters = min(quota, len(distinct))
    model = KMeans(n_clusters=clusters, n_init=1, random_state=seed)
    model.fit(points.numpy())
    label = torch.from_numpy(model.labels_).long()
    centres = torch.from_numpy(model.cluster_centers_)
    size = torch.bincount(label, minlength=clusters)
    centred = points - centres[label]
    distance = centred.square().sum(dim=1)
    in_order = np.lexsort((distance, label, -size[label]))
    order = torch.from_numpy(in_order)
    sorted_label = label[order]
    is_first = torch.ones(len(order), dtype=torch.bool)
    is_first[1:] = sorted_label[1:] != sorted_label[:-1]
    others = order[~is_first]
    by_distance = torch.argsort(distance[others], stable=True)
    rest = others[by_distance]
    first = order[is_first]
    ranked = torch.cat([first, rest])
    return ranked[:quota].to(z.device)


class UniqueKeys(NamedTuple):
    """Sample keys without repeats.

    Attributes:
        keys: (m,) int64, ascending.
        rows: (m,) int64, the first row of each key.
    """

    keys: Tensor
    rows: Tensor


def unique_by_key(key: Tensor) -> UniqueKeys:
    """Sort sample keys (n,) int64, each key once."""
    values = key.cpu().numpy()
    keys, rows = np.unique(values, return_index=True)
    device = key.device
    return UniqueKeys(
        torch.from_numpy(keys).to(device), torch.from_numpy(rows).to(device)
    )


Strategy = Literal["random", "herding", "kmeans", "centroid"]
"""Names of the selection strategies."""

Select = Callable[[Tensor, Tensor, int, int], Tensor]
"""Function from embeddings (n, d), keys (n,), seed and quota to positions, best first."""

STRATEGIES: dict[str, Select] = {
    "random": select_random,
    "herding": select_herding,
    "kmeans": select_kmeans,
    "centroid": select_centroid,
}
"""Name → selection strategy."""

STREAMING = {"random"}
"""Strategies that may prune early: selecting from a union equals selecting from its selections."""
