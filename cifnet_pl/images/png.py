"""Leave out of PNG files what is no picture: texts and profiles that decoders refuse.

Pillow refuses a whole file where a text or a colour profile is larger than 1 MB or damaged. Neither
changes a pixel.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

SIGNATURE = b"\x89PNG\r\n\x1a\n"

TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
"""Types of chunks that hold texts (PNG specification, 11.3.3)."""

ORIENTATION_TEXTS = (b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Keywords of texts that may say the orientation."""

SIGNIFICANT_BITS = b"sBIT"
"""Type of the chunk that says how many bits of each channel are significant."""

PIXELS = b"IDAT"
"""Type of the chunks that hold the pixels."""

PROFILE = b"iCCP"
"""Type of the chunk that holds a colour profile: its name, two bytes, and deflated data."""

METADATA_LIMIT = 2**16
"""Bytes of a text that may say the orientation, as stored."""

INFLATED_LIMIT = 2**20
"""Bytes of a text or profile that Pillow accepts."""


class PngChunk(NamedTuple):
    """A part of a PNG file.

    Attributes:
        kind: its type.
        start: position of its length field.
        end: position after its checksum.
    """

    kind: bytes
    start: int
    end: int


def plain_png(content: bytes) -> bytes:
    """Return a PNG file without texts and unusable profiles; other content as it is."""
    if not content.startswith(SIGNATURE):
        return content
    left_out = []
    for chunk in _chunks(content):
        if chunk.kind == PROFILE or chunk.kind in TEXTS:
            data = content[chunk.start + 8 : chunk.end - 4]
            if not _is_usable(chunk.kind, data):
                left_out.append(chunk)
    if not left_out:
        return content
    parts = []
    position = 0
    for chunk in left_out:
        parts.append(content[position : chunk.start])
        position = chunk.end
    parts.append(content[position:])
    return b"".join(parts)


def significant_bits(content: bytes) -> int | None:
    """Return how many bits of the colours of a PNG file are significant.

    None if it does not say, or says what cannot be.

    Args:
        content: of any file.
    """
    if not content.startswith(SIGNATURE):
        return None
    for chunk in _chunks(content):
        if chunk.kind == PIXELS:
            return None
        if chunk.kind == SIGNIFICANT_BITS:
            bits = content[chunk.start + 8 : chunk.end - 4]
            most = max(bits[:3], default=0)
            return most if 1 <= most <= 16 else None
    return None


def _chunks(content: bytes) -> Iterator[PngChunk]:
    """Yield the chunks of a file up to its end, or to where it is cut off."""
    start = len(SIGNATURE)
    while start + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        end = start + 12 + length
        if end > len(content):
            return
        yield PngChunk(kind, start, end)
        start = end


def _is_usable(kind: bytes, data: bytes) -> bool:
    """Return whether a text or profile is wanted, whole, and not too large.

    Args:
        kind: type of its chunk.
        data: content of its chunk, which begins with a keyword.
    """
    keyword, _, rest = data.partition(b"\0")
    if kind != PROFILE:
        if keyword not in ORIENTATION_TEXTS or len(data) > METADATA_LIMIT:
            return False
        if kind == b"tEXt":
            return True
        if kind == b"iTXt":
            return not rest.startswith(b"\x01")  # compressed
    decompressor = zlib.decompressobj()
    try:
        decompressor.decompress(rest[1:], INFLATED_LIMIT)
    except zlib.error:
        return False
    return decompressor.eof
