"""Read WebDataset's format as a data source: tar files with an image and its label for every sample.

The headers are read once; then every image is read from its place in its shard. So shards of any number and size are
divided over processes and workers as exactly as files in folders, and no sample is read twice or left out.
"""

from __future__ import annotations

import glob
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from cifnet_pl.data.sets import ImageSet, Source, SourceOptions, in_two, split_by_seed
from cifnet_pl.photos.files import expanded
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
from cifnet_pl.utilities.text import first_line, has_controls, printable

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

    def given(self, index: int) -> bytes:
        """Return the bytes of the image's file."""
        return self.read(int(self.rows[index]))

    def mark(self, index: int) -> tuple[int, ...] | int | str:
        """Return what the reader's ``mark`` says of the image, or else its content's hash."""
        mark = self.read.mark(int(self.rows[index])) if hasattr(self.read, "mark") else None
        return super().mark(index) if mark is None else mark

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
    source = in_two(class_names, whole, test)
    missing = [name for label, name in enumerate(class_names) if label not in source.train.rows_of]
    if missing:
        raise DataError(f"{where}: class '{printable(missing[0])}' has no training image: add some, or take it out")
    if not len(source.val):
        raise DataError(f"{where}: the test part has no image")
    return source


IMAGES = ("jpg", "jpeg", "png", "webp", "ppm", "bmp", "tif", "tiff", "img")
LABELS = ("cls", "txt", "json")
"""Endings of a sample's members: the image, and its label as a number, a text, or {"label": …}."""

OPEN = 16
"""Shards that a process keeps open."""


@dataclass
class Index:
    """The position of every sample in the tar files.

    Attributes:
        shards: addresses of the tar files.
        marks: of each, what changes with its content: size and times.
        shard, offset, size: (n,) of each image: its tar file, and its place in it in bytes.
        names, labels: (n,) of each sample: its tar file's name with its key, and what its label member says.
    """

    shards: list[str]
    marks: list[tuple[int, ...]] = field(default_factory=list)
    shard: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)


def webdataset(options: SourceOptions) -> Source:
    """Read tar shards; ``--data.root`` is a folder of them, a pattern (``part-{000..099}.tar``, ``*.tar``) or a URL.

    A sample is the members with one name up to its first dot: an image, and ``.cls`` (a number), ``.txt`` (a name) or
    ``.json`` with an entry "label". Shards in a folder ``train`` or ``test``, or whose names begin so, are that part;
    without both a share of each class is held back by seed.

    Options:
        label: entry of the .json member, or the ending of another member with the label.
        classes: a text file with the name of class 0, 1, … on a line each.

    Raises:
        UsageError: no shards were given.
        DataError: a shard that is missing, cut off or no tar file; a sample without an image or a label.
    """
    shards = find_shards(options)
    index = Index(shards)
    for number in range(len(shards)):
        _read_index(index, number, str(options.own.get("label", "label")))
    where = printable(str(options.root))
    if len(set(index.names)) < len(index.names):
        again = max(set(index.names), key=index.names.count) if len(index.names) < 10_000 else "one"
        raise DataError(f"{where}: sample {printable(again)} stands there twice: give each sample a name of its own")
    class_names, labels = classes_of(index.labels, where, _class_list(options))
    whole = EncodedSet(ShardReader(index), labels, index.names)
    parts = [part_of(shard) for shard in shards]
    test = np.array([parts[number] == "test" for number in index.shard]) if {"train", "test"} <= set(parts) else None
    return in_parts(class_names, whole, test, options, where)


def find_shards(options: SourceOptions) -> list[str]:
    """Return the addresses of all shards, sorted.

    Args:
        options: ``root`` is a folder, a pattern or a URL.

    Raises:
        UsageError: no address was given.
        DataError: there are no shards.
    """
    if options.root is None:
        raise UsageError("no shards were given: set --data.root to a folder of .tar files, a pattern or a URL")
    # A path has one slash where a URL has two.
    root = re.sub(r"^([A-Za-z][\w+.-]+):/(?=[^/])", r"\1://", str(options.root))
    if "://" not in root:
        path = expanded(Path(root))
        root = str(path / "**" / "*.tar") if path.is_dir() else str(path)
    files = [file for pattern in _braces(root) for file in _listed(pattern)]
    if not files:
        raise DataError(f"no shards at {printable(root)}: expected .tar files")
    return sorted(set(files))


def _braces(pattern: str) -> list[str]:
    """Expand ``{000..012}`` and ``{a,b}``.

    Example:
        >>> _braces("part-{08..10}.tar")
        ['part-08.tar', 'part-09.tar', 'part-10.tar']
    """
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", pattern)
    if match is None:
        return [pattern]
    if match[1] is not None:
        alternatives = [f"{number:0{len(match[1])}}" for number in range(int(match[1]), int(match[2]) + 1)]
    else:
        alternatives = match[3].split(",")
    return [rest for word in alternatives for rest in _braces(pattern[: match.start()] + word + pattern[match.end() :])]


def _listed(pattern: str) -> list[str]:
    if "://" in pattern:
        if not re.search(r"[*?\[]", pattern):
            return [pattern]
        import fsspec

        system, inner = fsspec.core.url_to_fs(pattern)
        return [str(system.unstrip_protocol(path)) for path in system.glob(inner)]
    return glob.glob(pattern, recursive=True)


def part_of(shard: str) -> str | None:
    """Return "train" or "test" if the name of a shard or of its folder says so, else None."""
    for name in reversed(shard.rsplit("/", 2)[-2:]):
        word = re.match(r"[a-z]*", name.lower())
        if word is not None and word[0] in TRAIN + TEST:
            return "train" if word[0] in TRAIN else "test"
    return None


def _class_list(options: SourceOptions) -> list[str] | None:
    path = options.own.get("classes")
    if path is None:
        return None
    try:
        return expanded(Path(str(path))).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the names of the classes: {first_line(error)}") from error


# ---------------------------------------------------------------------- reading


def _open(address: str) -> IO[bytes]:
    try:
        if "://" not in address:
            return open(address, "rb")
        import fsspec

        return fsspec.open(address, "rb").open()  # type: ignore[no-any-return]
    except (OSError, ImportError, ValueError) as error:
        raise DataError(f"cannot open shard {printable(address)}: {first_line(error)}") from error


def _mark(file: Any, address: str) -> tuple[int, ...]:
    """Return what changes with a shard's content."""
    if "://" not in address:
        about = Path(address).stat()
        return about.st_size, about.st_mtime_ns, about.st_ino
    return (int(getattr(file, "size", None) or file.seek(0, 2)),)


def _members(file: IO[bytes], address: str, total: int) -> Iterator[tarfile.TarInfo]:
    shown = printable(address)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isreg():
                    end, name = member.offset_data + member.size, printable(member.name)
                    if end > total:
                        raise DataError(f"shard {shown} is cut off: {name} ends at byte {end}, the file has {total}")
                    yield member
            file.seek(archive.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise DataError(f"shard {shown} is cut off: it has no end mark")
    except tarfile.TarError as error:
        raise DataError(f"shard {shown} is damaged, cut off or no tar file: {first_line(error)}") from error


def _read_index(index: Index, number: int, label: str) -> None:
    """Add the samples of one shard."""
    address = index.shards[number]
    short = address.rsplit("/", 1)[-1]
    with _open(address) as file:
        mark = _mark(file, address)
        file.seek(0)
        samples: dict[str, dict[str, tarfile.TarInfo]] = {}
        for member in _members(file, address, mark[0]):
            folder, _, last = member.name.rpartition("/")
            key, _, ending = last.partition(".")
            key = f"{folder}/{key}" if folder else key
            if samples.setdefault(key, {}).setdefault(ending.lower(), member) is not member:
                raise DataError(
                    f"{printable(address)}: sample {printable(key)} has two members .{printable(ending)}: give each "
                    "sample a name of its own"
                )
        if not samples:
            raise DataError(f"shard {printable(address)} has no samples, or is cut off")
        index.marks.append(mark)
        for key, members in samples.items():
            image = next((members[ending] for ending in IMAGES if ending in members), None)
            if image is None:
                listed = ", ".join(printable(ending) for ending in members)
                raise DataError(f"{printable(address)}: sample {printable(key)} has no image, it has {listed}")
            index.labels.append(_label(file, members, label, f"{printable(address)}: sample {printable(key)}"))
            index.names.append(f"{short}/{key}")
            index.shard.append(number)
            index.offset.append(image.offset_data)
            index.size.append(image.size)


def _label(file: IO[bytes], members: dict[str, tarfile.TarInfo], name: str, where: str) -> Any:
    ending = name if name in members else next((e for e in LABELS if e in members), None)
    if ending is None:
        listed = ", ".join(printable(member) for member in members)
        raise DataError(f"{where} has no label (.cls, .txt or .json), it has {listed}")
    member = members[ending]
    file.seek(member.offset_data)
    try:
        text = file.read(member.size).decode("utf-8").strip()
        if ending == "json":
            return json.loads(text)[name]
    except (UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where} has no readable label '{printable(name)}' in .{ending}: {error!r}") from error
    return int(text) if re.fullmatch(r"-?\d+", text) else text


class ShardReader:
    """Read the image of one sample; an object, so that spawned workers can receive it."""

    def __init__(self, index: Index):
        self.shards, self.marks = index.shards, index.marks
        self.shard = np.array(index.shard, dtype=np.int32)
        self.offset = np.array(index.offset, dtype=np.int64)
        self.size = np.array(index.size, dtype=np.int64)

    def __call__(self, row: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            DataError: its shard cannot be read, or changed since it was indexed.
        """
        number = int(self.shard[row])
        address = self.shards[number]
        try:
            file = _opened(address, self.marks[number], os.getpid())  # processes must not share a file's position
            mark = _mark(file, address)
            file.seek(int(self.offset[row]))
            content = file.read(int(self.size[row]))
        except CifnetError:
            raise
        except OSError as error:
            raise DataError(f"cannot read shard {printable(address)}: {first_line(error)}") from error
        if mark != self.marks[number] or len(content) != self.size[row]:
            raise DataError(f"shard {printable(address)} changed while it was read: start the run again")
        return content


@lru_cache(maxsize=OPEN)
def _opened(address: str, mark: tuple[int, ...], process: int) -> IO[bytes]:
    return _open(address)
