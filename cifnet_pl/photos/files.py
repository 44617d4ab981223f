"""Find and read files of photos, in folders and within Zip archives.

``photos.zip`` is a folder, and ``photos.zip/ant/1.jpg`` a photo in it.
"""

from __future__ import annotations

import os
import stat
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import printable

EXTENSIONS = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".tga"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif"),
)
"""File names that count as images; everything else in a folder is passed over.

A format that this machine's Pillow cannot decode is listed on purpose: its images are then reported as unreadable, not
left out in silence. HEIC needs the package ``pillow-heif``, the extra ``heic``.
"""

LARGEST_PHOTO = 2**28
"""Bytes that one photo may have when it is unpacked (256 MB): an archive may promise any number."""

FAILURES = (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, ValueError, EOFError)
"""What :mod:`zipfile` raises for damaged archives, unknown methods of compression, and passwords."""

T = TypeVar("T")


def is_image(path: Path) -> bool:
    """Return whether a file's name says that it is an image."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


class Archive:
    """The photos of one Zip archive.

    Nothing is ever written to the disk. An archive with a name that leads out of it, such as ``../a.jpg``, or with a
    link is refused as a whole: no ordinary program makes one.

    Args:
        path: the file.

    Attributes:
        files: name of each file, relative to ``top``, → its entry.
        folders: names of all folders, likewise; "" is the top itself.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        self._zip = _explained(path, lambda: zipfile.ZipFile(path))
        entries = {name: entry for entry in self._zip.infolist() if (name := _safe_name(path, entry)) and _seen(name)}
        top = _only_folder(entries)
        self.files = {name.removeprefix(top): entry for name, entry in entries.items() if name.startswith(top)}
        self.folders = {""} | {str(parent) for name in self.files for parent in PurePosixPath(name).parents} - {"."}

    def read(self, name: str) -> bytes:
        """Return the content of file ``name``.

        Raises:
            DataError: it is damaged, encrypted, or larger than ``LARGEST_PHOTO`` when it is unpacked.
        """
        if name not in self.files:
            raise DataError(f"no {printable(name)} in archive {printable(str(self.path))}")
        with self._lock, _explained(self.path, lambda: self._zip.open(self.files[name])) as file:
            content: bytes = _explained(self.path, lambda: file.read(LARGEST_PHOTO + 1))
        if len(content) > LARGEST_PHOTO:
            raise DataError(f"larger than {LARGEST_PHOTO // 2**20} MB when it is unpacked")
        return content


def _explained(path: Path, action: Callable[[], T]) -> T:
    try:
        return action()
    except FAILURES as error:
        raise DataError(f"cannot read archive {printable(str(path))}: {error}; make it again") from error


def _safe_name(path: Path, entry: zipfile.ZipInfo) -> str | None:
    """Return the name of a file in the archive, or None for a folder.

    Raises:
        DataError: a name that leads out of the archive, or a link.
    """
    name, mode = entry.filename.replace("\\", "/"), entry.external_attr >> 16
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or (parts and parts[0].endswith(":")):
        raise DataError(f"archive {printable(str(path))} names a file outside of itself: {printable(name)}")
    if stat.S_ISLNK(mode):
        raise DataError(f"archive {printable(str(path))} holds a link, {printable(name)}: pack the photo itself")
    return None if entry.is_dir() or name.endswith("/") or not parts else str(PurePosixPath(*parts))


def _seen(name: str) -> bool:
    """Return whether no part of the path is hidden or added by macOS."""
    return not any(component.startswith((".", "__MACOSX")) for component in PurePosixPath(name).parts)


def _only_folder(names: dict[str, zipfile.ZipInfo]) -> str:
    """Return the top folder, with a slash, if the archive holds a single folder with sub-folders; else ""."""
    parts = [PurePosixPath(name).parts for name in names if is_image(Path(name))]
    first = {path[0] for path in parts}
    return f"{first.pop()}/" if len(first) == 1 and min(map(len, parts)) > 2 else ""


@lru_cache(maxsize=16)
def _opened(path: Path, process: int, mark: tuple[int, ...]) -> Archive:
    """Return one open archive for each process: forked ones would share a position in the file."""
    return Archive(path)


def open_archive(path: Path) -> Archive:
    """Return the archive at ``path`` in its current state.

    Raises:
        DataError: it cannot be read.
    """
    mark = path.stat()
    return _opened(path, os.getpid(), (mark.st_size, mark.st_ino, mark.st_mtime_ns))


def within(path: Path) -> tuple[Path, str] | None:
    """Find the archive that a path is, or leads into.

    Returns:
        The archive, and the rest of the path with slashes; None if no part of the path is an archive.
    """
    if ".zip" not in str(path).lower():  # most paths: this is asked of every photo
        return None
    for parent in (path, *path.parents):
        if parent.suffix.lower() == ".zip":
            return (parent, path.relative_to(parent).as_posix().removeprefix(".")) if parent.is_file() else None
    return None


# ---------------------------------------------------------------------- as pathlib has it, archives included


def is_folder(path: Path) -> bool:
    """Return whether a folder of photos is there: a folder of the file system, an archive, or a folder within one."""
    inside = within(path)
    return path.is_dir() if inside is None else inside[1] in open_archive(inside[0]).folders


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, which may be in an archive."""
    inside = within(path)
    return path.read_bytes() if inside is None else open_archive(inside[0]).read(inside[1])


def identity(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does: its size, inode, and times of modification and of change.

    Of a file in an archive these are the archive's, with the file's size and CRC.
    """
    inside = within(path)
    mark = (path if inside is None else inside[0]).stat()
    times = (mark.st_size, mark.st_ino, mark.st_mtime_ns, mark.st_ctime_ns)
    if inside is None:
        return times
    entry = open_archive(inside[0]).files[inside[1]]
    return (*times, entry.file_size, entry.CRC)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, unpacked if it is in an archive; -1 if it cannot be found."""
    inside = within(path)
    try:
        return path.stat().st_size if inside is None else open_archive(inside[0]).files[inside[1]].file_size
    except (OSError, KeyError):
        return -1


def archived_files(path: Path) -> list[Path]:
    """Return all files below ``path``, an archive or a folder within one, sorted."""
    archive, start = _required(path)
    prefix = f"{start}/" if start else ""
    return sorted(archive.path / name for name in archive.files if name.startswith(prefix))


def archived_folders(path: Path) -> list[Path]:
    """Return the folders right below ``path``, an archive or a folder within one, sorted."""
    archive, start = _required(path)
    inner = [name for name in archive.folders if name and str(PurePosixPath(name).parent) in (start or ".",)]
    return sorted(archive.path / name for name in inner)


def _required(path: Path) -> tuple[Archive, str]:
    inside = within(path)
    assert inside is not None
    return open_archive(inside[0]), inside[1]


SORTED_AT_ONCE = 10_000
"""Entries of one folder that are sorted by name before the next ones are read, so that memory stays bounded."""


def walk_images(folder: Path, depth: int | None = None) -> Iterator[Path]:
    """Yield the images below ``folder``, folder by folder; memory does not grow with their number.

    Hidden entries and files whose name is not that of an image are skipped. Links are followed, but no folder is
    entered twice. A link below ``folder`` to a folder that contains the link itself is not followed,
    because it would bring in the images of other folders.

    Args:
        folder: where to begin.
        depth: levels of folders to read, 1 for ``folder`` alone, or None for all.

    Raises:
        OSError: a folder cannot be read.
    """
    return _walk(folder, set(), depth)


def _walk(folder: Path, visited: set[str], depth: int | None) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in visited:
        return
    visited.add(real)
    with os.scandir(folder) as entries:
        while chunk := sorted(islice(entries, SORTED_AT_ONCE), key=lambda entry: entry.name):
            for entry in chunk:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if (depth is None or depth > 1) and not links_upwards(path):
                        yield from _walk(path, visited, None if depth is None else depth - 1)
                elif is_image(path):
                    yield path


def links_upwards(folder: Path) -> bool:
    """Return whether ``folder`` is a link to a folder that contains the link."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
