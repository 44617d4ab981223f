"""Find label errors and outliers among images by their embeddings, and measure a learning curve.

One exact ridge classifier learns all images. Its leave-one-out scores have a closed form, so each
image is predicted without itself and its near-duplicates. For the audit itself nothing is held out
or learned twice; a learning curve fits one classifier per size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones.embedding_cache import EmbeddingCache, log, pipeline_folder
from cifnet_pl.data.loading import pieces
from cifnet_pl.data.samples import Source
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.base import NOVELTY_RIDGE, to_probabilities
from cifnet_pl.heads.confidence import CalibrationSamples, fit_probabilities
from cifnet_pl.images.duplicates import find_repeats
from cifnet_pl.model.calibration import Interval, gain_of_more_images
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable
from cifnet_pl.model.metrics import MIN_TEST_IMAGES, Evaluation, calibration_error
from cifnet_pl.statistics import find_groups, near_duplicates, whiten
from cifnet_pl.utilities.errors import CifnetError, DataError

IMAGES_PER_BATCH = 2048
"""Images that are computed with in one batch, in float64."""


def fitted_head(z: np.ndarray, labels: np.ndarray, classes: int) -> RidgeHead:
    """Return an exact head, fitted to all rows.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    head = RidgeHead(z.shape[1])
    head.begin_task(range(classes))
    every_row = np.arange(len(labels))
    for rows in pieces(every_row, IMAGES_PER_BATCH):
        batch_z = torch.from_numpy(z[rows])
        batch_labels = torch.from_numpy(labels[rows])
        head.observe(batch_z, batch_labels)
    head.solve()
    return head


class LeftOutScores(NamedTuple):
    """Scores of a batch of rows, each by the head without all rows of its group.

    Attributes:
        rows: (m,) positions.
        scores: (m, C) float64.
    """

    rows: np.ndarray
    scores: Tensor


def left_out(
    head: RidgeHead, z: np.ndarray, labels: np.ndarray, groups: np.ndarray
) -> Iterator[LeftOutScores]:
    """Yield leave-one-group-out scores in batches of whole groups.

    Args:
        head: it has learned all rows.
        z: (n, d) embeddings.
        labels: (n,) int64.
        groups: (n,) int64, equal for rows that are left out together.
    """
    for rows in rows_of_groups(groups):
        batch_z = torch.from_numpy(z[rows])
        batch_labels = torch.from_numpy(labels[rows])
        batch_groups = torch.from_numpy(groups[rows])
        scores = head.leave_one_out(batch_z, batch_labels, batch_groups)
        yield LeftOutScores(rows, scores)


def rows_of_groups(groups: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of whole groups, about ``IMAGES_PER_BATCH`` in a batch.

    Args:
        groups: (n,) int64.
    """
    order = np.argsort(groups, kind="stable")
    sorted_groups = groups[order]
    steps = np.diff(sorted_groups, prepend=-1)
    first_of_group = np.flatnonzero(steps)
    wanted = np.arange(IMAGES_PER_BATCH, len(order), IMAGES_PER_BATCH)
    position = np.searchsorted(first_of_group, wanted, side="right")
    group = position - 1
    ends = np.unique(first_of_group[group])
    for rows in np.split(order, ends):
        if len(rows):
            yield np.sort(rows)


class NearDuplicates(NamedTuple):
    """The near-duplicates among images.

    Attributes:
        groups: (n,) int64, equal for images that are left out together.
        duplicated: (n,) bool, which images have a near-duplicate in their class.
        judged: (n,) bool, which can be judged: not the only image of a class, nor those of a class
            that are all near-duplicates of one another, as nothing is known of it without them.
    """

    groups: np.ndarray
    duplicated: np.ndarray
    judged: np.ndarray


def find_near_duplicates(z: np.ndarray, labels: np.ndarray) -> NearDuplicates:
    """Find near-duplicates of one class, such as bursts.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64.
    """
    y = torch.from_numpy(labels)
    similar = near_duplicates(torch.from_numpy(z), y)
    class_size = y.bincount()[y]
    group_size = similar.bincount()[similar]
    judged = (class_size > 1) & (group_size < class_size)
    # Without more than half of a class little would be known of it: its images stand alone.
    too_large = 2 * group_size > class_size
    alone = len(y) + torch.arange(len(y))
    groups = torch.unique(torch.where(too_large, alone, similar), return_inverse=True)[
        1
    ]
    duplicated = group_size > 1
    return NearDuplicates(groups.numpy(), duplicated.numpy(), judged.numpy())


MAX_CALIBRATION_IMAGES = 5000
"""Images that the temperature is fitted to, evenly spaced."""

MAX_SELF_CONFIDENCE = 0.05
"""Self-confidence below which a label may be an error, if another class has more than half."""


@dataclass(frozen=True)
class Audit:
    """Leave-one-out predictions of all images.

    Their near-duplicates are left out too, unless these are more than half of their class.

    Attributes:
        evaluation: the predictions for all images; ``rows`` are 0 … n−1.
        self_confidence: (n,) probability of the image's own label (Northcutt et al., 2021).
        distance: (n,) Mahalanobis distance to the mean of the others of its class, divided by the
            class's median; NaN for images that cannot be judged.
        duplicated: (n,) bool, whether the image has a near-duplicate in its class.
        judged: (n,) bool, whether the image can be judged, see :class:`NearDuplicates`.
    """

    evaluation: Evaluation
    self_confidence: np.ndarray
    distance: np.ndarray
    duplicated: np.ndarray
    judged: np.ndarray

    @property
    def scored(self) -> Evaluation:
        """The predictions for the images that can be judged."""
        return replace(
            self.evaluation,
            rows=self.evaluation.rows[self.judged],
            target=self.evaluation.target[self.judged],
            predicted=self.evaluation.predicted[self.judged],
            confidence=self.evaluation.confidence[self.judged],
        )

    @property
    def unjudged(self) -> dict[str, int]:
        """Class name → number of its images that cannot be judged, where there are some."""
        names = self.evaluation.class_names
        unjudged_labels = self.evaluation.target[~self.judged]
        labels, counts = np.unique(unjudged_labels, return_counts=True)
        unjudged = {}
        counted = zip(labels.tolist(), counts.tolist(), strict=True)
        for label, count in counted:
            unjudged[names[label]] = count
        return unjudged

    @property
    def accuracy_without_duplicates(self) -> float | None:
        """Accuracy in percent on images without near-duplicates; None if these are too few."""
        rows = self.judged & ~self.duplicated
        correct = self.evaluation.correct[rows]
        if len(correct) < MIN_TEST_IMAGES:
            return None
        return 100 * float(correct.mean())

    def label_errors(self) -> np.ndarray:
        """Return the positions of images with a probable label error, the most probable first.

        Their self-confidence is below 5 %, and another class has more than half of the probability.
        """
        unlikely = self.self_confidence < MAX_SELF_CONFIDENCE
        confident = self.evaluation.confidence > 0.5
        found = self.judged & unlikely & confident
        rows = np.flatnonzero(found)
        likelihood = self.self_confidence[rows]
        order = np.argsort(likelihood, kind="stable")
        return np.asarray(rows[order])

    def farthest(self) -> np.ndarray:
        """Return the positions of outliers of their class, the farthest first.

        Their distance is above the upper quartile of all by more than 1.5 times the interquartile
        range (Tukey, 1977).
        """
        if not self.judged.any():
            return np.zeros(0, dtype=np.int64)
        judged_distances = self.distance[self.judged]
        lower, upper = np.quantile(judged_distances, [0.25, 0.75])
        limit = upper + 1.5 * (upper - lower)
        rows = np.flatnonzero(self.distance > limit)
        distances = self.distance[rows]
        order = np.argsort(-distances, kind="stable")
        return np.asarray(rows[order])


def audit(z: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Audit:
    """Predict every image by all the others except for its near-duplicates.

    Images that resemble more than half of their class are predicted with their near-duplicates, as
    little is known of the class without these.

    Args:
        z: (n, d) float32 embeddings.
        labels: (n,) int64 positions in ``class_names``.
        class_names: names of the classes; each must have an image.
    """
    found = find_near_duplicates(z, labels)
    head = fitted_head(z, labels, len(class_names))
    _calibrate(head, z, labels, found)
    predicted = np.zeros(len(labels), dtype=np.int64)
    confidence = np.zeros(len(labels))
    self_confidence = np.zeros(len(labels))
    for rows, scores in left_out(head, z, labels, found.groups):
        finite = torch.nan_to_num(scores)
        probabilities = to_probabilities(finite, head.temperature, head.odds_power)
        best = probabilities.max(dim=1)
        own_label = torch.from_numpy(labels[rows])
        own_column = own_label[:, None]
        confidence[rows] = best.values.numpy()
        predicted[rows] = best.indices.numpy()
        own = probabilities.gather(1, own_column)
        self_confidence[rows] = own[:, 0].numpy()
    correct = predicted == labels
    judged_confidence = confidence[found.judged]
    judged_correct = correct[found.judged]
    ece = calibration_error(judged_confidence, judged_correct)
    evaluation = Evaluation(
        class_names=list(class_names),
        rows=np.arange(len(labels)),
        target=labels,
        predicted=predicted,
        confidence=confidence,
        ece=ece or 0.0,
    )
    n_classes = len(class_names)
    distance = _distances(z, labels, n_classes, found)
    return Audit(evaluation, self_confidence, distance, found.duplicated, found.judged)


def _calibrate(
    head: RidgeHead, z: np.ndarray, labels: np.ndarray, found: NearDuplicates
) -> None:
    """Calibrate the head by images that can be judged."""
    judged = np.flatnonzero(found.judged)
    if not len(judged):
        return
    count = min(len(judged), MAX_CALIBRATION_IMAGES)
    spread = np.linspace(0, len(judged) - 1, count)
    positions = np.unique(spread.astype(np.int64))
    selected_groups = found.groups[judged[positions]]
    is_selected = np.isin(found.groups, selected_groups)
    rows = np.flatnonzero(is_selected)
    scores = torch.zeros(len(rows), len(head.classes), dtype=torch.float64)
    selected_labels = labels[rows]
    groups = found.groups[rows]
    batches = left_out(head, z[rows], selected_labels, groups)
    for batch, batch_scores in batches:
        scores[torch.from_numpy(batch)] = batch_scores
    finite = scores.isfinite().all(dim=1)
    if not finite.any():
        return
    y = torch.from_numpy(labels[rows])
    fit = fit_probabilities([scores[finite]], y[finite])
    head.odds_power.fill_(fit.power)
    head.calibrate(fit.weights)


def _unit(z: np.ndarray) -> Tensor:
    """Return embeddings (m, d) scaled to length 1, in float64."""
    x = torch.from_numpy(z).double()
    return torch.nn.functional.normalize(x, dim=1)


def _distances(
    z: np.ndarray, labels: np.ndarray, classes: int, found: NearDuplicates
) -> np.ndarray:
    """Return (n,) Mahalanobis distances of the embeddings, scaled to a median of 1 in each class.

    Embeddings are scaled to length 1. The distance is to the mean of the class without the image's
    group, under the within-class scatter with the ridge of the novelty score; NaN for images that
    cannot be judged.
    """
    width = z.shape[1]
    class_sums = torch.zeros(classes, width, dtype=torch.float64)
    gram = torch.zeros(width, width, dtype=torch.float64)
    every_row = np.arange(len(labels))
    for rows in pieces(every_row, IMAGES_PER_BATCH):
        x = _unit(z[rows])
        gram += x.T @ x
        y = torch.from_numpy(labels[rows])
        class_sums.index_add_(0, y, x)
    images = np.bincount(labels, minlength=classes)
    counts = torch.from_numpy(images).double()
    means = class_sums / counts[:, None]
    between = means.T @ class_sums
    within = (gram - between) / len(labels)
    variance = within.diagonal().mean()
    ridge = NOVELTY_RIDGE * variance + 1e-12
    within.diagonal().add_(ridge)
    factor = torch.linalg.cholesky(within)
    distances = np.zeros(len(labels))
    for rows in rows_of_groups(found.groups):
        x = _unit(z[rows])
        y = torch.from_numpy(labels[rows])
        groups = found.groups[rows]
        numbers = np.unique(groups, return_inverse=True)[1]
        group = torch.from_numpy(numbers)
        n_groups = int(group.max()) + 1
        group_sums = torch.zeros(n_groups, width, dtype=torch.float64)
        group_sums.index_add_(0, group, x)
        group_size = group.bincount()[group]
        class_size = counts[y]
        others = (class_size - group_size).clamp_min(1)
        own_sums = group_sums[group]
        other_sums = class_sums[y] - own_sums
        mean = other_sums / others[:, None]
        lengths = whiten(factor, x - mean).norm(dim=1)
        distances[rows] = lengths.numpy()
    for label in range(classes):
        of_class = labels == label
        own = distances[of_class]
        median = float(np.median(own))
        distances[of_class] /= max(median, 1e-12)
    distances[~found.judged] = np.nan
    return distances


# ---------------------------------------------------------------------- learning curve

MIN_CURVE_IMAGES = 3
"""Images of a class from which accuracy is measured."""

MAX_HALVINGS = 11


class CurvePoint(NamedTuple):
    """One point of a learning curve.

    Attributes:
        images: number of images of each class.
        accuracy: leave-one-out accuracy in percent.
    """

    images: int
    accuracy: float


class LearningCurve(NamedTuple):
    """Leave-one-out accuracy by images per class.

    Attributes:
        points: each of about twice as many images as the one before.
        short: labels of classes that have less than half as many images as the last point; it says
            nothing about them.
    """

    points: list[CurvePoint]
    short: tuple[int, ...] = ()

    @property
    def gain(self) -> float | None:
        """Percentage points that the last doubling brought; None without one."""
        if len(self.points) < 2:
            return None
        before, last = self.points[-2:]
        return last.accuracy - before.accuracy


def learning_curve(z: np.ndarray, labels: np.ndarray, classes: int) -> LearningCurve:
    """Measure leave-one-out accuracy with …, a quarter, half and all images of each class.

    Images are drawn at random. The last size is one that more than half of the classes have. The
    accuracy at every size is the mean over the same classes, which have as many images and can be
    judged at all sizes; the images that the other classes have are learned beside theirs.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    counts = np.bincount(labels, minlength=classes)
    sizes = _curve_sizes(counts)
    generator = np.random.default_rng(0)
    order = generator.permutation(len(labels))
    rows_of_class = []
    for label in range(classes):
        of_class = labels[order] == label
        rows_of_class.append(order[of_class])
    drawn = []
    found = []
    measured = counts >= sizes[-1]
    for size in sizes:
        first_images = [of_class[:size] for of_class in rows_of_class]
        rows = np.sort(np.concatenate(first_images))
        drawn_labels = labels[rows]
        duplicates = find_near_duplicates(z[rows], drawn_labels)
        drawn.append(rows)
        found.append(duplicates)
        alone = rows[~duplicates.judged]
        measured[labels[alone]] = False
    if not measured.any():  # all classes are bursts: a single point
        measured = counts >= sizes[-1]
        sizes = sizes[-1:]
        drawn = drawn[-1:]
        found = found[-1:]
    points = []
    for size, rows, duplicates in zip(sizes, drawn, found, strict=True):
        groups = duplicates.groups
        accuracy = _mean_accuracy(z[rows], labels[rows], groups, measured)
        points.append(CurvePoint(size, accuracy))
    largest = sizes[-1]
    is_short = 2 * counts < largest
    short = np.flatnonzero(is_short)
    return LearningCurve(points, tuple(short.tolist()))


def gain_of_ten_more(
    z: np.ndarray, labels: np.ndarray, classes: int
) -> Interval | None:
    """Estimate how many points ten more images of each class would bring on new groups.

    It is what a served model of the same images says of itself.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.

    Returns:
        95 % interval; None with too few images to say, or more than can be compared.
    """
    if len(labels) > MAX_CALIBRATION_IMAGES:
        return None
    head = fitted_head(z, labels, classes)
    samples = CalibrationSamples(head, torch.from_numpy(z), torch.from_numpy(labels))
    found = find_groups(samples.z, samples.columns, samples.rules[0])
    groups = found.clusters if found.dependent else None
    return gain_of_more_images(samples.grouped(groups))


def _curve_sizes(counts: np.ndarray) -> list[int]:
    """Return the numbers of images per class of a curve, for classes with (C,) images."""
    several = counts[counts > 1]  # of a single image nothing can be measured
    if not len(several):
        several = counts
    largest = int(np.quantile(several, 0.5, method="lower"))
    halved = []
    for halvings in range(MAX_HALVINGS, 0, -1):
        halved.append(largest >> halvings)
    reached = [size for size in halved if size >= MIN_CURVE_IMAGES]
    return [*reached, largest]


def _mean_accuracy(
    z: np.ndarray, labels: np.ndarray, groups: np.ndarray, measured: np.ndarray
) -> float:
    """Return the mean over classes of their leave-one-group-out accuracy, in percent.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 class of each.
        groups: (n,) int64 images that are left out together.
        measured: (C,) bool, the classes of the mean.
    """
    classes = len(measured)
    head = fitted_head(z, labels, classes)
    correct = np.zeros(classes)
    for rows, scores in left_out(head, z, labels, groups):
        y = labels[rows]
        predicted = scores.argmax(dim=1).numpy()
        is_correct = predicted == y
        predicted_right = y[is_correct]
        correct += np.bincount(predicted_right, minlength=classes)
    images = np.bincount(labels, minlength=classes)
    tested = images[measured]
    by_class = correct[measured] / tested
    return 100 * float(by_class.mean())


# ---------------------------------------------------------------------- embeddings


class EmbeddedImages(NamedTuple):
    """Images to audit.

    Attributes:
        z: (n, d) float32 embeddings.
        labels: (n,) int64.
        files: the n files.
        undecided: files that lie in two classes → labels of their own class and of another one;
            they are not among the n.
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
    """Embed all training and test images of a source; what the cache lacks is added to it.

    Without a cache, with a warning in the log, where its folder cannot be written.

    Args:
        model: its backbone embeds.
        source: images in class folders.
        cache_folder: folder of the embedding cache.
        unreadable: images that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Raises:
        DataError: no image can be read.
    """
    backbone = model.backbone
    side = model.image_size
    pipeline = None
    try:
        pipeline = pipeline_folder(
            cache_folder,
            backbone.outputs(side),
            backbone.sha256,
            side,
            model.crop_ratio,
            model.precision,
            model.engine,
        )
    except CifnetError as error:  # an audit needs no cache
        log.warning("no embeddings are cached: %s", error)
    z_batches = []
    label_batches = []
    hash_batches = []
    files = []
    splits = (("train", source.train), ("val", source.val))
    for name, samples in splits:
        images = LabelledImages(source.class_names, samples)
        embedded = _embedded(model, images, unreadable, progress)
        if pipeline is not None:
            cache = EmbeddingCache(samples, images.class_names, pipeline / name)
            embedded = _embedded_with_cache(model, images, cache, unreadable, progress)
        for rows, z in embedded:
            z_batches.append(z)
            label_batches.append(images.files.labels[rows])
            hash_batches.append(images.files.hashes(rows))
            files += [images.path(row) for row in rows.tolist()]
    if not files:
        raise DataError("none of the images can be read: there is nothing to audit")
    labels = np.concatenate(label_batches)
    hashes = np.concatenate(hash_batches)
    repeats = find_repeats(enumerate(hashes.tolist()), labels)
    undecided = {}
    decided = np.ones(len(labels), dtype=bool)
    ambiguous = sorted(repeats.undecided.items())
    for row, other in ambiguous:
        label = int(labels[row])
        undecided[files[row]] = (label, other)
        decided[row] = False
    kept_rows = np.flatnonzero(decided)
    kept_files = [files[row] for row in kept_rows.tolist()]
    embeddings = np.concatenate(z_batches)
    kept_labels = labels[decided]
    return EmbeddedImages(embeddings[decided], kept_labels, kept_files, undecided)


def _embedded(
    model: Classifier,
    images: LabelledImages,
    unreadable: list[Unreadable],
    progress: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and embeddings of images."""
    for rows, z in images.embedded(model, "embedding", unreadable, progress):
        yield rows, z.cpu().numpy()


def _embedded_with_cache(
    model: Classifier,
    images: LabelledImages,
    cache: EmbeddingCache,
    unreadable: list[Unreadable],
    progress: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and embeddings: those that are in the cache, then the others."""
    rows = np.arange(len(images.files))
    known = cache.known(rows)
    if known.any():
        cached_rows = rows[known]
        yield cached_rows, cache.get(cached_rows).numpy()
    if known.all():
        return
    missing = rows[~known]
    uncached = images.select(~known)
    for batch, z in _embedded(model, uncached, unreadable, progress):
        content = uncached.files.hashes(batch)
        hashes = torch.from_numpy(content)
        positions = torch.from_numpy(missing[batch])
        cache.collect(positions, hashes, torch.from_numpy(z))
        yield missing[batch], z
