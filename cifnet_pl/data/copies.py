"""Find samples of one source that occur more than once, by their contents, before anything is learned.

A copy adds weight without adding knowledge, and one that is held back tests nothing. Which of several copies is learned
depends on the plan of the run alone, so that it is the same whatever the batches, the processes, and wherever a run
went on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from cifnet_pl.data.sets import SampleSet, Source
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import printable


def content_hash(content: bytes) -> int:
    """Hash bytes to a signed number of 64 bits (BLAKE2b): two of a million different photos agree once in 4·10⁷.

    Example:
        >>> content_hash(b"") == NOTHING
        True
    """
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)


NOTHING = content_hash(b"")
"""The hash of what cannot be read."""


def hashes_of(content: Callable[[int], bytes], rows: Sequence[int]) -> np.ndarray:
    """Hash the contents of samples.

    A plain loop: threads took 2.6 times as long on 6000 small files that had just been read.

    Args:
        content: row → its bytes, such as ``ImageSet.content``.
        rows: (n,) positions.

    Returns:
        (n,) int64; what cannot be read has the hash of nothing.
    """

    def one(row: int) -> int:
        try:
            return content_hash(content(row))
        except (OSError, DataError):  # it is reported as unreadable when it is to be decoded
            return NOTHING

    return np.array([one(row) for row in rows], dtype=np.int64)


class ContentHashes:
    """The content hashes of one set, each computed when it is first asked for.

    Args:
        samples: the set.
        stored: label → the hashes (n_c,) of the samples of that class, or None where they are not known without
            reading, such as :meth:`cifnet_pl.data.cache.EmbeddingCache.hashes`; None to read everything.
    """

    def __init__(self, samples: SampleSet, stored: Callable[[int], np.ndarray | None] | None = None):
        self.samples, self._stored = samples, stored
        self._hashes = np.zeros(len(samples), dtype=np.int64)
        self._known = np.zeros(len(samples), dtype=bool)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the hashes (n,) int64 of samples ``rows`` (n,)."""
        self._take_stored(rows[~self._known[rows]])
        missing = rows[~self._known[rows]]
        if len(missing):
            self._set(missing, hashes_of(self.samples.content, missing.tolist()))
        hashes: np.ndarray = self._hashes[rows]
        return hashes

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """Return the size of each sample's content.

        Args:
            rows: (n,) positions of the samples.

        Returns:
            (n,) int64 bytes; -1 where the size is not known without reading the content.
        """
        return np.array([self.samples.size(row) for row in rows.tolist()], dtype=np.int64)

    def where_alike(self, rows: np.ndarray, others: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield the samples that may be a copy of another one.

        Samples of a size that no other one of them and none of ``others`` has are not read. With several processes each
        reads a share of the samples; all must call this.

        Args:
            rows: (n,) positions of the samples to compare.
            others: (m,) sizes in bytes that samples elsewhere have.

        Yields:
            Row and hash, in the order of ``rows``.
        """
        sizes = self.sizes(rows)
        values, counts = np.unique(np.concatenate([sizes, others]), return_counts=True)
        alike = np.isin(sizes, values[(counts > 1) | (values < 0)])
        candidates = rows[alike]
        rank, world = rank_and_world()
        share = candidates[rank::world]
        for known, hashes in of_all_processes((share, self.of(share))):
            self._set(known, hashes)
        pairs = zip(candidates.tolist(), self._hashes[candidates].tolist(), strict=True)
        return (pair for pair in pairs if pair[1] != NOTHING)

    def _take_stored(self, rows: np.ndarray) -> None:
        if self._stored is None:
            return
        for label in np.unique(self.samples.labels[rows]).tolist():
            stored = self._stored(label)
            if stored is not None:
                self._set(self.samples.rows_of[label], stored)

    def _set(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        self._hashes[rows], self._known[rows] = hashes, True


Duplicates = Literal["leave_out", "keep"]
"""What becomes of copies: they are left out, or learned all the same."""

NAMED = 5
"""Photos that a sentence names; it counts the others."""


@dataclass(frozen=True)
class Copies:
    """Pairs of training samples, and of a test and a training sample, with the same content.

    Attributes:
        twice: (copy, first) rows of training samples of one class; the first is the one that is learned.
        across: (later, earlier) rows of training samples of two classes: one label is probably wrong.
        tested: (test row, training row), of any class.
        tested_across: (later, earlier) rows of test samples of two classes that are no training samples.
    """

    twice: list[tuple[int, int]]
    across: list[tuple[int, int]]
    tested: list[tuple[int, int]]
    tested_across: list[tuple[int, int]] = field(default_factory=list)

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
        train, val, names = source.train, source.val, source.class_names
        sentences = [about_copies([_shown(train, row) for row, _ in self.twice], duplicates)]
        labels = [f"{_shown(train, a)} (also in {_class(train, names, b)})" for a, b in self.across]
        labels += [f"{_shown(val, a)} (also in {_class(val, names, b)})" for a, b in self.tested_across]
        sentences += [about_labels(labels)]
        other = [f"{_shown(val, a)} (learned as {_shown(train, b)})" for a, b in self.tested]
        if other:
            sentences += [f"note: {listed(other)} {_is(other)} learned and tested with: the score flatters"]
        return [sentence for sentence in sentences if sentence]

    def table(self, source: Source) -> list[tuple[str, str, str]]:
        """Return a row for each pair: the kind of copy, the photo, and the other photo.

        Args:
            source: where the samples are from.
        """
        train, val = source.train, source.val
        rows = [("copy", train.names[a], train.names[b]) for a, b in self.twice]
        rows += [("two classes", train.names[a], train.names[b]) for a, b in self.across]
        rows += [("two classes", val.names[a], val.names[b]) for a, b in self.tested_across]
        return rows + [("learned and tested", val.names[a], train.names[b]) for a, b in self.tested]


NONE = Copies([], [], [])
"""Of a source whose samples are not compared."""


def find_copies(source: Source, tasks: Iterable[np.ndarray], train: ContentHashes, val: ContentHashes) -> Copies:
    """Compare all training samples of a run with each other, and its test samples with them.

    Args:
        source: where they are from.
        tasks: rows of the training samples of each task; of several copies the first one is learned.
        train, val: content hashes of both sets.
    """
    rows = np.concatenate([np.zeros(0, dtype=np.int64), *tasks])
    learned = set(source.train.labels[rows].tolist())
    tested = np.flatnonzero([label in learned for label in source.val.labels.tolist()])
    ours, theirs = train.where_alike(rows, val.sizes(tested)), val.where_alike(tested, train.sizes(rows))
    first: dict[int, dict[int, int]] = {}
    twice, across, both = [], [], []
    for row, value in ours:
        label, same = int(source.train.labels[row]), first.setdefault(value, {})
        if label in same:
            twice.append((row, same[label]))
            continue
        across += [(row, next(iter(same.values())))] if same else []
        same[label] = row
    test_first: dict[int, int] = {}
    tested_across = []
    for row, value in theirs:
        label, earlier = int(source.val.labels[row]), test_first.setdefault(value, row)
        if value in first:
            both.append((row, first[value].get(label, next(iter(first[value].values())))))
        elif source.val.labels[earlier] != label:
            tested_across.append((row, earlier))
    return Copies(twice, across, both, tested_across)


# ---------------------------------------------------------------------- sentences


def about_copies(names: Sequence[str], duplicates: Duplicates) -> str | None:
    """Describe copies in one sentence; None if there are none."""
    if not names:
        return None
    treatment = "left out" if duplicates == "leave_out" else "learned again, as asked for"
    return f"note: {listed(names)} learned already or twice in the folder: {treatment}"


def about_labels(names: Sequence[str]) -> str | None:
    """Return what is said of photos that stand in two classes; None if there are none."""
    return f"note: {listed(names)} in two classes: one label is probably wrong" if names else None


def listed(items: Sequence[str]) -> str:
    """Return the first items, and the number of the others."""
    more = len(items) - NAMED
    return ", ".join(items[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _is(items: Sequence[str]) -> str:
    return "is" if len(items) == 1 else "are"


def _shown(samples: SampleSet, row: int) -> str:
    return printable(samples.names[row])


def _class(samples: SampleSet, class_names: Sequence[str], row: int) -> str:
    return printable(class_names[int(samples.labels[row])])
