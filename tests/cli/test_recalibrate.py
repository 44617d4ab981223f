"""A model whose promises are fitted to photos of a new place, and the figures that the screen shows of it."""

import re
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.cli.evaluate import NewPhotos, answers, figures
from cifnet_pl.model.class_photos import ClassPhotos
from tests.command_line import make_photos

CLASSES = ["ant", "bee", "cat"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A calibrated model of three classes, and photos of them in a dimmer light, one of which was learned."""
    root = tmp_path_factory.mktemp("made")
    make_photos(root / "photos" / "train", CLASSES, 25)
    make_photos(root / "photos" / "val", CLASSES, 5)
    fast = ["--model.backbone", "pixels:4", "--data.image_size", "4", "--energy.enabled", "false"]
    assert main(["fit", "--data.root", str(root / "photos"), *fast, "--logs", str(root / "logs")]) == 0
    assert main(["export", "--model", str(root / "logs" / "default"), "--output", str(root / "m")]) == 0
    draw = np.random.default_rng(0)
    for path in sorted(make_photos(root / "new", CLASSES, 40).rglob("*.png")):
        pixels = 0.6 * np.asarray(Image.open(path)).astype(float) + draw.normal(0, 25, (12, 10, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    shutil.copy(root / "photos" / "train" / "ant" / "3.png", root / "new" / "ant" / "learned.png")
    shutil.copy(root / "new" / "ant" / "3.png", root / "new" / "ant" / "copy.png")
    make_photos(root / "new", ["eel"], 2)
    return root


def recalibrate(root, *options):
    return main(["evaluate", "--model", str(root / "m"), "--images", str(root / "new"), "--recalibrate", *options])


def test_what_is_stored_and_shown(made, tmp_path, capsys):
    assert recalibrate(made, "--output", str(tmp_path / "m2")) == 0
    said = capsys.readouterr().out
    assert "2 photos of classes that" in said
    assert "1 photo that the model has learned is left out\n" in said
    assert "on 120 photos of the new place, before and after:" in said
    old, new = (cifnet_pl.load(path, device="cpu") for path in (made / "m", tmp_path / "m2"))
    assert (new.history[-1].what, new.history[-1].parents) == ("recalibrate", [old.identity])
    assert len(new.calibration.y) == 120
    assert float(new.head.temperature) > float(old.head.temperature)
    photos = NewPhotos.of(old, ClassPhotos.find(made / "new", "--images").of(set(CLASSES)), [])
    asked = answers(old, photos.z, photos.y)
    predictions = list(
        old.classify([made / "new" / "ant" / f"{i}.png" for i in range(40)], unknown=0.05, coverage=0.95)
    )
    confidences = {round(p.probabilities[0], 9) for p in predictions}
    assert confidences <= {round(value, 9) for value in asked[:, 0].tolist()}
    table = [re.findall(r"│ +([\d.]+) (?=│)", line) for line in said.splitlines() if line.startswith("│")]
    assert [row[0] for row in table if row] == figures(asked)
    *_, covered, _, unknown = [float(row[1]) for row in table if row]
    assert covered >= 90
    assert unknown <= 10
    assert recalibrate(made, "--output", str(tmp_path / "m2")) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_figures():
    nan = float("nan")
    asked = torch.tensor([[0.99, 1, 1, 1, 0], [0.97, 0, 0, 1, 1], [0.5, 1, 1, 2, 0], [0.4, 0, 1, 3, 0]]).double()
    assert figures(asked)[0] == "50.0"
    assert figures(asked)[2:] == ["1", "75.0", "1.8", "25.0"]
    asked[:, 2:] = nan
    assert figures(asked)[3:] == ["–", "–", "–"]


def test_what_does_not_fit(made, tmp_path, capsys):
    few = shutil.copytree(made / "new" / "ant", tmp_path / "few" / "ant")
    for path in list(few.iterdir())[10:]:
        path.unlink()
    for words, reason in (
        ([], "give it a place with --output"),
        (["--output", str(tmp_path / "o"), "--images", str(few.parent)], "is given twice"),
    ):
        assert recalibrate(made, *words) == 2
        assert reason in capsys.readouterr().err
    given = ["--images", str(few.parent), "--output", str(tmp_path / "o"), "--recalibrate"]
    assert main(["evaluate", "--model", str(made / "m"), *given]) == 2
    assert "give at least 20" in capsys.readouterr().err
    assert not (tmp_path / "o").exists()
