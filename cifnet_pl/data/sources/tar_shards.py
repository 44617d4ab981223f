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
from typing import IO, Any, NamedTuple

import pandas as pd

from cifnet_pl.data.samples import SampleTable, SourceOptions
from cifnet_pl.data.sources.tables import refuse_repeated
from cifnet_pl.images.files import EXTENSIONS, file_identity, is_hidden, matching_paths
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.files import expanded, refuse_pointer
from cifnet_pl.utilities.names import split_notes, splits_of
from cifnet_pl.utilities.text import printable

IMAGES = (*(ending.removeprefix(".") for ending in sorted(EXTENSIONS)), "img")
"""Endings of a sample's image."""

LABELS = ("cls", "txt", "json")
"""Endings of a sample's label: a number, a text, or {"label": …}."""

Members = dict[str, tarfile.TarInfo]
"""Ending of a name → the member of one sample."""


def webdataset(options: SourceOptions) -> SampleTable:
    """Read tar shards; ``--data.root`` is a folder of them, or a pattern.

    Patterns are such as ``part-*.tar`` and ``part-{000..127}.tar``.

    A sample is the members with one name up to its first dot: an image, and ``.cls`` (a number),
    ``.txt`` (a name) or ``.json`` with an entry "label". Hidden members are skipped. Shards with
    "train", "val" or "test" as a word in their names, or in those of their folders, are that split.

    Options:
        label: entry of the .json member, or the ending of another member with the label.
        classes: a text file with the name of class 0, 1, … on a line each.

    Raises:
        UsageError: no shards were given.
        DataError: a shard that is missing, cut off or no tar file; a sample without an image or a
            label.
    """
    class_names = _class_list(options)
    label = str(options.own.get("label", "label"))
    samples: list[ShardSample] = []
    shards = find_shards(options)
    for shard in shards:
        samples += read_headers(shard, label, class_names is not None)
    where = printable(str(options.root))
    table = pd.DataFrame(samples, dtype=object)
    refuse_repeated(table["name"].tolist(), where, "sample")
    splits = splits_of([Path(shard) for shard in shards])
    if splits:
        of_shard = dict(zip(shards, splits, strict=True))
        table["split"] = table["shard"].map(of_shard)

    def read(position: int) -> bytes:
        return read_member(samples[position])

    return SampleTable(
        table,
        read,
        class_names=class_names,
        where=where,
        prefix="",
        sequential=True,
        notes=split_notes(splits),
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
    pattern = expanded(options.root)
    if pattern.is_dir():
        pattern = pattern / "**" / "*.tar"
    files = [str(file) for file in matching_paths(pattern)]
    if not files:
        raise DataError(f"no shards at {printable(str(pattern))}: expected .tar files")
    return files


def _class_list(options: SourceOptions) -> list[str] | None:
    path = options.own.get("classes")
    if path is None:
        return None
    with explained(DataError, "cannot read the names of the classes"):
        path_of_file = expanded(str(path))
        return path_of_file.read_text(encoding="utf-8-sig").splitlines()


# ---------------------------------------------------------------------- reading


class ShardSample(NamedTuple):
    """A sample of a shard.

    Attributes:
        name: the tar file's name with the key of the sample.
        label: content of its label member.
        shard: path of the tar file.
        offset, size: place of its image there, in bytes.
        stamp: when the tar file was last changed.
    """

    name: str
    label: Any
    shard: str
    offset: int
    size: int
    stamp: tuple[int, ...]


def read_headers(shard: str, label: str, numbered: bool) -> list[ShardSample]:
    """Read the headers of a tar file, and the labels of its samples.

    Args:
        shard: path of the tar file.
        label: entry of the .json member, or the ending of another member with the label.
        numbered: whether labels are numbers of classes whose names are elsewhere.

    Raises:
        DataError: the file cannot be read, is cut off or no tar file; a sample without an image or
            a label.
    """
    shown = printable(shard)
    found = []
    with (
        explained(DataError, f"shard {shown} is damaged, cut off or no tar file"),
        open(shard, "rb") as file,
    ):
        refuse_pointer(Path(shard))
        stamp = file_identity(Path(shard))
        for key, members in _members(file, shown).items():
            where = f"{shown}: sample {printable(key)}"
            image = _first(members, IMAGES)
            if image is None:
                known = ", ".join(map(printable, members))
                raise DataError(f"{where} has no image, it has {known}")
            name = f"{Path(shard).name}/{key}"
            value = _label(file, members, label, numbered, where)
            start = members[image].offset_data
            size = members[image].size
            found.append(ShardSample(name, value, shard, start, size, stamp))
    return found


def read_member(sample: ShardSample) -> bytes:
    """Return the content of a sample's image.

    Raises:
        DataError: the shard cannot be read, or was changed since its headers were read.
    """
    shown = printable(sample.shard)
    with (
        explained(DataError, f"cannot read shard {shown}"),
        open(sample.shard, "rb") as file,
    ):
        file.seek(sample.offset)
        content = file.read(sample.size)
        stamp = file_identity(Path(sample.shard))
    if stamp != sample.stamp or len(content) != sample.size:
        raise DataError(f"shard {shown} changed while it was read: start the run again")
    return content


def _members(file: IO[bytes], shard: str) -> dict[str, Members]:
    """Return the members of each sample of a shard, by the samples' keys.

    A key is the name up to its first dot.

    Raises:
        DataError: the shard is cut off, has no samples, or one with two members of one ending.
    """
    samples: dict[str, Members] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if not member.isreg() or is_hidden(member.name.removeprefix("./")):
                continue
            folder, slash, last = member.name.rpartition("/")
            stem, _, ending = last.partition(".")
            members = samples.setdefault(folder + slash + stem, {})
            if ending.lower() in members:
                raise DataError(
                    f"{shard}: two members are {printable(member.name)}: rename one"
                )
            members[ending.lower()] = member
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if not samples or block != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"shard {shard} has no samples, or is cut off")
    return samples


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
    ending = _first(members, (name, *LABELS))
    if ending is None:
        known = ", ".join(map(printable, members))
        raise DataError(f"{where} has no label (.cls, .txt or .json), it has {known}")
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


def _first(members: Members, endings: tuple[str, ...]) -> str | None:
    """Return the first of the endings that a sample has a member of."""
    return next((ending for ending in endings if ending in members), None)
