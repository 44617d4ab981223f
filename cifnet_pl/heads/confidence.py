"""Left-out samples of the buffer, and what follows from them: weights, prediction sets, unknowns.

Calibration usually needs held-out data. Here it uses samples that were learned, at scores that did
not learn them or their group, which ridge regression and the discriminant have in closed form
(:mod:`cifnet_pl.statistics.leaving_out`).

1. The probabilities are fitted to them (:mod:`cifnet_pl.heads.probabilities`, :func:`calibrate`).
2. A prediction set holds the classes whose probability is at least that which 95 % of the left-out
   samples reach for their own class (:class:`PredictionSets`).
3. An image is unknown if its novelty exceeds that of 95 % of the left-out samples
   (:func:`novelty_reference`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from cifnet_pl.heads.base import Head
from cifnet_pl.heads.probabilities import fit_probabilities, to_probabilities
from cifnet_pl.statistics import LeftOut
from cifnet_pl.statistics.leaving_out import ROUNDING
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
    def rules(self) -> tuple[LeftOut, ...]:
        """Function from groups to scores for each rule; one rule where nothing is left out."""
        if self.learned:
            return self.head.rules_left_out(self.z, self.y)
        scores = self.head(self.z)
        return (lambda groups: scores,)

    @property
    def weights_of_rules(self) -> tuple[float, ...]:
        """The factor of each rule in the scores."""
        if self.learned:
            return self.head.weights_of_rules
        return (1.0,)

    def grouped(self, groups: Tensor | None) -> CalibrationSamples:
        """Return the same samples in other groups; what does not depend on these is shared."""
        result = CalibrationSamples(
            self.head, self.z, self.y, groups, self.learned, self.counted
        )
        result.rules = self.rules
        return result

    @cached_property
    def scores_of_rules(self) -> list[Tensor]:
        """(n, C) float64 scores of each rule without each sample's group.

        They are NaN where nothing is known without the group, as of a class of a single group, and
        for samples that are not counted.
        """
        unknown = ~self.counted
        if self.learned and self.groups is not None:
            unknown = unknown | self._whole_classes(self.groups)
        scores = [rule(self.groups) for rule in self.rules]
        return [each.masked_fill(unknown[:, None], torch.nan) for each in scores]

    def _whole_classes(self, groups: Tensor) -> Tensor:
        """Return (n,) bool, which samples have all learned ones of their class in their group."""
        learned = torch.tensor(list(self.head.class_counts().values()))
        learned = learned.to(self.columns.device)
        members = torch.unique(groups, return_inverse=True)[1]
        cells = members * len(learned) + self.columns
        in_group = cells.bincount()[cells]
        whole: Tensor = in_group >= learned[self.columns]
        return whole

    def scores(self) -> Tensor:
        """Return (n, C) float64 scores of the head (see :attr:`scores_of_rules`)."""
        pairs = zip(self.weights_of_rules, self.scores_of_rules, strict=True)
        return torch.stack([weight * scores for weight, scores in pairs]).sum(dim=0)

    def known_scores(self) -> KnownScores:
        """Return the scores that are known, and the true columns of their samples."""
        scores = self.scores()
        known = scores.isfinite().all(dim=1)
        return KnownScores(scores[known], self.columns[known], known)

    def novelty(self) -> Tensor:
        """Return (n,) float64 novelty without each sample's group; NaN for those not counted."""
        if not self.learned:
            return self.head.novelty(self.z)
        novelty = self.head.leave_one_out_novelty(self.z, self.y, self.groups)
        return novelty.masked_fill(~self.counted, torch.nan)

    def weights(self) -> Tensor:
        """Return (n,) float64 how many images each sample stands for.

        A buffer keeps about as many samples of a rare class as of a frequent one. Without weights a
        promised coverage would be about classes, not about images.
        """
        weights = self.counted.double()
        if not self.learned:
            return weights
        counts = torch.tensor(list(self.head.class_counts().values()))
        stored = self.columns.bincount(weights, minlength=len(counts))
        return weights * (counts.to(stored) / stored)[self.columns]


def calibrate(samples: CalibrationSamples) -> None:
    """Give the head the smallest negative log likelihood.

    It is that of the samples without their groups
    (:func:`~cifnet_pl.heads.probabilities.fit_probabilities`). Of samples that are not learned the
    temperature is fitted, and not the weights of rules. Samples without known scores are not used;
    without any others the head stays as it is solved.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
        UsageError: no samples.
    """
    if not len(samples.y):
        raise UsageError(
            "calibration needs buffer samples, and there are none: use a calibration buffer"
        )
    rules = samples.scores_of_rules
    known = torch.stack(rules).isfinite().all(dim=2).all(dim=0)
    head = samples.head
    head.temperature.fill_(1.0)
    head.odds_power.fill_(1.0)
    if not known.any():
        return
    columns = samples.columns[known]
    fit = fit_probabilities([scores[known] for scores in rules], columns)
    head.odds_power.fill_(fit.power)
    if samples.learned:
        head.calibrate(fit.weights)
    else:
        head.temperature.fill_(1 / fit.weights[0])


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


def check_share(name: str, share: float, example: float = 0.05) -> float:
    """Check a share between 0 and 1, and return it.

    Args:
        name: the option, for the error.
        share: the value.
        example: of a share, for the error.

    Raises:
        UsageError: it does not lie between 0 and 1.
    """
    expected = f"a share between 0 and 1, such as {example:g} for {100 * example:g} %"
    check_that(0 < share < 1, name, share, expected)
    return share


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
        needed = share * total * (1 - ROUNDING)
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
        reference = ReferenceScores.of(-of_true, samples.weights()[known])
        return cls(-reference.threshold(coverage))

    def of_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return which classes are in the prediction set of each image, at least the most probable.

        Args:
            probabilities: (n, C).

        Returns:
            (n, C) bool.
        """
        largest = probabilities.max(dim=1, keepdim=True).values
        return probabilities >= largest.clamp_max(self.least)
