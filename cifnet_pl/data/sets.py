"""Fixed sequences of labelled samples, in files or in memory, and their split into training and validation."""

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

from cifnet_pl.photos.files import file_size, identity, read_bytes
from cifnet_pl.photos.photo import decoding, read_square, square
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable


class SampleSet(ABC):
    """A fixed sequence of labelled samples: images, or embeddings that were computed elsewhere.

    Attributes:
        labels: (n,) int64, position of each sample's class in the source's ``class_names``.
        names: identity of each sample: its path relative to the root, its id, or its index.
    """

    labels: np.ndarray
    names: Sequence[str]
    sequential: bool = False
    """Whether samples are best read in ascending order, as they lie one after the other in large files."""

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, index: int) -> str:
        """Return where sample ``index`` is, for messages, on one line."""
        return printable(self.names[index])

    @abstractmethod
    def subset(self, rows: np.ndarray) -> SampleSet:
        """Return the samples at positions ``rows``, with the names that they have here."""

    @abstractmethod
    def content(self, index: int) -> bytes:
        """Return everything that sample ``index`` is made from: the file's bytes, the pixels, or the numbers."""

    def stat(self, index: int) -> tuple[int, ...] | str:
        """Return a mark that is cheap to compute and changes with the content; by default the content's SHA-256."""
        return hashlib.sha256(self.content(index)).hexdigest()

    def size(self, index: int) -> int:
        """Return the number of bytes of the content, or -1 where that is not known without reading it."""
        return -1

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Class position → positions of its samples, ascending."""
        order = np.argsort(self.labels, kind="stable")
        classes, starts = np.unique(self.labels[order], return_index=True)
        return dict(zip(classes.tolist(), np.split(order, starts)[1:], strict=True))


class ImageSet(SampleSet):
    """A fixed sequence of labelled images."""

    @abstractmethod
    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Decode one image to a square, see :func:`cifnet_pl.photos.photo.square`.

        Args:
            index: position of the image.
            size: side of the square in pixels.
            crop_ratio: share of the short side that is kept.

        Returns:
            (size, size, 3) uint8.

        Raises:
            UnreadableImage: the image cannot be decoded.
        """

    @abstractmethod
    def subset(self, rows: np.ndarray) -> ImageSet:
        """Return the images at positions ``rows``, with the names that they have here."""


@dataclass(frozen=True)
class Grouping:
    """A second label of every sample, such as the session that it was recorded in.

    Attributes:
        names: name of each group, in the order in which the source gives them.
        train: (n,) int64, position of each training sample's group in ``names``.
        val: the same of the validation samples.
    """

    names: list[str]
    train: np.ndarray
    val: np.ndarray


@dataclass
class Source:
    """A training and a validation set over the same classes.

    Attributes:
        class_names: name of each class; labels are positions in it.
        train, val: the two sets.
        domains: the session, place or camera of each sample, where the source knows it.
        tasks: the task that the source itself assigns to each sample, where it does.
        notes: sentences for the user about how the two sets were made.
    """

    class_names: list[str]
    train: SampleSet
    val: SampleSet
    domains: Grouping | None = None
    tasks: Grouping | None = None
    notes: tuple[str, ...] = ()


class FileSet(ImageSet):
    """Images in files below ``root``, a folder or a Zip archive."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int]):
        self.root, self.names = root, list(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Decode the file, as :meth:`ImageSet.square`."""
        return read_square(self.root / self.names[index], size, crop_ratio)

    def place(self, index: int) -> str:
        """Return the file's path."""
        return printable(str(self.root / self.names[index]))

    def subset(self, rows: np.ndarray) -> FileSet:
        """Return the files at positions ``rows``."""
        return FileSet(self.root, [self.names[i] for i in rows], self.labels[rows].tolist())

    def content(self, index: int) -> bytes:
        """Return the file's bytes."""
        return read_bytes(self.root / self.names[index])

    def stat(self, index: int) -> tuple[int, ...]:
        """Return the size, inode and times of modification and of change: the last cannot be set back by a program."""
        return identity(self.root / self.names[index])

    def size(self, index: int) -> int:
        """Return the file's size."""
        return file_size(self.root / self.names[index])


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
        """Resize and crop the image, as :meth:`ImageSet.square`."""
        with decoding():
            image = self.read(int(self.rows[index]))
        return square(image, size, crop_ratio)

    def place(self, index: int) -> str:
        """Return the image's position in the data set."""
        return f"number {self.names[index]}"

    def subset(self, rows: np.ndarray) -> ArraySet:
        """Return the images at positions ``rows``."""
        return ArraySet(self.read, self.labels[rows].tolist(), self.rows[rows].tolist())

    def content(self, index: int) -> bytes:
        """Return the image's size, mode and pixels."""
        image = self.read(int(self.rows[index]))
        return repr((image.size, image.mode, image.getpalette())).encode() + image.tobytes()


@dataclass(frozen=True)
class SourceOptions:
    """Options to build a source from; a source uses those that it needs.

    Attributes:
        root: folder or file of the data.
        val_fraction: share of each class that is held back if the data have no test part.
        split_seed: seed of that split.
        download: whether data may be fetched.
        own: options of one source alone.
        group: how photos that are held back together are found (:mod:`cifnet_pl.data.groups`).
    """

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None


def held_back(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Choose the images of one class that are for validation, by a seeded hash of each name.

    Images that are added later hardly change the choice among earlier ones, and the order of the files does not matter.

    Args:
        names: of the images.
        fraction: share to hold back.
        seed: of the choice.

    Returns:
        (n,) bool; at least one of two is chosen, never all.

    Raises:
        UsageError: the share is not between 0 and 1.

    Example:
        >>> int(held_back(["a", "b", "c", "d"], 0.25, seed=0).sum())
        1
    """
    if not 0 < fraction < 1:
        raise UsageError(f"val_fraction is {fraction:g}, expected a number between 0 and 1")
    count = min(max(round(len(names) * fraction), 1), len(names) - 1)
    chosen = np.zeros(len(names), dtype=bool)
    chosen[hash_order(names, seed)[:count]] = True
    return chosen


def hash_order(names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of ``names`` in the order of a seeded hash of each."""
    ranks = [
        hashlib.blake2b(f"{seed}\0{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest() for name in names
    ]
    return sorted(range(len(names)), key=ranks.__getitem__)


def split_by_seed(
    class_names: list[str],
    whole: SampleSet,
    options: SourceOptions,
    domains: tuple[list[str], np.ndarray] | None = None,
) -> Source:
    """Hold back a share of the samples of each class (in each domain, where there are some) for validation.

    Args:
        class_names: names of the classes.
        whole: all samples.
        options: share and seed.
        domains: names of the domains, and (n,) the position of each sample's domain in them.
    """
    names, group = domains if domains is not None else ([], np.zeros(len(whole), dtype=np.int64))
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        for group_rows in (rows[group[rows] == g] for g in np.unique(group[rows])):
            val[group_rows] = held_back([whole.names[i] for i in group_rows], options.val_fraction, options.split_seed)
    source = Source(class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val)))
    if domains is not None:
        source.domains = Grouping(names, group[~val], group[val])
    return source


def place(path: Path) -> str:
    """Return a path for a message, on one line."""
    return printable(str(path))


def expanded(path: Path) -> Path:
    """Replace a leading ``~`` by the home folder; names that only begin with ``~`` stay."""
    return Path(os.path.expanduser(path))
