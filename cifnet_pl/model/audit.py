"""Judge photos by their embeddings: doubtful labels, photos far from their class, whether more would help.

One exact ridge classifier learns all photos. Its leave-one-out scores have a closed form, so no photo judges itself or
its near-copies, nothing is held out, and nothing is learned twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import curve_fit
from torchmetrics.functional.classification import binary_calibration_error

from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.calibration import fit_temperature
from cifnet_pl.heads.novelty import RIDGE
from cifnet_pl.model.evaluation import BINS, FEW, Evaluation
from cifnet_pl.model.photos_left_out import Rows, batches, learned, left_out, near_copies, unit, with_group_sums

FOR_TEMPERATURE = 5000
"""Photos that the temperature is fitted to, evenly spaced."""

DOUBTFUL = 0.05
"""A label is doubtful where, without the photo itself, its class has less than this probability, and another one has
more than all others together."""


@dataclass(frozen=True)
class Audit:
    """The verdict on each photo of a classifier that learned all the others but its near-copies.

    Attributes:
        evaluation: the answers; ``rows`` are 0 … n−1.
        own: (n,) probability of the photo's own label.
        distance: (n,) Mahalanobis distance to the mean of the others of its class, divided by the class's median.
        copied: (n,) bool, whether the photo has a near-copy in its class, such as the next one of a burst.
    """

    evaluation: Evaluation
    own: np.ndarray
    distance: np.ndarray
    copied: np.ndarray

    @property
    def accuracy_without_copies(self) -> float | None:
        """Accuracy in percent on photos that have no near-copy; None if these are too few for a conclusion."""
        return 100 * float(right.mean()) if len(right := self.evaluation.right[~self.copied]) >= FEW else None

    def doubtful(self) -> np.ndarray:
        """Return the positions of photos whose label is doubtful, the most doubtful first.

        They are ranked by the probability of their own label (self-confidence; Northcutt et al., 2021).
        """
        rows = np.flatnonzero((self.own < DOUBTFUL) & (self.evaluation.confidence > 0.5))
        return np.asarray(rows[np.argsort(self.own[rows], kind="stable")])

    def farthest(self) -> np.ndarray:
        """Return the photos that are unlike their class, the farthest first.

        Their distance is above the upper quartile of all by more than 1.5 times what is between the quartiles (Tukey).
        """
        lower, upper = np.quantile(self.distance, [0.25, 0.75])
        rows = np.flatnonzero(self.distance > upper + 1.5 * (upper - lower))
        return np.asarray(rows[np.argsort(-self.distance[rows], kind="stable")])


def audit(z: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> Audit:
    """Judge every photo by all others, except for its near-copies.

    Photos that resemble more than half of their class are judged by their near-copies all the same, as without these
    little would be known of the class.

    Args:
        z: (n, d) float32 embeddings; a memory-mapped array stays on the disk.
        labels: (n,) int64 positions in ``class_names``.
        class_names: names of the classes; each must have a photo.
    """
    head, (groups, copied) = learned(z, labels, len(class_names)), near_copies(z, labels)
    temperature = _temperature(head, z, labels, groups)
    predicted = np.zeros(len(labels), dtype=np.int64)
    confidence, own_share = np.zeros(len(labels)), np.zeros(len(labels))
    for rows, scores in left_out(head, z, labels, groups):
        y = torch.from_numpy(labels[rows])
        p = torch.softmax(torch.nan_to_num(scores) / temperature, dim=1)
        confidence[rows], predicted[rows] = (t.numpy() for t in p.max(dim=1))
        own_share[rows] = p.gather(1, y[:, None]).flatten().numpy()
    ece = top_label_error(confidence, predicted == labels)
    evaluation = Evaluation(list(class_names), np.arange(len(labels)), labels, predicted, confidence, ece)
    return Audit(evaluation, own_share, _distances(z, labels, len(class_names), groups), copied)


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


def _temperature(head: RidgeHead, z: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> float:
    chosen = np.unique(np.linspace(0, len(labels) - 1, min(len(labels), FOR_TEMPERATURE)).astype(np.int64))
    rows = np.flatnonzero(np.isin(groups, groups[chosen]))
    parts = list(left_out(head, Rows(z, rows), labels[rows], groups[rows]))
    y, scores = torch.from_numpy(labels[rows][np.concatenate([p for p, _ in parts])]), torch.cat([s for _, s in parts])
    known = scores.isfinite().all(dim=1)
    return fit_temperature(scores[known], y[known]) if known.any() else 1.0


def _distances(z: np.ndarray, labels: np.ndarray, classes: int, groups: np.ndarray) -> np.ndarray:
    """Return (n,) distances of the embeddings at length 1, scaled to a median of 1 in each class.

    They are to the mean of the class without the photo's group, under the scatter within classes with the ridge that
    novelty has.
    """
    width = z.shape[1]
    gram, sums = torch.zeros(width, width, dtype=torch.float64), torch.zeros(classes, width, dtype=torch.float64)
    for x, y in batches(z, labels):
        x = unit(x)
        gram += x.T @ x
        sums.index_add_(0, y, x)
    counts = torch.from_numpy(np.bincount(labels, minlength=classes)).double()
    within = (gram - (sums / counts[:, None]).T @ sums) / len(labels)
    within.diagonal().add_(RIDGE * within.diagonal().mean() + 1e-12)
    factor = torch.linalg.cholesky(within)
    distances = np.zeros(len(labels))
    for rows, x, gone, together in with_group_sums(z, groups):
        y = torch.from_numpy(labels[rows])
        others = counts[y] - together
        mean = (sums[y] - gone) / others.clamp_min(1)[:, None]
        away = torch.linalg.solve_triangular(factor, (x - mean).T, upper=False)
        distances[rows] = (away.norm(dim=0) * (others > 0)).numpy()
    for label in range(classes):
        rows = labels == label
        distances[rows] /= max(float(np.median(distances[rows])), 1e-12)
    return distances


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
        part, own_labels = Rows(z, rows), labels[rows]
        head, (groups, _) = learned(part, own_labels, classes), near_copies(part, own_labels)
        judged = left_out(head, part, own_labels, groups)
        right = sum(int((scores.argmax(dim=1).numpy() == own_labels[own]).sum()) for own, scores in judged)
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
