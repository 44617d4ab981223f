"""Judge photos by their embeddings: doubtful labels, photos far from their class, whether more would help.

One exact ridge classifier learns all photos. Its leave-one-out scores have a closed form, so no photo judges itself,
nothing is held out, and nothing is learned twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import curve_fit
from torch import Tensor
from torchmetrics.functional.classification import binary_calibration_error

from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.calibration import fit_temperature
from cifnet_pl.model.evaluation import BINS, Evaluation

AT_ONCE = 2048
"""Embeddings in memory at once, in float64."""

FOR_TEMPERATURE = 5000
"""Photos that the temperature is fitted to, evenly spaced."""

NEAR = 0.95
"""Cosine of two embeddings, the mean of all subtracted, from which photos are near-copies.

Of 5000 validation photos of Tiny-ImageNet none is so near to a training photo of its class, of those of Caltech-101 one
in a hundred is; a copy with 5 % noise on its embedding has 0.998.
"""

DOUBTFUL = 0.05
"""A label is doubtful where, without the photo itself, its class has less than this probability, and another one has
more than all others together."""


@dataclass(frozen=True)
class Audit:
    """The verdict on each photo of a classifier that learned all the others.

    Attributes:
        evaluation: the answers; ``rows`` are 0 … n−1.
        own: (n,) probability of the photo's own label.
        distance: (n,) Mahalanobis distance to the mean of the other photos of its class, divided by the class's median.
        copied: (n,) bool, whether the photo has a near-copy in its class, such as the next one of a burst; the
            near-copy was then learned by the classifier that judges it.
    """

    evaluation: Evaluation
    own: np.ndarray
    distance: np.ndarray
    copied: np.ndarray

    @property
    def accuracy_without_copies(self) -> float | None:
        """Accuracy in percent on photos that have no near-copy; None if all have one."""
        return 100 * float(self.evaluation.right[~self.copied].mean()) if not self.copied.all() else None

    def doubtful(self) -> np.ndarray:
        """Return the positions of photos whose label is doubtful, the most doubtful first.

        They are ranked by the probability of their own label (self-confidence; Northcutt et al., 2021).
        """
        rows = np.flatnonzero((self.own < DOUBTFUL) & (self.evaluation.confidence > 0.5))
        return np.asarray(rows[np.argsort(self.own[rows], kind="stable")])

    def farthest(self) -> np.ndarray:
        """Return the photos whose distance to their class is more than 1.5 times the median, the farthest first."""
        rows = np.flatnonzero(self.distance > 1.5)
        return np.asarray(rows[np.argsort(-self.distance[rows], kind="stable")])


def audit(z: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Audit:
    """Judge every photo by all others.

    Args:
        z: (n, d) float32 embeddings; a memory-mapped array stays on the disk.
        labels: (n,) int64 positions in ``class_names``.
        class_names: names of the classes; each must have a photo.
    """
    head = _learned(z, labels, len(class_names))
    temperature = _temperature(head, z, labels)
    parts: list[tuple[np.ndarray, ...]] = []
    for x, y in _batches(z, labels):
        scores = head.leave_one_out(x, y)
        p = torch.softmax(torch.nan_to_num(scores) / temperature, dim=1)
        best = p.max(dim=1)
        label_share = p.gather(1, y[:, None]).flatten()
        parts.append(tuple(t.numpy() for t in (best.indices, best.values, label_share)))
    predicted, confidence, own_share = (np.concatenate(column) for column in zip(*parts, strict=True))
    ece = top_label_error(confidence, predicted == labels)
    evaluation = Evaluation(list(class_names), np.arange(len(labels)), labels, predicted, confidence, ece)
    return Audit(evaluation, own_share, _distances(z, labels, len(class_names)), near_copies(z, labels))


def top_label_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Compute the expected calibration error by torchmetrics' ``binary_calibration_error``.

    Args:
        confidence: (n,) probability of each answer.
        right: (n,) bool, whether the answer is right.

    Returns:
        The error in percent.
    """
    error = binary_calibration_error(torch.from_numpy(confidence), torch.from_numpy(right.astype(np.int64)), BINS)
    return 100 * float(error)


def _batches(z: np.ndarray, labels: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(labels), AT_ONCE):
        batch = slice(start, start + AT_ONCE)
        yield torch.from_numpy(np.array(z[batch])), torch.from_numpy(labels[batch])


def _learned(z: np.ndarray, labels: np.ndarray, classes: int) -> RidgeHead:
    head = RidgeHead(z.shape[1])
    head.begin_task(range(classes))
    for x, y in _batches(z, labels):
        head.observe(x, y)
    head.solve()
    return head


def _temperature(head: RidgeHead, z: np.ndarray, labels: np.ndarray) -> float:
    rows = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), FOR_TEMPERATURE)).astype(np.int64))
    y = torch.from_numpy(labels[rows])
    scores = head.leave_one_out(torch.from_numpy(np.array(z[rows])), y)
    known = scores.isfinite().all(dim=1)
    return fit_temperature(scores[known], y[known]) if known.any() else 1.0


def _distances(z: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return (n,) distances under the within-class scatter plus a tenth of its mean eigenvalue.

    They are scaled to a median of 1 in each class.
    """
    width = z.shape[1]
    gram, sums = torch.zeros(width, width, dtype=torch.float64), torch.zeros(classes, width, dtype=torch.float64)
    for x, y in _batches(z, labels):
        gram += x.double().T @ x.double()
        sums.index_add_(0, y, x.double())
    counts = torch.from_numpy(np.bincount(labels, minlength=classes)).double()
    means = sums / counts[:, None]
    within = (gram - means.T @ sums) / len(labels)
    within.diagonal().add_(0.1 * within.diagonal().mean() + 1e-12)
    factor = torch.linalg.cholesky(within)
    parts = []
    for x, y in _batches(z, labels):
        white = torch.linalg.solve_triangular(factor, (x.double() - means[y]).T, upper=False)
        others = (counts[y] / (counts[y] - 1).clamp_min(1)) * (counts[y] > 1)  # the mean without the photo itself
        parts.append((white.norm(dim=0) * others).numpy())
    distances = np.concatenate(parts)
    for label in range(classes):
        rows = labels == label
        distances[rows] /= max(float(np.median(distances[rows])), 1e-12)
    return distances


def near_copies(z: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Find photos that have a near-copy in their class: a cosine of ``NEAR`` or more.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64.

    Returns:
        (n,) bool.
    """
    mean = sum((x.double().sum(dim=0) for x, _ in _batches(z, labels)), start=torch.zeros(z.shape[1])) / len(labels)
    near = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        unit = torch.nn.functional.normalize(torch.from_numpy(np.array(z[rows])) - mean.float(), dim=1)
        for start in range(0, len(rows), AT_ONCE):
            similarity = unit[start : start + AT_ONCE] @ unit.T
            similarity[
                torch.arange(len(similarity)), torch.arange(start, start + len(similarity))
            ] = -1  # the photo itself
            near[rows[start : start + AT_ONCE]] = (similarity.max(dim=1).values >= NEAR).numpy()
    return near


# ---------------------------------------------------------------------- have I got enough?


@dataclass(frozen=True)
class LearningCurve:
    """Leave-one-out accuracy by photos per class, and the curve through it.

    Attributes:
        points: (photos per class, accuracy in percent), ascending.
        fitted: (limit, factor, power) of ``limit − factor · photos^(−power)``; None where there are too few points.
    """

    points: list[tuple[int, float]]
    fitted: tuple[float, float, float] | None

    def forecast(self, photos: float) -> float | None:
        """Return the accuracy in percent to expect with so many photos per class; None if no curve could be fitted."""
        if self.fitted is None:
            return None
        limit, factor, power = self.fitted
        return float(min(100.0, limit - factor * photos**-power))


def learning_curve(z: np.ndarray, labels: np.ndarray, classes: int, seed: int = 0) -> LearningCurve:
    """Measure leave-one-out accuracy with 3, 6, 12, … photos of each class, drawn at random, and fit a power law.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
        seed: of the draw.
    """
    counts = np.bincount(labels, minlength=classes)
    largest = int(np.median(counts))
    draw = np.random.default_rng(seed)
    order = draw.permutation(len(labels))
    by_class = [order[labels[order] == label] for label in range(classes)]
    sizes = [3 * 2**k for k in range(12) if 3 * 2**k < 0.8 * largest]
    points = []
    for size in [*sizes, largest]:
        rows = np.sort(np.concatenate([class_rows[:size] for class_rows in by_class]))
        z_part, own_labels = np.array(z[rows]), labels[rows]
        head = _learned(z_part, own_labels, classes)
        right = sum(int((head.leave_one_out(x, y).argmax(dim=1) == y).sum()) for x, y in _batches(z_part, own_labels))
        points.append((size, 100 * right / len(rows)))
    return LearningCurve(points, _fit(points))


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float, float] | None:
    if len(points) < 4:
        return None
    x, y = (np.array(values, dtype=float) for values in zip(*points, strict=True))
    try:
        fitted, _ = curve_fit(
            lambda n, limit, factor, power: limit - factor * n**-power,
            *(x, y, (min(99.0, y.max() + 5), 50.0, 0.7)),
            sigma=1 / np.sqrt(x),  # as many times as many photos were judged there
            bounds=([0, 0, 0.05], [100, 1000, 3]),
        )
    except RuntimeError:  # no curve of this kind
        return None
    return float(fitted[0]), float(fitted[1]), float(fitted[2])
