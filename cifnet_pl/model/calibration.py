"""How well a model does on photos that it has not learned: those of these days, of another day, and of a new place."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from cifnet_pl.heads import Head
from cifnet_pl.heads.confidence import CalibrationSamples, near_copies
from cifnet_pl.statistics import find_occasions
from cifnet_pl.utilities.growing_tensors import GrowingModule
from cifnet_pl.utilities.text import number_of

Kind = Literal["unknown", "few", "independent", "found", "measured", "given"]
"""What is known of photos of another day: nothing yet; too few photos to tell; that photos are independent, so that
another day is like these; the occasions of photos, by which it is estimated; labelled photos of a new place; or
occasions that the user gave."""

NOT_KNOWN = -1.0
"""Stands for an accuracy that is not known."""

ALL = 0.9
"""Share of the learned photos from which stored ones are taken for all: of others a twin may be among the learned."""

HELP = (
    "what helps most on another day: photos of the new place, five a class (extend --more; 77 to 81 % right in a trial "
    "with groceries), and a look at the least sure answers first (62 % of these were wrong there, of all 22 %)"
)

ENOUGH = 20
"""Photos of a class, on average, from which another day is estimated.

With ten of each of 10 to 41 products the estimate was between 4 points too low and 13 too high (docs/serving.md).
"""

TEN = 10
"""Photos of each class whose worth is estimated."""

FEWEST_NEW = 20
"""Labelled photos of a new place from which a model can be calibrated: sets of 95 % need nineteen."""


class Calibration(GrowingModule):
    """The samples by which a model is calibrated, and how many of them it names right.

    Buffers:
        kind: () int64, position in :data:`Kind`.
        groups: (n,) int64, equal for stored samples of one occasion, in the buffer's order; empty if not known.
        accuracy: (2,) float64, percent of photos of these days and of another day that are named right.
        given_key, given: (l,) int64 content hashes of learned photos and the occasions that the user gave for them.
        chosen: (c,) int64 content hashes of learned photos that were chosen among others, see :meth:`choose`.
        z, y, key: (m, d) float32 embeddings, (m,) int64 labels and (m,) int64 content hashes of photos of a new place,
            which are not learned; with any of them, the stored samples calibrate nothing.
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
        """What is known of photos of another day."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return kinds[int(self.kind)]

    def is_plausible(self) -> bool:
        """Return whether the numbers are such as this class writes."""
        percent = ((self.accuracy >= 0) & (self.accuracy <= 100)) | (self.accuracy == NOT_KNOWN)
        return self.accuracy.shape == (2,) and bool(percent.all()) and 0 <= int(self.kind) < len(get_args(Kind))

    @property
    def these_days(self) -> float | None:
        """Percent of stored photos that are named right, each judged without itself: the mean over classes."""
        return self._accuracy(0)

    @property
    def another_day(self) -> float | None:
        """Percent of photos of another day that are named right, as far as that can be told."""
        return self._accuracy(1)

    def _accuracy(self, i: int) -> float | None:
        percent = float(self.accuracy[i])
        return None if percent == NOT_KNOWN else percent

    def samples(self, head: Head, stored: tuple[Tensor, Tensor, Tensor] | None) -> CalibrationSamples | None:
        """Return the samples to calibrate a head by: photos of a new place, else stored ones; None without any.

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
        return samples.grouped(self.groups if known else occasions(samples)[1])

    def choose(self, key: Tensor) -> None:
        """Note photos (n,), by content hash, that someone chose to be learned, and left others undecided.

        Who is shown the most doubtful photos first learns those: how many of them are named right, and how surely, says
        nothing of the photos of another day. They count for nothing here (:meth:`counted`), until those others are
        learned, too: with no ``key`` at all every photo counts again.
        """
        self.chosen = torch.unique(torch.cat([self.chosen, key.to(self.chosen)])) if len(key) else self.chosen[:0]

    def counted(self, y: Tensor, key: Tensor) -> Tensor:
        """Return which stored photos calibrate a model: (n,) bool.

        Chosen ones do not, but where their class has fewer than ``ENOUGH`` others: of so few nothing could be said.

        Args:
            y: (n,) labels.
            key: (n,) int64 content hashes.
        """
        others, numbers = ~torch.isin(key, self.chosen), torch.unique(y, return_inverse=True)[1]
        few: Tensor = numbers.bincount(others.double()) < ENOUGH
        return others | few[numbers]

    def give(self, key: Tensor, given: Tensor) -> None:
        """Take in occasions (n,) that the user gave for photos with content hashes ``key`` (n,)."""
        self.given_key = torch.cat([self.given_key, key.to(self.given_key)])
        self.given = torch.cat([self.given, given.to(self.given)])

    def occasions_of(self, head: Head, z: Tensor, y: Tensor, key: Tensor) -> Tensor | None:
        """Return the number of each learned photo's occasion (n,), given or found; None if photos are independent.

        Args:
            head, z, y, key: as for :meth:`find`.
        """
        if len(self.given):
            return self._given_groups(key)
        kind, groups = occasions(CalibrationSamples(head, z, y))
        return groups if kind == "found" else None

    def _given_groups(self, key: Tensor) -> Tensor | None:
        """Return the number of each stored photo's occasion (n,), or None if none was given; forget those of others."""
        stored = torch.isin(self.given_key, key)
        order = torch.argsort(self.given_key[stored])
        self.given_key, self.given = self.given_key[stored][order], self.given[stored][order]
        if not len(self.given):
            return None
        place = torch.searchsorted(self.given_key, key).clamp_max(len(self.given) - 1)
        numbers = torch.unique(self.given, return_inverse=True)[1][place]
        alone = len(self.given) + torch.arange(len(key), device=key.device)
        return torch.where(self.given_key[place] == key, numbers, alone)

    def find(self, head: Head, z: Tensor, y: Tensor, key: Tensor, groups: Tensor | None = None) -> None:
        """Find the occasions of stored samples, let the head decide how to score, and count what it names right.

        Args:
            head: solved, with leave-one-out scores.
            z: (n, d) embeddings.
            y: (n,) labels.
            key: (n,) int64 content hashes.
            groups: (n,) int64 number of each one's occasion, if they were found already.
        """
        counted, given = self.counted(y, key), self._given_groups(key)
        samples = CalibrationSamples(head, z, y, counted=counted)
        kind: Kind = "found"
        if given is not None:
            kind, groups = "given", given
        elif groups is None:
            kind, groups = occasions(samples)
        if head.decides:
            head.decide(z, y, groups)
            samples = CalibrationSamples(head, z, y, counted=counted)
        self.groups = torch.arange(len(y), device=y.device) if groups is None else groups
        if len(head.classes) == 1:  # every photo is named right
            self._note("unknown", None, None)
            return
        left_out = samples.grouped(groups).accuracy()
        these_days = left_out if kind == "independent" else samples.accuracy()
        learned = sum(head.class_counts().values())
        if kind in ("found", "independent") and learned < ENOUGH * len(head.classes):
            kind = "few"
        self._note(kind, these_days, None if kind == "few" else left_out)

    def take(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Replace the photos of a new place: embeddings (n, d), labels (n,) and content hashes (n,)."""
        self.z, self.y, self.key = z.float(), y, key

    def measure(self, head: Head, learned: Tensor) -> None:
        """Count what a head names right of the photos of a new place, without those that it has learned since.

        Args:
            head: solved.
            learned: (n,) int64 content hashes of all photos learned.
        """
        new = torch.isin(self.y, head.labels) & ~torch.isin(self.key, learned)
        self.take(self.z[new], self.y[new], self.key[new])
        if len(self.y):
            right = CalibrationSamples(head, self.z, self.y, learned=False).accuracy()
            self._note("measured", self.these_days, right)

    def forget_stored(self) -> None:
        """Forget what is said of stored samples, which have changed."""
        self.groups = self.groups[:0]
        self._note("unknown", None, None)

    @property
    def where(self) -> str:
        """Say of which photos the promises are, to follow "photos"."""
        if self.known in ("found", "given"):
            return "of these days, and of another day as far as can be told"
        return "of the new place" if self.known == "measured" else "like those that were learned"

    def sentences(self, learned: int, counted: int) -> list[str]:
        """Say how many photos of these days and of another day are named right, and what helps most there.

        Args:
            learned: number of photos that the model has learned.
            counted: number of stored photos that calibrate it.

        Returns:
            Nothing where nothing was measured.
        """
        here, there = f"{self.these_days or 0:.1f} %", f"{self.another_day or 0:.1f} %"
        part = f" of the {counted} stored photos, on average over classes,"
        first = f"photos of these days: {here}{part} are named right, each judged without itself"
        if self.known == "measured":
            new = number_of(len(self.y), "labelled photo")
            last = f"photos of the new place: {there} of the {new} that calibrate the model are named right"
            return [first, last] if self.these_days is not None else [last]
        if self.these_days is None:
            return []
        if self.known == "few":
            return [first, f"photos of another day: too few photos to say (fewer than {ENOUGH} a class)"]
        if self.known == "independent":
            why = "no photos of a class were found that vouch for each other, so one number serves for both"
            why += "" if len(self.groups) >= ALL * learned else f", as far as these of {learned} can tell"
            return [f"photos of these days and of another day (estimated): {here}{part} are named right; {why}"]
        hopeful = "" if len(self.groups) >= ALL * learned else f" (too hopeful: not all {learned} photos are stored)"
        group = "group, as given" if self.known == "given" else "occasion"
        second = f"photos of another day (estimated): {there}, each judged without all photos of its {group}{hopeful}"
        return [first, second, HELP]

    def _note(self, kind: Kind, these_days: float | None, another_day: float | None) -> None:
        self.kind.fill_(get_args(Kind).index(kind))
        self.accuracy.copy_(torch.tensor([NOT_KNOWN if a is None else a for a in (these_days, another_day)]))


def occasions(samples: CalibrationSamples) -> tuple[Kind, Tensor | None]:
    """Find the stored samples that are left out together: those of one occasion, else near-copies.

    Returns:
        How they were found, and the number of each one's group (n,) int64; None where each stands alone.
    """
    if not samples.head.leaves_one_out:
        return "unknown", near_copies(samples.z, samples.y)
    found = find_occasions(samples.z, samples.columns, samples.left_out)
    return found.kind, near_copies(samples.z, samples.y) if found.groups is None else found.groups


def margin(samples: CalibrationSamples) -> float:
    """Return half of the interval of 95 % around the accuracy, in points.

    It is that of as many new photos, from as many occasions: the variance of these and of the estimate are added.
    Photos of an occasion are right together.
    """
    scores = samples.scores()
    known = scores.isfinite().all(dim=1)
    right, columns = (scores.argmax(dim=1) == samples.columns)[known].double(), samples.columns[known]
    if not samples.learned:  # each photo counts the same, not each class
        columns = torch.zeros_like(columns)
    count = columns.bincount()
    off = (right - (columns.bincount(right) / count)[columns]) / count[columns] / int((count > 0).sum())
    group = torch.arange(len(off), device=off.device)
    if samples.groups is not None:
        group = torch.unique(samples.groups[known], return_inverse=True)[1]
    return 196 * float((2 * group.bincount(off).square().sum()).sqrt())


def ten_more(samples: CalibrationSamples | None) -> tuple[float, float] | None:
    """Estimate how many points ten more photos of each class would bring on another day.

    What the last ten brought is measured: a head learns all stored photos but ten of each class, drawn at random, and
    both answer for those that it learned, each without its occasion. Errors are taken to fall with the square root of
    the number of photos n, so that the next ten bring ``(n^-½ − (n + 10)^-½) / ((n − 10)^-½ − n^-½)`` of that.

    Args:
        samples: stored photos by which a model is calibrated, nearly all that it learned.

    Returns:
        Interval of 95 % over photos, the mean over the classes with enough of them; None where most have too few.
    """
    if samples is None or not samples.learned or not samples.head.leaves_one_out or samples.head.uses_buffer:
        return None
    y, head = samples.columns, samples.head
    count = y.bincount(minlength=len(head.classes))
    enough = count >= ENOUGH
    if len(y) < ALL * sum(head.class_counts().values()) or 2 * int(enough.sum()) < len(count):
        return None
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
    order = order[y[order].argsort(stable=True)]
    place = torch.arange(len(y), device=y.device) - (count.cumsum(0) - count)[y[order]]
    rows = order[(place >= TEN) | ~enough[y[order]]]  # all but the first ten of each class that has enough
    z, labels, groups = samples.z[rows], samples.y[rows], None if samples.groups is None else samples.groups[rows]
    fewer = head.fresh()
    fewer.begin_task(head.classes, (count - TEN * enough).tolist())
    fewer.observe(z, labels)
    fewer.solve()
    fewer.decide(z, labels, groups)
    scores = samples.scores()[rows], fewer.leave_one_out(z, labels, groups)
    known = torch.stack(scores).isfinite().all(dim=2).all(dim=0)
    before, after = ((each.argmax(dim=1) == y[rows])[known].double() for each in (scores[1], scores[0]))
    of_class = [(after - before)[y[rows][known] == column] for column in enough.nonzero().flatten().tolist()]
    of_class = [gains for gains in of_class if len(gains) > 1]
    if not of_class:
        return None
    brought = torch.stack([one.mean() for one in of_class]).mean()
    error = torch.stack([one.var() / len(one) for one in of_class]).sum().sqrt() / len(of_class)
    n = float(count[enough].double().mean())
    next_ones = 100 * (n**-0.5 - (n + TEN) ** -0.5) / ((n - TEN) ** -0.5 - n**-0.5)
    low, high = ((brought + sign * error) * next_ones for sign in (-1.96, 1.96))
    return float(low), float(high)
