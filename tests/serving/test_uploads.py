"""Images from outside: limits, zip files that lie, other formats, names of classes."""

import io
import struct

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.images.image import FORMATS, UnreadableImage, read_square
from cifnet_pl.serving import gate
from cifnet_pl.serving.gate import Limits, checked_names, decoded, tidy, uploads
from cifnet_pl.serving.messages import RequestError
from tests.images.contents import bomb, file_of
from tests.serving.services import image, zipped

LIMITS = Limits(image_bytes=30_000, pixels=10_000, images=5, zip_bytes=100_000)


@pytest.fixture(autouse=True)
def small_limits(monkeypatch):
    """Limits that small files pass."""
    monkeypatch.setattr(gate, "LIMITS", LIMITS)


def of_zip(content):
    sent = uploads([("photos.zip", io.BytesIO(content))], 8, 1.0)
    return [(image.path, image.content) for image in sent]


def test_images_of_a_zip_file_with_their_folders():
    good = image("red", 0)
    hidden = {"__MACOSX/a/1.png": b"x", "a/.hidden.png": b"x"}
    files = {"all/a/1.png": good, "b\\2.png": good, **hidden, "top.png": good}
    result = of_zip(zipped(files))
    assert result == [("all/a/1.png", good), ("b/2.png", good), ("top.png", good)]


def test_a_file_that_is_too_large_stops_no_other():
    """Nor does a bomb in a zip file: no more of it is unpacked than says that it is too large."""
    packed = zipped({"a/bomb.png": bytes(90_000), "a/2.png": image("red", 0)})
    sent = [("1.png", noise(0, 30_001)), ("b.zip", packed)]
    files = [(name, io.BytesIO(content)) for name, content in sent]
    found = {one.path: one.unreadable for one in uploads(files, 8, 1.0)}
    large = "the file is larger than 0 MiB"
    assert found == {"1.png": large, "a/bomb.png": large, "a/2.png": None}


def lying() -> bytes:
    """A zip file whose directory says that 200,000 zeros are ten bytes."""
    content = bytearray(zipped({"a/1.png": bytes(200_000)}))
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = content.index(signature)
        content[start + place : start + place + 4] = (10).to_bytes(4, "little")
    return bytes(content)


def noise(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


LARGE = zipped({f"a/{i}.png": noise(i, 15_000) for i in range(8)})
MANY = zipped({f"a/{i}.png": b"x" * 20 for i in range(6)})
HOSTILE = {
    "large": (LARGE, 413, "send it in parts"),
    "count": (MANY, 413, "more than 5 photos"),
    "lying": (lying(), 422, "damaged"),
    "cut": (zipped({"a/1.png": image("red", 0)})[:-30], 422, "not a zip file"),
    "empty": (b"", 422, "not a zip file"),
}


@pytest.mark.parametrize(
    ("content", "status", "sentence"), HOSTILE.values(), ids=HOSTILE
)
def test_hostile_zip_files_are_refused_in_one_sentence(content, status, sentence):
    with pytest.raises(RequestError, match=sentence) as refusal:
        of_zip(content)
    assert refusal.value.status == status
    assert "\n" not in str(refusal.value)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"


def icon(side: int) -> bytes:
    """An icon that says it has 16 pixels a side, around a PNG of another size."""
    png = file_of(Image.new("1", (side, side)), "PNG")
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(png), 22)
    return struct.pack("<HHH", 0, 1, 1) + entry + png


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (bomb(101, 100), "101 × 100 pixels are more than 10,000"),
        (bomb(60_000, 60_000), "pixels"),
        (POSTSCRIPT, "no image of a known format"),
        (image("red", 0)[:600], "truncated"),
        (icon(9000), "no image of a known format"),
    ],
)
def test_images_that_are_not_decoded(content, reason):
    with pytest.raises(UnreadableImage, match=reason):
        decoded(content, 8)


def test_decoded_as_a_file_is(tmp_path):
    for kind in set(FORMATS) - {"ICO", "HEIF"}:
        content = image("green", 1, 90, kind)
        (tmp_path / "photo").write_bytes(content)
        expected = read_square(tmp_path / "photo", 8, 0.9)
        assert np.array_equal(decoded(content, 8, 0.9), expected), kind


def test_names_are_tidied_and_those_that_are_nearly_another_are_asked_about():
    names = [" banana ", "red  apple", "cafe\u0301", "a\u00a0b", "a\nb"]
    tidied = ["banana", "red apple", "caf\u00e9", "a b", "a\nb"]
    assert [tidy(name) for name in names] == tidied
    stored = checked_names(["banana "], ["Bananas", "banana"], False)
    assert stored == {"banana ": "banana"}
    alike = {"banana": "Banana", "redapple": "Red apple", "\uff42anana": "banana"}
    for name, other in alike.items():
        with pytest.raises(RequestError) as question:
            checked_names([name], ["kiwi", other], False)
        assert (question.value.status, question.value.instead) == (409, {name: other})
