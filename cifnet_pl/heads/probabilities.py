"""How a probability is made: from the scores of rules, and from samples that were left out.

The logits are ``Σ w_i s_i``, s_i the scores of the head's rules (one for most heads). The
probabilities are their softmax, with a power of the odds of the largest one
(:func:`to_probabilities`). The weights ``w_i ≥ 0`` and the power give left-out samples the smallest
negative log likelihood (:func:`fit_probabilities`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

SMALLEST_WEIGHT = 1e-3
"""Smallest weight of the first rule, in units of the spread of its scores.

With a weight of zero all classes would be equally probable, and none predicted."""

SMALLEST_POWER = 0.05
"""Smallest power of the odds; with zero the largest probability would always be a half."""


class LogOdds(NamedTuple):
    """The largest logit of each row against the others.

    Attributes:
        first: (n, 1) column of the most probable class.
        odds: (n, 1) logarithm of its odds.
        others: (n, C) log probability of each other class among those; −∞ at the most probable one.
    """

    first: Tensor
    odds: Tensor
    others: Tensor


def log_odds(logits: Tensor) -> LogOdds:
    """Compute the log odds of the largest logit of each row of (n, C) logits."""
    first = logits.argmax(dim=1, keepdim=True)
    columns = torch.arange(logits.shape[1], device=logits.device)
    others = logits.masked_fill(columns == first, -torch.inf)
    log_rest = others.logsumexp(dim=1, keepdim=True)
    return LogOdds(first, logits.gather(1, first) - log_rest, others - log_rest)


def to_probabilities(scores: Tensor, temperature: Tensor, power: Tensor) -> Tensor:
    """Turn scores into probabilities.

    With ``q = softmax(scores / temperature)``, the odds ``p / (1 − p)`` of the largest one are
    ``(q / (1 − q))^power``; the other classes share the rest in the same proportions. Where classes
    resemble each other, a softmax alone is overconfident where it is confident at all. The largest
    probability stays the largest one, as the power is at most 1.

    Args:
        scores: (n, C) float; rows with NaN give NaN.
        temperature: () above 0.
        power: () above 0 and at most 1.
    """
    first, odds, others = log_odds(scores / temperature)
    rest = torch.sigmoid(-power * odds) * others.exp()
    return rest.scatter(1, first, torch.sigmoid(power * odds))


class ProbabilityFit(NamedTuple):
    """What turns scores into probabilities.

    Attributes:
        weights: factor of the scores of each rule in the logits.
        power: of the odds (:func:`to_probabilities`).
    """

    weights: tuple[float, ...]
    power: float


def fit_probabilities(rules: Sequence[Tensor], columns: Tensor) -> ProbabilityFit:
    """Fit the weights of rules and the power of the odds by the smallest negative log likelihood.

    For one rule the weight is the reciprocal of a temperature (Guo et al., 2017), for several it is
    stacking (Wolpert, 1992) by multinomial logistic regression. With no error among n samples the
    weights would grow without bound, and promise certainty. So each sample's target has a share of
    1/(n+2) spread evenly over all classes (Platt's prior, 1999). Of two classes the power is 1:
    there it has the same effect as the weights. The likelihood jumps a little where the two largest
    probabilities change places, so the minimum that L-BFGS finds is a local one, within about 1e-4
    of the lowest for each sample.

    Args:
        rules: (n, C) float64 scores of each rule.
        columns: (n,) int64 true column of each row.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
        >>> round(1 / fit_probabilities([scores], torch.tensor([0, 0, 1, 1])).weights[0], 2)
        1.13
    """
    from scipy.optimize import minimize  # to classify needs none of it

    scaled = list[Tensor]()
    spreads = list[float]()
    for scores in rules:
        centred = scores - scores.mean(dim=1, keepdim=True)
        spread = float(centred.square().mean().sqrt()) or 1.0
        scaled.append(centred / spread)
        spreads.append(spread)
    parts = torch.stack(scaled)
    samples, classes = parts.shape[1:]
    one_hot = torch.nn.functional.one_hot(columns, classes).double()
    even = torch.full_like(one_hot, 1 / classes)
    target = torch.lerp(one_hot, even, 1 / (samples + 2))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        *weights, power = torch.from_numpy(values).to(parts)
        logits = (torch.stack(weights)[:, None, None] * parts).sum(dim=0)
        first, odds, others = log_odds(logits)
        of_first = target.gather(1, first)
        log_others = logsigmoid(-power * odds) + others
        log_p = log_others.scatter(1, first, logsigmoid(power * odds))
        # Slopes by the odds, and by the logits.
        excess = torch.sigmoid(power * odds) - of_first
        slopes = others.exp() * (1 - of_first - power * excess) - target
        slopes = slopes.scatter(1, first, power * excess)
        by_weight = (parts * slopes).sum(dim=(1, 2))
        by_power = (excess * odds).sum()
        gradient = torch.cat([by_weight, by_power[None]]) / samples
        return -float((target * log_p).sum()) / samples, gradient.cpu().numpy()

    if classes == 1:
        return ProbabilityFit(tuple(1 / spread for spread in spreads), 1.0)
    least = [SMALLEST_WEIGHT] + [0.0] * (len(rules) - 1) + [SMALLEST_POWER]
    most = [np.inf] * len(rules) + [1.0]
    if classes == 2:
        least[-1] = 1.0
    bounds = list(zip(least, most, strict=True))
    start = np.ones(len(bounds))
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds)
    *weights, power = found.x.tolist()
    scaled_back = zip(weights, spreads, strict=True)
    return ProbabilityFit(tuple(w / spread for w, spread in scaled_back), power)
