"""Read WebDataset's format: tar files with an image and its label for every sample.

The headers are read once; then every image is read from its place in its shard. So shards of any
number and size are divided over processes and workers as exactly as files in folders, and no sample
is read twice or left out.
"""

import json
import re
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from cifnet_pl.data.samples import SampleTable, SourceOptions, table_of
from cifnet_pl.data.sources.folders import SplitFiles, required_files
from cifnet_pl.data.sources.tables import lacking, refuse_repeated
from cifnet_pl.images.files import EXTENSIONS, file_identity, is_hidden, shown_path
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.files import expanded, refuse_pointer
from cifnet_pl.utilities.text import printable

WHAT = "tar shards: a .tar file, a folder of such files, or a pattern in quotes"

IMAGES = (*(ending.removeprefix(".") for ending in sorted(EXTENSIONS)), "img")
"""Endings of a sample's image."""

LABELS = ("cls", "txt", "json")
"""Endings of a sample's label: a number, a text, or {"label": …}."""

DEFAULT_LABEL = "label"
"""Entry of a .json member that holds the label, where the user names none."""

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
        UsageError, DataError: as for :func:`find_shards`; a shard that is cut off or no tar file; a
            sample without an image or a label.
    """
    where = printable(str(options.root))
    class_names = None
    path = options.own.get("classes")
    if path is not None:
        with explained(DataError, "cannot read the names of the classes"):
            text = expanded(str(path)).read_text("utf-8-sig")
        class_names = text.splitlines()
    label = str(options.own.get("label", DEFAULT_LABEL))
    shards = find_shards(options)
    samples = shards.read(
        partial(read_shard, label=label, numbered=class_names is not None)
    )
    names = samples.table["name"]
    if "split" in samples.table:
        names = samples.table["split"].str.cat(names, sep="/")
    refuse_repeated(names.tolist(), where, "sample")
    return replace(samples, class_names=class_names, where=where)


def find_shards(options: SourceOptions) -> SplitFiles:
    """Find the tar shards of a set, and the split of each.

    Raises:
        UsageError: no shards were given.
        DataError: there are none.
    """
    return required_files(options.root, "**/*.tar", (".tar",), WHAT)


# ---------------------------------------------------------------------- reading


def read_shard(shard: Path, label: str, numbered: bool) -> SampleTable:
    """Read the headers of a tar file, and the labels of its samples.

    Args:
        shard: the tar file.
        label: entry of the .json member, or the ending of another member with the label.
        numbered: whether labels are numbers of classes whose names are elsewhere.

    Raises:
        DataError: the file cannot be read, is cut off or no tar file; a sample without an image or
            a label.
    """
    shown = shown_path(shard)
    names = []
    labels = []
    places = []
    with (
        explained(DataError, f"shard {shown} is damaged, cut off or no tar file"),
        shard.open("rb") as file,
    ):
        refuse_pointer(shard)
        version = file_identity(shard)
        for key, members in _members(file, shown).items():
            where = f"{shown}: sample {printable(key)}"
            image = members[_ending(members, IMAGES, "image", where)]
            names.append(f"{shard.name}/{key}")
            labels.append(_label(file, members, label, numbered, where))
            places.append((image.offset_data, image.size))

    def read(position: int) -> bytes:
        offset, size = places[position]
        with (
            explained(DataError, f"cannot read shard {shown}"),
            shard.open("rb") as file,
        ):
            file.seek(offset)
            content = file.read(size)
            if file_identity(shard) != version:
                raise DataError(
                    f"shard {shown} changed while it was read: start the run again"
                )
            return content

    table = table_of(name=names, label=labels)
    return SampleTable(table, read, sequential=True)


def _members(file: IO[bytes], shard: str) -> dict[str, Members]:
    """Return the members of each sample of a shard, by the samples' keys.

    A key is the name up to its first dot. Of members with one name the last counts, as in tar.

    Raises:
        DataError: the shard is cut off, or has no samples.
    """
    samples: dict[str, Members] = {}
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if not member.isreg() or is_hidden(member.name.removeprefix("./")):
                continue
            folder, slash, last = member.name.rpartition("/")
            stem, _, ending = last.partition(".")
            members = samples.setdefault(folder + slash + stem, {})
            members[ending.lower()] = member
        file.seek(archive.offset)
        block = file.read(tarfile.BLOCKSIZE)
        if not samples or block != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"shard {shard} has no samples, or is cut off")
    return samples


def _label(
    file: IO[bytes],
    members: Members,
    name: str,
    numbered: bool,
    where: str,
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
    endings: tuple[str, ...] = LABELS
    if name != DEFAULT_LABEL:
        endings = (name, "json")
    ending = _ending(members, endings, "label (.cls, .txt or .json)", where)
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


def _ending(members: Members, endings: tuple[str, ...], what: str, where: str) -> str:
    """Return the first of some endings that a sample has; DataError if it has none of them."""
    for ending in endings:
        if ending in members:
            return ending
    raise lacking(where, what, members)
