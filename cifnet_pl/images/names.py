"""Tell images, and what is passed over, by the names and the first bytes of files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from cifnet_pl.utilities.text import is_or_are, number_of, printable

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
    b"\xff\x0a",  # JPEG XL
    b"\0\0\0\x0cJXL \r\n\x87\n",
    b"\0\0\0\x0cjP  \r\n\x87\n",  # JPEG 2000
)
"""First bytes of image files."""

SIGNATURE_BYTES = 12
"""Bytes that :func:`begins_like_image` needs."""

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Bytes 8 to 12 of HEIC files, whatever their name is (ISO/IEC 23008-12, annex B.4)."""

AVIF_BRANDS = (b"avif", b"avis")
"""Bytes 8 to 12 of AVIF files."""


def is_image(path: Path) -> bool:
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


def begins_like_image(content: bytes) -> bool:
    """Return whether a file with these first bytes (``SIGNATURE_BYTES``) is an image."""
    if content.startswith(SIGNATURES):
        return True
    if content[4:8] == b"ftyp":
        return content[8:12] in HEIC_BRANDS + AVIF_BRANDS
    return content[:4] == b"RIFF" and content[8:12] == b"WEBP"


@dataclass
class PassedOver:
    """Files that are images by their content or their ending, but not by the endings of images.

    Attributes:
        count: number of these files.
        first: the first of them; None if there are none.
    """

    count: int = 0
    first: Path | None = None

    def add(self, path: Path, content: bytes) -> None:
        """Count a file if it is such a one.

        Args:
            path: a visible file whose name is not that of an image.
            content: its first bytes; fewer if it cannot be read.
        """
        if path.suffix.lower() in OTHER_IMAGES or begins_like_image(content):
            self.count += 1
            self.first = self.first or path

    def notes(self) -> list[str]:
        """Return a sentence for the user, or nothing."""
        if self.first is None:
            return []
        return [
            f"note: {number_of(self.count, 'file')} {is_or_are(self.count)} passed over that may be"
            f" images, the first is {printable(str(self.first))}: convert them to JPEG or PNG, or"
            " give them the ending of their format"
        ]
