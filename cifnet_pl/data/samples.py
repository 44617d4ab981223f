"""One table of samples, what reads one of them, and their classes and splits."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from cifnet_pl.buffer.calibration_buffer import GOLDEN, split_mix
from cifnet_pl.images.files import file_identity, file_size
from cifnet_pl.images.image import (
    UNREADABLE_HASH,
    EncodedImage,
    ImageLike,
    Look,
    UnreadableImage,
    pillow_image,
)
from cifnet_pl.images.reader import look_at_images
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.names import Split, class_name, class_names
from cifnet_pl.utilities.text import listed, printable

HASHED_ROWS = 128
"""Embeddings that are hashed at a time: with 512 numbers each they fit the processor's cache."""


def row_hashes(rows: np.ndarray) -> np.ndarray:
    """Hash the bytes of each row of an array to a number of 63 bits, as content hashes of images.

    Each word of eight bytes is mixed with its place in the row (SplitMix64); the hash is the sum.
    Ten million random rows had no two equal hashes (``tests/scale/test_hashes.py``).

    Args:
        rows: (n, d), any dtype.

    Returns:
        (n,) int64, not negative.

    Example:
        >>> hashes = row_hashes(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]]))
        >>> bool(hashes[0] == hashes[2]), bool(hashes[0] == hashes[1])
        (True, False)
    """
    content = np.ascontiguousarray(rows).view(np.uint8)
    padding = -content.shape[1] % 8
    if padding:
        content = np.pad(content, ((0, 0), (0, padding)))
    words = content.view(np.uint64)
    places = GOLDEN * np.arange(1, words.shape[1] + 1, dtype=np.uint64)
    sums = split_mix(words + places).sum(axis=1)
    hashes = split_mix(sums) >> np.uint64(1)
    return hashes.astype(np.int64)


@dataclass(eq=False)
class SampleTable:
    """Labelled samples: a table with a row for each, and what reads one.

    Args:
        table: with the column ``label``, and where they are known

            * ``name``, unique within a split; by default the sample's position in the data,
            * ``split`` ("train", "val" or "test"),
            * ``domain``, ``task``: the session or place that a sample is from, and the task that
              the source gives it; sorted by name, or as an ordered categorical,
            * ``group``: equal numbers for samples of one group that the user named,
            * ``path``: the file below ``root``; by default ``root`` and the name,
            * ``position``: where the sample is in the data; by default 0, 1, …
        read: position → image, which is a decoded one or the content of a file; several threads
            call it. None for files and for embeddings.
        root: folder or Zip archive of the files, if the samples are images in files.
        embeddings: (N, d) floats, computed elsewhere; row ``position`` is that of a sample.
        class_names: names of the labels 0, 1, …; None where labels are names, or numbers without
            names.
        where: the data, for messages; there a sample is "where#name".
        sequential: whether samples are best read in ascending order, because they lie one after the
            other in large files.
        notes: sentences for the user about what was read.
        hash_of: (n,) int64 content hashes as far as they are known, else -1.

    Attributes:
        labels: (n,) int64, position of each sample's class in the source's ``class_names``; as the
            source gives them before :func:`labelled`.
        positions: (n,) int64, where each sample is in the data.
        groups: (n,) int64, the column ``group``; None without groups.
        are_images: whether the samples are images, and not embeddings.
        in_files: whether each sample is an image in a file of its own.
    """

    table: pd.DataFrame
    read: Callable[[int], ImageLike] | None = None
    root: Path | None = None
    embeddings: np.ndarray | None = None
    class_names: Sequence[str] | None = None
    where: str = "the data"
    sequential: bool = False
    notes: tuple[str, ...] = ()
    hash_of: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)

    def __post_init__(self) -> None:
        count = len(self.table)
        if "position" not in self.table:
            self.table = self.table.assign(position=np.arange(count))
        self.positions = self.table["position"].to_numpy(np.int64, copy=True)
        if not len(self.hash_of):
            self.hash_of = np.full(count, -1, dtype=np.int64)
        self.labels = self.table["label"].to_numpy(copy=True)
        self.groups = None
        if "group" in self.table:
            self.groups = self.table["group"].to_numpy(np.int64, copy=True)
        self.are_images = self.embeddings is None
        self.in_files = self.are_images and self.read is None

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def names(self) -> list[str]:
        """Name of each sample; made when they are read, as embeddings seldom need them."""
        if "name" not in self.table:
            return list(map(str, self.positions.tolist()))
        return list(self.table["name"])

    @cached_property
    def paths(self) -> list[str]:
        """Path of each file below ``root``."""
        return list(self.table.get("path", self.names))

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Label → rows of its samples, ascending."""
        return dict(pd.Series(self.labels).groupby(self.labels).indices)

    def names_of(self, rows: np.ndarray) -> list[str]:
        """Return the names of the samples of some rows (n,)."""
        return [self.names[row] for row in rows.tolist()]

    # ------------------------------------------------------------------ other sets

    def subset(self, rows: np.ndarray) -> SampleTable:
        """Return the samples of some rows, with their hashes as far as they are known.

        Args:
            rows: positions, or a mask (n,) bool.
        """
        table = self.table.iloc[rows].reset_index(drop=True)
        return replace(self, table=table, hash_of=self.hash_of[rows])

    def with_columns(self, **columns: Any) -> SampleTable:
        """Return the samples with other columns; their hashes are shared."""
        return replace(self, table=self.table.assign(**columns))

    # ------------------------------------------------------------------ embeddings

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) bool: of which rows there is an embedding."""
        return np.full(len(rows), not self.are_images)

    def get(self, rows: np.ndarray) -> Tensor:
        """Return the embeddings (n, d) float32 of some rows (n,).

        Raises:
            DataError: some of them hold NaN or infinity; names their rows in the file.
        """
        assert self.embeddings is not None
        positions = self.positions[rows]
        with np.errstate(over="ignore"):  # values too large become infinity
            z = torch.from_numpy(self.embeddings[positions].astype(np.float32))
        is_finite = torch.isfinite(z).all(dim=1).numpy()
        if not is_finite.all():
            broken = positions[~is_finite].astype(str).tolist()
            raise DataError(
                f"{self.where}: no finite float32 in row {listed(broken)} of the"
                " embeddings (counted from 0): repair or remove them"
            )
        return z

    # ------------------------------------------------------------------ one sample

    def file(self, row: int) -> Path:
        """Return the file of an image; where there is none, what messages call the sample."""
        if self.root is None:
            return Path(self.place(row))
        return self.root / self.paths[row]

    def place(self, row: int) -> str:
        """Return where a sample is, for messages, on one line."""
        if self.in_files:
            return printable(str(self.file(row)))
        return printable(f"{self.where}#{self.names[row]}")

    def given(self, row: int) -> ImageLike:
        """Return an image: its file, the content of one, or a decoded image.

        Raises:
            CifnetError: the reader says that the data are damaged or were changed.
            UnreadableImage: the reader failed otherwise.
        """
        if self.read is None:
            return self.file(row)
        with explained(UnreadableImage, ""):
            position = int(self.positions[row])
            return self.read(position)

    def image(self, row: int) -> EncodedImage:
        """Read an image; UnreadableImage where that fails."""
        return EncodedImage(self.given(row))

    # ------------------------------------------------------------------ identity

    def hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return the content hashes (n,) int64 of some rows (n,); each is computed once.

        That of an image that cannot be read is ``UNREADABLE_HASH``.
        """
        unread = rows[self.hash_of[rows] < 0]
        if self.embeddings is None:
            for row in unread.tolist():
                try:
                    self.hash_of[row] = self.image(row).hash
                except UnreadableImage:  # it is reported when it is decoded
                    self.hash_of[row] = UNREADABLE_HASH
        else:
            for start in range(0, len(unread), HASHED_ROWS):
                part = unread[start : start + HASHED_ROWS]
                self.hash_of[part] = row_hashes(self.embeddings[self.positions[part]])
        return np.asarray(self.hash_of[rows])

    def look(self, rows: np.ndarray) -> list[Look]:
        """Read hash, time and thumbnail of the images of some rows (n,)."""
        looks = look_at_images([self.file(row) for row in rows])
        self.hash_of[rows] = [look.hash for look in looks]
        return looks

    def size(self, row: int) -> int:
        """Return the size of a file in bytes; -1 for other samples."""
        if self.in_files:
            return file_size(self.file(row))
        return -1

    def change_stamp(self, row: int) -> tuple[int, ...] | int:
        """Return a cheap fingerprint that detects changes: size, inode and times of a file.

        No program can set back the time of change. Of other samples it is the hash of the content.
        """
        if not self.in_files:
            return int(self.hashes(np.array([row]))[0])
        try:
            return file_identity(self.file(row))
        except (OSError, KeyError):  # it is reported when it is decoded
            return ()


def joined(parts: Sequence[SampleTable], splits: Sequence[Split]) -> SampleTable:
    """Join the samples of several files or objects.

    Args:
        parts: of one kind; images are read by functions of their own.
        splits: that of each part; nothing where all are to be learned.
    """
    if len(parts) == 1:
        return parts[0]
    sizes = list(map(len, parts))
    first_positions = [0, *accumulate(sizes)]

    def read(position: int) -> ImageLike:
        number = bisect(first_positions, position) - 1
        return parts[number].given(position - first_positions[number])

    table = pd.concat([part.table for part in parts], ignore_index=True)
    table["position"] = np.arange(len(table))
    if splits:
        table["split"] = np.repeat(splits, sizes)
        if "name" not in table:
            table["name"] = table.groupby("split").cumcount().astype(str)
    whole = replace(parts[0], table=table, hash_of=np.zeros(0))
    if whole.read is not None:
        whole.read = read
    if not whole.are_images:
        whole.embeddings = np.concatenate([part.embeddings for part in parts])
    return whole


def table_of(**columns: Sequence[Any]) -> pd.DataFrame:
    """Return a table of columns as they are: names of files may hold bytes that are not UTF-8."""
    return pd.DataFrame(columns, dtype=object)


@dataclass
class Source:
    """A training and a test set over the same classes: what :func:`split_table` makes of a table.

    Attributes:
        class_names: name of each class; labels are positions in it.
        train, test: samples to learn, and to test with.
        notes: sentences for the user about how the two sets were made.
        held_out: whether ``test`` was held out here because the data have no test split.
    """

    class_names: list[str]
    train: SampleTable
    test: SampleTable
    notes: tuple[str, ...] = ()
    held_out: bool = False

    @cached_property
    def position(self) -> dict[str, int]:
        """Class name → label."""
        return {name: label for label, name in enumerate(self.class_names)}


@dataclass(frozen=True)
class SourceOptions:
    """Options to build a source from; a source uses those that it needs.

    Attributes:
        root: folder or file of the data, without ``~``.
        val_fraction: share of each class that is held out if the data have no test split; 0 to
            hold nothing out, so that no sample is read.
        split_seed: seed of that split.
        download: whether data may be fetched.
        own: options of one source alone.
        group: kind of the groups that are held out together (:mod:`cifnet_pl.data.splitting`).
    """

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None


# ---------------------------------------------------------------------- images of Python objects


def dataset_image(dataset: Any, index: int) -> Image.Image:
    """Return the image of an item (image, …) of a torch data set; DataError if it is none."""
    return pillow_image(dataset[index][0], f"item {index}")


# ---------------------------------------------------------------------- classes


def labelled(samples: SampleTable) -> tuple[list[str], SampleTable]:
    """Find the classes of samples.

    Args:
        samples: their labels are integers or texts; integers have a name where the samples have
            ``class_names``. Names that do not occur are left out.

    Returns:
        The names of all classes in the order of their labels, and the samples with positions among
        them as labels.

    Raises:
        DataError: labels that are missing or neither integers nor texts; one without a name; a name
            that no class can have, or of two classes.
    """
    where = samples.where
    names = samples.class_names
    labels = samples.table["label"]
    if labels.dtype.kind not in "iu":
        cells = [_as_label(cell, where) for cell in labels.tolist()]
        labels = pd.Series(cells, dtype=object)
    # Integers come before texts.
    codes, distinct = pd.factorize(labels.to_numpy(), sort=True)
    named = []
    for label in distinct.tolist():
        if names is None or isinstance(label, str):
            named.append(str(label))
        elif 0 <= label < len(names):
            named.append(names[label])
        else:
            last = len(names) - 1
            raise DataError(
                f"{where}: a label is {label}, but there are names of 0 to {last}"
            )
    return class_names(named, where), samples.with_columns(label=codes)


def _as_label(cell: object, where: str) -> int | str:
    """Return a label that is an integer or a text, with the text in one form; else DataError."""
    if isinstance(cell, str):
        return class_name(cell)
    if isinstance(cell, int | np.integer) and not isinstance(cell, bool):
        return int(cell)
    shown = printable(repr(cell)[:60])
    raise DataError(f"{where}: a label is {shown}, expected integers or names")
