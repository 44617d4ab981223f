"""Images of more than 8 bits a channel: what is white in them, and which are unreadable."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.images.image import EncodedImage, UnreadableImage, read_square
from tests.images.contents import PNG_SIGNATURE, chunk, file_of

CHANNELS = {"grey": (0, 1), "RGB": (2, 3), "grey and alpha": (4, 2), "RGBA": (6, 4)}
"""Colour type of PNG files, and its number of channels."""


def ramp(largest: int) -> np.ndarray:
    """Return (8, 8) values from 0 to the largest."""
    return np.linspace(0, largest, 64).astype(np.uint16).reshape(8, 8)


def png(values: np.ndarray, colours: str) -> bytes:
    """Return a PNG file of 16 bits a channel; each colour has the values, and alpha is opaque."""
    kind, channels = CHANNELS[colours]
    pixels = np.repeat(values[..., None], channels, axis=-1)
    if channels in (2, 4):
        pixels[..., -1] = 65535
    rows = [b"\0" + row.astype(">u2").tobytes() for row in pixels]
    header = struct.pack(">IIBBBBB", *values.shape[::-1], 16, kind, 0, 0, 0)
    content = PNG_SIGNATURE + chunk(b"IHDR", header)
    content += chunk(b"IDAT", zlib.compress(b"".join(rows)))
    return content + chunk(b"IEND", b"")


@pytest.mark.parametrize("colours", CHANNELS)
def test_sixteen_bits_are_divided_by_256(colours: str) -> None:
    values = ramp(65535)
    content = png(values, colours)
    square = read_square(content, 8)
    assert (square == (values // 256)[..., None]).all()
    thumbnail = EncodedImage(content).look().thumbnail
    assert thumbnail is not None
    assert np.abs(thumbnail[..., 0].astype(int) - square[..., 0]).max() <= 1


@pytest.mark.parametrize("format", ["TIFF", "PPM"])
def test_other_files_of_sixteen_bits(format: str) -> None:
    values = ramp(65535)
    square = read_square(file_of(Image.fromarray(values), format), 8)
    assert (square == (values // 256)[..., None]).all()


@pytest.mark.parametrize(
    "pixels",
    [
        np.linspace(276, 318, 64, dtype=np.float32).reshape(8, 8),  # kelvin
        np.arange(64, dtype=np.int32).reshape(8, 8),
    ],
)
def test_other_numbers_are_unreadable(pixels: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(file_of(Image.fromarray(pixels), "TIFF"))
    with pytest.raises(UnreadableImage, match="convert them to 8 or 16 bits"):
        read_square(path, 8)
    assert EncodedImage(path).look().thumbnail is None
