"""JPEG files by libjpeg-turbo and torch: squares as by Pillow, and what is left to Pillow."""

import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images

from cifnet_pl.images.image import EncodedImage, square
from cifnet_pl.images.jpeg import decode_square
from tests.images.contents import file_of
from tests.images.test_damaged_metadata import exchanged_colours

PHOTOGRAPH = Image.fromarray(load_sample_images().images[0])


def encoded(image: Image.Image = PHOTOGRAPH, **options: object) -> bytes:
    return file_of(image, "JPEG", quality=90, **options)


def by_pillow(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    with Image.open(io.BytesIO(content)) as image:
        return square(image, size, crop_ratio)


def by_turbo(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray | None:
    with Image.open(io.BytesIO(content)) as image:
        return decode_square(content, *image.size, size, crop_ratio)


def difference(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    assert by_turbo(content, size, crop_ratio) is not None
    pixels = EncodedImage(content).square(size, crop_ratio)
    assert pixels.shape == (size, size, 3)
    return np.abs(pixels.astype(int) - by_pillow(content, size, crop_ratio))


@given(
    st.integers(30, 400),
    st.integers(30, 400),
    st.sampled_from([(32, 1.0), (96, 0.875), (224, 0.875), (224, 0.965), (300, 1.0)]),
)
def test_the_square_is_that_of_pillow(width, height, shape):
    content = encoded(PHOTOGRAPH.resize((width, height)))
    pixels = EncodedImage(content).square(*shape)
    assert np.abs(pixels.astype(int) - by_pillow(content, *shape)).mean() < 2


def test_most_photographs_are_not_left_to_pillow():
    for size in [(375, 500), (640, 427), (333, 500), (2000, 1500)]:
        content = encoded(PHOTOGRAPH.resize(size))
        for shape in ((224, 0.875), (128, 1.0), (224, 1.0)):
            pixels = by_turbo(content, *shape)
            assert pixels is not None, (size, shape)
            # Copied into a batch in one go: torch has kept the channels last.
            assert pixels.strides[-1] == 1


def test_grey_progressive_and_turned_files():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="6"/>'
    grey = encoded(PHOTOGRAPH.convert("L"))
    for content in (grey, encoded(progressive=True), encoded(xmp=xmp)):
        assert difference(content, 64).mean() < 1


def test_a_square_of_the_right_size_keeps_its_pixels():
    content = encoded(PHOTOGRAPH.resize((64, 64)))
    assert difference(content, 64).max() == 0


def test_colours_of_a_profile():
    profile = exchanged_colours()
    for image in (PHOTOGRAPH, PHOTOGRAPH.convert("L")):
        assert difference(encoded(image, icc_profile=profile), 64).mean() < 1


def test_what_is_left_to_pillow():
    assert by_turbo(encoded()[:-2000], 32) is None
    four_colours = encoded(PHOTOGRAPH.convert("CMYK"))
    square = EncodedImage(four_colours).square(32)
    assert (square == by_pillow(four_colours, 32)).all()
