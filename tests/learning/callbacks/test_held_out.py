"""Refit on all images: held-out images are learned after the last evaluation, by a copy."""

import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.utilities.run_folders import CHECKPOINT
from tests.command_line import assert_same_model, learned, make_images
from tests.models import tensors_equal

NAMES = ["ant", "bee", "cow", "dog"]
OPTIONS = ["--data.source", "folder", "--data.classes_per_task", "2"]
RIDGE = ["--model.head", "RidgeHead"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images of each class, of which a run holds out two."""
    return make_images(tmp_path_factory.mktemp("images"), NAMES, 10)


def run(logs: Path, images: Path, *options: str) -> Path:
    return learned(logs, *OPTIONS, "--data.root", str(images), *options)


def test_all_images_are_learned_after_the_evaluation(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = run(tmp_path / "a", images, *RIDGE)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("Run folder")]
    assert "40 images" in line
    assert any("(8 held-out images)" in line for line in lines)
    scored = cifnet_pl.load(folder / CHECKPOINT)
    model = cifnet_pl.load(folder)
    assert set(scored.counts.values()) == {8}
    assert set(model.counts.values()) == {10}
    assert model.tasks == scored.tasks
    assert (model.history[-1].images, model.history[-1].parents) == (
        8,
        [scored.identity],
    )
    everything = tmp_path / "everything"
    for part in ("train", "val"):
        shutil.copytree(images, everything / part)
    whole = cifnet_pl.load(run(tmp_path / "b", everything, *RIDGE))
    z = torch.rand(20, model.head.in_features)
    torch.testing.assert_close(model.head(z), whole.head(z), rtol=1e-8, atol=1e-8)


def test_a_resumed_run_equals_an_uninterrupted_one(images: Path, tmp_path: Path):
    """The held-out images of its first task are no part of what it goes on from."""
    whole = run(tmp_path / "a", images, *RIDGE)
    first = run(tmp_path / "b", images, *RIDGE, "--data.max_tasks", "1")
    assert cifnet_pl.load(first).counts == {"ant": 10, "bee": 10}
    on = run(tmp_path / "b", images, *RIDGE, "--ckpt_path", "last")
    assert_same_model(whole, on)
    ours = cifnet_pl.load(whole).tensors()
    theirs = cifnet_pl.load(on).tensors()
    assert tensors_equal(ours, theirs)


def test_a_given_test_split_is_never_learned(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for part in ("train", "val"):
        shutil.copytree(images, tmp_path / "parts" / part)
    for root, options in (
        (tmp_path / "parts", RIDGE),
        (images, [*RIDGE, "--data.tune", "0.2"]),
    ):
        folder = run(tmp_path / "logs", root, *options)
        assert not (folder / "model").exists()
        shutil.rmtree(tmp_path / "logs")
    assert "held-out" not in capsys.readouterr().out


def test_a_head_that_cannot_add_images_is_named(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = run(tmp_path, images, "--model.head", "CIFNetHead")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "refit" in line]
    assert "8 held-out images" in line
    assert "CIFNetHead" in line
    assert set(cifnet_pl.load(folder).counts.values()) == {8}
