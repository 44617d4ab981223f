"""Photos that are held back in whole groups: sub-folders, names, days and bursts."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.sets import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.photos.photo import DATE_CHANGED, DATE_TAKEN, EXIF_PART
from cifnet_pl.photos.reading import look_at
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import learned, make_photos

START = datetime(2025, 5, 3, 10, 0, 0)


def photo(path: Path, taken: datetime | None = None, tag: int = DATE_TAKEN) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken is not None:
        part = exif.get_ifd(EXIF_PART) if tag == DATE_TAKEN else exif
        part[tag] = taken.strftime("%Y:%m:%d %H:%M:%S")
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def split(root: Path, group: str, fraction: float = 0.25) -> tuple[list[str], list[str]]:
    source = build_source("folder", SourceOptions(root, fraction, 0, group=group))
    return list(source.train.names), list(source.val.names)


def whole(train: list[str], val: list[str], key) -> None:
    """No group is in both parts, and both have photos."""
    assert train
    assert val
    assert not {key(name) for name in train} & {key(name) for name in val}


def test_sub_folders(tmp_path: Path):
    for class_name in ("ant", "bee"):
        for shelf in range(8):
            for i in range(4):
                photo(tmp_path / class_name / f"shelf {shelf}" / f"{i}.jpg")
    train, val = split(tmp_path, "folder")
    whole(train, val, lambda name: name.rsplit("/", 1)[0])
    assert len(val) == 16  # two of eight shelves of each class
    assert split(tmp_path, "folder") == (train, val)


def test_names(tmp_path: Path):
    for i in range(24):
        photo(tmp_path / "ant" / f"IMG_{i // 3:03}_{i % 3}.jpg")
        photo(tmp_path / "bee" / f"IMG_{i // 3:03}_{i % 3}.jpg")
    train, val = split(tmp_path, r"name:IMG_(\d+)")
    whole(train, val, lambda name: name.split("_")[0] + name.split("_")[1])
    assert len(val) == 12


@pytest.mark.parametrize(("group", "step"), [("day", timedelta(hours=30)), ("burst", timedelta(minutes=2))])
def test_days_and_bursts(tmp_path: Path, group: str, step: timedelta):
    for class_name in ("ant", "bee"):
        for k in range(8):
            for i in range(3):
                taken = START + k * step + timedelta(seconds=4 * i)
                photo(tmp_path / class_name / f"{k}-{i}.jpg", taken, DATE_TAKEN if i else DATE_CHANGED)
    train, val = split(tmp_path, group)
    whole(train, val, lambda name: name.split("-")[0])
    assert len(val) == 12


def test_photos_without_a_date_stand_alone(tmp_path: Path):
    for i in range(12):
        photo(tmp_path / "ant" / f"{i}.jpg")
        photo(tmp_path / "bee" / f"{i}.jpg")
    (tmp_path / "ant" / "broken.jpg").write_bytes(b"no photo")
    assert look_at(tmp_path / "ant" / "broken.jpg").taken is None
    train, val = split(tmp_path, "day")
    assert (len(train), len(val)) == (19, 6)


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("day", "note: all 12 photos without a date: held back one by one"),
        ("burst", "note: all 12 photos without another one of the same burst: held back one by one"),
        ("folder", "note: all 12 photos in no sub-folder: held back one by one"),
        ("name:shelf(.)", "note: all 12 photos without a match of name:shelf(.): held back one by one"),
    ],
)
def test_photos_of_no_group_are_told(tmp_path: Path, group: str, said: str):
    """Else a random split, which flatters, passes for one by groups."""
    for i in range(12):
        photo(tmp_path / "ant" / f"{i}.jpg")
    assert build_source("folder", SourceOptions(tmp_path, 0.25, 0, group=group)).notes == (said,)
    for i in range(8):
        photo(tmp_path / "ant" / f"shelf{i // 2}" / f"shelf{i // 2} {i}.jpg", START + timedelta(days=i // 2))
    notes = build_source("folder", SourceOptions(tmp_path, 0.25, 0, group=group)).notes
    assert notes == (() if group == "burst" else (said.replace("all 12 photos", "12 photos of 20"),))


def test_a_class_of_one_group_is_learned_and_untested(tmp_path: Path):
    for i in range(6):
        photo(tmp_path / "ant" / "only" / f"{i}.jpg")
        photo(tmp_path / "bee" / f"s{i}" / "1.jpg")
    train, val = split(tmp_path, "folder")
    assert {name.split("/")[0] for name in val} == {"bee"}
    assert sum(name.startswith("ant") for name in train) == 6
    notes = build_source("folder", SourceOptions(tmp_path, 0.25, 0, group="folder")).notes
    assert "note: all photos of class ant belong together by --data.group folder, so that none is held back" in notes
    notes = build_source("folder", SourceOptions(tmp_path, 0.25, 0, group="name:")).notes
    assert "each of the classes ant, bee belong together by --data.group name:, so" in notes[0]


def test_the_share_of_photos_is_met_although_groups_are_uneven(tmp_path: Path):
    draw = np.random.default_rng(0)
    for g, size in enumerate(draw.integers(1, 9, 40)):
        for i in range(size):
            photo(tmp_path / "ant" / f"g{g}" / f"{i}.jpg")
    train, val = split(tmp_path, "folder", 0.2)
    assert 0.15 < len(val) / (len(train) + len(val)) < 0.25


@pytest.mark.parametrize(
    ("source", "group", "fragment"),
    [
        ("folder", "weekday", "unknown group"),
        ("folder", "name:(", "no regular expression"),
        ("digits", "day", "leave it"),
    ],
)
def test_refused(tmp_path: Path, source: str, group: str, fragment: str):
    photo(tmp_path / "ant" / "1.jpg")
    with pytest.raises(UsageError, match=fragment):
        build_source(source, SourceOptions(tmp_path, group=group))


def test_refused_where_the_photos_are_split_already(tmp_path: Path):
    for subset in ("train", "val"):
        photo(tmp_path / subset / "ant" / "1.jpg")
    with pytest.raises(UsageError, match="has train and val"):
        build_source("folder", SourceOptions(tmp_path, group="day"))


def test_a_run_holds_groups_back_and_its_model_lives_on(tmp_path: Path):
    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 16)
    run = learned(tmp_path, "--data.source", "folder", "--data.root", str(photos), "--model.head", "RidgeHead",
                  "--data.group", r"name:^(\d)")  # fmt: skip
    assert main(["export", "--model", str(run), "--output", str(tmp_path / "model")]) == 0
    model = cifnet_pl.load(tmp_path / "model")
    assert model.held_back is None
    source = build_source("folder", SourceOptions(photos, group=r"name:^(\d)"))
    assert sum(model.counts.values()) == len(source.train)
