"""One image: its bytes are read once, and give its hash, its time, a thumbnail and its pixels."""

import hashlib
import io
import warnings
from collections.abc import Iterable
from datetime import datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import (
    ExifTags,
    Image,
    ImageCms,
    ImageOps,
    PngImagePlugin,
    UnidentifiedImageError,
)

from cifnet_pl.images.files import HEIC_BRANDS, read_bytes
from cifnet_pl.images.jpeg import decode_square, is_incomplete
from cifnet_pl.utilities.errors import DataError, explained
from cifnet_pl.utilities.files import refuse_pointer
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line

# A panorama of 90 to 179 million pixels is read, and Pillow's warning that it may be an attack
# helps nobody; nor do its warnings about damaged metadata.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)
warnings.filterwarnings("ignore", module=r"PIL\.", append=True)

# Pillow refuses a PNG file whose profile or compressed text has more than a megabyte: printers'
# profiles have, and what image generators write.
PngImagePlugin.MAX_TEXT_CHUNK = 2**24

FORMATS = {
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "WEBP": "webp",
    "GIF": "gif",
    "BMP": "bmp",
    "DIB": "dib",
    "TIFF": "tif",
    "PPM": "ppm",
    "TGA": "tga",
    "JPEG2000": "jp2",
    "ICO": "ico",
    "AVIF": "avif",
    "HEIF": "heic",
}
"""Formats that are decoded, by Pillow's names, and the endings of their files.

Others of Pillow's decoders run programs (EPS).
"""

ImageLike = Path | bytes | Image.Image
"""An image in a file (which may be in a Zip archive), as the content of a file, or decoded."""

IMAGE_SIZE_LIMIT = 2048
"""Largest ``image_size``, in pixels."""

THUMBNAIL_SIDE = 8
"""Side of a thumbnail in pixels."""

DATE_FORMAT = "%Y:%m:%d %H:%M:%S"
"""Format of a time in EXIF data."""


class UnreadableImage(DataError):
    """An image that is corrupt, truncated, of no known format, or larger than Pillow's limits.

    ``on_corrupt`` of :class:`~cifnet_pl.data.datamodule.CIFNetDataModule` says what follows:
    "error" (the default) stops the run, "skip" leaves the image out and counts it.
    """


def _why_unreadable(error: Exception) -> str:
    """Say why an image cannot be read: on damaged files each decoder of Pillow fails in its way."""
    if isinstance(error, UnidentifiedImageError):
        return "no image of a known format"
    return getattr(error, "strerror", None) or one_line(error)


decoding = partial(explained, UnreadableImage, "", reason=_why_unreadable, own=True)
"""Context that turns each error of a decoder into an UnreadableImage with a reason."""


def content_hash(content: bytes) -> int:
    """Hash bytes to a number of 63 bits (BLAKE2b).

    This is the only identity of an image: it decides which images are duplicates, which embedding
    is in a cache, what a buffer draws, and what was learned. The chance that two of a million
    different images have the same hash is 5·10⁻⁸.

    Example:
        >>> content_hash(b"") == UNREADABLE_HASH
        True
    """
    digest = hashlib.blake2b(content, digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


UNREADABLE_HASH = content_hash(b"")
"""Hash that stands for an image that cannot be read."""


def pillow_image(image: Any, where: str) -> Image.Image:
    """Convert an array or tensor of pixels to an image of Pillow.

    Args:
        image: (h, w), (h, w, 3) or (3, h, w) uint8, or an image of Pillow, which stays as it is.
        where: the image's place, for messages.

    Raises:
        DataError: another shape or dtype.
    """
    if isinstance(image, Image.Image):
        return image
    pixels = np.asarray(image)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3):
        pixels = np.moveaxis(pixels, 0, -1)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        found = f"shape {pixels.shape} and dtype {pixels.dtype}"
        raise DataError(f"{where} is an image of {found}, expected uint8 pixels")
    return Image.fromarray(pixels.squeeze())


class Look(NamedTuple):
    """The small things that are known of an image once it was read.

    Attributes:
        hash: of its content.
        thumbnail: (THUMBNAIL_SIDE, THUMBNAIL_SIDE, 3) uint8, brightness and colours (YCbCr) as
            stored: the EXIF orientation is not applied; None if it was not decoded or cannot be.
        taken: when it was taken; None if the image does not say.
    """

    hash: int
    thumbnail: np.ndarray | None = None
    taken: datetime | None = None


class EncodedImage:
    """An image whose bytes have been read.

    Args:
        image: its file, its content, or a decoded image.

    Attributes:
        content: the bytes of its file, or a decoded image.

    Raises:
        UnreadableImage: the file cannot be read.
    """

    def __init__(self, image: ImageLike):
        self.content: bytes | Image.Image
        if isinstance(image, Path):
            with decoding():
                self.content = read_bytes(image)
        else:
            self.content = image

    @cached_property
    def hash(self) -> int:
        """Hash of the file's bytes, or of a decoded image's size, mode and pixels."""
        content = self.content
        if isinstance(content, bytes):
            return content_hash(content)
        description = repr((content.size, content.mode, content.getpalette()))
        return content_hash(description.encode() + content.tobytes())

    def open(self, formats: Iterable[str] = FORMATS) -> Image.Image:
        """Open the image; its pixels are not decoded yet.

        Args:
            formats: Pillow's names of the formats that are allowed.

        Raises:
            UnreadableImage: it is no image, of another format, or HEIC without the package for it.
        """
        content = self.content
        if isinstance(content, Image.Image):
            return content
        with decoding():
            refuse_pointer(content)
            if content[4:8] == b"ftyp" and content[8:12] in HEIC_BRANDS:
                optional("pillow_heif", "a HEIC image", "heic").register_heif_opener()
            Image.init()
            known = [name for name in formats if name in Image.OPEN]
            return Image.open(io.BytesIO(content), formats=known)

    def square(self, size: int, crop_ratio: float = 1.0) -> np.ndarray:
        """Decode the image as :func:`square`; UnreadableImage where that fails.

        Ordinary JPEG files are decoded by :mod:`cifnet_pl.images.jpeg`.
        """
        content = self.content
        if isinstance(content, Image.Image):
            return square(content, size, crop_ratio)
        with self.open() as image:
            if image.format not in ("JPEG", "MPO"):
                return square(image, size, crop_ratio)
            if image.mode in ("RGB", "L"):
                stored = decode_square(content, *image.size, size, crop_ratio)
                if stored is not None:
                    return finished(stored, image)
            pixels = square(image, size, crop_ratio)
        if is_incomplete(content):
            raise UnreadableImage("the file is cut off before the end of its pixels")
        return pixels

    def identify(self) -> Look:
        """Return the hash alone, without thumbnail and time."""
        return Look(self.hash)

    def look(self) -> Look:
        """Return the hash, thumbnail and time; the image is decoded at a low resolution."""
        try:
            with decoding(), self.open() as image:
                taken = time_taken(image)
                image.draft("RGB", (4 * THUMBNAIL_SIDE, 4 * THUMBNAIL_SIDE))
                side = (THUMBNAIL_SIDE, THUMBNAIL_SIDE)
                small = to_rgb(image).resize(side, Image.Resampling.BOX)
                return Look(self.hash, np.asarray(small.convert("YCbCr")), taken)
        except UnreadableImage:  # it is reported as unreadable when it is to be learned
            return self.identify()


def read_square(image: ImageLike, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Read and decode an image as :func:`square`; UnreadableImage where that fails.

    Returns:
        (size, size, 3) uint8, sRGB.
    """
    return EncodedImage(image).square(size, crop_ratio)


def time_taken(image: Image.Image) -> datetime | None:
    """Return when an open image was taken; None where it does not say."""
    try:
        exif = image.getexif()
        part = exif.get_ifd(ExifTags.IFD.Exif)
        text = part.get(ExifTags.Base.DateTimeOriginal) or exif.get(
            ExifTags.Base.DateTime
        )
        if text is None:
            return None
        return datetime.strptime(str(text).strip("\0 "), DATE_FORMAT)
    except Exception:  # each format fails in its own way on damaged metadata
        return None


# ---------------------------------------------------------------------- pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB: deep grey scaled to 8 bits, transparency on white."""
    mode = image.mode
    # Pillow has the 16 bits of PPM files in its mode of 32 bits.
    if mode.startswith("I;16") or (mode == "I" and image.format == "PPM"):
        values = np.asarray(image) >> 8
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if mode in ("I", "F"):
        raise UnreadableImage(
            "its pixels are floating-point numbers or integers of 32 bits: convert them to 8 or 16"
            " bits"
        )
    if mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    if mode == "RGB":
        return image
    return image.convert("RGB")


COLOUR_MODES = ("RGB", "RGBA", "RGBX", "P", "PA")
"""Modes of Pillow whose colour profiles are those of RGB."""


def square(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Convert an image to sRGB, resize it and crop its centre; EXIF orientation is applied.

    :func:`cifnet_pl.images.jpeg.decode_square` and :class:`cifnet_pl.model.export.Square` crop in
    the same way.

    This equals resizing the short side to ``size / crop_ratio`` (bicubic, antialiased) and cropping
    the centre. It is done in one step on the cropped region, so the memory does not depend on how
    elongated the image is. A centred square stays one when it is turned, so the small result is
    turned instead of the image.

    Args:
        image: of any mode.
        size: side of the result in pixels.
        crop_ratio: share of the short side that is kept.

    Returns:
        (size, size, 3) uint8, sRGB.

    Raises:
        UnreadableImage: the image's pixels cannot be decoded.
    """
    with decoding():
        image.load()
        rgb = to_rgb(image)
    border = (1 - crop_ratio) / 2
    small = ImageOps.fit(rgb, (size, size), Image.Resampling.BICUBIC, border)
    return finished(np.asarray(small), image)


def finished(stored: np.ndarray, image: Image.Image) -> np.ndarray:
    """Turn a square as the EXIF orientation of its image says, and convert it to sRGB.

    Args:
        stored: (s, s, 3) uint8, pixels of the image.
        image: of any mode.

    Returns:
        The same shape.
    """
    upright = stored
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata, on which each format fails in its own way
        orientation = 1
    if orientation != 1:
        # With this tag alone: Pillow writes all tags anew, and fails where a camera stored any of
        # them with another type than the standard's.
        turned = Image.fromarray(stored)
        turned.getexif()[ExifTags.Base.Orientation] = orientation
        ImageOps.exif_transpose(turned, in_place=True)
        upright = np.asarray(turned)
    profile = image.info.get("icc_profile")
    if profile and image.mode in COLOUR_MODES:
        transform = conversion(profile)
        if transform is not None:
            given = Image.fromarray(upright)
            upright = np.asarray(ImageCms.applyTransform(given, transform))
    return upright


# ---------------------------------------------------------------------- colours

COLOUR_TOLERANCE = 4
"""Largest difference from sRGB, of 255 levels, of colours that need no conversion.

Profiles of sRGB differ a little from each other. What a profile calls itself is not trusted.
"""


@lru_cache(maxsize=16)
def conversion(profile: bytes) -> Any | None:
    """Return the transform from the colours of an ICC profile to sRGB; None if it needs none.

    A profile that is damaged, or of other than RGB colours, counts as that of sRGB.
    """
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if given.profile.xcolor_space.strip() != "RGB":
            return None
        transform = ImageCms.buildTransform(
            given,
            ImageCms.createProfile("sRGB"),
            "RGB",
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # a damaged profile
        return None
    # Colours from all over the cube of RGB.
    levels = 15 * np.indices((18, 18, 18), dtype=np.uint8)
    colours = levels.reshape(3, 18, -1).transpose(1, 2, 0)
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colours), transform))
    difference = np.abs(converted.astype(int) - colours).max()
    if difference > COLOUR_TOLERANCE:
        return transform
    return None
