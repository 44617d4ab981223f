"""Read many photos in threads: their pixels ahead of who takes them, or what is small of each."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cifnet_pl.photos.files import find_photos, place
from cifnet_pl.photos.photo import NOTHING, AnyPhoto, Look, Photo, UnreadableImage
from cifnet_pl.utilities.errors import UsageError

MOST = 16
"""Cores that decoding takes unless told otherwise."""

BATCHES_AHEAD = 2
"""Batches that are being decoded while one is being embedded."""

PART = 4
"""Photos that a thread decodes at once, if there are enough for all threads."""

LOOKED, FIRST = 64, 8
"""Photos that are looked at together, and how many of them are timed first."""

LIGHT = 1e-3
"""Seconds of reading a photo below which several threads are slower than one.

Most of that time is Python's, whose lock they would pass to each other.
"""


def usable_cores() -> int:
    """Return the number of cores that this process may use; not every system can say which."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cores(processes: int = 1) -> int:
    """Return the number of cores for decoding.

    Args:
        processes: number of processes on this machine that decode; each gets an equal share.

    Returns:
        At least 1, at most ``MOST``.
    """
    return max(1, min(usable_cores() // processes, MOST))


def photos_of(photos: AnyPhoto | str | Iterable[AnyPhoto | str]) -> Iterator[AnyPhoto]:
    """Yield one or many photos.

    Args:
        photos: paths, contents of files, or Pillow images; one alone, or several. A single path may be a folder.

    Raises:
        DataError: there is no photo at a single path.
        UsageError: something else than a photo.
    """
    if isinstance(photos, str | Path):
        return iter(find_photos(photos))
    return map(_as_photo, [photos] if isinstance(photos, bytes | bytearray | Image.Image) else photos)


def _as_photo(item: object) -> AnyPhoto:
    if isinstance(item, bytes | Path | Image.Image):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str | os.PathLike):
        return Path(os.fspath(item))
    raise UsageError(f"a {type(item).__name__} is no photo: give a path, the bytes of a file, or a Pillow image")


def place_of(photo: AnyPhoto) -> str:
    """Return where a photo is, for messages, on one line."""
    return place(photo) if isinstance(photo, Path) else "a photo in memory"


SKIPPED = "left out"
"""Why a photo that was not wanted has no pixels."""

Outcome = tuple[str | None, Look | None]
"""Why a photo could not be read, or None; and what is small of it."""


class PhotoBatch(NamedTuple):
    """Decoded photos.

    Attributes:
        files: all photos of the batch.
        image: (m, 3, s, s) uint8, those that could be read, in the order of ``files``.
        unreadable: for each of ``files`` the reason why it could not be read, or None.
        seen: for each of ``files`` what ``look`` of :func:`squares` gave; None if it could not be read.
    """

    files: tuple[AnyPhoto, ...]
    image: Tensor
    unreadable: tuple[str | None, ...]
    seen: tuple[Look | None, ...]


def squares(
    files: Iterable[AnyPhoto],
    size: int,
    crop_ratio: float,
    look: Callable[[Photo], Look] | None = None,
    skip: Callable[[int, int], bool] | None = None,
) -> Iterator[PhotoBatch]:
    """Decode photos in threads, a few batches ahead of the consumer; memory does not grow with their number.

    Args:
        files: the photos.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        look: what else is wanted of each photo while its bytes are in memory; None for nothing.
        skip: whether the photo of a position and hash is not decoded; ``SKIPPED`` is then its reason.
    """
    count = batch_size(size)
    remaining = enumerate(files)
    waiting: deque[tuple[tuple[AnyPhoto, ...], np.ndarray, list[Future[list[Outcome]]]]] = deque()

    def read_one(position: int, given: AnyPhoto, pixels: np.ndarray) -> Outcome:
        try:
            photo = Photo(given)
            if skip is not None and skip(position, photo.hash):
                return SKIPPED, Look(photo.hash, None, None)
            pixels[:] = photo.square(size, crop_ratio)
            return None, None if look is None else look(photo)
        except UnreadableImage as error:
            return str(error), None

    def read(photos: Sequence[tuple[int, AnyPhoto]], pixels: np.ndarray) -> list[Outcome]:
        return [read_one(*photo, pixels[i]) for i, photo in enumerate(photos)]

    pool = ThreadPoolExecutor(cores(), "decode")
    try:
        while True:
            while len(waiting) <= BATCHES_AHEAD and (batch := tuple(islice(remaining, count))):
                pixels = np.empty((len(batch), size, size, 3), dtype=np.uint8)
                part = max(1, min(PART, len(batch) // cores()))
                starts = range(0, len(batch), part)
                parts = [pool.submit(read, batch[i : i + part], pixels[i : i + part]) for i in starts]
                waiting.append((tuple(photo for _, photo in batch), pixels, parts))
            if not waiting:
                return
            photos, pixels, parts = waiting.popleft()
            reasons, seen = zip(*(outcome for part_of in parts for outcome in part_of.result()), strict=True)
            readable = [reason is None for reason in reasons]
            pixels = pixels if all(readable) else pixels[readable]
            yield PhotoBatch(photos, torch.from_numpy(pixels).permute(0, 3, 1, 2), reasons, seen)
    finally:
        pool.shutdown(cancel_futures=True)


def batch_size(size: int) -> int:
    """Return the number of photos in a batch: 64 for sides from 256 to 512 pixels, more of smaller ones, at most 256.

    At the end of each batch the threads that embed wait for each other. In batches of small photos they would do so
    too often.
    """
    return max(1, min(256, max(64, 2**22 // size**2), 2**24 // size**2))


def look_at(file: Path) -> Look:
    """Read a photo, and return what is small of it; the hash of nothing where it cannot be read."""
    try:
        return Photo(file).look()
    except UnreadableImage:
        return Look(NOTHING, None, None)


def hashes_of(files: Sequence[Path]) -> np.ndarray:
    """Read photos, and return their content hashes (n,) int64; those of nothing for what cannot be read.

    A plain loop: threads took 2.6 times as long on 6000 small files that had just been read.
    """
    hashes = []
    for file in files:
        try:
            hashes.append(Photo(file).hash)
        except UnreadableImage:  # it is reported when it is to be decoded
            hashes.append(NOTHING)
    return np.array(hashes, dtype=np.int64)


def looks_at(files: Sequence[Path]) -> list[Look]:
    """Look at photos: the first ones of each part in this thread, the rest in several if they take long to decode.

    Args:
        files: the photos.
    """
    seen: list[Look] = []
    for start in range(0, len(files), LOOKED):
        first, rest = files[start : start + FIRST], files[start + FIRST : start + LOOKED]
        begun = time.perf_counter()
        seen += map(look_at, first)
        if time.perf_counter() - begun < FIRST * LIGHT:
            seen += map(look_at, rest)
        else:
            with ThreadPoolExecutor(cores(), "look") as pool:
                seen += pool.map(look_at, rest)
    return seen
