"""Which images are found in folders, patterns and Zip archives, and what an attacker may put into
these.
"""

import glob
import io
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources.folders import folder
from cifnet_pl.images import files as image_files
from cifnet_pl.images.files import find_images, is_folder, links_upwards
from cifnet_pl.images.image import UnreadableImage, read_square
from cifnet_pl.images.reader import decode_images
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_images

NAMES = [
    "a.jpg",
    "b/c.png",
    "b/d.txt",
    "b/e/f.JPEG",
    "b/e/g.gif",
    ".hidden/h.png",
    "b/.i.png",
    "j",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def relative(tree: Path, source: str) -> list[str]:
    return [path.relative_to(tree).as_posix() for path in find_images(source)]


def test_folders(tree: Path):
    assert relative(tree, str(tree)) == ["a.jpg", "b/c.png", "b/e/f.JPEG", "b/e/g.gif"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*.jpg",
        "**/*.png",
        "b/*",
        "b/*/*",
        "b/**",
        "**",
        "*/*.png",
        "b/e/[fg].*",
        "?/c.*",
    ],
)
def test_patterns_as_the_shell_has_them(tree: Path, pattern: str):
    result = {
        Path(name).as_posix()
        for name in glob.glob(pattern, root_dir=tree, recursive=True)
    }
    images_of = {"a.jpg", "b/c.png", "b/e/f.JPEG", "b/e/g.gif"}
    assert set(relative(tree, str(tree / pattern))) == result & images_of


def test_circles_are_entered_once(tree: Path):
    (tree / "b" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "b" / "again").symlink_to(tree / "b" / "e", target_is_directory=True)
    assert len(relative(tree, str(tree))) == 4
    assert len(relative(tree, str(tree / "**" / "*"))) == 4
    assert [links_upwards(tree / "b" / name) for name in ("loop", "again")] == [
        True,
        False,
    ]
    (tree / "b" / "e" / "up").symlink_to("..", target_is_directory=True)
    assert relative(tree, str(tree / "b" / "e")) == [
        "b/e/f.JPEG",
        "b/e/g.gif",
    ]  # not those of the folder above


# ---------------------------------------------------------------------- archives


def pack(root: Path, target: Path, prefix: str = "") -> Path:
    """A Zip archive of everything below ``root``."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*")):
            if path.is_file():
                archive.write(path, prefix + path.relative_to(root).as_posix())
    return target


def archive_of(target: Path, *names: str, content: bytes = b"") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return target


@pytest.mark.parametrize("prefix", ["", "my images/"])
def test_the_same_source_as_the_folder(tmp_path: Path, prefix: str):
    images = make_images(tmp_path / "images", ["ant", "bee"], 6)
    (images / "ant" / "deeper").mkdir()
    (images / "ant" / "0.png").rename(images / "ant" / "deeper" / "0.png")
    (images / "notes.txt").write_text("no image")
    packed = pack(images, tmp_path / "images.ZIP", prefix)
    plain = folder(SourceOptions(images))
    zipped = folder(SourceOptions(packed))
    assert zipped.class_names == plain.class_names
    for ours, theirs in ((zipped.train, plain.train), (zipped.val, plain.val)):
        assert list(ours.names) == list(theirs.names)
        assert ours.labels.tolist() == theirs.labels.tolist()
        for row in range(len(ours)):
            assert ours.content_hash(row) == theirs.content_hash(row)
            assert np.array_equal(
                ours.image(row).square(8), theirs.image(row).square(8)
            )
            assert len({ours.change_stamp(row) for row in range(len(ours))}) == len(
                ours
            )


def test_images_are_found_and_decoded_in_place(tmp_path: Path):
    images = make_images(tmp_path / "images", ["ant", "bee"], 3)
    packed = pack(images, tmp_path / "shots.zip")
    before = sorted(tmp_path.rglob("*"))
    result = list(find_images(str(packed)))
    assert result == [
        packed / path.relative_to(images) for path in sorted(images.rglob("*.png"))
    ]
    assert list(find_images(str(packed / "bee"))) == result[3:]
    assert list(find_images(str(result[0]))) == result[:1]
    (batch,) = decode_images(result, 8, 1.0)
    assert batch.unreadable == (None,) * 6
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked
    with pytest.raises(DataError, match="no file or folder"):
        find_images(str(packed / "cat"))


def _link(target: Path) -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        entry = zipfile.ZipInfo("ant/1.png")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    return target


def _packed_by(method: int) -> Callable[[Path], None]:
    """Return what packs a file by a method."""

    def pack_one(target: Path) -> None:
        with zipfile.ZipFile(target, "w", method) as archive:
            archive.writestr("ant/1.png", b"x" * 1000)

    return pack_one


def _cut(target: Path) -> Path:
    archive_of(target, "ant/1.png", content=b"x" * 1000)
    target.write_bytes(target.read_bytes()[:500])
    return target


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (
            lambda path: archive_of(path, "ant/1.png", "../evil.png"),
            "names a file outside of itself",
        ),
        (
            lambda path: archive_of(path, "/etc/evil.png"),
            "names a file outside of itself",
        ),
        (
            lambda path: archive_of(path, "C:/evil.png"),
            "names a file outside of itself",
        ),
        (
            lambda path: archive_of(path, "ant\\..\\..\\evil.png"),
            "names a file outside of itself",
        ),
        (_link, "holds a link"),
        (_packed_by(zipfile.ZIP_BZIP2), "use deflate"),
        (_packed_by(zipfile.ZIP_LZMA), "use deflate"),
        (_cut, "cannot read archive"),
        (lambda path: path.write_bytes(b"no archive"), "cannot read archive"),
    ],
    ids=[
        "up",
        "absolute",
        "drive",
        "backslash",
        "link",
        "bzip2",
        "lzma",
        "cut",
        "no archive",
    ],
)
def test_hostile_and_damaged_archives_are_refused(
    tmp_path: Path, make: Callable[[Path], object], fragment: str
):
    make(tmp_path / "x.zip")
    with pytest.raises(DataError, match=fragment):
        is_folder(tmp_path / "x.zip")


def test_a_bomb_is_an_unreadable_image_and_costs_no_more_than_the_bound(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(image_files, "FILE_BYTES_LIMIT", 2**20)
    packed = tmp_path / "bomb.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("ant/1.png", bytes(50 * 2**20))
    assert packed.stat().st_size < 2**17
    with pytest.raises(UnreadableImage, match="larger than 1 MB"):
        read_square(packed / "ant" / "1.png", 8)


def test_damage_within_an_archive_is_an_unreadable_image(tmp_path: Path):
    buffer = io.BytesIO()
    Image.new("RGB", (20, 20), "red").save(buffer, "png")
    packed = archive_of(tmp_path / "x.zip", "ant/1.png", content=buffer.getvalue())
    content = bytearray(packed.read_bytes())
    content[60] ^= 1
    packed.write_bytes(content)
    with pytest.raises(UnreadableImage, match="cannot read archive"):
        read_square(packed / "ant" / "1.png", 8)
    with pytest.raises(UnreadableImage, match=r"2\.png"):
        read_square(packed / "ant" / "2.png", 8)


def test_hidden_files_and_those_of_macos_are_passed_over(tmp_path: Path):
    packed = archive_of(
        tmp_path / "x.zip",
        "ant/1.png",
        "__MACOSX/ant/._1.png",
        "ant/.DS_Store",
        ".git/2.png",
    )
    assert list(find_images(str(packed))) == [packed / "ant" / "1.png"]
