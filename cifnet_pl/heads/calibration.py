"""Probabilities without held-out data: a temperature from the leave-one-out scores of stored samples.

The scores of ridge regression on ±L or one-hot targets are far too close together for a softmax. Dividing them by one
temperature (Guo et al., 2017) mends that; it is usually fitted on held-out data. Here it is fitted on samples that were
learned, at scores that did not learn them, which ridge regression has in closed form.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import UsageError

if TYPE_CHECKING:
    from cifnet_pl.buffer import CalibrationBuffer
    from cifnet_pl.heads.base import Head

RANGE = math.log(1e3)
"""How far, in the logarithm and either way, a temperature may lie from the spread of the scores."""


def calibrate(head: Head, z: Tensor, y: Tensor) -> float:
    """Set ``head.temperature`` to the one that minimises the leave-one-out NLL of stored samples; returns it.

    Samples without which nothing would be known of their scores are left out; with no other it is 1.

    Args:
        head: solved; see :meth:`Head.leave_one_out` for which heads can.
        z: (n, d) embeddings and y: (n,) int64 labels of samples that the head has learned, such as those of the
            calibration buffer after the task was committed.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
        UsageError: no samples.
    """
    if not len(y):
        raise UsageError("calibration needs stored samples, and there are none: use a calibration buffer")
    scores = head.leave_one_out(z, y)
    known = scores.isfinite().all(dim=1)
    columns = (y[:, None] == head.labels).int().argmax(dim=1)
    temperature = fit_temperature(scores[known], columns[known]) if known.any() else 1.0
    head.temperature.fill_(temperature)
    return temperature


def check(head: Head, buffer: CalibrationBuffer | None) -> None:
    """Raise UsageError unless ``head`` can be calibrated and there is a ``buffer`` for it."""
    if not head.leaves_one_out:
        raise UsageError(
            f"calibrate: {type(head).__name__} has no leave-one-out scores: leave it out, or use a ridge-type head"
        )
    if buffer is None:
        raise UsageError("calibrate needs stored samples: give a calibration buffer (model.buffer)")


def fit_temperature(scores: Tensor, columns: Tensor) -> float:
    """The temperature T that minimises the mean of ``−log softmax(scores / T)`` at the true columns, smoothed.

    With no error among n samples T would fall to zero and promise certainty. So each sample's target has a share of
    1/(n+2) spread evenly over all classes (Platt's prior, 1999): with many samples nothing, with few what n successes
    allow to be said.

    The NLL is convex in 1/T, so the search over log T cannot be caught in another minimum. It is bounded around the
    spread of the scores.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.
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
    found = minimize_scalar(loss, bounds=(middle - RANGE, middle + RANGE), method="bounded", options={"xatol": 1e-6})
    return math.exp(found.x)
