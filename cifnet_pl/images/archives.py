"""Read images within Zip archives: ``images.zip/ant/1.jpg`` is a path.

Nothing is ever written to the disk.
"""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from cifnet_pl.images.names import is_hidden, is_image
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.text import printable

NAME_LENGTH_SHOWN = 100
"""Characters of an entry's name that an error message shows."""

BOUNDED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Methods of Zip archives that are unpacked no further than is asked for.

Python unpacks a block of the others (bzip2, LZMA) as a whole, whatever its size.
"""

UTF8_FLAG = 0x800
"""Bit of an entry that says that its name is UTF-8 (APPNOTE.TXT, appendix D)."""


class Archive:
    """The files of one Zip archive.

    An archive with a name that leads out of it, such as ``../a.jpg``, with a link or with a file
    that is not packed by deflate is refused as a whole: no ordinary program makes one. A single top
    folder that has sub-folders is left out of the names.

    Args:
        path: the archive.

    Attributes:
        files: name of each file → its entry.
        folders: names of all folders; "" is the top itself.

    Raises:
        DataError: the archive is damaged or hostile.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        with self._explained():
            self._zip = zipfile.ZipFile(path)
        entries = {}
        for entry in self._zip.infolist():
            name = _safe_name(path, entry)
            if name is not None and not is_hidden(name):
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

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of a file, of at most ``limit`` bytes.

        Raises:
            DataError: the file is missing, damaged or encrypted.
        """
        if name not in self.files:
            raise DataError(
                f"no {printable(name)} in archive {printable(str(self.path))}"
            )
        with self._lock, self._explained(), self._zip.open(self.files[name]) as file:
            return file.read(limit)

    def _explained(self) -> AbstractContextManager[None]:
        shown = printable(str(self.path))
        return explained(
            DataError, f"cannot read archive {shown}", end="; make it again"
        )


def entry_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry of a Zip archive, with slashes.

    macOS writes UTF-8 without saying so, which :mod:`zipfile` reads as code page 437.
    """
    name = entry.filename
    if not entry.flag_bits & UTF8_FLAG:
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:  # it is another encoding
            name = entry.filename
    return name.replace("\\", "/")


def unsafe_entry_message(entry: zipfile.ZipInfo) -> str | None:
    """Return why an entry of a Zip archive is hostile; None if it is not.

    It is if its name leads out of the archive, if it is a link, or if it may unpack to any size.
    """
    name = entry_name(entry)
    shown = printable(name[:NAME_LENGTH_SHOWN])
    parts = PurePosixPath(name).parts
    has_drive = bool(parts) and ":" in parts[0]
    if ".." in parts or name.startswith("/") or has_drive:
        return f"names a file outside of itself: {shown}"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return f"holds a link, {shown}: pack the image itself"
    if entry.compress_type not in BOUNDED_METHODS:
        return f"packs {shown} in a way that is not read: use deflate"
    return None


def _safe_name(path: Path, entry: zipfile.ZipInfo) -> str | None:
    """Return the name of a file in an archive, None for a folder; DataError for a hostile one."""
    message = unsafe_entry_message(entry)
    if message is not None:
        raise DataError(f"archive {printable(str(path))} {message}")
    name = entry_name(entry)
    if name.endswith("/") or not PurePosixPath(name).parts:
        return None
    return str(PurePosixPath(name))


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


@lru_cache(maxsize=16)
def _opened(path: Path, process: int, version: tuple[int, ...]) -> Archive:
    """Return one open archive for each process: forked ones would share a position in the file."""
    return Archive(path)


def open_archive(path: Path) -> Archive:
    """Return the archive at ``path`` in its current state.

    Raises:
        DataError: it cannot be read.
    """
    found = path.stat()
    state = (found.st_size, found.st_ino, found.st_mtime_ns)
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
