"""Turn scores into probabilities by a temperature and a power of the odds, and fit both.

The scores of ridge regression on ±L or one-hot targets are far too close together for a softmax.
Dividing them by one temperature corrects that (Guo et al., 2017). The power of the odds of the most
probable class corrects what one temperature leaves: where classes resemble each other, predictions
of high confidence are overconfident.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

TEMPERATURE_RANGE = math.log(1e3)
"""How far a temperature may lie from the spread of the scores, in the logarithm and either way."""

SMALLEST_POWER = 0.05
"""Smallest power of the odds that is tried."""


class LogOdds(NamedTuple):
    """Log odds of the largest logit against the logsumexp of the others.

    Attributes:
        first: (n, 1) column of the most probable class.
        odds: (n, 1) logarithm of its odds.
        others: (n, C) log probability of each other class among those; infinite or NaN at the most
            probable one.
    """

    first: Tensor
    odds: Tensor
    others: Tensor


def log_odds(logits: Tensor) -> LogOdds:
    """Compute the log odds of the largest logit of each row of (n, C) float logits."""
    first = logits.argmax(dim=1, keepdim=True)
    classes = logits.shape[1]
    columns = torch.arange(classes, device=logits.device)
    is_first = columns == first
    others = logits.masked_fill(is_first, -torch.inf)
    log_rest = others.logsumexp(dim=1, keepdim=True)
    odds = logits.gather(1, first) - log_rest
    return LogOdds(first, odds, others - log_rest)


def to_probabilities(
    scores: Tensor, temperature: Tensor | float, power: Tensor | float
) -> Tensor:
    """Turn scores into probabilities.

    With ``p = softmax(scores / temperature)``, the odds ``p / (1 − p)`` of the largest one become
    their ``power``-th power. The other classes share the rest in the same proportions. As the power
    is at most 1, the largest probability stays the largest one. With 1 it is the softmax.

    Args:
        scores: (n, C) float; rows with NaN give NaN.
        temperature: () above 0.
        power: () above 0 and at most 1.

    Returns:
        (n, C), of the dtype of the scores.

    Example:
        >>> scores = torch.tensor([[4.0, 1.0, 1.0]]).double()
        >>> to_probabilities(scores, 1.0, 0.5)[0].round(decimals=3).tolist()
        [0.76, 0.12, 0.12]
    """
    scaled = scores / temperature
    first, odds, others = log_odds(scaled)
    other_share = torch.sigmoid(-power * odds)
    rest = other_share * others.exp()
    first_share = torch.sigmoid(power * odds)
    return rest.scatter(1, first, first_share)


def fit_temperature(scores: Tensor, columns: Tensor) -> float:
    """Return the temperature T that minimises the mean of ``−log softmax(scores / T)``, smoothed.

    With no error among n samples T would fall to zero, and promise certainty. So each sample's
    target has a share of 1/(n+2) spread evenly over all classes (Platt's prior, 1999), which
    vanishes with many samples.

    The loss is convex in 1/T, so the search over log T has one minimum. It is bounded around the
    spread of the scores.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
        >>> round(fit_temperature(scores, torch.tensor([0, 0, 1, 1])), 2)
        1.13
    """
    smoothing = 1 / (len(scores) + 2)

    def loss(temperature: float) -> float:
        logits = scores / temperature
        return torch.nn.functional.cross_entropy(
            logits, columns, label_smoothing=smoothing
        ).item()

    return _best_temperature(scores, loss)


class ProbabilityFit(NamedTuple):
    """Parameters that turn scores into probabilities (:func:`to_probabilities`)."""

    temperature: float
    power: float


class _PowerFit(NamedTuple):
    loss: float
    power: float


def fit_probabilities(scores: Tensor, columns: Tensor) -> ProbabilityFit:
    """Fit the temperature and the power that give the smallest negative log likelihood, smoothed.

    At each temperature that is tried (as in :func:`fit_temperature`) the best power is found. With
    up to two classes the power is 1: there it has the same effect as the temperature.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.
    """
    if scores.shape[1] <= 2:
        return ProbabilityFit(fit_temperature(scores, columns), 1.0)
    true = columns[:, None]

    def loss(temperature: float) -> float:
        return _best_power(scores / temperature, true).loss

    temperature = _best_temperature(scores, loss)
    fit = _best_power(scores / temperature, true)
    return ProbabilityFit(temperature, fit.power)


def _best_power(logits: Tensor, true: Tensor) -> _PowerFit:
    """Find the power of the odds with the smallest loss; ``true`` is the (n, 1) column of each row.

    Only the part of the loss at the most probable class changes with the power.
    """
    n, classes = logits.shape
    smoothing = 1 / (n + 2)  # as in `fit_temperature`
    first, odds, others = log_odds(logits)
    is_first = first == true
    kept_share = 1 - smoothing
    target = kept_share * is_first + smoothing / classes
    of_true = others.gather(1, true)
    own = (1 - smoothing) * of_true.where(~is_first, 0)
    finite = others.where(others.isfinite(), 0)
    spread = finite.sum(dim=1, keepdim=True)
    constant = own + smoothing / classes * spread

    def loss(power: float) -> float:
        log_first = logsigmoid(power * odds)
        log_rest = logsigmoid(-power * odds)
        of_first = target * log_first
        likelihood = of_first + (1 - target) * log_rest + constant
        return -likelihood.mean().item()

    # A bounded search evaluates no end point, so power 1 is tried separately.
    power = _minimum(loss, SMALLEST_POWER, 1.0)
    return min(
        _PowerFit(loss(1.0), 1.0),
        _PowerFit(loss(power), power),
        key=lambda fit: fit.loss,
    )


def _best_temperature(scores: Tensor, loss: Callable[[float], float]) -> float:
    """Return the temperature of the smallest loss, around the spread of the scores (n, C)."""
    centred = scores - scores.mean(dim=1, keepdim=True)
    spread = centred.square().mean().sqrt().item()
    if scores.shape[1] == 1 or spread == 0.0:
        # All temperatures are alike: any scale of the scores will do.
        return max(scores.abs().mean().item(), 1e-3)
    middle = math.log(spread)
    low = middle - TEMPERATURE_RANGE
    high = middle + TEMPERATURE_RANGE
    exponent = _minimum(lambda exponent: loss(math.exp(exponent)), low, high)
    return math.exp(exponent)


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one number is smallest between two numbers."""
    from scipy.optimize import (
        minimize_scalar,
    )  # inside: a model that only classifies needs it not

    found = minimize_scalar(
        function, bounds=(low, high), method="bounded", options={"xatol": 1e-6}
    )
    return float(found.x)
