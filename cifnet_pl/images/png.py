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
    """A part of a PNG file: its type, its data, and all its bytes."""

    kind: bytes
    data: bytes
    content: bytes


def plain_png(content: bytes) -> bytes:
    """Return a PNG file without texts and unusable profiles; other content as it is."""
    if not content.startswith(SIGNATURE):
        return content
    kept = [SIGNATURE]
    length = len(SIGNATURE)
    for chunk in _chunks(content):
        length += len(chunk.content)
        if _is_usable(chunk):
            kept.append(chunk.content)
    kept.append(content[length:])  # what is cut off
    return b"".join(kept)


def significant_bits(content: bytes) -> int:
    """Return how many bits of 16 are significant in a grey PNG file; 16 if it does not say.

    Args:
        content: of any file.
    """
    if content.startswith(SIGNATURE):
        for chunk in _chunks(content):
            if chunk.kind == SIGNIFICANT_BITS and chunk.data:
                return min(max(chunk.data[0], 8), 16)
    return 16


def _chunks(content: bytes) -> Iterator[PngChunk]:
    """Yield the chunks of a file up to its end, or to where it is cut off."""
    start = len(SIGNATURE)
    while start + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        chunk = content[start : start + 12 + length]
        if len(chunk) < 12 + length:
            return
        yield PngChunk(kind, chunk[8:-4], chunk)
        start += len(chunk)


def _is_usable(chunk: PngChunk) -> bool:
    """Return whether a chunk is neither text nor profile, or one that Pillow should read."""
    keyword, _, rest = chunk.data.partition(b"\0")
    if chunk.kind in TEXTS and keyword not in ORIENTATION_TEXTS:
        return False
    if chunk.kind == b"iTXt":
        return not rest.startswith(b"\x01")  # compressed
    if chunk.kind not in (PROFILE, b"zTXt"):
        return True
    decompressor = zlib.decompressobj()
    try:
        decompressor.decompress(rest[1:], MAX_TEXT_CHUNK)
    except zlib.error:
        return False
    return decompressor.eof
