"""Leave out of PNG files what is no picture: texts and profiles that decoders refuse.

Pillow refuses a whole file where a text or a colour profile is larger than 1 MB or damaged. Neither
changes a pixel.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from PIL.PngImagePlugin import MAX_TEXT_CHUNK

SIGNATURE = b"\x89PNG\r\n\x1a\n"

TEXTS = frozenset({b"tEXt", b"zTXt", b"iTXt"})
"""Types of chunks that hold texts (PNG specification, 11.3.3)."""

ORIENTATION_TEXTS = (b"Raw profile type exif", b"XML:com.adobe.xmp")
"""Keywords of texts that may say the orientation."""

SIGNIFICANT_BITS = b"sBIT"
"""Type of the chunk that says how many bits of each channel are significant."""

PROFILE = b"iCCP"
"""Type of the chunk that holds a colour profile: its name, two bytes, and deflated data."""


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


def significant_bits(content: bytes) -> int:
    """Return how many bits of 16 are significant in a grey PNG file; 16 if it does not say.

    Args:
        content: of any file.
    """
    if content.startswith(SIGNATURE):
        for chunk in _chunks(content):
            if chunk.kind == SIGNIFICANT_BITS:
                return min(max(content[chunk.start + 8], 8), 16)
    return 16


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
    """Return whether a text or profile is wanted, and Pillow reads it.

    Args:
        kind: type of its chunk.
        data: content of its chunk, which begins with a keyword.
    """
    keyword, _, rest = data.partition(b"\0")
    if kind in TEXTS and keyword not in ORIENTATION_TEXTS:
        return False
    if kind in (b"tEXt", b"iTXt"):
        return True
    decompressor = zlib.decompressobj()
    try:
        decompressor.decompress(rest[1:], MAX_TEXT_CHUNK)
    except zlib.error:
        return False
    return decompressor.eof
