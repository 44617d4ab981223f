"""Many images, one after the other and by several threads: in order, with the reasons of those that
cannot be read.
"""

import math
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cifnet_pl
from cifnet_pl.images import files as files_module
from cifnet_pl.images import reader as reading
from cifnet_pl.images.duplicates import similar_groups
from cifnet_pl.images.reader import decode_images, decoding_batch_size
from tests.command_line import BUFFER, learned, make_images
from tests.images.test_duplicates import shelf


def test_squares_keep_the_order_and_the_reasons(tmp_path: Path):
    files = []
    for i in range(600):
        files.append(tmp_path / f"{i}.png")
        if i % 7 == 3:
            files[-1].write_bytes(b"broken")
        else:
            Image.fromarray(np.full((3, 3, 3), i % 256, dtype=np.uint8)).save(files[-1])
    seen = []
    for batch in decode_images(files, 2, 1.0):
        values = iter(batch.images[:, 0, 0, 0].tolist())
        for file, reason in zip(batch.files, batch.unreadable, strict=True):
            seen.append((file, None if reason is not None else next(values)))
        assert next(values, None) is None
    assert seen == [
        (file, None if i % 7 == 3 else i % 256) for i, file in enumerate(files)
    ]


def test_decoding_stops_with_its_consumer(tmp_path: Path):
    Image.fromarray(np.zeros((2, 2, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield tmp_path / "a.png"

    stream = decode_images(endless(), 2, 1.0)
    next(stream)
    stream.close()
    assert asked <= 4 * decoding_batch_size(2)


@pytest.mark.parametrize(
    ("size", "count"),
    [(2, 256), (128, 256), (224, 83), (256, 64), (512, 64), (1024, 16), (2048, 4)],
)
def test_batches_of_small_squares_are_large_and_those_of_large_ones_small(
    size: int, count: int
):
    assert decoding_batch_size(size) == count


@pytest.mark.parametrize("light", [0.0, math.inf])
def test_threads_change_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: float
):
    """Images are read by several threads if the first ones take long, and otherwise by one."""
    threads = set()

    def read(file: Path) -> reading.EncodedImage:
        threads.add(threading.get_ident())
        return reading.EncodedImage(file)

    monkeypatch.setattr(reading, "SECONDS_FOR_THREADS", light)
    files = shelf(tmp_path, 25, 3)
    (tmp_path / "5-1.jpg").write_bytes(b"")
    groups = similar_groups(reading.look_at_images(files, read))
    assert groups[16] == -1
    assert np.delete(groups, 16).tolist() == np.delete(np.arange(75) // 3, 16).tolist()
    assert (threads == {threading.get_ident()}) == (light == math.inf)


@pytest.fixture
def opened(watch: Callable[..., list[str]]) -> list[str]:
    """The names of files as they were opened."""
    return watch(files_module, "open_regular", str)


def once(opened: list[str], images: Path) -> bool:
    """Return whether every image was opened once, and start to count again."""
    times = [opened.count(str(file)) for file in images.rglob("*.png")]
    opened.clear()
    return set(times) == {1}


@pytest.mark.parametrize(
    "options", [[], ["--data.group", r"name:^(\d)"], ["--data.group", "single"]]
)
def test_a_image_is_opened_once(
    tmp_path: Path, opened: list[str], options: list[str]
) -> None:
    """By fit, from disk to weights; by extend; and by forget."""
    images = make_images(tmp_path / "images", ["ant", "bee"])
    new = make_images(tmp_path / "new", ["cow", "dog"])
    opened.clear()
    folder = ["--data.source", "folder", "--data.root", str(images), *options]
    learned(tmp_path, *folder, "--model.head", "RidgeHead", *BUFFER)
    assert once(opened, images)
    model = cifnet_pl.extend(
        cifnet_pl.load(tmp_path / "default" / "version_0"), new
    ).model
    assert once(opened, new)
    cifnet_pl.forget(model, "cow", new)
    assert once(opened, new)


def test_a_image_that_is_compared_with_others_is_opened_once(
    tmp_path: Path, opened: list[str]
) -> None:
    """Folders to learn and to test with are not divided, but images of equal sizes are looked at as
    possible duplicates.
    """
    for part in ("train", "val"):
        make_images(tmp_path / "images" / part, ["ant", "bee"])
    opened.clear()
    learned(
        tmp_path,
        "--data.source",
        "folder",
        "--data.root",
        str(tmp_path / "images"),
        *BUFFER,
    )
    assert once(opened, tmp_path / "images" / "train")


def test_what_does_not_fit_into_memory_is_read_again(tmp_path, opened, monkeypatch):
    files = sorted(make_images(tmp_path, ["ant"], 3).rglob("*.png"))
    monkeypatch.setattr(reading, "HELD_BYTES", files[0].stat().st_size)
    opened.clear()
    contents = reading.ContentMemory()
    assert [contents.read(file).hash for file in files] == [
        reading.EncodedImage(contents.release(file)).hash for file in files
    ]
    assert [opened.count(str(file)) for file in files] == [1, 2, 2]
