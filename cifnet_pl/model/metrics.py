"""Compute the figures of a run (Ā, forgetting, backward transfer) and evaluate a model on images.

The figures of a run are pure functions of the trajectory A_1 … A_K and of the accuracy matrix. A_k
itself, the accuracy over all classes seen after task k, is computed from the predictions in
:mod:`cifnet_pl.model.task_evaluation`. ``matrix[k][j]`` is the accuracy in percent, after task
k, on the test images of the classes that task j introduced, or of domain j; rows have k+1 entries,
and None where task j has no test image.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.calibration import Interval
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable, find_repeats
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import listed, number_of, printable

Row = Sequence[float | None]

MIN_TEST_IMAGES = 5
"""Test images of a class from which its accuracy is shown.

With four, the interval of a measured 75 % is 30 to 95 % (Wilson).
"""


def percent(correct: int, total: int) -> float | None:
    """Return the accuracy in percent, or None if nothing was tested.

    Args:
        correct: number of images whose class is predicted.
        total: number of images tested.
    """
    if total:
        return 100.0 * correct / total
    return None


def average_accuracy(trajectory: Sequence[float | None]) -> float | None:
    """Compute the average accuracy Ā, the mean of A_k over the tasks learned so far.

    Args:
        trajectory: A_k after each task in percent, None where it was not measured.

    Returns:
        Percent; None if nothing was measured.

    Example:
        >>> average_accuracy([90.0, None, 80.0])
        85.0
    """
    known = [a for a in trajectory if a is not None]
    if known:
        return sum(known) / len(known)
    return None


def forgetting(matrix: Sequence[Row]) -> float | None:
    """Compute the forgetting: the mean over tasks j of (max over j ≤ k ≤ K of a_kj) − a_Kj.

    K is the last task, and j are the tasks before it, all counted from 0.

    The last measurement counts among the earlier ones, so forgetting is never negative.

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task
            k, None where not measured.

    Returns:
        Percentage points; None with fewer than two tasks, or if no earlier task was measured at the
        end.

    Example:
        >>> forgetting([[90.0], [80.0, 95.0]])
        10.0
    """
    drops = []
    for j in range(len(matrix) - 1):
        last = matrix[-1][j]
        column = [row[j] for row in matrix[j:]]
        known = [accuracy for accuracy in column if accuracy is not None]
        if last is not None:
            drops.append(max(known) - last)
    return average_accuracy(drops)


def backward_transfer(matrix: Sequence[Row]) -> float | None:
    """Compute the backward transfer: the mean over tasks j of (a_Kj − a_jj).

    K is the last task, and j are the tasks before it, all counted from 0.

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task
            k, None where not measured.

    Returns:
        Percentage points; None with fewer than two tasks, or if no earlier task was measured both
        when it was learned and at the end.

    Example:
        >>> backward_transfer([[90.0], [80.0, 95.0]])
        -10.0
    """
    changes = []
    for j in range(len(matrix) - 1):
        first = matrix[j][j]
        last = matrix[-1][j]
        if first is not None and last is not None:
            changes.append(last - first)
    return average_accuracy(changes)


def max_drop(trajectory: Sequence[float | None]) -> float | None:
    """Compute the largest fall A_k − A_{k+1} between two consecutive tasks.

    Args:
        trajectory: A_k after each task in percent, None where it was not measured.

    Returns:
        Percentage points, negative if accuracy only rose; None unless two consecutive tasks were
        measured.

    Example:
        >>> max_drop([90.0, 84.0, 85.0])
        6.0
    """
    drops = []
    for a, b in itertools.pairwise(trajectory):
        if a is not None and b is not None:
            drops.append(a - b)
    return max(drops, default=None)


TOP_K = 5
"""Most probable classes that are recorded of an image."""


def top_classes(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the up to five most probable classes of each image, that of ``argmax`` first.

    Args:
        probabilities: (n, C) float.

    Returns:
        (n, min(5, C)) int64 columns and their (n, min(5, C)) probabilities, in falling order.
    """
    # Among equal probabilities, sorting would else rank another class before that of ``argmax``.
    predicted = probabilities.argmax(dim=1, keepdim=True)
    raised = probabilities.scatter(1, predicted, float("inf"))
    ranked = raised.argsort(dim=1, descending=True, stable=True)
    columns = ranked[:, :TOP_K]
    values = probabilities.gather(1, columns)
    return columns, values


# ---------------------------------------------------------------------- calibration error

ECE_BINS = 15
"""Bins of equal width, as in Guo et al. (2017)."""


def confidence_bins(confidence: Tensor, correct: Tensor) -> Tensor:
    """Sum predictions by confidence, in bins of equal width; the sums of batches add up.

    torchmetrics keeps every confidence instead, which for a million images takes hundreds of
    megabytes.

    Args:
        confidence: (n,) probability of each predicted class.
        correct: (n,) bool, whether it is the true class.

    Returns:
        (bins + 1, 3) float64 predictions, sum of confidences, and correct predictions. As in
        torchmetrics, a confidence of 1 has a bin of its own.
    """
    confidence = confidence.float()
    edges = torch.linspace(0, 1, ECE_BINS + 1, device=confidence.device)
    position = torch.bucketize(confidence, edges, right=True) - 1
    # Sums of float32 values in float64 are the same in any order and in any batches.
    ones = torch.ones_like(confidence)
    columns = [ones, confidence, correct.float()]
    counts = torch.stack(columns, dim=1).double()
    bins = counts.new_zeros(ECE_BINS + 1, 3)
    return bins.index_add_(0, position, counts)


def binned_calibration_error(bins: Tensor) -> float | None:
    """Compute the expected calibration error (Naeini et al., 2015) from :func:`confidence_bins`.

    ``ECE = Σ_b (n_b / n) · |accuracy_b − confidence_b|``

    Args:
        bins: (bins + 1, 3), summed over all batches.

    Returns:
        The ECE in percent; None without predictions.
    """
    predictions, confidence, correct = bins.unbind(dim=1)
    total = float(predictions.sum())
    if not total:
        return None
    gaps = (confidence - correct).abs()
    return 100 * float(gaps.sum()) / total


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float | None:
    """Compute the expected calibration error, the mean gap between confidence and accuracy.

    Args:
        confidence: (n,) probability of each predicted class.
        correct: (n,) bool, whether it is the true class.

    Returns:
        The ECE in percent, with 15 bins; None without predictions.

    Example:
        >>> calibration_error(np.array([0.75, 0.75]), np.array([True, False]))
        25.0
    """
    confidences = torch.from_numpy(confidence)
    bins = confidence_bins(confidences, torch.from_numpy(correct))
    return binned_calibration_error(bins)


# ---------------------------------------------------------------------- rarely predicted classes

RARELY_PREDICTED = 25.0
"""Accuracy of a class in percent, below which the class is called rarely predicted."""


def rarely_predicted(confusion: np.ndarray) -> list[int]:
    """Find the rarely predicted classes among those with at least five images.

    Args:
        confusion: (C, C) numbers of images, true classes in rows.

    Returns:
        Their positions.
    """
    images = confusion.sum(axis=1)
    limit = RARELY_PREDICTED * images / 100
    is_rare = confusion.diagonal() < limit
    is_tested = images >= MIN_TEST_IMAGES
    columns: list[int] = np.flatnonzero(is_tested & is_rare).tolist()
    return columns


def confusion_matrix(
    target: np.ndarray, predicted: np.ndarray, classes: int
) -> np.ndarray:
    """Count predictions: (C, C) int64, true classes in rows.

    Args:
        target: (n,) true columns.
        predicted: (n,) predicted columns.
        classes: C.
    """
    cells = np.bincount(target * classes + predicted, minlength=classes**2)
    return cells.reshape(classes, classes)


def left_out_confusion(model: Classifier) -> np.ndarray | None:
    """Predict each calibration sample by the model without it and its group.

    Returns:
        The confusion matrix; None for a single class, or without calibration samples or
        leave-one-out scores.
    """
    samples = model.calibration_samples()
    if samples is None or len(model.class_names) <= 1:
        return None
    if samples.learned and not model.head.leaves_one_out:
        return None
    scores, columns, _ = samples.known_scores()
    predicted = scores.argmax(dim=1).cpu().numpy()
    target = columns.cpu().numpy()
    return confusion_matrix(target, predicted, len(model.class_names))


def rarely_predicted_by(model: Classifier) -> list[str]:
    """Return the classes that a model rarely predicts for its calibration samples."""
    confusion = left_out_confusion(model)
    if confusion is None:
        return []
    return [model.class_names[column] for column in rarely_predicted(confusion)]


def rarely_predicted_message(
    names: Sequence[str], model: Classifier | None
) -> str | None:
    """Return a sentence about rarely predicted classes; None if there are none.

    Args:
        names: of the classes.
        model: that predicts; None for a trained method.
    """
    if not names:
        return None
    classes = listed([printable(name) for name in names])
    remedy = "add images of new groups"
    if model is not None:
        remedy = f"add {model.backbone.sample}s of new groups"
    if model is None or not model.head.selects_rule:
        remedy = f"use the recommended head (cifnet fit --config folder), or {remedy}"
    return (
        f"{number_of(len(names), 'rarely predicted class')} (accuracy below"
        f" {RARELY_PREDICTED:.0f} %): {classes}; {remedy}"
    )


# ---------------------------------------------------------------------- labelled images


def wilson_interval(correct: int, total: int) -> Interval:
    """Compute Wilson's 95 % interval for an accuracy (Wilson, 1927); 0 to 100 without images.

    Args:
        correct: number of images whose class is predicted.
        total: number of images.

    Example:
        >>> [round(end, 1) for end in wilson_interval(8, 10)]
        [49.0, 94.3]
    """
    if not total:
        return Interval(0.0, 100.0)
    from scipy.stats import binomtest  # imported here: to classify needs none of it

    bounds = binomtest(correct, total).proportion_ci(0.95, "wilson")
    low = 100 * float(bounds.low)
    high = 100 * float(bounds.high)
    return Interval(low, high)


@dataclass(frozen=True)
class ClassScore:
    """The score of a model on the images of one class.

    Attributes:
        name: of the class.
        images: number of images.
        correct: number of images whose class is predicted.
        confused_with: the class that is predicted for most of the others; None if there are none.
        confusions: number of images for which it is predicted.
    """

    name: str
    images: int
    correct: int
    confused_with: str | None = None
    confusions: int = 0

    @property
    def tested(self) -> bool:
        """Whether there are enough images to show an accuracy."""
        return self.images >= MIN_TEST_IMAGES

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None without images."""
        return percent(self.correct, self.images)


class ConfusedPair(NamedTuple):
    """Number of images of one class that are predicted as another one.

    Attributes:
        target: name of the true class.
        predicted: name of the predicted class.
        confusions: number of images.
        images: number of all images of the true class.
    """

    target: str
    predicted: str
    confusions: int
    images: int


@dataclass(frozen=True)
class Evaluation:
    """The predictions of a model for labelled images.

    Attributes:
        class_names: name of each column.
        rows: (n,) positions of the images in their set; those that cannot be read are not there.
        target: (n,) true columns.
        predicted: (n,) columns with the largest probability.
        confidence: (n,) that probability.
        ece: expected calibration error in percent.
        learned: (n,) bool: which images were learned, by their content; None where that is not
            compared.
        duplicates: (n,) bool: which images are duplicates of an earlier one of their class; None
            likewise.
        mislabelled: images that are in another class, too, as messages name them.
    """

    class_names: list[str]
    rows: np.ndarray
    target: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    ece: float
    learned: np.ndarray | None = None
    duplicates: np.ndarray | None = None
    mislabelled: tuple[str, ...] = ()

    @property
    def correct(self) -> np.ndarray:
        """(n,) bool: for which images the true class is predicted."""
        return np.asarray(self.target == self.predicted)

    @property
    def accuracy(self) -> float:
        """Accuracy over all images, in percent."""
        return 100 * float(self.correct.mean())

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval around the accuracy, in percent."""
        correct = int(self.correct.sum())
        return wilson_interval(correct, len(self.correct))

    def seen(self) -> list[str]:
        """Return for each image "learned", "duplicate" (of another one) or ""."""
        status = np.full(len(self.rows), "", dtype=object)
        for word, rows in (("duplicate", self.duplicates), ("learned", self.learned)):
            if rows is not None:
                status[rows] = word
        words: list[str] = status.tolist()
        return words

    def learned_message(self) -> str | None:
        """Return a sentence about images that the model has learned; None if there are none."""
        if self.learned is None or not self.learned.any():
            return None
        count = int(self.learned.sum())
        others = self.correct[~self.learned]
        images = number_of(len(self.rows), "image")
        message = f"{count} of {images} learned already"
        if len(others) < MIN_TEST_IMAGES:
            return f"{message}: measure with images that are new to the model"
        accuracy = 100 * float(others.mean())
        counted = number_of(len(others), "other")
        return f"{message}; accuracy on the {counted} {accuracy:.1f} %"

    def confusion(self) -> np.ndarray:
        """Return the (C, C) int64 confusion matrix, true classes in rows."""
        return confusion_matrix(self.target, self.predicted, len(self.class_names))

    def class_scores(self) -> list[ClassScore]:
        """Return the score of each class that has an image, the worst first, untested ones last."""
        matrix = self.confusion()
        errors = matrix - np.diag(matrix.diagonal())
        scores = []
        images = matrix.sum(axis=1)
        for column in np.flatnonzero(images):
            other = int(errors[column].argmax())
            confusions = int(errors[column, other])
            confused_with = None
            if confusions:
                confused_with = self.class_names[other]
            name = self.class_names[column]
            correct = int(matrix[column, column])
            score = ClassScore(
                name, int(images[column]), correct, confused_with, confusions
            )
            scores.append(score)
        scores.sort(key=lambda score: (not score.tested, score.percent, score.name))
        return scores

    @property
    def rarely_predicted(self) -> list[str]:
        """Classes that are rarely predicted for their images."""
        columns = rarely_predicted(self.confusion())
        return [self.class_names[column] for column in columns]

    def confused_pairs(self) -> list[ConfusedPair]:
        """Return all pairs of classes that are confused, the most frequent first."""
        matrix = self.confusion()
        images = matrix.sum(axis=1)
        pairs = []
        for i, j in np.argwhere(matrix).tolist():
            if i != j:
                target = self.class_names[i]
                predicted = self.class_names[j]
                confused = int(matrix[i, j])
                pair = ConfusedPair(target, predicted, confused, int(images[i]))
                pairs.append(pair)
        pairs.sort(key=lambda pair: (-pair.confusions, pair.images))
        return pairs


def evaluate(
    model: Classifier,
    images: LabelledImages,
    unreadable: list[Unreadable],
    progress: bool = False,
) -> Evaluation:
    """Predict labelled images, and compare with their labels.

    Args:
        model: a learned model.
        images: of classes that it knows; see :meth:`LabelledImages.of_classes`.
        unreadable: images that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Raises:
        DataError: no image can be read.
    """
    position = {name: column for column, name in enumerate(model.class_names)}
    columns = np.array([position[name] for name in images.class_names], dtype=np.int64)
    row_batches = []
    probabilities = []
    for rows, z in images.embedded(model, "evaluating", unreadable, progress):
        row_batches.append(rows)
        best = model.head.probabilities(z).max(dim=1)
        probabilities.append(torch.stack([best.indices.double(), best.values]).cpu())
    all_rows = np.concatenate(row_batches)
    if not len(all_rows):
        raise DataError("none of the images can be read: there is nothing to evaluate")
    predicted, all_confidence = torch.cat(probabilities, dim=1).numpy()
    all_predicted = predicted.astype(np.int64)
    target = columns[images.files.labels[all_rows]]
    ece = calibration_error(all_confidence, target == all_predicted) or 0.0
    repeats, mislabelled = find_repeats(model, images)
    return Evaluation(
        list(model.class_names),
        all_rows,
        target,
        all_predicted,
        all_confidence,
        ece,
        learned=np.isin(all_rows, repeats.learned),
        duplicates=np.isin(all_rows, list(repeats.twice)),
        mislabelled=tuple(mislabelled.values()),
    )
