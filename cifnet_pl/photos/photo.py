"""Decode one image file into one uint8 square, whatever mode, size or orientation it has."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from cifnet_pl.photos.files import read_bytes, within
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import first_line

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Bytes 8 to 12 of files that are HEIC, whatever their name is (ISO/IEC 23008-12, annex B.4)."""

Photo = Path | bytes | Image.Image
"""A photo in a file (which may be in a Zip archive), as the content of a file, or decoded."""


class UnreadableImage(DataError):
    """An image that is corrupt, truncated, of no known format, or larger than Pillow's limits."""


@contextmanager
def decoding() -> Iterator[None]:
    """Within the block, turn every error of a decoder into UnreadableImage with the reason in one line."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise UnreadableImage("no image of a known format") from error
    except UnreadableImage:
        raise
    except Exception as error:  # on damaged files every decoder of Pillow fails in its own way
        raise UnreadableImage(getattr(error, "strerror", None) or first_line(error)) from error


ORIENTATION_TAG = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation (CIPA DC-008, table 6) → what turns the stored image upright."""


def upright_turn(image: Image.Image) -> Image.Transpose | None:
    """Return the turn that shows a loaded image as its EXIF orientation says, or None.

    Only the orientation is read: Pillow's own ``exif_transpose`` writes all tags anew, and fails where a camera
    stored any of them with another type than the standard's.
    """
    return UPRIGHT.get(image.getexif().get(ORIENTATION_TAG, 1))


def white_level(mode: str, grey: np.ndarray) -> float:
    """Return the value that is white in a grey image of more than 8 bits.

    That is 65535 for 16 bits. For 32-bit integers and floats it is not defined: we take the smallest of 1 (floats
    only), 255 and 65535 that no pixel exceeds, or 65535.

    Args:
        mode: Pillow's mode of the image.
        grey: its pixels.
    """
    if mode.startswith("I;16"):
        return 65535.0
    levels = (1.0, 255.0) if mode == "F" else (255.0,)
    return next((level for level in levels if grey.max(initial=0) <= level), 65535.0)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB: deep grey scaled to 8 bits, transparency on white."""
    mode = "I;16" if image.mode == "I" and image.format == "PNG" else image.mode  # 16-bit PNG before Pillow 11
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        grey = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0, neginf=0)
        grey = grey * (255 / white_level(mode, grey))
        return Image.fromarray(grey.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def square(
    image: Image.Image, size: int, crop_ratio: float = 1.0, extent: tuple[float, float] | None = None
) -> np.ndarray:
    """Resize and centre-crop to (``size``, ``size``, 3) uint8, EXIF orientation applied.

    Equals resizing the short side to ``size / crop_ratio`` (bicubic, antialiased) and cropping the centre, in one
    step on the cropped region: the memory needed does not depend on how elongated the image is. A centred square
    stays one when it is turned, so the small result is turned instead of the image.

    Args:
        image: of any mode.
        size: side of the result in pixels.
        crop_ratio: share of the short side that is kept.
        extent: width and height of the picture within the image, from its upper left corner; the whole by default.

    Raises:
        UnreadableImage: the image's pixels cannot be decoded.
    """
    with decoding():
        image.load()
        turn = upright_turn(image)
        rgb = to_rgb(image)
    width, height = rgb.size if extent is None else extent
    side = min(width, height) * crop_ratio
    left, top = (width - side) / 2, (height - side) / 2
    box, wanted = (left, top, left + side, top + side), (size, size)
    small = rgb if rgb.size == wanted and box == (0, 0, *wanted) else rgb.resize(wanted, Image.Resampling.BICUBIC, box)
    return np.asarray(small if turn is None else small.transpose(turn))


def open_image(photo: Path | bytes) -> Image.Image:
    """Open a file, or the content of one; its pixels are not decoded yet.

    Raises:
        UnreadableImage: it cannot be opened, is no image, or is HEIC, and the package for that is missing.
    """
    with decoding():
        if isinstance(photo, Path) and within(photo) is not None:
            photo = read_bytes(photo)
        try:
            return _open(photo)
        except UnidentifiedImageError:
            if not _is_heic(photo):
                raise
            _register_heic()
            return _open(photo)


def _open(photo: Path | bytes) -> Image.Image:
    return Image.open(photo if isinstance(photo, Path) else io.BytesIO(photo))


def _is_heic(photo: Path | bytes) -> bool:
    if isinstance(photo, Path):
        with photo.open("rb") as file:
            start = file.read(12)
    else:
        start = photo[:12]
    return start[4:8] == b"ftyp" and start[8:12] in HEIC_BRANDS


def _register_heic() -> None:
    """Register the HEIC format with Pillow in this process; UnreadableImage if the package for it is missing."""
    if find_spec("pillow_heif") is None:
        raise UnreadableImage("a HEIC photo needs the package pillow-heif: pip install 'cifnet_pl[heic]'")
    from pillow_heif import register_heif_opener

    register_heif_opener()


def read_square(photo: Photo, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode a photo as :func:`square`.

    Args:
        photo: path, content of a file, or decoded image.
        size, crop_ratio: as for :func:`square`.

    Returns:
        (``size``, ``size``, 3) uint8.

    Raises:
        UnreadableImage: it cannot be opened or decoded.
    """
    if isinstance(photo, Image.Image):
        return square(photo, size, crop_ratio)
    image = open_image(photo)
    with image:
        return opened_square(image, size, crop_ratio)


def opened_square(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode an image as :func:`square`, at a lower resolution if that is enough.

    Args:
        image: opened, but not loaded.
        size: side of the result in pixels.
        crop_ratio: share of the short side that is kept.

    Returns:
        (size, size, 3) uint8.

    Raises:
        UnreadableImage: the image's pixels cannot be decoded.
    """
    with decoding():
        # JPEG only: decode at a half, quarter or eighth where twice the wanted resolution is still there.
        wanted = int(2 * size / crop_ratio)
        drafted = image.draft(image.mode, (wanted, wanted))
    # Sides that the fraction does not divide are decoded to the next whole pixel: the picture ends before it.
    return square(image, size, crop_ratio, drafted[1][2:] if drafted else None)


LARGEST_IMAGE = 2048
"""Largest ``image_size``, in pixels."""


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
