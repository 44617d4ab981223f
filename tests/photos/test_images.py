"""One image → one square: against torchvision's transforms, over all modes, orientations and shapes."""

from __future__ import annotations

import contextlib
import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision.transforms import v2

from cifnet_pl.photos.files import is_image
from cifnet_pl.photos.photo import UPRIGHT, UnreadableImage, read_square, square, to_rgb, white_level
from cifnet_pl.utilities.text import first_line, printable


def smooth(width: int, height: int) -> Image.Image:
    """Waves and gradients: an image with detail, but none at the scale of one pixel."""
    y, x = np.mgrid[0:height, 0:width] / 9.0
    planes = [np.sin(x) * np.cos(y), np.sin(x + 2 * y), np.cos(x / 3 - y / 2)]
    return Image.fromarray((127.5 + 120 * np.stack(planes, axis=2)).astype(np.uint8))


def reference(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """The usual evaluation transform: short side resized, centre cropped."""
    short = round(size / crop_ratio)
    steps = [v2.Resize(short, v2.InterpolationMode.BICUBIC, antialias=True), v2.CenterCrop(size)]
    return np.asarray(v2.Compose(steps)(image))


def difference(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.abs(one.astype(int) - two.astype(int))


# ---------------------------------------------------------------------- against torchvision


@given(st.integers(2, 90), st.integers(1, 64))
def test_square_images_as_torchvision_resizes_them(side: int, size: int) -> None:
    noise = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    assert difference(square(image, size), reference(image, size)).max() <= 1


@pytest.mark.parametrize(("side", "size", "crop_ratio"), [(96, 28, 0.875), (192, 56, 0.875), (64, 24, 0.75)])
def test_square_images_with_a_crop(side: int, size: int, crop_ratio: float) -> None:
    image = smooth(side, side)
    assert (size / crop_ratio) % 1 == 0
    assert (side - side * crop_ratio) % 2 == 0
    assert difference(square(image, size, crop_ratio), reference(image, size, crop_ratio)).max() <= 1


@pytest.mark.parametrize(("width", "height"), [(150, 100), (100, 150), (333, 101), (97, 240)])
@pytest.mark.parametrize(("size", "crop_ratio"), [(32, 1.0), (28, 0.875)])
def test_other_shapes_up_to_half_a_pixel(width: int, height: int, size: int, crop_ratio: float) -> None:
    """The transform rounds the long side and the crop's corner to whole pixels; one step need not."""
    image = smooth(width, height)
    exact, rounded = square(image, size, crop_ratio), reference(image, size, crop_ratio)
    steepest = max(np.abs(np.diff(exact.astype(int), axis=axis)).max() for axis in (0, 1))
    assert difference(exact, rounded).max() <= steepest
    assert difference(exact, rounded).mean() <= 0.5 * steepest


@pytest.mark.parametrize(("width", "height"), [(1, 20000), (20000, 1), (3, 900), (1, 1)])
def test_elongated_images_show_their_centre(width: int, height: int) -> None:
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    pixels[max(height // 2 - 4, 0) : height // 2 + 4, max(width // 2 - 4, 0) : width // 2 + 4] = 200
    result = square(Image.fromarray(pixels), 8)
    assert result.shape == (8, 8, 3)
    assert result[4, 4].tolist() == [200, 200, 200]


def test_memory_of_an_elongated_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resizing the whole of it would make 32 x 640000 pixels out of 1 x 20000."""
    sizes = []
    resize = Image.Image.resize

    def record(image: Image.Image, size: tuple[int, int], *args: object, **kwargs: object) -> Image.Image:
        sizes.append(size)
        return resize(image, size, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Image.Image, "resize", record)
    square(Image.new("RGB", (1, 20000)), 32)
    assert sizes == [(32, 32)]


@pytest.mark.parametrize("size", [8, 25, 50, 64, 100])
@pytest.mark.parametrize("orientation", [1, 6])
def test_jpeg_decoded_at_a_fraction_is_the_same_picture(size: int, orientation: int, tmp_path: Path) -> None:
    """Of a real photo whose height no fraction divides: taken for the whole, the padding would shift the picture."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo = Image.fromarray(load_sample_images().images[0])
    assert photo.size == (640, 427)
    photo.save(tmp_path / "a.jpg", quality=95, exif=exif)
    with Image.open(tmp_path / "a.jpg") as whole:
        expected = square(whole, size)
    actual = read_square(tmp_path / "a.jpg", size)
    assert difference(actual, expected).mean() <= 1
    with Image.open(tmp_path / "a.jpg") as part:
        assert part.draft(part.mode, (2 * size, 2 * size)) is not None


# ---------------------------------------------------------------------- orientation


def corners(image: np.ndarray) -> list[str]:
    """Colour names of the four corners, clockwise from the upper left."""
    names = {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue", (255, 255, 0): "yellow"}
    actual = []
    for y, x in ((0, 0), (0, -1), (-1, -1), (-1, 0)):
        near = min(names, key=lambda colour: float(np.abs(image[y, x].astype(int) - np.array(colour)).sum()))
        actual.append(names[near])
    return actual


def quadrants() -> Image.Image:
    pixels = np.zeros((32, 32, 3), dtype=np.uint8)
    pixels[:16, :16], pixels[:16, 16:], pixels[16:, 16:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    pixels[16:, :16] = (255, 255, 0)
    return Image.fromarray(pixels)


# Where the stored image's upper left corner is to be shown, and which way round, by the EXIF standard:
# 6 means that row 0 is the right-hand side and column 0 the top, and so on.
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
@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_exif_orientation_is_applied(orientation: int, suffix: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 95} if suffix == "jpg" else {"lossless": True} if suffix == "webp" else {}
    quadrants().save(tmp_path / f"a.{suffix}", exif=exif, **options)
    assert corners(read_square(tmp_path / f"a.{suffix}", 8)) == SHOWN[orientation]


def test_sideways_photo_is_cropped_after_turning(tmp_path: Path) -> None:
    """A portrait stored as 60x30 with orientation 6: its centre is that of the upright 30x60 image."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = smooth(60, 30)
    stored.save(tmp_path / "a.png", exif=exif)
    upright = stored.rotate(-90, expand=True)
    assert upright.size == (30, 60)
    assert difference(read_square(tmp_path / "a.png", 10), square(upright, 10)).max() <= 1


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_orientation_outside_the_standard_is_upright(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    quadrants().save(tmp_path / "a.png", exif=exif)
    assert corners(read_square(tmp_path / "a.png", 8)) == SHOWN[1]
    assert orientation not in UPRIGHT


def test_a_tag_of_the_wrong_type_does_not_matter(tmp_path: Path) -> None:
    """Cameras write such tags; an image library that writes all of them anew fails on them."""
    tags = struct.pack("<HHII", 0x0103, 2, 4, int.from_bytes(b"JPG\0", "little"))  # a text where a number belongs
    tags += struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    block = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + tags + b"\0\0\0\0"
    quadrants().save(tmp_path / "a.jpg", quality=95, exif=block)
    assert corners(read_square(tmp_path / "a.jpg", 8)) == SHOWN[6]


# ---------------------------------------------------------------------- modes


def reopened(image: Image.Image, suffix: str, **options: object) -> Image.Image:
    """What a file of this format gives back."""
    file = io.BytesIO()
    image.save(file, suffix, **options)
    return Image.open(io.BytesIO(file.getvalue()))


def centre(image: Image.Image) -> list[int]:
    pixel: list[int] = square(image, 4)[2, 2].tolist()
    return pixel


def flat(value: object, dtype: object) -> Image.Image:
    return Image.fromarray(np.full((12, 12), value, dtype=dtype))  # type: ignore[call-overload]


def test_cmyk_jpeg() -> None:
    image = reopened(Image.new("RGB", (16, 16), (200, 40, 90)).convert("CMYK"), "JPEG", quality=100)
    assert image.mode == "CMYK"
    assert np.abs(np.array(centre(image)) - (200, 40, 90)).max() <= 3


@pytest.mark.parametrize("suffix", ["PNG", "TIFF"])
@pytest.mark.parametrize("value", [0, 200, 25700, 65535])
def test_sixteen_bit_grey_is_scaled_by_its_depth(suffix: str, value: int) -> None:
    """A dark 16-bit image stays dark, whatever its brightest pixel is."""
    image = reopened(flat(value, np.uint16), suffix)
    assert image.mode.startswith("I")
    assert centre(image) == [round(value / 65535 * 255)] * 3


def test_big_endian_sixteen_bit_grey() -> None:
    image = Image.frombytes("I;16B", (12, 12), struct.pack(">H", 51400) * 144)
    assert centre(image) == [200] * 3


@pytest.mark.parametrize(
    ("values", "grey"),
    [([0.0, 0.5, 1.0], 128), ([0, 100, 255], 100), ([0, 32768, 65535], 128), ([-5.0, 0.5, 1.0], 128)],
)
def test_float_tiff_by_its_range(values: list[float], grey: int) -> None:
    pixels = np.full((12, 12), values[1], dtype=np.float32)
    pixels[0, 0], pixels[0, 1] = values[0], values[2]
    image = reopened(Image.fromarray(pixels), "TIFF")
    assert image.mode == "F"
    assert abs(centre(image)[0] - grey) <= 1


def test_float_tiff_with_holes() -> None:
    pixels = np.full((12, 12), 0.25, dtype=np.float32)
    pixels[0, :3] = np.nan, np.inf, -np.inf
    rgb = np.asarray(to_rgb(reopened(Image.fromarray(pixels), "TIFF")))
    assert rgb[0, :3].max() == 0
    assert rgb[6, 6].tolist() == [64, 64, 64]


def test_thirty_two_bit_integers() -> None:
    assert white_level("I", np.array([0, 255])) == 255
    assert white_level("I", np.array([0, 256])) == 65535
    assert white_level("I", np.array([0, 10**6])) == 65535
    assert white_level("F", np.zeros((0,))) == 1
    assert centre(reopened(flat(1_000_000, np.int32), "TIFF")) == [255] * 3


def test_transparency_is_white() -> None:
    clear, half = (10, 20, 30, 0), (0, 0, 0, 128)
    assert centre(Image.new("RGBA", (8, 8), clear)) == [255] * 3
    assert abs(centre(Image.new("RGBA", (8, 8), half))[0] - 127) <= 1
    assert centre(Image.new("LA", (8, 8), (0, 0))) == [255] * 3
    assert centre(Image.new("LA", (8, 8), (77, 255))) == [77] * 3
    assert centre(Image.new("RGBA", (8, 8), clear).convert("RGBa")) == [255] * 3
    assert centre(Image.new("La", (8, 8), (60, 255))) == [60] * 3


@pytest.mark.parametrize("suffix", ["PNG", "GIF"])
def test_palette_with_a_transparent_entry(suffix: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 10, 10])
    assert centre(reopened(image, suffix)) == [200, 10, 10]
    assert centre(reopened(image, suffix, transparency=1)) == [255] * 3


def test_grey_and_rgb_with_a_transparent_colour() -> None:
    assert centre(reopened(Image.new("L", (8, 8), 7), "PNG", transparency=7)) == [255] * 3
    assert centre(reopened(Image.new("L", (8, 8), 7), "PNG", transparency=8)) == [7] * 3
    assert centre(reopened(Image.new("RGB", (8, 8), (1, 2, 3)), "PNG", transparency=(1, 2, 3))) == [255] * 3
    assert centre(reopened(Image.new("1", (8, 8), 1), "PNG")) == [255] * 3
    assert centre(reopened(Image.new("1", (8, 8), 0), "PNG", transparency=0)) == [255] * 3


@pytest.mark.parametrize("mode", ["LAB", "HSV", "YCbCr", "RGBX", "L", "1", "P", "PA", "I", "F"])
def test_any_other_mode(mode: str) -> None:
    image = Image.new("RGB", (8, 8), (90, 90, 90)).convert(mode) if mode != "LAB" else Image.new("LAB", (8, 8))
    assert square(image, 4).shape == (4, 4, 3)


def test_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    for suffix in ("GIF", "PNG", "WEBP", "TIFF"):
        image = reopened(frames[0], suffix, save_all=True, append_images=frames[1:])
        assert np.abs(np.array(centre(image)) - (250, 0, 0)).max() <= 3


# ---------------------------------------------------------------------- unreadable files


def bomb() -> bytes:
    """A PNG header that claims 50000 x 50000 pixels."""
    header = struct.pack(">IIBBBBB", 50000, 50000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + header
    data = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no image of a known format"),
        (b"just words\nin lines", "no image of a known format"),
        (bomb(), "exceeds limit"),
    ],
)
def test_unreadable(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    with pytest.raises(UnreadableImage, match=reason) as caught:
        read_square(tmp_path / "a.jpg", 8)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="No such file"):
        read_square(tmp_path / "a.jpg", 8)
    with pytest.raises(UnreadableImage, match=r"[Dd]irectory|[Pp]ermission"):
        read_square(tmp_path, 8)


@pytest.mark.parametrize("suffix", ["JPEG", "PNG", "GIF", "TIFF", "BMP", "WEBP"])
def test_truncated(suffix: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(file, suffix)
    (tmp_path / "a.jpg").write_bytes(file.getvalue()[: len(file.getvalue()) // 2])
    with pytest.raises(UnreadableImage):
        read_square(tmp_path / "a.jpg", 8)


@given(st.sampled_from(["JPEG", "PNG", "GIF", "BMP", "PPM"]), st.data())
def test_damaged_files_are_read_or_unreadable_and_nothing_else(suffix: str, data: st.DataObject) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "maker"
    smooth(20, 14).save(file, suffix, **({"exif": exif} if suffix in ("JPEG", "PNG") else {}))
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    try:
        image = Image.open(io.BytesIO(bytes(content)))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return
    with contextlib.suppress(UnreadableImage):
        assert square(image, 4).shape == (4, 4, 3)


# ---------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["a.jpg", "A.JPG", "x.y.JPeG", "ü.png", "a b.TIFF", "scan.heic"])
def test_image_names(name: str) -> None:
    assert is_image(Path(name))


@pytest.mark.parametrize("name", ["a.txt", "a", ".a.jpg", "jpg", "a.jpg.bak", "a.mp4"])
def test_other_names(name: str) -> None:
    assert not is_image(Path(name))


def test_printable() -> None:
    assert printable("a\nb\tü 🐈 \udcff\x00") == "a\\nb\\tü 🐈 \\udcff\\x00"
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
