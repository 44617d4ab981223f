"""Unknown images and prediction sets of a run, against those of the model that it stores."""

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

COLUMNS = [
    "set_size",
    "set_coverage",
    "known_rejected",
    "unknown_auroc",
    "unknown_fpr95",
]
TAGS = {
    "prediction_sets/size": "set_size",
    "unknown/auroc": "unknown_auroc",
    "unknown/fpr95": "unknown_fpr95",
}
RIDGE = ["--model.head", "RidgeHead", "--data.max_tasks", "2"]


@pytest.fixture(scope="module")
def unknown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unknown")
    draw = np.random.default_rng(0)
    for i in range(20):
        pixels = draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


def test_a_calibrated_run_with_unknown_images(unknown, tmp_path, capsys):
    options = ["--model.calibrate", "true", "--data.unknown", str(unknown)]
    run = learned(tmp_path, *RIDGE, *BUFFER, *options)
    table = rows(run / "tasks.csv")
    summary = json.loads((run / "summary.json").read_text())
    assert [name for name in table[0] if name in COLUMNS] == COLUMNS
    for row in table:
        assert 1 <= float(row["set_size"]) <= int(row["classes_seen"])
        assert float(row["set_coverage"]) > 88
        assert float(row["known_rejected"]) < 12
        assert float(row["unknown_auroc"]) > 95
    last = {name: float(table[-1][name]) for name in COLUMNS}
    assert {name: summary[name] for name in COLUMNS} == last
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "AUROC" in line]
    assert f"{last['unknown_auroc']:.1f} %" in line
    assert f"{last['unknown_fpr95']:.1f} %" in line
    assert "20 images" in line
    events = EventAccumulator(str(run)).Reload()
    for tag, name in TAGS.items():
        logged = [event.value for event in events.Scalars(tag)]
        assert logged == pytest.approx([float(row[name]) for row in table], abs=1e-3)
    classes = rows(run / "prediction_sets.csv")
    images = [row["test_images"] for row in rows(run / "class_accuracy.csv")]
    assert [row["test_images"] for row in classes] == images
    for name, mean in (("coverage", "set_coverage"), ("set_size", "set_size")):
        values = [float(row[name]) for row in classes]
        weights = [int(count) for count in images]
        assert np.average(values, weights=weights) == pytest.approx(summary[mean])
    # The same from the model that the run left.
    model = cifnet_pl.load(run, device="cpu")
    squares = np.stack([read_square(file, 8) for file in unknown.iterdir()])
    z = model.embed(torch.from_numpy(squares).permute(0, 3, 1, 2))
    auroc, _ = detection(model.head.novelty(model.buffer.z), model.head.novelty(z))
    assert auroc > 95


def test_without_unknown_images_and_calibration_nothing_is_measured(tmp_path, capsys):
    run = learned(tmp_path, *RIDGE)
    row = rows(run / "tasks.csv")[-1]
    assert not (run / "prediction_sets.csv").exists()
    assert "Unknown" not in capsys.readouterr().out
    assert [row[name] for name in COLUMNS] == [""] * 5


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ("--data.unknown {tmp}/none", ["--data.unknown", "{tmp}/none"]),
        ("--data.unknown {tmp}/bad", ["{tmp}/bad/1.png", "{tmp}/bad/2.png"]),
        ("--data.unknown {tmp}/bad --data.on_corrupt skip", ["none", "{tmp}/bad"]),
        ("--data.unknown {tmp}/bad --model.head NCMHead", ["NCMHead", "novelty"]),
    ],
)
def test_refusals(options: str, reasons: list[str], tmp_path: Path, capsys) -> None:
    (tmp_path / "bad").mkdir()
    for name in ("1.png", "2.png"):
        (tmp_path / "bad" / name).write_bytes(b"no image")
    words = options.format(tmp=tmp_path).split()
    assert fit(tmp_path / "logs", *RIDGE, *words) in (1, 2)
    message = " ".join(capsys.readouterr().err.split())
    for part in reasons:
        assert part.format(tmp=tmp_path) in message
    assert "Traceback" not in message
