"""Judge images by their embeddings: doubtful labels, images far from their class, whether more
would help.

One exact ridge classifier learns all images. Its leave-one-out scores have a closed form, so no
image judges itself or its near-duplicates, nothing is held out, and nothing is learned twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones.embedding_cache import EmbeddingCache, pipeline_folder
from cifnet_pl.data.loading import pieces
from cifnet_pl.data.sets import FileSet, Source
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.base import RIDGE, to_probabilities
from cifnet_pl.heads.confidence import fit_probabilities
from cifnet_pl.images.duplicates import find_repeats
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable
from cifnet_pl.model.metrics import MIN_TEST_IMAGES, Evaluation, calibration_error
from cifnet_pl.statistics import comparable, left_out_groups, near_groups, near_limit
from cifnet_pl.utilities.errors import DataError

AT_ONCE = 2048
"""Images that are computed with at once, in float64."""


def unit(z: np.ndarray) -> Tensor:
    """Return embeddings (m, d) at length 1, float64."""
    return torch.nn.functional.normalize(torch.from_numpy(z).double(), dim=1)


def learned(z: np.ndarray, labels: np.ndarray, classes: int) -> RidgeHead:
    """Return an exact head that has learned all rows.

    Args:
        z: (n, d).
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    head = RidgeHead(z.shape[1])
    head.begin_task(range(classes))
    for rows in pieces(np.arange(len(labels)), AT_ONCE):
        head.observe(torch.from_numpy(z[rows]), torch.from_numpy(labels[rows]))
    head.solve()
    return head


def left_out(
    head: RidgeHead, z: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield rows and their scores without all rows of their group, about ``AT_ONCE`` at a time.

    Args:
        head: that has learned all rows.
        z: (n, d).
        labels: (n,) int64.
        groups: (n,) int64, equal for rows that are left out together.
    """
    for rows in whole_groups(groups):
        yield (
            rows,
            head.leave_one_out(*(torch.from_numpy(column[rows]) for column in (z, labels, groups))),
        )


def whole_groups(groups: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of whole groups, about ``AT_ONCE`` at a time."""
    order = np.argsort(groups, kind="stable")
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))  # of each group
    ends = first[np.searchsorted(first, np.arange(AT_ONCE, len(order), AT_ONCE), side="right") - 1]
    yield from (np.sort(part) for part in np.split(order, np.unique(ends)) if len(part))


class NearDuplicates(NamedTuple):
    """The near-duplicates among images.

    Attributes:
        groups: (n,) int64, equal for images that are left out together.
        copied: (n,) bool, which images have a near-duplicate in their class.
        judged: (n,) bool, which can be judged: not the only image of a class, nor those of a class
            that are all near-duplicates of one another, as without them nothing is known of it.
    """

    groups: np.ndarray
    copied: np.ndarray
    judged: np.ndarray


def near_duplicates(z: np.ndarray, labels: np.ndarray) -> NearDuplicates:
    """Find near-duplicates of one class, such as bursts.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64.
    """
    u = comparable(torch.from_numpy(z))
    y = torch.from_numpy(labels)
    size = y.bincount()[y]
    limit = near_limit(u, y)
    # without one where there is one class
    if limit is None:
        alike = torch.arange(len(y))
    else:
        alike = near_groups(u, y, limit)
    together = alike.bincount()[alike]
    groups = torch.unique(left_out_groups(alike, y), return_inverse=True)[1]
    return NearDuplicates(
        groups.numpy(), (together > 1).numpy(), ((size > 1) & (together < size)).numpy()
    )


FOR_TEMPERATURE = 5000
"""Images that the temperature is fitted to, evenly spaced."""

LABEL_ERRORS = 0.05
"""A label is doubtful where, without the image itself, its class has less than this probability,
and another one has more than all others together."""


@dataclass(frozen=True)
class Audit:
    """The verdict on each image of a classifier that learned all the others but its
    near-duplicates.

    Attributes:
        evaluation: the answers to all images; ``rows`` are 0 … n−1.
        own: (n,) probability of the image's own label.
        distance: (n,) Mahalanobis distance to the mean of the others of its class, divided by the
            class's median; NaN for images that cannot be judged.
        copied: (n,) bool, whether the image has a near-duplicate in its class, such as the next one
            of a burst.
        judged: (n,) bool, whether the image can be judged: the only image of a class cannot, as
            without it the class is unknown, nor can those of a class that are all near-duplicates
            of one another.
    """

    evaluation: Evaluation
    own: np.ndarray
    distance: np.ndarray
    copied: np.ndarray
    judged: np.ndarray

    @property
    def scored(self) -> Evaluation:
        """The answers to the images that can be judged."""
        every = self.evaluation
        kept = np.flatnonzero(self.judged)
        columns = {
            name: getattr(every, name)[kept]
            for name in ("rows", "target", "predicted", "confidence")
        }
        return replace(every, **columns)

    @property
    def unjudged(self) -> dict[str, int]:
        """Name → number of images of each class whose images cannot be judged."""
        counts = np.bincount(
            self.evaluation.target[~self.judged], minlength=len(self.evaluation.class_names)
        )
        return {
            self.evaluation.class_names[label]: int(counts[label])
            for label in np.flatnonzero(counts)
        }

    @property
    def accuracy_without_duplicates(self) -> float | None:
        """Accuracy in percent on images that have no near-duplicate; None if these are too few for
        a conclusion.
        """
        right = self.evaluation.correct[self.judged & ~self.copied]
        if len(right) >= MIN_TEST_IMAGES:
            return 100 * float(right.mean())
        return None

    def label_errors(self) -> np.ndarray:
        """Return the positions of images whose label is doubtful, the most doubtful first.

        They are ranked by the probability of their own label (self-confidence; Northcutt et al.,
        2021).
        """
        rows = np.flatnonzero(
            self.judged & (self.own < LABEL_ERRORS) & (self.evaluation.confidence > 0.5)
        )
        return np.asarray(rows[np.argsort(self.own[rows], kind="stable")])

    def farthest(self) -> np.ndarray:
        """Return the images that are unlike their class, the farthest first.

        Their distance is above the upper quartile of all by more than 1.5 times what is between the
        quartiles (Tukey).
        """
        if not self.judged.any():
            return np.zeros(0, dtype=np.int64)
        lower, upper = np.quantile(self.distance[self.judged], [0.25, 0.75])
        rows = np.flatnonzero(self.distance > upper + 1.5 * (upper - lower))
        return np.asarray(rows[np.argsort(-self.distance[rows], kind="stable")])


def audit(z: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Audit:
    """Judge every image by all others, except for its near-duplicates.

    Images that resemble more than half of their class are judged by their near-duplicates all the
    same, as without these little would be known of the class.

    Args:
        z: (n, d) float32 embeddings.
        labels: (n,) int64 positions in ``class_names``.
        class_names: names of the classes; each must have an image.
    """
    head, (groups, copied, judged) = (
        learned(z, labels, len(class_names)),
        near_duplicates(z, labels),
    )
    temperature, power = _calibration(head, z, labels, groups, judged)
    predicted = np.zeros(len(labels), dtype=np.int64)
    confidence = np.zeros(len(labels))
    own_share = np.zeros(len(labels))
    for rows, scores in left_out(head, z, labels, groups):
        y = torch.from_numpy(labels[rows])
        p = to_probabilities(torch.nan_to_num(scores), temperature, power)
        confidence[rows], predicted[rows] = (t.numpy() for t in p.max(dim=1))
        own_share[rows] = p.gather(1, y[:, None]).flatten().numpy()
    correct = predicted == labels
    ece = calibration_error(confidence[judged], correct[judged]) or 0.0
    evaluation = Evaluation(
        list(class_names), np.arange(len(labels)), labels, predicted, confidence, ece
    )
    distances = _distances(z, labels, len(class_names), groups, judged)
    return Audit(evaluation, own_share, distances, copied, judged)


def _calibration(
    head: RidgeHead, z: np.ndarray, labels: np.ndarray, groups: np.ndarray, judged: np.ndarray
) -> tuple[float, float]:
    """Return the temperature and the power by which some images are calibrated, evenly spaced."""
    known = np.flatnonzero(judged)
    if not len(known):
        return 1.0, 1.0
    chosen = known[
        np.unique(np.linspace(0, len(known) - 1, min(len(known), FOR_TEMPERATURE)).astype(np.int64))
    ]
    rows = np.flatnonzero(np.isin(groups, groups[chosen]))
    parts = list(left_out(head, z[rows], labels[rows], groups[rows]))
    y = torch.from_numpy(labels[rows][np.concatenate([p for p, _ in parts])])
    scores = torch.cat([s for _, s in parts])
    finite = scores.isfinite().all(dim=1)
    if finite.any():
        return fit_probabilities(scores[finite], y[finite])
    return (1.0, 1.0)


def _distances(
    z: np.ndarray, labels: np.ndarray, classes: int, groups: np.ndarray, judged: np.ndarray
) -> np.ndarray:
    """Return (n,) distances of the embeddings at length 1, scaled to a median of 1 in each class.

    They are to the mean of the class without the image's group, under the scatter within classes
    with the ridge that novelty has; NaN where an image cannot be judged.
    """
    width = z.shape[1]
    gram = torch.zeros(width, width, dtype=torch.float64)
    sums = torch.zeros(classes, width, dtype=torch.float64)
    for rows in pieces(np.arange(len(labels)), AT_ONCE):
        x = unit(z[rows])
        gram += x.T @ x
        sums.index_add_(0, torch.from_numpy(labels[rows]), x)
    counts = torch.from_numpy(np.bincount(labels, minlength=classes)).double()
    within = (gram - (sums / counts[:, None]).T @ sums) / len(labels)
    within.diagonal().add_(RIDGE * within.diagonal().mean() + 1e-12)
    factor = torch.linalg.cholesky(within)
    distances = np.zeros(len(labels))
    for rows in whole_groups(groups):
        x = unit(z[rows])
        y = torch.from_numpy(labels[rows])
        group = torch.from_numpy(np.unique(groups[rows], return_inverse=True)[1])
        gone = x.new_zeros(int(group.max()) + 1, width).index_add_(0, group, x)[group]
        mean = (sums[y] - gone) / (counts[y] - group.bincount()[group]).clamp_min(1)[:, None]
        away = torch.linalg.solve_triangular(factor, (x - mean).T, upper=False)
        distances[rows] = away.norm(dim=0).numpy()
    for label in range(classes):
        rows = labels == label
        distances[rows] /= max(float(np.median(distances[rows])), 1e-12)
    distances[~judged] = np.nan
    return distances


# ---------------------------------------------------------------------- have I got enough?

FEWEST = 3
"""Images of a class from which accuracy is measured."""


class LearningCurve(NamedTuple):
    """Leave-one-out accuracy by images per class.

    Attributes:
        points: (images per class, accuracy in percent), each of about twice as many images as the
            one before.
        short: labels of classes that have less than half as many images as the last point: it says
            nothing about them.
    """

    points: list[tuple[int, float]]
    short: tuple[int, ...] = ()

    @property
    def gain(self) -> float | None:
        """Percentage points that the last doubling brought; None without one."""
        if len(self.points) > 1:
            return self.points[-1][1] - self.points[-2][1]
        return None


def learning_curve(z: np.ndarray, labels: np.ndarray, classes: int) -> LearningCurve:
    """Measure leave-one-out accuracy with … a quarter, a half and all images of each class, drawn
    at random.

    The last size is one that more than half of the classes have. The accuracy at every size is the
    mean over the same classes, which have as many and can be judged at all sizes; images of the
    others, as far as there are any, are learned beside theirs.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    counts = np.bincount(labels, minlength=classes)
    several = counts[counts > 1]  # of a single image nothing can be said
    largest = int(np.quantile(several if len(several) else counts, 0.5, method="lower"))
    order = np.random.default_rng(0).permutation(len(labels))
    by_class = [order[labels[order] == label] for label in range(classes)]
    sizes = [
        largest >> halvings for halvings in range(11, 0, -1) if largest >> halvings >= FEWEST
    ] + [largest]
    drawn = [np.sort(np.concatenate([rows[:size] for rows in by_class])) for size in sizes]
    copies = [near_duplicates(z[rows], labels[rows]) for rows in drawn]
    kept = counts >= largest
    for rows, found in zip(drawn, copies, strict=True):
        kept[labels[rows[~found.judged]]] = False
    if not kept.any():  # bursts alone: one point
        kept = counts >= largest
        sizes = sizes[-1:]
        drawn = drawn[-1:]
        copies = copies[-1:]
    points = [
        (size, _mean_accuracy(z[rows], labels[rows], found.groups, kept))
        for size, rows, found in zip(sizes, drawn, copies, strict=True)
    ]
    return LearningCurve(points, tuple(np.flatnonzero(2 * counts < largest).tolist()))


def _mean_accuracy(
    z: np.ndarray, labels: np.ndarray, groups: np.ndarray, kept: np.ndarray
) -> float:
    """Return the mean of the leave-one-out accuracies in percent of the classes ``kept`` (C,)
    bool.
    """
    head = learned(z, labels, len(kept))
    right = np.zeros(len(kept))
    for rows, scores in left_out(head, z, labels, groups):
        y = labels[rows]
        right += np.bincount(y[scores.argmax(dim=1).numpy() == y], minlength=len(kept))
    return 100 * float((right[kept] / np.bincount(labels, minlength=len(kept))[kept]).mean())


class EmbeddedImages(NamedTuple):
    """Images to audit.

    Attributes:
        z: (n, d) float32 embeddings.
        labels: (n,) int64.
        files: the n files.
        undecided: files that lie in two classes → labels of their own class and of another one; not
            among the n, as a image cannot be judged by itself.
    """

    z: np.ndarray
    labels: np.ndarray
    files: list[Path]
    undecided: dict[Path, tuple[int, int]]


def embeddings_of(
    model: Classifier,
    source: Source,
    cache_folder: Path,
    unreadable: list[Unreadable],
    progress: bool = False,
) -> EmbeddedImages:
    """Embed all images of both parts of a source; what the cache lacks is added to it.

    Args:
        model: whose backbone embeds.
        source: images in class folders.
        cache_folder: where embeddings are kept.
        unreadable: images that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Raises:
        DataError: no image can be read.
    """
    side = model.image_size
    network = model.backbone
    prepared = (network.outputs(side), network.sha256, side, model.crop_ratio, model.precision)
    cached = pipeline_folder(cache_folder, *prepared, model.engine)
    parts = list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
    places = list[Path]()
    for name, samples in (("train", source.train), ("val", source.val)):
        files = cast(FileSet, samples)
        for rows, z in _embedded(
            model, files, source.class_names, cached / name, unreadable, progress
        ):
            parts.append((z, files.labels[rows], files.hashes(rows)))
            places += [files.root / files.names[row] for row in rows]
    if not places:
        raise DataError("none of the images can be read: there is nothing to audit")
    z, labels, hashes = (np.concatenate(column) for column in zip(*parts, strict=True))
    repeats = find_repeats(enumerate(hashes.tolist()), labels)
    kept = np.ones(len(labels), dtype=bool)
    kept[list(repeats.undecided)] = False
    undecided = {
        places[row]: (int(labels[row]), other) for row, other in sorted(repeats.undecided.items())
    }
    rows = np.flatnonzero(kept)
    return EmbeddedImages(z[rows], labels[rows], [places[row] for row in rows.tolist()], undecided)


def _embedded(
    model: Classifier,
    files: FileSet,
    names: list[str],
    folder: Path,
    unreadable: list[Unreadable],
    progress: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and embeddings: those that are in a folder's cache, then the others."""
    cache = EmbeddingCache(files, names, folder)
    rows = np.arange(len(files))
    known = cache.known(rows)
    if known.any():
        yield rows[known], cache.get(rows[known]).numpy()
    if known.all():
        return
    images = LabelledImages(names, files).select(~known)
    missing = rows[~known]
    for batch, z in images.embedded(model, "embedding", unreadable, progress):
        cache.collect(
            torch.from_numpy(missing[batch]), torch.from_numpy(images.files.hashes(batch)), z
        )
        yield missing[batch], z.cpu().numpy()
