"""`cifnet evaluate`: what it says of labelled photos, and the files it writes."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchmetrics.functional.classification import multiclass_calibration_error

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.photos.photo import read_square
from tests.command_line import make_photos, rows
from tests.models import empty

CLASSES = ["ant", "bee", "cat"]


def bundle(place: Path, photos: Path, names: list[str], count: int) -> Path:
    """A model of ``count`` photos of each class, whose content hashes are made up."""
    model = empty("ridge")
    files = [path for name in names for path in sorted((photos / name).iterdir())[:count]]
    z = model.embed(torch.stack([torch.from_numpy(read_square(f, 2).copy()).permute(2, 0, 1) for f in files]))
    model.begin_task(names)
    model.observe(z, torch.tensor(model.labels(f.parent.name for f in files)), torch.arange(len(files)))
    model.finish_task()
    model.save(place)
    return place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and photos with two wrong labels, an unknown class, a class of few photos and a broken file."""
    root = tmp_path_factory.mktemp("made")
    photos = make_photos(root / "photos", [*CLASSES, "dog"], 12)
    bundle(root / "m", photos, CLASSES, 12)
    for i in (1, 2):
        (photos / "ant" / f"{i}.png").rename(photos / "bee" / f"wrong {i}.png")
    for i in range(4, 12):
        (photos / "cat" / f"{i}.png").unlink()
    (photos / "cat" / "3.png").write_bytes(b"no photo")
    return root


def test_what_it_says_and_writes(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--model", str(made / "m"), "--images", str(made / "photos"), "--output", str(tmp_path / "out")]
    assert main(["evaluate", *options]) == 0
    shown = capsys.readouterr()
    assert "12 photos of classes that" in shown.out
    assert "are left out: dog" in shown.out
    assert "92.6 % of 27 photos of 3 classes are named right" in shown.out
    assert "2 of 14 photos of bee are taken for ant" in shown.out
    assert "fewer than 5" in shown.out
    assert "3.png: no image of a known format" in shown.err

    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {
        *("evaluation.json", "classes.csv", "confusion.csv", "photos.csv", "confusion.png", "calibration.png")
    }
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert summary["accuracy"] == pytest.approx(100 * 25 / 27)
    photos = rows(tmp_path / "out" / "photos.csv")
    assert len(photos) == 27
    assert [Path(row["file"]).name for row in photos if row["right"] == "false"] == ["wrong 1.png", "wrong 2.png"]

    # Calibration by torchmetrics' own function, on the probabilities that Python's classify gives.
    model = cifnet_pl.load(made / "m")
    result = list(model.classify([row["file"] for row in photos], top=3))
    probabilities = torch.tensor(
        [[dict(zip(p.classes, p.probabilities, strict=True))[n] for n in CLASSES] for p in result]
    )
    targets = torch.tensor([CLASSES.index(row["class"]) for row in photos])
    expected = 100 * float(multiclass_calibration_error(probabilities, targets, 3, n_bins=15))
    assert summary["ece"] == pytest.approx(expected, abs=1e-4)

    classes = {row["class"]: row for row in rows(tmp_path / "out" / "classes.csv")}
    assert [classes[name]["tested"] for name in CLASSES] == ["true", "true", "false"]
    with Image.open(tmp_path / "out" / "confusion.png") as image:
        image.load()
    assert main(["evaluate", *options]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["evaluate", *options, "--overwrite"]) == 0


def test_held_out_photos_where_there_are_any(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    make_photos(tmp_path / "set" / "train", CLASSES, 3)
    make_photos(tmp_path / "set" / "val", CLASSES, 6)
    assert main(["evaluate", "--model", str(made / "m"), "--images", str(tmp_path / "set")]) == 0
    assert "100.0 % of 18 photos of 3 classes" in capsys.readouterr().out


def test_no_class_that_the_model_knows(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    photos = make_photos(tmp_path / "photos", ["eel"], 1)
    assert main(["evaluate", "--model", str(made / "m"), "--images", str(photos)]) == 1
    assert "knows none of the classes of the photos (eel)" in capsys.readouterr().err
    assert main(["evaluate", "--model", str(made / "m"), "--images", str(photos), "--output", str(photos / "eel")]) == 2


def test_photos_that_were_learned_or_stand_twice_are_said_beside_the_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    learned = make_photos(tmp_path / "learned", CLASSES, 6)
    empty("ridge").extend(learned).model.save(tmp_path / "m")
    photos = make_photos(tmp_path / "photos", CLASSES, 12)
    for name in CLASSES:
        for i in range(5):
            (photos / name / f"{i}.png").unlink()  # of each class only the sixth was learned
    for i in (8, 9):
        shutil.copy(photos / "ant" / f"{i}.png", photos / "ant" / f"renamed {i}.png")
    shutil.copy(photos / "ant" / "7.png", photos / "bee" / "wrong.png")
    shutil.copy(learned / "ant" / "0.png", photos / "cat" / "ant.png")
    (photos / "cat" / "empty 1.png").touch()
    (photos / "cat" / "empty 2.png").touch()
    options = ["--model", str(tmp_path / "m"), "--images", str(photos), "--output", str(tmp_path / "out")]
    assert main(["evaluate", *options]) == 0
    shown = capsys.readouterr().out
    assert "3 of these 25 photos were learned already and flatter the score: of the 22 others" in shown
    assert "2 of these 25 photos are copies of others, and so counted twice" in shown
    assert "bee/wrong.png (also in ant), cat/ant.png (also in ant) in two classes" in shown
    summary = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert (summary["learned"], summary["copies"]) == (3, 2)
    told = [(Path(row["file"]).name, row["seen"]) for row in rows(tmp_path / "out" / "photos.csv") if row["seen"]]
    copies = [(f"renamed {i}.png", "copy") for i in (8, 9)]
    assert told == [("5.png", "learned"), *copies, ("5.png", "learned"), ("5.png", "learned")]
