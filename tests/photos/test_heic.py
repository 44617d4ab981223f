"""HEIC photos, as telephones make them: with the extra package, and without it."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.photos import photo as images
from cifnet_pl.photos.photo import UnreadableImage, read_square

pillow_heif = pytest.importorskip("pillow_heif")


def heic(orientation: int | None = None) -> bytes:
    """A photo with a red upper and a blue lower half as its pixels are stored."""
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    pixels[:32, :, 0], pixels[32:, :, 2] = 255, 255
    exif = Image.Exif()
    if orientation is not None:
        exif[images.ORIENTATION_TAG] = orientation
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, exif=exif.tobytes())
    return file.getvalue()


@pytest.mark.parametrize("name", ["a.heic", "a.HEIF", "really heic.jpg"])
def test_decoded_whatever_its_name(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(heic())
    square = read_square(tmp_path / name, 8).astype(int)
    assert square[1, 4, 0] > 200 > 50 > square[1, 4, 2]
    assert square[6, 4, 2] > 200 > 50 > square[6, 4, 0]
    assert np.array_equal(read_square(heic(), 8), square)


def test_without_the_package_the_sentence_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unknown(*given: object) -> Image.Image:
        raise Image.UnidentifiedImageError  # as long as nothing has taught Pillow the format

    monkeypatch.setattr(images, "find_spec", lambda name: None)
    monkeypatch.setattr(images, "_opened", unknown)
    (tmp_path / "a.heic").write_bytes(heic())
    with pytest.raises(UnreadableImage, match=r"pip install 'cifnet_pl\[heic\]'"):
        read_square(tmp_path / "a.heic", 8)
