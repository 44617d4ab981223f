"""What is promised of new images: their accuracy, prediction sets, and which are called unknown.

Accuracy is estimated without each image, without its group, and measured elsewhere.

Groups are those that the user gave, or clusters of the images of a class, where similar images show
that these are not independent (:func:`~cifnet_pl.statistics.group_evidence`). The buffer draws such
groups whole, since others of a group that stay in the sums would answer for it. The probabilities,
the prediction sets and the threshold for unknowns follow from the scores without each sample's
group (:mod:`cifnet_pl.heads.probabilities`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from cifnet_pl.buffer import BufferSamples, buffer_samples, concatenate
from cifnet_pl.heads import Head
from cifnet_pl.heads.probabilities import (
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
    calibrate,
)
from cifnet_pl.model.metrics import Interval
from cifnet_pl.statistics import Clusters, Evidence, group_evidence
from cifnet_pl.utilities.errors import UsageError, check_that
from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows, renamed

Kind = Literal[
    "unknown",
    "few",
    "independent",
    "found",
    "measured",
    "given",
    "one_group",
    "incomplete",
]
"""Source of the accuracy on new groups: nothing yet; too few images; images that are
independent, so that both accuracies are the same; groups found among the images; labelled images
that were not learned; groups that the user gave; none, as without a group in the buffer nothing is
known of most classes; none, as the buffer is too small to tell."""

MIN_IMAGES_PER_CLASS = 20
"""Images of a class, on average, from which the accuracy on new groups is estimated.

With ten of each of 10 to 41 products the estimate was between 4 points too low and 13 too high.
"""

ACCURACY_ON_NEW_GROUPS = {
    "found": "Estimated accuracy on new groups",
    "given": "Estimated accuracy on new groups",
    "measured": "Accuracy on the images for recalibration",
}
"""Kind → what the accuracy on new groups is called, where it is another number."""

NOT_ESTIMATED = {
    "few": f"fewer than {MIN_IMAGES_PER_CLASS} images a class",
    "incomplete": "the buffer is too small to tell whether images come in groups; raise"
    " --model.buffer.init_args.capacity, or measure on labelled images of new groups (cifnet"
    " evaluate)",
    "one_group": "most classes have images of one group only, or no group in the buffer; add images"
    " of other days or places, or raise --model.buffer.init_args.capacity",
}
"""Kind → why the accuracy on new groups is not estimated."""

UNKNOWN_SHARE = 0.05
"""Share of images of known classes that may be called unknown, where none is given."""

COVERAGE = 1 - UNKNOWN_SHARE
"""Probability with which a prediction set holds the true class, where none is given."""

MIN_NEW_IMAGES = round(1 / UNKNOWN_SHARE)
"""Labelled images from which a model can be recalibrated.

With fewer, no image can be called unknown."""

LARGEST_HASH = torch.iinfo(torch.int64).max
"""A content hash without its sign is up to this."""


class Calibration(GrowingModule):
    """The samples by which a model is calibrated, and its accuracy on them.

    Buffers:
        kind: () int64, position in :data:`Kind`.
        is_given: () bool, whether the groups are those that the user gave.
        group_errors: (3,) float64 errors that tell whether images are independent
            (:class:`~cifnet_pl.statistics.Evidence`), summed over tasks; negative where there are
            none yet.
        accuracy: (2,) float64 leave-one-out accuracy and accuracy on new groups, in percent;
            negative where not known.
        interval: (2, 2) float64 95 % interval of each, lower and upper end.
        chosen: (c,) int64 content hashes of learned images that were selected among others, see
            :meth:`exclude_selected`.
        z: (m, d) float32 embeddings of labelled images that are not learned. With any of them, the
            buffer samples calibrate nothing.
        y: (m,) int64 their labels.
        key: (m,) int64 their content hashes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.accuracy: Tensor = nn.Buffer(-torch.ones(2, dtype=torch.float64))
        self.interval: Tensor = nn.Buffer(-torch.ones(2, 2, dtype=torch.float64))
        self.z = no_rows(torch.float32, 0)
        self.is_given: Tensor = nn.Buffer(torch.tensor(False))
        self.group_errors: Tensor = nn.Buffer(-torch.ones(3, dtype=torch.float64))
        self.y = no_rows(torch.int64)
        self.key = no_rows(torch.int64)
        self.chosen = no_rows(torch.int64)

    @property
    def estimate_kind(self) -> Kind:
        """How the accuracy on new groups was estimated."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return kinds[int(self.kind)]

    @property
    def estimates(self) -> list[Estimate | None]:
        """Leave-one-out accuracy of the buffer samples, and accuracy on new groups, where known."""
        estimates: list[Estimate | None] = [None, None]
        for position, accuracy in enumerate(self.accuracy.tolist()):
            if accuracy >= 0:
                interval = Interval(*self.interval[position].tolist())
                estimates[position] = Estimate(accuracy, interval)
        return estimates

    def describe(self) -> dict[str, Any]:
        """Return both accuracies and their intervals in percent, by their names in files."""
        described: dict[str, Any] = {}
        names = ("loo_accuracy", "new_group_accuracy")
        for name, estimate in zip(names, self.estimates, strict=True):
            described[name] = estimate and estimate.accuracy
            described[f"{name}_interval"] = estimate and estimate.interval
        return described

    def record(self, kind: Kind, loo: Estimate | None, new: Estimate | None) -> None:
        """Record leave-one-out accuracy and accuracy on new groups."""
        self.kind.fill_(get_args(Kind).index(kind))
        self.accuracy.fill_(-1)
        self.interval.fill_(-1)
        for position, estimate in enumerate((loo, new)):
            if estimate is not None:
                self.accuracy[position] = estimate.accuracy
                self.interval[position] = self.interval.new_tensor(estimate.interval)

    # ------------------------------------------------------------------ which samples calibrate

    def exclude_selected(self, key: Tensor) -> None:
        """Exclude learned images that were selected among others from the calibration.

        A user who is shown the images of lowest confidence first learns those first. Accuracy and
        confidence on them say nothing of new images, so they do not count (:meth:`counted`) until
        the others are learned, too.

        Args:
            key: (n,) int64 content hashes; without any, every image counts again.
        """
        if len(key):
            self.chosen = torch.unique(torch.cat([self.chosen, key.to(self.chosen)]))
        else:
            self.chosen = self.chosen[:0]

    def counted(self, y: Tensor, key: Tensor) -> Tensor:
        """Return which buffer samples calibrate a model: (n,) bool.

        Selected ones do not, unless their class has fewer than ``MIN_IMAGES_PER_CLASS`` others.

        Args:
            y: (n,) labels.
            key: (n,) int64 content hashes.
        """
        others = ~torch.isin(key, self.chosen)
        classes = torch.unique(y, return_inverse=True)[1]
        others_of_class = classes.bincount(others.double())
        few: Tensor = others_of_class < MIN_IMAGES_PER_CLASS
        return others | few[classes]

    # ------------------------------------------------------------------ groups

    @property
    def leaves_groups_out(self) -> bool:
        """Whether images come in groups that are left out together."""
        evidence = Evidence(*self.group_errors.clamp_min(0).tolist())
        return bool(self.is_given) or evidence.dependent

    def absorb(self, other: Calibration) -> None:
        """Take in what is known of the images of another model."""
        self.is_given |= other.is_given
        if len(other.chosen):
            self.exclude_selected(other.chosen)
        if (other.group_errors >= 0).all():
            self.group_errors.clamp_min_(0).add_(other.group_errors)
        new = ~torch.isin(other.key, self.key)
        theirs = other.new_images.at(new)
        self.replace_new_images(concatenate([self.new_images, theirs]))

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes, old label → new label."""
        self.y = renamed(self.y, labels)

    def subtract_errors(self, base: Calibration) -> None:
        """Subtract what the images of an earlier version show of independence, if it is known."""
        errors = self.group_errors - base.group_errors.clamp_min(0)
        # Errors that are not known stay negative.
        self.group_errors.copy_(errors.clamp(self.group_errors.clamp_max(0)))

    def find_groups(
        self,
        head: Head,
        samples: BufferSamples,
        is_whole: Tensor,
        is_new: Tensor,
        limit: int,
    ) -> BufferSamples:
        """Find the groups of the samples at hand, and whether these must be left out together.

        They are found in classes of which all images are at hand. Of other classes those groups are
        whole that were drawn before.

        Args:
            head: solved.
            samples: n samples, in the groups that are known.
            is_whole: (n,) bool, whether all images of the sample's class are at hand.
            is_new: (n,) bool, whether the sample's class has new images.
            limit: largest number of images without similar ones by which independence is tested.

        Returns:
            The samples, each in its group.
        """
        groups = samples.group.clamp_min(-1)
        given = -2 - samples.group
        self.is_given |= (given >= 0).any()
        if self.is_given:
            # An image without a group has its own hash for one.
            alone = samples.key & LARGEST_HASH
            named = torch.where(given >= 0, given, alone)
            unknown = is_whole & (groups < 0)
            return samples._replace(group=torch.where(unknown, named, groups))
        counts = head.class_counts()
        learned = sum(counts[label] for label in set(samples.y[is_new].tolist()))
        is_known = False
        if is_whole.any():
            whole = samples.at(is_whole)
            mean = samples.z.double().mean(dim=0)
            clusters = Clusters(whole.z, whole.y, mean)
            # A group has the smallest of its images' hashes for a name, whatever else is learned.
            hashes = pd.Series(whole.key.cpu() & LARGEST_HASH)
            names = hashes.groupby(clusters.groups().numpy()).transform("min")
            groups[is_whole] = whole.key.new_tensor(names.to_numpy())
            tested = is_new[is_whole]
            if is_whole.all():  # what was found before is found again
                self.group_errors.fill_(-1)
                tested = is_whole
            sets = clusters.similar_sets().to(tested.device)
            at_hand = whole.at(tested)
            is_known = self._test(head, at_hand, sets[:, tested], limit, learned)
        if not (
            is_known or self.leaves_groups_out or 2 * self.group_errors[2] >= learned
        ):
            # What fewer images showed says nothing of these.
            self.group_errors.fill_(-1)
        return samples._replace(group=groups)

    def _test(
        self,
        head: Head,
        samples: BufferSamples,
        sets: Tensor,
        limit: int,
        images: int,
    ) -> bool:
        """Add what samples, all of their classes, show of whether images are independent.

        Those that resemble no other can be left out alone only, so some of them stand for all.

        Args:
            head: solved.
            samples: n samples.
            sets: (2, n) int64, equal for similar ones, and for those of a random set as large.
            limit: number of samples that may stand for those without similar ones.
            images: number of all images of the task, of which these may be few.

        Returns:
            Whether they tell. Of a few classes hardly any image may be predicted wrongly, in groups
            or not; then nothing is added.
        """
        similar = sets[0]
        if not len(samples.y):
            return False
        is_alone = similar.bincount()[similar] == 1
        alone = is_alone.nonzero().flatten()
        shown = alone[torch.argsort(samples.key[alone])][:limit]
        rows = torch.cat([(~is_alone).nonzero().flatten(), shown])
        counts = torch.ones_like(rows, dtype=torch.float64)
        counts[is_alone[rows]] = len(alone) / max(len(shown), 1)
        learned = CalibrationSamples(head, samples.z[rows], samples.y[rows])
        rule = learned.rules[0]
        found = group_evidence(sets[:, rows], learned.columns, rule, counts)
        is_known = 2 * len(samples.y) > images or found.is_clear
        if is_known:
            errors = self.group_errors.new_tensor(found)
            self.group_errors.clamp_min_(0).add_(errors)
        return is_known

    # ------------------------------------------------------------------ accuracy

    def calibrate_by_buffer(self, samples: CalibrationSamples, group: Tensor) -> None:
        """Calibrate the head by buffer samples without their groups, and measure its accuracy.

        Args:
            samples: m samples of a head with leave-one-out scores, each left out alone.
            group: (m,) int64 group of each (:class:`~cifnet_pl.buffer.BufferSamples`).
        """
        head = samples.head
        grouped = samples
        kind: Kind = "independent"
        if self.leaves_groups_out:
            grouped = samples.grouped(group)
            kind = "found"
        if self.is_given:
            kind = "given"
        is_untested = bool((self.group_errors < 0).any())
        if not grouped.counted.any() or (is_untested and kind != "given"):
            grouped = samples
            kind = "incomplete"
        calibrate(grouped)
        learned = sum(head.class_counts().values())
        few = learned < MIN_IMAGES_PER_CLASS * len(head.classes)
        if few and kind != "given":
            kind = "few"
        self._record_accuracy(kind, samples, grouped)

    def _record_accuracy(
        self,
        kind: Kind,
        samples: CalibrationSamples,
        grouped: CalibrationSamples,
    ) -> None:
        """Record both accuracies: of samples alone, and in their groups."""
        loo = estimated(samples)
        new_groups = estimated(grouped)
        stored_classes = len(torch.unique(grouped.columns[grouped.counted]))
        known_classes = len(torch.unique(grouped.known_scores().columns))
        classes = len(samples.head.classes)
        if classes == 1:  # every prediction is right
            self.record("unknown", None, None)
        elif kind in ("few", "incomplete"):
            self.record(kind, loo, None)
        elif kind == "independent":
            if loo is not None:
                # The interval that as few groups as there may be would show: where hardly any
                # sample is predicted wrongly, errors do not tell whether images come in groups.
                clusters = Clusters(samples.z, samples.columns).groups()
                groups = effective_groups(clusters, samples.columns)
                expected = forecast(loo.accuracy / 100, groups)
                new_groups = Estimate(loo.accuracy, expected)
            self.record(kind, loo, new_groups)
        elif loo is None or new_groups is None or 2 * known_classes < classes:
            self.record("one_group", loo, None)
        else:
            lacking = 100 * (1 - stored_classes / classes)
            self.record(kind, loo, widened(new_groups, loo, lacking))

    @property
    def new_images(self) -> BufferSamples:
        """The labelled images that are not learned."""
        return buffer_samples(self.z, self.y, self.key)

    def replace_new_images(self, samples: BufferSamples) -> None:
        """Replace the labelled images that are not learned."""
        self.z = samples.z.float()
        self.y = samples.y
        self.key = samples.key

    def new_samples(self, head: Head) -> CalibrationSamples | None:
        """Return the labelled images that are not learned, if a head can be calibrated by them."""
        if len(self.y) < MIN_NEW_IMAGES:
            return None
        return CalibrationSamples(head, self.z, self.y, learned=False)

    def calibrate_by_new_images(self, head: Head, learned: Tensor) -> None:
        """Measure a head by the labelled images that it has not learned since, and calibrate it.

        Args:
            head: solved.
            learned: (n,) int64 content hashes of all images learned.
        """
        new = torch.isin(self.y, head.labels) & ~torch.isin(self.key, learned)
        self.replace_new_images(self.new_images.at(new))
        new_images = self.new_samples(head)
        if new_images is not None:
            loo, _ = self.estimates
            self.record("measured", loo, estimated(new_images))
            calibrate(new_images)


class Estimate(NamedTuple):
    """An accuracy and its 95 % interval, in percent.

    Example:
        >>> Estimate(94.4, Interval(91.7, 96.2)).sentence("500 of 1438 images")
        '94.4 % (92 to 96; 500 of 1438 images)'
    """

    accuracy: float
    interval: Interval

    def sentence(self, *facts: str) -> str:
        """Return the accuracy, its interval, and further facts in parentheses."""
        in_parentheses = "; ".join([str(self.interval), *facts])
        return f"{self.accuracy:.1f} % ({in_parentheses})"


def estimated(samples: CalibrationSamples) -> Estimate | None:
    """Return the leave-one-group-out accuracy of samples, and the interval for as many new groups.

    Of learned samples it is the mean over classes: a class with few training images may be as
    frequent as others later. Errors within a group are taken to be fully correlated.

    Returns:
        None if no scores are known.
    """
    scores, columns, known = samples.known_scores()
    if not len(columns):
        return None
    correct = (scores.argmax(dim=1) == columns).double()
    share = float(correct.mean())
    groups = len(torch.unique(samples.groups[known]))
    if samples.learned:
        groups = effective_groups(samples.groups[known], columns)
        # Of classes without samples nothing is known.
        class_accuracy = columns.bincount(correct) / columns.bincount()
        share = float(class_accuracy.nanmean())
    return Estimate(100 * share, forecast(share, groups))


def effective_groups(groups: Tensor, columns: Tensor) -> int:
    """Return from how many groups, as many of each class, a mean over classes is as certain.

    It is C² / Σ 1/n_c for n_c groups of each of C classes: a class of few groups decides as much of
    the mean as one of many.

    Args:
        groups: (n,) int64 group of each sample.
        columns: (n,) int64 class of each sample.

    Example:
        >>> effective_groups(torch.arange(12), torch.tensor([0] * 2 + [1] * 10))
        7
    """
    in_classes = torch.unique(torch.stack([columns, groups]), dim=1)
    counts = in_classes[0].bincount()
    spread = counts[counts > 0].double().reciprocal()
    return round(len(spread) ** 2 / float(spread.sum()))


def forecast(share: float, groups: int) -> Interval:
    """Return the 95 % prediction interval of the accuracy on the same number of new groups.

    The accuracy on new groups is not known, and what groups show of it varies: quantiles of the
    beta-binomial distribution, from Jeffreys' prior.

    Args:
        share: of predictions that are right, 0 to 1.
        groups: number of groups that they are of.
    """
    from scipy.stats import betabinom  # imported here: to classify needs none of it

    hits = share * groups + 0.5
    misses = (1 - share) * groups + 0.5
    # Of all numbers at once: ``ppf`` sums them anew for each of its steps.
    probabilities = betabinom.pmf(np.arange(groups + 1), groups, hits, misses)
    low, high = np.searchsorted(probabilities.cumsum(), [0.025, 0.975]).tolist()
    return Interval(100 * low / groups, 100 * high / groups)


def widened(estimate: Estimate, loo: Estimate, lacking: float) -> Estimate:
    """Widen the interval of an accuracy on new groups by what new groups may differ more.

    That is taken to be as much as the groups that were learned differ from one another: the gap to
    the leave-one-out accuracy. To add the squares of both is a rule of thumb. Nothing is known of
    classes without a group, so that all their images may be predicted wrongly.

    Args:
        estimate: the accuracy without each sample's group.
        loo: the accuracy without each sample.
        lacking: percentage of classes without a group.
    """
    accuracy, interval = estimate
    gap = max(0.0, loo.accuracy - accuracy)
    below = math.hypot(accuracy - interval.low, gap)
    above = math.hypot(interval.high - accuracy, gap)
    low = max(0.0, accuracy - below - lacking)
    high = min(100.0, accuracy + above)
    return Estimate(accuracy, Interval(low, high))


# ---------------------------------------------------------------------- unknowns, prediction sets


@dataclass(frozen=True)
class OpenSetDecision:
    """Whether a sample is of a known class, and its prediction set; None where not asked for.

    Attributes:
        known: whether the sample is of a known class.
        novelty: novelty score, larger for samples unlike everything learned
            (:meth:`cifnet_pl.heads.Head.novelty`).
        p_value: share of samples of known classes that are at least as novel, 0–1.
        prediction_set: classes that hold the true one with the promised probability, the most
            probable first.
    """

    known: bool | None = None
    novelty: float | None = None
    p_value: float | None = None
    prediction_set: tuple[str, ...] | None = None


class OpenSetPredictor:
    """Tell unknown samples and give prediction sets; the head must not change meanwhile.

    Args:
        head: solved.
        class_names: name of each of its columns.
        samples: what the head is calibrated by; None without any.
        unknown: share of samples of known classes that may be called unknown, such as 0.05; None
            to leave ``known``, ``novelty`` and ``p_value`` out.
        coverage: probability with which a prediction set holds the true class, such as 0.95; None
            to leave ``prediction_set`` out.

    Raises:
        UsageError: a share outside (0, 1), or a share without calibration samples.
        UnsupportedError: the head has no novelty score, or no leave-one-out scores.
    """

    def __init__(
        self,
        head: Head,
        class_names: Sequence[str],
        samples: CalibrationSamples | None,
        unknown: float | None = None,
        coverage: float | None = None,
    ):
        if unknown is not None:
            check_that(0 < unknown < 1, "unknown", unknown, "a share between 0 and 1")
            head.require("tells_novelty")
        if coverage is not None:
            check_that(
                0 < coverage < 1, "coverage", coverage, "a share between 0 and 1"
            )
            if samples is None or samples.learned:
                head.require("leaves_one_out")
        self.head = head
        self.class_names = tuple(class_names)
        self.unknown = unknown or 0.0
        self.reference = None
        self.sets = None
        if unknown is None and coverage is None:
            return
        if samples is None:
            raise UsageError(
                "this model has no calibration samples, which unknowns and prediction sets need:"
                " learn it with cifnet fit … --model.buffer CalibrationBuffer --model.calibrate"
                " true"
            )
        if unknown is not None:
            self.reference = ReferenceScores(
                samples.novelty(), samples.sample_weights()
            )
        if coverage is not None:
            self.sets = PredictionSets.of(samples, coverage)

    @property
    def warning(self) -> str | None:
        """Warning about too few calibration samples to call any sample unknown; None if enough."""
        if self.reference is None:
            return None
        scores = self.reference.scores
        infinite = scores.new_tensor([torch.inf])
        smallest = float(self.reference.p_values(infinite))
        if smallest <= self.unknown:
            return None
        return (
            f"note: with {len(scores)} calibration samples no image can be called unknown at a"
            f" share of {self.unknown:g}; from {smallest:.2g} on"
        )

    def judge(
        self,
        probabilities: Tensor,
        target: Tensor,
        novelty: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return what counts of the decisions for samples of known classes.

        Args:
            probabilities: (n, C) of their classes.
            target: (n,) int64 true columns.
            novelty: (n,) novelty scores; None where unknowns are not asked for.

        Returns:
            Columns of :attr:`Evaluation.samples <cifnet_pl.model.evaluation.Evaluation>`, each
            (n,): whether the prediction set holds the true class (``covered``), its ``set_size``,
            and whether the sample is called ``unknown``, as far as they are asked for.
        """
        columns = {}
        if self.sets is not None:
            members = self.sets.of_probabilities(probabilities)
            columns["covered"] = members.gather(1, target[:, None])[:, 0]
            columns["set_size"] = members.sum(dim=1)
        if novelty is not None and self.reference is not None:
            columns["unknown"] = self.reference.p_values(novelty) <= self.unknown
        return columns

    def decisions(self, z: Tensor, probabilities: Tensor) -> list[OpenSetDecision]:
        """Return a decision for each sample.

        Args:
            z: (n, d) embeddings.
            probabilities: (n, C) of their classes.
        """
        columns = {}
        if self.reference is not None:
            novelty = self.head.novelty(z)
            p_values = self.reference.p_values(novelty)
            columns["known"] = (p_values > self.unknown).tolist()
            columns["novelty"] = novelty.tolist()
            columns["p_value"] = p_values.tolist()
        if self.sets is not None:
            members = self.sets.of_probabilities(probabilities)
            order = torch.argsort(probabilities, dim=1, descending=True)
            columns["prediction_set"] = []
            for row, best_first in enumerate(order):
                chosen = best_first[members[row, best_first]].tolist()
                names = tuple(self.class_names[column] for column in chosen)
                columns["prediction_set"].append(names)
        decisions = []
        for row in range(len(z)):
            own = {name: values[row] for name, values in columns.items()}
            decisions.append(OpenSetDecision(**own))
        return decisions
