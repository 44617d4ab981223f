"""Read from a photo's EXIF data when it was taken."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from PIL import Image

from cifnet_pl.data.images import UnreadableImage, open_image

DATE_TAKEN, DATE_CHANGED, EXIF_PART = 0x9003, 0x0132, 0x8769
"""EXIF tags DateTimeOriginal and DateTime, and the part that holds the first (CIPA DC-008)."""


def taken(image: Image.Image) -> datetime | None:
    """Return when an open photo was taken; None where it does not say."""
    try:
        exif = image.getexif()
        text = exif.get_ifd(EXIF_PART).get(DATE_TAKEN) or exif.get(DATE_CHANGED)
        if text is None:
            return None
        return datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (ValueError, TypeError, OSError, SyntaxError):  # the last from Pillow on damaged EXIF data
        return None


def taken_at(file: Path) -> datetime | None:
    """Return when a photo was taken; None where it does not say, or cannot be read."""
    try:
        with open_image(file) as image:
            return taken(image)
    except (UnreadableImage, OSError):
        return None
