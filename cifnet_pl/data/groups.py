"""Group photos that must be held back together: those of one sub-folder, day or burst, or with similar names.

A random fifth of photos from one shelf tests nothing: each held-back photo has a twin among the learned ones.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cifnet_pl.data.loading import cores
from cifnet_pl.data.sets import FileSet, Source, SourceOptions, hash_order, held_back
from cifnet_pl.photos.photo import UnreadableImage, decoding, open_image, taken, taken_at
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import number_of, printable

SIDE = 8
"""Pixels of a thumbnail's side."""

PART, FIRST = 64, 8
"""Photos that are read together, and how many of them are timed first."""

LIGHT = 1e-3
"""Seconds of reading a photo below which several threads are slower than one.

Most of that time is Python's, whose lock they would pass to each other.
"""

NEVER = threading.Event()
"""An event that is never set: the reading cannot be stopped."""

SIMILAR = 0.95
"""Correlation of two thumbnails from which their photos are held back together."""

BURST = 2.0
"""Seconds between two photos of one burst, at most."""

LARGEST_SHARE = 2.0
"""How many times the wanted number of photos may be held back, so that groups stay whole."""


def read_thumbnail(file: Path) -> tuple[np.ndarray, datetime | None] | None:
    """Read the thumbnail of a photo, and when it was taken.

    Args:
        file: the photo.

    Returns:
        Both, None for an unknown time; or None if the photo is unreadable.
    """
    try:
        with decoding(), open_image(file) as image:
            when = taken(image)
            image.draft("RGB", (4 * SIDE, 4 * SIDE))
            return thumbnail(image.convert("RGB")), when
    except (UnreadableImage, OSError):  # it is reported as unreadable when it is to be learned
        return None


def thumbnail(image: Image.Image) -> np.ndarray:
    """Compute a small version of a photo.

    Args:
        image: RGB.

    Returns:
        (SIDE, SIDE, 3) uint8: brightness and colours.
    """
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX).convert("YCbCr"))


def patterns(thumbnails: Sequence[np.ndarray]) -> np.ndarray:
    """Take the mean brightness and colour out of thumbnails, and their contrast.

    Args:
        thumbnails: n of (SIDE, SIDE, 3) uint8.

    Returns:
        (n, 3 · SIDE²) float32 of length 1, so that products are correlations; zeros for photos of a single colour.
    """
    pixels = np.array(thumbnails, dtype=np.float32).reshape(-1, SIDE**2, 3)
    pixels = (pixels - pixels.mean(axis=1, keepdims=True)).reshape(-1, 3 * SIDE**2)
    length = np.linalg.norm(pixels, axis=1, keepdims=True)
    return np.where(length > SIDE, pixels / np.maximum(length, SIDE), np.float32(0))


def similar_groups(files: Sequence[Path], stop: threading.Event = NEVER) -> np.ndarray:
    """Join photos of a class that look alike, and those of one burst.

    Args:
        files: the photos of one class.
        stop: set by another thread, ends the reading.

    Returns:
        (n,) int, one number from 0 for each group; -1 for photos that cannot be read.

    Raises:
        CancelledError: ``stop`` was set.
    """
    looked = []
    for start in range(0, len(files), PART):
        if stop.is_set():
            raise CancelledError
        looked += _read(files[start : start + PART])
    readable = np.array([i for i, one in enumerate(looked) if one is not None], dtype=np.int64)
    groups = np.full(len(files), -1)
    if len(readable):
        groups[readable] = _joined([one for one in looked if one is not None])
    return groups


def _read(files: Sequence[Path]) -> list[tuple[np.ndarray, datetime | None] | None]:
    """Read the thumbnails of photos: the first ones in this thread, the rest in several if they take long to decode."""
    start = time.perf_counter()
    looked = [read_thumbnail(file) for file in files[:FIRST]]
    if time.perf_counter() - start < FIRST * LIGHT:
        return looked + [read_thumbnail(file) for file in files[FIRST:]]
    with ThreadPoolExecutor(cores(), "thumbnails") as pool:
        return looked + list(pool.map(read_thumbnail, files[FIRST:]))


def _joined(seen: list[tuple[np.ndarray, datetime | None]]) -> np.ndarray:
    joined = _similar(patterns([small for small, _ in seen]))
    timed = sorted((when, i) for i, (_, when) in enumerate(seen) if when is not None)
    joined += [(i, j) for (a, i), (b, j) in pairwise(timed) if (b - a).total_seconds() <= BURST]
    ends = np.array(joined, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), dtype=bool), (ends[:, 0], ends[:, 1])), shape=(len(seen), len(seen)))
    return np.asarray(connected_components(graph, directed=False)[1])


def _similar(seen: np.ndarray, block: int = 1024) -> list[tuple[int, int]]:
    pairs = []
    for start in range(0, len(seen), block):
        for other in range(0, start + 1, block):
            near = seen[start : start + block] @ seen[other : other + block].T > SIMILAR
            pairs += [(start + a, other + b) for a, b in np.argwhere(near).tolist() if start + a > other + b]
    return pairs


def held_back_together(
    names: Sequence[str], files: Sequence[Path], fraction: float, seed: int, stop: threading.Event = NEVER
) -> np.ndarray:
    """Choose the photos of one class that are for validation, with photos that look alike all on the same side.

    Without photos that look alike this equals :func:`held_back`. Groups are taken in the order of the seeded hashes of
    their first photos, as long as they bring the number nearer to the share. If no group can be taken so, the photos
    are divided one by one.

    Args:
        names: names of the photos, which are hashed as by :func:`held_back`.
        files: the photos with these names.
        fraction: share to hold back.
        seed: of the choice.
        stop: as for :func:`similar_groups`.

    Returns:
        (n,) bool.

    Raises:
        CancelledError: ``stop`` was set.
    """
    single = held_back(names, fraction, seed)
    groups = similar_groups(files, stop)
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    if sizes.max() <= 1:
        return single
    wanted, taken_groups, count = int(single.sum()), set[int](), 0
    for group in dict.fromkeys(groups[hash_order(names, seed)].tolist()):
        size = int(sizes[group])  # nothing is tested by photos that cannot be read
        if group >= 0 and abs(count + size - wanted) < abs(count - wanted) and count + size < len(names):
            taken_groups.add(group)
            count += size
    if not 0 < count <= LARGEST_SHARE * wanted:
        return single
    return np.isin(groups, list(taken_groups))


PAUSE = 30.0
"""Seconds without a photo that end a burst."""

NEAR, SINGLE = "near", "single"
"""The default, photos that look alike (:mod:`cifnet_pl.data.groups`); and none, each photo for itself."""

NAMED_GROUPS = "name:"
"""Begins a group by a pattern of names: ``name:REGULAR EXPRESSION``; photos with the same match belong together."""


def _folders(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the folder of each photo within its class folder; a photo directly in the class folder stands alone."""
    parents = [PurePosixPath(files.names[row]).parent for row in rows]
    return [str(p) if len(p.parts) > 1 else files.names[row] for p, row in zip(parents, rows, strict=True)]


def _days(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the day on which each photo was taken; a photo without a date is its own group."""
    taken = [taken_at(files.root / files.names[row]) for row in rows]
    return [files.names[row] if t is None else t.date().isoformat() for t, row in zip(taken, rows, strict=True)]


def _bursts(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the first photo of the burst of each photo; a pause longer than ``PAUSE`` ends a burst."""
    taken = [taken_at(files.root / files.names[row]) for row in rows]
    groups = [files.names[row] for row in rows]
    timed = sorted((t, i) for i, t in enumerate(taken) if t is not None)
    for (before, previous), (after, i) in pairwise(timed):
        if (after - before).total_seconds() <= PAUSE:
            groups[i] = groups[previous]
    return groups


GROUPS: dict[str, Callable[[FileSet, np.ndarray], list[str]]] = {"folder": _folders, "day": _days, "burst": _bursts}
"""Name of a kind of group → function of the photos and the rows of one class that names the group of each."""


def grouping(kind: str) -> Callable[[FileSet, np.ndarray], list[str]]:
    """Return the function that names the groups of ``kind``.

    Raises:
        UsageError: an unknown kind, or a pattern that is no regular expression.
    """
    if kind in GROUPS:
        return GROUPS[kind]
    if not kind.startswith(NAMED_GROUPS):
        raise unknown_name("group of photos", kind, [NEAR, SINGLE, *GROUPS, f"{NAMED_GROUPS}REGULAR EXPRESSION"])
    try:
        pattern = re.compile(kind.removeprefix(NAMED_GROUPS))
    except re.error as error:
        raise UsageError(f"--data.group {kind} is no regular expression: {error}") from error

    def by_name(files: FileSet, rows: np.ndarray) -> list[str]:
        groups = []
        for row in rows:
            match = pattern.search(PurePosixPath(files.names[row]).name)
            groups.append(files.names[row] if match is None else "\0".join(match.groups("") or (match[0],)))
        return groups

    return by_name


def split_by_group(class_names: list[str], whole: FileSet, options: SourceOptions) -> Source:
    """Hold back about a share of each class's photos, in whole groups.

    A class of a single group has none to hold back: it is learned, and untested.

    Args:
        class_names: names of the classes.
        whole: all photos.
        options: kind of group, share and seed.

    Raises:
        UsageError: an unknown kind of group, or a share that is none.
    """
    assert options.group is not None
    if not 0 < options.val_fraction < 1:
        raise UsageError(f"val_fraction is {options.val_fraction:g}, expected a number between 0 and 1")
    group_of = grouping(options.group)
    val, alone, whole_classes = np.zeros(len(whole), dtype=bool), 0, list[str]()
    for label, rows in whole.rows_of.items():
        groups = group_of(whole, rows)
        sizes = Counter(groups)
        alone += sum(sizes[group] == 1 and group == whole.names[row] for group, row in zip(groups, rows, strict=True))
        chosen = _chosen(groups, class_names[label], options)
        val[rows] = [group in chosen for group in groups]
        if len(rows) > 1 and len(sizes) == 1:
            whole_classes.append(printable(class_names[label]))
    notes = [_about_alone(options.group, alone, len(whole)), _about_whole_classes(options.group, whole_classes)]
    return Source(
        class_names,
        whole.subset(np.flatnonzero(~val)),
        whole.subset(np.flatnonzero(val)),
        notes=tuple(filter(None, notes)),
    )


def _about_alone(kind: str, alone: int, total: int) -> str | None:
    """Say how many photos belong to no group, so that a random split is not taken for one by groups; None if all do.

    Args:
        kind: of the groups.
        alone: photos without one.
        total: all photos.
    """
    if not alone or (kind == "burst" and alone < total):  # a photo alone may be a burst of its own
        return None
    without = {"day": "without a date", "folder": "in no sub-folder", "burst": "without another one of the same burst"}
    photos = f"all {total} photos" if alone == total else f"{number_of(alone, 'photo')} of {total}"
    return f"note: {photos} {without.get(kind, f'without a match of {kind}')}: held back one by one"


def _about_whole_classes(kind: str, names: Sequence[str]) -> str | None:
    """Say of which classes nothing is held back because their photos are one group; None if there are none.

    Args:
        kind: of the groups.
        names: of the classes.
    """
    if not names:
        return None
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    classes = "class" if len(names) == 1 else "each of the classes"
    return f"note: all photos of {classes} {shown} belong together by --data.group {kind}, so that none is held back"


def split_near(class_names: list[str], whole: FileSet, options: SourceOptions) -> Source:
    """Hold back a share of each class's photos; if possible, photos that look alike are all on the same side.

    Args:
        class_names: of all classes.
        whole: the photos of all classes.
        options: the share (``val_fraction``) and the seed of the split.
    """
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        names = [whole.names[row] for row in rows]
        files = [whole.root / name for name in names]
        val[rows] = held_back_together(names, files, options.val_fraction, options.split_seed)
    return Source(class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val)))


def _chosen(groups: Sequence[str], class_name: str, options: SourceOptions) -> set[str]:
    """Choose groups in the order of a seeded hash, as long as they bring the number of photos nearer to the share."""
    names, counts = np.unique(groups, return_counts=True)
    if len(names) < 2:
        return set()
    order = hash_order([f"{class_name}\0{name}" for name in names], options.split_seed)
    wanted, taken, chosen = options.val_fraction * len(groups), 0, set[str]()
    for i in order[:-1]:
        if not chosen or abs(taken + counts[i] - wanted) < abs(taken - wanted):
            chosen.add(str(names[i]))
            taken += int(counts[i])
    return chosen
