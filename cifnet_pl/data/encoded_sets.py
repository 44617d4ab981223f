"""Read images as the bytes of files that lie in larger ones: tar shards, Parquet tables, chunks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cifnet_pl.data.image_sets import ImageSet, Source, SourceOptions, split_by_seed
from cifnet_pl.data.images import read_square
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import has_controls, printable

TRAIN = ("train", "training")
TEST = ("test", "val", "validation", "valid", "eval")
"""What data sets call their parts; of several for testing the first one here is taken."""


class EncodedSet(ImageSet):
    """Images whose encoded bytes a function reads; reading is fastest in ascending order.

    Args:
        read: position in the data set → bytes of an image file; can be pickled, so that spawned workers can receive it.
            If it has a method ``mark``, that gives what changes with an image's bytes without reading them, or None.
        labels: (n,) class position of each image.
        names: (n,) identity of each image.
        rows: (n,) position of each image in the data set; by default 0, 1, …
        where: prefix of the image's name in messages.
    """

    sequential = True

    def __init__(
        self,
        read: Callable[[int], bytes],
        labels: np.ndarray,
        names: Sequence[str],
        rows: np.ndarray | None = None,
        where: str = "",
    ):
        self.read, self.names, self.where = read, names, where
        self.labels = np.asarray(labels, dtype=np.int64)
        self.rows = np.arange(len(self.labels)) if rows is None else rows

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Decode the image, as :meth:`ImageSet.square`."""
        return read_square(self.content(index), size, crop_ratio)

    def content(self, index: int) -> bytes:
        """Return the bytes of the image's file."""
        return self.read(int(self.rows[index]))

    def stat(self, index: int) -> tuple[int, ...] | str:
        """Return what the reader's ``mark`` says of the image, or else its content's SHA-256."""
        mark = self.read.mark(int(self.rows[index])) if hasattr(self.read, "mark") else None
        return super().stat(index) if mark is None else mark

    def place(self, index: int) -> str:
        """Return where the image is, for messages."""
        return printable(f"{self.where}{self.names[index]}")

    def subset(self, rows: np.ndarray) -> EncodedSet:
        """Return the images at positions ``rows``."""
        names = [self.names[i] for i in rows]
        return EncodedSet(self.read, self.labels[rows], names, self.rows[rows], self.where)


def classes_of(labels: Sequence[Any], where: str, names: Sequence[str] | None = None) -> tuple[list[str], np.ndarray]:
    """Find the classes of a list of labels.

    Args:
        labels: integers or texts.
        where: the data, for messages.
        names: of the integers 0, 1, …, if the data have names; names that do not occur are left out.

    Returns:
        The names of all classes, and the position (n,) of each label among them.

    Raises:
        DataError: labels that are neither, or a name with control characters.
    """
    wrong = next((label for label in labels if isinstance(label, bool) or not isinstance(label, int | str)), None)
    if wrong is not None:
        kind = type(wrong).__name__
        raise DataError(f"{where}: a label is {printable(str(wrong)[:60])} ({kind}), expected integers or names")
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    class_names = {
        label: names[label] if names is not None and isinstance(label, int) else str(label) for label in distinct
    }
    strange = [word for word in class_names.values() if not word or has_controls(word)]
    if strange or len(set(class_names.values())) < len(distinct):
        shown = strange[0] if strange else next(iter(class_names.values()))
        raise DataError(f"{where}: '{printable(shown)}' cannot be the name of a class, or is that of two: rename it")
    position = {label: i for i, label in enumerate(distinct)}
    return [class_names[label] for label in distinct], np.array([position[label] for label in labels], dtype=np.int64)


def in_parts(
    class_names: list[str], whole: EncodedSet, test: np.ndarray | None, options: SourceOptions, where: str
) -> Source:
    """Return the source with the test part of the data, or with one that is held back by seed.

    Args:
        class_names: names of the classes.
        whole: all images.
        test: (n,) bool, which are for testing, or None if the data do not say.
        options: share and seed.
        where: the data, for messages.

    Raises:
        DataError: no image, a class without a training image, or a test part without an image.
    """
    if not len(whole):
        raise DataError(f"{where}: there is no image in it")
    if test is None:
        return split_by_seed(class_names, whole, options)
    source = Source(class_names, whole.subset(np.flatnonzero(~test)), whole.subset(np.flatnonzero(test)))
    missing = [name for label, name in enumerate(class_names) if label not in source.train.rows_of]
    if missing:
        raise DataError(f"{where}: class '{printable(missing[0])}' has no training image: add some, or take it out")
    if not len(source.val):
        raise DataError(f"{where}: the test part has no image")
    return source
