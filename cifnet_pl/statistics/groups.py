"""Find images that are not independent: near-duplicates, and groups such as days or bursts.

Both come from one clustering of each class: average linkage of embeddings less the mean of all, by
their cosine. Names, their order and times are not looked at.

An image whose group was learned says nothing of images of new groups. Images of one group are
similar, but so are independent images of a homogeneous class. They differ in what it costs to leave
out the most similar ones: ``docs/studies/new_groups.md`` has the measurements.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.statistics.leaving_out import LeftOut

NEAR_DUPLICATE = 0.87
"""Mean cosine within a cluster from which on its images are near-duplicates.

Of 20,000 independent images (Tiny-ImageNet) 50 are in such clusters, of 2,822 of Caltech-101, which
has mirrored and cut versions, 169, and of 1,350 of shelves in bursts 588."""

PART = 0.25
"""Share of its class that the cluster of an image has, on average, where groups are looked for.

It is what one day of four is of a class. With 15, 20 and 25 % sets of 95 % cover 86.2, 91.7 and
94.5 % of images of other days (``docs/studies/new_groups.md``)."""

SIMILAR = 0.8
"""Mean cosine within a cluster from which on its images show whether a class comes in groups.

Independent images are hardly ever so similar, or where they are, as digits, cost nothing."""

COST = 2.0
"""Odds of an error without similar images, relative to those without a random set, of groups.

The ratio is 1.0 on independent images embedded by a network and 1.3 to 1.9 on raw pixels, and 2.0
to 3.6 on shelves in bursts, 1 where no image is predicted wrongly
(``docs/studies/new_groups.md``)."""


class Clusters:
    """The clusters of the images of each class, from single images to the whole class.

    Args:
        z: (n, d) embeddings.
        columns: (n,) int64 class of each.
        mean: (d,) of the embeddings of all classes; None if these are all.

    Attributes:
        trees: of each class the (m,) positions of its images, in an order that depends on their
            embeddings alone, and their average linkage (m − 1, 4) as SciPy has it.
    """

    def __init__(self, z: Tensor, columns: Tensor, mean: Tensor | None = None):
        self.count = len(z)
        z = z.double()
        if mean is None:
            mean = z.mean(dim=0)
        centred = z - mean
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
            self.trees.append((rows, tree))

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

    def similar_sets(self) -> Tensor:
        """Return (2, n) clusters of similar images, and sets of the same sizes.

        Clusters of images so similar that they show whether a class has groups are in the first
        row; in the second row are images of the same classes at random.
        """
        similar = self.within(1 - SIMILAR)
        at_random = similar.clone()
        for rows, _ in self.trees:
            shuffled = np.random.default_rng(0).permutation(len(rows))
            at_random[rows] = similar[rows[shuffled]]
        return torch.stack([similar, at_random])

    def groups(self) -> Tensor:
        """Return (n,) clusters, cut at the distance where the mean one is ``PART`` of its class.

        They are the groups of images that are not independent. The mean is over images. A merge of
        clusters of a and b images raises the sum of squared sizes by 2ab. The near-duplicates by
        which a run divides its images are not used here: they are found in files, which a model
        that is extended or merged may no longer have.
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
        merges = int((mean_parts <= PART).sum())
        rising = np.concatenate([[0.0], all_distances[order]])
        return self.within(float(rising[merges]))


def near_duplicates(z: Tensor, columns: Tensor) -> Tensor:
    """Return (n,) int64, equal for images of one class that are near-duplicates.

    Args:
        z: (n, d) embeddings, of several classes.
        columns: (n,) int64 class of each.
    """
    return Clusters(z, columns).within(1 - NEAR_DUPLICATE).to(z.device)


class Evidence(NamedTuple):
    """Errors that tell whether images are independent.

    Attributes:
        without_similar: errors on images without all similar images of their class.
        at_random: errors on the same images, each without a random set of its class, as large.
        images: number of these images.
    """

    without_similar: float
    at_random: float
    images: float

    @property
    def dependent(self) -> bool:
        """Whether the images of a cluster must be left out together.

        They must where the odds of an error are ``COST`` times those without a random set.
        """
        odds = (1 + self.without_similar) / (1 + self.images - self.without_similar)
        odds_at_random = (1 + self.at_random) / (1 + self.images - self.at_random)
        return odds >= COST * odds_at_random

    @property
    def is_clear(self) -> bool:
        """Whether the errors tell that images are dependent, or that they are not.

        They are not where so few errors without similar images would have a probability of 5 %, if
        their odds were ``COST`` times those without a random set.
        """
        from scipy.stats import binom  # imported here: to classify needs none of it

        errors = self.without_similar + self.at_random
        expected = COST / (1 + COST)
        probability = binom.cdf(self.without_similar, errors, expected)
        return self.dependent or bool(probability <= 0.05)


def group_evidence(
    sets: Tensor,
    columns: Tensor,
    left_out: LeftOut,
    counts: Tensor,
) -> Evidence:
    """Count errors without similar images, over those whose class is known without these.

    Similar images of independent ones tell no more than others do, those of a burst tell its class.
    Of a class whose images are all similar nothing is known without them.
    The result does not depend on the order of the images.

    Args:
        sets: (2, n) int64, equal for similar images, all of each cluster, and for those of a random
            set (:meth:`Clusters.similar_sets`).
        columns: (n,) int64 column of each one's class in the scores.
        left_out: function from groups to the scores of one rule, as the weights of several are
            fitted without the groups; NaN where nothing is known.
        counts: (n,) float64 number of images that each stands for.
    """
    _, cluster, sizes = torch.unique(sets[0], return_inverse=True, return_counts=True)
    known = sizes[cluster] < columns.bincount()[columns]  # others of the class are left
    wrong = []
    for groups in sets:
        scores = left_out(groups)
        known &= scores.isfinite().all(dim=1)
        wrong.append((scores.argmax(dim=1) != columns).double())
    counts = counts[known]
    without_similar, at_random = (float(counts @ each[known]) for each in wrong)
    return Evidence(without_similar, at_random, float(counts.sum()))
