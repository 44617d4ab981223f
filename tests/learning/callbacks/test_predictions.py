"""What a run keeps of each class, image and neuron, however it was interrupted and in however many
processes.
"""

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger

from cifnet_pl.data.streams import TaskFree
from cifnet_pl.heads import RidgeHead
from cifnet_pl.learning.callbacks import ActivationTable, TaskMetrics
from tests.command_line import fit, learned, summary_of
from tests.lightning_runs import digits, module, trainer

KEEP = ["--predictions.every_task", "true", "--data.class_order", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of five tasks that was never interrupted."""
    return learned(tmp_path_factory.mktemp("whole"), *KEEP)


@pytest.fixture(scope="module")
def predictions(whole):
    """All predictions of that run, and whether each is right."""
    table = pd.read_parquet(whole / "predictions.parquet")
    top = table[[f"top_{k}" for k in range(1, 6)]]
    in_top = top.eq(table["label"], axis=0).any(axis=1)
    return table.assign(right=table["top_1"] == table["label"], in_top=in_top)


def test_predictions_agree_with_accuracies_and_confusions(whole, predictions):
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


def test_top5_is_the_share_of_images_whose_class_is_among_five(whole, predictions):
    shares = 100 * predictions.groupby("task")["in_top"].mean().astype(float)
    shares[:2] = np.nan  # with up to five classes it says nothing
    top5 = pd.read_csv(whole / "tasks.csv")["top5"]
    assert list(top5) == pytest.approx(list(shares), nan_ok=True)
    summary = summary_of(whole)
    assert summary["top5"] == top5.iloc[-1]
    assert summary["forward_transfer"] is None
    first = predictions.iloc[0]
    assert first[["top_3", "probability_3"]].isna().all()
    assert first["probability_1"] >= first["probability_2"]


def test_an_interrupted_run_has_the_same_files(whole, tmp_path):
    run = learned(tmp_path, *KEEP, "--data.max_tasks", "2")
    assert (run / "confusion.csv").is_file()
    # What a kill before the end of the run leaves.
    for name in ("summary.json", "confusion.png"):
        (run / name).unlink()
    assert fit(tmp_path, *KEEP, "--ckpt_path", "last") == 0
    assert (run / "confusion.png").is_file()
    files = (whole / "predictions.parquet").iterdir()
    tables = [file.relative_to(whole) for file in files]
    assert len(tables) == 5
    for name in ("class_accuracy.csv", "confusion.csv", *tables):
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_table_is_what_the_stored_head_gives(tmp_path):
    learner = module()
    logger = CSVLogger(tmp_path, "", "")
    run = trainer(tmp_path, TaskMetrics(), ActivationTable(), logger=logger)
    run.fit(learner, datamodule=digits(max_tasks=3))
    images = learner.data.source.test
    pixels = np.stack([images.image(i).square(8) for i in range(len(images))])
    z = learner.backbone(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    largest = torch.sigmoid(learner.head(z)).numpy()
    # Classes are learned in the order of the source here: two a task, label c in task c // 2.
    expected = np.empty((3, 3))
    for i in range(3):
        of_task = largest[images.labels // 2 == i].reshape(-1, 3, 2)
        expected[i] = of_task.max(axis=2).mean(axis=0)
    table = pd.read_csv(tmp_path / "activations.csv", index_col="image_task")
    assert list(table) == [f"neurons_{task}" for task in table.index]
    np.testing.assert_allclose(table.to_numpy(), expected, rtol=1e-5)


def test_a_task_that_brings_no_class_has_no_neurons(tmp_path):
    callbacks = [TaskMetrics(), ActivationTable()]
    run = trainer(tmp_path, *callbacks, logger=CSVLogger(tmp_path, "", ""))
    stream = TaskFree(100)
    run.fit(module(head=RidgeHead), datamodule=digits(max_tasks=2, stream=stream))
    table = pd.read_csv(tmp_path / "activations.csv", index_col="image_task")
    assert table.loc[1, "neurons_1"] > 0
    assert table.loc[1, "neurons_2"] == 0
