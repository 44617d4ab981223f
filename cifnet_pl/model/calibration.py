"""What is expected on new days: accuracy without each image, without its group, and elsewhere.

Groups are those that the user gave, or found among the buffer samples
(:func:`~cifnet_pl.statistics.find_groups`). The probabilities, the prediction sets and the
threshold for unknowns follow from the scores without each sample's group
(:mod:`cifnet_pl.heads.probabilities`).
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.buffer import BufferSamples
from cifnet_pl.heads import Head
from cifnet_pl.heads.probabilities import CalibrationSamples, calibrate
from cifnet_pl.model.unknowns import UNKNOWN_SHARE
from cifnet_pl.statistics import find_groups
from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows
from cifnet_pl.utilities.text import number_of

Kind = Literal[
    "unknown", "few", "independent", "found", "measured", "given", "one_group"
]
"""Source of the accuracy on new groups: nothing yet; too few images; images that are
independent, so that both accuracies are the same; groups found among the buffer samples; labelled
images that were not learned; groups that the user gave; none, as without its group nothing is known
of most classes."""

MIN_IMAGES_PER_CLASS = 20
"""Buffer samples of a class, on average, from which the accuracy on new groups is estimated.

With ten of each of 10 to 41 products the estimate was between 4 points too low and 13 too high.
"""

MIN_NEW_IMAGES = round(1 / UNKNOWN_SHARE)
"""Labelled images from which a model can be recalibrated.

With fewer, no image can be called unknown."""


class Calibration(GrowingModule):
    """The samples by which a model is calibrated, and its accuracy on them.

    Buffers:
        kind: () int64, position in :data:`Kind`.
        groups: (n,) int64, equal for buffer samples of one group, in the buffer's order; empty if
            not known.
        accuracy: (2,) float64 leave-one-out accuracy and accuracy on new groups, in percent;
            negative where not known.
        interval: (2, 2) float64 95 % interval of each, lower and upper end.
        given_key: (l,) int64 content hashes of learned images of which the user gave the group.
        given: (l,) int64 their groups.
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
        self.groups = no_rows(torch.int64)
        self.y = no_rows(torch.int64)
        self.key = no_rows(torch.int64)
        self.given_key = no_rows(torch.int64)
        self.given = no_rows(torch.int64)
        self.chosen = no_rows(torch.int64)

    @property
    def estimate_kind(self) -> Kind:
        """How the accuracy on new groups was estimated."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return kinds[int(self.kind)]

    @property
    def loo(self) -> Estimate | None:
        """Leave-one-out accuracy of the buffer samples, the mean over classes."""
        return self._estimate(0)

    @property
    def new_groups(self) -> Estimate | None:
        """Accuracy on new groups, as far as it can be told."""
        return self._estimate(1)

    def describe(self) -> dict[str, Any]:
        """Return both accuracies and their intervals in percent, by their names in files."""
        described: dict[str, Any] = {}
        estimates = {"loo_accuracy": self.loo, "new_group_accuracy": self.new_groups}
        for name, estimate in estimates.items():
            described[name] = estimate and estimate.accuracy
            described[f"{name}_interval"] = estimate and estimate.interval
        return described

    def _estimate(self, position: int) -> Estimate | None:
        accuracy = float(self.accuracy[position])
        if accuracy < 0:
            return None
        return Estimate(accuracy, Interval(*self.interval[position].tolist()))

    def _record(self, kind: Kind, loo: Estimate | None, new: Estimate | None) -> None:
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

    def add_given_groups(self, key: Tensor, groups: Tensor) -> None:
        """Take in groups (n,) that the user gave for images with content hashes ``key`` (n,)."""
        self.given_key = torch.cat([self.given_key, key.to(self.given_key)])
        self.given = torch.cat([self.given, groups.to(self.given)])

    def _groups_given_for(self, key: Tensor) -> Tensor | None:
        """Return the given group of each buffer sample (n,), and forget those of other images.

        Returns:
            None if none of them has one; a sample without a group stands alone.
        """
        stored = torch.isin(self.given_key, key)
        order = torch.argsort(self.given_key[stored], stable=True)
        self.given_key = self.given_key[stored][order]
        self.given = self.given[stored][order]
        if not len(self.given):
            return None
        # Of several groups of one image, the first is taken.
        images = reversed(self.given_key.tolist())
        groups = reversed(self.given.tolist())
        group_of = dict(zip(images, groups, strict=True))
        # An image without a group has its own hash for one.
        return key.new_tensor([group_of.get(image, image) for image in key.tolist()])

    # ------------------------------------------------------------------ accuracy

    def calibrate_by_buffer(self, head: Head, stored: BufferSamples) -> None:
        """Find the groups of buffer samples, calibrate the head by them, and measure accuracy.

        Args:
            head: solved, with leave-one-out scores.
            stored: the samples in the buffer.
        """
        counted = self.counted(stored.y, stored.key)
        samples = CalibrationSamples(head, stored.z, stored.y, counted=counted)
        grouped = samples
        kind: Kind = "independent"
        clusters = self._groups_given_for(stored.key)
        if clusters is not None:
            kind = "given"
        else:
            found = find_groups(samples.z, samples.columns, samples.rules[0])
            clusters = found.clusters
            if found.dependent:
                kind = "found"
        if kind != "independent":
            grouped = samples.grouped(clusters)
        self.groups = grouped.groups
        calibrate(grouped)
        few = MIN_IMAGES_PER_CLASS * len(head.classes)
        if kind != "given" and len(stored.y) < few:
            kind = "few"
        loo = estimated(samples)
        new_groups = estimated(grouped)
        known_classes = len(torch.unique(grouped.known_scores().columns))
        if len(head.classes) == 1:  # every prediction is right
            self._record("unknown", None, None)
        elif kind == "few":
            self._record(kind, loo, None)
        elif kind == "independent":
            if loo is not None:
                # The interval that as few groups as there may be would show: where hardly any
                # sample is predicted wrongly, errors do not tell whether images come in groups.
                groups = len(torch.unique(clusters))
                expected = forecast(loo.accuracy / 100, groups)
                new_groups = Estimate(loo.accuracy, expected)
            self._record(kind, loo, new_groups)
        elif 2 * known_classes < len(head.classes):
            self._record("one_group", loo, None)
        else:
            self._record(kind, loo, widened(new_groups, loo))

    def keep_learned(self, learned: Tensor) -> None:
        """Forget all images that a model no longer knows.

        Args:
            learned: (n,) int64 content hashes of those that it knows.
        """
        self.chosen = self.chosen[torch.isin(self.chosen, learned)]
        known = torch.isin(self.given_key, learned)
        self.given_key = self.given_key[known]
        self.given = self.given[known]

    def replace_new_images(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Replace the labelled images that are not learned.

        Args:
            z: (m, d) embeddings.
            y: (m,) labels.
            key: (m,) int64 content hashes.
        """
        self.z = z.float()
        self.y = y
        self.key = key

    def assess_new_images(
        self, head: Head, learned: Tensor, fits_temperature: bool
    ) -> None:
        """Measure a head's accuracy on the labelled images that it has not learned since.

        Args:
            head: solved.
            learned: (n,) int64 content hashes of all images learned.
            fits_temperature: whether the head is calibrated by the labelled images.
        """
        new = torch.isin(self.y, head.labels) & ~torch.isin(self.key, learned)
        self.replace_new_images(self.z[new], self.y[new], self.key[new])
        if len(self.y):
            new_images = CalibrationSamples(head, self.z, self.y, learned=False)
            self._record("measured", self.loo, estimated(new_images))
            if fits_temperature:
                calibrate(new_images)

    def forget_buffer(self) -> None:
        """Forget groups and accuracy of the buffer samples, which have changed."""
        self.groups = self.groups[:0]
        self._record("unknown", None, None)

    # ------------------------------------------------------------------ messages

    def sentences(self, learned: int, counted: int) -> list[str]:
        """Return a line each on leave-one-out accuracy and accuracy on new groups.

        Args:
            learned: number of images that the model has learned.
            counted: number of buffer samples that calibrate it.

        Returns:
            Nothing where nothing was measured.
        """
        sentences = []
        kind = self.estimate_kind
        if self.loo is not None:
            facts = [f"{counted} of {learned} images"]
            if kind == "independent":
                facts.append("no groups found")
            sentences.append(f"Leave-one-out accuracy {self.loo.sentence(*facts)}")
        if self.new_groups is not None and kind == "measured":
            images = number_of(len(self.y), "labelled image")
            sentence = self.new_groups.sentence(images)
            sentences.append(f"Accuracy on the images for recalibration {sentence}")
        elif self.new_groups is not None and kind in ("found", "given"):
            facts = []
            if kind == "given":
                facts.append("groups as given")
            if len(self.groups) < learned:  # others of a group may be learned
                facts.append("upper bound")
            sentence = self.new_groups.sentence(*facts)
            sentences.append(f"Estimated accuracy on new groups {sentence}")
        elif kind == "few":
            sentence = f"Accuracy on new groups not estimated: fewer than {MIN_IMAGES_PER_CLASS}"
            if len(self.groups) < learned:
                sentence += (
                    " buffer samples a class: raise --model.buffer.init_args.capacity"
                )
            else:
                sentence += " images a class"
            sentences.append(sentence)
        elif kind == "one_group":
            sentences.append(
                "Accuracy on new groups not estimated: most classes have images of one group only;"
                " add images of other days or places"
            )
        return sentences


class Interval(NamedTuple):
    """A 95 % interval, in percent or in percentage points."""

    low: float
    high: float


def interval_text(interval: Interval | None, *facts: str) -> str:
    """Return an interval and further facts in parentheses, to follow an estimate.

    Args:
        interval: in percent, or None.
        facts: what it rests on.

    Example:
        >>> interval_text(Interval(91.7, 96.2), "500 of 1438 images")
        ' (92 to 96; 500 of 1438 images)'
    """
    parts = list(facts)
    if interval is not None:
        parts.insert(0, f"{interval.low:.0f} to {interval.high:.0f}")
    return f" ({'; '.join(parts)})"


class Estimate(NamedTuple):
    """An accuracy and its 95 % interval, in percent."""

    accuracy: float
    interval: Interval

    def sentence(self, *facts: str) -> str:
        """Return the accuracy, its interval, and further facts in parentheses."""
        return f"{self.accuracy:.1f} %{interval_text(self.interval, *facts)}"


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
    if samples.learned:
        count = columns.bincount()
        class_accuracy = columns.bincount(correct)[count > 0] / count[count > 0]
        share = float(class_accuracy.mean())
    groups = len(torch.unique(samples.groups[known]))
    return Estimate(100 * share, forecast(share, groups))


def forecast(share: float, groups: int) -> Interval:
    """Return the 95 % prediction interval of the accuracy on the same number of new groups.

    The accuracy on new groups is not known, and what groups show of it varies: quantiles of the
    beta-binomial distribution, from Jeffreys' prior.

    Args:
        share: of predictions that are right, 0 to 1.
        groups: number of groups that they are of.
    """
    # scipy.stats has this distribution, but takes 0.7 s to import.
    from scipy.special import betaln

    hits = share * groups + 0.5
    misses = (1 - share) * groups + 0.5
    right = np.arange(groups + 1)
    wrong = groups - right
    log_binomial = -betaln(right + 1, wrong + 1) - math.log(groups + 1)
    log_posterior = betaln(right + hits, wrong + misses)
    log_prior = betaln(hits, misses)
    probabilities = np.exp(log_binomial + log_posterior - log_prior)
    cumulative = probabilities.cumsum()
    low, high = np.searchsorted(cumulative, [0.025, 0.975]).tolist()
    return Interval(100 * low / groups, 100 * high / groups)


def widened(estimate: Estimate | None, loo: Estimate | None) -> Estimate | None:
    """Widen the interval of an accuracy on new groups by what new groups may differ more.

    That is taken to be as much as the groups that were learned differ from one another: the gap to
    the leave-one-out accuracy. To add the squares of both is a rule of thumb.

    Args:
        estimate: the accuracy without each sample's group.
        loo: the accuracy without each sample.
    """
    if estimate is None or loo is None:
        return estimate
    accuracy, interval = estimate
    gap = max(0.0, loo.accuracy - accuracy)
    below = math.hypot(accuracy - interval.low, gap)
    above = math.hypot(interval.high - accuracy, gap)
    low = max(0.0, accuracy - below)
    high = min(100.0, accuracy + above)
    return Estimate(accuracy, Interval(low, high))
