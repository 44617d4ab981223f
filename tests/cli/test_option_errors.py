"""Bad input: one sentence that says what is wrong and what to do, and the right exit code."""

import os
from unittest.mock import Mock

import pytest
import torch
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.backbones import Backbone
from cifnet_pl.images.image import read_square
from cifnet_pl.model.classifier import Classifier
from tests.command_line import (
    FAST,
    assert_ends,
    checkpoint,
    fit,
    learned,
    make_images,
    of_folder,
    run_cifnet,
)
from tests.killing import full_disk

RUN = 1
USAGE = 2

BUFFER = "--model.buffer CalibrationBuffer --model.buffer"
ENERGY = "--energy.enabled true --energy"
CPU = "--trainer.accelerator cpu --trainer.devices"
DDP = "--trainer.accelerator cpu --trainer.strategy ddp"

REFUSED = {
    # names
    "--model.head CIFNetHed": ["head 'CIFNetHed'", "CIFNetHead"],
    "--model.backbone pixel": ["backbone 'pixel'", "pixels"],
    f"{BUFFER}.strategy randm": ["strategy is 'randm'", "'random', 'herding'"],
    f"{ENERGY}.country_iso_code UKX": ["country", "'UKX'"],
    "--data.source folder": ["no data folder", "--data.root"],
    "--experiment ..": ["'..' is not a plain name"],
    # numbers
    "--model.head.ridge abc": ["--model.head.ridge is 'abc'", "float or 'gcv'"],
    "--data.class_order [x,1e5]": ["put quotes around"],
    "--seed_everything -1": ["seed_everything: -1", "4294967295"],
    f"{BUFFER}.seed -5 --seed_everything false": ["buffer seed is -5"],
    f"{BUFFER}.capacity 9": ["10 classes"],
    # Lightning
    "--trainer.precision bf16-true": ["bf16-true", "statistics", "bf16-mixed"],
    "--trainer.max_epochs 3": ["--trainer.max_epochs", "--data.max_tasks"],
    "--trainer.accumulate_grad_batches 4": ["accumulate_grad_batches=4"],
    "--trainer.val_check_interval 9999": ["val_check_interval is 9999"],
    "--trainer.num_nodes 2": ["MASTER_ADDR"],
    f"{CPU} 99": ["cores"],
    f"{CPU} 0": ["devices"],
    f"{DDP}_spawn": ["use auto or ddp"],
    f"{DDP}_notebook": ["use auto or ddp"],
    # options
    "--data.clases_per_task 3": ["did you mean --data.classes_per_task?"],
    "--root images": ["--root", "did you mean --data.root"],
    "--model.head KNNHead --model.head.ridge 1": ["unknown option --model.head.ridge"],
    f"{BUFFER}.capacitty 9": ["--model.buffer.capacitty", "--model.buffer.capacity"],
    "--model.engine": ["--model.engine needs a value"],
    "--trainer.callbacks+= my.X": ["--trainer.callbacks+ needs a value"],
    "--model.bufer.seed 9": ["unknown option --model.bufer.seed"],
}


def one_sentence(capsys) -> str:
    """The error that was printed: one line without a traceback, said once."""
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown.startswith("cifnet: error: "), shown
    assert shown.count("\n") == 1, shown
    assert len(shown) < 500, shown
    return shown


@pytest.mark.parametrize("options", REFUSED)
def test_refused(options, cwd, capsys, monkeypatch):
    """Before any image is embedded."""
    embed = Mock(side_effect=AssertionError)
    monkeypatch.setattr(Backbone, "forward", embed)
    assert fit(cwd / "logs", *options.split()) == USAGE
    shown = one_sentence(capsys)
    assert [part for part in REFUSED[options] if part not in shown] == [], shown
    # Nothing was learned, so nothing is there that could be taken for a run.
    assert not list(cwd.rglob("version_*"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("model: [unclosed", "not YAML"),
        ("- a list", "sections"),
        ("model: {init_args: {head: RidgeHed}}", "'RidgeHed': did you mean RidgeHead"),
        ("data: {batch_size: many}", "--data.batch_size is 'many'"),
    ],
)
def test_configuration_files(text, part, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert run_cifnet("fit", "--model.calibrate=false", config=path) == USAGE
    assert part in one_sentence(capsys)


def test_checkpoints_that_are_missing(tmp_path, capsys):
    assert fit(tmp_path, "--ckpt_path", "nowhere.ckpt") == RUN
    shown = one_sentence(capsys)
    assert "nowhere.ckpt" in shown
    assert "checkpoints/last.ckpt" in shown
    evaluation = [*FAST, "--logs", str(tmp_path)]
    assert main(["validate", *evaluation]) == USAGE
    assert "--ckpt_path" in one_sentence(capsys)
    assert main(["predict", *evaluation, "--ckpt_path", "last"]) == RUN
    assert "no run of experiment 'default'" in one_sentence(capsys)


@pytest.mark.parametrize("part", ["train", "val"])
def test_broken_embedding_names_the_image(part, tmp_path, monkeypatch, capsys):
    for name in ("train", "val"):
        make_images(tmp_path / "images" / name, ["ant", "bee"], per_class=8)
    square = read_square(tmp_path / "images" / part / "bee" / "7.png", 8)
    broken = torch.from_numpy(square.copy()).permute(2, 0, 1)
    # Else it would be met in learning: both parts hold the same pictures.
    if part == "val":
        (tmp_path / "images" / "train" / "bee" / "7.png").unlink()
    embed = Classifier.embed_unchecked

    def blinded(model, images):
        z = embed(model, images).clone()
        z[(images == broken).flatten(1).all(dim=1)] = float("nan")
        return z

    monkeypatch.setattr(Classifier, "embed_unchecked", blinded)
    # Batches of 6 images: 8 ants, then the bees.
    options = [*of_folder(tmp_path / "images", 2), "--data.batch_size", "6"]
    assert fit(tmp_path, *options) == RUN
    shown = one_sentence(capsys)
    assert "bee/7.png" in shown
    assert "NaN" in shown


def test_class_without_a_readable_image(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee"])
    for path in (images / "bee").iterdir():
        path.write_bytes(b"not an image")
    options = [*of_folder(images, 2), "--data.on_corrupt", "skip"]
    assert fit(tmp_path, *options) == RUN
    assert "class 'bee'" in one_sentence(capsys)


def test_a_run_that_fails_later_keeps_what_it_has_learned(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee", "cow", "dog"])
    (images / "dog" / "3.png").write_bytes(b"not an image")
    options = of_folder(images, 2)
    failed = fit(tmp_path, *options)
    assert_ends(failed, RUN, "dog/3.png: no image of a known format", capsys)
    assert checkpoint(tmp_path / "default" / "version_0")["cifnet"]["task_sizes"] == [2]
    (images / "dog" / "3.png").unlink()
    assert fit(tmp_path, *options, "--ckpt_path", "last") == 0


def test_full_disk_leaves_the_last_checkpoint_as_it_was(tmp_path, capsys):
    folder = learned(tmp_path, "--data.max_tasks", "1")
    file = folder / "checkpoints" / "last.ckpt"
    before = file.read_bytes()
    go_on = ("--ckpt_path", "last", "--data.max_tasks", "2")
    capsys.readouterr()
    with full_disk(len(before) + 1000):
        code = fit(tmp_path, *go_on)
    assert code == RUN
    assert "cannot write" in capsys.readouterr().err
    assert file.read_bytes() == before
    assert os.listdir(folder / "checkpoints") == ["last.ckpt"]
    assert not (folder / "summary.json").exists()  # the run is not whole
    assert fit(tmp_path, *go_on) == 0
    assert checkpoint(folder)["cifnet"]["task_sizes"] == [2, 2]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert "ckpt_path" not in config
    assert config["data"]["max_tasks"] == 2  # as of the second command
