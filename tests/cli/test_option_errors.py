"""Bad input through the command line: one sentence that says what is wrong and what to do, and the
right exit code.
"""

import os
import resource
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import cifnet_pl.backbones
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import Preprocessing
from cifnet_pl.images.image import read_square
from tests.command_line import (
    BUFFER,
    FAST,
    assert_ends,
    checkpoint,
    fit,
    learned,
    make_images,
)
from tests.killing import in_a_process

RUN = 1
USAGE = 2

REFUSED = [
    # names
    (["--model.head", "CIFNetHed"], USAGE, ["head 'CIFNetHed'", "CIFNetHead"]),
    (["--model.backbone", "pixel"], USAGE, ["backbone 'pixel'", "pixels"]),
    (
        [*BUFFER, "--model.buffer.strategy", "randm"],
        USAGE,
        ["--model.buffer.strategy is 'randm'", "'random', 'herding'"],
    ),
    (
        ["--energy.enabled", "true", "--energy.country_iso_code", "UKX"],
        USAGE,
        ["country", "'UKX'"],
    ),
    # data
    (["--data.source", "folder"], USAGE, ["no data folder", "--data.root"]),
    # numbers
    (["--model.head.ridge", "0"], USAGE, ["ridge", "0", "positive"]),
    (
        ["--model.head.ridge", "abc"],
        USAGE,
        ["--model.head.ridge is 'abc'", "float or 'gcv'"],
    ),
    (["--seed_everything", "-1"], USAGE, ["seed_everything: -1", "4294967295"]),
    (
        [*BUFFER, "--seed_everything", "false", "--model.buffer.seed", "-5"],
        USAGE,
        ["buffer seed is -5"],
    ),
    (["--experiment", ".."], USAGE, ["'..' is not a plain name"]),
    # Lightning
    (
        ["--trainer.precision", "bf16-true"],
        USAGE,
        ["bf16-true", "statistics", "bf16-mixed"],
    ),
    (
        ["--trainer.max_epochs", "3"],
        USAGE,
        ["--trainer.max_epochs", "--data.max_tasks"],
    ),
    # options
    (
        ["--data.clases_per_task", "3"],
        USAGE,
        ["--data.clases_per_task", "did you mean --data.classes_per_task?"],
    ),
    (["--root", "images"], USAGE, ["--root", "did you mean --data.root"]),
    (
        ["--model.head", "KNNHead", "--model.head.ridge", "1"],
        USAGE,
        ["unknown option --model.head.ridge"],
    ),
    (
        [*BUFFER, "--model.buffer.capacitty", "9"],
        USAGE,
        ["--model.buffer.capacitty", "--model.buffer.capacity"],
    ),
    (["--model.engine"], USAGE, ["--model.engine needs a value"]),
    (["--trainer.callbacks+=", "my.X"], USAGE, ["--trainer.callbacks+=my.X"]),
    (["--model.bufer.seed", "9"], USAGE, ["unknown option --model.bufer.seed"]),
    # checkpoints
    (["--ckpt_path", "nowhere.ckpt"], RUN, ["nowhere.ckpt", "checkpoints/last.ckpt"]),
]


def one_sentence(capsys, longest: int = 500) -> str:
    """The error that was printed: one line, and neither a traceback nor the package's way to say it
    twice.
    """
    shown = capsys.readouterr().err
    assert "Traceback" not in shown
    assert shown.startswith("cifnet: error: "), shown
    assert shown.count("\n") == 1, shown
    assert len(shown) < longest, shown
    return shown


@pytest.mark.parametrize(
    ("options", "code", "fragments"),
    REFUSED,
    ids=[" ".join(case[0]) for case in REFUSED],
)
def test_refused(options, code, fragments, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fit(tmp_path / "logs", *options) == code
    shown = one_sentence(capsys)
    assert [fragment for fragment in fragments if fragment not in shown] == [], shown
    # Nothing was learned, so nothing is there that could be taken for a run.
    assert not list(tmp_path.rglob("tasks.csv"))
    assert not list(tmp_path.rglob("config.yaml"))
    assert not list(tmp_path.rglob("version_*"))


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("model: [unclosed", ["not YAML"]),
        ("- a list", ["sections"]),
        ("model: {init_args: {head: RidgeHed}}", ["'RidgeHed'", "RidgeHead"]),
        (
            "model: {class_path: cifnet_pl.CIFNetModule, init_args: {backbon: pixels}}",
            ["--model.backbon"],
        ),
        ("data: {batch_size: many}", ["--data.batch_size", "'many'"]),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_configuration_files(text, fragments, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    words = ["fit", "--config", str(path), "--model.calibrate", "false"]
    assert main(words) == USAGE
    shown = one_sentence(capsys)
    assert [fragment for fragment in fragments if fragment not in shown] == [], shown


def test_evaluation_needs_a_checkpoint(tmp_path, capsys):
    assert main(["validate", *FAST, "--logs", str(tmp_path)]) == USAGE
    assert "--ckpt_path" in one_sentence(capsys)
    assert (
        main(["predict", *FAST, "--logs", str(tmp_path), "--ckpt_path", "last"]) == RUN
    )
    assert "no run of experiment 'default'" in one_sentence(capsys)


def test_buffer_is_refused_before_any_image_is_embedded(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        cifnet_pl.backbones.Backbone,
        "forward",
        lambda *_: pytest.fail("an image was embedded"),
    )
    assert fit(tmp_path, *BUFFER, "--model.buffer.capacity", "9") == USAGE
    assert "10 classes" in one_sentence(capsys)


def of_folder(images: Path, classes_per_task: int) -> list[str]:
    """Options of a run that learns class folders."""
    options = f"--data.source folder --data.root {images}"
    return f"{options} --data.classes_per_task {classes_per_task}".split()


class Blinding(nn.Module):
    """Flattens images; the embedding of one with as much light as ``light`` becomes NaN."""

    def __init__(self, light: float):
        super().__init__()
        self.light = light

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = x.flatten(1)
        z[(z.sum(1) - self.light).abs() < 1e-3] = float("nan")
        return z


@pytest.mark.parametrize("part", ["train", "val"])
def test_broken_embedding_names_batch_and_image(part, tmp_path, monkeypatch, capsys):
    for name in ("train", "val"):
        make_images(tmp_path / "images" / name, ["ant", "bee"], per_class=40)
    light = read_square(tmp_path / "images" / part / "bee" / "7.png", 8).sum() / 255
    # Else it would be met in learning: both parts hold the same pictures.
    if part == "val":
        (tmp_path / "images" / "train" / "bee" / "7.png").unlink()
    shape = Preprocessing(8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    monkeypatch.setitem(
        cifnet_pl.backbones.BACKBONES,
        "blinding",
        lambda *_: (Blinding(float(light)), 192, shape),
    )
    options = of_folder(tmp_path / "images", 2)
    # Batches of 32 images: 40 ants, then the bees.
    assert (
        fit(
            tmp_path,
            *options,
            "--model.backbone",
            "blinding",
            "--data.batch_size",
            "32",
        )
        == RUN
    )
    shown = one_sentence(capsys)
    assert "bee/7.png" in shown
    assert "NaN" in shown


def test_class_without_a_readable_image(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee", "cow"])
    for path in (images / "bee").iterdir():
        path.write_bytes(b"not an image")
    options = of_folder(images, 3)
    assert fit(tmp_path, *options) == RUN
    shown = one_sentence(capsys, 2000)  # longer than other errors, as it names all ten
    assert all(
        f"bee/{i}.png: no image of a known format" in shown for i in range(10)
    ), shown
    assert fit(tmp_path, *options, "--data.on_corrupt", "skip") == RUN
    assert "class 'bee'" in one_sentence(capsys)
    assert not (tmp_path / "default").exists()  # nor has the experiment a folder


def test_a_run_that_fails_later_keeps_what_it_has_learned(tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee", "cow", "dog"])
    (images / "dog" / "3.png").write_bytes(b"not an image")
    options = of_folder(images, 2)
    assert_ends(
        fit(tmp_path, *options), RUN, "dog/3.png: no image of a known format", capsys
    )
    assert checkpoint(tmp_path / "default" / "version_0")["cifnet"]["task_sizes"] == [2]
    (images / "dog" / "3.png").unlink()
    assert fit(tmp_path, *options, "--ckpt_path", "last") == 0


def test_logs_that_cannot_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert fit(tmp_path / "file" / "logs") == RUN
    assert "file/logs" in one_sentence(capsys)


GO_ON = ("--ckpt_path", "last", "--data.max_tasks", "2")


def go_on_with_files_up_to(limit, folder):
    """Let a run go on that cannot write a file of more than ``limit`` bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    return fit(folder, *GO_ON)


def test_full_disk_leaves_the_last_checkpoint_as_it_was(tmp_path):
    folder = learned(tmp_path, "--data.max_tasks", "1")
    before = (folder / "checkpoints" / "last.ckpt").read_bytes()
    limit = len(before) + 1000
    # In a process of its own: the limit would meet the log of the tests as well.
    assert (
        in_a_process(
            partial(go_on_with_files_up_to, limit, tmp_path), tmp_path / "output"
        )
        == RUN
    )
    said = (tmp_path / "output").read_text()
    assert "cannot write" in said
    assert "Traceback" not in said
    assert (folder / "checkpoints" / "last.ckpt").read_bytes() == before
    assert os.listdir(folder / "checkpoints") == ["last.ckpt"]
    assert not (folder / "summary.json").exists()  # the run is not whole
    assert fit(tmp_path, *GO_ON) == 0
    assert checkpoint(folder)["cifnet"]["task_sizes"] == [2, 2]


@pytest.mark.parametrize("name", ["a\nb", "red\x1b[31m"])
def test_class_folders_with_control_characters(name, tmp_path, capsys):
    make_images(tmp_path / "images", ["ant", name])
    options = of_folder(tmp_path / "images", 1)
    assert fit(tmp_path, *options) == RUN
    shown = one_sentence(capsys)
    assert "\x1b" not in shown
    assert "has control characters: rename the class" in shown


def test_interrupted_command(monkeypatch, capsys):
    interrupt = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr("cifnet_pl.cli.commands.run_command", interrupt)
    assert main(["info", "--model", "x"]) == 130
    assert capsys.readouterr().err.startswith("cifnet: stopped")
    monkeypatch.setattr("cifnet_pl.cli.lightning_cli.run", interrupt)
    assert_ends(main(["fit", "--data.root", "images"]), 130, "--ckpt_path last", capsys)
