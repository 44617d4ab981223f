"""A photo: its bytes are read once, and give its hash, its time, a thumbnail and its pixels."""

from __future__ import annotations

import hashlib
import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from cifnet_pl.photos.files import read_bytes
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import first_line

# A panorama of 90 to 179 million pixels is read, and Pillow's warning that it may be an attack helps nobody.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Bytes 8 to 12 of files that are HEIC, whatever their name is (ISO/IEC 23008-12, annex B.4)."""

AnyPhoto = Path | bytes | Image.Image
"""A photo in a file (which may be in a Zip archive), as the content of a file, or decoded."""

LARGEST_IMAGE = 2048
"""Largest ``image_size``, in pixels."""

SIDE = 8
"""Pixels of a thumbnail's side."""

ORIENTATION_TAG = 0x0112
DATE_TAKEN, DATE_CHANGED, EXIF_PART = 0x9003, 0x0132, 0x8769
"""EXIF tags DateTimeOriginal and DateTime, and the part that holds the first (CIPA DC-008)."""

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


class UnreadableImage(DataError):
    """An image that is corrupt, truncated, of no known format, or larger than Pillow's limits."""


@contextmanager
def decoding() -> Iterator[None]:
    """Within the block, turn every error of a decoder into UnreadableImage with the reason in one line."""
    try:
        yield
    except UnidentifiedImageError as error:
        raise UnreadableImage("no image of a known format") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise UnreadableImage(f"more than {most} million pixels, which may be an attack: make it smaller") from error
    except UnreadableImage:
        raise
    except Exception as error:  # on damaged files every decoder of Pillow fails in its own way
        raise UnreadableImage(getattr(error, "strerror", None) or first_line(error)) from error


def content_hash(content: bytes) -> int:
    """Hash bytes to a number of 63 bits (BLAKE2b): two of a million different photos agree once in 2·10⁷.

    This is the one identity of a photo: it tells copies, which embedding is stored, what a buffer draws, and what was
    learned.

    Example:
        >>> content_hash(b"") == NOTHING
        True
    """
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


NOTHING = content_hash(b"")
"""The hash of what cannot be read."""


class Look(NamedTuple):
    """The small things that are known of a photo once it was read.

    Attributes:
        hash: of its content.
        thumbnail: (SIDE, SIDE, 3) uint8, brightness and colours; None if it cannot be decoded.
        taken: when it was taken, if it says so.
    """

    hash: int
    thumbnail: np.ndarray | None
    taken: datetime | None


class Photo:
    """A photo whose bytes have been read.

    Args:
        given: its file, its content, or a decoded image.

    Raises:
        UnreadableImage: the file cannot be read.
    """

    def __init__(self, given: AnyPhoto):
        with decoding():
            self.given = read_bytes(given) if isinstance(given, Path) else given

    @cached_property
    def hash(self) -> int:
        """Hash of the file's bytes, or of a decoded image's size, mode and pixels."""
        image = self.given
        if isinstance(image, bytes):
            return content_hash(image)
        return content_hash(repr((image.size, image.mode, image.getpalette())).encode() + image.tobytes())

    def open(self, formats: Sequence[str] | None = None) -> Image.Image:
        """Open it; the pixels are not decoded yet.

        Args:
            formats: Pillow's names of those that may be decoded; None for all.

        Raises:
            UnreadableImage: it is no image, of another format, or HEIC, and the package for that is missing.
        """
        content = self.given
        if isinstance(content, Image.Image):
            return content
        with decoding():
            try:
                return _opened(content, formats)
            except UnidentifiedImageError:
                if content[4:8] != b"ftyp" or content[8:12] not in HEIC_BRANDS:
                    raise
                _register_heic()
                return _opened(content, formats)

    def square(self, size: int, crop_ratio: float = 1.0) -> np.ndarray:
        """Decode it as :func:`square`; UnreadableImage where that fails."""
        if isinstance(self.given, Image.Image):
            return square(self.given, size, crop_ratio)
        with self.open() as image:
            return opened_square(image, size, crop_ratio)

    @property
    def taken(self) -> datetime | None:
        """When it was taken; None where it does not say, or cannot be read."""
        try:
            with self.open() as image:
                return taken(image)
        except UnreadableImage:
            return None

    def identify(self) -> Look:
        """Return its hash alone, without a thumbnail and time."""
        return Look(self.hash, None, None)

    def look(self) -> Look:
        """Return its hash, thumbnail and time, decoded at a low resolution."""
        try:
            with decoding(), self.open() as image:
                when = taken(image)
                image.draft("RGB", (4 * SIDE, 4 * SIDE))
                return Look(self.hash, thumbnail(image.convert("RGB")), when)
        except UnreadableImage:  # it is reported as unreadable when it is to be learned
            return self.identify()


def read_square(photo: AnyPhoto, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Read and decode a photo as :func:`square`; UnreadableImage where that fails."""
    return Photo(photo).square(size, crop_ratio)


def _opened(content: bytes, formats: Sequence[str] | None) -> Image.Image:
    if formats is not None:
        Image.init()
        formats = [name for name in formats if name in Image.OPEN]
    return Image.open(io.BytesIO(content), formats=formats)


def _register_heic() -> None:
    """Register the HEIC format with Pillow in this process; UnreadableImage if the package for it is missing."""
    if find_spec("pillow_heif") is None:
        raise UnreadableImage("a HEIC photo needs the package pillow-heif: pip install 'cifnet_pl[heic]'")
    from pillow_heif import register_heif_opener

    register_heif_opener()


def thumbnail(image: Image.Image) -> np.ndarray:
    """Compute a small version of a photo.

    Args:
        image: RGB.

    Returns:
        (SIDE, SIDE, 3) uint8: brightness and colours.
    """
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX).convert("YCbCr"))


def taken(image: Image.Image) -> datetime | None:
    """Return when an open photo was taken; None where it does not say."""
    try:
        exif = image.getexif()
        text = exif.get_ifd(EXIF_PART).get(DATE_TAKEN) or exif.get(DATE_CHANGED)
        return None if text is None else datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (ValueError, TypeError, OSError, SyntaxError):  # the last from Pillow on damaged EXIF data
        return None


# ---------------------------------------------------------------------- pixels


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


def opened_square(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode an image as :func:`square`, at a lower resolution if that is enough.

    Args:
        image: opened, but not loaded.
        size, crop_ratio: as for :func:`square`.

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
