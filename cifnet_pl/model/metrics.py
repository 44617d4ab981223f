"""Compute the metrics of a class-incremental run: Ā, forgetting, backward transfer and the largest drop.

They are pure functions of the trajectory A_1 … A_K and of the accuracy matrix. A_k itself, the accuracy over all
classes seen after task k, is computed from the predictions in :mod:`cifnet_pl.learning.evaluation`.
``matrix[k][j]`` is the accuracy in percent, after learning task k, on the test images of the classes that task j
introduced; rows have k+1 entries, and None where task j has no test image.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

Row = Sequence[float | None]


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
