"""How well a model does on images that it has not learned: those of these days, of another day, and
of a new place.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from cifnet_pl.heads import Head
from cifnet_pl.heads.confidence import CalibrationSamples, near_duplicates
from cifnet_pl.statistics import find_groups
from cifnet_pl.utilities.growing_tensors import GrowingModule
from cifnet_pl.utilities.text import number_of

Kind = Literal["unknown", "few", "independent", "found", "measured", "given"]
"""What is known of images of another day: nothing yet; too few images to tell; that images are
independent, so that another day is like these; the groups of images, by which it is estimated;
labelled images of a new place; or groups that the user gave."""

NOT_KNOWN = -1.0
"""Stands for an accuracy that is not known."""

ALL = 0.9
"""Share of the learned images from which stored ones are taken for all: of others a twin may be
among the learned.
"""

HELP = (
    "what helps most on another day: images of the new place, five a class (extend --more; 77 to 81"
    " % right in a trial with groceries), and a look at the least sure answers first (62 % of these"
    " were wrong there, of all 22 %)"
)

ENOUGH = 20
"""Images of a class, on average, from which another day is estimated.

With ten of each of 10 to 41 products the estimate was between 4 points too low and 13 too high
(docs/serving.md).
"""

TEN = 10
"""Images of each class whose worth is estimated."""

FEWEST_NEW = 20
"""Labelled images of a new place from which a model can be calibrated: sets of 95 % need
nineteen.
"""


class Calibration(GrowingModule):
    """The samples by which a model is calibrated, and how many of them it names right.

    Buffers:
        kind: () int64, position in :data:`Kind`.
        groups: (n,) int64, equal for stored samples of one group, in the buffer's order; empty if
            not known.
        accuracy: (2,) float64, percent of images of these days and of another day that are named
            right.
        given_key, given: (l,) int64 content hashes of learned images and the groups that the user
            gave for them.
        chosen: (c,) int64 content hashes of learned images that were chosen among others, see
            :meth:`choose`.
        z, y, key: (m, d) float32 embeddings, (m,) int64 labels and (m,) int64 content hashes of
            images of a new place, which are not learned; with any of them, the stored samples
            calibrate nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kind: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.accuracy: Tensor = nn.Buffer(torch.full((2,), NOT_KNOWN, dtype=torch.float64))
        self.z: Tensor = nn.Buffer(torch.zeros(0, 0))
        self.groups: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.y: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.given_key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.given: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.chosen: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))

    @property
    def known(self) -> Kind:
        """What is known of images of another day."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return kinds[int(self.kind)]

    def is_plausible(self) -> bool:
        """Return whether the numbers are such as this class writes."""
        percent = ((self.accuracy >= 0) & (self.accuracy <= 100)) | (self.accuracy == NOT_KNOWN)
        return (
            self.accuracy.shape == (2,)
            and bool(percent.all())
            and 0 <= int(self.kind) < len(get_args(Kind))
        )

    @property
    def loo_accuracy(self) -> float | None:
        """Percent of stored images that are named right, each judged without itself: the mean over
        classes.
        """
        return self._accuracy(0)

    @property
    def new_group_accuracy(self) -> float | None:
        """Percent of images of another day that are named right, as far as that can be told."""
        return self._accuracy(1)

    def _accuracy(self, i: int) -> float | None:
        percent = float(self.accuracy[i])
        if percent == NOT_KNOWN:
            return None
        return percent

    def samples(
        self, head: Head, stored: tuple[Tensor, Tensor, Tensor] | None
    ) -> CalibrationSamples | None:
        """Return the samples to calibrate a head by: images of a new place, else stored ones; None
        without any.

        Args:
            head: solved.
            stored: embeddings (n, d), labels (n,) and content hashes (n,) of the buffer.
        """
        if len(self.y):
            return CalibrationSamples(head, self.z, self.y, learned=False)
        if stored is None:
            return None
        z, y, key = stored
        samples = CalibrationSamples(head, z, y, counted=self.counted(y, key))
        known = len(self.groups) == len(samples.y)
        return samples.grouped(self.groups if known else dependent_groups(samples)[1])

    def choose(self, key: Tensor) -> None:
        """Note images (n,), by content hash, that someone chose to be learned, and left others
        undecided.

        Who is shown the most doubtful images first learns those: how many of them are named right,
            and how surely, says
        nothing of the images of another day. They count for nothing here (:meth:`counted`), until
        those others are learned, too: with no ``key`` at all every image counts again.
        """
        if len(key):
            self.chosen = torch.unique(torch.cat([self.chosen, key.to(self.chosen)]))
        else:
            self.chosen = self.chosen[:0]

    def counted(self, y: Tensor, key: Tensor) -> Tensor:
        """Return which stored images calibrate a model: (n,) bool.

        Chosen ones do not, but where their class has fewer than ``ENOUGH`` others: of so few
        nothing could be said.

        Args:
            y: (n,) labels.
            key: (n,) int64 content hashes.
        """
        others = ~torch.isin(key, self.chosen)
        numbers = torch.unique(y, return_inverse=True)[1]
        few: Tensor = numbers.bincount(others.double()) < ENOUGH
        return others | few[numbers]

    def give(self, key: Tensor, given: Tensor) -> None:
        """Take in groups (n,) that the user gave for images with content hashes ``key`` (n,)."""
        self.given_key = torch.cat([self.given_key, key.to(self.given_key)])
        self.given = torch.cat([self.given, given.to(self.given)])

    def groups_of(self, head: Head, z: Tensor, y: Tensor, key: Tensor) -> Tensor | None:
        """Return the number of each learned image's group (n,), given or found; None if images are
        independent.

        Args:
            head, z, y, key: as for :meth:`find`.
        """
        if len(self.given):
            return self._given_groups(key)
        kind, groups = dependent_groups(CalibrationSamples(head, z, y))
        if kind == "found":
            return groups
        return None

    def _given_groups(self, key: Tensor) -> Tensor | None:
        """Return the number of each stored image's group (n,), or None if none was given; forget
        those of others.
        """
        stored = torch.isin(self.given_key, key)
        order = torch.argsort(self.given_key[stored])
        self.given_key = self.given_key[stored][order]
        self.given = self.given[stored][order]
        if not len(self.given):
            return None
        place = torch.searchsorted(self.given_key, key).clamp_max(len(self.given) - 1)
        numbers = torch.unique(self.given, return_inverse=True)[1][place]
        alone = len(self.given) + torch.arange(len(key), device=key.device)
        return torch.where(self.given_key[place] == key, numbers, alone)

    def find(
        self, head: Head, z: Tensor, y: Tensor, key: Tensor, groups: Tensor | None = None
    ) -> None:
        """Find the groups of stored samples, let the head decide how to score, and count what it
        names right.

        Args:
            head: solved, with leave-one-out scores.
            z: (n, d) embeddings.
            y: (n,) labels.
            key: (n,) int64 content hashes.
            groups: (n,) int64 number of each one's group, if they were found already.
        """
        counted = self.counted(y, key)
        given = self._given_groups(key)
        samples = CalibrationSamples(head, z, y, counted=counted)
        kind: Kind = "found"
        if given is not None:
            kind = "given"
            groups = given
        elif groups is None:
            kind, groups = dependent_groups(samples)
        if head.decides:
            head.decide(z, y, groups)
            samples = CalibrationSamples(head, z, y, counted=counted)
        if groups is None:
            self.groups = torch.arange(len(y), device=y.device)
        else:
            self.groups = groups
        if len(head.classes) == 1:  # every image is named right
            self._note("unknown", None, None)
            return
        left_out = samples.grouped(groups).accuracy()
        if kind == "independent":
            loo_accuracy = left_out
        else:
            loo_accuracy = samples.accuracy()
        learned = sum(head.class_counts().values())
        if kind in ("found", "independent") and learned < ENOUGH * len(head.classes):
            kind = "few"
        self._note(kind, loo_accuracy, None if kind == "few" else left_out)

    def take(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Replace the images of a new place: embeddings (n, d), labels (n,) and content hashes
        (n,).
        """
        self.z = z.float()
        self.y = y
        self.key = key

    def measure(self, head: Head, learned: Tensor) -> None:
        """Count what a head names right of the images of a new place, without those that it has
        learned since.

        Args:
            head: solved.
            learned: (n,) int64 content hashes of all images learned.
        """
        new = torch.isin(self.y, head.labels) & ~torch.isin(self.key, learned)
        self.take(self.z[new], self.y[new], self.key[new])
        if len(self.y):
            right = CalibrationSamples(head, self.z, self.y, learned=False).accuracy()
            self._note("measured", self.loo_accuracy, right)

    def forget_stored(self) -> None:
        """Forget what is said of stored samples, which have changed."""
        self.groups = self.groups[:0]
        self._note("unknown", None, None)

    @property
    def where(self) -> str:
        """Say of which images the promises are, to follow "images"."""
        if self.known in ("found", "given"):
            return "of these days, and of another day as far as can be told"
        if self.known == "measured":
            return "of the new place"
        return "like those that were learned"

    def sentences(self, learned: int, counted: int) -> list[str]:
        """Say how many images of these days and of another day are named right, and what helps most
        there.

        Args:
            learned: number of images that the model has learned.
            counted: number of stored images that calibrate it.

        Returns:
            Nothing where nothing was measured.
        """
        here = f"{self.loo_accuracy or 0:.1f} %"
        there = f"{self.new_group_accuracy or 0:.1f} %"
        part = f" of the {counted} stored images, on average over classes,"
        first = f"images of these days: {here}{part} are named right, each judged without itself"
        if self.known == "measured":
            new = number_of(len(self.y), "labelled image")
            last = (
                f"images of the new place: {there} of the {new} that calibrate the model are named"
                " right"
            )
            if self.loo_accuracy is not None:
                return [first, last]
            return [last]
        if self.loo_accuracy is None:
            return []
        if self.known == "few":
            return [
                first,
                f"images of another day: too few images to say (fewer than {ENOUGH} a class)",
            ]
        if self.known == "independent":
            why = (
                "no images of a class were found that vouch for each other, so one number serves"
                " for both"
            )
            why += (
                ""
                if len(self.groups) >= ALL * learned
                else f", as far as these of {learned} can tell"
            )
            return [
                f"images of these days and of another day (estimated): {here}{part} are named"
                f" right; {why}"
            ]
        if len(self.groups) >= ALL * learned:
            hopeful = ""
        else:
            hopeful = f" (too hopeful: not all {learned} images are stored)"
        if self.known == "given":
            group = "group, as given"
        else:
            group = "group"
        second = (
            f"images of another day (estimated): {there}, each judged without all images of its"
            f" {group}{hopeful}"
        )
        return [first, second, HELP]

    def _note(
        self, kind: Kind, loo_accuracy: float | None, new_group_accuracy: float | None
    ) -> None:
        self.kind.fill_(get_args(Kind).index(kind))
        self.accuracy.copy_(
            torch.tensor(
                [NOT_KNOWN if a is None else a for a in (loo_accuracy, new_group_accuracy)]
            )
        )


def dependent_groups(samples: CalibrationSamples) -> tuple[Kind, Tensor | None]:
    """Find the stored samples that are left out together: those of one group, else near-duplicates.

    Returns:
        How they were found, and the number of each one's group (n,) int64; None where each stands
        alone.
    """
    if not samples.head.leaves_one_out:
        return "unknown", near_duplicates(samples.z, samples.y)
    found = find_groups(samples.z, samples.columns, samples.left_out)
    return found.kind, (
        near_duplicates(samples.z, samples.y) if found.groups is None else found.groups
    )


def margin(samples: CalibrationSamples) -> float:
    """Return half of the interval of 95 % around the accuracy, in points.

    It is that of as many new images, from as many groups: the variance of these and of the estimate
        are added.
    Images of an group are right together.
    """
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    right = (scores.argmax(dim=1) == samples.columns)[known].double()
    columns = samples.columns[known]
    if not samples.learned:  # each image counts the same, not each class
        columns = torch.zeros_like(columns)
    count = columns.bincount()
    off = (
        (right - (columns.bincount(right) / count)[columns])
        / count[columns]
        / int((count > 0).sum())
    )
    group = torch.arange(len(off), device=off.device)
    if samples.groups is not None:
        group = torch.unique(samples.groups[known], return_inverse=True)[1]
    return 196 * float((2 * group.bincount(off).square().sum()).sqrt())


def ten_more(samples: CalibrationSamples | None) -> tuple[float, float] | None:
    """Estimate how many points ten more images of each class would bring on another day.

    What the last ten brought is measured: a head learns all stored images but ten of each class,
        drawn at random, and
    both answer for those that it learned, each without its group. Errors are taken to fall with the
    square root of the number of images n, so that the next ten bring ``(n^-½ − (n + 10)^-½) / ((n −
    10)^-½ − n^-½)`` of that.

    Args:
        samples: stored images by which a model is calibrated, nearly all that it learned.

    Returns:
        Interval of 95 % over images, the mean over the classes with enough of them; None where most
        have too few.
    """
    if (
        samples is None
        or not samples.learned
        or not samples.head.leaves_one_out
        or samples.head.uses_buffer
    ):
        return None
    y = samples.columns
    head = samples.head
    count = y.bincount(minlength=len(head.classes))
    enough = count >= ENOUGH
    if len(y) < ALL * sum(head.class_counts().values()) or 2 * int(enough.sum()) < len(count):
        return None
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
    order = order[y[order].argsort(stable=True)]
    place = torch.arange(len(y), device=y.device) - (count.cumsum(0) - count)[y[order]]
    rows = order[
        (place >= TEN) | ~enough[y[order]]
    ]  # all but the first ten of each class that has enough
    z = samples.z[rows]
    labels = samples.y[rows]
    groups = None if samples.groups is None else samples.groups[rows]
    fewer = head.fresh()
    fewer.begin_task(head.classes, (count - TEN * enough).tolist())
    fewer.observe(z, labels)
    fewer.solve()
    fewer.decide(z, labels, groups)
    scores = samples.scores()[rows], fewer.leave_one_out(z, labels, groups)
    known = torch.stack(scores).isfinite().all(dim=2).all(dim=0)
    before, after = (
        (each.argmax(dim=1) == y[rows])[known].double() for each in (scores[1], scores[0])
    )
    of_class = [
        (after - before)[y[rows][known] == column] for column in enough.nonzero().flatten().tolist()
    ]
    of_class = [gains for gains in of_class if len(gains) > 1]
    if not of_class:
        return None
    brought = torch.stack([one.mean() for one in of_class]).mean()
    error = torch.stack([one.var() / len(one) for one in of_class]).sum().sqrt() / len(of_class)
    n = float(count[enough].double().mean())
    next_ones = 100 * (n**-0.5 - (n + TEN) ** -0.5) / ((n - TEN) ** -0.5 - n**-0.5)
    low, high = ((brought + sign * error) * next_ones for sign in (-1.96, 1.96))
    return float(low), float(high)
