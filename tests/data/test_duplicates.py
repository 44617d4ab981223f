"""A run learns an image once, whatever its names and the batches, and says what stands twice."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import cifnet_pl
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.duplicates import find_duplicates
from cifnet_pl.data.samples import SampleTable, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images.image import EncodedImage
from tests.command_line import (
    BUFFER,
    assert_same_model,
    checkpoint,
    learned,
    make_images,
    rows,
)

FOLDER = ["--data.source", "folder", "--data.classes_per_task", "2"]
NAMES = ["ant", "bee", "cow", "dog"]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Class folders in two parts without duplicates."""
    whole = make_images(tmp_path / "made", NAMES, 12)
    for name in NAMES:
        for i in range(12):
            target = tmp_path / "images" / ("train" if i < 9 else "val") / name
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(whole / name / f"{i}.png", target / f"{i}.png")
    return tmp_path / "images"


@pytest.fixture
def repeated(images: Path, tmp_path: Path) -> Path:
    """The same with three duplicates of a bee, an ant among the cows, and a tested ant that was
    learned.
    """
    folder = Path(shutil.copytree(images, tmp_path / "repeated"))
    for i in range(3):
        shutil.copy(
            folder / "train" / "bee" / "4.png", folder / "train" / "bee" / f"x {i}.png"
        )
    shutil.copy(
        folder / "train" / "ant" / "1.png", folder / "train" / "cow" / "wrong.png"
    )
    shutil.copy(
        folder / "train" / "ant" / "2.png", folder / "val" / "ant" / "again.png"
    )
    return folder


def run(logs: Path, root: Path, *options: str, version: int = 0) -> Path:
    return learned(logs, *FOLDER, "--data.root", str(root), *options, version=version)


def test_duplicates_are_named_and_left_out(images, repeated, tmp_path, caplog):
    (repeated / "train" / "cow" / "wrong.png").unlink()
    folder = run(tmp_path / "a", repeated, "--model.head", "RidgeHead")
    assert "bee/x 0.png, bee/x 1.png, bee/x 2.png learned already" in caplog.text
    clean = run(tmp_path / "b", images, "--model.head", "RidgeHead")
    ours = checkpoint(folder)
    theirs = checkpoint(clean)
    for key, tensor in theirs["state_dict"].items():
        assert torch.equal(tensor, ours["state_dict"][key]), key
    assert not (clean / "duplicates.csv").exists()
    told = [tuple(row.values()) for row in rows(folder / "duplicates.csv")]
    assert ("duplicate", "bee/x 2.png", "bee/4.png") in told
    assert ("training and test", "ant/again.png", "ant/2.png") in told
    assert cifnet_pl.load(folder).counts["bee"] == 9


def test_an_image_in_two_classes_is_learned_as_neither(repeated, tmp_path, caplog):
    """And where it stands three times, each of the three is named."""
    shutil.copy(
        repeated / "train" / "cow" / "wrong.png",
        repeated / "train" / "cow" / "wrong too.png",
    )
    folder = run(tmp_path / "a", repeated, "--model.head", "RidgeHead")
    said = (
        "note: ant/1.png (also in cow), cow/wrong too.png (also in ant), cow/wrong.png (also in"
        " ant) in two classes"
    )
    assert f"{said}: not learned" in caplog.text
    model = cifnet_pl.load(folder)
    assert model.counts == {"ant": 8, "bee": 9, "cow": 9, "dog": 9}
    assert (
        EncodedImage(repeated / "train" / "ant" / "1.png").hash
        not in model.images.content.tolist()
    )
    assert ("two classes", "cow/wrong too.png", "ant") in [
        tuple(row.values()) for row in rows(folder / "duplicates.csv")
    ]


def test_held_out_duplicates_are_tested_once_and_those_in_two_classes_not_at_all(
    images: Path,
) -> None:
    """Three duplicates of a held-out image are one image; each of the others is named."""
    for name in ("a.png", "b.png"):
        shutil.copy(images / "val" / "bee" / "9.png", images / "val" / "bee" / name)
    shutil.copy(images / "val" / "ant" / "10.png", images / "val" / "dog" / "wrong.png")
    shutil.copy(images / "train" / "cow" / "3.png", images / "val" / "dog" / "cow.png")
    source = build_source("folder", SourceOptions(images))
    found = find_duplicates(source, [np.arange(len(source.train))])
    train = source.train.names
    val = source.test.names
    assert found.of_originals("train") == {}
    assert [
        [val[original], *(val[row] for row in again)]
        for original, again in found.of_originals("test").items()
    ] == [["bee/9.png", "bee/a.png", "bee/b.png"]]
    two_classes = [one for one in found if one.kind == "two classes"]
    assert {val[one.row] for one in two_classes if one.part == "test"} == {
        "ant/10.png",
        "dog/wrong.png",
        "dog/cow.png",
    }
    assert [train[one.row] for one in two_classes if one.part == "train"] == [
        "cow/3.png"
    ]
    learned_out, tested_out = found.left_out(source)
    assert (int(learned_out.sum()), int(tested_out.sum())) == (1, 5)
    told = {(one.kind, one.sample, one.other) for one in found}
    assert ("two classes", "dog/wrong.png", "ant") in told
    assert ("duplicate", "bee/b.png", "bee/9.png") in told
    (task,) = CIFNetDataModule("folder", str(images), classes_per_task=4, image_size=4)
    assert sum(len(labels) for _, labels in task.test) == len(val) - 5


def test_a_run_that_goes_on_leaves_the_same_duplicates_out(
    repeated: Path, tmp_path: Path
) -> None:
    whole = run(tmp_path / "a", repeated, *BUFFER)
    run(tmp_path / "b", repeated, *BUFFER, "--data.max_tasks", "1")
    on = run(tmp_path / "b", repeated, *BUFFER, "--ckpt_path", "last")
    assert_same_model(whole, on)


def test_a_class_with_duplicates_is_cached(
    repeated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its images are not read again to compare them; classes with an image that lies in two are
    not cached.
    """
    (repeated / "train" / "cow" / "wrong.png").unlink()
    cache = [
        "--data.cache",
        "true",
        "--data.cache_folder",
        str(tmp_path / "cache"),
        *BUFFER,
    ]
    first = run(tmp_path / "a", repeated, *cache)
    read: list[str] = []
    given = SampleTable.given
    monkeypatch.setattr(
        SampleTable,
        "given",
        lambda self, row: read.append(self.names[row]) or given(self, row),
    )
    assert_same_model(first, run(tmp_path / "b", repeated, *cache))
    assert read == []


def test_samples_that_return_are_learned_once(tmp_path: Path) -> None:
    """A duplicate in a later task is the one that is left out."""
    root = make_images(tmp_path / "images", ["ant"], 6)
    shutil.copy(root / "ant" / "5.png", root / "ant" / "0 copy.png")
    source = build_source("folder", SourceOptions(root, val_fraction=0.2))
    names = list(source.train.names)
    copy = names.index("ant/0 copy.png")
    first = names.index("ant/5.png")
    for tasks in ([[first], [copy]], [[copy], [first]]):
        found = find_duplicates(source, [np.array(task) for task in tasks])
        assert found.of_originals("train") == {tasks[0][0]: tasks[1]}
