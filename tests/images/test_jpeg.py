"""JPEG files by libjpeg-turbo and torch: squares as by Pillow, and what is left to Pillow."""

import io
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from cifnet_pl.images.image import (
    ORIENTATION_TAG,
    EncodedImage,
    UnreadableImage,
    opened_square,
)
from cifnet_pl.images.jpeg import decode_square, read_header
from tests.images.test_damaged_metadata import wide_gamut

PHOTOGRAPH = Image.fromarray(load_sample_images().images[0])


def encoded(image: Image.Image = PHOTOGRAPH, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, **options)
    return file.getvalue()


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    return exif


def by_pillow(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return opened_square(image, size, crop_ratio)


def difference(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    pixels = decode_square(content, size, crop_ratio)
    assert pixels is not None
    assert pixels.shape == (size, size, 3)
    return np.abs(pixels.astype(int) - by_pillow(content, size, crop_ratio))


@settings(max_examples=40)
@given(
    st.integers(30, 400),
    st.integers(30, 400),
    st.sampled_from([(32, 1.0), (96, 0.875), (224, 0.875), (224, 0.965), (300, 1.0)]),
)
def test_the_square_is_that_of_pillow(
    width: int, height: int, shape: tuple[int, float]
):
    content = encoded(PHOTOGRAPH.resize((width, height)))
    pixels = EncodedImage(content).square(*shape)
    assert np.abs(pixels.astype(int) - by_pillow(content, *shape)).mean() < 2


def test_most_photographs_are_not_left_to_pillow():
    sizes = [(500, 375), (375, 500), (640, 427), (333, 500), (1200, 800), (4000, 3000)]
    for size in sizes:
        content = encoded(PHOTOGRAPH.resize(size))
        for shape in ((224, 0.875), (128, 1.0), (224, 1.0)):
            assert decode_square(content, *shape) is not None, (size, shape)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [20, 128])
def test_orientations(orientation: int, size: int):
    content = encoded(exif=exif_of(orientation))
    assert read_header(content).orientation == orientation
    assert difference(content, size).mean() < 1


def test_grey_and_progressive_files():
    assert difference(encoded(PHOTOGRAPH.convert("L")), 64).mean() < 1
    assert difference(encoded(progressive=True), 64).mean() < 1


def test_a_square_of_the_right_size_keeps_its_pixels():
    content = encoded(PHOTOGRAPH.resize((64, 64)))
    assert difference(content, 64).max() == 0


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"/>'


def big_endian_exif(kind: int, value: int) -> bytes:
    entry = struct.pack(">HHIHH", ORIENTATION_TAG, kind, 1, value, 0)
    return b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 1) + entry + bytes(4)


def test_exif_of_the_other_byte_order():
    assert read_header(encoded(exif=big_endian_exif(3, 8))).orientation == 8


def test_colours_of_a_profile():
    profile = wide_gamut()
    content = encoded(icc_profile=profile)
    assert difference(content, 64).mean() < 1
    assert read_header(content).profile == profile
    converted = EncodedImage(content).square(64).astype(int)
    assert np.abs(converted - EncodedImage(encoded()).square(64)).mean() > 2
    grey = encoded(PHOTOGRAPH.convert("L"), icc_profile=profile)
    assert read_header(grey).profile is None


@pytest.mark.parametrize(
    "content",
    [
        encoded(PHOTOGRAPH.convert("CMYK")),
        encoded(xmp=XMP),
        encoded(exif=exif_of(9)),
        encoded(icc_profile=bytes(100_000)),
        encoded(exif=big_endian_exif(4, 6)),
        encoded(exif=b"Exif\0\0MM\0*" + struct.pack(">IH", 8, 9)),
        encoded()[:5000],
        encoded()[:-2000],
        b"",
        b"\xff\xd8",
        b"\x89PNG\r\n\x1a\n",
    ],
    ids=[
        "CMYK",
        "orientation in XMP",
        "orientation 9",
        "profile in two parts",
        "orientation as a long",
        "EXIF that ends early",
        "cut in the header",
        "cut in the pixels",
        "empty",
        "start alone",
        "PNG",
    ],
)
def test_what_is_left_to_pillow(content: bytes):
    assert decode_square(content, 32, 1.0) is None


def test_a_cut_file_is_unreadable():
    with pytest.raises(UnreadableImage):
        EncodedImage(encoded()[:-2000]).square(32)


def test_pillows_limit_of_pixels_holds(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 640 * 427 // 2 - 1)
    assert decode_square(encoded(), 32, 1.0) is None
    with pytest.raises(UnreadableImage, match="pixels"):
        EncodedImage(encoded()).square(32)
