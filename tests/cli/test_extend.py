"""Extending a model: the numbers of one run over everything, its scores, clear refusals."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.model.metrics import wilson_interval
from cifnet_pl.testing import assert_same_state
from tests.command_line import BUFFER, learned, make_images, run_cifnet
from tests.models import WIDTH, empty

FOLDER = "--model.backbone pixels:4 --data.source folder --data.image_size 4"


def fit(root: Path, logs: Path, *options: str) -> Path:
    """A run over ``root``; its folder."""
    given = f"{FOLDER} --data.batch_size 7 --data.root {root}"
    return learned(logs, *given.split(), *options)


def queries() -> torch.Tensor:
    return torch.randn(30, WIDTH, generator=torch.Generator().manual_seed(1))


def assert_same_scores(model, other, z, tolerance=1e-9) -> None:
    """Equal scores, class by class, relative to the largest."""
    assert sorted(model.class_names) == sorted(other.class_names)
    order = [other.class_names.index(name) for name in model.class_names]
    ours = model.head(z)
    theirs = other.head(z)[:, order]
    assert float((ours - theirs).abs().max()) <= tolerance * float(theirs.abs().max())


OLD = ["ant", "bee", "cat", "dog"]
NEW = ["elk", "fox"]


def test_equal_to_the_next_task_of_the_run(tmp_path: Path):
    """Uneven classes; the buffer is smaller than what was seen: it is oversampled and shrinks."""
    root = make_images(tmp_path / "all" / "train", [*OLD, *NEW], 9)
    for i in range(5, 9):
        (root / "elk" / f"{i}.png").unlink()
    make_images(tmp_path / "all" / "val", [*OLD, *NEW], 1)
    options = [*BUFFER, "--model.buffer.capacity", "9", "--data.classes_per_task", "2"]
    whole = cifnet_pl.load(fit(tmp_path / "all", tmp_path / "whole", *options))
    part = fit(tmp_path / "all", tmp_path / "part", *options, "--data.max_tasks", "2")
    for name in OLD:  # what is left in the folder is NEW
        shutil.rmtree(root / name)
    assert run_cifnet("extend", model=part, images=root, output=tmp_path / "b") == 0
    extended = cifnet_pl.load(tmp_path / "b")
    assert extended.tasks == whole.tasks
    assert extended.counts == whole.counts
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(40, extended.head.in_features, generator=draw) / 4
    assert_same_scores(extended, whole, z)
    assert_same_state(extended.buffer, whole.buffer.state_dict())


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated model with a buffer that knows OLD; other images of these are beside it."""
    root = tmp_path_factory.mktemp("made")
    images = make_images(root / "old", OLD, 6)
    make_images(root / "checked", OLD, 4)
    buffer = cifnet_pl.CalibrationBuffer(300)
    model = replace(empty("ridge"), buffer=buffer, calibrated=True)
    cifnet_pl.extend(model, images).model.save(root / "b")
    return root / "b"


def extend(bundle: Path, images: Path, output: Path, *options: str) -> int:
    return run_cifnet("extend", *options, model=bundle, images=images, output=output)


def test_scores_are_shown_and_kept(bundle: Path, tmp_path: Path, capsys):
    images = make_images(tmp_path / "new", NEW, 10)
    check = ["--check", str(bundle.parent / "checked")]
    assert extend(bundle, images, tmp_path / "c", *check) == 0
    printed = capsys.readouterr().out
    model = cifnet_pl.load(tmp_path / "c")
    event = model.history[-1]
    assert model.class_names == [*OLD, *NEW]
    assert model.counts["elk"] == 10
    assert (event.kind, event.classes, event.images) == ("extend", 6, 20)
    bounds = wilson_interval(round(event.accuracy / 5), 20)
    interval = f"{bounds.low:.0f} to {bounds.high:.0f}; 20 images, each left out"
    assert f"new classes {event.accuracy:.1f} % ({interval})" in printed
    before, after = event.old_accuracy_before, event.old_accuracy
    change = f"{before:.1f} % before, {after:.1f} % after"
    assert re.search(rf"old classes {re.escape(change)} \(\d+ to \d+; ", printed)


def test_a_folder_with_train_and_val_has_the_classes_within(bundle, tmp_path, capsys):
    """``train`` is learned, ``val`` checked with; of one image no accuracy is known."""
    nest = tmp_path / "nest"
    make_images(nest / "train", ["elk"], 1)
    shutil.copy(nest / "train" / "elk" / "0.png", nest / "train" / "loose.png")
    make_images(nest / "val", [*OLD, *NEW], 2)
    assert extend(bundle, nest, tmp_path / "more", "--check", str(nest)) == 0
    model = cifnet_pl.load(tmp_path / "more")
    said = capsys.readouterr()
    assert model.class_names == [*OLD, "elk"]
    assert model.counts["elk"] == 1
    assert model.history[-1].accuracy is None
    assert "1 image of 1 class learned in " in said.out
    assert "Accuracy on new classes not measured" in said.out
    assert f"; {2 * len(OLD)} images in {nest})" in said.out
    assert f"note: {nest} has train and val: taking train" in said.err


REFUSED = [
    (["elk"], "--check {tmp}/nowhere", 1, "--check"),
    (["ant"], "", 2, "class 'ant' is already learned: add --more"),
    ([], "", 1, "no sub-folders"),
    (["elk"], "--check {tmp}/new", 1, "no image of a class"),
    (["elk"], "--output {bundle}", 2, "--overwrite true"),
    (["elk", "broken"], "", 1, "no image of class 'broken' can be read"),
]


@pytest.mark.parametrize(("names", "options", "code", "reason"), REFUSED)
def test_refusals(names, options, code, reason, bundle, tmp_path, capsys):
    images = tmp_path / "new"
    images.mkdir()
    make_images(images, names, 2)
    for path in images.glob("broken/*"):
        path.write_bytes(b"no image")
    before = sorted(tmp_path.rglob("*"))
    given = options.format(tmp=tmp_path, bundle=bundle).split()
    assert extend(bundle, images, tmp_path / "c", *given) == code
    errors = capsys.readouterr().err.splitlines()
    assert reason in errors[-1]
    assert errors[-1].startswith("cifnet: error: ")
    assert sorted(tmp_path.rglob("*")) == before
