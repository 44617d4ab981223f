"""`cifnet evaluate`: its screen, the files it writes, and recalibration."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_calibration_error

import cifnet_pl
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.evaluation import Evaluation, table_of
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.model.recalibration import evaluated, new_samples
from tests.command_line import assert_ends, make_images, rows, run_cifnet
from tests.models import empty

CLASSES = ["ant", "bee", "cat"]


def bundle(place: Path, images: Path, buffer: int | None = None) -> None:
    """A model of the images in class folders, and of a buffer."""
    model = empty("ridge")
    model.buffer = CalibrationBuffer(buffer) if buffer else None
    cifnet_pl.extend(model, images).model.save(place)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and images: wrong, learned, twice, of an unknown class, few, broken and empty."""
    root = tmp_path_factory.mktemp("made")
    learned = make_images(root / "learned", CLASSES, 6)
    bundle(root / "m", learned)
    images = make_images(root / "images", [*CLASSES, "dog"], 16)
    # Of each class only the sixth was learned.
    gone = {"ant": range(5), "bee": range(5), "cat": [*range(5), *range(7, 16)]}
    for name, numbers in gone.items():
        for i in numbers:
            (images / name / f"{i}.png").unlink()
    for i in (14, 15):
        (images / "ant" / f"{i}.png").rename(images / "bee" / f"wrong {i}.png")
    for i in (8, 9):
        shutil.copy(images / "ant" / f"{i}.png", images / "ant" / f"renamed {i}.png")
    shutil.copy(images / "ant" / "7.png", images / "bee" / "both.png")
    shutil.copy(learned / "ant" / "0.png", images / "cat" / "ant.png")
    (images / "cat" / "broken.png").write_bytes(b"no image")
    (images / "cat" / "empty 1.png").touch()
    (images / "cat" / "empty 2.png").touch()
    return root


def test_what_it_says_and_writes(made: Path, tmp_path: Path, capsys):
    given = {"model": made / "m", "images": made / "images", "output": tmp_path / "out"}
    assert run_cifnet("evaluate", **given) == 0
    shown = capsys.readouterr().out
    assert "Accuracy 85.7 % (28 images, 3 classes" in shown
    assert "3 of 14 images of bee predicted as ant" in shown
    assert "16 images of unknown classes left out: dog" in shown
    assert "3 of 28 images learned already" in shown
    assert "accuracy on the others" in shown
    assert "bee/both.png (also in ant), cat/ant.png (learned as ant) in two" in shown

    tables = {"classes.csv", "confusion.csv", "images.csv"}
    pictures = {"confusion.png", "calibration.png"}
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {"evaluation.json"} | tables | pictures
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert summary["accuracy"] == pytest.approx(100 * 24 / 28)
    assert (summary["learned"], summary["duplicates"]) == (3, 2)
    images = rows(tmp_path / "out" / "images.csv")
    assert len(images) == 28
    names = [Path(row["file"]).name for row in images if row["correct"] == "false"]
    assert names == ["both.png", "wrong 14.png", "wrong 15.png", "ant.png"]
    told = [(Path(row["file"]).name, row["seen"]) for row in images if row["seen"]]
    twice = [(f"renamed {i}.png", "duplicate") for i in (8, 9)]
    learned = ("5.png", "learned")
    assert told == [learned, *twice, learned, learned]

    # Calibration by torchmetrics' own function, on the probabilities that Python's classify gives.
    model = cifnet_pl.load(made / "m")
    result = list(model.classify([row["file"] for row in images], top=3))
    shares = [dict(zip(p.classes, p.probabilities, strict=True)) for p in result]
    probabilities = torch.tensor(pd.DataFrame(shares)[CLASSES].to_numpy())
    targets = torch.tensor([CLASSES.index(row["class"]) for row in images])
    expected = multiclass_calibration_error(probabilities, targets, 3, n_bins=15)
    assert summary["ece"] == pytest.approx(100 * float(expected), abs=1e-4)

    classes = {row["class"]: row for row in rows(tmp_path / "out" / "classes.csv")}
    assert [classes[name]["tested"] for name in CLASSES] == ["true", "true", "false"]
    with Image.open(tmp_path / "out" / "confusion.png") as image:
        image.load()
    assert_ends(run_cifnet("evaluate", **given), 2, "exists already", capsys)


def test_held_out_images_and_unknown_classes(made: Path, tmp_path: Path, capsys):
    make_images(tmp_path / "set" / "train", CLASSES, 3)
    make_images(tmp_path / "set" / "val", CLASSES, 6)
    code = run_cifnet("evaluate", model=made / "m", images=tmp_path / "set")
    assert_ends(code, 0, "Accuracy 100.0 % (18 images, 3 classes", capsys)
    images = make_images(tmp_path / "images", ["eel"], 1)
    code = run_cifnet("evaluate", model=made / "m", images=images)
    assert_ends(code, 1, "none of the classes of the images (eel)", capsys)


# ---------------------------------------------------------------------- recalibration


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """A calibrated model of three classes, and darker images of them, one of which was learned."""
    root = tmp_path_factory.mktemp("made")
    images = make_images(root / "images", CLASSES, 25)
    model = replace(empty("ridge-auto"), buffer=CalibrationBuffer(75), calibrated=True)
    cifnet_pl.extend(model, images).model.save(root / "m")
    draw = np.random.default_rng(0)
    for path in sorted(make_images(root / "new", CLASSES, 40).rglob("*.png")):
        with Image.open(path) as image:
            pixels = 0.6 * np.asarray(image) + draw.normal(0, 25, (12, 10, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path)
    ant = root / "new" / "ant"
    shutil.copy(images / "ant" / "3.png", ant / "learned.png")
    shutil.copy(ant / "3.png", ant / "copy.png")
    make_images(root / "new", ["eel"], 2)
    return root


def recalibrate(root, *options):
    given = {"model": root / "m", "images": root / "new"}
    return run_cifnet("evaluate", "--recalibrate", *options, **given)


def test_what_is_stored_and_shown(shifted, tmp_path, capsys):
    assert recalibrate(shifted, "--output", str(tmp_path / "m2")) == 0
    said = capsys.readouterr().out
    assert "Left out: 1 image that the model has learned\n" in said
    old, new = (cifnet_pl.load(path) for path in (shifted / "m", tmp_path / "m2"))
    assert new.history[-1].parents == [old.identity]
    assert len(new.calibration.y) == 120
    images = LabelledImages.find(shifted / "new", "--images").of_classes(set(CLASSES))
    samples, _, _ = new_samples(old, images)
    before = Evaluation(old.class_names, table_of([evaluated(old, samples)]))
    lines = [line for line in said.splitlines() if line.startswith("│")]
    table = [re.findall(r"│ +([\d.]+) (?=│)", line) for line in lines]
    keys = "A_k ece set_coverage set_size known_rejected"
    expected = [before.figures()[key] for key in keys.split()]
    shown = [float(row[0]) for row in table if row]
    assert shown == [round(value, 1) for value in expected]
    *_, covered, _, unknown = [float(row[1]) for row in table if row]
    assert covered >= 90
    assert unknown <= 10
    code = recalibrate(shifted, "--output", str(tmp_path / "m2"))
    assert_ends(code, 2, "--overwrite", capsys)


def test_what_does_not_fit(shifted, tmp_path, capsys):
    few = shutil.copytree(shifted / "new" / "ant", tmp_path / "few" / "ant")
    for path in list(few.iterdir())[10:]:
        path.unlink()
    assert_ends(recalibrate(shifted), 2, "give it a place with --output", capsys)
    given = {"model": shifted / "m", "images": few.parent, "output": tmp_path / "o"}
    code = run_cifnet("evaluate", **given, recalibrate=True)
    assert_ends(code, 2, "give at least 20", capsys)
    assert not (tmp_path / "o").exists()
