"""Find the duplicates among all samples of a source: of training, of test, and across the two.

Which one of several duplicates is learned depends on the plan of the tasks alone. So it is the same
whatever the batches and the processes, and wherever a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np

from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.images.duplicates import (
    Duplicates,
    conflicting_labels_message,
    duplicates_message,
    find_repeats,
)
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import is_or_are, listed, printable

DUPLICATE = "duplicate"
TWO_CLASSES = "two classes"
IN_BOTH_SPLITS = "training and test"
"""Kinds of duplicates, as the table of a run calls them."""

Part = Literal["train", "val"]


class Duplicate(NamedTuple):
    """A sample whose content occurs again.

    Attributes:
        kind: ``DUPLICATE`` of another sample of its class and part; ``TWO_CLASSES``, of which it
            is learned and tested in none, as it is not known which label is wrong; or
            ``IN_BOTH_SPLITS``, a test sample that is learned, too.
        part: the set that the sample is in.
        row: the sample.
        original: row of the sample that is learned or tested; in two classes -1.
        sample: name of the sample.
        other: name of the sample that it duplicates, or of the other class.
    """

    kind: str
    part: Part
    row: int
    original: int
    sample: str
    other: str


class SourceDuplicates(list[Duplicate]):
    """Samples of a source with the same content."""

    def left_out(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Return masks (n,) and (m,) bool of the training and test samples that are left out.

        These are duplicates of an earlier sample, and samples in two classes.
        """
        masks = {
            "train": np.zeros(len(source.train), dtype=bool),
            "val": np.zeros(len(source.val), dtype=bool),
        }
        for found in self:
            if found.kind != IN_BOTH_SPLITS:
                masks[found.part][found.row] = True
        return masks["train"], masks["val"]

    def of_originals(self, part: Part) -> dict[int, list[int]]:
        """Return the duplicates of each original in a part."""
        duplicates: dict[int, list[int]] = {}
        for found in self:
            if found.kind == DUPLICATE and found.part == part:
                duplicates.setdefault(found.original, []).append(found.row)
        return duplicates

    def sentences(self, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of duplicates that occurs.

        Args:
            duplicates: whether duplicates are left out.
        """
        shown: dict[str, list[str]] = {}
        for found in self:
            remark = REMARKS[found.kind].format(other=printable(found.other))
            names = shown.setdefault(found.kind, [])
            names.append(printable(found.sample) + remark)
        sentences = [
            duplicates_message(shown.get(DUPLICATE, []), duplicates),
            conflicting_labels_message(shown.get(TWO_CLASSES, []), duplicates),
        ]
        across = shown.get(IN_BOTH_SPLITS, [])
        if across:
            verb = is_or_are(len(across))
            sentences.append(
                f"note: {listed(across)} {verb} in training and test: the accuracy flatters"
            )
        return [sentence for sentence in sentences if sentence]


REMARKS = {
    DUPLICATE: "",
    TWO_CLASSES: " (also in {other})",
    IN_BOTH_SPLITS: " (learned as {other})",
}
"""Kind of duplicate → what follows the name of the sample in a sentence."""


def find_duplicates(source: Source, tasks: Iterable[np.ndarray]) -> SourceDuplicates:
    """Compare all samples of a source with each other.

    Samples of classes that no task learns yet count, too: which samples are in two classes must not
    depend on where a run stops.

    Args:
        source: source of the samples.
        tasks: rows of the training samples of each task; of several duplicates the first one is
            learned.
    """
    count = len(source.train)  # test samples are numbered after the training samples
    planned = np.concatenate([np.zeros(0, dtype=np.int64), *tasks])
    unplanned = np.setdiff1d(np.arange(count), planned)
    numbers = np.concatenate([planned, unplanned, count + np.arange(len(source.val))])
    sizes = np.array(
        [source.train.size(row) for row in range(count)]
        + [source.val.size(row) for row in range(len(source.val))]
    )
    values, counts = np.unique(sizes, return_counts=True)
    repeated = values[(counts > 1) | (values < 0)]
    # Samples of a size that no other sample has are not read.
    candidates = numbers[np.isin(sizes[numbers], repeated)]
    tested = candidates >= count
    hashes = np.concatenate(
        [
            _hashes(source.train, candidates[~tested]),
            _hashes(source.val, candidates[tested] - count),
        ]
    )
    labels = np.concatenate([source.train.labels, source.val.labels])
    repeats = find_repeats(
        zip(candidates.tolist(), hashes.tolist(), strict=True), labels
    )
    names = [*source.train.names, *source.val.names]
    found = SourceDuplicates()

    # Training sample → its first duplicate among the test samples.
    tested_as: dict[int, int] = {}
    for number, first in sorted(repeats.twice.items()):
        if first < count <= number and first not in tested_as:
            tested_as[first] = number
            found.append(
                _duplicate(source, IN_BOTH_SPLITS, number, first, names[first])
            )
        else:
            original = tested_as.get(first, first)
            found.append(
                _duplicate(source, DUPLICATE, number, original, names[original])
            )
    for number, label in sorted(repeats.undecided.items()):
        other = source.class_names[label]
        found.append(_duplicate(source, TWO_CLASSES, number, -1, other))
    return found


def _duplicate(
    source: Source, kind: str, number: int, original: int, other: str
) -> Duplicate:
    """Return a duplicate; test samples are numbered after the training samples."""
    count = len(source.train)
    if number < count:
        name = source.train.names[number]
        return Duplicate(kind, "train", number, original, name, other)
    row = number - count
    return Duplicate(kind, "val", row, original - count, source.val.names[row], other)


def _hashes(samples: SampleTable, rows: np.ndarray) -> np.ndarray:
    """Hash samples; with several processes each reads a share of them, and all must call this."""
    rank, world = rank_and_world()
    share = rows[rank::world]
    own = samples.hashes(share)
    for known, hashes in of_all_processes((share, own)):
        samples.hash_of[known] = hashes
    return samples.hashes(rows)
