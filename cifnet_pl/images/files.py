"""Find and read files of images, in folders and within Zip archives.

``images.zip`` is a folder, and ``images.zip/ant/1.jpg`` an image in it.
"""

from __future__ import annotations

import glob
import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path, PurePosixPath

from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.text import printable

EXTENSIONS = (
    *(
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".gif",
        ".webp",
        ".bmp",
        ".dib",
        ".tif",
        ".tiff",
        ".tga",
    ),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".jpx", ".avif", ".heic", ".heif"),
)
"""File names that count as images; everything else in a folder is passed over.

A format that this machine's Pillow cannot decode is listed on purpose: its images are then reported
as unreadable, not left out in silence. HEIC needs the package ``pillow-heif``, the extra ``heic``.
"""

LARGEST_IMAGE = 2**28
"""Bytes that one image may have, unpacked (256 MB): an archive may promise any number."""


def place(path: Path) -> str:
    """Return a path for a message, on one line."""
    return printable(str(path))


def expanded(path: Path | str) -> Path:
    """Replace a leading ``~`` by the home folder; names that only begin with ``~`` stay."""
    return Path(os.path.expanduser(path))


def listing() -> AbstractContextManager[None]:
    """Return a context that raises DataError, with the folder's name, where the file system refuses
    to list one.
    """
    return explained(
        DataError, "cannot read a folder", OSError, end="; give this account access to it"
    )


def is_image(path: Path) -> bool:
    """Return whether a file's name says that it is an image."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


class Archive:
    """The images of one Zip archive.

    Nothing is ever written to the disk. An archive with a name that leads out of it, such as
    ``../a.jpg``, or with a link is refused as a whole: no ordinary program makes one.

    Args:
        path: the file.

    Attributes:
        files: name of each file, relative to ``top``, → its entry.
        folders: names of all folders, likewise; "" is the top itself.
    """

    def __init__(self, path: Path):
        self.path = path
        self._lock = threading.Lock()
        with self._readable():
            self._zip = zipfile.ZipFile(path)
        named = [(_safe_name(path, entry), entry) for entry in self._zip.infolist()]
        entries = {name: entry for name, entry in named if name is not None and not is_hidden(name)}
        top = _only_folder(entries)
        self.files = {
            name.removeprefix(top): entry for name, entry in entries.items() if name.startswith(top)
        }
        self.folders = {""} | {
            str(parent) for name in self.files for parent in PurePosixPath(name).parents
        } - {"."}

    def read(self, name: str) -> bytes:
        """Return the content of file ``name``, of at most one byte more than ``LARGEST_IMAGE``.

        Raises:
            DataError: it is damaged or encrypted.
        """
        if name not in self.files:
            raise DataError(f"no {printable(name)} in archive {place(self.path)}")
        with self._lock, self._readable(), self._zip.open(self.files[name]) as file:
            return file.read(LARGEST_IMAGE + 1)

    def _readable(self) -> AbstractContextManager[None]:
        return explained(
            DataError, f"cannot read archive {place(self.path)}", end="; make it again"
        )


def about_unsafe(entry: zipfile.ZipInfo) -> str | None:
    """Say why an entry of a Zip archive is hostile: its name leads out of the archive, or it is a
    link; else None.
    """
    name = entry.filename.replace("\\", "/")
    parts = PurePosixPath(name).parts
    if ".." in parts or name.startswith("/") or (parts and ":" in parts[0]):
        return f"names a file outside of itself: {printable(name[:100])}"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return f"holds a link, {printable(name[:100])}: pack the image itself"
    return None


def is_hidden(name: str) -> bool:
    """Return whether a part of a path is hidden, or added by macOS."""
    return any(component.startswith((".", "__MACOSX")) for component in PurePosixPath(name).parts)


def _safe_name(path: Path, entry: zipfile.ZipInfo) -> str | None:
    """Return the name of a file in the archive, None for a folder; DataError where
    :func:`about_unsafe` says why.
    """
    unsafe = about_unsafe(entry)
    if unsafe is not None:
        raise DataError(f"archive {place(path)} {unsafe}")
    name = entry.filename.replace("\\", "/")
    if name.endswith("/") or not PurePosixPath(name).parts:
        return None
    return str(PurePosixPath(name))


def _only_folder(names: dict[str, zipfile.ZipInfo]) -> str:
    """Return the top folder, with a slash, if the archive holds a single folder with sub-folders;
    else "".
    """
    parts = [PurePosixPath(name).parts for name in names if is_image(Path(name))]
    first = {path[0] for path in parts}
    if len(first) == 1 and min(map(len, parts)) > 2:
        return f"{first.pop()}/"
    return ""


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
        The archive, and the rest of the path with slashes; None if no part of the path is an
        archive.
    """
    if ".zip" not in str(path).lower():  # most paths: this is asked of every image
        return None
    for parent in (path, *path.parents):
        if parent.suffix.lower() == ".zip":
            if parent.is_file():
                return (parent, path.relative_to(parent).as_posix().removeprefix("."))
            return None
    return None


# ---------------------------------------------------------------------- as pathlib has it, archives
# included


def is_folder(path: Path) -> bool:
    """Return whether a folder of images is there: a folder of the file system, an archive, or a
    folder within one.
    """
    inside = within(path)
    if inside is None:
        return path.is_dir()
    return inside[1] in open_archive(inside[0]).folders


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, which may be in an archive.

    Raises:
        OSError: it cannot be read.
        DataError: likewise, within an archive; or it is larger than ``LARGEST_IMAGE``.
    """
    inside = within(path)
    if inside is None:
        with path.open("rb") as file:
            content = file.read(LARGEST_IMAGE + 1)
    else:
        content = open_archive(inside[0]).read(inside[1])
    if len(content) > LARGEST_IMAGE:
        raise DataError(f"larger than {LARGEST_IMAGE // 2**20} MB")
    return content


def identity(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does: its size, inode, and times of modification and of
    change.

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
    """Return the size of a file in bytes, unpacked if it is in an archive; -1 if it cannot be
    found.
    """
    inside = within(path)
    try:
        if inside is None:
            return path.stat().st_size
        return open_archive(inside[0]).files[inside[1]].file_size
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
    inner = [
        name
        for name in archive.folders
        if name and str(PurePosixPath(name).parent) in (start or ".",)
    ]
    return sorted(archive.path / name for name in inner)


def _required(path: Path) -> tuple[Archive, str]:
    inside = within(path)
    assert inside is not None
    return open_archive(inside[0]), inside[1]


# ---------------------------------------------------------------------- finding images

SORTED_AT_ONCE = 10_000
"""Entries of one folder that are sorted by name before the next ones are read, so that memory stays
bounded.
"""


def walk_images(folder: Path, entered: set[str] | None = None) -> Iterator[Path]:
    """Yield the images below ``folder``, folder by folder; memory does not grow with their number.

    Hidden entries and files whose name is not that of an image are skipped. Links are followed, but
    no folder is entered twice. A link below ``folder`` to a folder that contains the link itself is
    not followed, because it would bring in the images of other folders.

    Args:
        folder: where to begin.
        entered: real paths of the folders that were entered before; they are added to.

    Raises:
        OSError: a folder cannot be read.
    """
    entered = set() if entered is None else entered
    real = os.path.realpath(folder)
    if real in entered:
        return
    entered.add(real)
    with os.scandir(folder) as entries:
        while chunk := sorted(islice(entries, SORTED_AT_ONCE), key=lambda entry: entry.name):
            for entry in chunk:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if not links_upwards(path):
                        yield from walk_images(path, entered)
                elif is_image(path):
                    yield path


class NewImages:
    """The images of a folder that were not found before, or were changed since.

    Args:
        folder: with its sub-folders.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._before: dict[Path, tuple[int, int]] = {}
        self._found: dict[Path, tuple[int, int]] = {}

    def found(self, settled: bool = True) -> Iterator[Path]:
        """Yield new images; one that the taker fails at is yielded again. Of a folder that cannot
        be read, none.

        Args:
            settled: whether a file must be as it was at the look before, so that it is not still
                being written.
        """
        with suppress(OSError):
            for path in walk_images(self.folder):
                state = path.stat()
                mark = state.st_mtime_ns, state.st_size
                if self._found.get(path) == mark:
                    continue
                if not settled or self._before.get(path) == mark:
                    yield path
                    self._found[path] = mark
                self._before[path] = mark


def links_upwards(folder: Path) -> bool:
    """Return whether ``folder`` is a link to a folder that contains the link."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def image_files(folder: Path) -> list[Path]:
    """Return all images below ``folder``, which may be a Zip archive or in one, sorted; links as
    :func:`walk_images`.

    Raises:
        OSError: a folder cannot be read.
    """
    if within(folder) is not None:
        return [path for path in archived_files(folder) if is_image(path)]
    if links_upwards(folder):
        return []
    return sorted(walk_images(folder))


def sub_folders(root: Path) -> list[Path]:
    """Return the sub-folders of a folder (links included) or of a Zip archive, sorted by name; not
    the hidden ones.

    Args:
        root: the folder or archive.

    Raises:
        DataError: a link leads nowhere, so that a class may be missing.
    """
    if within(root) is not None:
        return archived_folders(root)
    entries = sorted(entry for entry in root.iterdir() if not is_hidden(entry.name))
    broken = [entry for entry in entries if entry.is_symlink() and not os.path.exists(entry)]
    if broken:
        raise DataError(f"the link {place(broken[0])} leads nowhere: repair or remove it")
    return [entry for entry in entries if entry.is_dir()]


def require_folder(folder: Path, option: str, what: str) -> None:
    """Raise DataError where ``folder``, which ``option`` named, is neither a folder nor a Zip
    archive.

    Args:
        folder: which should be there.
        option: of the command line, such as ``--images``.
        what: what it should be set to, such as "a folder with images".
    """
    if not is_folder(folder):
        if folder.suffix.lower() == ".zip":
            kind = "Zip archive"
        else:
            kind = "folder"
        raise DataError(f"no {kind} {place(folder)}: set {option} to {what}")


def find_images(source: Path | str) -> Iterator[Path]:
    """Yield the images of a file, a folder with its sub-folders, a Zip archive, or a glob (``**``
    for any depth).

    Hidden files are skipped, and in folders files that are not named as images; no folder is
    entered twice.

    Args:
        source: path or pattern.

    Raises:
        DataError: there is no such file or folder, it holds no image, or a folder cannot be read.
    """
    path = expanded(source)
    shown = printable(str(source))
    inside = within(path)
    images: Iterator[Path]
    if inside is not None and is_folder(path):
        images = iter(image_files(path))
        nothing = f"archive {shown} holds no image"
    elif path.is_dir():
        images = walk_images(path)
        nothing = f"folder {shown} holds no image"
    elif path.exists() or (inside is not None and path in archived_files(inside[0])):
        return iter([path])
    elif glob.has_magic(str(path)):
        images = _matching(path)
        nothing = f"no image matches {shown}"
    else:
        if path.suffix.lower() == ".zip":
            kind = "Zip archive"
        else:
            kind = "file or folder"
        raise DataError(
            f"no {kind} {shown}: give an image, a folder, a Zip archive, or a pattern in quotes"
        )
    images = _listed(images)
    first = next(images, None)
    if first is None:
        raise DataError(
            f"{nothing}: give an image, a folder or Zip archive of images, or a pattern in quotes"
        )
    return chain([first], images)


def _listed(images: Iterator[Path]) -> Iterator[Path]:
    with listing():
        yield from images


def _matching(pattern: Path) -> Iterator[Path]:
    """Yield the images whose paths match a pattern, sorted; ``**`` does not follow links, which may
    be circles.
    """
    plain = next(i for i, part in enumerate(pattern.parts) if glob.has_magic(part))
    base = Path(*pattern.parts[:plain])
    parts = list(pattern.parts[plain:])
    if parts[-1] == "**":
        parts.append("*")
    found = (
        path for path in base.glob("/".join(parts)) if not is_hidden(str(path.relative_to(base)))
    )
    yield from sorted(path for path in found if is_image(path) and path.is_file())
