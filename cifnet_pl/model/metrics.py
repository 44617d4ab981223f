"""Compute the figures of a run (Ā, forgetting, backward transfer) and of a model's answers to labelled photos.

The figures of a run are pure functions of the trajectory A_1 … A_K and of the accuracy matrix. A_k itself, the accuracy
over all classes seen after task k, is computed from the predictions in :mod:`cifnet_pl.learning.evaluation`.
``matrix[k][j]`` is the accuracy in percent, after learning task k, on the test images of the classes that task j
introduced; rows have k+1 entries, and None where task j has no test image.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos, Unreadable, find_repeats
from cifnet_pl.model.core import Model
from cifnet_pl.photos.copies import listed
from cifnet_pl.statistics import comparable, copy_limit, near_groups, resembles
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.text import number_of, printable

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


# ---------------------------------------------------------------------- near-copies

KEPT_BYTES = 256 * 10**6
"""Bytes of learned embeddings that are kept to compare others with; those past it are not compared."""


class LearnedPhotos:
    """The embeddings of photos that were learned, in half precision, up to ``KEPT_BYTES`` bytes.

    Args:
        reference: embeddings (m, d) of other photos by the same network and their labels (m,), to measure how alike
            photos of different classes are; needed if all photos are of one class, else nothing is compared.

    Attributes:
        limit: from :func:`cifnet_pl.statistics.copy_limit`; None until there are photos of two classes.
    """

    def __init__(self, reference: tuple[Tensor, Tensor] | None = None) -> None:
        self.limit: float | None = None
        self._reference = reference
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._bytes = 0

    def add(self, z: Tensor, y: Tensor) -> None:
        """Take in embeddings (n, d) and labels (n,)."""
        kept = comparable(z).half().cpu()
        if self._bytes + kept.nbytes <= KEPT_BYTES:
            self._parts.append((kept, y.cpu()))
            self._bytes += kept.nbytes

    def gather(self) -> None:
        """Take in what all processes took in."""
        self._parts = [part for parts in of_all_processes(self._parts) for part in parts]

    def labels(self) -> list[int]:
        """Return the labels of which there are photos."""
        return sorted({label for _, y in self._parts for label in y.tolist()})

    def _joined(self) -> tuple[Tensor, Tensor]:
        u, y = (torch.cat(column) for column in zip(*self._parts, strict=True))
        return u, y

    def measure(self) -> bool:
        """Measure the limit, unless it is known; return whether it is."""
        if self.limit is None and self._parts:
            u, y = self._joined()
            if self._reference is not None:
                z, labels = self._reference
                u, y = torch.cat([u, comparable(z).half().cpu()]), torch.cat([y, labels.cpu()])
            self.limit = copy_limit(u, y)
        return self.limit is not None

    def near_copies(self) -> tuple[int, int]:
        """Count the photos that have a near-copy in their class, and all that were compared."""
        if not self._parts or not self.measure():
            return 0, 0
        assert self.limit is not None
        u, y = self._joined()
        sizes = near_groups(u, y, self.limit).bincount()
        return int(sizes[sizes > 1].sum()), len(u)

    def resemble(self, z: Tensor, y: Tensor) -> np.ndarray:
        """Find photos that have a near-copy of their class among those taken in.

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.

        Returns:
            (n,) bool.
        """
        if not self._parts or not len(z) or not self.measure():
            return np.zeros(len(z), dtype=bool)
        assert self.limit is not None
        return resembles(comparable(z).cpu(), y.cpu(), *self._joined(), self.limit).numpy()


@dataclass(frozen=True)
class NearCopyScore:
    """The number of tested photos that resemble learned ones, and the score of the others.

    Attributes:
        near: tested photos with a near-copy of their class among the learned ones.
        others, right: the other tested photos, and those of them that are named right.
        learned: those of ``near`` that were learned themselves, where content hashes tell.
    """

    near: int = 0
    others: int = 0
    right: int = 0
    learned: int = 0

    @classmethod
    def of(cls, near: np.ndarray, right: np.ndarray, learned: int = 0) -> NearCopyScore:
        """Count from (n,) bool, whether photos are ``near`` learned ones, and named ``right``."""
        return cls(int(near.sum()), int((~near).sum()), int((right & ~near).sum()), learned)

    def __add__(self, other: NearCopyScore) -> NearCopyScore:
        ours, theirs = astuple(self), astuple(other)
        return NearCopyScore(*(a + b for a, b in zip(ours, theirs, strict=True)))

    def sentence(self) -> str | None:
        """Return a note to print beside the score; None if no tested photo resembles a learned one."""
        if not self.near:
            return None
        total, share = self.near + self.others, percent(self.right, self.others)
        are, were, flatter = (
            ("is a near-copy", "was", "flatters") if self.near == 1 else ("are near-copies", "were", "flatter")
        )
        what = f"{were} learned already" if self.learned == self.near else f"{are} of learned ones"
        if 0 < self.learned < self.near:
            what += f" ({self.learned} of them the very same files)"
        start = f"{self.near} of these {number_of(total, 'photo')} {what} and {flatter} the score"
        if not self.others:
            whose = "the only photo" if total == 1 else f"all {total} photos"
            return f"{whose} {what} and {flatter} the score: it says nothing of photos of another day"
        if self.others < FEW or share is None:
            return f"{start}: with {number_of(self.others, 'other')} it says little of photos of another day"
        return f"{start}: of the {number_of(self.others, 'other')} {share:.1f} % are right"

    def sentences(self, near: int, total: int, capped: bool) -> list[str]:
        """Return the notes to print beside the score; arguments are those of :func:`about_near_copies`."""
        return [note for note in (self.sentence(), about_near_copies(near, total, capped)) if note]


MANY = 0.1
"""Share of near-copies from which a ridge at its cap is told: 12 × 25 distinct photos have 0 to 7 % of them."""


def about_near_copies(near: int, total: int, capped: bool) -> str | None:
    """Return a note about learned photos that have near-copies; None if there are none.

    Args:
        near: learned photos that have near-copies.
        total: all that were compared.
        capped: whether a ridge is at its cap, as it is where near-copies are many, or distinct photos few and easy.
    """
    if not near:
        return None
    note = f"{near} of {total} learned photos are near-copies of others (bursts, edited versions) and add little"
    if capped and near >= MANY * total:
        note += ". The model was kept from fitting these too closely; photos of other days would teach it more"
    return note


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


def hardly_answered_by(model: Model) -> list[str]:
    """Return the classes that a model hardly ever answers for its stored samples, each judged without its occasion.

    Args:
        model: a learned model; nothing is known of one without calibration samples.
    """
    samples = model.calibration_samples()
    if samples is None or (samples.learned and not model.head.leaves_one_out):
        return []
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    columns, size = samples.columns[known], len(model.class_names)
    right = scores[known].argmax(dim=1) == columns
    counts = (columns[right].bincount(minlength=size), columns.bincount(minlength=size))
    return [model.class_names[column] for column in hardly_answered(*(count.cpu().numpy() for count in counts))]


def about_hardly_answered(names: Sequence[str]) -> str | None:
    """Return a sentence about classes that are hardly ever answered; None if there are none."""
    if not names:
        return None
    classes = "1 class is" if len(names) == 1 else f"{len(names)} classes are"
    return (
        f"{classes} hardly ever answered, with less than {HARDLY:.0f} % of the photos right: "
        f"{listed([printable(name) for name in names])}; more photos of other days help most there"
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
    learned, twice, undecided = find_repeats(model, photos)
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
        mislabelled=tuple(undecided.values()),
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
        from scipy.stats import binomtest  # to classify needs none of it

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
