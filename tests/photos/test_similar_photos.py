"""Photos that look alike are held back together, unless none would be left; others as if they were not looked at."""

import io
import math
import threading
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.photos import reading
from cifnet_pl.photos.copies import held_back, held_back_together, similar_groups
from tests.photos.test_groups import photo


def scene(seed: int) -> Image.Image:
    """A smooth picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((96, 72), Image.Resampling.BICUBIC)


def shelf(root: Path, moments: int, shots: int) -> list[Path]:
    """``moments`` scenes, each taken ``shots`` times: brighter each time, smaller, and saved anew."""
    root.mkdir(parents=True, exist_ok=True)
    files = []
    for moment in range(moments):
        for shot in range(shots):
            bright = scene(moment).point(lambda value, shot=shot: min(255, round(value * (1 + 0.03 * shot))))
            files.append(root / f"{moment}-{shot}.jpg")
            bright.resize((96 - 8 * shot, 72 - 6 * shot)).save(files[-1], quality=90 - 10 * shot)
    return files


def groups_of(files: list[Path]) -> np.ndarray:
    return similar_groups(reading.looks_at(files))


def test_shots_of_one_scene_are_a_group(tmp_path: Path):
    files = shelf(tmp_path, 6, 3)
    groups = groups_of(files)
    moment = np.arange(18) // 3
    assert ((groups[:, None] == groups) == (moment[:, None] == moment)).all()


def test_a_burst_is_a_group_by_its_times(tmp_path: Path):
    """A second between shots joins them, a minute does not; the pictures say nothing."""
    start = datetime(2025, 5, 3, 10)
    for i, seconds in enumerate((0, 1, 3, 60, 61, 200)):
        photo(tmp_path / f"{i}.jpg", start + timedelta(seconds=seconds))
    groups = groups_of(sorted(tmp_path.iterdir()))
    assert np.bincount(groups).tolist() == [3, 2, 1]


def test_what_is_even_stands_alone_and_what_cannot_be_read_in_no_group(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"")
    for name in "bc":
        Image.new("RGB", (40, 30), "white").save(tmp_path / f"{name}.png")
    assert reading.look_at(tmp_path / "a.jpg").thumbnail is None
    assert groups_of(sorted(tmp_path.iterdir())).tolist() == [-1, 0, 1]


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
    groups = groups_of(files)
    assert groups[16] == -1
    assert np.delete(groups, 16).tolist() == np.delete(np.arange(75) // 3, 16).tolist()
    assert (threads == {threading.get_ident()}) == (light == math.inf)


def test_a_folder_is_divided_in_whole_groups(tmp_path: Path):
    """By default; single photos only if that is asked for."""
    shelf(tmp_path / "cup", 10, 4)
    source = build_source("folder", SourceOptions(tmp_path))
    train, val = ({name.split("-")[0] for name in split.names} for split in (source.train, source.val))
    assert len(val) == 2
    assert not train & val
    single = build_source("folder", SourceOptions(tmp_path, group="single"))
    names = sorted([*single.train.names, *single.val.names])
    assert set(single.val.names) == {n for n, held in zip(names, held_back(names, 0.2, 0), strict=True) if held}
    assert {name.split("-")[0] for name in single.val.names} & {name.split("-")[0] for name in single.train.names}


@pytest.mark.parametrize(("moments", "shots"), [(30, 1), (1, 10), (2, 10)])
def test_photos_that_cannot_be_divided_in_groups_are_divided_one_by_one(tmp_path: Path, moments: int, shots: int):
    """None look alike; all do; or half of all photos would have to be held back for a fifth."""
    files = shelf(tmp_path, moments, min(shots, 10)) if shots == 1 else []
    for moment in range(moments if not files else 0):
        for shot in range(shots):
            again = io.BytesIO()
            scene(moment).save(again, "JPEG", quality=60 + 3 * shot)
            (tmp_path / f"{moment}-{shot}.jpg").write_bytes(again.getvalue())
    files = sorted(tmp_path.iterdir())
    names = [file.name for file in files]
    assert held_back_together(names, reading.looks_at(files), 0.2, 3).tolist() == held_back(names, 0.2, 3).tolist()
