"""Calibrate probabilities without held-out data, and keep promises, by leave-one-out scores of
stored samples.

The scores of ridge regression on ±L or one-hot targets are far too close together for a softmax.
Dividing them by one temperature (Guo et al., 2017) mends that; it is usually fitted on held-out
data. Here it is fitted on samples that were learned, at scores that did not learn them, which ridge
regression has in closed form. A second number, the power of the answer's odds, mends what one
temperature leaves: where classes resemble each other, the sure answers are too sure.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from cifnet_pl.heads.base import Head, LeftOut, log_odds, to_probabilities
from cifnet_pl.statistics import comparable, left_out_groups, near_groups, near_limit
from cifnet_pl.utilities.errors import UsageError, check_that

if TYPE_CHECKING:
    from cifnet_pl.buffer import CalibrationBuffer

RANGE = math.log(1e3)
"""How far, in the logarithm and either way, a temperature may lie from the spread of the scores."""


class CalibrationSamples:
    """Labelled samples that show how a head does on images that it has not learned.

    Args:
        head: solved.
        z: (n, d) embeddings.
        y: (n,) int64 labels of classes that the head knows.
        groups: (n,) int64, equal for samples that are left out together; None to leave out each
            alone.
        learned: whether the head has learned them, so that they must be left out; see
            :meth:`Head.leave_one_out`.
        counted: (n,) bool, whether the head is calibrated by each; the others are left out with
            their group, and that is all. None for all of them.
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
            self.counted = torch.ones_like(y, dtype=torch.bool)
        else:
            self.counted = counted
        self.columns = (y[:, None] == head.labels).int().argmax(dim=1)

    @cached_property
    def left_out(self) -> LeftOut:
        """Scores of the samples by their groups."""
        if self.learned:
            return self.head.leaving_out(self.z, self.y)
        scores = self.head(self.z)
        return lambda groups: scores

    def grouped(self, groups: Tensor | None) -> CalibrationSamples:
        """Return the same samples in other groups."""
        result = copy.copy(self)
        result.groups = groups
        return result

    def scores(self) -> Tensor:
        """Return (n, C) float64 scores without each sample's group; NaN where nothing is known, or
        not counted.
        """
        return self._of_counted(self.left_out(self.groups))

    def _of_counted(self, numbers: Tensor) -> Tensor:
        """Return numbers of each sample (n, …) with NaN for those that are not counted."""
        numbers = numbers.clone()
        numbers[~self.counted] = torch.nan
        return numbers

    def novelty(self) -> Tensor:
        """Return (n,) float64 novelty without each sample's group."""
        if not self.learned:
            return self.head.novelty(self.z)
        return self._of_counted(self.head.leave_one_out_novelty(self.z, self.y, self.groups))

    def weights(self) -> Tensor:
        """Return (n,) float64 how many images each sample stands for."""
        if not self.learned:
            return torch.ones(len(self.y), dtype=torch.float64, device=self.y.device)
        counts = torch.tensor(list(self.head.class_counts().values()), device=self.y.device)
        weights = torch.zeros(len(self.y), dtype=torch.float64, device=self.y.device)
        weights[self.counted] = image_weights(self.y[self.counted], self.head.labels, counts)
        return weights

    def accuracy(self) -> float | None:
        """Return how many percent are named right; None if nothing is known without any group.

        Of learned samples it is the mean over classes: a class of few images is no rarer on another
            day.
        """
        scores = self.scores()
        known = scores.isfinite().all(dim=1)
        columns = self.columns[known]
        right = (scores.argmax(dim=1) == self.columns)[known].double()
        if not known.any():
            return None
        if not self.learned:
            return 100 * float(right.mean())
        count = columns.bincount()
        return 100 * float((columns.bincount(right)[count > 0] / count[count > 0]).mean())


def calibrate(samples: CalibrationSamples) -> None:
    """Set the head's temperature and power to those that minimise the NLL of samples without their
    groups.

    Samples without which nothing would be known of their scores are not used; both are 1 if there
    are no others.

    Raises:
        UnsupportedError: the head has no leave-one-out scores.
        UsageError: no samples.
    """
    if not len(samples.y):
        raise UsageError(
            "calibration needs stored samples, and there are none: use a calibration buffer"
        )
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    temperature, power = (
        fit_probabilities(scores[known], samples.columns[known]) if known.any() else (1.0, 1.0)
    )
    samples.head.temperature.fill_(temperature)
    samples.head.odds_power.fill_(power)


def near_duplicates(z: Tensor, y: Tensor) -> Tensor | None:
    """Group samples that are left out together: near-duplicates of one class.

    Samples that resemble more than half of their class stand alone: without these little would be
    known of the class.

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


def check(head: Head, buffer: CalibrationBuffer | None, wanted: bool) -> None:
    """Check that a head has the buffer that it needs.

    Args:
        head: to be learned.
        buffer: the calibration buffer, or None.
        wanted: whether the head is to be calibrated.

    Raises:
        UsageError: the head learns from a buffer and has none; it cannot be calibrated, or not
            without a buffer.
    """
    if head.decides and buffer is None:
        raise UsageError(
            "decision: auto needs stored samples to decide by: give a calibration buffer"
            " (model.buffer), or say ridge or discriminant"
        )
    if not wanted:
        return
    if not head.leaves_one_out:
        raise UsageError(
            f"calibrate: {type(head).__name__} has no leave-one-out scores: leave it out, or use a"
            " ridge-type head"
        )
    if buffer is None:
        raise UsageError("calibrate needs stored samples: give a calibration buffer (model.buffer)")


def fit_temperature(scores: Tensor, columns: Tensor) -> float:
    """Return the temperature T that minimises the mean of ``−log softmax(scores / T)`` at the true
    columns, smoothed.

    With no error among n samples T would fall to zero, and promise certainty. So each sample's
    target has a share of 1/(n+2) spread evenly over all classes (Platt's prior, 1999), which
    vanishes with many samples.

    The NLL is convex in 1/T, so the search over log T has one minimum. It is bounded around the
    spread of the scores.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.

    Example:
        >>> wrong_once = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> round(fit_temperature(wrong_once, torch.tensor([0, 0, 1, 1])), 2)
        1.13
    """

    def loss(temperature: float) -> float:
        return torch.nn.functional.cross_entropy(
            scores / temperature, columns, label_smoothing=1 / (len(scores) + 2)
        ).item()

    return _best_temperature(scores, loss)


LEAST_POWER = 0.05
"""Smallest power of the answer's odds that is tried."""


def fit_probabilities(scores: Tensor, columns: Tensor) -> tuple[float, float]:
    """Return the temperature and the power for which ``to_probabilities`` has the smallest NLL,
    smoothed.

    At each temperature that is tried (as in :func:`fit_temperature`) the best power is found. Of
    two classes, and of scores that are all alike, the power is 1: there it does what the
    temperature does.

    Args:
        scores: (n, C) float64.
        columns: (n,) int64 true column of each row.
    """
    if scores.shape[1] <= 2:
        return fit_temperature(scores, columns), 1.0
    n, classes = scores.shape
    smooth = 1 / (n + 2)  # the same share of the target as in `fit_temperature`
    columns = columns[:, None]

    def best_power(temperature: float) -> tuple[float, float]:
        """The power, and its loss. Only the answer's part of the loss changes with it."""
        first, odds, others = log_odds(scores / temperature)
        right = first == columns
        share = (1 - smooth) * right + smooth / classes  # of the target, at the answer
        within = (1 - smooth) * others.gather(1, columns).where(~right, 0)
        within = within + smooth / classes * others.where(others.isfinite(), 0).sum(
            dim=1, keepdim=True
        )

        def loss(power: float) -> float:
            sure = logsigmoid(power * odds)
            unsure = logsigmoid(-power * odds)
            return -(share * sure + (1 - share) * unsure + within).mean().item()

        power = _minimum(loss, LEAST_POWER, 1.0)
        # the search never reaches its bounds
        least = loss(power)
        whole = loss(1.0)
        if least < whole:
            return (power, least)
        return (1.0, whole)

    temperature = _best_temperature(scores, lambda each: best_power(each)[1])
    return temperature, best_power(temperature)[0]


def _best_temperature(scores: Tensor, loss: Callable[[float], float]) -> float:
    """Return the temperature of the smallest loss, around the spread of the scores (n, C)."""
    spread = (scores - scores.mean(dim=1, keepdim=True)).square().mean().sqrt().item()
    if (
        scores.shape[1] == 1 or spread == 0.0
    ):  # all temperatures are alike: any scale of the scores will do
        return max(scores.abs().mean().item(), 1e-3)
    middle = math.log(spread)
    return math.exp(_minimum(lambda each: loss(math.exp(each)), middle - RANGE, middle + RANGE))


def _minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function of one number is smallest between two numbers."""
    from scipy.optimize import minimize_scalar  # here: models that only classify do not wait for it

    return float(
        minimize_scalar(function, bounds=(low, high), method="bounded", options={"xatol": 1e-6}).x
    )


PENALTIES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)
"""What each class beyond the first may add to its score: it keeps sets small (RAPS)."""


def check_share(name: str, share: float, example: float = 0.05) -> float:
    """Check a share between 0 and 1.

    Args:
        name: the option, for the error.
        share: the number.
        example: of a share, for the error.

    Returns:
        The number.

    Raises:
        UsageError: it does not lie between 0 and 1.
    """
    expected = f"a share between 0 and 1, such as {example:g} for {100 * example:g} %"
    check_that(0 < share < 1, name, share, expected)
    return share


def image_weights(y: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return how many learned images each stored sample stands for: (n,) float64.

    A buffer keeps about as many samples of a rare class as of a frequent one; without weights the
    promise would be about classes, not about images.

    Args:
        y: (n,) labels of the stored samples.
        labels: (C,) all labels.
        counts: (C,) images learned of each.
    """
    columns = (y[:, None] == labels).int().argmax(dim=1)
    return (counts.double() / torch.bincount(columns, minlength=len(labels)))[columns]


@dataclass(frozen=True)
class Reference:
    """Scores of stored samples in ascending order, and how many images each stands for; larger
    scores are more novel.

    Attributes:
        scores: (n,) float64.
        weights: (n,) float64.
    """

    scores: Tensor
    weights: Tensor

    @classmethod
    def of(cls, scores: Tensor, weights: Tensor) -> Reference:
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
        """() weight of the new image itself: the mean weight of the stored ones."""
        return self.weights.mean()

    def p_values(self, scores: Tensor) -> Tensor:
        """Compute the share of known images that are at least as novel as each score.

        Of images of known classes, a share of at most α has a p-value of at most α.

        Args:
            scores: (n,) float64.

        Returns:
            (n,) float64.

        Example:
            >>> reference = Reference.of(torch.arange(9.0).double(), torch.ones(9).double())
            >>> reference.p_values(torch.tensor([100.0, 4.5], dtype=torch.float64)).tolist()
            [0.1, 0.5]
        """
        none = self.weights.new_zeros(1)
        below = torch.cat([none, self.weights.cumsum(dim=0)])[
            torch.searchsorted(self.scores, scores.contiguous())
        ]
        total = self.weights.sum()
        return (total - below + self.own) / (total + self.own)

    def limit(self, share: float) -> float:
        """Return the largest score whose p-value is above a share.

        Args:
            share: of images of known classes that may be called unknown, from 0 to 1.

        Returns:
            The score; infinite if there are too few samples to tell.
        """
        if float(self.p_values(self.scores.new_tensor([torch.inf]))) > share:
            return float("inf")
        return float(self.scores[self.p_values(self.scores) > share].max())

    def threshold(self, share: float) -> float:
        """Return the smallest score that a share of the images of known classes do not exceed.

        Args:
            share: from 0 to 1.

        Returns:
            The score; infinite where there are too few stored samples to tell.
        """
        reached = self.weights.cumsum(dim=0) >= share * (self.weights.sum() + self.own) * (
            1 - 1e-12
        )
        first = int((~reached).sum())
        if first < len(self.scores):
            return float(self.scores[first])
        return float("inf")


def novelty_reference(samples: CalibrationSamples) -> Reference:
    """Return the novelty of samples without their groups.

    Raises:
        UnsupportedError: this head cannot (``tells_novelty``).
        CifnetError: the head is not solved, or embeddings of another width.
    """
    return Reference.of(samples.novelty(), samples.weights())


def set_scores(probabilities: Tensor, penalty: float) -> Tensor:
    """Return the probability of all classes that are more probable than each class, plus a penalty
    for each (RAPS).

    This is the score of Angelopoulos et al. (2021) without its random part. The most probable class
    has 0, so no set is empty.

    Args:
        probabilities: (n, C).
        penalty: for each class that is more probable.

    Returns:
        (n, C) float64.

    Example:
        >>> [round(score, 2) for score in set_scores(torch.tensor([[0.7, 0.2, 0.1]]).double(), 0.01)[0].tolist()]
        [0.0, 0.71, 0.92]
    """
    before, rank, order = _ranked(probabilities)
    scores = before + penalty * rank
    return torch.empty_like(scores).scatter_(1, order, scores)


def _ranked(probabilities: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sort the classes of (n, C) probabilities, the most probable first.

    Returns:
        (n, C) float64 probability of those before each, (C,) float64 how many these are, and (n, C)
        the sorted columns.
    """
    ordered, order = probabilities.double().sort(dim=1, descending=True)
    rank = torch.arange(ordered.shape[1], dtype=torch.float64, device=ordered.device)
    return ordered.cumsum(dim=1) - ordered, rank, order


@dataclass(frozen=True)
class PredictionSets:
    """Sets of classes that hold the right one with a promised chance.

    Attributes:
        limit: a class is in the set of an image if its score (:func:`set_scores`) is at most that.
        penalty: of the scores.
    """

    limit: float
    penalty: float

    @classmethod
    def of(cls, samples: CalibrationSamples, coverage: float) -> PredictionSets:
        """Choose the limit from the probabilities of samples without their groups, and the penalty.

        Of ``PENALTIES`` that is taken with which the samples' own sets have the fewest classes,
        each sample counted as the images that it stands for.

        Args:
            samples: of a head that is calibrated or not.
            coverage: the chance, over all images of known classes.
        """
        head = samples.head
        scores = samples.scores()
        known = scores.isfinite().all(dim=1)
        probabilities = to_probabilities(scores[known], head.temperature, head.odds_power)
        before, rank, order = _ranked(probabilities)
        own = order == samples.columns[known][:, None]
        weights = samples.weights()[known]

        def with_penalty(penalty: float) -> tuple[float, PredictionSets]:
            """The sum of the sizes of the samples' sets, and the sets."""
            each = before + penalty * rank
            limit = Reference.of(each[own], weights).threshold(coverage)
            return float(((each <= limit).sum(dim=1) * weights).sum()), cls(limit, penalty)

        return min((with_penalty(penalty) for penalty in PENALTIES), key=lambda found: found[0])[1]

    def of_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return which classes are in the set of each image.

        Args:
            probabilities: (n, C).

        Returns:
            (n, C) bool.
        """
        return set_scores(probabilities, self.penalty) <= self.limit
