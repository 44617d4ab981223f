"""Checkpoints and bundles that earlier versions wrote load, predict as they did then, and go on learning.

``tests/model/stored`` was written by version 0.1.0 before its format changed: three tasks of two digits, 2 × 2 pixels,
``fit --model.backbone pixels:2 --data.source digits --data.classes_per_task 2 --data.max_tasks 3``, once with
CIFNetHead, a buffer of 20 and calibration, once with RidgeHead; ``expected.json`` is what that version predicted.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from tests.command_line import fit

STORED = Path(__file__).parent / "stored"
EXPECTED = json.loads((STORED / "expected.json").read_text())
OF = {"cifnet": "cifnet", "cifnet.ckpt": "cifnet", "ridge": "ridge", "ridge.ckpt": "ridge"}


@pytest.mark.parametrize("name", OF)
def test_predicts_the_same(name: str, tmp_path: Path):
    model, expected = cifnet_pl.load(STORED / name, device="cpu"), EXPECTED[OF[name]]
    assert model.class_names == expected["class_names"]
    assert model.counts == expected["counts"]
    assert [event.accuracy for event in model.history] == expected["accuracy"]
    z = torch.linspace(0, 1, 60).reshape(5, 12).sin()
    probabilities = torch.tensor(expected["scores"], dtype=torch.float64)
    torch.testing.assert_close(model.head.probabilities(z), probabilities, rtol=0, atol=1e-12)
    model.save(tmp_path / "again")
    again = cifnet_pl.load(tmp_path / "again", device="cpu")
    assert torch.equal(again.head(z), model.head(z))
    assert again.describe() == model.describe()


@pytest.mark.parametrize("name", ["cifnet", "ridge"])
def test_a_run_goes_on_from_an_older_checkpoint(name: str, tmp_path: Path):
    """Two more tasks, and the same numbers as a run that was never interrupted."""
    heads = {"ridge": ["RidgeHead"], "cifnet": ["CIFNetHead", "--model.buffer", "CalibrationBuffer"]}
    options = ["--model.backbone", "pixels:2", "--data.image_size", "2", "--model.head", *heads[name]]
    if name == "cifnet":
        options += ["--model.buffer.capacity", "20", "--model.calibrate", "true"]
    shutil.copy(STORED / f"{name}.ckpt", tmp_path / "old.ckpt")
    assert fit(tmp_path, *options, "--seed_everything", "0", "--ckpt_path", str(tmp_path / "old.ckpt")) == 0
    assert fit(tmp_path, *options, "--seed_everything", "0", "--experiment", "whole") == 0
    resumed, whole = (cifnet_pl.load(tmp_path / run, device="cpu") for run in ("default", "whole"))
    z = torch.linspace(0, 1, 60).reshape(5, 12).sin()
    assert resumed.counts == whole.counts
    torch.testing.assert_close(resumed.head(z), whole.head(z), rtol=0, atol=1e-9)
