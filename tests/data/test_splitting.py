"""Held-out splits in whole groups: sub-folders, names, days, bursts, near-duplicates."""

import sys
from datetime import datetime, timedelta
from itertools import compress
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.splitting import held_out, held_out_together
from cifnet_pl.images.reader import look_at_images
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import BUFFER, learned, make_images
from tests.data.entrances import built
from tests.images.test_duplicates import scene, shelf

START = datetime(2025, 5, 3, 10, 0, 0)


def image(path: Path, taken: datetime | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken is not None:
        moment = taken.strftime("%Y:%m:%d %H:%M:%S")
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = moment
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def split(root, group, fraction=0.25):
    source = built("folder", root, val_fraction=fraction, group=group)
    return list(source.train.names), list(source.test.names)


@pytest.mark.parametrize("group", ["folder", r"name:IMG_(\d+)", "day", "burst"])
def test_groups_are_whole(tmp_path: Path, group: str):
    """Of sub-folders, names, days and bursts; two of eight of each class are held out."""
    # A byte that is not UTF-8, where the file system takes such names.
    odd = "" if sys.platform == "darwin" else "\udce4"
    for name in ("ant", "bee"):
        for number in range(8):
            shelf_of_group = tmp_path / name / f"shelf {number}"
            for i in range(4):
                taken = START + timedelta(days=number, seconds=20 * i)
                image(shelf_of_group / f"IMG_{number}_{i}{odd}.jpg", taken)
    train, val = split(tmp_path, group)
    one, other = ({Path(name).parent for name in part} for part in (train, val))
    assert not one & other
    assert (len(train), len(val)) == (48, 16)
    assert split(tmp_path, group) == (train, val)


@pytest.mark.parametrize("group", ["day", "burst", "folder", "name:shelf(.)"])
def test_images_of_no_group_are_told(tmp_path: Path, group: str):
    """Else a random split, which flatters, passes for one by groups."""
    for i in range(12):
        image(tmp_path / "ant" / f"{i}.jpg")
    (said,) = built("folder", tmp_path, group=group).notes
    assert said.startswith("note: 12 of 12 images in no group by --data.group")
    for i in range(8):
        shelf_of_image = tmp_path / "ant" / f"shelf{i // 2}"
        taken = START + timedelta(days=i // 2)
        image(shelf_of_image / f"shelf{i // 2} {i}.jpg", taken)
    (said,) = built("folder", tmp_path, group=group).notes
    assert said.startswith("note: 12 of 20 images")


def test_a_class_of_one_group_is_learned_and_untested(tmp_path: Path):
    for i in range(6):
        image(tmp_path / "ant" / "only" / f"{i}.jpg")
        image(tmp_path / "bee" / f"s{i}" / "1.jpg")
    train, val = split(tmp_path, "folder")
    assert {name.split("/")[0] for name in val} == {"bee"}
    assert sum(name.startswith("ant") for name in train) == 6
    for group, names in (("folder", "ant"), ("name:", "ant, bee")):
        notes = built("folder", tmp_path, group=group).notes
        assert any(f"nothing of {names} is held out" in note for note in notes)


def test_the_share_of_images_is_met_although_groups_are_uneven(tmp_path: Path):
    draw = np.random.default_rng(0)
    for g, size in enumerate(draw.integers(1, 9, 40)):
        for i in range(size):
            image(tmp_path / "ant" / f"g{g}" / f"{i}.jpg")
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
    image(tmp_path / "ant" / "1.jpg")
    with pytest.raises(UsageError, match=fragment):
        built(source, tmp_path, group=group)


def test_a_run_holds_groups_out_and_its_model_lives_on(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee"], 16)
    line = f"--data.source folder --data.root {images} --data.group name:^(\\d)"
    line += " --model.head RidgeHead --model.calibrate true"
    run = learned(tmp_path, *line.split(), *BUFFER)
    assert "For new groups add five images a class" in capsys.readouterr().out
    bundle = tmp_path / "model"
    assert main(["export", "--model", str(run), "--output", str(bundle)]) == 0
    model = cifnet_pl.load(bundle)
    assert model.held_out is None
    # Those held out are learned after the score.
    assert sum(model.counts.values()) == 32
    assert model.calibration.estimate_kind == "given"
    assert len(model.buffer.group.unique()) == 2 * 10  # first digits of 0 to 15


def test_a_folder_is_divided_in_whole_groups(tmp_path: Path):
    """By default; single images only if that is asked for."""
    shelf(tmp_path / "cup", 10, 4)
    source = built("folder", tmp_path)
    parts = (source.train.names, source.test.names)
    train, val = ({name.split("-")[0] for name in names} for names in parts)
    assert len(val) == 2
    assert not train & val
    single = built("folder", tmp_path, group="single")
    names = [*single.train.names, *single.test.names]
    assert set(single.test.names) == set(compress(names, held_out(names, 0.2, 0)))


@pytest.mark.parametrize(("moments", "shots"), [(30, 1), (1, 10), (2, 10)])
def test_what_groups_cannot_divide_is_divided_one_by_one(tmp_path, moments, shots):
    """There are no near-duplicates, or all are, or half of all would be held out for a fifth."""
    files = []
    for moment in range(moments):
        for shot in range(shots):
            files.append(tmp_path / f"{moment}-{shot}.jpg")
            scene(moment).save(files[-1], quality=60 + 3 * shot)
    names = [file.name for file in files]
    together = held_out_together(names, look_at_images(files), 0.2, 3)
    assert together.tolist() == held_out(names, 0.2, 3).tolist()
