"""Fixed sequences of labelled samples, in files or in memory, and sources: two such sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from PIL import Image

from cifnet_pl.data.splitting import held_out
from cifnet_pl.images.files import file_identity, file_size
from cifnet_pl.images.image import (
    UNREADABLE_HASH,
    EncodedImage,
    ImageLike,
    Look,
    UnreadableImage,
)
from cifnet_pl.images.reader import look_at_images
from cifnet_pl.utilities.errors import CifnetError, DataError
from cifnet_pl.utilities.names import Split, class_name, class_name_problem
from cifnet_pl.utilities.text import first_line, is_or_are, number_of, printable


class SampleSet(ABC):
    """A fixed sequence of labelled samples: images, or embeddings that were computed elsewhere.

    Attributes:
        labels: (n,) int64, position of each sample's class in the source's ``class_names``.
        names: name of each sample: its path relative to the root, its id, or its index.
        noun: what messages call one sample.
        sequential: whether samples are best read in ascending order, because they lie one after the
            other in large files.
    """

    labels: np.ndarray
    names: Sequence[str]
    noun = "sample"
    sequential: bool = False

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def subset(self, rows: np.ndarray) -> SampleSet:
        """Return the samples at positions ``rows``, with the names that they have here."""

    @abstractmethod
    def content_hash(self, index: int) -> int:
        """Return the hash of the content of sample ``index``; ``NOTHING`` if it is unreadable."""

    def place(self, index: int) -> str:
        """Return where sample ``index`` is, for messages, on one line."""
        return printable(self.names[index])

    def change_stamp(self, index: int) -> tuple[int, ...] | int:
        """Return a cheap fingerprint that detects changes; by default the content's hash."""
        row = np.array([index])
        return int(self.hashes(row)[0])

    def size(self, index: int) -> int:
        """Return the size of the content in bytes; -1 if that is unknown before it is read."""
        return -1

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Class position → positions of its samples, ascending."""
        order = np.argsort(self.labels, kind="stable")
        sorted_labels = self.labels[order]
        classes, starts = np.unique(sorted_labels, return_index=True)
        rows_by_class = np.split(order, starts)[1:]
        return dict(zip(classes.tolist(), rows_by_class, strict=True))

    # ------------------------------------------------------------------ identity

    @cached_property
    def _hashes(self) -> np.ndarray:
        """(n,) int64 content hashes; -1 where they are not known yet."""
        return np.full(len(self), -1, dtype=np.int64)

    def hashes(self, rows: np.ndarray) -> np.ndarray:
        """Return the content hashes of some samples; each is computed once.

        Args:
            rows: (n,) positions.

        Returns:
            (n,) int64.
        """
        is_unread = self._hashes[rows] < 0
        unread = rows[is_unread]
        for row in unread.tolist():
            self._hashes[row] = self.content_hash(row)
        known: np.ndarray = self._hashes[rows]
        return known

    def note_hashes(self, rows: np.ndarray, hashes: np.ndarray) -> None:
        """Store content hashes (n,) int64 that are known already of samples ``rows`` (n,)."""
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

    def image(self, index: int) -> EncodedImage:
        """Read image ``index``.

        Raises:
            UnreadableImage: it cannot be read.
        """
        return EncodedImage(self.given(index))

    def content_hash(self, index: int) -> int:
        """Return the hash of the content of image ``index``; ``NOTHING`` if it is unreadable."""
        try:
            return self.image(index).hash
        except UnreadableImage:  # it is reported when it is decoded
            return UNREADABLE_HASH


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


class SampleGroups(NamedTuple):
    """The groups of the samples of one set, before it is divided: see :class:`Grouping`."""

    names: list[str]
    numbers: np.ndarray  # (n,) int64, position of each sample's group in ``names``

    def divided(self, train_rows: np.ndarray, val_rows: np.ndarray) -> Grouping:
        """Return the groups of the training and of the validation samples."""
        train = self.numbers[train_rows]
        val = self.numbers[val_rows]
        return Grouping(self.names, train, val)


@dataclass
class Source:
    """A training and a validation set over the same classes.

    Attributes:
        class_names: name of each class; labels are positions in it.
        train, val: the two sets.
        domains: the session, place or camera of each sample, where the source knows it.
        tasks: the task that the source itself assigns to each sample, where it does.
        groups: (n,) int64, equal for training samples of one group that the user named.
        val_groups: (m,) int64, the same of validation samples that were held out.
        notes: sentences for the user about how the two sets were made.
        held_out: whether ``val`` is a held-out split, made here because the data have no test
            split.
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
        """Return the source with all files in the training set, and an empty validation set."""
        train = cast(FileSet, self.train)
        val = cast(FileSet, self.val)
        names = [*train.names, *val.names]
        labels = [*train.labels, *val.labels]
        whole = FileSet(train.root, names, labels)
        no_rows = np.arange(0)
        no_samples = whole.subset(no_rows)
        return Source(self.class_names, whole, no_samples, notes=self.notes)


class FileSet(ImageSet):
    """Images in files.

    Args:
        root: the folder or Zip archive that the files are in.
        names: (n,) path of each file below ``root``.
        labels: (n,) class position of each image.
    """

    def __init__(
        self,
        root: Path,
        names: Sequence[str],
        labels: Sequence[int],
    ):
        self.root = root
        self.names = list(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def look(self, rows: np.ndarray) -> list[Look]:
        """Read hash, time and thumbnail of files ``rows`` (n,)."""
        given = [self.given(row) for row in rows]
        looks = look_at_images(given)
        hashes = [look.hash for look in looks]
        content = np.array(hashes, dtype=np.int64)
        self.note_hashes(rows, content)
        return looks

    def given(self, index: int) -> Path:
        """Return the file."""
        return self.root / self.names[index]

    def place(self, index: int) -> str:
        """Return the file's path."""
        return printable(str(self.given(index)))

    def subset(self, rows: np.ndarray) -> FileSet:
        """Return the files at positions ``rows``, with their hashes as far as they are known."""
        names = []
        for i in rows:
            names.append(self.names[i])
        labels = self.labels[rows].tolist()
        files = FileSet(self.root, names, labels)
        every_row = np.arange(len(rows))
        files.note_hashes(every_row, self._hashes[rows])
        return files

    def change_stamp(self, index: int) -> tuple[int, ...]:
        """Return a cheap fingerprint (size, inode, times) that detects changes.

        No program can set back the time of change.
        """
        try:
            return file_identity(self.given(index))
        except (
            OSError,
            KeyError,
        ):
            # It is unreadable, and is reported when it is decoded.
            return ()

    def size(self, index: int) -> int:
        """Return the file's size."""
        return file_size(self.given(index))


class ArraySet(ImageSet):
    """Images that a function reads: from memory, from a data set's object, or from a large file.

    Args:
        read: position in the data → decoded image, or bytes of an image file; several threads call
            it.
        labels: (n,) class position of each image.
        names: (n,) name of each image; by default its position.
        rows: (n,) position of each image in the data; by default 0, 1, …
        where: prefix of an image's name in messages.
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
            rows = range(len(self.labels))
        self.rows = np.asarray(rows, dtype=np.int64)
        if names is None:
            names = [str(i) for i in self.rows.tolist()]
        self.names = names

    def given(self, index: int) -> Image.Image | bytes:
        """Return the image.

        Raises:
            CifnetError: the reader says that the data are damaged or were changed.
            UnreadableImage: the reader failed otherwise.
        """
        try:
            row = int(self.rows[index])
            return self.read(row)
        except CifnetError:
            raise
        except Exception as error:  # each object and decoder fails in its own way
            raise UnreadableImage(first_line(error)) from error

    def place(self, index: int) -> str:
        """Return where the image is, for messages."""
        name = self.names[index]
        return printable(f"{self.where}{name}")

    def subset(self, rows: np.ndarray) -> ArraySet:
        """Return the images at positions ``rows``."""
        names = []
        for i in rows:
            names.append(self.names[i])
        return ArraySet(
            self.read,
            self.labels[rows],
            names,
            self.rows[rows],
            self.where,
            self.sequential,
        )


def pillow_image(image: Any, where: str) -> Image.Image:
    """Convert an array or tensor of pixels to an image of Pillow.

    Args:
        image: (h, w), (h, w, 3) or (3, h, w) uint8, or an image of Pillow, which stays as it is.
        where: the image's place, for messages.

    Raises:
        DataError: another shape or dtype.
    """
    if isinstance(image, Image.Image):
        return image
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        hint = ""
        if pixels.dtype.kind == "f":
            hint = "; leave ToTensor and Normalize out of the transform"
        found = f"shape {pixels.shape} and dtype {pixels.dtype}"
        raise DataError(f"{where} is an image of {found}, expected uint8 pixels{hint}")
    return Image.fromarray(pixels.squeeze())


def dataset_image(dataset: Any, index: int) -> Image.Image:
    """Return the image of an item (image, …) of a torch data set; DataError if it is none."""
    item = dataset[index][0]
    return pillow_image(item, f"item {index}")


def array_image(pixels: np.ndarray, index: int) -> Image.Image:
    """Return an image of an array (n, h, w), (n, h, w, 3) or (n, 3, h, w) uint8."""
    return pillow_image(pixels[index], f"X[{index}]")


@dataclass(frozen=True)
class SourceOptions:
    """Options to build a source from; a source uses those that it needs.

    Attributes:
        root: folder or file of the data.
        val_fraction: share of each class that is held out if the data have no test split.
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


# ---------------------------------------------------------------------- classes


def classes_of(
    labels: Sequence[Any], where: str, names: Sequence[str] | None = None
) -> tuple[list[str], np.ndarray]:
    """Find the classes of a list of labels.

    Args:
        labels: (n,) integers or texts.
        where: the data, for messages.
        names: names of the integers 0, 1, …, if the data have them; names that do not occur are
            left out.

    Returns:
        The names of all classes in the order of their labels, and the position (n,) int64 of each
        label among them.

    Raises:
        DataError: labels that are missing or neither integers nor texts; one without a name; a name
            that no class can have, or of two classes.
    """
    read = []
    for row, label in enumerate(labels):
        read.append(_label(label, row, where))
    distinct = sorted(set(read), key=_label_order)
    class_names = []
    for label in distinct:
        if names is None or isinstance(label, str):
            class_names.append(str(label))
        elif 0 <= label < len(names):
            class_names.append(class_name(names[label]))
        else:
            last = len(names) - 1
            raise DataError(
                f"{where}: a label is {label}, but there are names of 0 to {last}"
            )
    require_class_names(class_names, where)
    position = {}
    for i, label in enumerate(distinct):
        position[label] = i
    positions = [position[label] for label in read]
    return class_names, np.array(positions, dtype=np.int64)


def require_class_names(names: Sequence[str], where: str) -> None:
    """Raise DataError where a name cannot be that of a class, or is that of two."""
    for name, count in Counter(names).items():
        problem = class_name_problem(name)
        if problem is not None:
            raise DataError(
                f"{where}: class name '{printable(name)}' {problem}: rename the class"
            )
        if count > 1:
            raise DataError(
                f"{where}: two classes have the name '{printable(name)}': rename one"
            )


def _label(label: Any, row: int, where: str) -> int | str:
    """Return a label, a text as the name of a class.

    Raises:
        DataError: it is missing, or neither an integer nor a text.
    """
    if isinstance(label, str):
        return class_name(label)
    if isinstance(label, int) and not isinstance(label, bool):
        return label
    if label is None:
        found = "missing"
    else:
        text = printable(str(label)[:60])
        found = f"{text} ({type(label).__name__})"
    raise DataError(
        f"{where}: the label in row {row} (counted from 0) is {found}, expected integers or names"
    )


def _label_order(label: int | str) -> tuple[bool, int | str]:
    """Return a key that sorts numbers before texts."""
    return isinstance(label, str), label


# ---------------------------------------------------------------------- splits


class SplitChoice(NamedTuple):
    """Which samples of the data are for training, and which for testing.

    Attributes:
        test: (n,) bool; None where the data have no test split.
        used: (n,) bool, which samples are used at all.
        note: a sentence for the user about those that are not; None if all are.
    """

    test: np.ndarray | None
    used: np.ndarray
    note: str | None


def choose_splits(splits: Sequence[Split], where: str) -> SplitChoice:
    """Choose the samples to train and to test with.

    All sources share one rule: the test split is tested with; where there is none, the validation
    split. A validation split beside a test split is not used at all.

    Args:
        splits: (n,) split of each sample.
        where: the data, for messages.
    """
    split_of_sample = np.array(splits)
    test = split_of_sample == "test"
    val = split_of_sample == "val"
    everything = np.ones(len(splits), dtype=bool)
    if not test.any():
        tested = None
        if val.any():
            tested = val
        return SplitChoice(tested, everything, None)
    if not val.any():
        return SplitChoice(test, everything, None)
    message = unused_split_message(where, int(val.sum()))
    return SplitChoice(test, ~val, message)


def unused_split_message(where: str, count: int) -> str:
    """Say that the validation split beside a test split is not used."""
    return (
        f"note: {where} has a validation and a test split: the test split is tested with, the"
        f" {number_of(count, 'sample')} of the validation split {is_or_are(count)} not used"
    )


def source_with_split(
    class_names: list[str],
    whole: SampleSet,
    splits: Sequence[Split] | None,
    options: SourceOptions,
    where: str,
    domains: SampleGroups | None = None,
    tasks: SampleGroups | None = None,
) -> Source:
    """Return a source with the test split of the data, or with a held-out split by seed.

    Args:
        class_names: names of the classes.
        whole: all samples.
        splits: (n,) split of each sample; None if the data have none.
        options: share and seed.
        where: the data, for messages.
        domains, tasks: groups of the samples, where the data have them.

    Raises:
        DataError: no sample, or as :func:`checked_source`.
    """
    if not len(whole):
        raise DataError(f"{where}: there is no {whole.noun} in it")
    given = splits or ["train"] * len(whole)
    choice = choose_splits(given, where)
    if choice.test is None:
        if splits is not None:
            raise DataError(f"{where}: the test split has no {whole.noun}")
        return split_by_seed(class_names, whole, options, domains, tasks)
    source = source_by_mask(
        class_names, whole, choice.test, domains, tasks, choice.used
    )
    if choice.note is not None:
        source.notes += (choice.note,)
    return checked_source(source, where)


def split_by_seed(
    class_names: list[str],
    whole: SampleSet,
    options: SourceOptions,
    domains: SampleGroups | None = None,
    tasks: SampleGroups | None = None,
) -> Source:
    """Hold out a share of the samples of each class for validation.

    Args:
        class_names: names of the classes.
        whole: all samples.
        options: share and seed.
        domains, tasks: groups of the samples, where the data have them.
    """
    one = np.zeros(len(whole), dtype=np.int64)
    held = held_out_rows(whole, one, options.val_fraction, options.split_seed)
    return replace(
        source_by_mask(class_names, whole, held, domains, tasks), held_out=True
    )


def source_of_splits(
    labels: Sequence[Sequence[Any]],
    make: Callable[[int, np.ndarray], SampleSet],
    options: SourceOptions,
    where: str,
    names: Sequence[str] | None = None,
) -> Source:
    """Return a source of data in one part, to be split by seed, or in two: training and test.

    Args:
        labels: labels of the samples of each part, as :func:`classes_of` takes them.
        make: number of a part and class positions (n,) of its samples → the samples.
        options: share and seed.
        where, names: as for :func:`classes_of`.

    Raises:
        DataError: as :func:`classes_of` and :func:`checked_source`.
    """
    every_label = list(chain.from_iterable(labels))
    class_names, positions = classes_of(every_label, where, names)
    train_count = len(labels[0])
    train = make(0, positions[:train_count])
    if len(labels) == 1:
        return split_by_seed(class_names, train, options)
    test = make(1, positions[train_count:])
    return checked_source(Source(class_names, train, test), where)


def checked_source(source: Source, where: str) -> Source:
    """Return ``source``.

    Raises:
        DataError: there is no test sample, or no training sample of a class.
    """
    if not len(source.val):
        raise DataError(f"{where}: the test split has no {source.val.noun}")
    for label, name in enumerate(source.class_names):
        if label not in source.train.rows_of:
            raise DataError(
                f"{where}: class '{printable(name)}' has no training {source.train.noun}: add some"
            )
    return source


def source_by_mask(
    class_names: list[str],
    whole: SampleSet,
    val: np.ndarray,
    domains: SampleGroups | None = None,
    tasks: SampleGroups | None = None,
    used: np.ndarray | None = None,
) -> Source:
    """Divide samples into a training and a validation set.

    Args:
        class_names: names of the classes.
        whole: all samples.
        val: (n,) bool, which are for validation.
        domains, tasks: groups of the samples, where the data have them.
        used: (n,) bool, which samples are used; None for all.
    """
    if used is None:
        every = np.ones(len(whole), dtype=bool)
    else:
        every = used
    train_rows = np.flatnonzero(every & ~val)
    val_rows = np.flatnonzero(every & val)
    return Source(
        class_names,
        whole.subset(train_rows),
        whole.subset(val_rows),
        domains and domains.divided(train_rows, val_rows),
        tasks and tasks.divided(train_rows, val_rows),
    )


def held_out_rows(
    samples: SampleSet, groups: np.ndarray, fraction: float, seed: int
) -> np.ndarray:
    """Choose a share of the samples of each class in each group by a seeded hash of their names.

    Args:
        samples: all samples.
        groups: (n,) number of each sample's group.
        fraction: share to choose.
        seed: seed of the choice.

    Returns:
        (n,) bool.
    """
    chosen = np.zeros(len(samples), dtype=bool)
    for rows in samples.rows_of.values():
        for group in np.unique(groups[rows]):
            is_member = groups[rows] == group
            members = rows[is_member]
            names = []
            for i in members:
                names.append(samples.names[i])
            chosen[members] = held_out(names, fraction, seed)
    return chosen
