"""Find similar images that are left out together: near-duplicates, and the images of one
group.

Near-duplicates are of one moment, or edited one from the other. How alike two embeddings are is
said relative to images of different classes, as networks differ in what is common to all their
embeddings: ``(s − b)/(1 − b)`` with s the cosine of the two and b the median cosine between
classes. The limit was measured with the default backbone at 128 px. Of 25 000 images of 100 classes
(Tiny-ImageNet) 4 are above it, of 5975 images of 101 classes (Caltech-101) 393: there mirrored, cut
or re-coloured versions, and drawings of one sign. Of pairs of images that differ by 4 % of the
frame 77 and 93 % are.

A group is a day, a shelf or a burst. An image whose near-duplicate was learned says nothing of new
groups. Images of one group are similar, but so are independent images of a homogeneous class. The
harm tells them apart: leaving out an image's group must raise the error far more than leaving out
as many images of its class drawn at random. Names, their order and times are not
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

SIMILAR = 0.83
"""Similarity, 1 for equal and 0 for images of different classes, from which two images of a class
are near-duplicates.
"""

BLOCK = 1024
"""Rows compared at once: at most BLOCK² similarities are in memory."""

SAMPLED = 512
"""Images that the similarity between classes is measured on, at most."""


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
    step = -(-len(u) // SAMPLED)
    order = torch.argsort(y, stable=True)[:: max(step, 1)]  # of all classes alike
    sample = u[order].float()
    labels = y[order]
    similar = (sample @ sample.T)[labels[:, None] != labels]
    if not len(similar):
        return None
    between = float(similar.median())
    return between + SIMILAR * (1 - between)


def left_out_groups(groups: Tensor, y: Tensor) -> Tensor:
    """Return which samples are left out together: those of one group, if it has at most half of its
    class.

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
    """Return (n,) position of the first sample of each one's group, for samples (n, d) of one
    class.
    """
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
    """Return the smallest vertex that is connected with each of 0 … n−1, for the edges (2, m) of a
    graph.
    """
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

HARM = 2.0
"""Errors without the group over errors without as many random images, from which on images come
in groups.

Of independent images (Tiny-ImageNet, Caltech-101, CIFAR-100, and 36 subsets) the largest is 1.36,
of bursts with ten or more images a class 2.3 or more.
"""

DRAWS = 3
"""Random groups of equal sizes that the errors are compared with, on average."""

FIRST = (0.8, 0.7, 0.6)
SURELY = 1.5
"""Cuts that are tried first, with one draw; with less harm at all of them images are
independent.
"""

PART = 0.25
"""Part of its class that an image's cluster may be, on average: as much as a fourfold
cross-validation leaves out.

With less of a class than the rest, errors are many because few images are left, not because the day
is another one.
"""

FEWEST = 10
"""Images a class, on average, from which anything can be told."""

Kind = Literal["found", "independent", "few"]


class FoundGroups(NamedTuple):
    """The images that are left out together.

    Attributes:
        kind: "found"; "independent", if no images come in groups; "few", if there are too few to
            tell.
        groups: (n,) int64 number of each image's group; None unless they were found.
        cut: mean cosine at which clusters were cut, or None.
        harm: by cut, as far as it was measured; None for too few images.
    """

    kind: Kind
    groups: Tensor | None = None
    cut: float | None = None
    harm: dict[float, float] | None = None


class _Harm(NamedTuple):
    """What leaving out clusters does.

    Attributes:
        groups: (n,) the clusters.
        part: part of its class that an image's cluster is, on average.
        own, chance: one more than the errors without them, and without random groups of their
            sizes.
        apart: images that only one of the two gets right.
    """

    groups: np.ndarray
    part: float
    own: float
    chance: float
    apart: float

    @property
    def ratio(self) -> float:
        return self.own / self.chance


def find_groups(
    z: Tensor, columns: Tensor, left_out: Callable[[Tensor | None], Tensor]
) -> FoundGroups:
    """Choose the groups of images that are left out together, from learned images alone.

    Clusters of each class are made by average linkage of embeddings less the mean of all, by their
    cosine, and cut at each of :data:`CUTS`. ``harm = (1 + errors without the own cluster) / (1 +
    errors without a random group of the same size)``, over the images whose class is known without
    their group. Finer cuts leave similar images behind, coarser ones take so much of a class that random
    groups harm, too: the harm is largest between. If its largest value is below :data:`HARM`, or
        that difference below twice its standard error (McNemar), images are independent. Else the
        finest
    cut is taken whose harm is within one standard error, of its logarithm, of the largest. Cuts
    whose clusters are more than :data:`PART` of a class are considered only if the others say that
    images are independent.

    Args:
        z: (n, d) embeddings of learned images.
        columns: (n,) int64 column of each one's class in the scores.
        left_out: number of each image's group (n,) int64 → scores (n, C) of the images without
            their group; NaN where nothing is known.
    """
    y = columns.cpu().numpy()
    if len(y) < FEWEST * len(np.unique(y)):
        return FoundGroups("few")
    trees = _trees(z, y)
    first = {cut: _harm(trees, y, cut, left_out, 1).ratio for cut in FIRST}
    if max(first.values()) < SURELY:
        return FoundGroups("independent", None, None, first)
    found = {cut: _harm(trees, y, cut, left_out, DRAWS) for cut in CUTS}
    harm = {cut: each.ratio for cut, each in found.items()}
    cut = _choose(
        {cut: each for cut, each in found.items() if each.part <= PART}
    ) or _choose(found)
    if cut is None:
        return FoundGroups("independent", None, None, harm)
    return FoundGroups(
        "found", torch.from_numpy(found[cut].groups).to(z.device), cut, harm
    )


def _choose(found: dict[float, _Harm]) -> float | None:
    """Return the finest cut that harms about as much as the worst one, or None where none does any
    harm.
    """
    most = max(found.values(), key=lambda each: each.ratio, default=None)
    if (
        most is None
        or most.ratio < HARM
        or most.own - most.chance <= 2 * most.apart**0.5
    ):
        return None
    least = most.ratio * float(np.exp(-np.sqrt(1 / most.own + 1 / most.chance)))
    return next(cut for cut, each in found.items() if each.ratio >= least)


Trees = list[tuple[np.ndarray, np.ndarray]]
"""Rows (m,) of each class, and their average linkage."""


def _trees(z: Tensor, y: np.ndarray) -> Trees:
    centred = z.double() - z.double().mean(dim=0)
    u = torch.nn.functional.normalize(centred, dim=1).cpu().numpy()
    trees = []
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        distance = (1 - u[rows] @ u[rows].T).clip(0)
        np.fill_diagonal(distance, 0)
        if len(rows) > 1:
            tree = linkage(squareform(distance, checks=False), "average")
        else:
            tree = np.empty((0, 4))
        trees.append((rows, tree))
    return trees


def _clusters(trees: Trees, count: int, cut: float) -> np.ndarray:
    """Return (count,) numbers of clusters of one class, whose members are on average at least
    ``cut`` alike.
    """
    groups = np.zeros(count, dtype=np.int64)
    used = 0
    for rows, tree in trees:
        groups[rows] = used + (
            fcluster(tree, 1 - cut, "distance") - 1 if len(rows) > 1 else 0
        )
        used = int(groups[rows].max()) + 1
    return groups


def _harm(
    trees: Trees,
    y: np.ndarray,
    cut: float,
    left_out: Callable[[Tensor | None], Tensor],
    draws: int,
) -> _Harm:
    groups = _clusters(trees, len(y), cut)
    wrong = _errors(left_out(torch.from_numpy(groups)), y)
    known = ~np.isnan(wrong)
    chance = []
    for draw in range(draws):
        dealt = groups.copy()
        for (
            rows,
            _,
        ) in trees:  # groups of the same sizes, of images of the class at random
            dealt[rows] = groups[np.random.default_rng(draw).permutation(rows)]
        chance.append(_errors(left_out(torch.from_numpy(dealt)), y)[known])
    apart = np.abs(wrong[known] - np.array(chance)).sum() / draws
    part = float(np.mean(np.bincount(groups)[groups] / np.bincount(y)[y]))
    return _Harm(
        groups,
        part,
        1 + float(wrong[known].sum()),
        1 + float(np.sum(chance)) / draws,
        float(apart),
    )


def _errors(scores: Tensor, y: np.ndarray) -> np.ndarray:
    """Return (n,) 1 where the largest score is another class's, 0 where not, NaN where nothing is
    known of the own.
    """
    table = scores.cpu().numpy()
    known = np.isfinite(table[np.arange(len(y)), y])
    wrong = np.where(np.isfinite(table), table, -np.inf).argmax(axis=1) != y
    return np.where(known, wrong, np.nan)
