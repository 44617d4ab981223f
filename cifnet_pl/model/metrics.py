"""Compute the figures of a run (Ā, forgetting, backward transfer) and of a model's answers to labelled photos.

The figures of a run are pure functions of the trajectory A_1 … A_K and of the accuracy matrix. A_k itself, the accuracy
over all classes seen after task k, is computed from the predictions in :mod:`cifnet_pl.learning.task_module`.
``matrix[k][j]`` is the accuracy in percent, after learning task k, on the test images of the classes that task j
introduced; rows have k+1 entries, and None where task j has no test image.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos, Unreadable, find_repeats
from cifnet_pl.model.core import Model
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import listed, number_of, printable

Row = Sequence[float | None]

FEW = 5
"""Photos from which their score is told: with four, 75 % right may mean anything from 19 to 99 %."""


def percent(correct: int, total: int) -> float | None:
    """Return the accuracy in percent, or None if nothing was tested.

    Args:
        correct: number of images named right.
        total: number of images tested.
    """
    return 100.0 * correct / total if total else None


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
    return sum(known) / len(known) if known else None


def forgetting(matrix: Sequence[Row]) -> float | None:
    """Compute the forgetting, the mean over earlier tasks j < K of (max over k of a_kj, minus a_Kj).

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task k, None where not
            measured.

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
    return sum(drops) / len(drops) if drops else None


def backward_transfer(matrix: Sequence[Row]) -> float | None:
    """Compute the backward transfer, the mean over earlier tasks j < K of (a_Kj − a_jj).

    Args:
        matrix: row k holds the accuracies in percent on the test images of tasks 0 to k after task k, None where not
            measured.

    Returns:
        Percentage points; None with fewer than two tasks.

    Example:
        >>> backward_transfer([[90.0], [80.0, 95.0]])
        -10.0
    """
    changes = []
    for j in range(len(matrix) - 1):
        first, last = matrix[j][j], matrix[-1][j]
        if first is not None and last is not None:
            changes.append(last - first)
    return sum(changes) / len(changes) if changes else None


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
    return max(drops) if drops else None


FIRST = 5
"""Most probable classes that are kept of an image."""


def with_answer_first(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the probability of the answer by infinity, so that ties are sorted as ``argmax`` decides them.

    Args:
        probabilities: (n, C).

    Returns:
        The changed probabilities (n, C), and the answers (n,).
    """
    best = probabilities.argmax(dim=1)
    return probabilities.scatter(1, best[:, None], float("inf")), best


def first_classes(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the up to five most probable classes of each image, the first one being that of ``argmax``.

    Args:
        probabilities: (n, C) float.

    Returns:
        (n, min(5, C)) int64 columns and their (n, min(5, C)) probabilities, in falling order.
    """
    raised, _ = with_answer_first(probabilities)
    columns = raised.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    return columns, probabilities.gather(1, columns)


# ---------------------------------------------------------------------- classes that are hardly ever answered

HARDLY = 25.0
"""Percent of a class's photos that are named right, below which the class is called hardly ever answered."""


def hardly_answered(right: np.ndarray, photos: np.ndarray) -> np.ndarray:
    """Find classes whose photos are hardly ever named right, of those with at least five photos.

    Args:
        right: (C,) photos of each class that are named right.
        photos: (C,) photos of each class.

    Returns:
        (m,) their positions.
    """
    return np.flatnonzero((photos >= FEW) & (100 * right < HARDLY * photos))


def stored_answers(model: Model) -> tuple[Tensor, Tensor] | None:
    """Answer for each sample that calibrates a model as if neither it nor those of its occasion had been learned.

    Returns:
        (n,) true columns and (n,) answered columns; None for a single class, or where nothing is stored or left out.
    """
    samples = model.calibration_samples() if len(model.class_names) > 1 else None
    if samples is None or not len(samples.y) or (samples.learned and not model.head.leaves_one_out):
        return None
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    return samples.columns[known].cpu(), scores[known].argmax(dim=1).cpu()


def hardly_answered_by(model: Model) -> list[str]:
    """Return the classes that a model hardly ever answers for the samples that calibrate it."""
    stored, size = stored_answers(model), len(model.class_names)
    if stored is None:
        return []
    true, answered = stored
    counts = (true[true == answered].bincount(minlength=size), true.bincount(minlength=size))
    return [model.class_names[column] for column in hardly_answered(*(count.numpy() for count in counts))]


def about_hardly_answered(names: Sequence[str], sample: str = "photo") -> str | None:
    """Return a sentence about classes that are hardly ever answered; None if there are none.

    Args:
        names: of the classes.
        sample: what a sample is called, "photo" or "sample".
    """
    if not names:
        return None
    classes = "1 class is" if len(names) == 1 else f"{len(names)} classes are"
    other_days = " of other days" if sample == "photo" else ""
    return (
        f"{classes} hardly ever answered, with less than {HARDLY:.0f} % of the {sample}s right: "
        f"{listed([printable(name) for name in names])}; more {sample}s{other_days} help most there"
    )


# ---------------------------------------------------------------------- labelled photos

BINS = 15


def interval(right: int, total: int) -> tuple[float, float]:
    """Compute Wilson's interval of 95 % for a share, in percent (Wilson, 1927); 0 to 100 without photos.

    Args:
        right: number of photos named right.
        total: number of photos.

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
    """The score of a model on the photos of one class.

    Attributes:
        photos, right: numbers of photos, and of those named right.
        taken_for: the class that most of the others were taken for, and how many; None if there are none.
    """

    name: str
    photos: int
    right: int
    taken_for: tuple[str, int] | None

    @property
    def tested(self) -> bool:
        """Whether there are enough photos to say anything."""
        return self.photos >= FEW

    @property
    def percent(self) -> float | None:
        """Share of the photos that are named right, in percent; None without photos."""
        return 100 * self.right / self.photos if self.photos else None


@dataclass(frozen=True)
class Evaluation:
    """The answers of a model to labelled photos.

    Attributes:
        class_names: name of each column.
        rows: (n,) positions of the photos in their set; those that cannot be read are not there.
        target: (n,) true columns.
        predicted: (n,) columns with the largest probability.
        confidence: (n,) that probability.
        ece: expected calibration error in percent, 15 bins of the confidence.
        learned: (n,) bool: which photos were learned, by their content; None where that is not compared.
        twice: (n,) bool: which photos are copies of an earlier one of their class; None likewise.
        mislabelled: photos that are in another class, too, as messages name them.
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
        """(n,) bool: which photos are named right."""
        return np.asarray(self.target == self.predicted)

    @property
    def accuracy(self) -> float:
        """Share of all photos that are named right, in percent."""
        return 100 * float(self.right.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 % around the accuracy, in percent."""
        return interval(int(self.right.sum()), len(self.right))

    def seen(self) -> list[str]:
        """Return for each photo whether it was "learned", or is a "copy" of another one; else ""."""
        told = np.full(len(self.rows), "", dtype=object)
        for mask, word in ((self.twice, "copy"), (self.learned, "learned")):
            told[slice(0) if mask is None else mask] = word
        return [str(word) for word in told]

    def about_learned(self) -> str | None:
        """Return a note about photos that the model has learned; None if there are none."""
        count = 0 if self.learned is None else int(self.learned.sum())
        if self.learned is None or not count:
            return None
        were, flatter = ("was", "flatters") if count == 1 else ("were", "flatter")
        start = f"{count} of these {number_of(len(self.rows), 'photo')} {were} learned already and {flatter} the score"
        others = self.right[~self.learned]
        named = number_of(len(others), "other")
        if len(others) < FEW:
            return f"{start}: with {named} it says little of photos of another day"
        return f"{start}: of the {named} {100 * float(others.mean()):.1f} % are right"

    def confusion(self) -> np.ndarray:
        """Return (C, C) int64 numbers of photos, rows the true classes, columns the answers."""
        size = len(self.class_names)
        return np.bincount(self.target * size + self.predicted, minlength=size**2).reshape(size, size)

    def class_scores(self) -> list[ClassScore]:
        """Return the score of each class that has a photo, the worst first, untested ones last."""
        matrix = self.confusion()
        scores = []
        for column in np.flatnonzero(matrix.sum(axis=1)):
            answers = matrix[column].copy()
            right, answers[column] = int(answers[column]), 0
            other = int(answers.argmax())
            taken_for = (self.class_names[other], int(answers[other])) if answers[other] else None
            scores.append(ClassScore(self.class_names[column], int(matrix[column].sum()), right, taken_for))
        return sorted(scores, key=lambda score: (not score.tested, score.right / score.photos, score.name))

    @property
    def hardly_answered(self) -> list[str]:
        """Classes of which hardly any photo is named right."""
        matrix = self.confusion()
        return [self.class_names[column] for column in hardly_answered(matrix.diagonal(), matrix.sum(axis=1))]

    def confused_pairs(self) -> list[tuple[str, str, int, int]]:
        """Return (true class, answer, photos, photos of the true class) of all confusions, the most frequent first."""
        matrix = self.confusion()
        totals = matrix.sum(axis=1)
        pairs = [(i, j) for i, j in zip(*np.nonzero(matrix), strict=True) if i != j]
        pairs.sort(key=lambda pair: (-matrix[pair], -matrix[pair] / totals[pair[0]], pair))
        return [(self.class_names[i], self.class_names[j], int(matrix[i, j]), int(totals[i])) for i, j in pairs]


def evaluate(model: Model, photos: ClassPhotos, unreadable: list[Unreadable], progress: bool = False) -> Evaluation:
    """Name labelled photos and compare with their labels.

    Args:
        model: a learned model.
        photos: of classes that it knows; see :meth:`ClassPhotos.of`.
        unreadable: photos that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Raises:
        DataError: no photo can be read.
    """
    from torchmetrics.classification import MulticlassCalibrationError  # to classify needs none of it

    columns = np.array([model.class_names.index(name) for name in photos.class_names], dtype=np.int64)
    calibration = MulticlassCalibrationError(max(2, len(model.class_names)), n_bins=BINS, validate_args=False)
    calibration.to(model.device)
    parts: list[tuple[np.ndarray, ...]] = []
    for rows, z in photos.embedded(model, "evaluating", unreadable, progress):
        if not len(rows):
            continue
        target = columns[photos.files.labels[rows]]
        probabilities = model.head.probabilities(z)
        calibration.update(probabilities, torch.from_numpy(target).to(z.device))
        best = probabilities.max(dim=1)
        parts.append((rows, target, best.indices.cpu().numpy(), best.values.cpu().numpy()))
    if not parts:
        raise DataError("none of the photos can be read: there is nothing to evaluate")
    rows, target, predicted, confidence = (np.concatenate(column) for column in zip(*parts, strict=True))
    ece = 100 * float(calibration.compute())
    repeats, undecided = find_repeats(model, photos)
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
