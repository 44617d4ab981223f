"""Whole pixels are read whatever the metadata beside them is; and colours as profiles say."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from cifnet_pl.images.image import (
    EncodedImage,
    UnreadableImage,
    read_square,
)

BROKEN_EXIF = {
    "garbage": b"Exif\0\0" + bytes(range(200)),
    "cut off": b"Exif\0\0II*\0\x08\0\0\0\x09",
    "beyond its end": b"Exif\0\0II*\0\xff\xff\xff\x7f",
    "empty": b"",
}
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)


def encoded(format: str, **options: object) -> bytes:
    """Return a lossless image of ``PIXELS``."""
    content = io.BytesIO()
    Image.fromarray(PIXELS).save(content, format, **options)
    return content.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def with_chunk(added: bytes, last: bool = False) -> bytes:
    """Return a PNG file with another chunk, after the header or before the end."""
    content = encoded("PNG")
    position = -12 if last else len(PNG_SIGNATURE) + 25
    return content[:position] + added + content[position:]


def assert_read(content: bytes) -> None:
    """The pixels are read, and no warning is shown."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.filterwarnings("default")
        warnings.filterwarnings("ignore", module=r"PIL\.")
        assert (read_square(content, 6) == PIXELS).all()
        assert EncodedImage(content).look().thumbnail is not None
    assert shown == []


@pytest.mark.parametrize("exif", BROKEN_EXIF.values(), ids=BROKEN_EXIF)
@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_damaged_exif_is_no_damage_of_the_image(format: str, exif: bytes) -> None:
    if format == "TIFF":
        assert_read(encoded("TIFF"))
        return
    options = {"lossless": True} if format == "WEBP" else {}
    assert_read(encoded(format, exif=exif, **options))


CHUNKS = {
    "a long text": chunk(b"tEXt", b"Comment\0" + b"x" * 2**21),
    "a text that inflates": chunk(
        b"zTXt", b"Comment\0\0" + zlib.compress(bytes(2**22))
    ),
    "an international text": chunk(
        b"iTXt", b"Comment\0\x01\0\0\0" + zlib.compress(bytes(2**22))
    ),
    "compressed XMP": chunk(
        b"iTXt", b"XML:com.adobe.xmp\0\x01\0\0\0" + zlib.compress(bytes(2**22))
    ),
    "a damaged text": chunk(b"zTXt", b"Comment\0\0no deflate"),
    "a text without a keyword": chunk(b"tEXt", b""),
    "a large profile": chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(2**22))),
    "a damaged profile": chunk(b"iCCP", b"p\0\0no deflate"),
    "a damaged orientation": chunk(b"zTXt", b"Raw profile type exif\0\0?"),
    "a nonsense orientation": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n9\nzz"),
}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("added", CHUNKS.values(), ids=CHUNKS)
def test_texts_and_profiles_of_png_files(added: bytes, last: bool) -> None:
    assert_read(with_chunk(added, last))


def test_a_text_that_says_the_orientation_is_kept() -> None:
    xmp = (
        b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description'
        b' tiff:Orientation="3"/></rdf:RDF></x:xmpmeta>'
    )
    content = with_chunk(chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + xmp))
    assert (read_square(content, 6) == PIXELS[::-1, ::-1]).all()


# ---------------------------------------------------------------------- formats


@pytest.mark.parametrize("format", ["EPS", "PDF", "FITS"])
def test_decoders_that_run_programs_are_never_asked(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the name of a file, Ghostscript is not started."""
    import subprocess

    def started(*arguments: object, **options: object) -> None:
        raise AssertionError(f"started {arguments}")

    monkeypatch.setattr(subprocess, "Popen", started)
    content = io.BytesIO()
    if format == "FITS":
        content.write(b"SIMPLE  =                    T".ljust(2880))
    else:
        Image.fromarray(PIXELS).save(content, format)
    with pytest.raises(UnreadableImage, match="known format"):
        read_square(content.getvalue(), 6)


# ---------------------------------------------------------------------- colours


def wide_gamut() -> bytes:
    """Return a profile that calls itself sRGB, and has other primaries."""
    profile = bytearray(
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    )
    tags = {}
    for entry in range(struct.unpack_from(">I", profile, 128)[0]):
        name, start, length = struct.unpack_from(">4sII", profile, 132 + 12 * entry)
        tags[name] = (start, length)
    red, _ = tags[b"rXYZ"]
    green, _ = tags[b"gXYZ"]
    for axis in range(3):  # mix a fifth of green into red, and red into green
        first, second = (
            struct.unpack_from(">i", profile, tag + 8 + 4 * axis)[0]
            for tag in (red, green)
        )
        struct.pack_into(">i", profile, red + 8 + 4 * axis, (6 * first - second) // 5)
        struct.pack_into(">i", profile, green + 8 + 4 * axis, (6 * second - first) // 5)
    return bytes(profile)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_colours_are_converted_to_srgb(format: str) -> None:
    options = {"lossless": True} if format == "WEBP" else {}
    profile = wide_gamut()
    converted = read_square(encoded(format, icc_profile=profile, **options), 6)
    image = Image.fromarray(PIXELS)
    expected = ImageCms.profileToProfile(
        image,
        ImageCms.ImageCmsProfile(io.BytesIO(profile)),
        ImageCms.createProfile("sRGB"),
        1,
    )
    assert np.abs(converted.astype(int) - np.asarray(expected)).max() <= 1
    assert np.abs(converted.astype(int) - PIXELS).max() > 20


@pytest.mark.parametrize(
    "profile",
    [
        ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes(),
        b"no profile",
        b"",
    ],
)
def test_srgb_and_damaged_profiles_change_nothing(profile: bytes) -> None:
    assert (read_square(encoded("PNG", icc_profile=profile), 6) == PIXELS).all()


# ---------------------------------------------------------------------- incomplete files


def jpeg(mode: str = "RGB", progressive: bool = False) -> bytes:
    """Return a JPEG file of noise."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    content = io.BytesIO()
    image = Image.fromarray(pixels).convert(mode)
    image.save(content, "JPEG", quality=90, progressive=progressive)
    return content.getvalue()


END = b"\xff\xd9"
INCOMPLETE = {
    "an end mark": lambda content: content[: len(content) // 2] + END,
    "zeros": lambda content: content[: len(content) // 2].ljust(len(content), b"\0"),
    "nothing": lambda content: content[: len(content) // 2],
}


@pytest.mark.parametrize("ending", INCOMPLETE)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_a_jpeg_file_that_is_cut_off_is_unreadable(
    ending: str, mode: str, progressive: bool
) -> None:
    content = INCOMPLETE[ending](jpeg(mode, progressive))
    for crop_ratio in (1.0, 0.9):
        with pytest.raises(UnreadableImage):
            read_square(content, 8, crop_ratio)


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_what_follows_a_whole_jpeg_file_does_not_matter(mode: str) -> None:
    whole = jpeg(mode)
    expected = read_square(whole, 8)
    for content in (whole + b"junk", whole[:-2] + b"\0\1\2" + END):
        assert np.abs(read_square(content, 8).astype(int) - expected).max() <= 8
