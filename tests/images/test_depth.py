"""Images of more than 8 bits a channel: what is white in them, and which are unreadable."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.images.image import EncodedImage, UnreadableImage, read_square
from tests.images.contents import file_of


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_divided_by_256(format: str) -> None:
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    content = file_of(Image.fromarray(values), format)
    square = read_square(content, 8)
    assert (square == (values // 256)[..., None]).all()
    thumbnail = EncodedImage(content).look().thumbnail
    assert thumbnail is not None
    assert np.abs(thumbnail[..., 0].astype(int) - square[..., 0]).max() <= 1


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
