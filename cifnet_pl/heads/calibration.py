"""Calibrate probabilities without held-out data, with a temperature from leave-one-out scores of stored samples.

The scores of ridge regression on ±L or one-hot targets are far too close together for a softmax. Dividing them by one
temperature (Guo et al., 2017) mends that; it is usually fitted on held-out data. Here it is fitted on samples that were
learned, at scores that did not learn them, which ridge regression has in closed form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cifnet_pl.statistics import comparable, left_out_groups, near_groups, near_limit
from cifnet_pl.utilities.errors import UsageError

if TYPE_CHECKING:
    from cifnet_pl.buffer import CalibrationBuffer
    from cifnet_pl.heads.base import Head

RANGE = math.log(1e3)
"""How far, in the logarithm and either way, a temperature may lie from the spread of the scores."""


def calibrate(head: Head, z: Tensor, y: Tensor) -> float:
    """Set ``head.temperature`` to the one that minimises the leave-one-out NLL of stored samples.

    Near-copies among the samples, such as bursts of photos, are left out together: a sample whose twin was learned does
    not show how new photos are scored. Samples without which nothing would be known of their scores are not used; the
    temperature is 1 if there are no others.

    Args:
        head: solved; see :meth:`Head.leave_one_out` for which heads can.
        z: (n, d) embeddings of samples that the head has learned, such as those of the calibration buffer after the
            task was committed.
        y: (n,) int64 labels.

    Returns:
        The temperature.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
        UsageError: no samples.
    """
    if not len(y):
        raise UsageError("calibration needs stored samples, and there are none: use a calibration buffer")
    scores = head.leave_one_out(z, y, near_copies(z, y))
    known = scores.isfinite().all(dim=1)
    columns = (y[:, None] == head.labels).int().argmax(dim=1)
    temperature = fit_temperature(scores[known], columns[known]) if known.any() else 1.0
    head.temperature.fill_(temperature)
    return temperature


def near_copies(z: Tensor, y: Tensor) -> Tensor | None:
    """Group samples that are left out together: near-copies of one class.

    Samples that resemble more than half of their class stand alone: without these little would be known of the class.

    Args:
        z: (n, d) float embeddings.
        y: (n,) int64 labels.

    Returns:
        (n,) int64, equal for samples of one group; None if there are no near-copies.
    """
    u = comparable(z)
    limit = near_limit(u, y)
    if limit is None:
        return None
    return left_out_groups(near_groups(u, y, limit), y)


def check(head: Head, buffer: CalibrationBuffer | None, wanted: bool) -> None:
    """Check that a head has the buffer that it needs.

    Args:
        head: to be learned.
        buffer: the calibration buffer, or None.
        wanted: whether the head is to be calibrated.

    Raises:
        UsageError: the head learns from a buffer and has none; it cannot be calibrated, or not without a buffer.
    """
    if head.decides and buffer is None:
        raise UsageError(
            "decision: auto needs stored samples to decide by: give a calibration buffer (model.buffer), or say ridge "
            "or discriminant"
        )
    if not wanted:
        return
    if not head.leaves_one_out:
        raise UsageError(
            f"calibrate: {type(head).__name__} has no leave-one-out scores: leave it out, or use a ridge-type head"
        )
    if buffer is None:
        raise UsageError("calibrate needs stored samples: give a calibration buffer (model.buffer)")


def fit_temperature(scores: Tensor, columns: Tensor) -> float:
    """Return the temperature T that minimises the mean of ``−log softmax(scores / T)`` at the true columns, smoothed.

    With no error among n samples T would fall to zero, and promise certainty. So each sample's target has a share of
    1/(n+2) spread evenly over all classes (Platt's prior, 1999), which vanishes with many samples.

    The NLL is convex in 1/T, so the search over log T has one minimum. It is bounded around the spread of the scores.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.

    Example:
        >>> wrong_once = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> round(fit_temperature(wrong_once, torch.tensor([0, 0, 1, 1])), 2)
        1.13
    """
    spread = (scores - scores.mean(dim=1, keepdim=True)).square().mean().sqrt().item()
    if scores.shape[1] == 1 or spread == 0.0:  # all temperatures are alike: any scale of the scores will do
        return max(scores.abs().mean().item(), 1e-3)

    from scipy.optimize import minimize_scalar  # here: models that only classify do not wait for it

    def loss(log_temperature: float) -> float:
        return torch.nn.functional.cross_entropy(
            scores / math.exp(log_temperature), columns, label_smoothing=1 / (len(scores) + 2)
        ).item()

    middle = math.log(spread)
    optimum = minimize_scalar(loss, bounds=(middle - RANGE, middle + RANGE), method="bounded", options={"xatol": 1e-6})
    return math.exp(optimum.x)
