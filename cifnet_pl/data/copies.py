"""Find samples of one source that occur more than once, by their contents, before anything is learned.

Which of several copies is learned depends on the plan of the run alone, so that it is the same whatever the batches,
the processes, and wherever a run went on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from cifnet_pl.data.sets import SampleSet, Source
from cifnet_pl.photos.copies import Duplicates, about_copies, about_labels, find_repeats, listed
from cifnet_pl.photos.photo import NOTHING
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import is_or_are, printable

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Copies:
    """Pairs of training samples, and of a test and a training sample, with the same content.

    Attributes:
        twice: (copy, first) rows of training samples of one class; the first is the one that is learned.
        across: (later, earlier) rows of training samples of two classes: one label is probably wrong.
        tested: (test row, training row), of any class.
        tested_across: (later, earlier) rows of test samples of two classes that are no training samples.
    """

    twice: Pairs
    across: Pairs
    tested: Pairs
    tested_across: Pairs = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.twice or self.across or self.tested or self.tested_across)

    def left_out(self, count: int) -> np.ndarray:
        """Return which training samples are copies of one that is learned.

        Args:
            count: number of training samples.

        Returns:
            (count,) bool.
        """
        mask = np.zeros(count, dtype=bool)
        mask[[row for row, _ in self.twice]] = True
        return mask

    def of_first(self) -> dict[int, list[int]]:
        """Return the copies of each training sample that is learned and has some."""
        copies: dict[int, list[int]] = {}
        for row, first in self.twice:
            copies.setdefault(first, []).append(row)
        return copies

    def sentences(self, source: Source, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of copy that occurs.

        Args:
            source: where the samples are from.
            duplicates: whether copies are left out.
        """
        train, val = ([printable(name) for name in samples.names] for samples in (source.train, source.val))
        names = [printable(name) for name in source.class_names]
        labels = [f"{train[a]} (also in {names[source.train.labels[b]]})" for a, b in self.across]
        labels += [f"{val[a]} (also in {names[source.val.labels[b]]})" for a, b in self.tested_across]
        sentences = [about_copies([train[row] for row, _ in self.twice], duplicates), about_labels(labels)]
        if self.tested:
            both = listed([f"{val[a]} (learned as {train[b]})" for a, b in self.tested])
            sentences += [f"note: {both} {is_or_are(len(self.tested))} learned and tested with: the score flatters"]
        return [sentence for sentence in sentences if sentence]

    def table(self, source: Source) -> list[tuple[str, str, str]]:
        """Return a row for each pair: the kind of copy, the photo, and the other photo.

        Args:
            source: where the samples are from.
        """
        train, val = source.train.names, source.val.names
        kinds = [
            ("copy", self.twice, train, train),
            ("two classes", self.across, train, train),
            ("two classes", self.tested_across, val, val),
            ("learned and tested", self.tested, val, train),
        ]
        return [(kind, ours[a], theirs[b]) for kind, pairs, ours, theirs in kinds for a, b in pairs]


NONE = Copies([], [], [])
"""Of a source whose samples are not compared."""


def find_copies(source: Source, tasks: Iterable[np.ndarray]) -> Copies:
    """Compare all training samples of a run with each other, and its test samples with them.

    Args:
        source: where they are from.
        tasks: rows of the training samples of each task; of several copies the first one is learned.
    """
    train, val = source.train, source.val
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *tasks])
    tested_rows = np.flatnonzero(np.isin(val.labels, train.labels[rows]))
    sizes, tested_sizes = (np.array([s.size(i) for i in r.tolist()]) for s, r in ((train, rows), (val, tested_rows)))
    ours = _where_alike(train, rows, sizes, tested_sizes)
    theirs = _where_alike(val, tested_rows, tested_sizes, sizes)
    repeats, tested_repeats = find_repeats(ours, train.labels), find_repeats(theirs, val.labels)
    first: dict[int, dict[int, int]] = {}  # hash → label → row
    for row, value in ours:
        first.setdefault(value, {}).setdefault(int(train.labels[row]), row)
    tested = []
    for row, value in theirs:
        if value in first:
            of_class = first[value]
            tested.append((row, of_class.get(int(val.labels[row]), next(iter(of_class.values())))))
    known = {row for row, _ in tested}
    across = [(row, other) for row, other in tested_repeats.across.items() if row not in known]
    return Copies(list(repeats.twice.items()), list(repeats.across.items()), tested, across)


def _where_alike(samples: SampleSet, rows: np.ndarray, sizes: np.ndarray, others: np.ndarray) -> Pairs:
    """Find the samples that may be a copy of another one.

    Samples of a size that no other one of them and none of the others has are not read. With several processes each
    reads a share of the samples; all must call this.

    Args:
        samples: the set.
        rows: (n,) positions of the samples to compare.
        sizes: (n,) of them in bytes; -1 where that is not known without reading.
        others: (m,) sizes of samples elsewhere.

    Returns:
        Row and hash of those that can be read, in the order of ``rows``.
    """
    values, counts = np.unique(np.concatenate([sizes, others]), return_counts=True)
    candidates = rows[np.isin(sizes, values[(counts > 1) | (values < 0)])]
    rank, world = rank_and_world()
    share = candidates[rank::world]
    for known, hashes in of_all_processes((share, samples.hashes(share))):
        samples.note_hashes(known, hashes)
    pairs = zip(candidates.tolist(), samples.hashes(candidates).tolist(), strict=True)
    return [(row, value) for row, value in pairs if value != NOTHING]
