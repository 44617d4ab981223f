"""Metrics as pure functions: of predictions, and of the accuracies of a run.

The figures of a run (Ā, forgetting, backward transfer) are functions of the trajectory A_1 … A_K
and of the accuracy matrix. ``matrix[k][j]`` is the accuracy in percent, after task k, on the test
images of the classes that task j introduced, or of domain j; rows have k+1 entries, and None where
task j has no test image. What predictions are made of stands in :mod:`cifnet_pl.model.evaluation`.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
    drops = [
        a - b
        for a, b in itertools.pairwise(trajectory)
        if a is not None and b is not None
    ]
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


def calibration_error(confidence: np.ndarray, correct: np.ndarray) -> float | None:
    """Compute the expected calibration error (Naeini et al., 2015), the mean gap to the accuracy.

    ``ECE = Σ_b (n_b / n) · |accuracy_b − confidence_b|``

    Args:
        confidence: (n,) probability of each predicted class.
        correct: (n,) bool, whether it is the true class.

    Returns:
        The ECE in percent, with 15 bins; None without predictions.

    Example:
        >>> calibration_error(np.array([0.75, 0.75]), np.array([True, False]))
        25.0
    """
    if not len(confidence):
        return None
    # As in torchmetrics: float32, and a confidence of 1 has a bin of its own.
    rounded = confidence.astype(np.float32)
    edges = np.linspace(0, 1, ECE_BINS + 1, dtype=np.float32)
    gaps = rounded.astype(np.float64) - correct
    by_bin = np.bincount(np.digitize(rounded, edges), weights=gaps)
    return 100 * float(np.abs(by_bin).sum()) / len(confidence)


# ---------------------------------------------------------------------- intervals


class Interval(NamedTuple):
    """A 95 % interval, in percent or in percentage points.

    Example:
        >>> str(Interval(91.7, 96.2))
        '92 to 96'
    """

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.0f} to {self.high:.0f}"


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


# ---------------------------------------------------------------------- unknowns


def detection(known: Tensor, unknown: Tensor) -> tuple[float, float]:
    """Compute how well novelty separates unknown samples from known ones.

    Args:
        known: (n,) novelty of samples of known classes, at least one.
        unknown: (m,) novelty of unknown samples, at least one.

    Returns:
        AUROC, the area under the ROC curve, and FPR95, the share of unknown samples that are taken
        for known ones at the threshold that keeps 95 % of the known ones, both in percent.
    """
    # Imported here: to classify needs none of it.
    from sklearn.metrics import roc_auc_score, roc_curve

    novelty = torch.cat([known, unknown])
    likelihood = -novelty.cpu().numpy()
    is_known = np.arange(len(likelihood)) < len(known)
    taken, found, _ = roc_curve(is_known, likelihood, drop_intermediate=False)
    enough_kept = found >= 0.95
    fpr95 = taken[enough_kept].min()
    auroc = roc_auc_score(is_known, likelihood)
    return 100 * float(auroc), 100 * float(fpr95)
