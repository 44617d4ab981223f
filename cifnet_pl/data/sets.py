"""Fixed sequences of labelled samples, in files or in memory: their classes, and their split for
validation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from cifnet_pl.data.splitting import held_out
from cifnet_pl.images.files import file_size, identity
from cifnet_pl.images.image import (
    NOTHING,
    Contents,
    EncodedImage,
    ImageLike,
    Look,
    UnreadableImage,
    looks_at,
)
from cifnet_pl.utilities.errors import CifnetError, DataError
from cifnet_pl.utilities.text import first_line, has_controls, printable


class SampleSet(ABC):
    """A fixed sequence of labelled samples: images, or embeddings that were computed elsewhere.

    Attributes:
        labels: (n,) int64, position of each sample's class in the source's ``class_names``.
        names: what each sample is called: its path relative to the root, its id, or its index.
    """

    labels: np.ndarray
    names: Sequence[str]
    noun = "sample"
    """What messages call one of them."""
    sequential: bool = False
    """Whether samples are best read in ascending order, as they lie one after the other in large
    files.
    """

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def subset(self, rows: np.ndarray) -> SampleSet:
        """Return the samples at positions ``rows``, with the names that they have here."""

    @abstractmethod
    def content_hash(self, index: int) -> int:
        """Read sample ``index``, and return the hash of its content; that of nothing where it
        cannot be read.
        """

    def place(self, index: int) -> str:
        """Return where sample ``index`` is, for messages, on one line."""
        return printable(self.names[index])

    def mark(self, index: int) -> tuple[int, ...] | int:
        """Return what is cheap to compute and changes with the content; by default the content's
        hash.
        """
        return int(self.hashes(np.array([index]))[0])

    def size(self, index: int) -> int:
        """Return the number of bytes of the content, or -1 where that is not known without reading
        it.
        """
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
        """Return the content hashes (n,) int64 of samples ``rows`` (n,), each computed when it is
        first asked for.
        """
        for row in rows[self._hashes[rows] < 0].tolist():
            self._hashes[row] = self.content_hash(row)
        known: np.ndarray = self._hashes[rows]
        return known

    def note_hashes(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        """Take over content hashes (n,) that are known of samples ``rows`` (n,)."""
        self._hashes[rows] = hashes


class ImageSet(SampleSet):
    """A fixed sequence of labelled images."""

    noun = "image"

    @abstractmethod
    def given(self, index: int) -> ImageLike:
        """Return image ``index``: its file, the bytes of one, or a decoded image.

        Raises:
            UnreadableImage: it cannot be read.
        """

    def image(self, index: int, again: bool = False) -> EncodedImage:
        """Read image ``index``, once for all that is wanted of it.

        Args:
            index: position of the image.
            again: whether it will be asked for again, to be decoded.

        Raises:
            UnreadableImage: it cannot be read.
        """
        return EncodedImage(self.given(index))

    def content_hash(self, index: int) -> int:
        """Read image ``index``, and return its hash; that of nothing where it cannot be read."""
        try:
            return self.image(index, again=True).hash
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
        groups: (n,) int64, equal for training samples that the user said belong together.
        val_groups: (m,) int64, the same of validation samples that were held out.
        notes: sentences for the user about how the two sets were made.
        held_out: whether ``val`` is a share of the data that was held out here, as they have no
            such part.
    """

    class_names: list[str]
    train: SampleSet
    val: SampleSet
    domains: Grouping | None = None
    tasks: Grouping | None = None
    groups: np.ndarray | None = None
    val_groups: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    held_out: bool = False

    def untested(self) -> Source:
        """Return the source with the files that were held out among those to learn, and none to
        test.
        """
        train = cast(FileSet, self.train)
        val = cast(FileSet, self.val)
        whole = FileSet(
            train.root, [*train.names, *val.names], [*train.labels, *val.labels], train.contents
        )
        return Source(self.class_names, whole, whole.subset(np.arange(0)), notes=self.notes)


class FileSet(ImageSet):
    """Images in files below ``root``, a folder or a Zip archive; ``contents`` are those of files
    looked at already.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Sequence[int],
        contents: Contents | None = None,
    ):
        self.root = root
        self.names = list(names)
        self.contents = contents or Contents()
        self.labels = np.asarray(labels, dtype=np.int64)

    def image(self, index: int, again: bool = False) -> EncodedImage:
        """Read a file once, although it may be asked for ``again``; UnreadableImage where it cannot
        be read.
        """
        return (self.contents.keep if again else self.contents.take)(self.given(index))

    def look(self, rows: np.ndarray) -> list[Look]:
        """Look at files ``rows`` (n,), which are to be decoded later, and note their content
        hashes.
        """
        looks = looks_at([self.given(row) for row in rows], self.contents.keep)
        self.note_hashes(rows, np.array([look.hash for look in looks], dtype=np.int64))
        return looks

    def given(self, index: int) -> Path:
        """Return the file."""
        return self.root / self.names[index]

    def place(self, index: int) -> str:
        """Return the file's path."""
        return printable(str(self.given(index)))

    def subset(self, rows: np.ndarray) -> FileSet:
        """Return the files at positions ``rows``, with what is known of their hashes."""
        files = FileSet(
            self.root, [self.names[i] for i in rows], self.labels[rows].tolist(), self.contents
        )
        files.note_hashes(np.arange(len(rows)), self._hashes[rows])
        return files

    def mark(self, index: int) -> tuple[int, ...]:
        """Return the size, inode and times of modification and of change: the last cannot be set
        back by a program.
        """
        return identity(self.given(index))

    def size(self, index: int) -> int:
        """Return the file's size."""
        return file_size(self.given(index))


class ArraySet(ImageSet):
    """Images that a function reads: from memory, from another data set's object, or from a place in
    a large file.

    Args:
        read: position in the data → decoded image, or bytes of an image file; several threads call
            it.
        labels: (n,) class position of each image.
        names: (n,) what each image is called; by default its position.
        rows: (n,) position of each image in the data; by default 0, 1, …
        where: what stands before an image's name in messages.
        sequential: whether images are best read in ascending order.
    """

    def __init__(
        self,
        read: Callable[[int], Image.Image | bytes],
        labels: Sequence[int] | np.ndarray,
        names: Sequence[str] | None = None,
        rows: Sequence[int] | np.ndarray | None = None,
        where: str = "number ",
        sequential: bool = False,
    ):
        self.read = read
        self.where = where
        self.sequential = sequential
        self.labels = np.asarray(labels, dtype=np.int64)
        if rows is None:
            self.rows = np.arange(len(self.labels))
        else:
            self.rows = np.asarray(rows, dtype=np.int64)
        if names is None:
            self.names = [str(i) for i in self.rows.tolist()]
        else:
            self.names = names

    def given(self, index: int) -> Image.Image | bytes:
        """Return the image.

        Raises:
            CifnetError: the data are damaged or changed, as the reader says.
            UnreadableImage: the reader failed in another way.
        """
        try:
            return self.read(int(self.rows[index]))
        except CifnetError:
            raise
        except Exception as error:  # each object and decoder fails in its own way
            raise UnreadableImage(first_line(error)) from error

    def place(self, index: int) -> str:
        """Return where the image is, for messages."""
        return printable(f"{self.where}{self.names[index]}")

    def subset(self, rows: np.ndarray) -> ArraySet:
        """Return the images at positions ``rows``."""
        names = [self.names[i] for i in rows]
        return ArraySet(
            self.read, self.labels[rows], names, self.rows[rows], self.where, self.sequential
        )


def picture(image: Any, where: str) -> Image.Image:
    """Return an image of Pillow, or an array (h, w), (h, w, 3) or (3, h, w) of uint8, as an image
    of Pillow.

    Args:
        image: also a tensor.
        where: the image is, for messages.

    Raises:
        DataError: another shape or dtype.
    """
    if isinstance(image, Image.Image):
        return image
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    else:
        pixels = pixels
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        if pixels.dtype.kind == "f":
            hint = "; leave ToTensor and Normalize out of the transform"
        else:
            hint = ""
        found = f"shape {pixels.shape} and dtype {pixels.dtype}"
        raise DataError(f"{where} is an image of {found}, expected uint8 pixels{hint}")
    return Image.fromarray(pixels.squeeze())


def item_of(dataset: Any, index: int) -> Image.Image:
    """Return the image of an item (image, …) of a torch data set; DataError where it is none."""
    return picture(dataset[index][0], f"item {index}")


@dataclass(frozen=True)
class SourceOptions:
    """Options to build a source from; a source uses those that it needs.

    Attributes:
        root: folder or file of the data.
        val_fraction: share of each class that is held out if the data have no test part.
        split_seed: seed of that split.
        download: whether data may be fetched.
        own: options of one source alone.
        group: how images that are held out together are found (:mod:`cifnet_pl.data.splitting`).
    """

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False
    own: Mapping[str, Any] = field(default_factory=dict)
    group: str | None = None


# ---------------------------------------------------------------------- classes


def classes_of(
    labels: Sequence[Any], where: str, names: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Find the classes of a list of labels.

    Args:
        labels: integers or texts.
        where: the data, for messages.
        names: of the integers 0, 1, …, if the data have names; names that do not occur are left
            out.

    Returns:
        The names of all classes in the order of their labels, and the position (n,) of each label
        among them.

    Raises:
        DataError: labels that are missing or neither integers nor texts; one without a name; a name
            with control characters or of two classes.
    """
    wrong = next(
        (
            i
            for i, label in enumerate(labels)
            if isinstance(label, bool) or not isinstance(label, int | str)
        ),
        None,
    )
    if wrong is not None:
        label = labels[wrong]
        if label is None:
            given = "missing"
        else:
            given = f"{printable(str(label)[:60])} ({type(label).__name__})"
        raise DataError(
            f"{where}: the label in row {wrong} (counted from 0) is {given}, expected integers or"
            " names"
        )
    distinct = sorted(set(labels), key=lambda label: (isinstance(label, str), label))
    class_names = []
    for label in distinct:
        if names is None or isinstance(label, str):
            class_names.append(str(label))
        elif 0 <= label < len(names):
            class_names.append(names[label])
        else:
            raise DataError(
                f"{where}: a label is {label}, but there are names of 0 to {len(names) - 1}"
            )
    strange = [name for name in class_names if not name or has_controls(name)]
    if strange or len(set(class_names)) < len(distinct):
        shown = (strange or [name for name in class_names if class_names.count(name) > 1])[0]
        raise DataError(
            f"{where}: '{printable(shown)}' cannot be the name of a class, or is that of two:"
            " rename it"
        )
    position = {label: i for i, label in enumerate(distinct)}
    return class_names, np.array([position[label] for label in labels], dtype=np.int64)


# ---------------------------------------------------------------------- parts

TRAIN = ("train", "training")
TEST = ("test", "val", "validation", "valid", "eval")
"""What data sets call their parts; of several for testing the first one here is taken."""


def in_parts(
    class_names: list[str],
    whole: SampleSet,
    test: np.ndarray | None,
    options: SourceOptions,
    where: str,
    **groups: tuple[list[str], np.ndarray],
) -> Source:
    """Return the source with the test part of the data, or with one that is held out by seed.

    Args:
        class_names: names of the classes.
        whole: all samples.
        test: (n,) bool, which are for testing, or None if the data do not say.
        options: share and seed.
        where: the data, for messages.
        groups: as for :func:`in_two`.

    Raises:
        DataError: no sample, or as :func:`checked`.
    """
    if not len(whole):
        raise DataError(f"{where}: there is no {whole.noun} in it")
    if test is None:
        return split_by_seed(class_names, whole, options, **groups)
    return checked(in_two(class_names, whole, test, **groups), where)


def split_by_seed(
    class_names: list[str],
    whole: SampleSet,
    options: SourceOptions,
    **groups: tuple[list[str], np.ndarray],
) -> Source:
    """Hold back a share of the samples of each class for validation.

    Args:
        class_names: names of the classes.
        whole: all samples.
        options: share and seed.
        groups: as for :func:`in_two`.
    """
    one = np.zeros(len(whole), dtype=np.int64)
    held = held_out_rows(whole, one, options.val_fraction, options.split_seed)
    return replace(in_two(class_names, whole, held, **groups), held_out=True)


def of_parts(
    labels: Sequence[Sequence[Any]],
    make: Callable[[int, np.ndarray], SampleSet],
    options: SourceOptions,
    where: str,
    names: Sequence[str] | None = None,
) -> Source:
    """Return a source of data in one part, of which a share is held out, or in two, to learn and to
    test with.

    Args:
        labels: of the samples of each part, as :func:`classes_of` takes them.
        make: number of a part and class positions (n,) of its samples → the samples.
        options: share and seed.
        where, names: as for :func:`classes_of`.

    Raises:
        DataError: as :func:`classes_of` and :func:`checked`.
    """
    class_names, positions = classes_of([label for part in labels for label in part], where, names)
    ends = np.cumsum([len(part) for part in labels])[:-1]
    sets = [make(number, part) for number, part in enumerate(np.split(positions, ends))]
    if len(sets) == 1:
        return split_by_seed(class_names, sets[0], options)
    return checked(Source(class_names, sets[0], sets[1]), where)


def checked(source: Source, where: str) -> Source:
    """Return ``source``.

    Raises:
        DataError: there is no test sample, or no training sample of a class.
    """
    if not len(source.val):
        raise DataError(f"{where}: the test part has no {source.val.noun}")
    for label, name in enumerate(source.class_names):
        if label not in source.train.rows_of:
            raise DataError(
                f"{where}: class '{printable(name)}' has no training {source.train.noun}: add some"
            )
    return source


def in_two(
    class_names: list[str],
    whole: SampleSet,
    val: np.ndarray,
    **groups: tuple[list[str], np.ndarray],
) -> Source:
    """Return a source of the samples that are not marked in ``val`` (n,), and of those that are.

    Args:
        class_names: names of the classes.
        whole: all samples.
        val: (n,) bool.
        groups: ``domains`` and ``tasks``, where there are some: their names, and (n,) the position
            of each sample's.
    """
    source = Source(
        class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val))
    )
    for kind, (names, group) in groups.items():
        setattr(source, kind, Grouping(names, group[~val], group[val]))
    return source


def held_out_rows(samples: SampleSet, groups: np.ndarray, fraction: float, seed: int) -> np.ndarray:
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
            chosen[part] = held_out([samples.names[i] for i in part], fraction, seed)
    return chosen
