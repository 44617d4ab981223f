"""Find photos that look alike before any network has seen them: shots of one burst, and files saved again.

Photos are compared within a class by the time in their files, and by thumbnails of 8 by 8 pixels. These join copies
that were saved anew, made smaller or brighter, and photos of a camera that hardly moved (``benchmarks/near_copies.py``
counts how many). Others are found by their embeddings once these are known: ``fit`` and ``extend`` report them beside
the score.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cifnet_pl.data.exif import taken
from cifnet_pl.data.image_sets import hash_order, held_back
from cifnet_pl.data.images import UnreadableImage, decoding, open_image
from cifnet_pl.data.workers import cores

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
