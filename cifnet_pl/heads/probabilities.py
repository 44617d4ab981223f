"""How a probability is made: from the scores of rules, and from samples that were left out.

The logits are ``Σ w_i s_i``, s_i the scores of the head's rules (one for most heads). The
probabilities are their softmax, with a power of the odds of the largest one
(:func:`~cifnet_pl.statistics.to_probabilities`). The weights ``w_i ≥ 0`` and the power give
left-out samples the smallest negative log likelihood (:func:`fit_probabilities`).

Calibration usually needs held-out data. Here it uses samples that were learned, at scores that did
not learn them or their group (:class:`CalibrationSamples`), which ridge regression and the
discriminant have in closed form (:mod:`cifnet_pl.statistics.leaving_out`). Two more promises follow
from these samples:

* A prediction set holds the classes whose probability is at least that which 95 % of the left-out
  samples reach for their own class (:class:`PredictionSets`).
* An image is unknown if its novelty exceeds that of 95 % of the left-out samples
  (:class:`ReferenceScores`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from cifnet_pl.heads.base import Head
from cifnet_pl.statistics import LeftOut, OddsAndShares, to_probabilities
from cifnet_pl.statistics.leaving_out import ROUNDING
from cifnet_pl.utilities.errors import UsageError

if TYPE_CHECKING:
    from cifnet_pl.buffer import CalibrationBuffer

SMALLEST_WEIGHT = 1e-3
"""Smallest weight of the first rule, in units of the spread of its scores.

With a weight of zero all classes would be equally probable, and none predicted."""

SMALLEST_POWER = 0.05
"""Smallest power of the odds; with zero the largest probability would always be a half."""


class KnownScores(NamedTuple):
    """Leave-one-group-out scores of the samples, where they are known.

    Attributes:
        scores: (m, C) float64.
        columns: (m,) int64 true column of each.
        known: (n,) bool, which of all samples these are.
    """

    scores: Tensor
    columns: Tensor
    known: Tensor


class CalibrationSamples:
    """Labelled samples that show how a head scores images that it has not learned.

    Args:
        head: solved.
        z: (n, d) embeddings.
        y: (n,) int64 labels of classes that the head knows.
        groups: (n,) int64, equal for samples that are left out together; negative for a sample of
            whose group others are learned that are not here, so that its scores are not known. None
            to leave out each alone. As an attribute never None.
        learned: whether the head has learned them, so that they must be left out; see
            :meth:`Head.leave_one_out`.
        counted: (n,) bool, whether a sample calibrates the head; the others are left out with their
            group, but have no scores here. None for all of them.
    """

    def __init__(
        self,
        head: Head,
        z: Tensor,
        y: Tensor,
        groups: Tensor | None = None,
        learned: bool = True,
        counted: Tensor | None = None,
    ):
        self.head = head
        self.z = z
        self.y = y
        positions = torch.arange(len(y), device=y.device)
        if groups is None:
            groups = positions
        if counted is None:
            counted = torch.ones_like(y, dtype=torch.bool)
        is_whole = groups >= 0
        self.groups = torch.where(is_whole, groups, -1 - positions)
        self.counted = counted & is_whole
        self.learned = learned
        self.columns = (y[:, None] == head.labels).int().argmax(dim=1)

    @cached_property
    def rules(self) -> tuple[LeftOut, ...]:
        """Function from groups to scores for each rule; one rule where nothing is left out."""
        if self.learned:
            return self.head.rules_left_out(self.z, self.y)
        scores = self.head(self.z)
        return (lambda groups: scores,)

    def grouped(self, groups: Tensor) -> CalibrationSamples:
        """Return the same samples in other groups; what does not depend on these is shared."""
        result = CalibrationSamples(
            self.head, self.z, self.y, groups, self.learned, self.counted
        )
        result.rules = self.rules
        return result

    @cached_property
    def scores_of_rules(self) -> Tensor:
        """(rules, n, C) float64 scores of each rule without each sample's group.

        They are NaN where nothing is known without the group, as of a class of a single group, and
        for samples that are not counted.
        """
        unknown = ~self.counted
        if self.learned:
            group = torch.unique(self.groups, return_inverse=True)[1]
            group_and_class = group * len(self.head.labels) + self.columns
            gone = group_and_class.bincount()[group_and_class]
            learned = self.head._class_counts()[self.columns]
            unknown = unknown | (gone >= learned)
        left_out = torch.stack([rule(self.groups) for rule in self.rules])
        return left_out.masked_fill(unknown[:, None], torch.nan)

    def known_scores(self) -> KnownScores:
        """Return the head's scores that are known, and the true columns of their samples."""
        scores = self.scores_of_rules[0]
        if self.learned:
            scores = self.head.sum_of_rules(self.scores_of_rules)
        known = scores.isfinite().all(dim=1)
        return KnownScores(scores[known], self.columns[known], known)

    def novelty(self) -> Tensor:
        """Return (n,) float64 novelty without each sample's group; NaN for those not counted."""
        if not self.learned:
            return self.head.novelty(self.z)
        novelty = self.head.leave_one_out_novelty(self.z, self.y, self.groups)
        return novelty.masked_fill(~self.counted, torch.nan)

    def sample_weights(self) -> Tensor:
        """Return (n,) float64 how many images each sample stands for.

        A buffer keeps about as many samples of a rare class as of a frequent one. Without weights a
        promised coverage would be about classes, not about images.
        """
        weights = self.counted.double()
        if not self.learned:
            return weights
        learned = self.head._class_counts()[self.columns]
        stored_of_class = self.columns.bincount(weights)
        return weights * learned / stored_of_class[self.columns]


class ProbabilityFit(NamedTuple):
    """What turns scores into probabilities.

    Attributes:
        rule_weights: factor of the scores of each rule in the logits.
        power: of the odds (:func:`to_probabilities`).
    """

    rule_weights: tuple[float, ...]
    power: float


def fit_probabilities(
    rules: Sequence[Tensor],
    columns: Tensor,
    smallest_power: float = SMALLEST_POWER,
) -> ProbabilityFit:
    """Fit the weights of rules and the power of the odds by the smallest negative log likelihood.

    For one rule the weight is the reciprocal of a temperature (Guo et al., 2017), for several it is
    stacking (Wolpert, 1992) by multinomial logistic regression. With no error among n samples the
    weights would grow without bound, and promise certainty. So each sample's target has a share of
    1/(n+2) spread evenly over all classes (Platt's prior, 1999). Of two classes the power is 1:
    there it has the same effect as the weights. The likelihood jumps a little where the two largest
    probabilities change places, so the minimum that L-BFGS finds is a local one, within about 1e-4
    of the lowest for each sample. Its gradient is then solved for zero, so that samples in another
    order give the same weights to about 1e-10.

    Args:
        rules: (n, C) float64 scores of each rule.
        columns: (n,) int64 true column of each row.
        smallest_power: of the odds; 1 for a softmax.

    Example:
        >>> scores = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]).double()
        >>> round(1 / fit_probabilities([scores], torch.tensor([0, 0, 1, 1])).rule_weights[0], 2)
        1.13
    """
    from scipy.optimize import minimize, root  # to classify needs none of it

    scores = torch.stack(list(rules))
    centred = scores - scores.mean(dim=2, keepdim=True)
    spreads = centred.square().mean(dim=(1, 2), keepdim=True).sqrt()
    spreads[spreads == 0] = 1.0
    scaled = centred / spreads
    samples, classes = scores.shape[1:]
    certain = one_hot(columns, classes).double()
    even = torch.full_like(certain, 1 / classes)
    target = torch.lerp(certain, even, 1 / (samples + 2))

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the mean negative log likelihood, and its gradient."""
        parameters = scores.new_tensor(values)
        weights = parameters[:-1]
        power = parameters[-1]
        parts = OddsAndShares.of(torch.tensordot(weights, scaled, dims=1))
        log_probabilities = parts.log_probabilities(power)
        mean = -(target * log_probabilities).sum() / samples

        target_of_first = target.gather(1, parts.first)
        predicted = log_probabilities.gather(1, parts.first).exp()
        surplus = target_of_first - predicted
        slope_of_first = power * surplus
        rest = 1 - target_of_first + slope_of_first
        slopes = target - rest * parts.log_shares.exp()
        slopes = slopes.scatter(1, parts.first, slope_of_first)
        of_weights = (slopes * scaled).sum(dim=(1, 2))
        of_power = (parts.log_odds * surplus).sum()
        gradient = -torch.cat([of_weights, of_power[None]]) / samples
        return mean.item(), gradient.cpu().numpy()

    values = np.ones(len(rules) + 1)
    if classes > 1:
        if classes == 2:
            smallest_power = 1.0
        weight_bounds = [(SMALLEST_WEIGHT, None)] + [(0.0, None)] * (len(rules) - 1)
        bounds = [*weight_bounds, (smallest_power, 1.0)]
        found = minimize(loss, values, jac=True, method="L-BFGS-B", bounds=bounds)
        values = found.x
        lowest, highest = np.array(bounds, dtype=float).T  # NaN where there is none
        at_bound = (values <= lowest) | (values >= highest)

        def slope(nearby: np.ndarray) -> np.ndarray:
            """Return the gradient, and zero for the parameters that are at a bound."""
            away = np.where(at_bound, nearby - values, 0.0)
            return np.where(at_bound, away, loss(nearby - away)[1])

        solved = root(slope, values, tol=1e-12)
        if solved.success:
            values = np.where(at_bound, values, solved.x)
    weights = values[:-1] / spreads.flatten().cpu().numpy()
    return ProbabilityFit(tuple(weights.tolist()), float(values[-1]))


def calibrate(samples: CalibrationSamples) -> None:
    """Give the head the smallest negative log likelihood.

    It is that of the samples without their groups. Of samples that are not learned the temperature
    is fitted, and not the weights of rules. Samples without known scores are not used; without any
    others the head stays as it is solved.

    Without a whole group an image may be predicted wrongly at any score. A power of the odds below
    1 would explain that by similar classes, and make all predictions too humble. So where samples
    come in groups, the rules are weighed as elsewhere, and their sum is scaled for a softmax.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
    """
    rules = samples.scores_of_rules
    known = rules.isfinite().all(dim=2).all(dim=0)
    head = samples.head
    head.temperature.fill_(1.0)
    head.odds_power.fill_(1.0)
    if not known.any():
        return
    columns = samples.columns[known]
    known_rules = rules[:, known]
    weights, power = fit_probabilities(list(known_rules), columns)
    groups = samples.groups[samples.counted]
    come_in_groups = len(torch.unique(groups)) < len(groups)
    if come_in_groups:
        scores = torch.tensordot(rules.new_tensor(weights), known_rules, dims=1)
        scale, power = fit_probabilities([scores], columns, smallest_power=1.0)
        weights = tuple(scale[0] * weight for weight in weights)
    head.odds_power.fill_(power)
    if samples.learned:
        head.weigh_rules(weights)
    else:
        head.temperature.fill_(1 / weights[0])


def check_buffer(
    head: Head,
    buffer: CalibrationBuffer | None,
    calibrates: bool,
) -> None:
    """Check that a head has the buffer that it needs.

    Args:
        head: to be learned.
        buffer: the calibration buffer, or None.
        calibrates: whether the head is to be calibrated.

    Raises:
        UsageError: the head selects its decision rule by a buffer and has none; it cannot be
            calibrated, or not without a buffer.
    """
    if head.selects_rule and buffer is None:
        raise UsageError(
            "decision: auto needs buffer samples to select by: give a calibration buffer"
            " (model.buffer), or choose ridge or discriminant"
        )
    if not calibrates:
        return
    if not head.leaves_one_out:
        raise UsageError(
            f"calibrate: {type(head).__name__} has no leave-one-out scores: give --model.calibrate"
            " false, or use another head"
        )
    if buffer is None:
        raise UsageError(
            "calibrate needs buffer samples: give a calibration buffer (model.buffer)"
        )


class ReferenceScores:
    """Scores of buffer samples in ascending order, and how many images each stands for.

    Args:
        scores: (n,) float64; those that are NaN are left out.
        weights: (n,) float64 number of images that each stands for.
    """

    def __init__(self, scores: Tensor, weights: Tensor):
        known = ~scores.isnan()
        order = torch.argsort(scores[known])
        self.scores = scores[known][order]
        weights = weights[known][order]
        self._cumulative = weights.cumsum(dim=0)
        # Of a new image itself.
        self._own = weights.mean() if len(weights) else torch.ones(()).to(weights)
        self._total = weights.sum()

    def p_values(self, scores: Tensor) -> Tensor:
        """Compute the share of images of known classes whose score is at least as large.

        Of images of known classes, a share of at most α has a p-value of at most α.

        Args:
            scores: (n,) float64.

        Returns:
            (n,) float64.

        Example:
            >>> reference = ReferenceScores(torch.arange(9.0).double(), torch.ones(9).double())
            >>> reference.p_values(torch.tensor([100.0, 4.5], dtype=torch.float64)).tolist()
            [0.1, 0.5]
        """
        weight_before = pad(self._cumulative, (1, 0))
        position = torch.searchsorted(self.scores, scores.contiguous())
        below = weight_before[position]
        return (self._total - below + self._own) / (self._total + self._own)

    def threshold(self, share: float) -> float:
        """Return the smallest score that a share of the images of known classes do not exceed.

        Args:
            share: from 0 to 1.

        Returns:
            The score; infinite where there are too few samples to tell.
        """
        total = self._total + self._own
        needed = share * total * (1 - ROUNDING)
        first = int((self._cumulative < needed).sum())
        if first < len(self.scores):
            return float(self.scores[first])
        return float("inf")


@dataclass(frozen=True)
class PredictionSets:
    """Conformal prediction sets: sets of classes that hold the true one with a given coverage.

    The sets with the fewest classes hold all whose probability is above a limit (Sadinle, Lei and
    Wasserman, 2019).

    Attributes:
        least: probability from which on a class is in the set of an image.
    """

    least: float

    @classmethod
    def of(cls, samples: CalibrationSamples, coverage: float) -> PredictionSets:
        """Choose the limit by leave-one-group-out probabilities of the true classes.

        Args:
            samples: of a head that is calibrated or not.
            coverage: probability that a set holds the true class, over all images of known classes.
        """
        scores, columns, known = samples.known_scores()
        head = samples.head
        probabilities = to_probabilities(scores, head.temperature, head.odds_power)
        of_true = probabilities.gather(1, columns[:, None])[:, 0]
        weights = samples.sample_weights()[known]
        improbability = ReferenceScores(-of_true, weights)
        return cls(-improbability.threshold(coverage))

    def of_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return which classes are in the prediction set of each image, at least the most probable.

        Args:
            probabilities: (n, C).

        Returns:
            (n, C) bool.
        """
        largest = probabilities.max(dim=1, keepdim=True).values
        return probabilities >= largest.clamp_max(self.least)
