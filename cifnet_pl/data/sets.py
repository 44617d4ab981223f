"""Fixed sequences of labelled samples, in files or in memory, and their split into training and validation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.photos.copies import held_back
from cifnet_pl.photos.files import file_size, identity
from cifnet_pl.photos.photo import NOTHING, AnyPhoto, Photo, UnreadableImage, decoding
from cifnet_pl.utilities.text import printable


class SampleSet(ABC):
    """A fixed sequence of labelled samples: images, or embeddings that were computed elsewhere.

    Attributes:
        labels: (n,) int64, position of each sample's class in the source's ``class_names``.
        names: what each sample is called: its path relative to the root, its id, or its index.
    """

    labels: np.ndarray
    names: Sequence[str]
    sequential: bool = False
    """Whether samples are best read in ascending order, as they lie one after the other in large files."""

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def subset(self, rows: np.ndarray) -> SampleSet:
        """Return the samples at positions ``rows``, with the names that they have here."""

    @abstractmethod
    def content_hash(self, index: int) -> int:
        """Read sample ``index``, and return the hash of its content; that of nothing where it cannot be read."""

    def place(self, index: int) -> str:
        """Return where sample ``index`` is, for messages, on one line."""
        return printable(self.names[index])

    def mark(self, index: int) -> tuple[int, ...] | int | str:
        """Return what is cheap to compute and changes with the content; by default the content's hash."""
        return int(self.hashes(np.array([index]))[0])

    def size(self, index: int) -> int:
        """Return the number of bytes of the content, or -1 where that is not known without reading it."""
        return -1

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Class position → positions of its samples, ascending."""
        order = np.argsort(self.labels, kind="stable")
        classes, starts = np.unique(self.labels[order], return_index=True)
        return dict(zip(classes.tolist(), np.split(order, starts)[1:], strict=True))

    # ------------------------------------------------------------------ identity

    @cached_property
    def _hashes(self) -> np.ndarray:
        """(n,) int64 content hashes; -1 where they are not known yet."""
        return np.full(len(self), -1, dtype=np.int64)

    def hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return the content hashes (n,) int64 of samples ``rows`` (n,), each computed when it is first asked for."""
        for row in rows[self._hashes[rows] < 0].tolist():
            self._hashes[row] = self.content_hash(row)
        known: np.ndarray = self._hashes[rows]
        return known

    def note_hashes(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        """Take over content hashes (n,) that are known of samples ``rows`` (n,)."""
        self._hashes[rows] = hashes


class ImageSet(SampleSet):
    """A fixed sequence of labelled images."""

    @abstractmethod
    def given(self, index: int) -> AnyPhoto:
        """Return image ``index``: its file, the bytes of one, or a decoded image.

        Raises:
            UnreadableImage: it cannot be read.
        """

    @abstractmethod
    def subset(self, rows: np.ndarray) -> ImageSet:
        """Return the images at positions ``rows``, with the names that they have here."""

    def photo(self, index: int) -> Photo:
        """Read image ``index``, once for all that is wanted of it.

        Raises:
            UnreadableImage: it cannot be read.
        """
        return Photo(self.given(index))

    def content_hash(self, index: int) -> int:
        """Read image ``index``, and return its hash; that of nothing where it cannot be read."""
        try:
            return self.photo(index).hash
        except UnreadableImage:  # it is reported when it is to be decoded
            return NOTHING


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

    def given(self, index: int) -> Path:
        """Return the file."""
        return self.root / self.names[index]

    def place(self, index: int) -> str:
        """Return the file's path."""
        return printable(str(self.given(index)))

    def subset(self, rows: np.ndarray) -> FileSet:
        """Return the files at positions ``rows``, with what is known of their hashes."""
        files = FileSet(self.root, [self.names[i] for i in rows], self.labels[rows].tolist())
        files.note_hashes(np.arange(len(rows)), self._hashes[rows])
        return files

    def mark(self, index: int) -> tuple[int, ...]:
        """Return the size, inode and times of modification and of change: the last cannot be set back by a program."""
        return identity(self.given(index))

    def size(self, index: int) -> int:
        """Return the file's size."""
        return file_size(self.given(index))


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

    def given(self, index: int) -> Image.Image:
        """Return the image; UnreadableImage where the object cannot give it."""
        with decoding():
            return self.read(int(self.rows[index]))

    def place(self, index: int) -> str:
        """Return the image's position in the data set."""
        return f"number {self.names[index]}"

    def subset(self, rows: np.ndarray) -> ArraySet:
        """Return the images at positions ``rows``."""
        return ArraySet(self.read, self.labels[rows].tolist(), self.rows[rows].tolist())


@dataclass(frozen=True)
class SourceOptions:
    """Options to build a source from; a source uses those that it needs.

    Attributes:
        root: folder or file of the data.
        val_fraction: share of each class that is held back if the data have no test part.
        split_seed: seed of that split.
        download: whether data may be fetched.
        own: options of one source alone.
        group: how photos that are held back together are found (:mod:`cifnet_pl.photos.copies`).
    """

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None


def in_two(class_names: list[str], whole: SampleSet, val: np.ndarray) -> Source:
    """Return a source of the samples that are not marked in ``val`` (n,), and of those that are."""
    return Source(class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val)))


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
    val = held_back_rows(whole, group, options.val_fraction, options.split_seed)
    source = in_two(class_names, whole, val)
    if domains is not None:
        source.domains = Grouping(names, group[~val], group[val])
    return source


def held_back_rows(samples: SampleSet, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Choose a share of the samples of each class in each group by a seeded hash of their names.

    Args:
        samples: all samples.
        groups: (n,) number of each sample's group.
        fraction: share to choose.
        seed: of the choice.

    Returns:
        (n,) bool.
    """
    chosen = np.zeros(len(samples), dtype=bool)
    for rows in samples.rows_of.values():
        for part in (rows[groups[rows] == group] for group in np.unique(groups[rows])):
            chosen[part] = held_back([samples.names[i] for i in part], fraction, seed)
    return chosen
