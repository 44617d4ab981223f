"""Photos in files: find them without holding their names in memory, and decode them in the background."""

from __future__ import annotations

import glob
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cifnet_pl.data.loading import cores
from cifnet_pl.data.sources.folders import listing
from cifnet_pl.photos.files import archived_files, is_folder, is_image, walk_images, within
from cifnet_pl.photos.photo import Photo, UnreadableImage, read_square
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

BATCHES_AHEAD = 2
"""Batches that are being decoded while one is being embedded."""

PART = 4
"""Photos that a thread decodes at once, if there are enough for all threads."""


class PhotoBatch(NamedTuple):
    """Decoded photos.

    Attributes:
        files: all photos of the batch.
        image: (m, 3, s, s) uint8, those that could be read, in the order of ``files``.
        unreadable: for each of ``files`` the reason why it could not be read, or None.
    """

    files: tuple[Photo, ...]
    image: Tensor
    unreadable: tuple[str | None, ...]


def find_photos(source: str) -> Iterator[Path]:
    """Yield the photos of a file, a folder with its sub-folders, a Zip archive, or a glob (``**`` for any depth).

    Hidden files are skipped, and in folders files that are not named as images; no folder is entered twice.

    Args:
        source: path or pattern.

    Raises:
        DataError: there is no such file or folder, it holds no photo, or a folder cannot be read.
    """
    path = Path(os.path.expanduser(source))
    photos: Iterator[Path]
    if within(path) is not None and is_folder(path):
        photos, nothing = filter(is_image, archived_files(path)), f"archive {printable(source)} holds no photo"
    elif path.is_dir():
        photos, nothing = _readable(path), f"folder {printable(source)} holds no photo"
    elif path.exists() or _in_archive(path):
        return iter([path])
    elif glob.has_magic(str(path)):
        photos, nothing = _matching(path), f"no photo matches {printable(source)}"
    else:
        kind = "Zip archive" if path.suffix.lower() == ".zip" else "file or folder"
        raise DataError(f"no {kind} {printable(source)}: give a photo, a folder, a Zip archive, or a pattern in quotes")
    first = next(photos, None)
    if first is None:
        raise DataError(f"{nothing}: give a photo, a folder or Zip archive of photos, or a pattern in quotes")
    return chain([first], photos)


def _in_archive(path: Path) -> bool:
    inside = within(path)
    return inside is not None and path in archived_files(inside[0])


def photos_of(photos: Photo | str | Iterable[Photo | str]) -> Iterator[Photo]:
    """Yield one or many photos.

    Args:
        photos: paths, contents of files, or Pillow images; one alone, or several. A single path may be a folder.

    Raises:
        DataError: there is no photo at a single path.
        UsageError: something else than a photo.
    """
    if isinstance(photos, str | Path):
        return iter(find_photos(str(photos)))
    return map(_as_photo, [photos] if isinstance(photos, bytes | bytearray | Image.Image) else photos)


def _as_photo(item: object) -> Photo:
    if isinstance(item, bytes | Path | Image.Image):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str | os.PathLike):
        return Path(os.fspath(item))
    raise UsageError(f"a {type(item).__name__} is no photo: give a path, the bytes of a file, or a Pillow image")


def place_of(photo: Photo) -> str:
    """Return where a photo is, for messages, on one line."""
    return printable(str(photo)) if isinstance(photo, Path) else "a photo in memory"


def _matching(pattern: Path) -> Iterator[Path]:
    """Yield the photos whose paths match a pattern, as in a shell, but without following links in circles."""
    plain = next(i for i, component in enumerate(pattern.parts) if glob.has_magic(component))
    base, parts = Path(*pattern.parts[:plain]), pattern.parts[plain:]
    if base.is_dir():
        depth = None if "**" in parts else len(parts)
        yield from (path for path in _readable(base, depth) if matches(path.relative_to(base).parts, parts))


def matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a glob.

    Args:
        names: parts of the path.
        pattern: parts of the glob; ``**`` stands for any number of parts.

    Example:
        >>> matches(["a", "b", "c.jpg"], ["**", "*.jpg"])
        True
    """
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(matches(names[i:], pattern[1:]) for i in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and matches(names[1:], pattern[1:])


def _readable(folder: Path, depth: int | None = None) -> Iterator[Path]:
    with listing():
        yield from walk_images(folder, depth)


def squares(files: Iterable[Photo], size: int, crop_ratio: float) -> Iterator[PhotoBatch]:
    """Decode photos in threads, a few batches ahead of the consumer; memory does not grow with their number.

    Args:
        files: the photos.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
    """
    count = batch_size(size)
    remaining = iter(files)
    waiting: deque[tuple[tuple[Photo, ...], np.ndarray, list[Future[list[str | None]]]]] = deque()
    pool = ThreadPoolExecutor(cores(), "decode")
    try:
        while True:
            while len(waiting) <= BATCHES_AHEAD and (batch := tuple(islice(remaining, count))):
                pixels = np.empty((len(batch), size, size, 3), dtype=np.uint8)
                part = max(1, min(PART, len(batch) // cores()))
                parts = [
                    pool.submit(_read, batch[i : i + part], pixels[i : i + part], crop_ratio)
                    for i in range(0, len(batch), part)
                ]
                waiting.append((batch, pixels, parts))
            if not waiting:
                return
            yield _collect(*waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def batch_size(size: int) -> int:
    """Return the number of photos in a batch: 64 for sides from 256 to 512 pixels, more of smaller ones, at most 256.

    At the end of each batch the threads that embed wait for each other. In batches of small photos they would do so
    too often.
    """
    return max(1, min(256, max(64, 2**22 // size**2), 2**24 // size**2))


def _read(files: Sequence[Photo], pixels: np.ndarray, crop_ratio: float) -> list[str | None]:
    """Decode photos into ``pixels`` (n, s, s, 3), and return for each the reason why it could not be read, or None."""
    return [_read_into(photo, pixels[i], crop_ratio) for i, photo in enumerate(files)]


def _read_into(photo: Photo, pixels: np.ndarray, crop_ratio: float) -> str | None:
    try:
        pixels[:] = read_square(photo, len(pixels), crop_ratio)
    except UnreadableImage as error:
        return str(error)
    return None


def _collect(files: tuple[Photo, ...], pixels: np.ndarray, parts: list[Future[list[str | None]]]) -> PhotoBatch:
    reasons = tuple(reason for part in parts for reason in part.result())
    readable = np.array([reason is None for reason in reasons])
    pixels = pixels if readable.all() else pixels[readable]
    return PhotoBatch(files, torch.from_numpy(pixels).permute(0, 3, 1, 2), reasons)
