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
    root = z.abs().sqrt_().copysign_(z)
    return torch.nn.functional.normalize(root, dim=1)


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
    blocks = torch.split(u.float(), BLOCK)
    for i, one in enumerate(blocks):
        for j, other in enumerate(blocks[: i + 1]):
            offset = torch.tensor([i * BLOCK, j * BLOCK])
            pairs = (one @ other.T > limit).nonzero().cpu() + offset
            with_itself = len(one) if j == i else 0
            if len(pairs) > with_itself:
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

PARTS = (0.08, 0.17, 0.3)
"""Shares of its class that the cluster of an image has, on average, in the groupings that count.

The largest is what one day of three or four is of a class. On sets of which each class was seen on
three to eight days, the accuracy without clusters of that size is the one on new days."""

HARM_POWER = 6.0
EXPECTED_ERRORS = 2
"""The weight of a grouping is the sixth power of its harm, with two errors more by chance."""

INDEPENDENT_HARM = 1.5
DEPENDENT_HARM = 2.0
"""Harm up to which images are independent, and from which on they come in groups.

Between the two an estimate lies between those of both cases. All constants were chosen on bursts
made of independent images (``python -m benchmarks.studies.group_rule``)."""

TEMPERATURE_PART = 0.8
SETS_PART = 1.2
"""Parts of a class by whose clusters the temperature is fitted, and thresholds are set.

They are multiples of the mean part.

Confidence is right with the first: on new groups it falls of itself. Prediction sets and the
threshold for unknowns have to hold, so theirs is rather too large."""

ERRORS_TO_TELL = 10
"""Errors without large clusters from which on images can be told to be independent."""

DRAWS = 2
"""Random groups of equal sizes that the errors are compared with, on average."""

SMALLEST_WEIGHT = 0.02
"""Groupings of a smaller weight are left out of the average."""

MIN_IMAGES_PER_CLASS = 10
"""Images a class, on average, from which on groups can be found."""

Kind = Literal["found", "independent", "few", "given", "unknown"]


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
            tell; "given", if the user named them; "unknown", if nothing can be left out.
        groupings: those that an estimate is averaged over, the finest first; the first one may have
            each image in a group of its own. Empty unless groups were found or given.
        groups: (n,) int64 group of each image, to set thresholds by; None where each stands alone.
        finer: (n,) int64 smaller groups, to fit the temperature by; None likewise.
        coarse: (n,) the clusters of the largest of :data:`PARTS`, where images come in groups or
            too few errors are made to tell; None elsewhere. There are at least as many groups.
        harm: of each of :data:`PARTS`.
    """

    kind: Kind
    groupings: tuple[WeightedGrouping, ...] = ()
    groups: Tensor | None = None
    finer: Tensor | None = None
    coarse: Tensor | None = None
    harm: tuple[float, ...] = ()


class _Harm(NamedTuple):
    """Errors that leaving out clusters causes.

    Attributes:
        groups: (n,) the clusters.
        own: one more than the errors without them.
        chance: one more than the errors without random groups of their sizes.
        different: images that only one of the two gets right.
    """

    groups: np.ndarray
    own: float
    chance: float
    different: float

    @property
    def ratio(self) -> float:
        return self.own / self.chance

    @property
    def is_significant(self) -> bool:
        """Whether the difference is above twice its standard error (McNemar)."""
        return bool(self.own - self.chance > 2 * self.different**0.5)

    @property
    def weight(self) -> float:
        harm = self.own / (self.chance + EXPECTED_ERRORS)
        return float(harm**HARM_POWER)


LeftOut = Callable[[Tensor | None], Tensor]
"""Function from the groups of samples, (n,) int64 or None where each is its own, to their scores.

The scores (n, C) are those of a head that never learned the sample or its group."""


def find_groups(z: Tensor, columns: Tensor, left_out: LeftOut) -> FoundGroups:
    """Find the groups of images that are left out together, from learned images alone.

    Clusters of each class are made by average linkage of embeddings less the mean of all, by their
    cosine. They are cut where the cluster of an image is one of :data:`PARTS` of its class, on
    average. ``harm = (1 + errors without the own cluster) / (1 + errors without a random group of
    the same size)``, over the images whose class is known without their group. Finer cuts leave
    similar images behind, coarser ones leave too little of a class.

    No single cut is chosen: where the harm of two is nearly equal, the choice would be by chance,
    and an estimate would jump. Each gets a weight, and estimates are averaged. The less the mean
    harm is above :data:`INDEPENDENT_HARM`, the more the images count as independent; they do if no
    difference is above twice its standard error. The result does not depend on the order of the
    images.

    Args:
        z: (n, d) embeddings of learned images.
        columns: (n,) int64 column of each one's class in the scores.
        left_out: function from groups to scores; NaN where nothing is known.
    """
    y = columns.cpu().numpy()
    if len(y) < MIN_IMAGES_PER_CLASS * len(np.unique(y)):
        return FoundGroups("few")
    trees = _trees(z, y)
    measured = list[_Harm]()
    for part in PARTS:
        groups = _clusters_of_part(trees, y, part)
        measured.append(_harm(trees, groups, y, left_out))
    harm = tuple(each.ratio for each in measured)
    coarse: Tensor | None = torch.from_numpy(measured[-1].groups).to(z.device)
    weights = np.array([each.weight for each in measured])
    weights /= weights.sum()
    dependent = _dependent_share(float(weights @ np.log(harm)))
    if not dependent or not any(each.is_significant for each in measured):
        if measured[-1].own >= ERRORS_TO_TELL:
            coarse = None
        return FoundGroups("independent", coarse=coarse, harm=harm)
    groupings = _groupings(measured, weights, dependent, z.device)
    mean_part = dependent * float(weights @ PARTS)
    of_thresholds = _clusters_of_part(trees, y, SETS_PART * mean_part)
    of_temperature = _clusters_of_part(trees, y, TEMPERATURE_PART * mean_part)
    return FoundGroups(
        "found",
        groupings,
        torch.from_numpy(of_thresholds).to(z.device),
        torch.from_numpy(of_temperature).to(z.device),
        coarse,
        harm,
    )


def _dependent_share(log_harm: float) -> float:
    """Return how far images count as dependent, from 0 to 1."""
    low = np.log(INDEPENDENT_HARM)
    high = np.log(DEPENDENT_HARM)
    return float(np.clip((log_harm - low) / (high - low), 0, 1))


def _groupings(
    measured: list[_Harm], weights: np.ndarray, dependent: float, device: torch.device
) -> tuple[WeightedGrouping, ...]:
    """Return the groupings that count, with their weights.

    Args:
        measured: groupings into clusters.
        weights: of these.
        dependent: weight of all of them; the rest is that of each image alone.
        device: of the groups.
    """
    groups = [np.arange(len(measured[0].groups))]
    groups += [each.groups for each in measured]
    weights = np.concatenate([[1 - dependent], dependent * weights])
    weights[weights < SMALLEST_WEIGHT] = 0.0
    weights /= weights.sum()
    groupings = list[WeightedGrouping]()
    for each, weight in zip(groups, weights.tolist(), strict=True):
        if weight:
            on_device = torch.from_numpy(each).to(device)
            groupings.append(WeightedGrouping(on_device, weight))
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
    centred = z.double()
    centred = centred - centred.mean(dim=0)
    u = torch.nn.functional.normalize(centred, dim=1).cpu()
    order = np.lexsort(z.cpu().numpy()[:, :3].T)
    trees = list[_Tree]()
    for label in np.unique(y):
        rows = order[y[order] == label]
        of_class = u[rows]
        distance = (1 - of_class @ of_class.T).clip(0).numpy()
        np.fill_diagonal(distance, 0)
        tree = np.empty((0, 4))
        if len(rows) > 1:
            tree = linkage(squareform(distance, checks=False), "average")
        trees.append(_Tree(rows, tree))
    return trees


def _clusters(trees: list[_Tree], count: int, distance: float) -> np.ndarray:
    """Return clusters (count,) of one class, made by merges up to a distance."""
    groups = np.zeros(count, dtype=np.int64)
    used = 0
    for rows, tree in trees:
        groups[rows] = used
        if len(rows) > 1:
            groups[rows] += fcluster(tree, distance, "distance") - 1
        used = int(groups[rows].max()) + 1
    return groups


def _clusters_of_part(trees: list[_Tree], y: np.ndarray, part: float) -> np.ndarray:
    """Return clusters (n,) that are a part of their class, on average, or the largest of PARTS."""
    return _clusters(trees, len(y), _distance(trees, min(part, PARTS[-1])))


def _distance(trees: list[_Tree], part: float) -> float:
    """Return a distance up to which merges leave a cluster ``part`` of its class, averaged over
    images.

    A merge of clusters of a and b images raises the sum of squared sizes by 2ab.
    """
    count = sum(len(tree.rows) for tree in trees)
    merge_distances = np.concatenate([tree.linkage[:, 2] for tree in trees])
    rises = np.concatenate([_rises(tree) for tree in trees])
    order = np.argsort(merge_distances, kind="stable")
    parts = (len(trees) + rises[order].cumsum()) / count
    merges = int((parts <= part).sum())
    distances = np.concatenate([[0.0], merge_distances[order], [np.inf]])
    if merges == len(parts):
        return float(distances[merges])
    return float(distances[merges : merges + 2].mean())


def _rises(tree: _Tree) -> np.ndarray:
    """Return by how much each merge raises the mean size of clusters, times the images."""
    images = len(tree.rows)
    sizes = np.concatenate([np.ones(images), tree.linkage[:, 3]])
    first, second = tree.linkage[:, :2].astype(np.int64).T
    rises: np.ndarray = 2 * sizes[first] * sizes[second] / images
    return rises


def _harm(
    trees: list[_Tree], groups: np.ndarray, y: np.ndarray, left_out: LeftOut
) -> _Harm:
    wrong = _errors(left_out(torch.from_numpy(groups)), y)
    known = ~np.isnan(wrong)
    chance = list[np.ndarray]()
    for draw in range(DRAWS):
        dealt = groups.copy()
        # Groups of the same sizes, of images of the class at random.
        for rows, _ in trees:
            shuffled = np.random.default_rng(draw).permutation(len(rows))
            dealt[rows] = groups[rows[shuffled]]
        chance.append(_errors(left_out(torch.from_numpy(dealt)), y)[known])
    own_errors = wrong[known]
    different = np.abs(own_errors - np.array(chance)).sum() / DRAWS
    chance_errors = float(np.sum(chance)) / DRAWS
    own = 1 + float(own_errors.sum())
    return _Harm(groups, own, 1 + chance_errors, float(different))


def _errors(scores: Tensor, y: np.ndarray) -> np.ndarray:
    """Return (n,) 1 for an error, 0 for none, NaN where nothing is known of the true class."""
    table = scores.cpu().numpy()
    finite = np.isfinite(table)
    known = finite[np.arange(len(y)), y]
    wrong = np.where(finite, table, -np.inf).argmax(axis=1) != y
    return np.where(known, wrong, np.nan)
