"""Contents of image files, whole and forged."""

import io
import struct
import zlib

from PIL import Image

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def file_of(image: Image.Image, kind: str, **options: object) -> bytes:
    """Return the content of an image's file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def bomb(width: int = 50000, height: int = 50000) -> bytes:
    """A PNG file of a few bytes that claims so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return PNG_SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", b"")
