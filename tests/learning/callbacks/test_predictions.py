"""What a run keeps of each class, image and neuron, however it was interrupted and in however many
processes.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import CIFNetHead
from cifnet_pl.learning.run_record import PrequentialRow, RunRecord
from tests.command_line import BUFFER, checkpoint, fit, learned, rows

KEEP = ["--predictions.every_task", "true"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five tasks that was never interrupted."""
    return learned(tmp_path_factory.mktemp("whole"), *KEEP, "--data.class_order", "1")


def test_class_accuracies_confusions_and_predictions_agree_with_the_matrix_of_tasks(
    whole: Path,
) -> None:
    table = rows(whole / "class_accuracy.csv")
    tasks = rows(whole / "tasks.csv")
    predictions = pq.read_table(whole / "predictions.parquet").to_pylist()
    matrix = rows(whole / "accuracy_matrix.csv")
    for k in range(1, 6):
        task_rows = [row for row in predictions if row["task"] == k]
        right = [row["top_1"] == row["label"] for row in task_rows]
        assert 100 * np.mean(right) == pytest.approx(
            float(tasks[k - 1]["A_k"]), abs=1e-9
        )
        for line in table:
            answers = [
                row["top_1"] == row["label"]
                for row in task_rows
                if row["label"] == line["class"]
            ]
            cell = line[f"after_task_{k}"]
            assert (
                cell == ""
                if int(line["task"]) > k
                else float(cell) == pytest.approx(100 * np.mean(answers))
            )
        for j in range(1, k + 1):
            known = {line["class"] for line in table if int(line["task"]) == j}
            share = 100 * np.mean(
                [
                    r
                    for r, row in zip(right, task_rows, strict=True)
                    if row["label"] in known
                ]
            )
            assert share == pytest.approx(float(matrix[k - 1][f"task_{j}"]))
    counts = rows(whole / "confusion.csv")
    names = [line.pop("true_class") for line in counts]
    confusion = np.array([[int(line[name]) for name in names] for line in counts])
    assert names == [line["class"] for line in table]
    last = [row for row in predictions if row["task"] == 5]
    for row in last:
        confusion[names.index(row["label"]), names.index(row["top_1"])] -= 1
    assert not confusion.any()
    assert [int(line["test_images"]) for line in table] == [
        sum(r["label"] == n for r in last) for n in names
    ]


def test_top5_is_the_share_of_images_whose_class_is_among_five(whole: Path) -> None:
    predictions = pq.read_table(whole / "predictions.parquet").to_pylist()
    tasks = rows(whole / "tasks.csv")
    assert [line["top5"] for line in tasks[:2]] == [
        "",
        "",
    ]  # with up to five classes it says nothing
    for k in (3, 4, 5):
        task_rows = [row for row in predictions if row["task"] == k]
        hits = [
            row["label"] in [row[f"top_{i}"] for i in range(1, 6)] for row in task_rows
        ]
        assert float(tasks[k - 1]["top5"]) == pytest.approx(100 * np.mean(hits))
    assert json.loads((whole / "summary.json").read_text())["top5"] == float(
        tasks[4]["top5"]
    )
    first = next(row for row in predictions if row["task"] == 1)
    assert first["top_3"] is None
    assert first["probability_3"] is None
    assert first["probability_1"] >= first["probability_2"]


def test_an_interrupted_run_has_the_same_files(whole: Path, tmp_path: Path) -> None:
    options = [*KEEP, "--data.class_order", "1"]
    run = learned(tmp_path, *options, "--data.max_tasks", "2")
    assert (run / "confusion.csv").is_file()
    assert fit(tmp_path, *options, "--data.max_tasks", "4", "--ckpt_path", "last") == 0
    # What a kill before the end of the run leaves.
    for name in ("summary.json", "confusion.png"):
        (run / name).unlink()
    assert fit(tmp_path, *options, "--ckpt_path", "last") == 0
    assert (run / "confusion.png").is_file()
    tables = [
        file.relative_to(whole) for file in (whole / "predictions.parquet").iterdir()
    ]
    assert len(tables) == 5
    for name in ("class_accuracy.csv", "confusion.csv", *tables):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_forward_transfer_is_known_only_where_classes_return(
    whole: Path, tmp_path: Path
) -> None:
    assert json.loads((whole / "summary.json").read_text())["forward_transfer"] is None
    stream = ["--data.stream", "Returning", "--data.max_tasks", "3"]
    run = learned(tmp_path, "--model.head", "RidgeHead", *stream)
    seen = [PrequentialRow(2, 50, 40, 4), PrequentialRow(3, 20, 5, 5)]
    assert RunRecord(prequential=seen).forward_transfer() == pytest.approx(
        ((80 - 25) + (25 - 20)) / 2
    )
    result = json.loads((run / "summary.json").read_text())["forward_transfer"]
    shares = [float(line["accuracy"]) for line in rows(run / "prequential.csv")]
    assert -100 < result < np.mean(shares)


ACTIVATIONS = [
    "--trainer.callbacks+",
    "cifnet_pl.learning.callbacks.ActivationTable",
    "--data.max_tasks",
    "3",
]


def activations(run: Path) -> np.ndarray:
    with (run / "activations.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        "image_task",
        *(f"neurons_{j + 1}" for j in range(len(rows) - 1)),
    ]
    assert [row[0] for row in rows[1:]] == [str(i + 1) for i in range(len(rows) - 1)]
    return np.array([row[1:] for row in rows[1:]], dtype=float)


def test_the_table_is_what_the_stored_head_gives(tmp_path: Path) -> None:
    run = learned(tmp_path, *ACTIVATIONS, *BUFFER)
    result = activations(run)
    state = checkpoint(run)
    head = CIFNetHead(192)
    head.load_state_dict(
        {
            k.removeprefix("head."): v
            for k, v in state["state_dict"].items()
            if k.startswith("head.")
        }
    )
    images = build_source("digits", SourceOptions()).test
    backbone = build_backbone("pixels:8")
    pixels = np.stack([images.image(i).square(8) for i in range(len(images))])
    largest = torch.sigmoid(
        head(backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2)))
    ).numpy()
    # Classes are learned in the order of the source here: two a task, label c in task c // 2.
    of = [largest[images.labels // 2 == i] for i in range(3)]
    expected = [
        [shown[:, 2 * j : 2 * j + 2].max(axis=1).mean() for j in range(3)]
        for shown in of
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_calibration_quietens_later_neurons_on_earlier_classes(tmp_path: Path) -> None:
    later = np.triu_indices(3, 1)
    calibrated = activations(
        learned(
            tmp_path / "a", *ACTIVATIONS, *BUFFER, "--model.head.update_past", "false"
        )
    )
    bare = activations(
        learned(tmp_path / "b", *ACTIVATIONS, "--model.head.update_past", "false")
    )
    assert calibrated[later].mean() < bare[later].mean() - 0.1
    assert calibrated.diagonal().mean() == pytest.approx(
        bare.diagonal().mean(), abs=0.15
    )
