"""A run learns an image once, whatever its names and the batches, and says what stands twice."""

import shutil

import numpy as np
import pytest

from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.duplicates import find_duplicates
from cifnet_pl.heads import RidgeHead
from cifnet_pl.images.image import EncodedImage
from cifnet_pl.learning.callbacks import DuplicatesReport
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_images
from tests.data.entrances import built
from tests.lightning_runs import digits, module, trainer

NAMES = ["ant", "bee", "cow", "dog"]
COPIES = {
    "train/bee/x 0.png": "train/bee/4.png",
    "train/bee/x 1.png": "train/bee/4.png",
    "train/cow/wrong.png": "train/ant/1.png",
    "train/cow/wrong too.png": "train/ant/1.png",
    "val/ant/again.png": "train/ant/2.png",
    "val/ant/again 2.png": "train/ant/2.png",
    "val/bee/a.png": "val/bee/9.png",
    "val/dog/wrong.png": "val/ant/10.png",
    "val/dog/cow.png": "train/cow/3.png",
}
FOUND = {
    ("duplicate", "train", "bee/x 0.png", "bee/4.png"),
    ("duplicate", "train", "bee/x 1.png", "bee/4.png"),
    ("two classes", "train", "ant/1.png", "cow"),
    ("two classes", "train", "cow/wrong.png", "ant"),
    ("two classes", "train", "cow/wrong too.png", "ant"),
    ("two classes", "train", "cow/3.png", "dog"),
    ("training and test", "test", "ant/again 2.png", "ant/2.png"),
    ("duplicate", "test", "ant/again.png", "ant/again 2.png"),
    ("duplicate", "test", "bee/a.png", "bee/9.png"),
    ("two classes", "test", "ant/10.png", "dog"),
    ("two classes", "test", "dog/wrong.png", "ant"),
    ("two classes", "test", "dog/cow.png", "cow"),
}
"""Kind, part, name of the sample, and what it duplicates or the other class."""


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory):
    """Class folders in two parts with ``COPIES``."""
    folder = tmp_path_factory.mktemp("repeated")
    make_images(folder / "train", NAMES, 12)
    for name in NAMES:
        (folder / "val" / name).mkdir(parents=True)
        for i in (9, 10, 11):
            image = folder / "train" / name / f"{i}.png"
            image.rename(folder / "val" / name / f"{i}.png")
    for copy, original in COPIES.items():
        shutil.copy(folder / original, folder / copy)
    return folder


def test_duplicates_are_named_and_left_out(repeated, tmp_path, caplog):
    """One of several is learned, and of an image in two classes none."""
    data = digits(source="folder", root=str(repeated), classes_per_task=[2, 1])
    learner = module(head=RidgeHead)
    run = trainer(tmp_path, DuplicatesReport(), max_epochs=2)
    run.fit(learner, datamodule=data)
    assert "note: bee/x 0.png, bee/x 1.png, ant/again.png, bee/a.png" in caplog.text
    assert "note: ant/1.png (also in cow), cow/3.png (also in dog)" in caplog.text
    assert "in two classes: not learned" in caplog.text
    assert "note: ant/again 2.png (learned as ant/2.png) is in training" in caplog.text
    assert learner.model.counts == {"ant": 8, "bee": 9, "cow": 8}
    undecided = EncodedImage(repeated / "train" / "ant" / "1.png").hash
    assert undecided not in learner.images.content.tolist()
    assert learner.evaluation.images == 9
    run.validate(learner, datamodule=data, verbose=False)
    assert learner.evaluation.images == 9


def test_what_is_left_out_does_not_depend_on_where_a_run_stops(repeated) -> None:
    source = built("folder", repeated)
    for max_tasks in (1, 2):
        data = CIFNetDataModule(source, classes_per_task=2, max_tasks=max_tasks)
        found = find_duplicates(source, data.plan.rows)
        told = set()
        for one in found:
            part = "train" if one.row < len(source.train) else "test"
            told.add((one.kind, part, one.sample, one.other))
        assert told == FOUND
        left_out = [int(mask.sum()) for mask in found.left_out(source).values()]
        assert left_out == [6, 5]


def test_samples_that_return_are_learned_once(tmp_path) -> None:
    """A duplicate in a later task is the one that is left out."""
    root = make_images(tmp_path / "images", ["ant"], 6)
    shutil.copy(root / "ant" / "5.png", root / "ant" / "0 copy.png")
    source = built("folder", root, val_fraction=0.0)
    names = list(source.train.names)
    copy = names.index("ant/0 copy.png")
    first = names.index("ant/5.png")
    for tasks in ([[first], [copy]], [[copy], [first]]):
        (found,) = find_duplicates(source, [np.array(task) for task in tasks])
        assert [found.row] == tasks[1]
        assert found.other == names[tasks[0][0]]


def test_a_class_that_is_a_copy_of_another_is_refused(tmp_path) -> None:
    root = make_images(tmp_path / "images", ["ant", "bee"], 6)
    shutil.copytree(root / "ant", root / "cow")
    data = CIFNetDataModule(root=str(root), image_size=8, num_workers=0)
    with pytest.raises(DataError, match="every image of 'ant' is in another class"):
        next(iter(data))
