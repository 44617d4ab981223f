"""Find and read files of images, in folders and within Zip archives.

``images.zip`` is a folder, and ``images.zip/ant/1.jpg`` an image in it.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path

from cifnet_pl.images.archives import archive_part, archived_files, archived_folders
from cifnet_pl.images.names import SIGNATURE_BYTES, PassedOver, is_hidden, is_image
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import printable


def shown_path(path: Path) -> str:
    """Return a path for a message, on one line."""
    return printable(str(path))


def listing() -> AbstractContextManager[None]:
    """Return a context that turns a folder that cannot be listed into a DataError with its name."""
    return explained(
        DataError,
        "cannot read a folder",
        OSError,
        end="; give this account access to it",
    )


def missing_folder_kind(path: Path) -> str:
    """Return the noun for a missing folder in messages: a folder, or a Zip archive."""
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
        DataError: it cannot be read within an archive, or it is no regular file.
    """
    part = archive_part(path)
    if part is not None:
        return part.open().read(part.name)
    # Opening a pipe would wait for its other end, and a device may have no end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError("a folder, pipe or device, not a regular file")
    return path.read_bytes()


def first_bytes(path: Path, count: int) -> bytes:
    """Return at most ``count`` bytes of a regular file, which may be in an archive; else none."""
    part = archive_part(path)
    try:
        if part is not None:
            return part.open().read(part.name, count)
        if path.is_file():
            with path.open("rb") as file:
                return file.read(count)
    except (OSError, DataError):
        pass  # nothing can be said about it
    return b""


def file_identity(path: Path) -> tuple[int, ...]:
    """Return a cheap fingerprint (size, inode, times) that detects changes of a file.

    Of a file in an archive these are the archive's, with the file's size and CRC.
    """
    part = archive_part(path)
    if part is None:
        place = path
    else:
        place = part.path
    found = place.stat()
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


class ImageWalk:
    """A walk through the images below a folder, folder by folder.

    Hidden entries, folders of the system, and files whose name is not that of an image are skipped.
    Links are followed, but no folder is entered twice. A link to a folder that contains the link
    itself is not followed, because it would bring in the images of other folders. A link that leads
    nowhere, a pipe or a device is yielded if its name is that of an image: it is unreadable.

    Args:
        passed_over: counts the files that are skipped although they may be images; None not to
            look at them.
        tolerant: whether folders that cannot be read are skipped.
    """

    def __init__(self, passed_over: PassedOver | None = None, tolerant: bool = False):
        self._passed_over = passed_over
        self._tolerant = tolerant
        self._entered: set[str] = set()

    def images(self, folder: Path) -> Iterator[Path]:
        """Yield the images below a folder.

        Raises:
            OSError: a folder cannot be read.
        """
        real_path = os.path.realpath(folder)
        if real_path in self._entered:
            return
        self._entered.add(real_path)
        try:
            with os.scandir(folder) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            if self._tolerant:
                return
            raise
        for entry in found:
            path = folder / entry.name
            if is_hidden(entry.name):
                continue
            if os.path.isdir(entry):  # not for a circle of links, which is unreadable
                if not links_upwards(path):
                    yield from self.images(path)
            elif is_image(path):
                yield path
            elif self._passed_over is not None:
                self._passed_over.add(path, first_bytes(path, SIGNATURE_BYTES))


def links_upwards(folder: Path) -> bool:
    """Return whether ``folder`` is a link to a folder that contains the link."""
    if not folder.is_symlink():
        return False
    parent = folder.parent.resolve()
    return parent.is_relative_to(folder.resolve())


def image_files(folder: Path, passed_over: PassedOver | None = None) -> list[Path]:
    """Return all images below a folder, a Zip archive or a folder in one, sorted.

    Args:
        folder: the folder or archive, read as by :class:`ImageWalk`.
        passed_over: counts the files that are skipped although they may be images.

    Raises:
        OSError: a folder cannot be read.
    """
    part = archive_part(folder)
    if part is None:
        if links_upwards(folder):
            return []
        return sorted(ImageWalk(passed_over).images(folder))
    images = []
    for path in archived_files(part):
        if is_image(path):
            images.append(path)
        elif passed_over is not None:
            passed_over.add(path, first_bytes(path, SIGNATURE_BYTES))
    return images


def sub_folders(root: Path) -> list[Path]:
    """Return the sub-folders of a folder or Zip archive, sorted by name.

    Hidden ones and those of the system are left out.

    Args:
        root: the folder or archive.

    Raises:
        DataError: a link leads nowhere, so that a class may be missing.
    """
    part = archive_part(root)
    if part is not None:
        return archived_folders(part)
    folders = []
    for entry in sorted(root.iterdir()):
        if is_hidden(entry.name):
            continue
        if entry.is_dir():
            folders.append(entry)
        elif entry.is_symlink() and not os.path.exists(entry) and not is_image(entry):
            raise DataError(
                f"the link {shown_path(entry)} leads nowhere: repair or remove it"
            )
    return folders


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


def find_images(
    source: Path | str, passed_over: PassedOver | None = None
) -> Iterator[Path]:
    """Yield the images of a file, a folder with its sub-folders, a Zip archive, or a glob pattern.

    In a pattern ``**`` stands for any depth. Hidden files are skipped, and in folders files that
    are not named as images. No folder is entered twice.

    Args:
        source: path or pattern.
        passed_over: counts the files that are skipped although they may be images.

    Raises:
        DataError: there is no such file or folder, it holds no image, or a folder cannot be read.
    """
    path = expanded(source)
    shown = printable(str(source))
    part = archive_part(path)
    if passed_over is None:
        passed_over = PassedOver()
    if part is not None and is_folder(path):
        images = iter(image_files(path, passed_over))
        nothing_found = f"archive {shown} holds no image"
    elif path.is_dir():
        images = ImageWalk(passed_over).images(path)
        nothing_found = f"folder {shown} holds no image"
    elif os.path.lexists(path) or (part is not None and part.name in part.open().files):
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
        notes = "".join(
            f" ({note.removeprefix('note: ')})" for note in passed_over.notes()
        )
        raise DataError(
            f"{nothing_found}{notes}: give an image, a folder or Zip archive of images, or a"
            " pattern in quotes"
        )
    return chain([first], _listed(images))


def _listed(images: Iterator[Path]) -> Iterator[Path]:
    with listing():
        yield from images


def _matching(pattern: Path) -> Iterator[Path]:
    """Yield the images whose paths match a pattern, sorted."""
    for path in matching_paths(pattern):
        if is_image(path) and not path.is_dir():
            yield path


def matching_paths(pattern: Path) -> list[Path]:
    """Return the visible paths that match a pattern, sorted.

    What exists is taken as it is: a path that has the characters of a pattern in its name, and the
    folders at the beginning of a pattern. ``**`` stands for any depth, and does not follow links,
    which may be circles.

    Example:
        >>> matching_paths(Path("no such folder", "*.jpg"))
        []
    """
    if os.path.lexists(pattern):
        return [pattern]
    base = pattern.parent
    while not os.path.exists(base):
        base = base.parent
    rest = pattern.relative_to(base)
    if rest.name == "**":
        rest = rest / "*"
    visible = []
    for path in base.glob(str(rest)):
        if not is_hidden(str(path.relative_to(base))):
            visible.append(path)
    return sorted(visible)
