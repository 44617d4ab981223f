"""Which images are found in folders, patterns and Zip archives; what is hidden or passed over."""

import glob
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

import cifnet_pl.serving
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images import files
from cifnet_pl.images.image import UnreadableImage, read_square
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_images
from tests.data.entrances import png

IMAGES = ["a.jpg", "b/c.png", "b/e/f.JPEG", "b/e/g.gif"]
OTHERS = ["b/d.txt", ".hidden/h.png", "b/.i.png", "j"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (*IMAGES, *OTHERS):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def relative(tree: Path, source: str) -> list[str]:
    return [path.relative_to(tree).as_posix() for path in files.find_images(source)]


def test_folders(tree: Path):
    assert relative(tree, str(tree)) == IMAGES


@pytest.mark.parametrize("pattern", ["**/*.png", "b/**", "*/*.png", "b/e/[fg].*"])
def test_patterns_as_the_shell_has_them(tree: Path, pattern: str):
    by_shell = set(glob.glob(pattern, root_dir=tree, recursive=True))
    assert set(relative(tree, str(tree / pattern))) == by_shell & set(IMAGES)


def test_what_exists_is_taken_literally(tree: Path):
    odd = tree / "b [1]" / "c*"
    odd.mkdir(parents=True)
    (odd / "x.png").touch()
    (odd / "[x].png").touch()
    names = ["b [1]/c*/[x].png", "b [1]/c*/x.png"]
    assert relative(tree, str(odd)) == names
    assert relative(tree, str(odd / "*.png")) == names
    assert relative(tree, str(odd / "[x].png")) == names[:1]
    assert relative(tree, str(tree / "b*" / "c*" / "[x].png")) == names[1:]
    with pytest.raises(DataError, match="no image in"):
        files.find_images(str(odd / "*.gif"))


def test_circles_are_entered_once(tree: Path):
    (tree / "b" / "loop").symlink_to(tree, target_is_directory=True)
    (tree / "b" / "again").symlink_to(tree / "b" / "e", target_is_directory=True)
    assert len(relative(tree, str(tree))) == 4
    assert len(relative(tree, str(tree / "**" / "*"))) == 4
    (tree / "b" / "e" / "up").symlink_to("..", target_is_directory=True)
    # Not those of the folder above.
    assert relative(tree, str(tree / "b" / "e")) == ["b/e/f.JPEG", "b/e/g.gif"]


def test_the_page_skips_the_same_folders() -> None:
    page = Path(cifnet_pl.serving.__file__).parent / "page" / "page.js"
    listed = re.search(r"SYSTEM_FOLDERS = \[(.*?)\]", page.read_text(), re.DOTALL)
    assert set(re.findall(r'"(.*?)"', listed[1])) == files.SYSTEM_FOLDERS


def test_ordinary_names_are_not_hidden() -> None:
    assert not files.is_hidden("recycle/eaDir/a.b/System/1.jpg")


@pytest.mark.timeout(120)
def test_a_walk_passes_all_entries_and_a_read_waits_for_none(tmp_path: Path) -> None:
    (tmp_path / "whole.png").write_bytes(png())
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "nowhere.png").symlink_to("gone.png")
    (tmp_path / "circle.png").symlink_to("circle.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    names = {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in files.find_images(tmp_path)} == names
    assert {path.name for path in files.find_images(tmp_path / "*.png")} == names
    for name in names - {"whole.png"}:
        with pytest.raises((OSError, DataError)):
            files.read_bytes(tmp_path / name)


def test_a_folder_that_cannot_be_read_ends_no_watch(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert list(files.images_below(gone, files.PassedOver(), tolerant=True)) == []
    with pytest.raises(FileNotFoundError):
        list(files.images_below(gone, files.PassedOver()))


@pytest.mark.parametrize(
    ("name", "content", "count"),
    [
        ("a.CR2", b"raw", 1),
        ("a.bin", b"\0\0\0\x18ftypheic", 1),
        ("a.mp4", b"\0\0\0\x18ftypisom", 0),
        ("a.wav", b"RIFF\0\0\0\0WAVE", 0),
    ],
)
def test_files_that_may_be_images(tmp_path, name, content, count) -> None:
    (tmp_path / name).write_bytes(content)
    passed_over = files.PassedOver()
    assert list(files.images_below(tmp_path, passed_over)) == []
    assert passed_over.count == len(passed_over.notes()) == count


def archive_of(target: Path, *names: str, content: bytes = b"") -> Path:
    with zipfile.ZipFile(target, "w") as archive:
        for name in names:
            archive.writestr(name, content)
    return target


@pytest.mark.parametrize("base", [".", "my images"])
def test_the_same_source_as_the_folder(tmp_path: Path, base: str):
    images = make_images(tmp_path / "my images", ["ant", "bee"], 6)
    (images / "ant" / "deeper").mkdir()
    (images / "ant" / "0.png").rename(images / "ant" / "deeper" / "0.png")
    (images / "notes.txt").write_text("no image")
    root = images if base == "." else tmp_path
    packed = Path(shutil.make_archive(str(tmp_path / "x"), "zip", root, base))
    packed = packed.rename(tmp_path / "images.ZIP")
    plain = build_source("folder", SourceOptions(images))
    zipped = build_source("folder", SourceOptions(packed))
    assert zipped.class_names == plain.class_names
    for ours, theirs in ((zipped.train, plain.train), (zipped.test, plain.test)):
        rows = np.arange(len(ours))
        assert ours.names == theirs.names
        assert ours.labels.tolist() == theirs.labels.tolist()
        assert ours.hashes(rows).tolist() == theirs.hashes(rows).tolist()
        assert len({ours.change_stamp(row) for row in rows}) == len(rows)


def test_images_are_found_and_decoded_in_place(tmp_path: Path):
    images = make_images(tmp_path / "images", ["ant", "bee"], 3)
    packed = Path(shutil.make_archive(str(tmp_path / "shots"), "zip", images))
    before = sorted(tmp_path.rglob("*"))
    result = list(files.find_images(str(packed)))
    plain = sorted(images.rglob("*.png"))
    assert result == [packed / path.relative_to(images) for path in plain]
    assert list(files.find_images(str(packed / "bee"))) == result[3:]
    assert list(files.find_images(str(result[0]))) == result[:1]
    assert read_square(result[0], 8).shape == (8, 8, 3)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked
    with pytest.raises(DataError, match="no file or folder"):
        files.find_images(str(packed / "cat"))


def test_damaged_archives_are_refused(tmp_path: Path):
    whole = archive_of(tmp_path / "cut.zip", "ant/1.png", content=b"x" * 1000)
    whole.write_bytes(whole.read_bytes()[:500])
    (tmp_path / "text.zip").write_bytes(b"no archive")
    for name in ("cut.zip", "text.zip"):
        with pytest.raises(DataError, match="cannot read archive"):
            files.is_folder(tmp_path / name)


def explorer_archive(target: Path) -> Path:
    """A Zip archive as Explorer packs it on a Japanese Windows: names in cp932, no flag."""
    archive_of(target, "12/1.png", "34/1.png")
    content = target.read_bytes()
    # The second byte of each character is that of a backslash.
    for digits, name in ((b"12/1.png", "表/1.png"), (b"34/1.png", "ソ/1.png")):
        content = content.replace(digits, name.encode("cp932"))
    target.write_bytes(content)
    return target


def test_names_in_the_code_page_of_another_system(tmp_path):
    packed = explorer_archive(tmp_path / "x.zip")
    with pytest.raises(DataError, match=r"set --data\.zip_encoding"):
        files.is_folder(packed)
    files.read_names_as("no such encoding", packed)
    with pytest.raises(DataError, match=r"unknown encoding.*zip_encoding"):
        files.is_folder(packed)
    files.read_names_as("cp932", packed)
    found = list(files.find_images(packed))
    assert {image.parent.name for image in found} == {"表", "ソ"}
    assert files.read_bytes(found[0]) == b""
    # Nobody else inherits it.
    other = explorer_archive(tmp_path / "y.zip")
    with pytest.raises(DataError, match="zip_encoding"):
        files.is_folder(other)
    files.read_names_as("cp932", tmp_path)
    assert files.is_folder(other)


def test_names_of_macos_are_utf8_without_the_flag(tmp_path: Path):
    packed = archive_of(tmp_path / "x.zip", "abcd/1.png")
    content = packed.read_bytes().replace(b"abcd", "éé".encode())
    packed.write_bytes(content)
    assert list(files.find_images(packed)) == [packed / "éé" / "1.png"]


def test_folders_of_an_archive_whose_names_begin_alike(tmp_path: Path):
    """One of them looks like an archive."""
    folders = ["ant", "ant.zip", "ant bear", "antler"]
    packed = archive_of(tmp_path / "x.zip", *(f"{name}/1.png" for name in folders))
    for name in folders:
        assert list(files.find_images(packed / name)) == [packed / name / "1.png"]


def test_damage_within_an_archive_is_an_unreadable_image(tmp_path: Path):
    packed = archive_of(tmp_path / "x.zip", "ant/1.png", content=png())
    content = bytearray(packed.read_bytes())
    content[60] ^= 1
    packed.write_bytes(content)
    with pytest.raises(UnreadableImage, match="cannot read archive"):
        read_square(packed / "ant" / "1.png", 8)
    with pytest.raises(UnreadableImage, match=r"2\.png"):
        read_square(packed / "ant" / "2.png", 8)
