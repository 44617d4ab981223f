"""Find the duplicates among all samples of a source: of training, of test, and across the two.

Which one of several duplicates is learned depends on the plan of the tasks alone. So it is the same
whatever the batches and the processes, and wherever a run is resumed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cifnet_pl.data.sets import SampleSet, Source
from cifnet_pl.images.duplicates import (
    Duplicates,
    conflicting_labels_message,
    duplicates_message,
    find_repeats,
)
from cifnet_pl.images.image import UNREADABLE_HASH
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import is_or_are, listed, printable

DUPLICATE = "duplicate"
TWO_CLASSES = "two classes"
IN_BOTH_SPLITS = "training and test"
"""Kinds of duplicates, as the table of a run calls them."""


class DuplicatePair(NamedTuple):
    """Rows of two samples with the same content."""

    duplicate: int
    original: int


class DuplicateRow(NamedTuple):
    """A row of the table of duplicates.

    Attributes:
        kind: ``DUPLICATE``, ``TWO_CLASSES`` or ``IN_BOTH_SPLITS``.
        sample: name of the sample.
        other: name of the sample that it duplicates, or of the other class.
    """

    kind: str
    sample: str
    other: str


@dataclass(frozen=True)
class SourceDuplicates:
    """Samples of a source with the same content, by their rows.

    Attributes:
        train: pairs of training samples of one class; the original is the one that is learned.
        test: pairs of test samples of one class; the original is the one that is tested.
        across: pairs of a test sample and a training sample of one class.
        ambiguous: training sample → label of another class that has it, too; it is not learned.
        ambiguous_test: the same of test samples, which are not tested.
    """

    train: list[DuplicatePair] = field(default_factory=list)
    test: list[DuplicatePair] = field(default_factory=list)
    across: list[DuplicatePair] = field(default_factory=list)
    ambiguous: dict[int, int] = field(default_factory=dict)
    ambiguous_test: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def left_out(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Return masks (n,) and (m,) bool of the training and test samples that are left out.

        These are duplicates of an earlier sample, and samples in two classes.
        """
        train = np.zeros(len(source.train), dtype=bool)
        repeated = [pair.duplicate for pair in self.train]
        train[repeated] = True
        train[list(self.ambiguous)] = True
        test = np.zeros(len(source.val), dtype=bool)
        repeated_test = [pair.duplicate for pair in self.test]
        test[repeated_test] = True
        test[list(self.ambiguous_test)] = True
        return train, test

    def sentences(self, source: Source, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of duplicates that occurs.

        Args:
            source: source of the samples.
            duplicates: whether duplicates are left out.
        """
        repeated = []
        ambiguous = []
        across = []
        for row in self.table(source):
            sample = printable(row.sample)
            other = printable(row.other)
            if row.kind == DUPLICATE:
                repeated.append(sample)
            elif row.kind == TWO_CLASSES:
                ambiguous.append(f"{sample} (also in {other})")
            else:
                across.append(f"{sample} (learned as {other})")
        sentences = []
        for sentence in (
            duplicates_message(repeated, duplicates),
            conflicting_labels_message(ambiguous, duplicates),
        ):
            if sentence:
                sentences.append(sentence)
        if across:
            verb = is_or_are(len(across))
            sentences.append(
                f"note: {listed(across)} {verb} in training and test: the"
                " accuracy flatters"
            )
        return sentences

    def table(self, source: Source) -> list[DuplicateRow]:
        """Return a row for each sample that has a duplicate."""
        train = source.train.names
        val = source.val.names
        classes = source.class_names
        rows = []
        for pair in self.train:
            duplicate = train[pair.duplicate]
            original = train[pair.original]
            rows.append(DuplicateRow(DUPLICATE, duplicate, original))
        for pair in self.test:
            duplicate = val[pair.duplicate]
            original = val[pair.original]
            rows.append(DuplicateRow(DUPLICATE, duplicate, original))
        for row, label in self.ambiguous.items():
            class_name = classes[label]
            rows.append(DuplicateRow(TWO_CLASSES, train[row], class_name))
        for row, label in self.ambiguous_test.items():
            class_name = classes[label]
            rows.append(DuplicateRow(TWO_CLASSES, val[row], class_name))
        for pair in self.across:
            duplicate = val[pair.duplicate]
            original = train[pair.original]
            rows.append(DuplicateRow(IN_BOTH_SPLITS, duplicate, original))
        return rows


def duplicates_of_originals(pairs: Iterable[DuplicatePair]) -> dict[int, list[int]]:
    """Return the duplicates of each original."""
    duplicates: dict[int, list[int]] = {}
    for pair in pairs:
        of_original = duplicates.setdefault(pair.original, [])
        of_original.append(pair.duplicate)
    return duplicates


def find_duplicates(source: Source, tasks: Iterable[np.ndarray]) -> SourceDuplicates:
    """Compare all samples of a source with each other.

    Samples of classes that no task learns yet count, too: which samples are in two classes must not
    depend on where a run stops.

    Args:
        source: source of the samples.
        tasks: rows of the training samples of each task; of several duplicates the first one is
            learned.
    """
    train = source.train
    val = source.val
    no_rows = np.zeros(0, dtype=np.int64)
    planned = np.concatenate([no_rows, *tasks])
    unplanned = np.setdiff1d(np.arange(len(train)), planned)
    train_rows = np.concatenate([planned, unplanned])
    val_rows = np.arange(len(val))
    sizes = [train.size(row) for row in train_rows.tolist()]
    train_sizes = np.array(sizes)
    test_sizes = [val.size(row) for row in val_rows.tolist()]
    val_sizes = np.array(test_sizes)
    count = len(train)  # test samples are numbered after the training samples
    hashes = _candidate_hashes(train, train_rows, train_sizes, val_sizes)
    candidates = _candidate_hashes(val, val_rows, val_sizes, train_sizes)
    for row, value in candidates:
        hashes.append((count + row, value))
    labels = np.concatenate([train.labels, val.labels])
    repeats = find_repeats(hashes, labels)
    found = SourceDuplicates()
    # Training sample → its first duplicate among the test samples.
    tested_as: dict[int, int] = {}
    duplicates = sorted(repeats.twice.items())
    for row, first in duplicates:
        if row < count:
            found.train.append(DuplicatePair(row, first))
        elif first < count and first not in tested_as:
            pair = DuplicatePair(row - count, first)
            found.across.append(pair)
            tested_as[first] = row
        else:
            original = tested_as.get(first, first)
            original_row = original - count
            pair = DuplicatePair(row - count, original_row)
            found.test.append(pair)
    ambiguous = sorted(repeats.undecided.items())
    for row, label in ambiguous:
        if row < count:
            found.ambiguous[row] = label
        else:
            found.ambiguous_test[row - count] = label
    return found


def _candidate_hashes(
    samples: SampleSet, rows: np.ndarray, sizes: np.ndarray, other_sizes: np.ndarray
) -> list[tuple[int, int]]:
    """Hash the samples that may be a duplicate of another one.

    Samples of a size that no other sample has are not read. With several processes each reads a
    share of the samples; all must call this.

    Args:
        samples: the set.
        rows: (n,) positions of the samples to compare.
        sizes: (n,) their sizes in bytes; -1 where that is not known without reading.
        other_sizes: (m,) sizes of the samples of the other set.

    Returns:
        Row and hash of those that can be read, in the order of ``rows``.
    """
    all_sizes = np.concatenate([sizes, other_sizes])
    values, counts = np.unique(all_sizes, return_counts=True)
    is_repeated = (counts > 1) | (values < 0)
    is_candidate = np.isin(sizes, values[is_repeated])
    candidates = rows[is_candidate]
    rank, world = rank_and_world()
    share = candidates[rank::world]
    own = samples.hashes(share)
    for known, hashes in of_all_processes((share, own)):
        samples.note_hashes(known, hashes)
    hashes_of_candidates = samples.hashes(candidates)
    pairs = zip(candidates.tolist(), hashes_of_candidates.tolist(), strict=True)
    return [(row, value) for row, value in pairs if value != UNREADABLE_HASH]
