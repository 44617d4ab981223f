"""Fixed sequences of labelled images, in files or in memory, and their split into training and validation."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.data.images import decoding, read_square, square
from cifnet_pl.data.photo_files import identity, read_bytes
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable


class ImageSet(ABC):
    """A fixed sequence of labelled images.

    Attributes:
        labels: (n,) int64, position of each image's class in the source's ``class_names``.
        names: identity of each image: its path relative to the root, or its index.
    """

    labels: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Image ``index`` as (size, size, 3) uint8."""

    def place(self, index: int) -> str:
        """Where image ``index`` is, for messages, on one line."""
        return printable(self.names[index])

    @abstractmethod
    def subset(self, rows: np.ndarray) -> ImageSet:
        """The images at positions ``rows``, with the names that they have here."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Everything that image ``index`` is decoded from: the file's bytes, or the pixels."""

    def stat(self, index: int) -> tuple[int, ...] | str:
        """Cheap identity of the content: equal marks mean equal contents; where none is cheap, its SHA-256 in hex."""
        return hashlib.sha256(self.content(index)).hexdigest()

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Class position → positions of its images, ascending."""
        order = np.argsort(self.labels, kind="stable")
        classes, starts = np.unique(self.labels[order], return_index=True)
        return dict(zip(classes.tolist(), np.split(order, starts)[1:], strict=True))


@dataclass
class Source:
    """A training and a validation set over the same classes."""

    class_names: list[str]
    train: ImageSet
    val: ImageSet


class FileSet(ImageSet):
    """Images in files below ``root``, a folder or a Zip archive."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int]):
        self.root, self.names = root, list(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Decode the file; raises UnreadableImage."""
        return read_square(self.root / self.names[index], size, crop_ratio)

    def place(self, index: int) -> str:
        """The file's path."""
        return printable(str(self.root / self.names[index]))

    def subset(self, rows: np.ndarray) -> FileSet:
        """The files at positions ``rows``."""
        return FileSet(self.root, [self.names[i] for i in rows], self.labels[rows].tolist())

    def content(self, index: int) -> bytes:
        """The file's bytes."""
        return read_bytes(self.root / self.names[index])

    def stat(self, index: int) -> tuple[int, ...]:
        """Size, inode and times of modification and of change: the last cannot be set back by a program."""
        return identity(self.root / self.names[index])


class ArraySet(ImageSet):
    """Images held in memory or in another data set's object.

    Args:
        read: position in that object → image; can be pickled, so that spawned workers can receive it.
        labels: class position of each image.
        rows: position of each image in the object, which is also its name; by default 0, 1, …
    """

    def __init__(self, read: Callable[[int], Image.Image], labels: Sequence[int], rows: Sequence[int] | None = None):
        self.read = read
        self.labels = np.asarray(labels, dtype=np.int64)
        self.rows = np.arange(len(self.labels)) if rows is None else np.asarray(rows, dtype=np.int64)
        self.names = [str(i) for i in self.rows]

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Resize and crop the image; raises UnreadableImage."""
        with decoding():
            image = self.read(int(self.rows[index]))
        return square(image, size, crop_ratio)

    def place(self, index: int) -> str:
        """The image's position in the data set."""
        return f"number {self.names[index]}"

    def subset(self, rows: np.ndarray) -> ArraySet:
        """The images at positions ``rows``."""
        return ArraySet(self.read, self.labels[rows].tolist(), self.rows[rows].tolist())

    def content(self, index: int) -> bytes:
        """The image's size, mode and pixels."""
        image = self.read(int(self.rows[index]))
        return repr((image.size, image.mode, image.getpalette())).encode() + image.tobytes()


@dataclass(frozen=True)
class SourceOptions:
    """What every source is built from; a source takes what it has a use for. ``own`` are options of one source."""

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)


def held_back(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Which of one class's images are for validation: (n,) bool, at least one of two, never all.

    By a seeded hash of each name, so that images added later do not move earlier ones far, and the order of the
    files does not matter.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"val_fraction is {fraction:g}, expected a number between 0 and 1")
    count = min(max(round(len(names) * fraction), 1), len(names) - 1)
    ranks = [
        hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names
    ]
    chosen = np.zeros(len(names), dtype=bool)
    chosen[sorted(range(len(names)), key=ranks.__getitem__)[:count]] = True
    return chosen


def split_by_seed(class_names: list[str], whole: ImageSet, options: SourceOptions) -> Source:
    """Hold back a share of each class's images for validation."""
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        val[rows] = held_back([whole.names[i] for i in rows], options.val_fraction, options.split_seed)
    return Source(class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val)))


def place(path: Path) -> str:
    """A path for a message, on one line."""
    return printable(str(path))


def expanded(path: Path) -> Path:
    """``path`` with the home folder in place of a leading ``~``; other names that begin with it stay."""
    return Path(os.path.expanduser(path))
