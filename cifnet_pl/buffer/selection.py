"""Strategies that select which embeddings of a class the calibration buffer keeps.

All ``select_…`` functions have the same arguments and result:

Args:
    z: (n, d) embeddings of one class, sorted by key.
    keys: (n,) int64 identity of each.
    seed: of the strategies that draw.
    quota: number of embeddings to keep.

Returns:
    (min(n, quota),) int64, rows of ``z``, best first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.utilities.blas_threads import one_thread


def mix_keys(keys: Tensor, seed: int) -> Tensor:
    """Hash sample keys with a seed (SplitMix64's finaliser); uniform, and the same on every machine.

    Args:
        keys: (n,) int64.
        seed: 0 or more.

    Returns:
        (n,) int64.
    """
    with np.errstate(over="ignore"):
        x = keys.cpu().numpy().astype(np.uint64) + np.uint64(seed + 1) * np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        x ^= x >> np.uint64(31)
    return torch.from_numpy(x.astype(np.int64)).to(keys.device)


def select_random(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` samples with the smallest seeded hash, in that order (bottom-k sampling).

    Which samples are kept depends on their keys alone, not on batch order, batch size or process, and the
    sample of a union is the bottom-k of the samples of its parts.

    Example:
        >>> keys = torch.arange(100)
        >>> picks = select_random(torch.zeros(100, 1), keys, seed=0, quota=3)
        >>> halves = torch.cat([select_random(torch.zeros(50, 1), half, 0, 3) + half[0] for half in keys.split(50)])
        >>> set(picks.tolist()) <= set(halves.tolist())
        True
    """
    return torch.argsort(mix_keys(keys, seed), stable=True)[:quota]


def select_centroid(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the ``quota`` embeddings nearest to the mean of the class, nearest first."""
    z = z.double()
    return torch.argsort((z - z.mean(dim=0)).square().sum(dim=1), stable=True)[:quota]


def select_herding(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select by greedy mean matching (iCaRL's herding): each pick brings the picks' mean closest to the class mean.

    As in iCaRL the embeddings are L2-normalised first. The first k picks are herding's choice of k.
    """
    z = torch.nn.functional.normalize(z.double(), dim=1)
    mean, total = z.mean(dim=0), torch.zeros_like(z[0])
    norms = z.square().sum(dim=1)
    taken = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    picks: list[Tensor] = []
    for k in range(1, min(quota, len(z)) + 1):
        # ‖(total + z_i)/k − mean‖² without the terms that are common to all i.
        wanted = k * mean - total
        gap = (norms - 2 * (z @ wanted)).masked_fill(taken, torch.inf)
        picks.append(gap.argmin())
        taken[picks[-1]] = True
        total += z[picks[-1]]
    return torch.stack(picks)


def select_kmeans(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Select the member nearest to the centre of each of ``quota`` k-means clusters; large clusters come first.

    With fewer distinct embeddings than ``quota`` some clusters are empty: further members nearest to a centre follow.
    """
    from sklearn.cluster import KMeans

    if quota >= len(z):
        return select_centroid(z, keys, seed, quota)
    points = z.double().cpu()
    clusters = min(quota, len(torch.unique(points, dim=0)))
    with one_thread:
        model = KMeans(n_clusters=clusters, n_init=1, random_state=seed).fit(points.numpy())
    label = torch.from_numpy(model.labels_).long()
    centres = torch.from_numpy(model.cluster_centers_)
    size = torch.bincount(label, minlength=clusters)
    gap = (points - centres[label]).square().sum(dim=1)
    order = torch.from_numpy(np.lexsort((gap, label, -size[label])))
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = label[order][1:] != label[order][:-1]
    others = order[~first]
    rest = others[torch.argsort(gap[others], stable=True)]
    return torch.cat([order[first], rest])[:quota].to(z.device)


def unique_by_key(key: Tensor) -> tuple[Tensor, Tensor]:
    """Sort samples by their keys, each key once.

    Args:
        key: (n,) int64.

    Returns:
        (m,) int64 keys, rising, and (m,) int64 the first row of each.
    """
    keys, rows = (torch.from_numpy(x).to(key.device) for x in np.unique(key.cpu().numpy(), return_index=True))
    return keys, rows


Strategy = Literal["random", "herding", "kmeans", "centroid"]
"""Names of the strategies; the function of each is called ``select_<name>``."""

Select = Callable[[Tensor, Tensor, int, int], Tensor]
STRATEGIES: dict[str, Select] = {name: globals()[f"select_{name}"] for name in get_args(Strategy)}
"""Name → function of this module."""

STREAMING = {"random"}
"""Strategies whose selection from a union is the selection from its selections, so that they may prune early."""
