"""Images of more than 8 bits a channel, of which cameras use 10, 12 or 14, are not black."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.images.image import EncodedImage, read_square

CHANNELS = {"grey": (0, 1), "RGB": (2, 3), "grey and alpha": (4, 2), "RGBA": (6, 4)}
"""Colour type of PNG files, and its number of channels."""


def ramp(largest: int) -> np.ndarray:
    """Return (8, 8) values from 0 to the largest."""
    return np.linspace(0, largest, 64).astype(np.uint16).reshape(8, 8)


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum


def png(values: np.ndarray, colours: str, significant: int | None = None) -> bytes:
    """Return a PNG file of 16 bits a channel; each colour has the values, and alpha is opaque."""
    kind, channels = CHANNELS[colours]
    pixels = np.repeat(values[..., None], channels, axis=-1)
    if channels in (2, 4):
        pixels[..., -1] = 65535
    rows = [b"\0" + row.astype(">u2").tobytes() for row in pixels]
    header = struct.pack(">IIBBBBB", *values.shape[::-1], 16, kind, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    if significant is not None:
        content += chunk(b"sBIT", bytes([significant] * channels))
    content += chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return content + chunk(b"IEND", b"")


def rgb_tiff(values: np.ndarray, order: str) -> bytes:
    """Return an uncompressed TIFF file of 16 bits a channel, in an order of bytes."""
    pixels = np.repeat(values[..., None], 3, axis=-1).astype(f"{order}u2").tobytes()
    height, width = values.shape
    tags = [
        (256, 3, 1, width),
        (257, 3, 1, height),
        (258, 3, 3, 8 + len(pixels)),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 8),
        (277, 3, 1, 3),
        (278, 3, 1, height),
        (279, 4, 1, len(pixels)),
    ]
    bits = struct.pack(f"{order}HHH", 16, 16, 16)
    directory = 8 + len(pixels) + len(bits)
    content = b"II*\0" if order == "<" else b"MM\0*"
    content += struct.pack(f"{order}I", directory) + pixels + bits
    content += struct.pack(f"{order}H", len(tags))
    for tag, kind, count, value in tags:
        form = "HHIHxx" if kind == 3 and count == 1 else "HHII"
        content += struct.pack(f"{order}{form}", tag, kind, count, value)
    return content + bytes(4)


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
@pytest.mark.parametrize("colours", CHANNELS)
def test_png(colours: str, bits: int) -> None:
    values = ramp(2**bits - 1)
    content = png(values, colours)
    square = read_square(content, 8)
    assert np.abs(square[..., 0] - values / (2**bits - 1) * 255).max() < 1
    assert (square == square[..., :1]).all()
    thumbnail = EncodedImage(content).look().thumbnail
    assert thumbnail is not None
    assert np.abs(thumbnail[..., 0].astype(int) - square[..., 0]).max() <= 1


@pytest.mark.parametrize("bits", [10, 12, 14, 16])
@pytest.mark.parametrize("order", ["<", ">"])
def test_tiff(order: str, bits: int) -> None:
    values = ramp(2**bits - 1)
    square = read_square(rgb_tiff(values, order), 8)
    assert np.abs(square[..., 0] - values / (2**bits - 1) * 255).max() < 1


@pytest.mark.parametrize("colours", CHANNELS)
def test_what_the_file_calls_significant_decides(colours: str) -> None:
    """Twelve bits are significant: a dark image stays dark, and one of 16 bits is not too light."""
    for largest, white in ((1000, 4095), (4095, 4095), (5000, 65535), (65520, 65535)):
        square = read_square(png(ramp(largest), colours, significant=12), 8)
        assert abs(int(square[-1, -1, 0]) - largest / white * 255) < 1


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate"])
def test_packed_tiff(compression: str) -> None:
    """A file whose order of bytes is that of the decoder, and not its own."""
    content = io.BytesIO()
    Image.fromarray(ramp(1023)).save(content, "TIFF", compression=compression)
    assert (read_square(content.getvalue(), 8)[-1, -1] == 255).all()


def test_transparency_stays() -> None:
    values = ramp(1023)
    content = bytearray(png(values, "RGBA"))
    assert (read_square(bytes(content), 8)[-1, -1] == 255).all()
    kind, _ = CHANNELS["RGBA"]
    clear = np.zeros((8, 8, 4), np.uint16)
    rows = [b"\0" + row.astype(">u2").tobytes() for row in clear]
    header = struct.pack(">IIBBBBB", 8, 8, 16, kind, 0, 0, 0)
    content = bytearray(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header))
    content += chunk(b"IDAT", zlib.compress(b"".join(rows))) + chunk(b"IEND", b"")
    assert (read_square(bytes(content), 8) == 255).all()


def test_a_damaged_chunk_of_significant_bits_is_ignored() -> None:
    content = png(ramp(1023), "RGB")
    header = content.index(b"IDAT") - 4
    for bits in (b"", b"\0\0\0", b"\xff\xff\xff"):
        damaged = content[:header] + chunk(b"sBIT", bits) + content[header:]
        assert (read_square(damaged, 8)[-1, -1] == 255).all()
