"""Photos from outside: limits, zip files that lie, formats that are not decoded, classes without a name."""

import io
import stat
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.photos.photo import UnreadableImage, content_hash, read_square
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.uploads import Limits, check_alike, decoded, stage, tidy, uploads
from tests.serving.services import photo, zipped

LIMITS = Limits(photo_bytes=20_000, pixels=10_000, photos=5, zip_bytes=100_000)


def of_zip(content):
    return list(uploads([("photos.zip", io.BytesIO(content))], LIMITS))


def test_photos_of_a_zip_file_with_their_folders():
    good, hidden = photo("red", 0), {"__MACOSX/a/1.png": b"x", "a/.hidden.png": b"x"}
    result = of_zip(zipped({"all/a/1.png": good, "b\\2.png": good, **hidden, "top.png": good}))
    assert result == [("all/a/1.png", good), ("b\\2.png", good), ("top.png", good)]


def linked() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        entry = zipfile.ZipInfo("a/link.png")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return out.getvalue()


def lying() -> bytes:
    """A zip file whose directory says that 200,000 zeros are ten bytes."""
    content = bytearray(zipped({"a/1.png": bytes(200_000)}))
    for signature, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        start = content.index(signature)
        content[start + place : start + place + 4] = (10).to_bytes(4, "little")
    return bytes(content)


def noise(seed: int, count: int) -> bytes:
    return np.random.default_rng(seed).bytes(count)


HOSTILE = {
    "bomb": (zipped({"a/1.png": bytes(90_000)}), 413, "100 times its size"),
    "large": (zipped({f"a/{i}.png": noise(i, 15_000) for i in range(8)}), 413, "send it in parts"),
    "many": (zipped({f"a/{i}.png": b"x" * 20 for i in range(11)}), 413, "10 entries"),
    "count": (zipped({f"a/{i}.png": b"x" * 20 for i in range(6)}), 413, "more than 5 photos"),
    "one large": (zipped({"a/1.png": noise(0, 20_001)}), 413, "larger than"),
    "parent": (zipped({"../a.png": b"x"}), 422, "outside of itself: ../a.png"),
    "parent of windows": (zipped({"a\\..\\..\\b.png": b"x"}), 422, "outside of itself"),
    "absolute": (zipped({"/etc/passwd": b"x"}), 422, "outside of itself"),
    "drive": (zipped({"C:/x.png": b"x"}), 422, "outside of itself"),
    "link": (linked(), 422, "holds a link"),
    "lying": (lying(), 422, "damaged"),
    "no zip": (b"PK\x03\x04 not a zip", 422, "not a zip file"),
    "cut": (zipped({"a/1.png": photo("red", 0)})[:-30], 422, "not a zip file"),
    "empty": (b"", 422, "not a zip file"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_zip_files_are_refused_in_one_sentence(name):
    content, status, sentence = HOSTILE[name]
    with pytest.raises(RequestError, match=sentence) as refusal:
        of_zip(content)
    assert refusal.value.status == status
    assert "\n" not in str(refusal.value)


def png_header(width: int, height: int) -> bytes:
    """A PNG file of a few bytes that says it is huge."""
    part = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\0\0\0"
    data = b"IDAT" + zlib.compress(bytes(100))
    parts = [len(p[4:]).to_bytes(4, "big") + p + zlib.crc32(p).to_bytes(4, "big") for p in (part, data, b"IEND")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (png_header(101, 100), "101 × 100 pixels are more than 10,000"),
        (png_header(60_000, 60_000), "pixels"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
        (photo("red", 0)[:600], "truncated"),
        (b"", "no image of a known format"),
    ],
)
def test_photos_that_are_not_decoded(content, reason):
    with pytest.raises(UnreadableImage, match=reason):
        decoded(content, 8, 1.0, LIMITS)


def test_decoded_as_a_file_is(tmp_path):
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        content = photo("green", 1, 90, kind)
        (tmp_path / "photo").write_bytes(content)
        limits = Limits(photo_bytes=10**6)
        assert np.array_equal(decoded(content, 8, 0.9, limits)[0], read_square(tmp_path / "photo", 8, 0.9)), kind


def staged(photos, class_name, folder):
    folder.mkdir()
    return stage(photos, class_name, folder, lambda content: decoded(content, 8, 1.0, LIMITS)[1])


def test_staged_by_content(tmp_path):
    """The same photo twice is one; names from outside are no file's name; the unreadable ones are named."""
    a, b = photo("red", 0), photo("red", 1)
    sent = [("x/cat/1.png", a), ("cat\\2.png", a), ("../../dog/x.png", b), ("dog/bad.png", b"no")]
    result = staged(sent, None, tmp_path / "in")
    assert (result.names, result.files.labels.tolist()) == (["cat", "dog"], [0, 1])
    assert result.unreadable == [("dog/bad.png", "no image of a known format")]
    assert {len(path.name) for path in result.folder.iterdir()} == {68}
    assert [Image.open(result.folder / one.file).size for one in result.photos] == [(24, 24)] * 2
    result.remove()
    assert not (tmp_path / "in").exists()


@pytest.mark.parametrize(
    ("photos", "name", "sentence"),
    [
        ([], "a", "no photo was sent"),
        ([("1.png", photo("red", 0))], None, "1.png has no class"),
        ([("1.png", b"x"), ("2.png", b"y")], "a", "none of 2 photos can be read; the first, 1.png"),
        ([("1.png", photo("red", 0))], "..", "a path for a class name"),
        ([("1.png", photo("red", 0))], "a\nb", "control characters"),
        ([("1.png", photo("red", 0))], "", "expected a text"),
    ],
)
def test_nothing_to_learn_leaves_nothing(photos, name, sentence, tmp_path):
    with pytest.raises(RequestError, match=sentence):
        staged(photos, name, tmp_path / "in")
    assert not (tmp_path / "in").exists()


def test_names_are_tidied_and_those_that_are_nearly_another_are_asked_about():
    assert [tidy(name) for name in (" banana ", "red  apple", "cafe\u0301", "a\u00a0b", "a\nb")] == [
        "banana",
        "red apple",
        "caf\u00e9",
        "a b",
        "a\nb",
    ]
    check_alike("banana", ["Bananas", "banana"])
    for name, other in (("banana", "Banana"), ("redapple", "Red apple"), ("\uff42anana", "banana")):
        with pytest.raises(Question) as question:
            check_alike(name, ["kiwi", other])
        assert (question.value.status, question.value.instead) == (409, other)


def test_what_may_be_a_mistake_is_asked_about(tmp_path):
    """Several folders under one name; a photo in two classes of a request, or learned as another class before."""
    a, b = photo("red", 0), photo("red", 1)
    folders = staged([("top/apple/1.png", a), ("top/pear/2.png", b)], "fruit", tmp_path / "folders")
    with pytest.raises(Question, match="from 2 folders"):
        folders.ask({}, [])
    one = staged([("apple/1.png", a), ("2.png", b)], "fruit", tmp_path / "one")
    one.ask({content_hash(a): ["fruit"]}, ["fruit"])
    with pytest.raises(Question, match="1 photo is of another class, too"):
        one.ask({content_hash(a): ["kiwi"]}, ["kiwi"])
    both = staged([("x/1.png", a), ("y/2.png", a)], None, tmp_path / "both")
    with pytest.raises(Question, match="another class"):
        both.ask({}, [])
    with pytest.raises(Question, match="'x' differs from the class 'X'"):
        staged([("X /1.png", a), ("x/2.png", b)], None, tmp_path / "alike").ask({}, [])
