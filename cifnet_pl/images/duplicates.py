"""Find duplicates by the hashes of their content, and near-duplicates by thumbnails and bursts.

A duplicate adds weight without adding knowledge, and one that is held out tests nothing.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cifnet_pl.images.image import THUMBNAIL_SIDE, UNREADABLE_HASH, Look
from cifnet_pl.utilities.text import listed

Duplicates = Literal["leave_out", "keep"]
"""Treatment of duplicates: they are left out, or learned nevertheless."""

NEAR_DUPLICATE_CORRELATION = 0.95
"""Correlation of two thumbnails above which their images are near-duplicates."""

NEAR_DUPLICATE_PAUSE = 2.0
"""Longest pause between two images of one burst, in seconds, that makes them near-duplicates."""

CORRELATIONS_SIDE = 1024
"""Images whose thumbnails are compared with the others at once."""


# ---------------------------------------------------------------------- duplicates


@dataclass(frozen=True)
class Repeats:
    """Images whose content occurs more than once, by their positions.

    Attributes:
        learned: those that were learned before in the same class.
        twice: duplicate → the first image of its class with this content, which is learned.
        undecided: image → another class that holds the same content, or learned it before.
    """

    learned: list[int]
    twice: dict[int, int]
    undecided: dict[int, str]


def find_repeats(
    hashes: Iterable[tuple[int, int]],
    class_of: Sequence[str],
    learned: Mapping[int, AbstractSet[str]] = {},
) -> Repeats:
    """Compare images with each other, and with those that were learned before.

    Args:
        hashes: row and content hash of each image, in the order of learning. Images that cannot be
            read are never duplicates.
        class_of: row → name of the class.
        learned: hash → names of the classes in which it was learned before.
    """
    # Hash → class → rows.
    rows_by_hash: dict[int, dict[str, list[int]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row, content_hash in hashes:
        if content_hash != UNREADABLE_HASH:
            rows_by_hash[content_hash][class_of[row]].append(row)
    repeats = Repeats([], {}, {})
    for content_hash, rows_by_class in rows_by_hash.items():
        before = sorted(learned.get(content_hash, ()))
        for name, rows in rows_by_class.items():
            others = [other for other in (*before, *rows_by_class) if other != name]
            if name in before:
                repeats.learned.extend(rows)
            elif others:
                repeats.undecided.update(dict.fromkeys(rows, others[0]))
            else:
                repeats.twice.update(dict.fromkeys(rows[1:], rows[0]))
    return repeats


def duplicates_notes(
    repeated: Sequence[str],
    in_two_classes: Sequence[str],
    duplicates: Duplicates | None,
) -> list[str]:
    """Return a sentence about duplicates that are left out, and one about images in two classes.

    Args:
        repeated: names of the images that were learned already, or occur twice in their class.
        in_two_classes: names of the images that are in two classes.
        duplicates: what becomes of both where images are learned; None where they are only tested.
    """
    notes = []
    leaves_out = duplicates == "leave_out"
    if repeated and leaves_out:
        images = listed(repeated)
        notes.append(f"note: {images} learned already or twice in the folder: left out")
    if in_two_classes:
        treatment = "one label is probably wrong"
        if leaves_out:
            treatment = "not learned until each is in one alone, remove it from the wrong folder"
        notes.append(f"note: {listed(in_two_classes)} in two classes: {treatment}")
    return notes


# ---------------------------------------------------------------------- near-duplicates


def similar_groups(looks: Sequence[Look]) -> np.ndarray:
    """Group near-duplicates of one class: similar images, and those of one burst.

    Args:
        looks: at the images.

    Returns:
        (n,) int, number of each image's group from 0; -1 for images that cannot be read.
    """
    groups = np.full(len(looks), -1)
    readable = [i for i, look in enumerate(looks) if look.thumbnail is not None]
    if not readable:
        return groups
    seen = [looks[i] for i in readable]
    pairs = _similar_pairs(seen) + bursts(seen, NEAR_DUPLICATE_PAUSE)
    # SciPy 1.11 finds no groups for positions of 64 bits.
    earlier, later = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
    count = len(readable)
    graph = coo_array((np.ones(len(pairs)), (earlier, later)), shape=(count, count))
    _, groups[readable] = connected_components(graph, directed=False)
    return groups


def bursts(looks: Sequence[Look], pause: float) -> list[tuple[int, int]]:
    """Pair each image with the next one that was taken, at most ``pause`` seconds later.

    Args:
        looks: at the images.
        pause: in seconds.

    Returns:
        Positions of the earlier and the later image of each pair.
    """
    timed = sorted((look.taken, i) for i, look in enumerate(looks) if look.taken)
    return [
        (earlier, later)
        for (earlier_time, earlier), (later_time, later) in pairwise(timed)
        if (later_time - earlier_time).total_seconds() <= pause
    ]


def _similar_pairs(looks: Sequence[Look]) -> list[tuple[int, int]]:
    """Return the positions of images whose thumbnails are correlated, compared part by part.

    Mean brightness and colour of a thumbnail are removed, and its contrast; an image of a single
    colour is like no other.

    Args:
        looks: at the images, with thumbnails.
    """
    thumbnails = np.array([look.thumbnail for look in looks], dtype=np.float32)
    pixels = thumbnails.reshape(-1, THUMBNAIL_SIDE**2, 3)
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    differences = centred.reshape(-1, 3 * THUMBNAIL_SIDE**2)
    length = np.linalg.norm(differences, axis=1, keepdims=True)
    smallest = THUMBNAIL_SIDE  # a shorter vector is noise
    unit = differences / np.maximum(length, smallest)
    vectors = np.where(length > smallest, unit, np.float32(0))
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(vectors), CORRELATIONS_SIDE):
        rows = vectors[start : start + CORRELATIONS_SIDE]
        alike = rows @ vectors.T > NEAR_DUPLICATE_CORRELATION
        # Each with those before it.
        later, earlier = np.nonzero(np.tril(alike, start - 1))
        pairs += zip((start + later).tolist(), earlier.tolist(), strict=True)
    return pairs
