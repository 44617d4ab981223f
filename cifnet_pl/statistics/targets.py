"""Targets of the regression on class membership, their slopes, and probabilities of scores."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from cifnet_pl.utilities.errors import check_choice, check_that

Weighting = Literal["derivative", "released"]
"""The paper's formula, or the authors' released code."""


def target_limit(epsilon: float) -> float:
    """Return ``L = logit(1 − ε)``, the target of a positive (eq:delinear).

    Args:
        epsilon: the one-hot targets are clipped to [ε, 1 − ε].

    Raises:
        UsageError: ``epsilon`` is not between 0 and 0.5.

    Example:
        >>> round(target_limit(0.05), 3)
        2.944
    """
    check_that(0 < epsilon < 0.5, "epsilon", epsilon, "a number between 0 and 0.5")
    return math.log((1 - epsilon) / epsilon)


class Slopes(NamedTuple):
    """Squared slopes of the sigmoid at the two targets.

    Attributes:
        positive: at the target of a sample's own class.
        negative: at the target of any other class.
    """

    positive: float
    negative: float


def squared_slopes(weighting: Weighting, epsilon: float) -> Slopes:
    """Return ``f'(t)²`` at the target of a positive and of a negative (Stage 1 of the paper).

    Args:
        weighting: "derivative" is the paper's formula ``f(t)(1 − f(t))``, equal at both targets.
            "released" is what the authors' released code computes, ``t(1 − t)`` at the logit t.
        epsilon: clip of the one-hot targets.

    Example:
        >>> [round(slope, 1) for slope in squared_slopes("released", 0.05)]
        [32.8, 134.9]
    """
    check_choice("weighting", weighting, Weighting)
    if weighting == "derivative":
        slope = (epsilon * (1 - epsilon)) ** 2
        return Slopes(slope, slope)
    limit = target_limit(epsilon)
    positive = (limit * (1 - limit)) ** 2
    negative = (limit * (1 + limit)) ** 2
    return Slopes(positive, negative)


class OddsAndShares(NamedTuple):
    """Softmax of logits, as the odds of the largest one and the shares of the others in the rest.

    Attributes:
        first: (n, 1) int64 column of the largest logit.
        log_odds: (n, 1) logarithm of ``q / (1 − q)``, q its probability.
        log_shares: (n, C) logarithm of each other class's share of ``1 − q``; minus infinity for
            the largest.
    """

    first: Tensor
    log_odds: Tensor
    log_shares: Tensor

    @classmethod
    def of(cls, logits: Tensor) -> OddsAndShares:
        """Return those of logits (n, C) float."""
        first = logits.argmax(dim=1, keepdim=True)
        others = logits.scatter(1, first, -torch.inf)
        log_rest = others.logsumexp(dim=1, keepdim=True)
        return cls(first, logits.gather(1, first) - log_rest, others - log_rest)

    def log_probabilities(self, power: Tensor) -> Tensor:
        """Return the logarithms (n, C) of :func:`to_probabilities` at temperature 1.

        Args:
            power: () above 0 and at most 1.
        """
        log_odds = power * self.log_odds
        log_others = logsigmoid(-log_odds) + self.log_shares
        return log_others.scatter(1, self.first, logsigmoid(log_odds))


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
    return OddsAndShares.of(scores / temperature).log_probabilities(power).exp()
