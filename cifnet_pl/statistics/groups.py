"""Find images that are not independent and are left out together: near-duplicates, and groups.

Near-duplicates are of one moment, or edited one from the other. The similarity of two embeddings is
relative to images of different classes, as backbones differ in what is common to all their
embeddings: ``(s − b)/(1 − b)`` with s the cosine of the two and b the median cosine between
classes. The limit was measured with the default backbone at 128 px. Of 25,000 images of 100 classes
(Tiny-ImageNet) 4 are above it, of 5,975 images of 101 classes (Caltech-101) 393: there mirrored,
cut or re-coloured versions, and drawings of one sign. Of pairs of images that differ by 4 % of the
frame 77 and 93 % are.

A group is a day, a shelf or a burst. An image whose group was learned says nothing of images of new
groups. Images of one group are similar, but so are independent images of a homogeneous class. They
differ in the harm: leaving out the images most similar to an image must raise the error far more
than leaving out as many images of its class drawn at random. Names, their order and times are not
looked at. ``docs/studies/new_groups.md`` has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

NEAR_DUPLICATE = 0.83
"""Similarity from which on two images of a class are near-duplicates.

It is 1 for equal images, and 0 for images of different classes."""

BLOCK = 1024
"""Rows compared at a time: at most BLOCK² similarities are in memory."""

SAMPLES_BETWEEN_CLASSES = 512
"""Most images that the similarity between classes is measured on."""


def comparable(z: Tensor) -> Tensor:
    """Return the signed square roots of (n, d) embeddings, L2-normalised, float32: their products
    are cosines.
    """
    z = z.float()
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def near_limit(u: Tensor, y: Tensor) -> float | None:
    """Return the cosine from which two images of a class are near-duplicates.

    Args:
        u: (n, d) from :func:`comparable`, of images of any classes by the same network.
        y: (n,) their labels.

    Returns:
        The limit; None without images of two classes.
    """
    step = -(-len(u) // SAMPLES_BETWEEN_CLASSES)
    order = torch.argsort(y, stable=True)[:: max(step, 1)]  # of all classes alike
    sample = u[order].float()
    labels = y[order]
    similar = (sample @ sample.T)[labels[:, None] != labels]
    if not len(similar):
        return None
    between = float(similar.median())
    return between + NEAR_DUPLICATE * (1 - between)


def left_out_groups(groups: Tensor, y: Tensor) -> Tensor:
    """Return which samples are left out together: groups of at most half of their class.

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
    """Join near-duplicates of one class, and near-duplicates of near-duplicates, into groups.

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
        groups[rows] = rows[_joined(u[rows], limit).to(u.device)]
    numbers: Tensor = torch.unique(groups, return_inverse=True)[1]
    return numbers


def _joined(u: Tensor, limit: float) -> Tensor:
    """Return (n,) position of the first sample of each one's group, for samples of one class."""
    count = len(u)
    first = np.arange(count)
    parts = torch.split(torch.arange(count), BLOCK)
    for i, one in enumerate(parts):
        for j, other in enumerate(parts[: i + 1]):
            pairs = (
                u[one].float() @ u[other].float().T > limit
            ).nonzero().cpu() + torch.tensor([one[0], other[0]])
            if len(pairs) > (
                len(one) if j == i else 0
            ):  # more than each one with itself
                first = _first_of_components(
                    np.concatenate([pairs.numpy().T, [np.arange(count), first]], axis=1)
                )
    return torch.from_numpy(first)


def _first_of_components(pairs: np.ndarray) -> np.ndarray:
    """Return the smallest vertex connected with each of 0 … n−1, for edges (2, m) of a graph."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    vertices = int(pairs.max()) + 1
    graph = coo_array(
        (np.ones(pairs.shape[1], dtype=bool), tuple(pairs)), shape=(vertices, vertices)
    )
    _, components = connected_components(graph, directed=False)
    return np.asarray(np.unique(components, return_index=True)[1][components])


# ---------------------------------------------------------------------- groups

CUTS = (0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.55, 0.5)
"""Mean cosines of centred embeddings at which clusters are cut, the finest first."""

MIN_HARM = 2.0
"""Harm from which on images are not independent.

Of independent images (Tiny-ImageNet, Caltech-101, CIFAR-100, and 36 subsets) the largest is 1.36,
of bursts with ten or more images a class 2.3 or more."""

DRAWS = 2
"""Random groups of equal sizes that the errors are compared with, on average."""

FIRST_CUTS = (0.8, 0.7, 0.6)
MIN_FIRST_HARM = 1.5
"""Cuts that are tried first, with one draw; with less harm images are independent."""

HARM_POWER = 3.0
LARGEST_PART = 0.28
PART_POWER = 8
EXPECTED_ERRORS = 2
"""The weight of a cut is ``harm^3 · exp(−(part/0.28)^8)``, with two errors more by chance.

``part`` is the share of its class that the cluster of an image has, on average: where it is large,
errors are many because few images are left. Chosen on 19 sets (``python -m
benchmarks.studies.group_rule``)."""

PART_WITHOUT_WEIGHT = 0.45
"""A cut with a larger part has no weight."""

SMALLEST_WEIGHT = 0.02
"""Cuts of a smaller weight are left out of the average."""

MIN_IMAGES_PER_CLASS = 10
"""Images a class, on average, from which on groups can be found."""

CALIBRATION_QUANTILE = 0.75
"""Quantile of the weights, from fine to coarse, at which the grouping to calibrate by lies.

With the median, prediction sets for 95 % held 88 to 96 % on new groups; so they hold 92 to 97 %."""

Kind = Literal["found", "independent", "few"]


class WeightedGrouping(NamedTuple):
    """One way to group images.

    Attributes:
        groups: (n,) int64 group of each image.
        weight: how much it counts; the weights of all groupings sum to 1.
    """

    groups: Tensor
    weight: float


class FoundGroups(NamedTuple):
    """The images that are left out together.

    Attributes:
        kind: "found"; "independent", if no images come in groups; "few", if there are too few to
            tell.
        groupings: those that an estimate is averaged over, the finest first; empty unless groups
            were found.
        harm: mean cosine at which clusters were cut → harm, as far as it was measured.
    """

    kind: Kind
    groupings: tuple[WeightedGrouping, ...] = ()
    harm: dict[float, float] | None = None

    @property
    def groups(self) -> Tensor | None:
        """(n,) int64 group of each image, to calibrate by: those of a rather coarse grouping."""
        weight = 0.0
        for grouping in self.groupings:
            weight += grouping.weight
            if weight >= CALIBRATION_QUANTILE:
                return grouping.groups
        return None


class _Harm(NamedTuple):
    """Errors that leaving out clusters causes.

    Attributes:
        groups: (n,) the clusters.
        part: part of its class that an image's cluster is, on average.
        own: one more than the errors without them.
        chance: one more than the errors without random groups of their sizes.
        different: images that only one of the two gets right.
    """

    groups: np.ndarray
    part: float
    own: float
    chance: float
    different: float

    @property
    def ratio(self) -> float:
        return self.own / self.chance

    @property
    def is_certain(self) -> bool:
        """Whether the difference is above twice its standard error (McNemar)."""
        return bool(self.own - self.chance > 2 * self.different**0.5)

    @property
    def log_weight(self) -> float:
        harm = self.own / (self.chance + EXPECTED_ERRORS)
        part = self.part / LARGEST_PART
        return float(HARM_POWER * np.log(harm) - part**PART_POWER)


LeftOut = Callable[[Tensor | None], Tensor]
"""Function from groups (n,) int64 to the leave-one-group-out scores (n, C) of the images."""


def find_groups(z: Tensor, columns: Tensor, left_out: LeftOut) -> FoundGroups:
    """Find the groups of images that are left out together, from learned images alone.

    Clusters of each class are made by average linkage of embeddings less the mean of all, by their
    cosine, and cut at each of :data:`CUTS`. ``harm = (1 + errors without the own cluster) / (1 +
    errors without a random group of the same size)``, over the images whose class is known without
    their group. Finer cuts leave similar images behind. Coarser ones leave out so much of a class
    that random groups harm, too. The harm is largest between. If its largest value is below
    :data:`MIN_HARM`, or no difference above twice its standard error, images are independent.

    No single cut is chosen: where the harm of two is nearly equal, the choice would be by chance,
    and an estimate would jump. Each cut gets a weight, and estimates are averaged. The result does
    not depend on the order of the images.

    Args:
        z: (n, d) embeddings of learned images.
        columns: (n,) int64 column of each one's class in the scores.
        left_out: function from groups to scores; NaN where nothing is known.
    """
    y = columns.cpu().numpy()
    if len(y) < MIN_IMAGES_PER_CLASS * len(np.unique(y)):
        return FoundGroups("few")
    clusters = _Clusters(z, y, left_out)
    first = {cut: clusters.harm(cut, 1).ratio for cut in FIRST_CUTS}
    if max(first.values()) < MIN_FIRST_HARM:
        return FoundGroups("independent", harm=first)
    found = dict[float, _Harm]()
    for cut in CUTS:
        found[cut] = clusters.harm(cut, DRAWS)
        if found[cut].part > PART_WITHOUT_WEIGHT:  # so are all coarser ones
            break
    harm = {cut: each.ratio for cut, each in found.items()}
    if not any(each.ratio >= MIN_HARM and each.is_certain for each in found.values()):
        return FoundGroups("independent", harm=harm)
    return FoundGroups("found", _groupings(list(found.values()), z.device), harm)


def _groupings(
    found: list[_Harm], device: torch.device
) -> tuple[WeightedGrouping, ...]:
    """Return the groupings that count, with their weights."""
    log_weights = np.array([each.log_weight for each in found])
    weights = np.exp(log_weights - log_weights.max())
    weights[weights < SMALLEST_WEIGHT * weights.sum()] = 0.0
    weights /= weights.sum()
    groupings = list[WeightedGrouping]()
    for each, weight in zip(found, weights.tolist(), strict=True):
        if weight:
            groups = torch.from_numpy(each.groups).to(device)
            groupings.append(WeightedGrouping(groups, weight))
    return tuple(groupings)


class _Tree(NamedTuple):
    """The average linkage of the images of one class.

    Attributes:
        rows: (m,) positions of the images, in an order that depends on their embeddings alone.
        linkage: (m − 1, 4) as scipy has it.
    """

    rows: np.ndarray
    linkage: np.ndarray


def _trees(z: Tensor, y: np.ndarray) -> list[_Tree]:
    centred = z.double() - z.double().mean(dim=0)
    u = torch.nn.functional.normalize(centred, dim=1).cpu().numpy()
    order = np.lexsort(z.cpu().numpy()[:, :3].T)
    trees = list[_Tree]()
    for label in np.unique(y):
        rows = order[y[order] == label]
        distance = (1 - u[rows] @ u[rows].T).clip(0)
        np.fill_diagonal(distance, 0)
        tree = np.empty((0, 4))
        if len(rows) > 1:
            tree = linkage(squareform(distance, checks=False), "average")
        trees.append(_Tree(rows, tree))
    return trees


class _Clusters:
    """Clusters of images, and the errors without them, each computed once.

    Args:
        z: (n, d) embeddings.
        y: (n,) column of each one's class.
        left_out: function from groups to scores.
    """

    def __init__(self, z: Tensor, y: np.ndarray, left_out: LeftOut):
        self.trees = _trees(z, y)
        self.y = y
        self.left_out = left_out
        self._errors = dict[tuple[float, int | None], np.ndarray]()

    def at(self, cut: float) -> np.ndarray:
        """Return clusters (n,) of one class, with a mean cosine of at least ``cut``."""
        groups = np.zeros(len(self.y), dtype=np.int64)
        used = 0
        for rows, tree in self.trees:
            groups[rows] = used
            if len(rows) > 1:
                groups[rows] += fcluster(tree, 1 - cut, "distance") - 1
            used = int(groups[rows].max()) + 1
        return groups

    def dealt(self, groups: np.ndarray, draw: int) -> np.ndarray:
        """Return groups (n,) of the same sizes, of images of the class at random."""
        dealt = groups.copy()
        for rows, _ in self.trees:
            shuffled = np.random.default_rng(draw).permutation(len(rows))
            dealt[rows] = groups[rows[shuffled]]
        return dealt

    def errors(self, groups: np.ndarray, cut: float, draw: int | None) -> np.ndarray:
        """Return the errors (n,) without groups, from memory if they were computed for this cut."""
        key = (cut, draw)
        if key not in self._errors:
            scores = self.left_out(torch.from_numpy(groups))
            self._errors[key] = _errors(scores, self.y)
        return self._errors[key]

    def harm(self, cut: float, draws: int) -> _Harm:
        """Measure the errors that leaving out the clusters of a cut causes."""
        y = self.y
        groups = self.at(cut)
        wrong = self.errors(groups, cut, None)
        known = ~np.isnan(wrong)
        chance = list[np.ndarray]()
        for draw in range(draws):
            dealt = self.dealt(groups, draw)
            chance.append(self.errors(dealt, cut, draw)[known])
        own_errors = wrong[known]
        different = np.abs(own_errors - np.array(chance)).sum() / draws
        size_of_own = np.bincount(groups)[groups]
        part = float(np.mean(size_of_own / np.bincount(y)[y]))
        chance_errors = float(np.sum(chance)) / draws
        own = 1 + float(own_errors.sum())
        return _Harm(groups, part, own, 1 + chance_errors, float(different))


def _errors(scores: Tensor, y: np.ndarray) -> np.ndarray:
    """Return (n,) 1 for an error, 0 for none, NaN where nothing is known of the true class."""
    table = scores.cpu().numpy()
    finite = np.isfinite(table)
    known = finite[np.arange(len(y)), y]
    wrong = np.where(finite, table, -np.inf).argmax(axis=1) != y
    return np.where(known, wrong, np.nan)
