"""Held-out splits in whole groups: sub-folders, names, days, bursts, near-duplicates."""

import io
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.splitting import held_out, held_out_together
from cifnet_pl.images.reader import look_at_image, look_at_images
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import BUFFER, learned, make_images
from tests.images.test_duplicates import scene, shelf

START = datetime(2025, 5, 3, 10, 0, 0)


def image(
    path: Path, taken: datetime | None = None, tag: int = ExifTags.Base.DateTimeOriginal
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken is not None:
        part = (
            exif.get_ifd(ExifTags.IFD.Exif) if tag != ExifTags.Base.DateTime else exif
        )
        part[tag] = taken.strftime("%Y:%m:%d %H:%M:%S")
    Image.new("RGB", (8, 8)).save(path, exif=exif)


def split(
    root: Path, group: str, fraction: float = 0.25
) -> tuple[list[str], list[str]]:
    source = build_source("folder", SourceOptions(root, fraction, 0, group=group))
    return list(source.train.names), list(source.test.names)


def whole(train: list[str], val: list[str], key) -> None:
    """No group is in both parts, and both have images."""
    assert train
    assert val
    assert not {key(name) for name in train} & {key(name) for name in val}


def test_sub_folders(tmp_path: Path):
    for class_name in ("ant", "bee"):
        for number in range(8):
            for i in range(4):
                image(tmp_path / class_name / f"shelf {number}" / f"{i}.jpg")
    train, val = split(tmp_path, "folder")
    whole(train, val, lambda name: name.rsplit("/", 1)[0])
    assert len(val) == 16  # two of eight shelves of each class
    assert split(tmp_path, "folder") == (train, val)


def test_names(tmp_path: Path):
    for i in range(24):
        image(tmp_path / "ant" / f"IMG_{i // 3:03}_{i % 3}.jpg")
        image(tmp_path / "bee" / f"IMG_{i // 3:03}_{i % 3}.jpg")
    train, val = split(tmp_path, r"name:IMG_(\d+)")
    whole(train, val, lambda name: name.split("_")[0] + name.split("_")[1])
    assert len(val) == 12


def test_images_without_a_date_stand_alone(tmp_path: Path):
    for i in range(12):
        image(tmp_path / "ant" / f"{i}.jpg")
        image(tmp_path / "bee" / f"{i}.jpg")
    (tmp_path / "ant" / "broken.jpg").write_bytes(b"no image")
    assert look_at_image(tmp_path / "ant" / "broken.jpg").taken is None
    train, val = split(tmp_path, "day")
    assert (len(train), len(val)) == (19, 6)


@pytest.mark.parametrize("group", ["day", "burst", "folder", "name:shelf(.)"])
def test_images_of_no_group_are_told(tmp_path: Path, group: str):
    """Else a random split, which flatters, passes for one by groups."""
    options = SourceOptions(tmp_path, 0.25, 0, group=group)
    for i in range(12):
        image(tmp_path / "ant" / f"{i}.jpg")
    (said,) = build_source("folder", options).notes
    assert said.startswith("note: 12 of 12 images in no group by --data.group")
    for i in range(8):
        shelf_of_image = tmp_path / "ant" / f"shelf{i // 2}"
        taken = START + timedelta(days=i // 2)
        image(shelf_of_image / f"shelf{i // 2} {i}.jpg", taken)
    (said,) = build_source("folder", options).notes
    assert said.startswith("note: 12 of 20 images")


def test_a_class_of_one_group_is_learned_and_untested(tmp_path: Path):
    for i in range(6):
        image(tmp_path / "ant" / "only" / f"{i}.jpg")
        image(tmp_path / "bee" / f"s{i}" / "1.jpg")
    train, val = split(tmp_path, "folder")
    assert {name.split("/")[0] for name in val} == {"bee"}
    assert sum(name.startswith("ant") for name in train) == 6
    notes = build_source(
        "folder", SourceOptions(tmp_path, 0.25, 0, group="folder")
    ).notes
    assert (
        "note: all images of ant are one group by --data.group folder, so that none is"
        " held out" in notes
    )
    notes = build_source(
        "folder", SourceOptions(tmp_path, 0.25, 0, group="name:")
    ).notes
    assert "all images of ant, bee are one group by --data.group name:, so" in notes[0]


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
        build_source(source, SourceOptions(tmp_path, group=group))


def test_a_run_holds_groups_out_and_its_model_lives_on(tmp_path: Path):
    images = make_images(tmp_path / "images", ["ant", "bee"], 16)
    data = [
        "--data.source",
        "folder",
        "--data.root",
        str(images),
        "--data.group",
        r"name:^(\d)",
    ]
    model = ["--model.head", "RidgeHead", *BUFFER, "--model.calibrate", "true"]
    run = learned(tmp_path, *data, *model)
    assert (
        main(["export", "--model", str(run), "--output", str(tmp_path / "model")]) == 0
    )
    model = cifnet_pl.load(tmp_path / "model")
    assert model.held_out is None
    source = build_source("folder", SourceOptions(images, group=r"name:^(\d)"))
    names = [
        *source.train.names,
        *source.test.names,
    ]  # those held out are learned after the score
    assert sum(model.counts.values()) == len(names)
    assert model.calibration.estimate_kind == "given"
    given = {name.rpartition("/")[0] + name.rpartition("/")[2][0] for name in names}
    assert len(model.buffer.group.unique()) == len(given) < len(names)


# ---------------------------------------------------------------------- near-duplicates


def test_a_folder_is_divided_in_whole_groups(tmp_path: Path):
    """By default; single images only if that is asked for."""
    shelf(tmp_path / "cup", 10, 4)
    source = build_source("folder", SourceOptions(tmp_path))
    train, val = (
        {name.split("-")[0] for name in split.names}
        for split in (source.train, source.test)
    )
    assert len(val) == 2
    assert not train & val
    single = build_source("folder", SourceOptions(tmp_path, group="single"))
    names = sorted([*single.train.names, *single.test.names])
    assert set(single.test.names) == {
        n for n, held in zip(names, held_out(names, 0.2, 0), strict=True) if held
    }
    assert {name.split("-")[0] for name in single.test.names} & {
        name.split("-")[0] for name in single.train.names
    }


@pytest.mark.parametrize(("moments", "shots"), [(30, 1), (1, 10), (2, 10)])
def test_images_that_cannot_be_divided_in_groups_are_divided_one_by_one(
    tmp_path: Path, moments: int, shots: int
):
    """There are no near-duplicates, or all are, or half of all would be held out for a fifth."""
    if shots == 1:
        files = shelf(tmp_path, moments, min(shots, 10))
    else:
        files = []
    for moment in range(moments if not files else 0):
        for shot in range(shots):
            again = io.BytesIO()
            scene(moment).save(again, "JPEG", quality=60 + 3 * shot)
            (tmp_path / f"{moment}-{shot}.jpg").write_bytes(again.getvalue())
    files = sorted(tmp_path.iterdir())
    names = [file.name for file in files]
    assert (
        held_out_together(names, look_at_images(files), 0.2, 3).tolist()
        == held_out(names, 0.2, 3).tolist()
    )
