"""One image → one square: shapes as by torchvision, modes, depth, orientations, damaged files."""

import io
import struct
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import ExifTags, Image
from torchvision.transforms import v2

from cifnet_pl.images.image import EncodedImage, UnreadableImage, read_square, square
from tests.images.contents import bomb, file_of


def smooth(width: int, height: int) -> Image.Image:
    """Waves and gradients: an image with detail, but none at the scale of one pixel."""
    y, x = np.mgrid[0:height, 0:width] / 9.0
    planes = [np.sin(x) * np.cos(y), np.sin(x + 2 * y), np.cos(x / 3 - y / 2)]
    return Image.fromarray((127.5 + 120 * np.stack(planes, axis=2)).astype(np.uint8))


def reference(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """The usual evaluation transform: short side resized, centre cropped."""
    short = round(size / crop_ratio)
    resize = v2.Resize(short, v2.InterpolationMode.BICUBIC, antialias=True)
    return np.asarray(v2.CenterCrop(size)(resize(image)))


def difference(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - two.astype(int))


@given(st.integers(2, 90), st.integers(1, 64))
def test_square_images_as_torchvision_resizes_them(side: int, size: int) -> None:
    draw = np.random.default_rng(side)
    image = Image.fromarray(draw.integers(0, 256, (side, side, 3), np.uint8))
    assert difference(square(image, size), reference(image, size)).max() <= 1


@pytest.mark.parametrize(
    ("width", "height", "size", "crop_ratio"), [(150, 100, 32, 1), (97, 240, 28, 0.875)]
)
def test_other_shapes_up_to_half_a_pixel(width, height, size, crop_ratio):
    """The transform rounds the long side and the crop's corner; one step need not."""
    image = smooth(width, height)
    exact = square(image, size, crop_ratio)
    rounded = reference(image, size, crop_ratio)
    steps = [np.abs(np.diff(exact.astype(int), axis=axis)) for axis in (0, 1)]
    steepest = max(step.max() for step in steps)
    assert difference(exact, rounded).max() <= steepest
    assert difference(exact, rounded).mean() <= 0.5 * steepest


@pytest.mark.parametrize(("width", "height"), [(1, 20000), (900, 3), (1, 1)])
def test_elongated_images_show_their_centre(width: int, height: int) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    top, left = (max(side // 2 - 4, 0) for side in (height, width))
    pixels[top : height // 2 + 4, left : width // 2 + 4] = 200
    result = square(Image.fromarray(pixels), 8)
    assert result.shape == (8, 8, 3)
    assert result[4, 4].tolist() == [200, 200, 200]


COLOURS = {
    "red": (255, 0, 0),
    "green": (0, 255, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
}


def corners(image: np.ndarray) -> list[str]:
    """Colour names of the four corners, clockwise from the upper left."""
    found = image[[0, 0, -1, -1], [0, -1, -1, 0]].astype(int)
    distances = np.abs(found[:, None] - np.array([*COLOURS.values()])).sum(axis=-1)
    return [[*COLOURS][nearest] for nearest in distances.argmin(axis=1)]


def quadrants() -> Image.Image:
    red, green, blue, yellow = COLOURS.values()
    small = np.array([[red, green], [yellow, blue]], dtype=np.uint8)
    return Image.fromarray(small.repeat(16, axis=0).repeat(16, axis=1))


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


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_exif_orientation_is_applied(kind: str) -> None:
    """Numbers outside the standard are upright."""
    for orientation in range(10):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        content = file_of(quadrants(), kind, exif=exif)
        assert corners(read_square(content, 8)) == SHOWN.get(orientation, SHOWN[1])


def test_sideways_image_is_cropped_after_turning() -> None:
    """A portrait stored as 60x30 has the centre of the upright 30x60 image."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    stored = smooth(60, 30)
    upright = square(stored.rotate(-90, expand=True), 10)
    turned = read_square(file_of(stored, "PNG", exif=exif), 10)
    assert difference(turned, upright).max() <= 1


def reopened(image: Image.Image, kind: str, **options: object) -> Image.Image:
    """What a file of this format gives back."""
    return Image.open(io.BytesIO(file_of(image, kind, **options)))


def palette() -> Image.Image:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 10, 10])
    return image


def plain(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (8, 8), colour)  # type: ignore[arg-type]


WHITE = [255] * 3
CLEAR = plain("RGBA", (10, 20, 30, 0))
DEEP = Image.frombytes("I;16B", (12, 12), struct.pack(">H", 51400) * 144)
CMYK = plain("RGB", (200, 40, 90)).convert("CMYK")
MODES: dict[str, tuple[Image.Image, list[int]]] = {
    "16 bit big endian": (DEEP, [200] * 3),
    "CMYK": (reopened(CMYK, "JPEG", quality=100), [200, 40, 90]),
    "clear": (CLEAR, WHITE),
    "half clear": (plain("RGBA", (0, 0, 0, 128)), [127] * 3),
    "clear, premultiplied": (CLEAR.convert("RGBa"), WHITE),
    "opaque, premultiplied": (plain("La", (60, 255)), [60] * 3),
    "palette PNG": (reopened(palette(), "PNG"), [200, 10, 10]),
    "clear palette PNG": (reopened(palette(), "PNG", transparency=1), WHITE),
    "grey that is clear": (reopened(plain("L", 7), "PNG", transparency=7), WHITE),
}


@pytest.mark.parametrize(("image", "expected"), MODES.values(), ids=MODES)
def test_modes(image: Image.Image, expected: list[int]) -> None:
    most = 3 if image.mode == "CMYK" else 1
    assert np.abs(square(image, 4)[2, 2].astype(int) - expected).max() <= most


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_divided_by_256(format: str) -> None:
    values = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    content = file_of(Image.fromarray(values), format)
    square = read_square(content, 8)
    assert (square == (values // 256)[..., None]).all()
    thumbnail = EncodedImage(content).look().thumbnail
    assert np.abs(thumbnail[..., 0].astype(int) - square[..., 0]).max() <= 1


@pytest.mark.parametrize(
    "pixels",
    [
        np.linspace(276, 318, 64, dtype=np.float32).reshape(8, 8),  # kelvin
        np.arange(64, dtype=np.int32).reshape(8, 8),
    ],
)
def test_other_numbers_are_unreadable(pixels: np.ndarray, tmp_path) -> None:
    path = tmp_path / "a.tif"
    path.write_bytes(file_of(Image.fromarray(pixels), "TIFF"))
    with pytest.raises(UnreadableImage, match="convert them to 8 or 16 bits"):
        read_square(path, 8)
    assert EncodedImage(path).look().thumbnail is None


def test_an_image_of_too_many_pixels_is_refused() -> None:
    with pytest.raises(UnreadableImage, match="pixels"):
        read_square(bomb(), 8)


def heic() -> bytes:
    """An image with a red upper and a blue lower half."""
    pillow_heif = pytest.importorskip("pillow_heif")
    halves = np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8).repeat(32, axis=0)
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(halves.repeat(64, axis=1))).save(file)
    return file.getvalue()


def test_decoded_whatever_its_name(tmp_path):
    (tmp_path / "really heic.jpg").write_bytes(heic())
    square = read_square(tmp_path / "really heic.jpg", 8).astype(int)
    assert square[1, 4, 0] > 200 > 50 > square[1, 4, 2]
    assert square[6, 4, 2] > 200 > 50 > square[6, 4, 0]


def test_without_the_package_the_sentence_names_it(monkeypatch: pytest.MonkeyPatch):
    content = heic()
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(UnreadableImage, match=r"pip install 'cifnet_pl\[heic\]'"):
        read_square(content, 8)


FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "JPEG2000", "ICO"]


@cache
def encoded(kind: str) -> bytes:
    """A small image in a file format, with an EXIF orientation where there is room for one."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    options = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    return file_of(Image.fromarray(pixels), kind, **options)


@pytest.mark.parametrize("kind", FORMATS)
def test_half_a_file_is_unreadable(kind: str) -> None:
    content = encoded(kind)
    with pytest.raises(UnreadableImage):
        read_square(content[: len(content) // 2], 8)


@settings(max_examples=max(100, settings().max_examples))
@given(st.sampled_from(FORMATS), st.data())
@pytest.mark.filterwarnings("ignore")
def test_damaged_images(kind: str, data: st.DataObject):
    """With a few bytes changed, an image is decoded to a square, or refused as unreadable."""
    content = bytearray(encoded(kind))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        some = data.draw(st.binary(min_size=1, max_size=4))
        if data.draw(st.booleans()):
            content[at : at + len(some)] = some
        else:
            del content[at : at + data.draw(st.integers(1, 50))]
    try:
        assert read_square(bytes(content), 8).shape == (8, 8, 3)
    except UnreadableImage:
        return
