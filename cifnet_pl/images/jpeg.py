"""Decode ordinary JPEG files with few calls, none of which holds Python's lock while it computes.

Pillow decodes in pieces and resizes slowly: 2.3 ms for a JPEG of 500 × 375 pixels to 224, of which
all threads together wait for the lock. libjpeg-turbo (package ``simplejpeg``) decodes the same
pixels in one call, and torch resizes in another, together in 1.0 ms.

Everything else is left to Pillow: other formats, CMYK, damaged files, and files whose orientation
is not plain to see.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate

from cifnet_pl.images.colour import in_srgb

ORIENTATION_TAG = 0x0112
"""EXIF tag Orientation (CIPA DC-008)."""

START_OF_IMAGE = b"\xff\xd8"
START_OF_SCAN = 0xDA
APP1 = 0xE1
APP2 = 0xE2
PROFILE = b"ICC_PROFILE\0"
"""Begins a segment APP2 with a part of a colour profile."""

WHOLE = b"\1\1"
"""Number of the part and number of the parts, which follow, where one part is the whole."""

FRAMES = frozenset({0xC0, 0xC1, 0xC2})
"""Markers of baseline, extended and progressive frames with Huffman codes (ITU-T T.81, B.1)."""

BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
"""First bytes of EXIF data → byte order as :mod:`struct` names it."""

SKIP_LIMIT = 16
"""Output pixels before the square that may be computed for nothing."""

SHIFT_LIMIT = 0.1
"""Output pixels by which the square may be shifted."""

FRACTIONS = (8, 4, 2)
"""Denominators of the fractions of its resolution at which a JPEG file is decoded fast."""


class JpegHeader(NamedTuple):
    """Properties of a JPEG file that are known before it is decoded.

    Attributes:
        width: in pixels, as stored.
        height: likewise.
        orientation: of EXIF, 1 to 8; 1 where the file says nothing.
        profile: ICC profile of its colours; None where it has none, or is grey.
    """

    width: int
    height: int
    orientation: int
    profile: bytes | None


class LeftToPillow(Exception):
    """A file that is no ordinary JPEG."""


def read_header(content: bytes) -> JpegHeader:
    """Read the size, orientation and colours of a JPEG file.

    Raises:
        LeftToPillow: the file is no JPEG, has other than one or three channels of 8 bits, says its
            orientation in XMP alone, has a colour profile in several parts, or is damaged.
    """
    frame: JpegFrame | None = None
    orientation = 1
    profile: bytes | None = None
    for marker, body in _segments(content):
        if marker in FRAMES:
            frame = _frame(body)
        elif marker == APP1 and orientation == 1:
            orientation = _orientation(body)
        elif marker == APP2 and body.startswith(PROFILE):
            profile = _profile(body)
    if frame is None:
        raise LeftToPillow
    if frame.channels == 1:
        profile = None
    return JpegHeader(frame.width, frame.height, orientation, profile)


def _segments(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker and body of each segment up to the first scan."""
    if not content.startswith(START_OF_IMAGE):
        raise LeftToPillow
    position = len(START_OF_IMAGE)
    while True:
        prefix, marker, length = _unpacked(">BBH", content, position)
        if prefix != 0xFF or length < 2:
            raise LeftToPillow
        if marker == START_OF_SCAN:
            return
        yield marker, content[position + 4 : position + 2 + length]
        position += 2 + length


def _unpacked(layout: str, content: bytes, position: int) -> tuple[int, ...]:
    """Unpack numbers of a layout as :mod:`struct` names it."""
    try:
        return struct.unpack_from(layout, content, position)
    except struct.error:
        raise LeftToPillow from None


class JpegFrame(NamedTuple):
    """Size in pixels and number of channels of a JPEG file."""

    width: int
    height: int
    channels: int


def _frame(segment: bytes) -> JpegFrame:
    bits, height, width, channels = _unpacked(">BHHB", segment, 0)
    if bits != 8 or channels not in (1, 3) or not (width and height):
        raise LeftToPillow
    return JpegFrame(width, height, channels)


def _orientation(segment: bytes) -> int:
    """Return the orientation in a segment APP1; 1 if there is none."""
    if not segment.startswith(b"Exif\0\0"):
        if b"tiff:Orientation" in segment:
            raise LeftToPillow
        return 1
    exif = segment[6:]
    if exif[:4] not in BYTE_ORDERS:
        raise LeftToPillow
    order = BYTE_ORDERS[exif[:4]]
    (directory,) = _unpacked(order + "I", exif, 4)
    (count,) = _unpacked(order + "H", exif, directory)
    for entry in range(count):
        offset = directory + 2 + 12 * entry
        tag, kind, values, value = _unpacked(order + "HHIH", exif, offset)
        if tag == ORIENTATION_TAG:
            if kind != 3 or values != 1 or not 1 <= value <= 8:
                raise LeftToPillow
            return value
    return 1


def _profile(segment: bytes) -> bytes:
    """Return the colour profile in a segment APP2."""
    profile = segment.removeprefix(PROFILE)
    if not profile.startswith(WHOLE):
        raise LeftToPillow
    return profile.removeprefix(WHOLE)


def decode_square(content: bytes, size: int, crop_ratio: float) -> np.ndarray | None:
    """Decode a JPEG file to an upright centred square; None where Pillow is to decode it.

    The square is that of :func:`cifnet_pl.images.image.square` up to rounding and a tenth of an
    output pixel: measured on three sets of photographs, pixels differ by 0.02 to 0.09 of 255 levels
    on average, and embeddings of EfficientNet-Lite0 have a cosine of 0.9985 to 1.

    Args:
        content: of the file.
        size: side of the square in pixels.
        crop_ratio: share of the short side that is kept.

    Returns:
        (size, size, 3) uint8.
    """
    try:
        header = read_header(content)
    except LeftToPillow:
        return None
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and header.width * header.height > limit:
        return None
    fraction = _fraction(header, int(2 * size / crop_ratio))
    # Sides that the fraction does not divide are decoded to the next whole pixel: the picture ends
    # before it.
    width = header.width / fraction
    height = header.height / fraction
    side = min(width, height) * crop_ratio
    rows = _window(height, side, size)
    columns = _window(width, side, size)
    if rows is None or columns is None:
        return None
    try:
        pixels = simplejpeg.decode_jpeg(
            content, "RGB", min_width=math.ceil(width), min_height=math.ceil(height)
        )
    except ValueError:  # damaged, or a kind that libjpeg-turbo does not decode
        return None
    square = pixels[rows.start : rows.stop, columns.start : columns.stop]
    if side != size:
        # NumPy copies: torch would divide a copy among its threads, which wait for each other.
        square = np.ascontiguousarray(square)
        # Views by NumPy: each call of torch gives up Python's lock, for which threads then wait.
        # In this order of steps torch knows the channels to be last, which is fast.
        image = torch.from_numpy(square.reshape(1, *square.shape).transpose(0, 3, 1, 2))
        scale = size / side * (1 + 1e-9)  # lest torch round the size of the result down
        small = interpolate(
            image, scale_factor=(scale, scale), mode="bicubic", antialias=True
        )
        square = small.numpy()[0].transpose(1, 2, 0)
    square = square[rows.skip : rows.skip + size, columns.skip : columns.skip + size]
    return in_srgb(_upright(square, header.orientation), header.profile)


def is_incomplete(content: bytes) -> bool:
    """Return whether a JPEG file ends before its last pixel, or is filled up with anything else.

    Pillow paints what is missing grey where an end mark follows.
    """
    if not content.startswith(START_OF_IMAGE):
        return False
    for colours in ("RGB", "CMYK"):
        try:
            simplejpeg.decode_jpeg(content, colours, min_width=1, min_height=1)
        except ValueError as error:
            if "premature end" in str(error).casefold():
                return True
    return False


class Window(NamedTuple):
    """Range of pixels that is resized along one side of an image.

    Torch resizes whole pixels, and a centred square seldom begins at one. Where more of the image
    is resized than the square, an output pixel before it may begin at a whole pixel.

    Attributes:
        start: first pixel.
        stop: pixel after the last one, which may be outside.
        skip: output pixels before the square.
    """

    start: int
    stop: int
    skip: int


def _window(length: float, side: float, size: int) -> Window | None:
    """Choose the window of a centred square; None if each would shift it visibly.

    Args:
        length: of the image's side in pixels.
        side: of the square in the image.
        size: of the square in the output.
    """
    step = side / size
    begin = (length - side) / 2
    best_skip = 0
    least_shift = 1.0
    for skip in range(1 + min(SKIP_LIMIT, int(begin / step))):
        start = begin - skip * step
        shift = abs(start - round(start))
        if shift < least_shift:
            best_skip = skip
            least_shift = shift
    if least_shift > SHIFT_LIMIT * step:
        return None
    support = 2 * max(step, 1)  # of the bicubic filter
    stop = math.ceil(begin + side + support) + 1
    return Window(round(begin - best_skip * step), stop, best_skip)


def _fraction(header: JpegHeader, wanted: int) -> int:
    """Return the largest denominator at which ``wanted`` pixels are left on the short side."""
    for fraction in FRACTIONS:
        if min(header.width, header.height) >= fraction * wanted:
            return fraction
    return 1


def _upright(square: np.ndarray, orientation: int) -> np.ndarray:
    """Turn a stored square (s, s, 3) as its EXIF orientation says (CIPA DC-008, table 6)."""
    if orientation in (5, 6, 7, 8):
        square = square.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        square = square[:, ::-1]
    if orientation in (3, 4, 7, 8):
        square = square[::-1]
    return square
