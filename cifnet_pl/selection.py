"""Which embeddings of a class the calibration buffer keeps: herding, k-means and centroid (the paper's tab:sampling).

Every strategy maps (z, keys, seed, quota) of one class, sorted by key, to the rows to keep, best first: when the
class's quota shrinks later on, the buffer keeps the beginning of that order. All distances are Euclidean, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def select_centroid(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """The ``quota`` embeddings nearest to the mean of the class, nearest first."""
    z = z.double()
    return torch.argsort((z - z.mean(dim=0)).square().sum(dim=1), stable=True)[:quota]


def select_herding(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Greedy mean matching (iCaRL's herding): each pick brings the mean of the picks closest to the class mean.

    As in iCaRL the embeddings (n, d) are L2-normalised first. The first k picks are herding's choice of k.
    """
    z = torch.nn.functional.normalize(z.double(), dim=1)
    mean, total = z.mean(dim=0), torch.zeros_like(z[0])
    norms = z.square().sum(dim=1)
    taken = torch.zeros(len(z), dtype=torch.bool, device=z.device)
    picks = []
    for k in range(1, min(quota, len(z)) + 1):
        # ‖(total + z_i)/k − mean‖² without the terms that are common to all i.
        wanted = k * mean - total
        gap = (norms - 2 * (z @ wanted)).masked_fill(taken, torch.inf)
        best = gap.argmin()
        picks.append(best)
        taken[best] = True
        total += z[best]
    return torch.stack(picks)


def select_kmeans(z: Tensor, keys: Tensor, seed: int, quota: int) -> Tensor:
    """Of ``quota`` k-means clusters the member nearest to each centre, largest cluster first.

    Clusters that stay empty (fewer distinct embeddings than ``quota``) are made up for by the embeddings that are
    nearest to the centre of their own cluster.
    """
    from sklearn.cluster import KMeans

    if quota >= len(z):
        return select_centroid(z, keys, seed, quota)
    points = z.double().cpu()
    clusters = min(quota, len(torch.unique(points, dim=0)))
    model = KMeans(n_clusters=clusters, n_init=1, random_state=seed).fit(points.numpy())
    label = torch.from_numpy(model.labels_).long()
    centres = torch.from_numpy(model.cluster_centers_)
    size = torch.bincount(label, minlength=clusters)
    gap = (points - centres[label]).square().sum(dim=1)
    # By cluster size, then cluster, then distance: three stable sorts, the least important first.
    order = torch.argsort(gap, stable=True)
    order = order[torch.argsort(label[order], stable=True)]
    order = order[torch.argsort(size[label[order]], descending=True, stable=True)]
    first = torch.ones(len(order), dtype=torch.bool)
    first[1:] = label[order][1:] != label[order][:-1]
    others = order[~first]
    rest = others[torch.argsort(gap[others], stable=True)]
    return torch.cat([order[first], rest])[:quota].to(z.device)
