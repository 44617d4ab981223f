"""Find and read files of images, in folders and within Zip archives.

``images.zip`` is a folder, and ``images.zip/ant/1.jpg`` an image in it.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from cifnet_pl.images.archives import archive_part, archived_files, archived_folders
from cifnet_pl.images.names import is_hidden, is_image
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.text import printable

FILE_BYTES_LIMIT = 2**28
"""Bytes that one image may have, unpacked (256 MB): an archive may promise any number."""


def shown_path(path: Path) -> str:
    """Return a path for a message, on one line."""
    return printable(str(path))


def expanded(path: Path | str) -> Path:
    """Replace a leading ``~`` by the home folder; names that only begin with ``~`` stay."""
    return Path(os.path.expanduser(path))


def listing() -> AbstractContextManager[None]:
    """Return a context that turns a folder that cannot be listed into a DataError with its name."""
    return explained(
        DataError,
        "cannot read a folder",
        OSError,
        end="; give this account access to it",
    )


def missing_folder_kind(path: Path) -> str:
    """Return what a message calls a folder that is not there: a folder, or a Zip archive."""
    if path.suffix.lower() == ".zip":
        return "Zip archive"
    return "folder"


# ---------------------------------------------------------------------- as pathlib does, with
# archives


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of images: in the file system, an archive, or within one."""
    part = archive_part(path)
    if part is None:
        return path.is_dir()
    return part.name in part.open().folders


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, which may be in an archive.

    Raises:
        OSError: it cannot be read.
        DataError: it cannot be read within an archive, or it is larger than ``FILE_BYTES_LIMIT``.
    """
    part = archive_part(path)
    if part is None:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_LIMIT + 1)
    else:
        content = part.open().read(part.name, FILE_BYTES_LIMIT + 1)
    if len(content) > FILE_BYTES_LIMIT:
        raise DataError(f"larger than {FILE_BYTES_LIMIT // 2**20} MB")
    return content


def file_identity(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does: its size, inode, and times of modification and change.

    Of a file in an archive these are the archive's, with the file's size and CRC.
    """
    part = archive_part(path)
    found = (path if part is None else part.path).stat()
    identity = (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
    if part is None:
        return identity
    entry = part.open().files[part.name]
    return (*identity, entry.file_size, entry.CRC)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, unpacked; -1 if it cannot be found."""
    part = archive_part(path)
    try:
        if part is None:
            return path.stat().st_size
        return part.open().files[part.name].file_size
    except (OSError, KeyError):
        return -1


# ---------------------------------------------------------------------- finding images

ENTRIES_SORTED = 10_000
"""Entries of one folder that are sorted by name at once, so that memory stays bounded."""


def walk_images(folder: Path, entered: set[str] | None = None) -> Iterator[Path]:
    """Yield the images below a folder, folder by folder; memory does not grow with their number.

    Hidden entries and files whose name is not that of an image are skipped. Links are followed, but
    no folder is entered twice. A link to a folder that contains the link itself is not followed,
    because it would bring in the images of other folders.

    Args:
        folder: where to begin.
        entered: real paths of the folders that were entered before; this one is added.

    Raises:
        OSError: a folder cannot be read.
    """
    if entered is None:
        entered = set()
    real_path = os.path.realpath(folder)
    if real_path in entered:
        return
    entered.add(real_path)
    with os.scandir(folder) as entries:
        while chunk := sorted(
            islice(entries, ENTRIES_SORTED), key=lambda entry: entry.name
        ):
            for entry in chunk:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if not links_upwards(path):
                        yield from walk_images(path, entered)
                elif is_image(path):
                    yield path


class FileVersion(NamedTuple):
    """What changes when a file is written again.

    Attributes:
        modified: time of the last change in nanoseconds.
        size: in bytes.
    """

    modified: int
    size: int


class NewFiles:
    """The images of a folder that were not found before, or were changed since.

    Args:
        folder: with its sub-folders.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._last_seen: dict[Path, FileVersion] = {}
        self._found: dict[Path, FileVersion] = {}

    def find(self, settled: bool = True) -> Iterator[Path]:
        """Yield new images; nothing while the folder cannot be read.

        An image at which the consumer stops with an error is yielded again by the next call.

        Args:
            settled: whether a file must be as it was at the call before, so that it is not still
                being written.
        """
        with suppress(OSError):
            for path in walk_images(self.folder):
                status = path.stat()
                version = FileVersion(status.st_mtime_ns, status.st_size)
                if self._found.get(path) == version:
                    continue
                if not settled or self._last_seen.get(path) == version:
                    yield path
                    self._found[path] = version
                self._last_seen[path] = version


def links_upwards(folder: Path) -> bool:
    """Return whether ``folder`` is a link to a folder that contains the link."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(
        folder.resolve()
    )


def image_files(folder: Path) -> list[Path]:
    """Return all images below a folder, a Zip archive or a folder in one, sorted.

    Links are followed as by :func:`walk_images`.

    Raises:
        OSError: a folder cannot be read.
    """
    part = archive_part(folder)
    if part is not None:
        return [path for path in archived_files(part) if is_image(path)]
    if links_upwards(folder):
        return []
    return sorted(walk_images(folder))


def sub_folders(root: Path) -> list[Path]:
    """Return the sub-folders of a folder or Zip archive, sorted by name, without hidden ones.

    Args:
        root: the folder or archive.

    Raises:
        DataError: a link leads nowhere, so that a class may be missing.
    """
    part = archive_part(root)
    if part is not None:
        return archived_folders(part)
    entries = sorted(entry for entry in root.iterdir() if not is_hidden(entry.name))
    broken = [
        entry for entry in entries if entry.is_symlink() and not os.path.exists(entry)
    ]
    if broken:
        raise DataError(
            f"the link {shown_path(broken[0])} leads nowhere: repair or remove it"
        )
    return [entry for entry in entries if entry.is_dir()]


def require_folder(folder: Path, option: str, what: str) -> None:
    """Raise DataError unless there is a folder or Zip archive.

    Args:
        folder: which should be there.
        option: of the command line, such as ``--images``.
        what: what the option should be set to, such as "a folder with images".
    """
    if not is_folder(folder):
        kind = missing_folder_kind(folder)
        raise DataError(f"no {kind} {shown_path(folder)}: set {option} to {what}")


def find_images(source: Path | str) -> Iterator[Path]:
    """Yield the images of a file, a folder with its sub-folders, a Zip archive, or a glob pattern.

    In a pattern ``**`` stands for any depth. Hidden files are skipped, and in folders files that
    are not named as images. No folder is entered twice.

    Args:
        source: path or pattern.

    Raises:
        DataError: there is no such file or folder, it holds no image, or a folder cannot be read.
    """
    path = expanded(source)
    shown = printable(str(source))
    part = archive_part(path)
    if part is not None and is_folder(path):
        images = iter(image_files(path))
        nothing_found = f"archive {shown} holds no image"
    elif path.is_dir():
        images = walk_images(path)
        nothing_found = f"folder {shown} holds no image"
    elif path.exists() or (part is not None and part.name in part.open().files):
        return iter([path])
    elif glob.has_magic(str(path)):
        images = _matching(path)
        nothing_found = f"no image matches {shown}"
    else:
        kind = missing_folder_kind(path).replace("folder", "file or folder")
        raise DataError(
            f"no {kind} {shown}: give an image, a folder, a Zip archive, or a pattern in quotes"
        )
    with listing():
        first = next(images, None)
    if first is None:
        raise DataError(
            f"{nothing_found}: give an image, a folder or Zip archive of images, or a pattern in"
            " quotes"
        )
    return chain([first], _listed(images))


def _listed(images: Iterator[Path]) -> Iterator[Path]:
    with listing():
        yield from images


def _matching(pattern: Path) -> Iterator[Path]:
    """Yield the images whose paths match a pattern, sorted.

    ``**`` does not follow links, which may be circles.
    """
    parts = list(pattern.parts)
    plain = 0
    while not glob.has_magic(parts[plain]):
        plain += 1
    base = Path(*parts[:plain])
    if parts[-1] == "**":
        parts.append("*")
    matches = sorted(base.glob("/".join(parts[plain:])))
    for path in matches:
        if (
            not is_hidden(str(path.relative_to(base)))
            and is_image(path)
            and path.is_file()
        ):
            yield path
