"""What is an image, what is hidden, and what is counted as passed over."""

import os
import re
from pathlib import Path

import pytest

import cifnet_pl.serving
from cifnet_pl.images.files import (
    SYSTEM_FOLDERS,
    PassedOver,
    find_images,
    images_below,
    is_hidden,
    read_bytes,
)
from cifnet_pl.utilities.errors import DataError
from tests.data.entrances import png


def test_the_page_skips_the_same_folders() -> None:
    page = Path(cifnet_pl.serving.__file__).parent / "page" / "page.js"
    listed = re.search(r"SYSTEM_FOLDERS = \[(.*?)\]", page.read_text(), re.DOTALL)
    assert listed is not None
    assert set(re.findall(r'"(.*?)"', listed[1])) == SYSTEM_FOLDERS


def test_ordinary_names_are_not_hidden() -> None:
    assert not is_hidden("recycle/eaDir/a.b/System/1.jpg")


@pytest.mark.timeout(120)
def test_a_walk_passes_all_entries_and_a_read_waits_for_none(tmp_path: Path) -> None:
    (tmp_path / "whole.png").write_bytes(png())
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "nowhere.png").symlink_to("gone.png")
    (tmp_path / "circle.png").symlink_to("circle.png")
    (tmp_path / "device.png").symlink_to("/dev/zero")
    names = {path.name for path in tmp_path.iterdir()}
    assert {path.name for path in find_images(tmp_path)} == names
    assert {path.name for path in find_images(tmp_path / "*.png")} == names
    for name in names - {"whole.png"}:
        with pytest.raises((OSError, DataError)):
            read_bytes(tmp_path / name)


def test_a_folder_that_cannot_be_read_ends_no_watch(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert list(images_below(gone, PassedOver(), tolerant=True)) == []
    with pytest.raises(FileNotFoundError):
        list(images_below(gone, PassedOver()))


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
    passed_over = PassedOver()
    assert list(images_below(tmp_path, passed_over)) == []
    assert passed_over.count == len(passed_over.notes()) == count
