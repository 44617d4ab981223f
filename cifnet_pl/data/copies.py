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
    """Samples with the same content, by their rows.

    Attributes:
        twice: (copy, first) training samples of one class; the first is the one that is learned.
        tested: (test sample, training sample) of one class.
        tested_twice: (copy, first) test samples of one class; the first is the one that is tested.
        undecided: training sample → label of another class in which it lies, too: it is learned as neither.
        tested_undecided: the same of test samples, which are not tested.
    """

    twice: Pairs = field(default_factory=list)
    tested: Pairs = field(default_factory=list)
    tested_twice: Pairs = field(default_factory=list)
    undecided: dict[int, int] = field(default_factory=dict)
    tested_undecided: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def left_out(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Return which samples are copies of an earlier one or in two classes: two masks, of training and of test."""
        masks = np.zeros(len(source.train), dtype=bool), np.zeros(len(source.val), dtype=bool)
        of_both = (self.twice, self.undecided), (self.tested_twice, self.tested_undecided)
        for mask, (pairs, undecided) in zip(masks, of_both, strict=True):
            mask[[row for row, _ in pairs]] = True
            mask[list(undecided)] = True
        return masks

    def sentences(self, source: Source, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of copy that occurs.

        Args:
            source: where the samples are from.
            duplicates: whether copies are left out.
        """
        train, val = ([printable(name) for name in samples.names] for samples in (source.train, source.val))
        names = [printable(name) for name in source.class_names]
        labels = [f"{train[row]} (also in {names[other]})" for row, other in self.undecided.items()]
        labels += [f"{val[row]} (also in {names[other]})" for row, other in self.tested_undecided.items()]
        copies = [*(train[row] for row, _ in self.twice), *(val[row] for row, _ in self.tested_twice)]
        sentences = [about_copies(copies, duplicates), about_labels(labels, duplicates)]
        if self.tested:
            both = listed([f"{val[a]} (learned as {train[b]})" for a, b in self.tested])
            sentences += [f"note: {both} {is_or_are(len(self.tested))} learned and tested with: the score flatters"]
        return [sentence for sentence in sentences if sentence]

    def table(self, source: Source) -> list[tuple[str, str, str]]:
        """Return a row for each sample: the kind of copy, the sample, and the other sample or class.

        Args:
            source: where the samples are from.
        """
        train, val, names = source.train.names, source.val.names, source.class_names
        return [
            *(("copy", train[a], train[b]) for a, b in self.twice),
            *(("copy", val[a], val[b]) for a, b in self.tested_twice),
            *(("two classes", train[row], names[other]) for row, other in self.undecided.items()),
            *(("two classes", val[row], names[other]) for row, other in self.tested_undecided.items()),
            *(("learned and tested", val[a], train[b]) for a, b in self.tested),
        ]


def of_first(pairs: Pairs) -> dict[int, list[int]]:
    """Return the copies of each first sample of pairs (copy, first)."""
    copies: dict[int, list[int]] = {}
    for row, first in pairs:
        copies.setdefault(first, []).append(row)
    return copies


def find_copies(source: Source, tasks: Iterable[np.ndarray]) -> Copies:
    """Compare all samples of a source with each other.

    Samples of classes that no task learns yet count, too: which samples are in two classes must not depend on where a
    run stops.

    Args:
        source: where they are from.
        tasks: rows of the training samples of each task; of several copies the first one is learned.
    """
    train, val = source.train, source.val
    planned = np.concatenate([np.zeros(0, dtype=np.int64), *tasks])
    rows = np.concatenate([planned, np.setdiff1d(np.arange(len(train)), planned)])
    sizes, tested_sizes = (
        np.array([samples.size(row) for row in part])
        for samples, part in ((train, rows.tolist()), (val, range(len(val))))
    )
    ours = _where_alike(train, rows, sizes, tested_sizes)
    theirs = _where_alike(val, np.arange(len(val)), tested_sizes, sizes)
    count = len(train)  # test samples are numbered after the training samples
    pairs = [*ours, *((count + row, value) for row, value in theirs)]
    repeats = find_repeats(pairs, np.concatenate([train.labels, val.labels]))
    copies, tested_as = Copies(), dict[int, int]()
    for row, first in sorted(repeats.twice.items()):
        if row < count:
            copies.twice.append((row, first))
        elif first < count and first not in tested_as:
            copies.tested.append((row - count, first))
            tested_as[first] = row
        else:
            copies.tested_twice.append((row - count, tested_as.get(first, first) - count))
    for row, other in sorted(repeats.undecided.items()):
        if row < count:
            copies.undecided[row] = other
        else:
            copies.tested_undecided[row - count] = other
    return copies


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
