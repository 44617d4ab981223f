"""Find duplicates by the hashes of their content, and near-duplicates by thumbnails and bursts.

A duplicate adds weight without adding knowledge, and one that is held out tests nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cifnet_pl.images.image import NOTHING, SIDE, Look
from cifnet_pl.utilities.text import listed

Duplicates = Literal["leave_out", "keep"]
"""What becomes of copies: they are left out, or learned all the same."""

SIMILAR = 0.95
"""Correlation of two thumbnails from which their images are held out together."""

BURST = 2.0
"""Longest pause between two images of one burst, in seconds."""


# ---------------------------------------------------------------------- copies


@dataclass(frozen=True)
class Repeats:
    """Images whose content occurs more than once, by their positions.

    Attributes:
        learned: those that were learned before in the same class.
        twice: copy → the first one of its class, which is learned.
        undecided: image → label of another class in which it lies, too, or was learned before.
    """

    learned: list[int]
    twice: dict[int, int]
    undecided: dict[int, int]


def find_repeats(
    hashes: Iterable[tuple[int, int]],
    labels: np.ndarray,
    learned: Mapping[int, AbstractSet[int]] | None = None,
) -> Repeats:
    """Compare images with each other, and with those that were learned before.

    Args:
        hashes: row and content hash of each image, in the order of learning; those of nothing are
            never copies.
        labels: row → class.
        learned: hash → labels of the classes in which it was learned before.
    """
    places: dict[int, dict[int, list[int]]] = {}  # hash → label → rows
    for row, value in hashes:
        if value != NOTHING:
            places.setdefault(value, {}).setdefault(int(labels[row]), []).append(row)
    repeats = Repeats([], {}, {})
    for value, rows_of in places.items():
        before = sorted((learned or {}).get(value, ()))
        for label, rows in rows_of.items():
            others = [other for other in (*before, *rows_of) if other != label]
            if label in before:
                repeats.learned.extend(rows)
            elif others:
                repeats.undecided.update(dict.fromkeys(rows, others[0]))
            else:
                repeats.twice.update(dict.fromkeys(rows[1:], rows[0]))
    return repeats


def about_copies(names: Sequence[str], duplicates: Duplicates) -> str | None:
    """Describe copies in one sentence; None if there are none."""
    if not names:
        return None
    if duplicates == "leave_out":
        treatment = "left out"
    else:
        treatment = "learned again, as asked for"
    return f"note: {listed(names)} learned already or twice in the folder: {treatment}"


def about_labels(names: Sequence[str], duplicates: Duplicates | None) -> str | None:
    """Return what is said of images that lie in two classes; None if there are none.

    Args:
        names: of the images.
        duplicates: what becomes of them where images are learned; None where they are only tested.
    """
    if not names:
        return None
    if duplicates is None:
        treatment = "one label is probably wrong"
    elif duplicates == "keep":
        treatment = "learned as both, as asked for; one label is probably wrong"
    else:
        treatment = "not learned until each is in one alone, remove it from the wrong folder"
    return f"note: {listed(names)} in two classes: {treatment}"


# ---------------------------------------------------------------------- groups


def patterns(thumbnails: Sequence[np.ndarray]) -> np.ndarray:
    """Take the mean brightness and colour out of thumbnails, and their contrast.

    Args:
        thumbnails: n of (SIDE, SIDE, 3) uint8.

    Returns:
        (n, 3 · SIDE²) float32 of length 1, so that products are correlations; zeros for images of a
        single colour.
    """
    pixels = np.array(thumbnails, dtype=np.float32).reshape(-1, SIDE**2, 3)
    pixels = (pixels - pixels.mean(axis=1, keepdims=True)).reshape(-1, 3 * SIDE**2)
    length = np.linalg.norm(pixels, axis=1, keepdims=True)
    return np.where(length > SIDE, pixels / np.maximum(length, SIDE), np.float32(0))


def similar_groups(looks: Sequence[Look]) -> np.ndarray:
    """Join images of a class that look alike, and those of one burst.

    Args:
        looks: at the images of one class.

    Returns:
        (n,) int, one number from 0 for each group; -1 for images that cannot be read.
    """
    readable = [i for i, look in enumerate(looks) if look.thumbnail is not None]
    groups = np.full(len(looks), -1)
    if readable:
        pairs = _similar(patterns([looks[i].thumbnail for i in readable]))  # type: ignore[misc]
        pairs += bursts([looks[i] for i in readable], BURST)
        ends = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        count = len(readable)
        graph = coo_array(
            (np.ones(len(ends), dtype=bool), (ends[:, 0], ends[:, 1])), shape=(count, count)
        )
        groups[readable] = connected_components(graph, directed=False)[1]
    return groups


def bursts(looks: Sequence[Look], pause: float) -> list[tuple[int, int]]:
    """Return the positions of each image and the next one that was taken, at most ``pause`` seconds
    later.
    """
    timed = sorted((look.taken, i) for i, look in enumerate(looks) if look.taken is not None)
    return [(i, j) for (a, i), (b, j) in pairwise(timed) if (b - a).total_seconds() <= pause]


def _similar(seen: np.ndarray, block: int = 1024) -> list[tuple[int, int]]:
    pairs = []
    for start in range(0, len(seen), block):
        for other in range(0, start + 1, block):
            near = seen[start : start + block] @ seen[other : other + block].T > SIMILAR
            pairs += [
                (start + a, other + b)
                for a, b in np.argwhere(near).tolist()
                if start + a > other + b
            ]
    return pairs
