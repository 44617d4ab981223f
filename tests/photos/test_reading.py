"""Many photos, one after the other and by several threads: in order, with the reasons of those that cannot be read."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.photos import reading
from cifnet_pl.photos.copies import similar_groups
from cifnet_pl.photos.reading import batch_size, squares
from tests.photos.test_copies import shelf


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


@pytest.mark.parametrize("light", [0.0, math.inf])
def test_threads_change_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, light: float):
    """Photos are read by several threads if the first ones take long, and otherwise by one."""
    threads = set()

    look_at = reading.look_at

    def read(file: Path):
        threads.add(threading.get_ident())
        return look_at(file)

    monkeypatch.setattr(reading, "LIGHT", light)
    monkeypatch.setattr(reading, "look_at", read)
    files = shelf(tmp_path, 25, 3)
    (tmp_path / "5-1.jpg").write_bytes(b"")
    groups = similar_groups(reading.looks_at(files))
    assert groups[16] == -1
    assert np.delete(groups, 16).tolist() == np.delete(np.arange(75) // 3, 16).tolist()
    assert (threads == {threading.get_ident()}) == (light == math.inf)
