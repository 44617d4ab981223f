"""Find the duplicates among all samples of a source: of training, of test, and across the two.

Which one of several duplicates is learned depends on the plan of the tasks alone. So it is the same
whatever the batches and the processes, and wherever a run is resumed.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from cifnet_pl.data.samples import Source
from cifnet_pl.images.duplicates import (
    Duplicates,
    duplicates_notes,
    find_repeats,
)
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.processes import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import is_or_are, listed, printable

DUPLICATE = "duplicate"
TWO_CLASSES = "two classes"
IN_BOTH_SPLITS = "training and test"
"""Kinds of duplicates, as the table of a run calls them."""

Part = Literal["train", "test"]


class Duplicate(NamedTuple):
    """A sample whose content occurs again.

    Attributes:
        kind: ``DUPLICATE`` of another sample of its class and part; ``TWO_CLASSES``, of which it
            is learned and tested in none, as it is not known which label is wrong; or
            ``IN_BOTH_SPLITS``, a test sample that is learned, too.
        row: the sample; the test samples are numbered after the training samples.
        sample: name of the sample.
        other: name of the sample that it duplicates, or of the other class.
    """

    kind: str
    row: int
    sample: str
    other: str


class SourceDuplicates(list[Duplicate]):
    """Samples of a source with the same content."""

    def left_out(self, source: Source) -> dict[Part, np.ndarray]:
        """Return (n,) bool of each part: which samples are left out.

        These are duplicates of an earlier sample, and samples in two classes.

        Raises:
            DataError: all training samples of a class are in another one, too.
        """
        count = len(source.train)
        is_left_out = np.zeros(count + len(source.test), dtype=bool)
        rows = [found.row for found in self if found.kind != IN_BOTH_SPLITS]
        is_left_out[rows] = True
        learned = source.train.labels[~is_left_out[:count]]
        sizes = np.bincount(learned, minlength=len(source.class_names))
        if not sizes.all():
            name = printable(source.class_names[sizes.argmin()])
            raise DataError(
                f"every image of '{name}' is in another class, too: remove the wrong duplicates"
            )
        return {"train": is_left_out[:count], "test": is_left_out[count:]}

    def sentences(self, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of duplicates that occurs.

        Args:
            duplicates: whether duplicates are left out.
        """
        shown = defaultdict[str, list[str]](list)
        for found in self:
            remark = REMARKS[found.kind].format(other=printable(found.other))
            shown[found.kind].append(printable(found.sample) + remark)
        sentences = duplicates_notes(shown[DUPLICATE], shown[TWO_CLASSES], duplicates)
        across = shown[IN_BOTH_SPLITS]
        if across:
            verb = is_or_are(len(across))
            sentences.append(
                f"note: {listed(across)} {verb} in training and test: the accuracy flatters"
            )
        return sentences


REMARKS = {
    DUPLICATE: "",
    TWO_CLASSES: " (also in {other})",
    IN_BOTH_SPLITS: " (learned as {other})",
}
"""Kind of duplicate → what follows the name of the sample in a sentence."""


def find_duplicates(source: Source, tasks: Iterable[np.ndarray]) -> SourceDuplicates:
    """Compare all samples of a source with each other.

    Samples of classes that no task learns yet count, too: which samples are in two classes must not
    depend on where a run stops. With several processes all of them must call this.

    Args:
        source: source of the samples.
        tasks: rows of the training samples of each task; of several duplicates the first one is
            learned.
    """
    count = len(source.train)
    whole = replace(
        source.train,
        table=pd.concat([source.train.table, source.test.table], ignore_index=True),
        hash_of=np.concatenate([source.train.hash_of, source.test.hash_of]),
    )
    every_row = np.arange(len(whole))
    order = pd.unique(np.concatenate([*tasks, every_row]))
    sizes = pd.Series([whole.size(row) for row in every_row.tolist()])
    # Samples of a size that no other sample has are not read.
    is_candidate = (sizes < 0) | sizes.duplicated(keep=False)
    candidates = order[is_candidate.to_numpy()[order]]
    # Each process reads a share of them.
    rank, world = rank_and_world()
    share = candidates[rank::world]
    for rows, hashes in of_all_processes((share, whole.hashes(share))):
        whole.hash_of[rows] = hashes
    source.train.hash_of = whole.hash_of[:count]
    source.test.hash_of = whole.hash_of[count:]
    content = whole.hash_of[candidates]
    class_of = [source.class_names[label] for label in whole.labels]
    repeats = find_repeats(
        zip(candidates.tolist(), content.tolist(), strict=True), class_of
    )
    names = whole.names
    found = SourceDuplicates()
    # Training sample → its first duplicate among the test samples.
    tested_as: dict[int, int] = {}
    for number, first in sorted(repeats.twice.items()):
        kind = DUPLICATE
        original = tested_as.get(first, first)
        if first < count <= number and first not in tested_as:
            tested_as[first] = number
            kind = IN_BOTH_SPLITS
        found.append(Duplicate(kind, number, names[number], names[original]))
    for number, other in sorted(repeats.undecided.items()):
        found.append(Duplicate(TWO_CLASSES, number, names[number], other))
    return found
