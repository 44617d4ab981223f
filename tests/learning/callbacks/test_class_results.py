"""What a run keeps of each class and each image, however it was interrupted and in however many processes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from cifnet_pl.learning.callbacks.pictures import read_confusion
from cifnet_pl.learning.callbacks.prequential import PrequentialAccuracy
from cifnet_pl.learning.evaluation import AnswerCounts
from cifnet_pl.model.metrics import first_classes
from tests.command_line import fit, learned

KEEP = ["--predictions.every_task", "true"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five tasks that was never interrupted."""
    return learned(tmp_path_factory.mktemp("whole"), *KEEP, "--data.class_order", "1")


def test_class_accuracies_confusions_and_predictions_agree_with_the_matrix_of_tasks(whole: Path) -> None:
    table, tasks = rows(whole / "class_accuracy.csv"), rows(whole / "tasks.csv")
    predictions = pq.read_table(whole / "predictions.parquet").to_pylist()
    matrix = rows(whole / "accuracy_matrix.csv")
    for k in range(1, 6):
        task_rows = [row for row in predictions if row["task"] == k]
        right = [row["top_1"] == row["label"] for row in task_rows]
        assert 100 * np.mean(right) == pytest.approx(float(tasks[k - 1]["A_k"]), abs=1e-9)
        for line in table:
            answers = [row["top_1"] == row["label"] for row in task_rows if row["label"] == line["class"]]
            cell = line[f"after_task_{k}"]
            assert cell == "" if int(line["task"]) > k else float(cell) == pytest.approx(100 * np.mean(answers))
        for j in range(1, k + 1):
            known = {line["class"] for line in table if int(line["task"]) == j}
            share = 100 * np.mean([r for r, row in zip(right, task_rows, strict=True) if row["label"] in known])
            assert share == pytest.approx(float(matrix[k - 1][f"task_{j}"]))
    names, confusion = read_confusion(whole / "confusion.csv")
    assert names == [line["class"] for line in table]
    last = [row for row in predictions if row["task"] == 5]
    for row in last:
        confusion[names.index(row["label"]), names.index(row["top_1"])] -= 1
    assert not confusion.any()
    assert [int(line["test_images"]) for line in table] == [sum(r["label"] == n for r in last) for n in names]


def test_top5_is_the_share_of_images_whose_class_is_among_five(whole: Path) -> None:
    predictions = pq.read_table(whole / "predictions.parquet").to_pylist()
    tasks = rows(whole / "tasks.csv")
    assert [line["top5"] for line in tasks[:2]] == ["", ""]  # with up to five classes it says nothing
    for k in (3, 4, 5):
        task_rows = [row for row in predictions if row["task"] == k]
        hits = [row["label"] in [row[f"top_{i}"] for i in range(1, 6)] for row in task_rows]
        assert float(tasks[k - 1]["top5"]) == pytest.approx(100 * np.mean(hits))
    assert json.loads((whole / "summary.json").read_text())["top5"] == float(tasks[4]["top5"])
    first = next(row for row in predictions if row["task"] == 1)
    assert first["top_3"] is None
    assert first["probability_3"] is None
    assert first["probability_1"] >= first["probability_2"]


def test_an_interrupted_run_has_the_same_files(whole: Path, tmp_path: Path) -> None:
    options = [*KEEP, "--data.class_order", "1"]
    run = learned(tmp_path, *options, "--data.max_tasks", "2")
    assert (run / "confusion.csv").is_file()
    assert fit(tmp_path, *options, "--data.max_tasks", "4", "--ckpt_path", "last") == 0
    # What a kill before the end of the run leaves: the tasks' parts, and neither a summary nor the whole file.
    for name in ("summary.json", "confusion.png"):
        (run / name).unlink()
    assert fit(tmp_path, *options, "--ckpt_path", "last") == 0
    for name in ("class_accuracy.csv", "confusion.csv", "confusion.png", "predictions.parquet"):
        if name == "confusion.png":
            assert (run / name).is_file()
        else:
            assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    assert not list(run.glob(".predictions"))


def test_forward_transfer_is_known_only_where_classes_return(whole: Path, tmp_path: Path) -> None:
    assert json.loads((whole / "summary.json").read_text())["forward_transfer"] is None
    stream = ["--data.stream", "Returning", "--data.max_tasks", "3"]
    run = learned(tmp_path, "--model.head", "RidgeHead", *stream)
    callback = PrequentialAccuracy()
    callback.rows = [[2, 50, 40, 4], [3, 20, 5, 5]]
    assert callback.forward_transfer() == pytest.approx(((80 - 25) + (25 - 20)) / 2)
    result = json.loads((run / "summary.json").read_text())["forward_transfer"]
    shares = [float(line["accuracy"]) for line in rows(run / "prequential.csv")]
    assert -100 < result < np.mean(shares)


def test_counts_follow_argmax_where_probabilities_are_equal() -> None:
    probabilities = torch.tensor([[0.2] * 6, [0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    target = torch.tensor([5, 5])
    counts = AnswerCounts(6)
    counts.update(probabilities, target)
    confusion, hits = counts.compute()
    columns, _ = first_classes(probabilities)
    assert int(hits) == int((columns == target[:, None]).any(dim=1).sum()) == 0
    assert torch.equal(columns[:, 0], probabilities.argmax(dim=1))
    assert confusion[5].sum() == 2
    parts = [AnswerCounts(6), AnswerCounts(6)]
    for part, row in zip(parts, (0, 1), strict=True):
        part.update(probabilities[row : row + 1], target[row : row + 1])
    parts[0].merge_state(parts[1])
    assert torch.equal(parts[0].compute()[0], confusion)
