"""Compute the figures of a run (Ā, forgetting, backward transfer) and of a model's answers to
labelled images.

The figures of a run are pure functions of the trajectory A_1 … A_K and of the accuracy matrix. A_k
itself, the accuracy over all classes seen after task k, is computed from the predictions in
:mod:`cifnet_pl.learning.task_module`. ``matrix[k][j]`` is the accuracy in percent, after learning
task k, on the test images of the classes that task j introduced; rows have k+1 entries, and None
where task j has no test image.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.core import Model
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable, find_repeats
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import listed, number_of, printable

Row = Sequence[float | None]

FEW = 5
"""Images from which their score is told: with four, 75 % right may mean anything from 19 to 99
%.
"""


def percent(correct: int, total: int) -> float | None:
    """Return the accuracy in percent, or None if nothing was tested.

    Args:
        correct: number of images named right.
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
    """Compute the forgetting, the mean over earlier tasks j < K of (max over k of a_kj, minus
    a_Kj).

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task
            k, None where not measured.

    Returns:
        Percentage points; None with fewer than two tasks.

    Example:
        >>> forgetting([[90.0], [80.0, 95.0]])
        10.0
    """
    drops = []
    for j in range(len(matrix) - 1):
        column = [row[j] for row in matrix[j:]]
        known = [a for a in column if a is not None]
        if known and column[-1] is not None:
            drops.append(max(known) - column[-1])
    if drops:
        return sum(drops) / len(drops)
    return None


def backward_transfer(matrix: Sequence[Row]) -> float | None:
    """Compute the backward transfer, the mean over earlier tasks j < K of (a_Kj − a_jj).

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task
            k, None where not measured.

    Returns:
        Percentage points; None with fewer than two tasks.

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
    if changes:
        return sum(changes) / len(changes)
    return None


def max_drop(trajectory: Sequence[float | None]) -> float | None:
    """Compute the largest fall A_k − A_{k+1} between two consecutive tasks.

    Args:
        trajectory: A_k after each task in percent, None where it was not measured.

    Returns:
        Percentage points, negative if accuracy only rose; None with fewer than two measurements.

    Example:
        >>> max_drop([90.0, 84.0, 85.0])
        6.0
    """
    pairs = itertools.pairwise(trajectory)
    drops = [a - b for a, b in pairs if a is not None and b is not None]
    if drops:
        return max(drops)
    return None


FIRST = 5
"""Most probable classes that are kept of an image."""


def with_answer_first(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the probability of the answer by infinity, so that ties are sorted as ``argmax``
    decides them.

    Args:
        probabilities: (n, C).

    Returns:
        The changed probabilities (n, C), and the answers (n,).
    """
    best = probabilities.argmax(dim=1)
    return probabilities.scatter(1, best[:, None], float("inf")), best


def first_classes(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the up to five most probable classes of each image, the first one being that of
    ``argmax``.

    Args:
        probabilities: (n, C) float.

    Returns:
        (n, min(5, C)) int64 columns and their (n, min(5, C)) probabilities, in falling order.
    """
    raised, _ = with_answer_first(probabilities)
    columns = raised.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    return columns, probabilities.gather(1, columns)


# ---------------------------------------------------------------------- classes that are hardly
# ever answered

HARDLY = 25.0
"""Percent of a class's images that are named right, below which the class is called hardly ever
answered.
"""


def rarely_predicted(right: np.ndarray, images: np.ndarray) -> np.ndarray:
    """Find classes whose images are hardly ever named right, of those with at least five images.

    Args:
        right: (C,) images of each class that are named right.
        images: (C,) images of each class.

    Returns:
        (m,) their positions.
    """
    return np.flatnonzero((images >= FEW) & (100 * right < HARDLY * images))


def stored_answers(model: Model) -> tuple[Tensor, Tensor] | None:
    """Answer for each sample that calibrates a model as if neither it nor those of its group had
    been learned.

    Returns:
        (n,) true columns and (n,) answered columns; None for a single class, or where nothing is
        stored or left out.
    """
    samples = model.calibration_samples() if len(model.class_names) > 1 else None
    if samples is None or not len(samples.y) or (samples.learned and not model.head.leaves_one_out):
        return None
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    return samples.columns[known].cpu(), scores[known].argmax(dim=1).cpu()


def rarely_predicted_by(model: Model) -> list[str]:
    """Return the classes that a model hardly ever answers for the samples that calibrate it."""
    stored = stored_answers(model)
    size = len(model.class_names)
    if stored is None:
        return []
    true, answered = stored
    counts = (true[true == answered].bincount(minlength=size), true.bincount(minlength=size))
    return [
        model.class_names[column]
        for column in rarely_predicted(*(count.numpy() for count in counts))
    ]


def rarely_predicted_message(names: Sequence[str], sample: str = "image") -> str | None:
    """Return a sentence about classes that are hardly ever answered; None if there are none.

    Args:
        names: of the classes.
        sample: what a sample is called, "image" or "sample".
    """
    if not names:
        return None
    if len(names) == 1:
        classes = "1 class is"
    else:
        classes = f"{len(names)} classes are"
    other_days = " of other days" if sample == "image" else ""
    return (
        f"{classes} hardly ever answered, with less than {HARDLY:.0f} % of the {sample}s right: "
        f"{listed([printable(name) for name in names])}; more {sample}s{other_days} help most there"
    )


# ---------------------------------------------------------------------- labelled images

BINS = 15
"""Bins of the confidence in the expected calibration error."""


def confidence_bins(confidence: Tensor, correct: Tensor) -> Tensor:
    """Sort predictions into equal bins of their confidence.

    Bins are as in torchmetrics: a confidence on an edge belongs to the upper bin, and 1 has a bin
    of its own. The sums of several batches or processes can be added.

    Args:
        confidence: (n,) floating probability of each predicted class.
        correct: (n,) bool, whether the prediction is correct.

    Returns:
        (BINS + 1, 3) float64: number of predictions, sum of confidences, and number of correct
        predictions in each bin.
    """
    edges = torch.linspace(0, 1, BINS + 1, device=confidence.device)
    bins = torch.bucketize(confidence.float(), edges, right=True) - 1
    confidence = confidence.double()
    columns = [torch.ones_like(confidence), confidence, correct.to(confidence)]
    sums = confidence.new_zeros(BINS + 1, 3)
    return sums.index_add_(0, bins, torch.stack(columns, dim=1))


def binned_calibration_error(bins: Tensor) -> float | None:
    """Compute the expected calibration error (Naeini et al., 2015).

    ``ECE = Σ_b (n_b / n) · |accuracy_b − confidence_b|``

    Args:
        bins: (BINS + 1, 3) from :func:`confidence_bins`.

    Returns:
        Percent; None without predictions.

    """
    predictions, confidence, correct = bins.unbind(dim=1)
    total = float(predictions.sum())
    if not total:
        return None
    return 100 * float((confidence - correct).abs().sum()) / total


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float | None:
    """Compute the expected calibration error of predictions, see :func:`binned_calibration_error`.

    Args:
        confidence: (n,) probability of each predicted class.
        correct: (n,) bool, whether the prediction is correct.

    Returns:
        Percent; None without predictions.

    Example:
        >>> round(calibration_error(np.array([0.9, 0.9, 0.6]), np.array([True, False, True])), 1)
        40.0
    """
    bins = confidence_bins(torch.from_numpy(confidence), torch.from_numpy(correct))
    return binned_calibration_error(bins)


def interval(right: int, total: int) -> tuple[float, float]:
    """Compute Wilson's interval of 95 % for a share, in percent (Wilson, 1927); 0 to 100 without
    images.

    Args:
        right: number of images named right.
        total: number of images.

    Returns:
        Its lower and upper end.

    Example:
        >>> [round(end, 1) for end in interval(8, 10)]
        [49.0, 94.3]
    """
    if not total:
        return 0.0, 100.0
    from scipy.stats import binomtest  # to classify needs none of it

    bounds = binomtest(right, total).proportion_ci(0.95, "wilson")
    return 100 * float(bounds.low), 100 * float(bounds.high)


@dataclass(frozen=True)
class ClassScore:
    """The score of a model on the images of one class.

    Attributes:
        images, right: numbers of images, and of those named right.
        taken_for: the class that most of the others were taken for, and how many; None if there are
            none.
    """

    name: str
    images: int
    right: int
    taken_for: tuple[str, int] | None

    @property
    def tested(self) -> bool:
        """Whether there are enough images to say anything."""
        return self.images >= FEW

    @property
    def percent(self) -> float | None:
        """Share of the images that are named right, in percent; None without images."""
        if self.images:
            return 100 * self.right / self.images
        return None


@dataclass(frozen=True)
class Evaluation:
    """The answers of a model to labelled images.

    Attributes:
        class_names: name of each column.
        rows: (n,) positions of the images in their set; those that cannot be read are not there.
        target: (n,) true columns.
        predicted: (n,) columns with the largest probability.
        confidence: (n,) that probability.
        ece: expected calibration error in percent, 15 bins of the confidence.
        learned: (n,) bool: which images were learned, by their content; None where that is not
            compared.
        twice: (n,) bool: which images are copies of an earlier one of their class; None likewise.
        mislabelled: images that are in another class, too, as messages name them.
    """

    class_names: list[str]
    rows: np.ndarray
    target: np.ndarray
    predicted: np.ndarray
    confidence: np.ndarray
    ece: float
    learned: np.ndarray | None = None
    twice: np.ndarray | None = None
    mislabelled: tuple[str, ...] = ()

    @property
    def right(self) -> np.ndarray:
        """(n,) bool: which images are named right."""
        return np.asarray(self.target == self.predicted)

    @property
    def accuracy(self) -> float:
        """Share of all images that are named right, in percent."""
        return 100 * float(self.right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 % around the accuracy, in percent."""
        return interval(int(self.right.sum()), len(self.right))

    def seen(self) -> list[str]:
        """Return for each image whether it was "learned", or is a "copy" of another one; else
        "".
        """
        told = np.full(len(self.rows), "", dtype=object)
        for mask, word in ((self.twice, "copy"), (self.learned, "learned")):
            told[slice(0) if mask is None else mask] = word
        return [str(word) for word in told]

    def about_learned(self) -> str | None:
        """Return a note about images that the model has learned; None if there are none."""
        if self.learned is None:
            count = 0
        else:
            count = int(self.learned.sum())
        if self.learned is None or not count:
            return None
        were, flatter = ("was", "flatters") if count == 1 else ("were", "flatter")
        start = (
            f"{count} of these {number_of(len(self.rows), 'image')} {were} learned already and"
            f" {flatter} the score"
        )
        others = self.right[~self.learned]
        named = number_of(len(others), "other")
        if len(others) < FEW:
            return f"{start}: with {named} it says little of images of another day"
        return f"{start}: of the {named} {100 * float(others.mean()):.1f} % are right"

    def confusion(self) -> np.ndarray:
        """Return (C, C) int64 numbers of images, rows the true classes, columns the answers."""
        size = len(self.class_names)
        return np.bincount(self.target * size + self.predicted, minlength=size**2).reshape(
            size, size
        )

    def class_scores(self) -> list[ClassScore]:
        """Return the score of each class that has an image, the worst first, untested ones last."""
        matrix = self.confusion()
        scores = []
        for column in np.flatnonzero(matrix.sum(axis=1)):
            answers = matrix[column].copy()
            right = int(answers[column])
            answers[column] = 0
            other = int(answers.argmax())
            taken_for = (self.class_names[other], int(answers[other])) if answers[other] else None
            scores.append(
                ClassScore(self.class_names[column], int(matrix[column].sum()), right, taken_for)
            )
        return sorted(
            scores, key=lambda score: (not score.tested, score.right / score.images, score.name)
        )

    @property
    def rarely_predicted(self) -> list[str]:
        """Classes of which hardly any image is named right."""
        matrix = self.confusion()
        return [
            self.class_names[column]
            for column in rarely_predicted(matrix.diagonal(), matrix.sum(axis=1))
        ]

    def confused_pairs(self) -> list[tuple[str, str, int, int]]:
        """Return (true class, answer, images, images of the true class) of all confusions, the most
        frequent first.
        """
        matrix = self.confusion()
        totals = matrix.sum(axis=1)
        pairs = [(i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
        pairs.sort(key=lambda pair: (-matrix[pair], -matrix[pair] / totals[pair[0]], pair))
        return [
            (self.class_names[i], self.class_names[j], int(matrix[i, j]), int(totals[i]))
            for i, j in pairs
        ]


def evaluate(
    model: Model, images: LabelledImages, unreadable: list[Unreadable], progress: bool = False
) -> Evaluation:
    """Name labelled images and compare with their labels.

    Args:
        model: a learned model.
        images: of classes that it knows; see :meth:`LabelledImages.of`.
        unreadable: images that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Raises:
        DataError: no image can be read.
    """
    columns = np.array(
        [model.class_names.index(name) for name in images.class_names], dtype=np.int64
    )
    parts: list[tuple[np.ndarray, ...]] = []
    for rows, z in images.embedded(model, "evaluating", unreadable, progress):
        if not len(rows):
            continue
        target = columns[images.files.labels[rows]]
        probabilities = model.head.probabilities(z)
        best = probabilities.max(dim=1)
        parts.append((rows, target, best.indices.cpu().numpy(), best.values.cpu().numpy()))
    if not parts:
        raise DataError("none of the images can be read: there is nothing to evaluate")
    rows, target, predicted, confidence = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    ece = calibration_error(confidence, target == predicted) or 0.0
    repeats, undecided = find_repeats(model, images)
    return Evaluation(
        list(model.class_names),
        rows,
        target,
        predicted,
        confidence,
        ece,
        learned=np.isin(rows, repeats.learned),
        twice=np.isin(rows, list(repeats.twice)),
        mislabelled=tuple(undecided.values()),
    )
