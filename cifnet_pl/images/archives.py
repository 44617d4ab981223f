"""Read images within Zip archives: ``images.zip/ant/1.jpg`` is a path.

Nothing is ever written to the disk.
"""

from __future__ import annotations

import os
import threading
import zipfile
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from cifnet_pl.images.names import is_hidden, is_image
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.text import printable

UTF8_FLAG = 0x800
"""Bit of an entry that says that its name is UTF-8 (APPNOTE.TXT, appendix D)."""

ENCODING_VARIABLE = "CIFNET_ZIP_ENCODING"
"""Environment variable with the encoding of names without that bit, such as ``cp932``."""


def use_zip_encoding(encoding: str | None) -> None:
    """Read names in archives that are not UTF-8 in an encoding, in the processes that follow, too.

    Args:
        encoding: one of Python's names, such as ``cp932``; None to leave it as it is.

    Raises:
        UsageError: Python does not know it.
    """
    if encoding is None:
        return
    with explained(UsageError, "zip_encoding", LookupError, end="; for example cp932"):
        "".encode(encoding)
    os.environ[ENCODING_VARIABLE] = encoding


def entry_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry of a Zip archive, with slashes, whatever its encoding is."""
    return _decoded_name(entry) or entry.filename.replace("\\", "/")


def _decoded_name(entry: zipfile.ZipInfo) -> str | None:
    """Return the name of an entry, with slashes; None where its encoding is not known.

    macOS writes UTF-8 without saying so.
    """
    name = entry.orig_filename
    if not entry.flag_bits & UTF8_FLAG:
        encoding = os.environ.get(ENCODING_VARIABLE, "utf-8")
        try:
            name = name.encode("cp437").decode(encoding)  # zipfile read it as cp437
        except UnicodeError:
            return None
    return name.replace("\\", "/")


class Archive:
    """The files of one Zip archive.

    A single top folder that has sub-folders is left out of the names. Names that lead out of the
    archive are hidden ones.

    Args:
        path: the archive.

    Attributes:
        files: name of each file → its entry.
        folders: names of all folders; "" is the top itself.

    Raises:
        DataError: the archive is damaged, or the encoding of its names is needed.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        with self._explained():
            self._zip = zipfile.ZipFile(path)
        entries = {}
        for entry in self._zip.infolist():
            decoded = _decoded_name(entry)
            if decoded is None:
                raise DataError(
                    f"archive {printable(str(path))} has a name in an encoding that it does not"
                    f" say, {printable(entry.filename)}: set --data.zip_encoding (or the variable"
                    f" {ENCODING_VARIABLE}) to that of the computer that packed it, for example"
                    " cp932 (Japanese), gbk (Chinese), cp866 (Cyrillic) or cp850"
                )
            name = decoded.strip("/")
            if not decoded.endswith("/") and name and not is_hidden(name):
                entries[name] = entry
        top = _single_top_folder(entries)
        self.files: dict[str, zipfile.ZipInfo] = {}
        self.folders = {""}
        for name, entry in entries.items():
            if name.startswith(top):
                inner = name.removeprefix(top)
                self.files[inner] = entry
                parents = PurePosixPath(inner).parents
                self.folders.update(map(str, parents))
        self.folders.discard(".")

    def read(self, name: str, count: int = -1) -> bytes:
        """Return the content of a file, or its first ``count`` bytes.

        Raises:
            DataError: the file is missing, damaged or encrypted.
        """
        if name not in self.files:
            raise DataError(
                f"no {printable(name)} in archive {printable(str(self.path))}"
            )
        with self._lock, self._explained(), self._zip.open(self.files[name]) as file:
            return file.read(count)

    def _explained(self) -> AbstractContextManager[None]:
        shown = printable(str(self.path))
        return explained(
            DataError, f"cannot read archive {shown}", end="; make it again"
        )


def _single_top_folder(names: dict[str, zipfile.ZipInfo]) -> str:
    """Return the only top folder, with a slash, if all images are in its sub-folders; else ""."""
    tops = set()
    for name in names:
        parts = PurePosixPath(name).parts
        if is_image(Path(name)):
            top = ""
            if len(parts) > 2:
                top = parts[0]
            tops.add(top)
    if len(tops) == 1 and "" not in tops:
        return f"{tops.pop()}/"
    return ""


@lru_cache
def _opened(path: Path, process: int, version: tuple[object, ...]) -> Archive:
    """Return one open archive for each process: forked ones would share a position in the file."""
    return Archive(path)


def open_archive(path: Path) -> Archive:
    """Return the archive at ``path`` in its current state.

    Raises:
        DataError: it cannot be read.
    """
    found = path.stat()
    encoding = os.environ.get(ENCODING_VARIABLE)
    state = (found.st_size, found.st_ino, found.st_mtime_ns, encoding)
    return _opened(path, os.getpid(), state)


class ArchivePart(NamedTuple):
    """A file or folder in an archive.

    Attributes:
        path: of the archive.
        name: of the part within it, with slashes; "" for the top.
    """

    path: Path
    name: str

    def open(self) -> Archive:
        """Return the archive in its current state; DataError where it cannot be read."""
        return open_archive(self.path)


def archive_part(path: Path) -> ArchivePart | None:
    """Find the archive that a path is, or leads into; None if no part of the path is an archive."""
    # Fast for most paths: this is asked of every image.
    if ".zip" not in str(path).lower():
        return None
    for parent in (path, *path.parents):
        if parent.suffix.lower() == ".zip":
            if not parent.is_file():
                return None
            relative = path.relative_to(parent).as_posix()
            name = relative.removeprefix(".")
            return ArchivePart(parent, name)
    return None


def archived_files(part: ArchivePart) -> list[Path]:
    """Return all files below a folder of an archive, sorted."""
    prefix = ""
    if part.name:
        prefix = f"{part.name}/"
    archive = part.open()
    found = [archive.path / name for name in archive.files if name.startswith(prefix)]
    return sorted(found)


def archived_folders(part: ArchivePart) -> list[Path]:
    """Return the folders right below a folder of an archive, sorted."""
    parent = part.name or "."
    archive = part.open()
    found = []
    for name in archive.folders:
        if name and str(PurePosixPath(name).parent) == parent:
            found.append(archive.path / name)
    return sorted(found)
