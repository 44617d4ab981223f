"""Calibrate probabilities, novelty and prediction sets by leave-one-out scores of the buffer.

Calibration usually needs held-out data. Here it uses samples that were learned, at scores that did
not learn them, which ridge regression has in closed form.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cifnet_pl.heads.base import Head
from cifnet_pl.heads.calibration_pass import CalibrationPass, FixedRulePass
from cifnet_pl.statistics import (
    ProbabilityFit,
    comparable,
    fit_probabilities,
    left_out_groups,
    near_groups,
    near_limit,
    to_probabilities,
)
from cifnet_pl.utilities.errors import UsageError, check_that

if TYPE_CHECKING:
    from cifnet_pl.buffer import CalibrationBuffer


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
        groups: (n,) int64, equal for samples that are left out together; None to leave out each
            alone.
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
        self.groups = groups
        self.learned = learned
        if counted is None:
            counted = torch.ones_like(y, dtype=torch.bool)
        self.counted = counted
        self.columns = (y[:, None] == head.labels).int().argmax(dim=1)

    @cached_property
    def calibration_pass(self) -> CalibrationPass:
        """Leave-one-group-out scores of the samples, for any groups; computed once."""
        if self.learned:
            return self.head.calibration_pass(self.z, self.y)
        scores = self.head(self.z)
        return FixedRulePass(lambda groups: scores)

    def at(self, rows: Tensor) -> CalibrationSamples:
        """Return some of the samples, at positions (k,) int64, without groups.

        What their pass has in common with that of all samples is not computed again.
        """
        result = CalibrationSamples(
            self.head,
            self.z[rows],
            self.y[rows],
            learned=self.learned,
            counted=self.counted[rows],
        )
        shared = self.calibration_pass.at(rows)
        if shared is not None:
            result.calibration_pass = shared
        return result

    def left_out(self, groups: Tensor | None) -> Tensor:
        """Return the scores (n, C) of the samples without these groups."""
        return self.calibration_pass.left_out(groups)

    def grouped(self, groups: Tensor | None) -> CalibrationSamples:
        """Return the same samples in other groups."""
        result = copy.copy(self)
        result.groups = groups
        return result

    def scores(self) -> Tensor:
        """Return (n, C) float64 scores without each sample's group.

        They are NaN where nothing is known without the group, as of a class of a single group, and
        for samples that are not counted.
        """
        scores = self._of_counted(self.left_out(self.groups))
        if self.learned and self.groups is not None:
            scores[self._whole_classes(self.groups)] = torch.nan
        return scores

    def _whole_classes(self, groups: Tensor) -> Tensor:
        """Return (n,) bool, which samples have all learned ones of their class in their group."""
        learned = torch.tensor(list(self.head.class_counts().values()))
        learned = learned.to(self.columns.device)
        members = torch.unique(groups, return_inverse=True)[1]
        cells = members * len(learned) + self.columns
        in_group = cells.bincount()[cells]
        whole: Tensor = in_group >= learned[self.columns]
        return whole

    def known_scores(self) -> KnownScores:
        """Return the scores that are known, and the true columns of their samples."""
        scores = self.scores()
        known = scores.isfinite().all(dim=1)
        return KnownScores(scores[known], self.columns[known], known)

    def _of_counted(self, values: Tensor) -> Tensor:
        """Return a value of each sample (n, …), NaN for those that are not counted."""
        values = values.clone()
        values[~self.counted] = torch.nan
        return values

    def novelty(self) -> Tensor:
        """Return (n,) float64 novelty without each sample's group."""
        if not self.learned:
            return self.head.novelty(self.z)
        return self._of_counted(
            self.head.leave_one_out_novelty(self.z, self.y, self.groups)
        )

    def weights(self) -> Tensor:
        """Return (n,) float64 how many images each sample stands for."""
        weights = torch.ones(len(self.y), dtype=torch.float64, device=self.y.device)
        if not self.learned:
            return weights
        counts = torch.tensor(
            list(self.head.class_counts().values()), device=self.y.device
        )
        labels = self.y[self.counted]
        weights[self.counted] = image_weights(labels, self.head.labels, counts)
        weights[~self.counted] = 0.0
        return weights


def calibrate(samples: CalibrationSamples) -> None:
    """Set the head's temperature and odds power to those of the smallest negative log likelihood.

    The likelihood is the leave-one-group-out likelihood. Samples without known scores are not
    used; both values are 1 if there are no others.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
        UsageError: no samples.
    """
    if not len(samples.y):
        raise UsageError(
            "calibration needs buffer samples, and there are none: use a calibration buffer"
        )
    scores, columns, _ = samples.known_scores()
    fit = ProbabilityFit(temperature=1.0, power=1.0)
    if len(columns):
        fit = fit_probabilities(scores, columns)
    samples.head.temperature.fill_(fit.temperature)
    samples.head.odds_power.fill_(fit.power)


def near_duplicate_groups(z: Tensor, y: Tensor) -> Tensor | None:
    """Group samples that are left out together: near-duplicates of one class.

    Samples with near-duplicates in more than half of their class stand alone: without these little
    would be known of the class.

    Args:
        z: (n, d) float embeddings.
        y: (n,) int64 labels.

    Returns:
        (n,) int64, equal for samples of one group; None if there are no near-duplicates.
    """
    u = comparable(z)
    limit = near_limit(u, y)
    if limit is None:
        return None
    return left_out_groups(near_groups(u, y, limit), y)


def check_buffer(
    head: Head, buffer: CalibrationBuffer | None, calibrates: bool
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


RAPS_PENALTIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""Penalties for each class beyond the first that are tried: they keep prediction sets small."""


def check_share(name: str, share: float, example: float = 0.05) -> float:
    """Check a share between 0 and 1.

    Args:
        name: the option, for the error.
        share: the value.
        example: of a share, for the error.

    Returns:
        The value.

    Raises:
        UsageError: it does not lie between 0 and 1.
    """
    expected = f"a share between 0 and 1, such as {example:g} for {100 * example:g} %"
    check_that(0 < share < 1, name, share, expected)
    return share


def image_weights(y: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return how many learned images each buffer sample stands for: (n,) float64.

    A buffer keeps about as many samples of a rare class as of a frequent one. Without weights a
    promised coverage would be about classes, not about images.

    Args:
        y: (n,) labels of the buffer samples.
        labels: (C,) all labels.
        counts: (C,) images learned of each.
    """
    columns = (y[:, None] == labels).int().argmax(dim=1)
    of_class = torch.bincount(columns, minlength=len(labels))
    return (counts.double() / of_class)[columns]


RELATIVE_ROUNDING = 1e-12
"""Relative rounding of a sum of weights."""


@dataclass(frozen=True)
class ReferenceScores:
    """Scores of buffer samples in ascending order, and how many images each stands for.

    Attributes:
        scores: (n,) float64.
        weights: (n,) float64.
    """

    scores: Tensor
    weights: Tensor

    @classmethod
    def of(cls, scores: Tensor, weights: Tensor) -> ReferenceScores:
        """Sort scores with their weights.

        Args:
            scores: (n,) float64; those that are NaN are left out.
            weights: (n,) float64.
        """
        known = ~scores.isnan()
        order = torch.argsort(scores[known])
        return cls(scores[known][order], weights[known][order])

    @property
    def own(self) -> Tensor:
        """() weight of the new image itself: the mean weight of the buffer samples."""
        return self.weights.mean()

    def p_values(self, scores: Tensor) -> Tensor:
        """Compute the share of images of known classes whose score is at least as large.

        Of images of known classes, a share of at most α has a p-value of at most α.

        Args:
            scores: (n,) float64.

        Returns:
            (n,) float64.

        Example:
            >>> reference = ReferenceScores.of(torch.arange(9.0).double(), torch.ones(9).double())
            >>> reference.p_values(torch.tensor([100.0, 4.5], dtype=torch.float64)).tolist()
            [0.1, 0.5]
        """
        none = self.weights.new_zeros(1)
        weight_before = torch.cat([none, self.weights.cumsum(dim=0)])
        below = weight_before[torch.searchsorted(self.scores, scores.contiguous())]
        total = self.weights.sum()
        return (total - below + self.own) / (total + self.own)

    def limit(self, share: float) -> float:
        """Return the largest score whose p-value is above a share.

        Args:
            share: of images of known classes that may be called unknown, from 0 to 1.

        Returns:
            The score; infinite if there are too few samples to tell.
        """
        smallest = float(self.p_values(self.scores.new_tensor([torch.inf])))
        if smallest > share:
            return float("inf")
        p_values = self.p_values(self.scores)
        return float(self.scores[p_values > share].max())

    def threshold(self, share: float) -> float:
        """Return the smallest score that a share of the images of known classes do not exceed.

        Args:
            share: from 0 to 1.

        Returns:
            The score; infinite where there are too few samples to tell.
        """
        total = self.weights.sum() + self.own
        needed = share * total * (1 - RELATIVE_ROUNDING)
        first = int((self.weights.cumsum(dim=0) < needed).sum())
        if first < len(self.scores):
            return float(self.scores[first])
        return float("inf")


def novelty_reference(samples: CalibrationSamples) -> ReferenceScores:
    """Return the leave-one-group-out novelty of samples.

    Raises:
        UnsupportedError: this head cannot (``tells_novelty``).
        CifnetError: the head is not solved, or embeddings of another width.
    """
    return ReferenceScores.of(samples.novelty(), samples.weights())


def set_scores(probabilities: Tensor, penalty: float) -> Tensor:
    """Return the probability of the classes that are more probable than each class, plus penalties.

    This is the score of Angelopoulos et al. (2021, RAPS) without its random part. The most probable
    class has 0, so no prediction set is empty.

    Args:
        probabilities: (n, C).
        penalty: for each class that is more probable.

    Returns:
        (n, C) float64.

    Example:
        >>> set_scores(torch.tensor([[0.7, 0.2, 0.1]]).double(), 0.01).round(decimals=2).tolist()
        [[0.0, 0.71, 0.92]]
    """
    ranking = _ranked(probabilities)
    scores = ranking.before + penalty * ranking.rank
    return torch.empty_like(scores).scatter_(1, ranking.order, scores)


class Ranking(NamedTuple):
    """Classes of each row sorted by probability, the most probable first.

    Attributes:
        before: (n, C) float64 probability of the classes before each.
        rank: (C,) float64 how many these are.
        order: (n, C) the sorted columns.
    """

    before: Tensor
    rank: Tensor
    order: Tensor


def _ranked(probabilities: Tensor) -> Ranking:
    """Sort the classes of (n, C) probabilities."""
    ordered, order = probabilities.double().sort(dim=1, descending=True)
    rank = torch.arange(ordered.shape[1], dtype=torch.float64, device=ordered.device)
    return Ranking(ordered.cumsum(dim=1) - ordered, rank, order)


@dataclass(frozen=True)
class PredictionSets:
    """Conformal prediction sets: sets of classes that hold the true one with a given coverage.

    Attributes:
        limit: a class is in the set of an image if its score (:func:`set_scores`) is at most this.
        penalty: of the scores.
    """

    limit: float
    penalty: float

    @classmethod
    def of(cls, samples: CalibrationSamples, coverage: float) -> PredictionSets:
        """Choose the limit and the penalty by leave-one-group-out scores.

        The penalty is the one of ``RAPS_PENALTIES`` with which the samples' own sets have the
        fewest classes, each sample counted as the images that it stands for.

        Args:
            samples: of a head that is calibrated or not.
            coverage: probability that a set holds the true class, over all images of known classes.
        """
        head = samples.head
        scores, columns, known = samples.known_scores()
        ranking = _ranked(to_probabilities(scores, head.temperature, head.odds_power))
        is_true = ranking.order == columns[:, None]
        weights = samples.weights()[known]
        smallest = float("inf")
        chosen = cls(limit=float("inf"), penalty=RAPS_PENALTIES[0])
        for penalty in RAPS_PENALTIES:
            set_score = ranking.before + penalty * ranking.rank
            reference = ReferenceScores.of(set_score[is_true], weights)
            limit = reference.threshold(coverage)
            size = float(((set_score <= limit).sum(dim=1) * weights).sum())
            if size < smallest:
                smallest = size
                chosen = cls(limit, penalty)
        return chosen

    def of_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return which classes are in the prediction set of each image.

        Args:
            probabilities: (n, C).

        Returns:
            (n, C) bool.
        """
        return set_scores(probabilities, self.penalty) <= self.limit
