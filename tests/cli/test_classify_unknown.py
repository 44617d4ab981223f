"""Classifying files among which are things that the model does not know."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.photos.photo import read_square
from tests.command_line import make_photos
from tests.models import SIDE, empty

CLASSES, FOREIGN = ["ant", "bee", "cat"], ["yak", "zebu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with calibration samples, one without, photos of its classes and of others."""
    root = tmp_path_factory.mktemp("made")
    make_photos(root / "photos", CLASSES, 25)
    make_photos(root / "photos", FOREIGN, 4)
    files = sorted(f for f in (root / "photos").rglob("*.png") if f.parent.name in CLASSES)
    for name, buffer in (("bundle", CalibrationBuffer(75)), ("bare", None), ("few", CalibrationBuffer(6))):
        model = empty("ridge")
        model.buffer = buffer
        pixels = [torch.from_numpy(read_square(f, SIDE).copy()).permute(2, 0, 1) for f in files]
        model.begin_task(CLASSES)
        keys = torch.arange(len(files))
        model.observe(model.embed(torch.stack(pixels)), torch.tensor(model.labels(f.parent.name for f in files)), keys)
        model.finish_task()
        model.save(root / name)
    return root


def classify(place: Path, out: Path, *options: str, model: str = "bundle") -> int:
    arguments = ["--model", str(place / model), "--images", str(place / "photos"), "--output", str(out / "out.csv")]
    return main(["classify", *arguments, *options])


def table(out: Path) -> list[dict[str, str]]:
    with (out / "out.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_columns(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify(place, tmp_path, "--unknown", "0.05", "--coverage", "0.9", "--top", "2") == 0
    rows = table(tmp_path)
    last = ["probability_2", "known", "novelty", "p_value", "answers"]
    assert list(rows[0])[-5:] == last
    known = {True: [], False: []}
    for row in rows:
        known[Path(row["file"]).parent.name in CLASSES].append(row["known"])
    assert set(known[False]) == {"false"}
    assert known[True].count("false") <= 0.1 * len(known[True])
    unknown = sum(row["known"] == "false" for row in rows)
    output = capsys.readouterr().out
    assert f"{unknown} of them show nothing that this model knows; 5 % of photos of known classes" in output
    assert "among the answers with a chance of 90 %; they are 1." in output
    model = cifnet_pl.load(place / "bundle")
    for row, expected in zip(rows, model.classify([r["file"] for r in rows], unknown=0.05, coverage=0.9), strict=True):
        assert row["known"] == str(expected.known).lower()
        assert float(row["novelty"]) == pytest.approx(expected.novelty, rel=1e-5)
        assert float(row["p_value"]) == pytest.approx(expected.p_value, abs=1e-6)
        assert row["answers"].split("; ") == list(expected.answers)


def test_one_without_the_other(place: Path, tmp_path: Path) -> None:
    assert classify(place, tmp_path, "--unknown", "0.05", "--top", "1") == 0
    assert list(table(tmp_path)[0]) == ["file", "class", "probability", "known", "novelty", "p_value"]
    assert classify(place, tmp_path, "--coverage", "0.8", "--per_class", "true", "--top", "1", "--overwrite") == 0
    assert list(table(tmp_path)[0]) == ["file", "class", "probability", "answers"]


def test_the_gallery_marks_what_is_unknown(place: Path, tmp_path: Path) -> None:
    red = np.array([178, 24, 43])

    def marked(*options: str) -> int:
        picture = tmp_path / "g.png"
        assert classify(place, tmp_path, "--gallery", str(picture), "--overwrite", *options) == 0
        with Image.open(picture) as image:
            return int((np.asarray(image.convert("RGB")) == red).all(axis=2).sum())

    assert marked("--unknown", "0.05") > marked() + 500


def test_too_few_samples_for_the_share(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify(place, tmp_path, "--unknown", "0.05", model="few") == 0
    assert "with 6 calibration samples no photo can be called unknown at a share of 0.05; from 0.14 on" in (
        capsys.readouterr().out
    )


REFUSED = [
    (["--unknown", "0"], "unknown is 0, expected a share between 0 and 1"),
    (["--unknown", "5"], "unknown is 5, expected a share between 0 and 1, such as 0.05 for 5 %"),
    (["--coverage", "0"], "coverage is 0, expected a share between 0 and 1, such as 0.95 for 95 %"),
    (["--coverage", "1"], "coverage is 1, expected a share between 0 and 1"),
    (["--coverage", "1.5"], "coverage is 1.5, expected a share between 0 and 1"),
    (["--coverage", "nan"], "--coverage is 'nan', expected a finite number"),
    (["--unknown", "1"], "unknown is 1, expected a share between 0 and 1"),
    (["--unknown", "nan"], "--unknown is 'nan', expected a finite number"),
    (["--per_class", "true"], "per_class is about sets of answers: give their coverage, too, such as 0.95"),
    (["--coverage", "-1"], "coverage is -1, expected a share"),
]


@pytest.mark.parametrize(("options", "reason"), REFUSED)
def test_shares_that_are_none(
    options: list[str], reason: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert classify(place, tmp_path, *options) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_model_without_calibration_samples(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert classify(place, tmp_path, "--unknown", "0.05", model="bare") == 2
    errors = capsys.readouterr().err
    assert "no calibration samples" in errors
    assert "cifnet fit … --model.buffer CalibrationBuffer --model.calibrate true" in errors
    assert classify(place, tmp_path, model="bare") == 0
