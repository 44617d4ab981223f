"""Find and read files of images, in folders and within Zip archives.

``images.zip`` is a folder, and ``images.zip/ant/1.jpg`` an image in it. Nothing is ever unpacked to
the disk. What is an image, and what is passed over, is told by the names and first bytes of files.
"""

import glob
import os
import stat
import sys
import threading
import zipfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath
from typing import NamedTuple

import bracex

from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import is_or_are, number_of, printable

# ---------------------------------------------------------------------- names

EXTENSIONS = frozenset(
    [
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jif",
        ".jfif",
        ".jfi",
        ".mpo",
        ".png",
        ".apng",
        ".gif",
        ".webp",
        ".bmp",
        ".dib",
        ".tif",
        ".tiff",
        ".tga",
        ".ppm",
        ".pgm",
        ".pbm",
        ".pnm",
        ".jp2",
        ".j2k",
        ".jpf",
        ".jpx",
        ".avif",
        ".avifs",
        ".heic",
        ".heics",
        ".heif",
        ".heifs",
        ".hif",
    ]
)
"""Endings of image files.

A format that this machine's Pillow cannot decode is listed, too: its images are then reported as
unreadable, not left out in silence. HEIC needs the package ``pillow-heif``, the extra ``heic``.
"""

OTHER_IMAGES = frozenset(
    [
        ".jxl",
        ".dng",
        ".cr2",
        ".cr3",
        ".crw",
        ".nef",
        ".nrw",
        ".arw",
        ".srf",
        ".sr2",
        ".raf",
        ".orf",
        ".rw2",
        ".pef",
        ".srw",
        ".x3f",
        ".3fr",
        ".iiq",
        ".raw",
        ".psd",
        ".xcf",
        ".exr",
        ".hdr",
        ".eps",
        ".svg",
    ]
)
"""Endings of image files that are never decoded: raw files of cameras, drawings, rare formats."""

SYSTEM_FOLDERS = frozenset(
    {
        "__macosx",
        "@eadir",
        "@recently-snapshot",
        "@recycle",
        "#recycle",
        "#snapshot",
        "$recycle.bin",
        "recycler",
        "lost+found",
        "system volume information",
    }
)
"""Folders that operating systems and network storage make, in small letters.

They hold thumbnails, deleted files and earlier versions. Folders with a leading dot are hidden
anyway.
"""

SIGNATURES = (
    b"\xff\xd8\xff",  # JPEG
    b"\x89PNG\r\n\x1a\n",
    b"GIF87a",
    b"GIF89a",
    b"II*\0",  # TIFF, and many raw formats of cameras
    b"MM\0*",
    b"\0\0\0\x0cjP  \r\n\x87\n",  # JPEG 2000
)
"""First bytes of image files."""

SIGNATURE_BYTES = 12
"""Bytes that :func:`may_be_image` reads."""

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Bytes 8 to 12 of HEIC files, whatever their name is (ISO/IEC 23008-12, annex B.4)."""

AVIF_BRANDS = (b"avif", b"avis")
"""Bytes 8 to 12 of AVIF files."""


def is_image(path: PurePath) -> bool:
    """Return whether a file's name is that of an image."""
    return path.suffix.lower() in EXTENSIONS and not is_hidden(path.name)


def is_hidden(name: str) -> bool:
    """Return whether a part of a path is hidden, or a folder of the system.

    Example:
        >>> is_hidden("red/@eaDir/1.jpg/thumbnail.jpg"), is_hidden("red/._1.jpg"), is_hidden("red")
        (True, True, False)
    """
    for part in PurePosixPath(name).parts:
        if part.startswith(".") or part.casefold() in SYSTEM_FOLDERS:
            return True
    return False


@dataclass
class PassedOver:
    """Files that are images by their content or their ending, but not by the endings of images.

    Attributes:
        count: number of these files.
        first: the first of them; None if there are none.
    """

    count: int = 0
    first: Path | None = None

    def images(self, paths: Iterable[Path]) -> Iterator[Path]:
        """Yield the visible files that are named as images, and count those that may be some."""
        for path in paths:
            if is_image(path):
                yield path
            elif may_be_image(path):
                self.count += 1
                self.first = self.first or path

    def notes(self) -> list[str]:
        """Return a sentence for the user, or nothing."""
        if self.first is None:
            return []
        return [
            f"note: {number_of(self.count, 'file')} {is_or_are(self.count)} passed over that may be"
            f" images, the first is {shown_path(self.first)}: convert them to JPEG or PNG, or give"
            " them the ending of their format"
        ]


# ---------------------------------------------------------------------- archives

UTF8_FLAG = 0x800
"""Bit of an entry that says that its name is UTF-8 (APPNOTE.TXT, appendix D)."""

ENCODING_VARIABLE = "CIFNET_ZIP_ENCODING"
"""Environment variable with the encoding of names without that bit, such as ``cp932``."""

REMEDY = (
    f"; set --data.zip_encoding (or the variable {ENCODING_VARIABLE}) to that of the computer that"
    " packed it, for example cp932 (Japanese), gbk (Chinese), cp866 (Cyrillic) or cp850"
)
"""End of the sentence about names in another encoding."""

_encoding_of: dict[Path, str | None] = {}
"""Archive, or folder of archives, → the encoding that a user has named for it, if any."""


def read_names_as(encoding: str | None, place: Path | str) -> Path:
    """Set the encoding of names in archives that are not UTF-8.

    Args:
        encoding: one of Python's names, such as ``cp932``; None for that of the environment.
        place: the archive, or a folder with archives below it; ``~`` is the home folder.

    Returns:
        The path of the place.
    """
    path = expanded(place)
    _encoding_of[path] = encoding
    return path


def default_encoding() -> str:
    """Return the encoding of names in archives that do not say theirs, where no user named one."""
    return os.environ.get(ENCODING_VARIABLE, "utf-8")


def entry_name(entry: zipfile.ZipInfo) -> str:
    """Return the name of an entry of a Zip archive, with slashes, whatever its encoding is.

    macOS writes UTF-8 without saying so.
    """
    name = entry.orig_filename
    if not entry.flag_bits & UTF8_FLAG:
        with suppress(UnicodeError):
            name = name.encode("cp437").decode(default_encoding())
    return name.replace("\\", "/")


LAST_CHARACTER = chr(sys.maxunicode)
"""No name of a file sorts behind it."""


class Archive:
    """The files of one Zip archive.

    A single top folder that has sub-folders is left out of the names. Names that lead out of the
    archive are hidden ones.

    Args:
        path: the archive.
        encoding: of names that do not say theirs.

    Attributes:
        files: name of each file → its entry.
        names: of the files, sorted.
        folders: names of all folders; "" is the top itself.

    Raises:
        DataError: the archive is damaged, or the encoding of its names is needed.
    """

    def __init__(self, path: Path, encoding: str):
        self.path = path
        self._lock = threading.Lock()
        problem = f"cannot read archive {shown_path(path)}"
        self._explained = partial(explained, DataError, problem, end="; make it again")
        unknown = (
            f"archive {shown_path(path)} has a name in an encoding that it does not say"
        )
        encodings = explained(DataError, unknown, UnicodeError, LookupError, end=REMEDY)
        with self._explained(), encodings:
            self._zip = zipfile.ZipFile(path, metadata_encoding=encoding)
        entries = {}
        for entry in self._zip.infolist():
            name = entry.filename.replace("\\", "/")
            if not name.endswith("/") and not is_hidden(name):
                plain = PurePosixPath(name.lstrip("/"))  # without "./"
                entries[str(plain)] = entry
        # The only top folder is left out, if all images are in its sub-folders.
        top = ""
        images = [path for path in map(PurePosixPath, entries) if is_image(path)]
        tops = {path.parts[0] for path in images}
        if len(tops) == 1 and all(len(path.parts) > 2 for path in images):
            top = f"{tops.pop()}/"
        self.files: dict[str, zipfile.ZipInfo] = {}
        self.folders = {""}
        for name, entry in entries.items():
            if name.startswith(top):
                inner = name.removeprefix(top)
                self.files[inner] = entry
                parents = PurePosixPath(inner).parents
                self.folders.update(map(str, parents))
        self.folders.discard(".")
        self.names = sorted(self.files)

    def read(self, name: str, count: int) -> bytes:
        """Return the first ``count`` bytes of a file; all of them where ``count`` is -1.

        Raises:
            DataError: the file is missing, damaged or encrypted.
        """
        if name not in self.files:
            raise DataError(f"no {printable(name)} in archive {shown_path(self.path)}")
        with self._lock, self._explained(), self._zip.open(self.files[name]) as file:
            return file.read(count)


@lru_cache
def _opened(
    path: Path,
    encoding: str,
    process: int,
    version: tuple[int, ...],
) -> Archive:
    """Return one open archive for each process: forked ones would share a position in the file."""
    return Archive(path, encoding)


class ArchivePart(NamedTuple):
    """A file or folder in an archive.

    Attributes:
        archive: in its current state.
        name: of the part within it, with slashes; "" for the top.
    """

    archive: Archive
    name: str


def archive_part(path: Path) -> ArchivePart | None:
    """Find the archive that a path is, or leads into; None if no part of the path is an archive.

    Raises:
        DataError: the archive cannot be read.
    """
    # Fast for most paths: this is asked of every image.
    if ".zip" not in str(path).lower():
        return None
    for parent in (path, *path.parents):
        if parent.suffix.lower() == ".zip" and parent.is_file():
            relative = path.relative_to(parent).as_posix()
            found = parent.stat()
            version = (found.st_size, found.st_ino, found.st_mtime_ns)
            encoding = default_encoding()
            for place, named in _encoding_of.items():
                if named is not None and parent.is_relative_to(place):
                    encoding = named
            archive = _opened(parent, encoding, os.getpid(), version)
            return ArchivePart(archive, relative.removeprefix("."))
    return None


def archived_files(part: ArchivePart) -> list[Path]:
    """Return all files below a folder of an archive, sorted."""
    archive = part.archive
    folder = ""
    if part.name:
        folder = f"{part.name}/"
    # Once for each class: all names of a large archive must not be looked at.
    first = bisect_left(archive.names, folder)
    behind = bisect_left(archive.names, f"{folder}{LAST_CHARACTER}")
    return sorted(archive.path / name for name in archive.names[first:behind])


# ---------------------------------------------------------------------- paths


def shown_path(path: Path) -> str:
    """Return a path for a message, on one line."""
    return printable(str(path))


# ---------------------------------------------------------------------- as pathlib does, with
# archives


def is_folder(path: Path) -> bool:
    """Return whether there is a folder of images: in the file system, an archive, or within one."""
    part = archive_part(path)
    if part is None:
        return path.is_dir()
    return part.name in part.archive.folders


def read_bytes(path: Path, count: int = -1) -> bytes:
    """Return the content of a file, which may be in an archive, or its first ``count`` bytes.

    Raises:
        OSError: it cannot be read.
        DataError: it cannot be read within an archive, or it is no regular file.
    """
    part = archive_part(path)
    if part is not None:
        return part.archive.read(part.name, count)
    # Opening a pipe would wait for its other end, and a device may have no end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError("a folder, pipe or device, not a regular file")
    with path.open("rb") as file:
        return file.read(count)


def may_be_image(path: Path) -> bool:
    """Return whether a file is an image by its ending or its content, whatever its name is."""
    if path.suffix.lower() in OTHER_IMAGES:
        return True
    try:
        content = read_bytes(path, SIGNATURE_BYTES)
    except (OSError, DataError):  # nothing can be said about it
        return False
    brand = content[8:12]
    if content[4:8] == b"ftyp":
        return brand in HEIC_BRANDS + AVIF_BRANDS
    is_webp = content.startswith(b"RIFF") and brand == b"WEBP"
    return is_webp or content.startswith(SIGNATURES)


def file_identity(path: Path) -> tuple[int, ...]:
    """Return a cheap fingerprint (size, inode, times) that detects changes of a file.

    Of a file in an archive these are the archive's, with the file's size and CRC.
    """
    inner: tuple[int, ...] = ()
    part = archive_part(path)
    if part is not None:
        entry = part.archive.files[part.name]
        inner = (entry.file_size, entry.CRC)
        path = part.archive.path
    found = path.stat()
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return (found.st_size, found.st_ino, *times, *inner)


def file_size(path: Path) -> int:
    """Return the size of a file in bytes, unpacked; -1 if it cannot be found."""
    part = archive_part(path)
    try:
        if part is None:
            return path.stat().st_size
        return part.archive.files[part.name].file_size
    except (OSError, KeyError):
        return -1


# ---------------------------------------------------------------------- finding images


def images_below(
    folder: Path,
    passed_over: PassedOver,
    tolerant: bool = False,
    entered: set[str] | None = None,
) -> Iterator[Path]:
    """Yield the images below a folder, a Zip archive or a folder in one, sorted.

    Hidden entries, folders of the system, and files whose name is not that of an image are skipped.
    Links are followed, but no folder is entered twice. Nor is a link to a folder that contains the
    link itself, because it would bring in the images of other folders. A link that leads nowhere, a
    pipe or a device is yielded if its name is that of an image: it is unreadable.

    Args:
        folder: the folder.
        passed_over: counts the files that are skipped although they may be images.
        tolerant: whether folders that cannot be read are skipped.
        entered: real paths of the folders that were entered before.

    Raises:
        OSError: a folder cannot be read.
    """
    part = archive_part(folder)
    if part is not None:
        yield from passed_over.images(archived_files(part))
        return
    if entered is None:
        entered = set()
    real_path = os.path.realpath(folder)
    if real_path in entered:
        return
    if folder.is_symlink() and folder.parent.resolve().is_relative_to(real_path):
        return
    entered.add(real_path)
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if not is_hidden(entry.name)]
    except OSError:
        if tolerant:
            return
        raise
    for entry in sorted(visible, key=lambda entry: entry.name):
        path = folder / entry.name
        if os.path.isdir(entry):  # not for a circle of links, which is unreadable
            yield from images_below(path, passed_over, tolerant, entered)
        else:
            yield from passed_over.images([path])


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
        top = part.archive.path
        inner = [top / name for name in part.archive.folders if name]
        return sorted(path for path in inner if path.parent == root)
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
        raise DataError(f"no folder {shown_path(folder)}: set {option} to {what}")


def find_images(
    source: Path | str,
    passed_over: PassedOver | None = None,
) -> Iterator[Path]:
    """Yield the images of a file, a folder with its sub-folders, a Zip archive, or a glob pattern.

    In a pattern ``**`` stands for any depth. Hidden files are skipped, and in folders files that
    are not named as images. No folder is entered twice.

    Args:
        source: path or pattern.
        passed_over: counts the files that are skipped although they may be images.

    Raises:
        DataError: there is no such file or folder, or it holds no image.
        OSError: a folder cannot be read.
    """
    path = expanded(source)
    shown = printable(str(source))
    if passed_over is None:
        passed_over = PassedOver()
    if is_folder(path):
        images = images_below(path, passed_over)
    elif os.path.lexists(path) or file_size(path) >= 0:
        return iter([path])
    elif glob.has_magic(str(path)) or "{" in str(path):
        found = matching_paths(path)
        images = (file for file in found if is_image(file) and not file.is_dir())
    else:
        raise DataError(
            f"no file or folder {shown}: give an image, a folder, a Zip archive, or a pattern in"
            " quotes"
        )
    first = next(images, None)
    if first is None:
        notes = "".join(f"; {note}" for note in passed_over.notes())
        raise DataError(
            f"no image in {shown}{notes}; give an image, a folder or Zip archive of images, or a"
            " pattern in quotes"
        )
    return chain([first], images)


def matching_paths(pattern: Path) -> list[Path]:
    """Return the visible paths that match a pattern, sorted.

    What exists is taken as it is: a path that has the characters of a pattern in its name, and the
    folders at the beginning of a pattern. ``**`` stands for any depth, and does not follow links,
    which may be circles. Braces are expanded first; what they name is returned if it is missing.

    Example:
        >>> matching_paths(Path("no such folder", "*.jpg"))
        []
    """
    if os.path.lexists(pattern):
        return [pattern]
    expansions = bracex.expand(str(pattern), keep_escapes=True, limit=0)
    if len(expansions) > 1:
        paths = map(Path, expansions)
        return list(
            chain.from_iterable(matching_paths(path) or [path] for path in paths)
        )
    base = pattern.parent
    while not os.path.exists(base):
        base = base.parent
    rest = pattern.relative_to(base)
    if rest.name == "**":
        rest /= "*"
    found = sorted(base.glob(str(rest)))
    return [path for path in found if not is_hidden(str(path.relative_to(base)))]
