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
from cifnet_pl.__main__ import main
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import fit, make_photos

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


def test_files_without_hashes_say_what_they_cannot_promise(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Written before content hashes were kept: what only hashes can tell is said or refused, never guessed."""
    old = str(STORED / "ridge")
    assert not cifnet_pl.load(old, device="cpu").knows_photos
    assert main(["info", "--model", old]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not of all photos: those learned again with --more or by merge go unnoticed" in shown

    photos = make_photos(tmp_path / "photos", ["ant", "bee"], 12)
    shutil.copy(photos / "ant" / "0.png", photos / "ant" / "again.png")
    assert main(["extend", "--model", old, "--images", str(photos), "--output", str(tmp_path / "a")]) == 0
    shown = capsys.readouterr()
    assert "ant/again.png learned already or twice in the folder: left out" in shown.err
    assert "learned 24 photos of 2 classes" in shown.out
    assert "content hashes" not in shown.err  # the classes are new: nothing is in doubt

    more = make_photos(tmp_path / "more", ["5"], 12)
    words = ["extend", "--model", str(tmp_path / "a"), "--images", str(more), "--more", "--output", str(tmp_path / "m")]
    assert main(words) == 0
    assert (
        "does not have the content hashes of all photos that it learned: any of those among" in capsys.readouterr().err
    )

    for name in ("a", "m"):
        assert main(["merge", old, str(tmp_path / name), "--output", str(tmp_path / "x")]) == 2
        said = capsys.readouterr().err
        assert (
            f"both go back to model {cifnet_pl.load(old, device='cpu').identity}, whose photos would count twice"
            in said
        )
    other = make_photos(tmp_path / "other", ["cow"], 12)
    assert main(["extend", "--model", old, "--images", str(other), "--output", str(tmp_path / "b")]) == 0
    with pytest.raises(UsageError, match="both go back to model"):
        merge([cifnet_pl.load(tmp_path / name, device="cpu") for name in ("a", "b")])
    assert (
        main(["forget", "--model", old, "--class", "5", "--images", str(more / "5"), "--output", str(tmp_path / "f")])
        == 1
    )
    assert "was learned from 146 photos" in capsys.readouterr().err


def test_photos_twice_in_a_folder_are_noticed_where_no_hashes_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    run = ["--model.backbone", "pixels:2", "--data.image_size", "2", "--data.max_tasks", "1", "--model.hashes", "false"]
    assert fit(tmp_path, *run, "--model.head", "RidgeHead") == 0
    photos = make_photos(tmp_path / "photos", ["ant"], 12)
    shutil.copy(photos / "ant" / "0.png", photos / "ant" / "again.png")
    words = ["--images", str(photos), "--output", str(tmp_path / "a")]
    assert main(["extend", "--model", str(tmp_path / "default"), *words]) == 0
    assert "ant/again.png learned already or twice in the folder: left out" in capsys.readouterr().err
    model = cifnet_pl.load(tmp_path / "a", device="cpu")
    assert (model.counts["ant"], model.knows_photos) == (12, False)
