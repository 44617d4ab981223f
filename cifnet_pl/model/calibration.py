"""Accuracy on images that a model has not learned: leave-one-out, on new groups, and under a
distribution shift.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from cifnet_pl.buffer import BufferSamples
from cifnet_pl.heads import Head
from cifnet_pl.heads.confidence import CalibrationSamples, near_duplicates
from cifnet_pl.statistics import find_groups
from cifnet_pl.utilities.growing_tensors import GrowingModule
from cifnet_pl.utilities.text import number_of

Kind = Literal["unknown", "few", "independent", "found", "measured", "given"]
"""What the accuracy on new groups is known from: nothing yet; too few images; images that are
independent, so that both accuracies are the same; groups found among the buffer samples; labelled
images that were not learned; groups that the user gave."""

NOT_KNOWN = -1.0
"""Stands for an accuracy that is not known."""

NEARLY_ALL = 0.9
"""Share of the learned images that the buffer must hold to stand for all of them.

Of fewer, a near-duplicate may be among those that are learned but not in the buffer.
"""

NEW_GROUP_ADVICE = (
    "for higher accuracy on new groups, add five images a class of the new conditions with extend"
    " --more (77 to 81 % in a trial with groceries), and check the predictions of lowest confidence"
    " first (62 % of those were wrong there, 22 % of all)"
)

MIN_IMAGES_PER_CLASS = 20
"""Images of a class, on average, from which the accuracy on new groups is estimated.

With ten of each of 10 to 41 products the estimate was between 4 points too low and 13 too high
(docs/how_to/serve.md).
"""

ADDED_IMAGES = 10
"""Images of each class whose gain in accuracy is estimated."""

MIN_NEW_IMAGES = 20
"""Labelled images from which a model can be recalibrated: 95 % coverage needs nineteen."""


class Calibration(GrowingModule):
    """The samples by which a model is calibrated, and its accuracy on them.

    Buffers:
        kind: () int64, position in :data:`Kind`.
        groups: (n,) int64, equal for buffer samples of one group, in the buffer's order; empty if
            not known.
        accuracy: (2,) float64 leave-one-out accuracy and accuracy on new groups, in percent.
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
        self.accuracy: Tensor = nn.Buffer(
            torch.full((2,), NOT_KNOWN, dtype=torch.float64)
        )
        self.z: Tensor = nn.Buffer(torch.zeros(0, 0))
        self.groups: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.y: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.given_key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.given: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.chosen: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))

    @property
    def known(self) -> Kind:
        """What the accuracy on new groups is known from."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return kinds[int(self.kind)]

    def is_plausible(self) -> bool:
        """Return whether the values are such as this class writes."""
        if self.accuracy.shape != (2,):
            return False
        percent = ((self.accuracy >= 0) & (self.accuracy <= 100)) | (
            self.accuracy == NOT_KNOWN
        )
        return bool(percent.all()) and 0 <= int(self.kind) < len(get_args(Kind))

    @property
    def loo_accuracy(self) -> float | None:
        """Leave-one-out accuracy of the buffer samples in percent, the mean over classes."""
        return self._accuracy(0)

    @property
    def new_group_accuracy(self) -> float | None:
        """Accuracy on new groups in percent, as far as it can be told."""
        return self._accuracy(1)

    def _accuracy(self, position: int) -> float | None:
        percent = float(self.accuracy[position])
        if percent == NOT_KNOWN:
            return None
        return percent

    def _record_accuracy(
        self, kind: Kind, loo_accuracy: float | None, new_group_accuracy: float | None
    ) -> None:
        self.kind.fill_(get_args(Kind).index(kind))
        for position, accuracy in enumerate((loo_accuracy, new_group_accuracy)):
            self.accuracy[position] = NOT_KNOWN if accuracy is None else accuracy

    # ------------------------------------------------------------------ which samples calibrate

    def samples(
        self, head: Head, stored: BufferSamples | None
    ) -> CalibrationSamples | None:
        """Return the samples to calibrate a head by: images not learned, else buffer samples.

        Args:
            head: solved.
            stored: the samples in the buffer; None without any.

        Returns:
            None without any.
        """
        if len(self.y):
            return CalibrationSamples(head, self.z, self.y, learned=False)
        if stored is None:
            return None
        counted = self.counted(stored.y, stored.key)
        samples = CalibrationSamples(head, stored.z, stored.y, counted=counted)
        if len(self.groups) == len(stored.y):
            return samples.grouped(self.groups)
        return samples.grouped(dependent_groups(samples).groups)

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
        few: Tensor = classes.bincount(others.double()) < MIN_IMAGES_PER_CLASS
        return others | few[classes]

    # ------------------------------------------------------------------ groups

    def add_given_groups(self, key: Tensor, groups: Tensor) -> None:
        """Take in groups (n,) that the user gave for images with content hashes ``key`` (n,)."""
        self.given_key = torch.cat([self.given_key, key.to(self.given_key)])
        self.given = torch.cat([self.given, groups.to(self.given)])

    def groups_of(self, head: Head, samples: BufferSamples) -> Tensor | None:
        """Return the group of each learned image (n,), given or found; None if independent.

        Args:
            head: solved, with leave-one-out scores.
            samples: n images.
        """
        if len(self.given):
            return self._groups_given_for(samples.key)
        found = dependent_groups(CalibrationSamples(head, samples.z, samples.y))
        if found.kind == "found":
            return found.groups
        return None

    def _groups_given_for(self, key: Tensor) -> Tensor | None:
        """Return the given group of each buffer sample (n,), and forget those of other images.

        Returns:
            None if none of them has one; a sample without a group stands alone.
        """
        stored = torch.isin(self.given_key, key)
        order = torch.argsort(self.given_key[stored])
        self.given_key = self.given_key[stored][order]
        self.given = self.given[stored][order]
        if not len(self.given):
            return None
        place = torch.searchsorted(self.given_key, key).clamp_max(len(self.given) - 1)
        groups = torch.unique(self.given, return_inverse=True)[1][place]
        alone = len(self.given) + torch.arange(len(key), device=key.device)
        return torch.where(self.given_key[place] == key, groups, alone)

    # ------------------------------------------------------------------ accuracy

    def assess_buffer(
        self, head: Head, stored: BufferSamples, groups: Tensor | None = None
    ) -> CalibrationSamples:
        """Find the groups of buffer samples, select the head's decision rule, measure accuracy.

        Args:
            head: solved, with leave-one-out scores.
            stored: the samples in the buffer.
            groups: (n,) int64 group of each sample, if they were found already.

        Returns:
            The samples in their groups, to calibrate the head by.
        """
        counted = self.counted(stored.y, stored.key)
        given = self._groups_given_for(stored.key)
        samples = CalibrationSamples(head, stored.z, stored.y, counted=counted)
        kind: Kind = "found"
        if given is not None:
            kind = "given"
            groups = given
        elif groups is None:
            kind, groups = dependent_groups(samples)
        samples.calibration_pass.select(groups)
        if groups is None:
            self.groups = torch.arange(len(stored.y), device=stored.y.device)
        else:
            self.groups = groups
        if len(head.classes) == 1:  # every prediction is right
            self._record_accuracy("unknown", None, None)
            return samples.grouped(groups)
        new_group_accuracy = samples.grouped(groups).accuracy()
        loo_accuracy = new_group_accuracy
        if kind != "independent":
            loo_accuracy = samples.accuracy()
        learned = sum(head.class_counts().values())
        if kind in ("found", "independent") and learned < MIN_IMAGES_PER_CLASS * len(
            head.classes
        ):
            kind = "few"
        if kind == "few":
            new_group_accuracy = None
        self._record_accuracy(kind, loo_accuracy, new_group_accuracy)
        return samples.grouped(groups)

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

    def assess_new_images(self, head: Head, learned: Tensor) -> None:
        """Measure a head's accuracy on the labelled images that it has not learned since.

        Args:
            head: solved.
            learned: (n,) int64 content hashes of all images learned.
        """
        new = torch.isin(self.y, head.labels) & ~torch.isin(self.key, learned)
        self.replace_new_images(self.z[new], self.y[new], self.key[new])
        if len(self.y):
            accuracy = CalibrationSamples(
                head, self.z, self.y, learned=False
            ).accuracy()
            self._record_accuracy("measured", self.loo_accuracy, accuracy)

    def forget_buffer(self) -> None:
        """Forget groups and accuracy of the buffer samples, which have changed."""
        self.groups = self.groups[:0]
        self._record_accuracy("unknown", None, None)

    # ------------------------------------------------------------------ messages

    def sentences(self, learned: int, counted: int) -> list[str]:
        """Return sentences on leave-one-out accuracy and accuracy on new groups.

        Args:
            learned: number of images that the model has learned.
            counted: number of buffer samples that calibrate it.

        Returns:
            Nothing where nothing was measured.
        """
        sentences = []
        if self.loo_accuracy is not None:
            sentences.append(self._loo_sentence(learned, counted))
        if self.known == "measured":
            new = number_of(len(self.y), "labelled image")
            sentences.append(
                f"Accuracy on the images for recalibration {self.new_group_accuracy or 0:.1f} %"
                f" ({new})"
            )
        elif self.known == "few":
            sentences.append(
                "Accuracy on new groups not estimated: fewer than"
                f" {MIN_IMAGES_PER_CLASS} images a class"
            )
        elif self.known in ("found", "given"):
            sentences += [self._new_group_sentence(learned), NEW_GROUP_ADVICE]
        return sentences

    def _loo_sentence(self, learned: int, counted: int) -> str:
        count = f"{counted} of {learned} images"
        if self.known == "independent":
            count += "; no groups found"
        return f"Leave-one-out accuracy {self.loo_accuracy:.1f} % ({count})"

    def _new_group_sentence(self, learned: int) -> str:
        basis = "leave-one-group-out"
        if self.known == "given":
            basis += ", groups as given"
        if len(self.groups) < NEARLY_ALL * learned:
            basis += (
                f"; upper bound: {len(self.groups)} of {learned} images in the buffer"
            )
        return f"Estimated accuracy on new groups {self.new_group_accuracy or 0:.1f} % ({basis})"


class DependentGroups(NamedTuple):
    """Groups of samples that are left out together.

    Attributes:
        kind: how they were found.
        groups: (n,) int64 group of each sample; None where each stands alone.
    """

    kind: Kind
    groups: Tensor | None


def dependent_groups(samples: CalibrationSamples) -> DependentGroups:
    """Find the buffer samples that are left out together: groups, else near-duplicates."""
    if not samples.head.leaves_one_out:
        return DependentGroups("unknown", near_duplicates(samples.z, samples.y))
    found = find_groups(samples.z, samples.columns, samples.left_out)
    groups = found.groups
    if groups is None:
        groups = near_duplicates(samples.z, samples.y)
    return DependentGroups(found.kind, groups)


def accuracy_margin(samples: CalibrationSamples) -> float:
    """Return half of the 95 % interval around the accuracy, in percentage points.

    It is the interval for as many new images of as many groups: the variances of those and of the
    estimate are added. Errors within a group are taken to be fully correlated.
    """
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    correct = (scores.argmax(dim=1) == samples.columns)[known].double()
    columns = samples.columns[known]
    if not samples.learned:  # each image counts the same, not each class
        columns = torch.zeros_like(columns)
    count = columns.bincount()
    class_accuracy = columns.bincount(correct) / count
    class_weight = count * int((count > 0).sum())
    deviation = (correct - class_accuracy[columns]) / class_weight[columns]
    if samples.groups is None:
        groups = torch.arange(len(deviation), device=deviation.device)
    else:
        groups = torch.unique(samples.groups[known], return_inverse=True)[1]
    variance = groups.bincount(deviation).square().sum()
    return 196 * float((2 * variance).sqrt())


class Interval(NamedTuple):
    """A 95 % interval, in percent or in percentage points."""

    low: float
    high: float


def gain_of_more_images(samples: CalibrationSamples | None) -> Interval | None:
    """Estimate how many points ten more images of each class would bring on new groups.

    What the last ten brought is measured: a head learns all buffer samples but ten of each class,
    drawn at random. Both heads predict the samples that it learned, each without its group. Errors
    are taken to fall with the square root of the number of images n, so that the next ten bring
    ``(n^-½ − (n + 10)^-½) / ((n − 10)^-½ − n^-½)`` of that.

    Args:
        samples: buffer samples by which a model is calibrated, nearly all that it learned.

    Returns:
        95 % interval over images of the mean over the classes with enough of them; None where most
        have too few.
    """
    if samples is None or not samples.learned:
        return None
    head = samples.head
    if not head.leaves_one_out or head.uses_buffer:
        return None
    y = samples.columns
    count = y.bincount(minlength=len(head.classes))
    enough = count >= MIN_IMAGES_PER_CLASS
    learned = sum(head.class_counts().values())
    if len(y) < NEARLY_ALL * learned or 2 * int(enough.sum()) < len(count):
        return None
    rows = _all_but_the_last(y, count, enough)
    fewer = head.fresh()
    fewer.begin_task(head.classes, (count - ADDED_IMAGES * enough).tolist())
    z = samples.z[rows]
    labels = samples.y[rows]
    groups = None
    if samples.groups is not None:
        groups = samples.groups[rows]
    fewer.observe(z, labels)
    fewer.solve()
    fewer.select_rule(z, labels, groups)
    scores_before = fewer.leave_one_out(z, labels, groups)
    scores_after = samples.scores()[rows]
    known = scores_before.isfinite().all(dim=1) & scores_after.isfinite().all(dim=1)
    columns = y[rows][known]
    before = (scores_before.argmax(dim=1)[known] == columns).double()
    after = (scores_after.argmax(dim=1)[known] == columns).double()
    means = []
    variances = []
    for column in enough.nonzero().flatten().tolist():
        gains = (after - before)[columns == column]
        if len(gains) > 1:
            means.append(gains.mean())
            variances.append(gains.var() / len(gains))
    if not means:
        return None
    mean = torch.stack(means).mean()
    error = torch.stack(variances).sum().sqrt() / len(means)
    n = float(count[enough].double().mean())
    fall_of_last = (n - ADDED_IMAGES) ** -0.5 - n**-0.5
    fall_of_next = n**-0.5 - (n + ADDED_IMAGES) ** -0.5
    points = 100 * fall_of_next / fall_of_last
    return Interval(
        float((mean - 1.96 * error) * points), float((mean + 1.96 * error) * points)
    )


def _all_but_the_last(y: Tensor, count: Tensor, enough: Tensor) -> Tensor:
    """Return the rows of all samples but ten of each class that has enough, drawn at random.

    Args:
        y: (n,) column of each sample.
        count: (C,) samples of each class.
        enough: (C,) bool, whether that is enough.
    """
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(
        y.device
    )
    order = order[y[order].argsort(stable=True)]
    first = count.cumsum(0) - count
    rank = torch.arange(len(y), device=y.device) - first[y[order]]
    return order[(rank >= ADDED_IMAGES) | ~enough[y[order]]]
