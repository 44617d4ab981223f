"""Whole pixels are read whatever the metadata beside them is; and colours as profiles say."""

import io
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from cifnet_pl.images.image import EncodedImage, UnreadableImage, read_square
from tests.images.contents import PNG_SIGNATURE, chunk, file_of

BROKEN_EXIF = {
    "garbage": b"Exif\0\0" + bytes(range(200)),
    "beyond its end": b"Exif\0\0II*\0\xff\xff\xff\x7f",
}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)


def encoded(format: str, **options: object) -> bytes:
    """Return a lossless image of ``PIXELS``."""
    return file_of(Image.fromarray(PIXELS), format, **options)


def with_chunk(added: bytes) -> bytes:
    """Return a PNG file with another chunk, after the header and once more before the end."""
    content = encoded("PNG")
    header = len(PNG_SIGNATURE) + 25
    return content[:header] + added + content[header:-12] + added + content[-12:]


def assert_read(content: bytes) -> None:
    """The pixels are read, and no warning is shown."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.filterwarnings("default")
        warnings.filterwarnings("ignore", module=r"PIL\.")
        assert (read_square(content, 6) == PIXELS).all()
        assert EncodedImage(content).look().thumbnail is not None
    assert shown == []


@pytest.mark.parametrize("exif", BROKEN_EXIF.values(), ids=BROKEN_EXIF)
@pytest.mark.parametrize(("format", "lossless"), [("PNG", None), ("WEBP", True)])
def test_damaged_exif_is_no_damage_of_the_image(format, lossless, exif) -> None:
    assert_read(encoded(format, exif=exif, lossless=lossless))


LONG = zlib.compress(bytes(2**22))
CHUNKS = {
    "a text that inflates": chunk(b"zTXt", b"Comment\0\0" + LONG),
    "an international text": chunk(b"iTXt", b"Comment\0\x01\0\0\0" + LONG),
    "a large profile": chunk(b"iCCP", b"p\0\0" + LONG),
    "a damaged profile": chunk(b"iCCP", b"p\0\0no deflate"),
    "a damaged orientation": chunk(b"zTXt", b"Raw profile type exif\0\0?"),
    "a nonsense orientation": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n9\nzz"),
}


@pytest.mark.parametrize("added", CHUNKS.values(), ids=CHUNKS)
def test_texts_and_profiles_of_png_files(added: bytes) -> None:
    assert_read(with_chunk(added))


@pytest.mark.parametrize("format", ["EPS", "PDF"])
def test_decoders_that_run_programs_are_never_asked(format, monkeypatch):
    """Whatever the name of a file, Ghostscript is not started."""
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(UnreadableImage, match="known format"):
        read_square(encoded(format), 6)


def exchanged_colours() -> bytes:
    """Return a profile that calls itself sRGB, and has exchanged red and green."""
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    without_red = srgb.replace(b"rXYZ", b"kept")
    return without_red.replace(b"gXYZ", b"rXYZ").replace(b"kept", b"gXYZ")


def test_colours_are_converted_to_srgb() -> None:
    profile = exchanged_colours()
    converted = read_square(encoded("PNG", icc_profile=profile), 6)
    given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
    target = ImageCms.createProfile("sRGB")
    expected = ImageCms.profileToProfile(Image.fromarray(PIXELS), given, target, 1)
    assert np.abs(converted.astype(int) - np.asarray(expected)).max() <= 1
    assert np.abs(converted.astype(int) - PIXELS).max() > 20


@pytest.mark.parametrize(
    "profile",
    [ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(), b"no profile"],
)
def test_srgb_and_damaged_profiles_change_nothing(profile: bytes) -> None:
    assert (read_square(encoded("PNG", icc_profile=profile), 6) == PIXELS).all()


def jpeg(mode: str = "RGB", progressive: bool = False) -> bytes:
    """Return a JPEG file of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).convert(mode)
    return file_of(image, "JPEG", quality=90, progressive=progressive)


END = b"\xff\xd9"
INCOMPLETE = {
    "an end mark": lambda content: content[: len(content) // 2] + END,
    "zeros": lambda content: content[: len(content) // 2].ljust(len(content), b"\0"),
}


@pytest.mark.parametrize("cut", INCOMPLETE.values(), ids=INCOMPLETE)
@pytest.mark.parametrize(
    ("mode", "progressive"),
    [("RGB", False), ("RGB", True), ("L", False), ("CMYK", False)],
)
def test_a_jpeg_file_that_is_cut_off_is_unreadable(cut, mode, progressive) -> None:
    with pytest.raises(UnreadableImage):
        read_square(cut(jpeg(mode, progressive)), 8, 0.9)


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_what_follows_a_whole_jpeg_file_does_not_matter(mode: str) -> None:
    whole = jpeg(mode)
    expected = read_square(whole, 8)
    for content in (whole + b"junk", whole[:-2] + b"\0\1\2" + END):
        assert np.abs(read_square(content, 8).astype(int) - expected).max() <= 8
