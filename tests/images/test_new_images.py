"""Watch a folder: each image once, as soon as it is written, beside entries that are none."""

import errno
import os
from unittest.mock import Mock

import pytest

from cifnet_pl.images import new_images
from cifnet_pl.images.new_images import NewImages


def names(batches, looks: int) -> list[list[str]]:
    """Names of the images that some looks at a folder find."""
    found = []
    for _ in range(looks):
        look: list[str] = []
        while batch := next(batches):
            look += [image.path.name for image in batch]
        found.append(sorted(look))
    return found


@pytest.mark.timeout(120)
def test_each_image_is_found_once_it_is_written(tmp_path) -> None:
    """Special files are named and end nothing; what may be an image is told once."""
    told: list[str] = []
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "zeros.png").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "1.png").write_bytes(b"1")
    images = NewImages(tmp_path, told.append)
    batches = images.batches(2, pause=0)
    assert names(batches, 3) == [[], ["1.png"], []]
    for name in ("pipe", "zeros"):
        assert sum(f"{name}.png" in sentence for sentence in told) == 1
    for i in range(2, 5):
        (tmp_path / f"{i}.png").write_bytes(b"2")
    (tmp_path / "5.jxl").write_bytes(b"x")
    (tmp_path / "folder" / "1.png").write_bytes(b"another")
    told.clear()
    assert names(batches, 3) == [[], ["1.png", "2.png", "3.png", "4.png"], []]
    assert len(told) == 1
    assert "5.jxl" in told[0]


def test_an_image_that_cannot_be_read_is_tried_again_and_told_once(
    tmp_path, monkeypatch
):
    (tmp_path / "1.png").write_bytes(b"1")
    told: list[str] = []
    batches = NewImages(tmp_path, told.append).batches(2, pause=0, settled=False)
    away = OSError(errno.EIO, "Input/output error")
    with monkeypatch.context() as patched:
        patched.setattr(new_images, "read_bytes", Mock(side_effect=away))
        assert names(batches, 2) == [[], []]
    assert names(batches, 2) == [["1.png"], []]
    assert len(told) == 1
