"""What a run keeps of each class, image and neuron, however it was interrupted and in however many
processes.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.learning.run_record import PrequentialRow, RunRecord
from tests.command_line import BUFFER, fit, learned, rows

KEEP = ["--predictions.every_task", "true"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of five tasks that was never interrupted."""
    return learned(tmp_path_factory.mktemp("whole"), *KEEP, "--data.class_order", "1")


@pytest.fixture(scope="module")
def predictions(whole: Path) -> pd.DataFrame:
    """All predictions of that run, and whether each is right."""
    table = pd.read_parquet(whole / "predictions.parquet")
    top = table[[f"top_{k}" for k in range(1, 6)]]
    in_top = top.eq(table["label"], axis=0).any(axis=1)
    return table.assign(right=table["top_1"] == table["label"], in_top=in_top)


def test_class_accuracies_confusions_and_predictions_agree_with_the_matrix_of_tasks(
    whole: Path, predictions: pd.DataFrame
) -> None:
    classes = pd.read_csv(whole / "class_accuracy.csv", dtype={"class": str})
    task_of = classes.set_index("class")["task"]
    by_task = predictions.groupby("task")["right"].mean()
    tasks = pd.read_csv(whole / "tasks.csv")
    assert list(tasks["A_k"]) == pytest.approx(list(100 * by_task))
    matrix = pd.read_csv(whole / "accuracy_matrix.csv")
    for k, own in predictions.groupby("task"):
        by_class = 100 * own.groupby("label")["right"].mean()
        wanted = by_class.reindex(classes["class"])
        assert list(classes[f"after_task_{k}"]) == pytest.approx(wanted, nan_ok=True)
        by_task = 100 * own.groupby(own["label"].map(task_of))["right"].mean()
        row = matrix.iloc[k - 1, 1 : k + 1]
        assert list(row) == pytest.approx(list(by_task))
    last = predictions[predictions["task"] == 5]
    confusion = pd.read_csv(whole / "confusion.csv", index_col="true_class")
    assert list(confusion) == list(classes["class"])
    counts = pd.crosstab(last["label"], last["top_1"])
    counts = counts.reindex(list(confusion), columns=list(confusion), fill_value=0)
    assert (counts.to_numpy() == confusion.to_numpy()).all()
    assert list(classes["test_images"]) == list(counts.sum(axis=1))


def test_top5_is_the_share_of_images_whose_class_is_among_five(
    whole: Path, predictions: pd.DataFrame
) -> None:
    shares = 100 * predictions.groupby("task")["in_top"].mean().astype(float)
    shares[:2] = np.nan  # with up to five classes it says nothing
    top5 = pd.read_csv(whole / "tasks.csv")["top5"]
    assert list(top5) == pytest.approx(list(shares), nan_ok=True)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["top5"] == top5.iloc[-1]
    first = predictions.iloc[0]
    assert first[["top_3", "probability_3"]].isna().all()
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
    files = (whole / "predictions.parquet").iterdir()
    tables = [file.relative_to(whole) for file in files]
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


TABLE = "cifnet_pl.learning.callbacks.ActivationTable"
ACTIVATIONS = ["--trainer.callbacks+", TABLE, "--data.max_tasks", "3"]


def activations(run: Path) -> np.ndarray:
    table = pd.read_csv(run / "activations.csv", index_col="image_task")
    assert list(table) == [f"neurons_{task}" for task in table.index]
    return table.to_numpy()


def test_the_table_is_what_the_stored_head_gives(tmp_path: Path) -> None:
    run = learned(tmp_path, *ACTIVATIONS, *BUFFER)
    head = cifnet_pl.load(run / "checkpoints" / "last.ckpt", device="cpu").head
    images = build_source("digits", SourceOptions()).test
    backbone = build_backbone("pixels:8")
    pixels = np.stack([images.image(i).square(8) for i in range(len(images))])
    z = backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    largest = torch.sigmoid(head(z)).numpy()
    # Classes are learned in the order of the source here: two a task, label c in task c // 2.
    expected = np.empty((3, 3))
    for i in range(3):
        of_task = largest[images.labels // 2 == i].reshape(-1, 3, 2)
        expected[i] = of_task.max(axis=2).mean(axis=0)
    np.testing.assert_allclose(activations(run), expected, rtol=1e-5)


def test_calibration_quietens_later_neurons_on_earlier_classes(tmp_path: Path) -> None:
    later = np.triu_indices(3, 1)
    locked = [*ACTIVATIONS, "--model.head.update_past", "false"]
    calibrated = activations(learned(tmp_path / "a", *locked, *BUFFER))
    bare = activations(learned(tmp_path / "b", *locked))
    assert calibrated[later].mean() < bare[later].mean() - 0.1
    own = bare.diagonal().mean()
    assert calibrated.diagonal().mean() == pytest.approx(own, abs=0.15)
