"""Read WebDataset's format: tar files with an image and its label for every sample.

The headers are read once; then every image is read from its place in its shard. So shards of any
number and size are divided over processes and workers as exactly as files in folders, and no sample
is read twice or left out.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from cifnet_pl.data.samples import SampleTable, SourceOptions, table_of
from cifnet_pl.data.sources.tables import refuse_repeated
from cifnet_pl.images.files import file_identity, matching_paths
from cifnet_pl.images.names import EXTENSIONS, is_hidden
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.names import Split, split_of
from cifnet_pl.utilities.text import printable

IMAGES = (*(ending.removeprefix(".") for ending in sorted(EXTENSIONS)), "img")
"""Endings of a sample's image."""

LABELS = ("cls", "txt", "json")
"""Endings of a sample's label: a number, a text, or {"label": …}."""

Members = dict[str, tarfile.TarInfo]
"""Ending of a name → the member of one sample."""


def webdataset(options: SourceOptions) -> SampleTable:
    """Read tar shards; ``--data.root`` is a folder of them, or a pattern (``part-*.tar``).

    A sample is the members with one name up to its first dot: an image, and ``.cls`` (a number),
    ``.txt`` (a name) or ``.json`` with an entry "label". Hidden members are skipped. Shards in a
    folder ``train`` or ``test``, or whose names begin so, are that split.

    Options:
        label: entry of the .json member, or the ending of another member with the label.
        classes: a text file with the name of class 0, 1, … on a line each.

    Raises:
        UsageError: no shards were given.
        DataError: a shard that is missing, cut off or no tar file; a sample without an image or a
            label.
    """
    names_of_numbers = _class_list(options)
    label_name = str(options.own.get("label", "label"))
    has_names = names_of_numbers is not None
    reader = ShardReader(find_shards(options), label_name, has_names)
    where = printable(str(options.root))
    refuse_repeated(reader.names, where, "sample")
    columns = {"name": reader.names, "label": reader.labels}
    split_of_shards = [split_of_shard(shard) for shard in reader.shards]
    tested = {"test", "val"} & set(split_of_shards)
    if "train" in split_of_shards and tested:
        splits = [split_of_shards[number] or "train" for number in reader.shard]
        columns["split"] = splits
    return SampleTable(
        table_of(**columns),
        reader,
        class_names=names_of_numbers,
        where=where,
        prefix="",
        sequential=True,
    )


def find_shards(options: SourceOptions) -> list[str]:
    """Return the paths of all shards, sorted.

    Args:
        options: ``root`` is a folder or a pattern.

    Raises:
        UsageError: no root.
        DataError: there are no shards.
    """
    if options.root is None:
        raise UsageError(
            "no shards were given: set --data.root to a folder of .tar files or a pattern"
        )
    path = expanded(options.root)
    pattern = path
    if path.is_dir():
        pattern = path / "**" / "*.tar"
    files = [str(file) for file in matching_paths(pattern)]
    if not files:
        raise DataError(f"no shards at {printable(str(path))}: expected .tar files")
    return files


def split_of_shard(shard: str) -> Split | None:
    """Return the split with which the name of a shard or of its folder begins, or None."""
    for name in reversed(shard.rsplit("/", 2)[-2:]):
        word = re.match(r"[A-Za-z]*", name)
        if word is not None and split_of(word[0]) is not None:
            return split_of(word[0])
    return None


def _class_list(options: SourceOptions) -> list[str] | None:
    path = options.own.get("classes")
    if path is None:
        return None
    with explained(DataError, "cannot read the names of the classes"):
        path_of_file = expanded(str(path))
        return path_of_file.read_text(encoding="utf-8-sig").splitlines()


# ---------------------------------------------------------------------- reading


def _samples(file: IO[bytes], shard: str) -> dict[str, Members]:
    """Return the members of each sample of a shard, by the samples' keys.

    Args:
        file: the shard.
        shard: its path, for messages.

    Raises:
        DataError: the shard is cut off, has no samples, or one with two members of one ending.
    """
    samples: dict[str, Members] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.isreg() and not is_hidden(member.name.removeprefix("./")):
                _add_member(samples, member, shard)
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if block != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"shard {shard} is cut off: it has no end mark")
    if not samples:
        raise DataError(f"shard {shard} has no samples, or is cut off")
    return samples


def _add_member(
    samples: dict[str, Members], member: tarfile.TarInfo, shard: str
) -> None:
    """Add a member to its sample, whose key is the name up to the first dot."""
    folder, slash, last = member.name.rpartition("/")
    stem, _, ending = last.partition(".")
    key = folder + slash + stem
    members = samples.setdefault(key, {})
    if ending.lower() in members:
        raise DataError(
            f"{shard}: sample {printable(key)} has two members .{printable(ending)}: rename one"
        )
    members[ending.lower()] = member


def _listed(members: Members) -> str:
    return ", ".join(map(printable, members))


def _label(
    file: IO[bytes], members: Members, name: str, numbered: bool, where: str
) -> Any:
    """Read the label of a sample.

    The ending of its member tells its type: .cls is a number where it can be, .json what it says,
    and others are text, so that "007" and "7" are two classes.

    Args:
        file: the shard.
        members: members of the sample.
        name: entry of the .json member, or the ending of the member with the label.
        numbered: whether texts are numbers of classes whose names are elsewhere.
        where: the sample, for messages.
    """
    ending = _first_ending(members, (name, *LABELS))
    if ending is None:
        raise DataError(
            f"{where} has no label (.cls, .txt or .json), it has {_listed(members)}"
        )
    member = members[ending]
    file.seek(member.offset_data)
    with explained(
        DataError, f"{where} has no readable label '{printable(name)}' in .{ending}"
    ):
        content = file.read(member.size)
        text = content.decode("utf-8").strip()
        if ending == "json":
            return json.loads(text)[name]
    if (numbered or ending == "cls") and re.fullmatch(r"-?\d+", text):
        return int(text)
    return text


def _first_ending(members: Members, endings: tuple[str, ...]) -> str | None:
    for ending in endings:
        if ending in members:
            return ending
    return None


class ShardReader:
    """Read the headers of tar files once, then the image of any sample.

    Args:
        shards: paths of the tar files.
        label: entry of the .json member, or the ending of another member with the label.
        numbered: whether labels are numbers of classes whose names are elsewhere.

    Attributes:
        marks: size and times of each tar file, which change with its content.
        shard, offset, size: (n,) the tar file of each image, and its place there in bytes.
        names: (n,) the tar file's name with the key of each sample.
        labels: (n,) content of each sample's label member.

    Raises:
        DataError: a shard that cannot be read, is cut off or no tar file; a sample without an image
            or a label.
    """

    def __init__(self, shards: list[str], label: str, numbered: bool = False):
        self.shards = shards
        self.marks = [file_identity(Path(shard)) for shard in shards]
        self.names: list[str] = []
        self.labels: list[Any] = []
        places: list[tuple[int, int, int]] = []
        for number, shard in enumerate(shards):
            shown = printable(shard)
            if not Path(shard).is_file():
                raise DataError(f"shard {shown} is no regular file: remove it")
            with (
                explained(
                    DataError, f"shard {shown} is damaged, cut off or no tar file"
                ),
                open(shard, "rb") as file,
            ):
                for key, members in _samples(file, shown).items():
                    where = f"{shown}: sample {printable(key)}"
                    ending = _first_ending(members, IMAGES)
                    if ending is None:
                        raise DataError(
                            f"{where} has no image, it has {_listed(members)}"
                        )
                    image = members[ending]
                    self.labels.append(_label(file, members, label, numbered, where))
                    name = f"{Path(shard).name}/{key}"
                    self.names.append(name)
                    place = (number, image.offset_data, image.size)
                    places.append(place)
        columns = np.array(places, dtype=np.int64)
        self.shard, self.offset, self.size = columns.T

    def __call__(self, row: int) -> bytes:
        """Return the bytes of an image.

        Raises:
            DataError: its shard cannot be read, or was changed since its headers were read.
        """
        number = int(self.shard[row])
        shard = self.shards[number]
        size = int(self.size[row])
        with (
            explained(DataError, f"cannot read shard {printable(shard)}"),
            open(shard, "rb") as file,
        ):
            file.seek(int(self.offset[row]))
            content = file.read(size)
            if file_identity(Path(shard)) != self.marks[number] or len(content) != size:
                raise DataError(
                    f"shard {printable(shard)} changed while it was read: start the run again"
                )
        return content
