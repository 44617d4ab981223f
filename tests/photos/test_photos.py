"""Finding photos: what is one, in which order, and which patterns match."""

import glob
import io
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from cifnet_pl.photos import files as walk
from cifnet_pl.photos.files import find_photos, matches
from cifnet_pl.photos.photo import UnreadableImage, read_square
from cifnet_pl.photos.reading import batch_size, squares
from cifnet_pl.utilities.errors import DataError

NAMES = ["a.jpg", "b/c.png", "b/d.txt", "b/e/f.JPEG", "b/e/g.gif", ".hidden/h.png", "b/.i.png", "j"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def relative(tree: Path, source: str) -> list[str]:
    return [path.relative_to(tree).as_posix() for path in find_photos(source)]


def test_folders(tree: Path):
    assert relative(tree, str(tree)) == ["a.jpg", "b/c.png", "b/e/f.JPEG", "b/e/g.gif"]


def test_one_file_of_any_name(tree: Path):
    assert relative(tree, str(tree / "j")) == ["j"]


@pytest.mark.parametrize(
    "pattern", ["*", "*.jpg", "**/*.png", "b/*", "b/*/*", "b/**", "**", "*/*.png", "b/e/[fg].*", "?/c.*"]
)
def test_patterns_as_the_shell_has_them(tree: Path, pattern: str):
    result = {Path(name).as_posix() for name in glob.glob(pattern, root_dir=tree, recursive=True)}
    photos_of = {"a.jpg", "b/c.png", "b/e/f.JPEG", "b/e/g.gif"}
    assert set(relative(tree, str(tree / pattern))) == result & photos_of


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=5),
    st.lists(st.sampled_from(["a", "b", "*", "**", "?"]), max_size=5),
)
def test_matches_is_the_regular_expression(names: list[str], pattern: list[str]):
    rules = {"*": "[ab]/", "?": "[ab]/", "**": "(?:[ab]/)*"}
    expression = "".join(rules.get(part, f"{part}/") for part in pattern)
    assert matches(names, pattern) == bool(re.fullmatch(expression, "".join(f"{name}/" for name in names)))


def test_circles_are_entered_once(tree: Path):
    (tree / "b" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "b" / "again").symlink_to(tree / "b" / "e", target_is_directory=True)
    assert len(relative(tree, str(tree))) == 4
    assert len(relative(tree, str(tree / "**" / "*"))) == 4
    (tree / "b" / "e" / "up").symlink_to("..", target_is_directory=True)
    assert relative(tree, str(tree / "b" / "e")) == ["b/e/f.JPEG", "b/e/g.gif"]  # not those of the folder above


@pytest.mark.parametrize("place", ["nowhere", "nowhere/*.jpg", "*.tif", "b/e/x*"])
def test_nothing_found(tree: Path, place: str):
    with pytest.raises(DataError, match="give a photo, a folder"):
        find_photos(str(tree / place))


def test_large_folders_come_in_sorted_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(walk, "SORTED_AT_ONCE", 5)
    for i in range(23):
        (tmp_path / f"{i:02}.png").touch()
    result = [path.name for path in find_photos(str(tmp_path))]
    assert sorted(result) == [f"{i:02}.png" for i in range(23)]
    assert all(result[i : i + 5] == sorted(result[i : i + 5]) for i in range(0, 23, 5))


def test_squares_keep_the_order_and_the_reasons(tmp_path: Path):
    files = []
    for i in range(600):
        files.append(tmp_path / f"{i}.png")
        if i % 7 == 3:
            files[-1].write_bytes(b"broken")
        else:
            Image.fromarray(np.full((3, 3, 3), i % 256, dtype=np.uint8)).save(files[-1])
    seen = []
    for batch in squares(files, 2, 1.0):
        values = iter(batch.image[:, 0, 0, 0].tolist())
        for file, reason in zip(batch.files, batch.unreadable, strict=True):
            seen.append((file, None if reason is not None else next(values)))
        assert next(values, None) is None
    assert seen == [(file, None if i % 7 == 3 else i % 256) for i, file in enumerate(files)]


def test_decoding_stops_with_its_consumer(tmp_path: Path):
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield tmp_path / "a.png"

    stream = squares(endless(), 2, 1.0)
    next(stream)
    stream.close()
    assert asked <= 4 * batch_size(2)


@pytest.mark.parametrize(
    ("size", "count"), [(2, 256), (128, 256), (224, 83), (256, 64), (512, 64), (1024, 16), (2048, 4)]
)
def test_batches_of_small_squares_are_large_and_those_of_large_ones_small(size: int, count: int):
    assert batch_size(size) == count


# ---------------------------------------------------------------------- damaged files

FORMATS = ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "JPEG2000", "ICO"]


def encoded(kind: str) -> bytes:
    """A small photo in a file format, with an EXIF orientation where there is room for one."""
    pixels = np.random.default_rng(0).integers(0, 256, (16, 12, 3), dtype=np.uint8)
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6
    extra = {"exif": exif} if kind in ("JPEG", "PNG", "WEBP", "TIFF") else {}
    Image.fromarray(pixels).save(file, kind, **extra)
    return file.getvalue()


def decode_damaged(kind: str, folder: Path, draw: st.DataObject) -> None:
    """Change a few bytes of a photo: it is decoded to a square, or refused as unreadable."""
    content = bytearray(encoded(kind))
    for _ in range(draw.draw(st.integers(1, 6))):
        at = draw.draw(st.integers(0, max(0, len(content) - 1)))
        some = draw.draw(st.binary(min_size=1, max_size=4))
        if draw.draw(st.booleans()):
            content[at : at + len(some)] = some
        else:
            del content[at : at + draw.draw(st.integers(1, 50))]
    file = folder / "photo"
    file.write_bytes(content)
    try:
        assert read_square(file, 8).shape == (8, 8, 3)
    except UnreadableImage:
        return


@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(st.data())
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_damaged_photos(kind: str, tmp_path: Path, data: st.DataObject):
    decode_damaged(kind, tmp_path, data)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.filterwarnings("ignore")
def test_thousands_of_damaged_photos(kind: str, tmp_path: Path):
    @settings(max_examples=2000, suppress_health_check=list(HealthCheck), deadline=None, derandomize=False)
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        decode_damaged(kind, tmp_path, data)

    attack()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak < 6_000_000  # kB: Pillow's limit is 179 million pixels
