"""Tell images by the names of their files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

EXTENSIONS = (
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
    ".ppm",
    ".pgm",
    ".pbm",
    ".pnm",
    ".jp2",
    ".j2k",
    ".jpx",
    ".avif",
    ".heic",
    ".heif",
)
"""Endings of image files; other files in a folder are passed over.

A format that this machine's Pillow cannot decode is listed, too: its images are then reported as
unreadable, not left out in silence. HEIC needs the package ``pillow-heif``, the extra ``heic``.
"""


def is_image(path: Path) -> bool:
    """Return whether a file's name is that of an image."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


def is_hidden(name: str) -> bool:
    """Return whether a part of a path is hidden, or added by macOS."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
