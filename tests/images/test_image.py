"""One image → one square: against torchvision's transforms, over all modes, orientations and
shapes; damaged files.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image
from torchvision.transforms import v2

from cifnet_pl.images import image as images
from cifnet_pl.images.image import (
    UPRIGHT_TRANSPOSES,
    UnreadableImage,
    read_square,
    square,
)


def smooth(width: int, height: int) -> Image.Image:
    """Waves and gradients: an image with detail, but none at the scale of one pixel."""
    y, x = np.mgrid[0:height, 0:width] / 9.0
    planes = [np.sin(x) * np.cos(y), np.sin(x + 2 * y), np.cos(x / 3 - y / 2)]
    return Image.fromarray((127.5 + 120 * np.stack(planes, axis=2)).astype(np.uint8))


def reference(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """The usual evaluation transform: short side resized, centre cropped."""
    short = round(size / crop_ratio)
    steps = [
        v2.Resize(short, v2.InterpolationMode.BICUBIC, antialias=True),
        v2.CenterCrop(size),
    ]
    return np.asarray(v2.Compose(steps)(image))


def difference(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - two.astype(int))


# ---------------------------------------------------------------------- against torchvision


@given(st.integers(2, 90), st.integers(1, 64))
def test_square_images_as_torchvision_resizes_them(side: int, size: int) -> None:
    noise = np.random.default_rng(side).integers(
        0, 256, (side, side, 3), dtype=np.uint8
    )
    image = Image.fromarray(noise)
    assert difference(square(image, size), reference(image, size)).max() <= 1


@pytest.mark.parametrize(("width", "height"), [(150, 100), (97, 240)])
@pytest.mark.parametrize(("size", "crop_ratio"), [(32, 1.0), (28, 0.875)])
def test_other_shapes_up_to_half_a_pixel(
    width: int, height: int, size: int, crop_ratio: float
) -> None:
    """The transform rounds the long side and the crop's corner to whole pixels; one step need
    not.
    """
    image = smooth(width, height)
    exact = square(image, size, crop_ratio)
    rounded = reference(image, size, crop_ratio)
    steepest = max(
        np.abs(np.diff(exact.astype(int), axis=axis)).max() for axis in (0, 1)
    )
    assert difference(exact, rounded).max() <= steepest
    assert difference(exact, rounded).mean() <= 0.5 * steepest


@pytest.mark.parametrize(("width", "height"), [(1, 20000), (900, 3), (1, 1)])
def test_elongated_images_show_their_centre(width: int, height: int) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[
        max(height // 2 - 4, 0) : height // 2 + 4,
        max(width // 2 - 4, 0) : width // 2 + 4,
    ] = 200
    result = square(Image.fromarray(pixels), 8)
    assert result.shape == (8, 8, 3)
    assert result[4, 4].tolist() == [200, 200, 200]


# ---------------------------------------------------------------------- orientation


def corners(image: np.ndarray) -> list[str]:
    """Colour names of the four corners, clockwise from the upper left."""
    names = {
        (255, 0, 0): "red",
        (0, 255, 0): "green",
        (0, 0, 255): "blue",
        (255, 255, 0): "yellow",
    }
    actual = []
    for y, x in ((0, 0), (0, -1), (-1, -1), (-1, 0)):
        near = min(
            names,
            key=lambda colour: float(
                np.abs(image[y, x].astype(int) - np.array(colour)).sum()
            ),
        )
        actual.append(names[near])
    return actual


def quadrants() -> Image.Image:
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:16, :16] = (255, 0, 0)
    pixels[:16, 16:] = (0, 255, 0)
    pixels[16:, 16:] = (0, 0, 255)
    pixels[16:, :16] = (255, 255, 0)
    return Image.fromarray(pixels)


# Where the stored image's upper left corner is to be shown, and which way round, by the EXIF
# standard: 6 means that row 0 is the right-hand side and column 0 the top, and so on.
SHOWN = {
    1: ["red", "green", "blue", "yellow"],
    2: ["green", "red", "yellow", "blue"],
    3: ["blue", "yellow", "red", "green"],
    4: ["yellow", "blue", "green", "red"],
    5: ["red", "yellow", "blue", "green"],
    6: ["yellow", "red", "green", "blue"],
    7: ["blue", "green", "red", "yellow"],
    8: ["green", "blue", "yellow", "red"],
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_exif_orientation_is_applied(
    orientation: int, suffix: str, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quadrants().save(tmp_path / f"a.{suffix}", exif=exif)
    assert corners(read_square(tmp_path / f"a.{suffix}", 8)) == SHOWN[orientation]


def test_sideways_image_is_cropped_after_turning(tmp_path: Path) -> None:
    """A portrait stored as 60x30 with orientation 6: its centre is that of the upright 30x60
    image.
    """
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = smooth(60, 30)
    stored.save(tmp_path / "a.png", exif=exif)
    upright = stored.rotate(-90, expand=True)
    assert upright.size == (30, 60)
    assert (
        difference(read_square(tmp_path / "a.png", 10), square(upright, 10)).max() <= 1
    )


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_orientation_outside_the_standard_is_upright(
    orientation: int, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quadrants().save(tmp_path / "a.png", exif=exif)
    assert corners(read_square(tmp_path / "a.png", 8)) == SHOWN[1]
    assert orientation not in UPRIGHT_TRANSPOSES


# ---------------------------------------------------------------------- modes


def reopened(image: Image.Image, suffix: str, **options: object) -> Image.Image:
    """What a file of this format gives back."""
    file = io.BytesIO()
    image.save(file, suffix, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def centre(image: Image.Image) -> list[int]:
    pixel: list[int] = square(image, 4)[2, 2].tolist()
    return pixel


def palette() -> Image.Image:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 10, 10])
    return image


def plain(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (8, 8), colour)  # type: ignore[arg-type]


WHITE = [255] * 3
CLEAR = plain("RGBA", (10, 20, 30, 0))
MODES: dict[str, tuple[Image.Image, list[int]]] = {
    "16 bit big endian": (
        Image.frombytes("I;16B", (12, 12), struct.pack(">H", 51400) * 144),
        [200] * 3,
    ),
    "CMYK": (
        reopened(
            Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK"),
            "JPEG",
            quality=100,
        ),
        [200, 40, 90],
    ),
    "clear": (CLEAR, WHITE),
    "half clear": (plain("RGBA", (0, 0, 0, 128)), [127] * 3),
    "clear grey": (plain("LA", (0, 0)), WHITE),
    "clear, premultiplied": (CLEAR.convert("RGBa"), WHITE),
    "opaque, premultiplied": (plain("La", (60, 255)), [60] * 3),
    "palette PNG": (reopened(palette(), "PNG"), [200, 10, 10]),
    "palette GIF": (reopened(palette(), "GIF"), [200, 10, 10]),
    "clear palette PNG": (reopened(palette(), "PNG", transparency=1), WHITE),
    "clear palette GIF": (reopened(palette(), "GIF", transparency=1), WHITE),
    "grey that is clear": (reopened(plain("L", 7), "PNG", transparency=7), WHITE),
    "colour that is clear": (
        reopened(plain("RGB", (1, 2, 3)), "PNG", transparency=(1, 2, 3)),
        WHITE,
    ),
    "clear bit": (reopened(plain("1", 0), "PNG", transparency=0), WHITE),
}


@pytest.mark.parametrize(("image", "expected"), MODES.values(), ids=MODES)
def test_modes(image: Image.Image, expected: list[int]) -> None:
    assert np.abs(np.array(centre(image)) - expected).max() <= (
        3 if image.mode == "CMYK" else 1
    )


@pytest.mark.parametrize("suffix", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_an_animation(suffix: str) -> None:
    image = reopened(
        plain("RGB", (250, 0, 0)),
        suffix,
        save_all=True,
        append_images=[plain("RGB", (0, 250, 0))],
    )
    assert np.abs(np.array(centre(image)) - (250, 0, 0)).max() <= 3


# ---------------------------------------------------------------------- unreadable files


def bomb(width: int = 50000, height: int = 50000) -> bytes:
    """A PNG file of a few bytes that claims so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + chunk
        + struct.pack(">I", zlib.crc32(chunk))
        + data
    )


# ---------------------------------------------------------------------- HEIC, and damaged files of
# all formats


def heic(orientation: int | None = None) -> bytes:
    """An image with a red upper and a blue lower half as its pixels are stored."""
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    pixels[:32, :, 0] = 255
    pixels[32:, :, 2] = 255
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
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


def test_without_the_package_the_sentence_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unknown(*given: object) -> Image.Image:
        raise Image.UnidentifiedImageError  # as long as nothing has taught Pillow the format

    monkeypatch.setattr(images, "find_spec", lambda name: None)
    monkeypatch.setattr(images, "_opened", unknown)
    (tmp_path / "a.heic").write_bytes(heic())
    with pytest.raises(UnreadableImage, match=r"pip install 'cifnet_pl\[heic\]'"):
        read_square(tmp_path / "a.heic", 8)


FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "JPEG2000", "ICO"]


def encoded(kind: str) -> bytes:
    """A small image in a file format, with an EXIF orientation where there is room for one."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    if kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        extra = {"exif": exif}
    else:
        extra = {}
    Image.fromarray(pixels).save(file, kind, **extra)
    return file.getvalue()


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_images(kind: str, tmp_path: Path, data: st.DataObject):
    """With a few bytes changed, an image is decoded to a square, or refused as unreadable."""
    content = bytearray(encoded(kind))
    with pytest.raises(UnreadableImage):
        read_square(bytes(content[: len(content) // 2]), 8)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        some = data.draw(st.binary(min_size=1, max_size=4))
        if data.draw(st.booleans()):
            content[at : at + len(some)] = some
        else:
            del content[at : at + data.draw(st.integers(1, 50))]
    file = tmp_path / "image"
    file.write_bytes(content)
    try:
        assert read_square(file, 8).shape == (8, 8, 3)
    except UnreadableImage:
        return
