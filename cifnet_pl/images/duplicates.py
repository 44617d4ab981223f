"""Images that are the same or alike: copies by their hashes; near-duplicates, bursts and groups,
held out together.

A copy adds weight without adding knowledge, and one that is held out tests nothing. A random fifth
of images from one shelf tests nothing either: each held-out image has a twin among the learned
ones.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Literal

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cifnet_pl.images.image import NOTHING, SIDE, Look
from cifnet_pl.utilities.errors import UsageError, check_that, explained, unknown_name
from cifnet_pl.utilities.text import listed

Duplicates = Literal["leave_out", "keep"]
"""What becomes of copies: they are left out, or learned all the same."""

SIMILAR = 0.95
"""Correlation of two thumbnails from which their images are held out together."""

BURST = 2.0
PAUSE = 30.0
"""Seconds between two images of one burst, at most: as they are found without being asked for, and
with.
"""

LARGEST_SHARE = 2.0
"""How many times the wanted number of images may be held out, so that groups stay whole."""

NEAR = "near"
SINGLE = "single"
"""The default, images that look alike; and none, each image for itself."""

NAMED_GROUPS = "name:"
"""Begins a group by a pattern of names: ``name:REGULAR EXPRESSION``; images with the same match
belong together.
"""


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


# ---------------------------------------------------------------------- holding back


def hash_order(names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of ``names`` in the order of a seeded hash of each."""
    return sorted(range(len(names)), key=lambda i: _hash(f"{seed}\0{names[i]}"))


def number_of_name(name: str) -> int:
    """Return a hash of a name as a signed number of 64 bits."""
    return int.from_bytes(_hash(name), "big", signed=True)


def _hash(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def held_out(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Choose the images of one class that are for validation, by a seeded hash of each name.

    Images that are added later hardly change the choice among earlier ones, and the order of the
    files does not matter.

    Args:
        names: of the images.
        fraction: share to hold out.
        seed: of the choice.

    Returns:
        (n,) bool; at least one of two is chosen, never all.

    Raises:
        UsageError: the share is not between 0 and 1.

    Example:
        >>> int(held_out(["a", "b", "c", "d"], 0.25, seed=0).sum())
        1
    """
    check_share(fraction)
    count = min(max(round(len(names) * fraction), 1), len(names) - 1)
    chosen = np.zeros(len(names), dtype=bool)
    chosen[hash_order(names, seed)[:count]] = True
    return chosen


def check_share(fraction: float) -> None:
    """Raise UsageError unless a share to hold out is between 0 and 1."""
    check_that(0 < fraction < 1, "val_fraction", fraction, "a number between 0 and 1")


def held_out_together(
    names: Sequence[str], looks: Sequence[Look], fraction: float, seed: int
) -> np.ndarray:
    """Choose the images of one class that are for validation, with images that look alike all on
    the same side.

    Without images that look alike this equals :func:`held_out`. Groups are taken in the order of
    the seeded hashes of their first images, as long as they bring the number nearer to the share.
    If no group can be taken so, the images are divided one by one.

    Args:
        names: names of the images, which are hashed as by :func:`held_out`.
        looks: of the images with these names.
        fraction: share to hold out.
        seed: of the choice.

    Returns:
        (n,) bool.
    """
    single = held_out(names, fraction, seed)
    groups = similar_groups(looks)
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    if sizes.max() <= 1:
        return single
    wanted = int(single.sum())
    chosen = set[int]()
    count = 0
    for group in dict.fromkeys(groups[hash_order(names, seed)].tolist()):
        size = int(sizes[group])  # nothing is tested by images that cannot be read
        if (
            group >= 0
            and abs(count + size - wanted) < abs(count - wanted)
            and count + size < len(names)
        ):
            chosen.add(group)
            count += size
    if not 0 < count <= LARGEST_SHARE * wanted:
        return single
    return np.isin(groups, list(chosen))


def held_out_groups(
    groups: Sequence[str], class_name: str, fraction: float, seed: int
) -> np.ndarray:
    """Choose whole groups of one class, in the order of a seeded hash, as long as they bring the
    number nearer.

    Args:
        groups: name of each image's group.
        class_name: name of the class.
        fraction: share of the images to hold out.
        seed: of the choice.

    Returns:
        (n,) bool; of a single group nothing is chosen.
    """
    names, counts = np.unique(groups, return_counts=True)
    order = hash_order([f"{class_name}\0{name}" for name in names], seed)
    wanted = fraction * len(groups)
    count = 0
    chosen = list[str]()
    for i in order[:-1]:
        if not chosen or abs(count + counts[i] - wanted) < abs(count - wanted):
            chosen.append(names[i])
            count += int(counts[i])
    return np.isin(groups, chosen)


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


def _folders(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the folder of each image within its class folder; an image directly in the class
    folder stands alone.
    """
    parents = [PurePosixPath(name).parent for name in names]
    return [str(p) if len(p.parts) > 1 else name for p, name in zip(parents, names, strict=True)]


def _days(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the day on which each image was taken; an image without a date is its own group."""
    pairs = zip(names, looks, strict=True)
    return [name if look.taken is None else look.taken.date().isoformat() for name, look in pairs]


def _bursts(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the first image of the burst of each image; a pause longer than ``PAUSE`` ends a
    burst.
    """
    groups = list(names)
    for earlier, later in bursts(looks, PAUSE):
        groups[later] = groups[earlier]
    return groups


def _by_name(pattern: re.Pattern[str], names: Sequence[str]) -> list[str]:
    """Return what the pattern matches in each file's name; an image without a match is its own
    group.
    """
    found = [pattern.search(PurePosixPath(name).name) for name in names]
    return [
        n if m is None else "\0".join(m.groups("") or (m[0],))
        for n, m in zip(names, found, strict=True)
    ]


GROUPS = {"folder": _folders, "day": _days, "burst": _bursts}
"""Name of a kind of group → function of the names of one class's images, and looks at them, that
names their groups.
"""

Grouped = Callable[[Sequence[str], Sequence[Look]], list[str]]


def grouping(kind: str) -> Grouped:
    """Return the function that names the groups of ``kind``.

    Raises:
        UsageError: an unknown kind, or a pattern that is no regular expression.
    """
    if kind in GROUPS:
        return GROUPS[kind]
    if not kind.startswith(NAMED_GROUPS):
        raise unknown_name(
            "group of images", kind, [NEAR, SINGLE, *GROUPS, f"{NAMED_GROUPS}REGULAR EXPRESSION"]
        )
    with explained(UsageError, f"--data.group {kind} is no regular expression"):
        pattern = re.compile(kind.removeprefix(NAMED_GROUPS))
    return lambda names, looks: _by_name(pattern, names)
