"""What a run measures of unknown things and of sets of answers, against the model that it leaves
behind.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import cifnet_pl
from cifnet_pl.images.image import read_square
from cifnet_pl.model.unknowns import detection
from tests.command_line import BUFFER, fit, learned, rows

COLUMNS = ["set_size", "set_coverage", "called_unknown", "unknown_auroc", "unknown_fpr95"]
RIDGE = ["--model.head", "RidgeHead", "--data.max_tasks", "2"]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("foreign")
    draw = np.random.default_rng(0)
    for i in range(20):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def test_a_calibrated_run_with_foreign_images(foreign, tmp_path, capsys):
    run = learned(
        tmp_path, *RIDGE, *BUFFER, "--model.calibrate", "true", "--data.unknown", str(foreign)
    )
    table = rows(run / "tasks.csv")
    summary = json.loads((run / "summary.json").read_text())
    assert [name for name in table[0] if name in COLUMNS] == COLUMNS
    for row in table:
        assert 1 <= float(row["set_size"]) <= int(row["classes_seen"])
        assert float(row["set_coverage"]) > 88
        assert float(row["called_unknown"]) < 12
        assert float(row["unknown_auroc"]) > 95
    said = capsys.readouterr().out
    last = {name: f"{float(table[-1][name]):.1f} %" for name in COLUMNS}
    assert (
        "Unknown things, 20 images: told from the known ones with an AUROC of"
        f" {last['unknown_auroc']}" in said
    )
    assert {name: summary[name] for name in COLUMNS} == {
        name: float(table[-1][name]) for name in COLUMNS
    }
    events = EventAccumulator(str(run)).Reload()
    for tag, name in {
        "sets/size": "set_size",
        "unknown/auroc": "unknown_auroc",
        "unknown/fpr95": "unknown_fpr95",
    }.items():
        assert [e.value for e in events.Scalars(tag)] == pytest.approx(
            [float(row[name]) for row in table], abs=1e-3
        )
    classes = rows(run / "answer_sets.csv")
    images = [row["test_images"] for row in rows(run / "class_accuracy.csv")]
    assert [row["test_images"] for row in classes] == images
    for name, mean in (("covered", "set_coverage"), ("answers", "set_size")):
        values = [float(row[name]) for row in classes]
        assert np.average(values, weights=list(map(int, images))) == pytest.approx(summary[mean])
    # The same from the model that the run left.
    model = cifnet_pl.load(run, device="cpu")
    squares = [
        torch.from_numpy(read_square(file, 8).copy()).permute(2, 0, 1) for file in foreign.iterdir()
    ]
    z = model.embed(torch.stack(squares))
    assert detection(model.head.novelty(model.buffer.z), model.head.novelty(z))[0] > 95


def test_without_foreign_images_or_calibration_there_is_nothing_to_say(tmp_path, capsys):
    run = learned(tmp_path, *RIDGE)
    row = rows(run / "tasks.csv")[-1]
    assert not (run / "answer_sets.csv").exists()
    assert "Unknown" not in capsys.readouterr().out
    assert [row[name] for name in COLUMNS] == [""] * 5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--data.unknown", "{tmp}/none"], "--data.unknown: no file or folder {tmp}/none"),
        (
            ["--data.unknown", "{tmp}/bad"],
            (
                "cannot read these images: {tmp}/bad/1.png: no image of a known format;"
                " {tmp}/bad/2.png"
            ),
        ),
        (
            ["--data.unknown", "{tmp}/bad", "--data.on_corrupt", "skip"],
            "none of the images of {tmp}/bad can be read",
        ),
        (
            ["--data.unknown", "{tmp}/bad", "--model.head", "NCMHead"],
            "NCMHead cannot tell unknown things",
        ),
    ],
)
def test_refusals(
    options: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "bad" / name).write_bytes(b"no image")
    assert fit(tmp_path / "logs", *RIDGE, *(o.format(tmp=tmp_path) for o in options)) in (1, 2)
    said = " ".join(capsys.readouterr().err.split())
    assert " ".join(reason.format(tmp=tmp_path).split()) in said
    assert "Traceback" not in said
