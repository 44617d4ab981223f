"""Refit on all images: held-out images are learned after the last evaluation, by a copy."""

import shutil

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

import cifnet_pl
from cifnet_pl.heads import CIFNetHead, RidgeHead
from cifnet_pl.learning.callbacks import HeldOutImages
from cifnet_pl.utilities.run_folders import CHECKPOINT
from tests.command_line import assert_same_model, learned, make_images
from tests.lightning_runs import digits, module, trainer
from tests.models import tensors_equal

NAMES = ["ant", "bee", "cow", "dog"]
OPTIONS = ["--data.source", "folder", "--data.classes_per_task", "2"]
RIDGE = ["--model.head", "RidgeHead"]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Ten images of each class, of which a run holds out two."""
    return make_images(tmp_path_factory.mktemp("images"), NAMES, 10)


def run(logs, images, *options):
    return learned(logs, *OPTIONS, *RIDGE, "--data.root", str(images), *options)


def test_all_images_are_learned_after_the_evaluation(images, tmp_path, capsys):
    """In one run or two: the held-out images of its first task are no part of what a run goes on
    from. A given test split is never learned.
    """
    folder = run(tmp_path / "a", images)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("Run folder")]
    assert line.endswith(" (refit on all images)")
    assert any("(8 held-out images)" in line for line in lines)
    scored = cifnet_pl.load(folder / CHECKPOINT)
    model = cifnet_pl.load(folder)
    assert set(scored.counts.values()) == {8}
    assert set(model.counts.values()) == {10}
    assert model.tasks == scored.tasks
    event = model.history[-1]
    assert (event.images, event.parents) == (8, [scored.identity])
    first = run(tmp_path / "b", images, "--data.max_tasks", "1")
    assert cifnet_pl.load(first).counts == {"ant": 10, "bee": 10}
    on = run(tmp_path / "b", images, "--ckpt_path", "last")
    assert_same_model(folder, on)
    assert tensors_equal(model.tensors(), cifnet_pl.load(on).tensors())
    everything = tmp_path / "everything"
    for part in ("train", "val"):
        shutil.copytree(images, everything / part)
    given = run(tmp_path / "c", everything)
    assert not (given / "model").exists()
    whole = cifnet_pl.load(given)
    z = torch.rand(20, model.head.in_features)
    torch.testing.assert_close(model.head(z), whole.head(z), rtol=1e-8, atol=1e-8)


def test_where_tuning_or_the_head_cannot_add_images_none_is_learned(images, tmp_path):
    options = {"source": "folder", "root": str(images), "max_tasks": 1}
    for head, more, count in ((CIFNetHead, {}, 8), (RidgeHead, {"tune": 0.2}, 6)):
        learner = module(head=head)
        logger = CSVLogger(tmp_path, head.__name__, "")
        run = trainer(tmp_path, HeldOutImages(), logger=logger)
        run.fit(learner, datamodule=digits(**options, **more))
        assert not (tmp_path / head.__name__ / "model").exists()
        assert set(learner.head.class_counts().values()) == {count}
