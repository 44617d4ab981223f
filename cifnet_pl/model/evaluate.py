"""Evaluate a model on labelled photos: accuracy with intervals, confusions, calibration, comparison of two models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binomtest
from torchmetrics.classification import MulticlassCalibrationError

from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.core import Model
from cifnet_pl.model.known_photos import LearnedPhotos, NearCopyScore, find_repeats
from cifnet_pl.utilities.errors import DataError

FEW = 5
"""A class with fewer test photos is called untested: with four, 75 % right may mean anything from 19 to 99 %."""

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
        near: (n,) bool: which photos were learned, by their content, or are near-copies of samples in the model's
            calibration buffer; None where the model cannot tell.
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
    near: np.ndarray | None = None
    learned: np.ndarray | None = None
    twice: np.ndarray | None = None
    mislabelled: tuple[str, ...] = ()

    @property
    def near_copy_score(self) -> NearCopyScore:
        """The number of photos that resemble learned ones, and the score of the others."""
        if self.near is None:
            return NearCopyScore()
        return NearCopyScore.of(self.near, self.right, 0 if self.learned is None else int(self.learned.sum()))

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
        """Return for each photo whether it was "learned", is a "near-copy" of learned ones, or a "copy"; else ""."""
        told = np.full(len(self.rows), "", dtype=object)
        for mask, word in ((self.twice, "copy"), (self.near, "near-copy"), (self.learned, "learned")):
            told[slice(0) if mask is None else mask] = word
        return [str(word) for word in told]

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
    columns = np.array([model.class_names.index(name) for name in photos.class_names], dtype=np.int64)
    calibration = MulticlassCalibrationError(max(2, len(model.class_names)), n_bins=BINS, validate_args=False)
    calibration.to(model.device)
    parts: list[tuple[np.ndarray, ...]] = []
    labels, stored = torch.tensor(model.labels(photos.class_names)), LearnedPhotos()
    if model.stored_samples is not None:
        stored.add(*model.stored_samples)
    for rows, z in photos.embedded(model, "evaluating", unreadable, progress):
        if not len(rows):
            continue
        positions = photos.files.labels[rows]
        target, near = columns[positions], stored.resemble(z, labels[positions])
        probabilities = model.head.probabilities(z)
        calibration.update(probabilities, torch.from_numpy(target).to(z.device))
        best = probabilities.max(dim=1)
        parts.append((rows, target, best.indices.cpu().numpy(), best.values.cpu().numpy(), near))
    if not parts:
        raise DataError("none of the photos can be read: there is nothing to evaluate")
    rows, target, predicted, confidence, near = (np.concatenate(column) for column in zip(*parts, strict=True))
    ece = 100 * float(calibration.compute())
    learned, twice, mislabelled = find_repeats(model, photos)
    return Evaluation(
        list(model.class_names),
        rows,
        target,
        predicted,
        confidence,
        ece,
        near=near | learned[rows],
        learned=learned[rows],
        twice=twice[rows],
        mislabelled=tuple(mislabelled),
    )


@dataclass(frozen=True)
class Comparison:
    """The numbers of photos that both of two models named right, only the first, only the second, and neither."""

    both: int
    first: int
    second: int
    neither: int

    @property
    def photos(self) -> int:
        """Photos that both models were asked about."""
        return self.both + self.first + self.second + self.neither

    @property
    def accuracies(self) -> tuple[float, float]:
        """Accuracy of each model on these photos, in percent."""
        return 100 * (self.both + self.first) / self.photos, 100 * (self.both + self.second) / self.photos

    @property
    def p_value(self) -> float:
        """Probability of such a difference, or a larger one, if both were equally good (McNemar's exact test)."""
        differing = self.first + self.second
        return float(binomtest(self.first, differing).pvalue) if differing else 1.0


def compare(first: Evaluation, second: Evaluation) -> Comparison:
    """Compare two evaluations over rows of the same set, on the photos that both have.

    Args:
        first: of one model.
        second: of the other model.

    Raises:
        DataError: they have no photo in common.
    """
    _, a, b = np.intersect1d(first.rows, second.rows, assume_unique=True, return_indices=True)
    if not len(a):
        raise DataError("the two models have no class in common of which there is a photo")
    ours, theirs = first.right[a], second.right[b]
    counts = [int(((ours == x) & (theirs == y)).sum()) for x, y in ((1, 1), (1, 0), (0, 1), (0, 0))]
    return Comparison(*counts)
