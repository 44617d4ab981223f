"""Find images that are not independent: near-duplicates, and groups such as days or bursts.

Both come from one clustering of each class: average linkage of embeddings less the mean of all, by
their cosine. Names, their order and times are not looked at.

An image whose group was learned says nothing of images of new groups. Images of one group are
similar, but so are independent images of a homogeneous class. They differ in what it costs to leave
them out together: ``docs/studies/new_groups.md`` has the measurements.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.statistics.leaving_out import LeftOut, errors

NEAR_DUPLICATE = 0.87
"""Mean cosine within a cluster from which on its images are near-duplicates.

Of 20,000 independent images (Tiny-ImageNet) 50 are in such clusters, of 2,822 of Caltech-101, which
has mirrored and cut versions, 169, and of 1,350 of shelves in bursts 588."""

PART = 0.25
"""Share of its class that the cluster of an image has, on average, where groups are looked for.

It is what one day of four is of a class. With 15, 20 and 25 % sets of 95 % cover 86.2, 91.7 and
94.5 % of images of other days (``docs/studies/new_groups.md``)."""

COST = 2.0
"""Errors without whole clusters, relative to random sets of their sizes, of images in groups.

The ratio is 0.6 to 2.0 on independent images (Tiny-ImageNet, Caltech-101), and 1.0 to 15 on shelves
in bursts, near 1 where hardly any image is predicted wrongly (``docs/studies/new_groups.md``)."""

DRAWS = 5
"""Random sets that the errors are compared with, on average.

The errors of one vary by 8 %, the mean of five by 3.5 % (1438 digits, 37 errors)."""


class _Tree(NamedTuple):
    """The average linkage of the images of one class.

    Attributes:
        rows: (m,) positions of the images, in an order that depends on their embeddings alone.
        linkage: (m − 1, 4) as scipy has it.
    """

    rows: np.ndarray
    linkage: np.ndarray


class Clusters:
    """The clusters of the images of each class, from single images to the whole class.

    Args:
        z: (n, d) embeddings.
        columns: (n,) int64 class of each.
    """

    def __init__(self, z: Tensor, columns: Tensor):
        self.count = len(z)
        z = z.double()
        centred = z - z.mean(dim=0)
        unit = normalize(centred, dim=1).cpu().numpy()
        y = columns.cpu().numpy()
        order = np.lexsort(unit.T[:3])
        self.trees = []
        for label in np.unique(y):
            is_own = y[order] == label
            rows = order[is_own]
            of_class = unit[rows]
            cosines = of_class @ of_class.T
            distance = (1 - cosines).clip(0)
            np.fill_diagonal(distance, 0)
            tree = np.empty((0, 4))
            if len(rows) > 1:
                condensed = squareform(distance, checks=False)
                tree = linkage(condensed, "average")
            self.trees.append(_Tree(rows, tree))

    def within(self, distance: float) -> Tensor:
        """Return (n,) clusters made by merges up to a distance, 1 less the mean cosine."""
        groups = np.zeros(self.count, dtype=np.int64)
        used = 0
        for rows, tree in self.trees:
            groups[rows] = used
            if len(rows) > 1:
                groups[rows] += fcluster(tree, distance, "distance") - 1
            used = int(groups[rows].max()) + 1
        return torch.from_numpy(groups)

    def of_part(self, part: float) -> Tensor:
        """Return (n,) clusters, cut at the distance where the mean cluster is a part of its class.

        The mean is over images. A merge of clusters of a and b images raises the sum of squared
        sizes by 2ab.
        """
        distances = []
        rises = []
        for rows, tree in self.trees:
            single = np.ones(len(rows))
            sizes = np.concatenate([single, tree[:, 3]])
            first, second = tree[:, :2].astype(np.int64).T
            rise = 2 * sizes[first] * sizes[second] / len(rows)
            rises.append(rise)
            distances.append(tree[:, 2])
        all_distances = np.concatenate(distances)
        all_rises = np.concatenate(rises)
        order = np.argsort(all_distances, kind="stable")
        # Without merges each image is its own cluster: 1/m of its class of m, a sum of 1 a class.
        sum_of_parts = len(self.trees) + all_rises[order].cumsum()
        mean_parts = sum_of_parts / self.count
        merges = int((mean_parts <= part).sum())
        rising = np.concatenate([[0.0], all_distances[order]])
        return self.within(float(rising[merges]))

    def dealt(self, groups: Tensor, draw: int) -> Tensor:
        """Return groups (n,) of the same sizes, of images of the same classes at random."""
        dealt = groups.clone()
        for rows, _ in self.trees:
            shuffled = np.random.default_rng(draw).permutation(len(rows))
            dealt[rows] = groups[rows[shuffled]]
        return dealt


def near_duplicates(z: Tensor, columns: Tensor) -> Tensor:
    """Return (n,) int64, equal for images of one class that are near-duplicates.

    Args:
        z: (n, d) embeddings, of several classes.
        columns: (n,) int64 class of each.
    """
    return Clusters(z, columns).within(1 - NEAR_DUPLICATE).to(z.device)


class FoundGroups(NamedTuple):
    """Clusters of images, and whether these are groups.

    Attributes:
        clusters: (n,) int64, equal for images of one cluster.
        dependent: whether the images of a cluster must be left out together.
        cost: errors without the clusters, relative to random sets.
    """

    clusters: Tensor
    dependent: bool
    cost: float


def find_groups(z: Tensor, columns: Tensor, left_out: LeftOut) -> FoundGroups:
    """Find the groups of learned images that are not independent.

    They are the clusters of which the mean one is ``PART`` of its class, if ``(1 + errors without
    the own cluster)/(1 + errors without a random set of its size and class)`` is at least ``COST``,
    over the images whose class is known without their cluster. The result does not depend on the
    order of the images. The near-duplicates by which a run divides its images are not used here:
    they are found in files, which a model that is extended or merged may no longer have.

    Args:
        z: (n, d) embeddings of learned images.
        columns: (n,) int64 column of each one's class in the scores.
        left_out: function from groups to the scores of one rule, as the weights of several are
            fitted without the groups; NaN where nothing is known.
    """
    clusters = Clusters(z, columns)
    groups = clusters.of_part(PART)
    wrong = errors(left_out(groups.to(z.device)), columns)
    known = wrong.isfinite()
    wrong_at_random = []
    for draw in range(DRAWS):
        dealt = clusters.dealt(groups, draw)
        scores = left_out(dealt.to(z.device))
        wrong_at_random.append(errors(scores, columns)[known])
    in_each_draw = torch.stack(wrong_at_random).nan_to_num(1.0).sum(dim=1)
    expected = in_each_draw.mean()
    found = wrong[known].sum()
    cost = float((1 + found) / (1 + expected))
    return FoundGroups(groups.to(z.device), cost >= COST, cost)
