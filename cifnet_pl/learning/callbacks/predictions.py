"""Write predictions and activations: after each task, or of ``predict``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import Table, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import TOP_K, top_classes
from cifnet_pl.utilities.files import of_all_processes, to_csv, write_atomic, write_text
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import utf8

PREDICTION_COLUMNS = ["file", "true_class", "class", "probability"]
"""Columns of ``predictions.csv``."""


class PredictionTable(BasePredictionWriter):
    """Write ``predictions.csv``: a row per image, with its true class and the most probable one.

    Args:
        folder: where the file is written.
    """

    def __init__(self, folder: Path):
        super().__init__(write_interval="epoch")
        self.folder = folder
        self._message = ""

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write the predictions of all processes."""
        local: list[tuple[int, int, float]] = []
        for row, label, probability in predictions:
            local += zip(
                row.tolist(), label.tolist(), probability.tolist(), strict=True
            )
        gathered = of_all_processes(local)
        if not trainer.is_global_zero:
            return
        module = cast(TaskModule, pl_module)
        source = module.data.source
        table = []
        for row, label, probability in chain.from_iterable(gathered):
            true_class = source.class_names[int(source.val.labels[row])]
            predicted = module.class_names[label]
            name = source.val.names[row]
            table.append((name, true_class, predicted, f"{probability:.6f}"))
        path = self.folder / "predictions.csv"
        write_text(path, to_csv(PREDICTION_COLUMNS, sorted(table)))
        self._message = f"{len(table)} predictions in {path}"

    def teardown(
        self, trainer: Trainer, pl_module: LightningModule, stage: str
    ) -> None:
        """Print where the predictions are, once the progress bar is gone."""
        if self._message:
            print(self._message, flush=True)


def predictions_table(
    task: int,
    batches: Sequence[Sequence[np.ndarray]],
    images: Sequence[str],
    class_names: Sequence[str],
) -> pd.DataFrame:
    """Return the rows of ``predictions.parquet`` of a task, in the order of the data.

    Args:
        task: number of the task, from 1.
        batches: each the positions (n,) in the test set, true labels (n,), most probable labels
            (n, k) in falling order, and their probabilities (n, k).
        images: names of all test images.
        class_names: by label.
    """
    columns = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    rows, labels, top, probabilities = [column[order] for column in columns]
    names = pd.array([utf8(name) for name in class_names], dtype="string")
    image = [utf8(images[row]) for row in rows]
    table = pd.DataFrame({"task": task, "image": image, "label": names[labels]})
    for k in range(TOP_K):
        name = pd.array([None] * len(table), dtype="string")
        probability = np.full(len(table), np.nan, dtype=np.float32)
        if k < top.shape[1]:
            name = names[top[:, k]]
            probability = probabilities[:, k].astype(np.float32)
        table[f"top_{k + 1}"] = name
        table[f"probability_{k + 1}"] = probability
    return table


class PredictionRecord(Callback):
    """Write the predictions of every task into the folder ``predictions.parquet``.

    There is a file for each task, and in it a row for each test image of a class seen. Columns:
    ``task`` (from 1), ``image`` (its name in the data), ``label`` (its class), and ``top_1`` …
    ``top_5`` with ``probability_1`` … ``probability_5``, null where fewer classes are known. Rows
    are in the order of tasks and then of the data, whatever the number of processes. Parquet's
    readers take the folder as one table.

    Args:
        every_task: whether to write it; needs pyarrow.

    Raises:
        UsageError: pyarrow is not installed.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task
        self._batches: list[list[np.ndarray]] = []
        if every_task:
            optional("pyarrow", "--predictions.every_task", "tables")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Store the predictions of a batch."""
        if not self.every_task or outputs is None:
            return
        columns = (batch.row, batch.label, *top_classes(outputs))
        self._batches.append([column.cpu().numpy() for column in columns])

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of all processes."""
        if not self.every_task or trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        batches = list(chain.from_iterable(of_all_processes(self._batches)))
        self._batches = []
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None and batches:
            task = module.tasks_finished
            images = module.data.source.val.names
            table = predictions_table(task, batches, images, module.class_names)
            path = folder / "predictions.parquet" / f"task_{task:04}.parquet"
            write_atomic(
                path, lambda to: table.to_parquet(to, index=False, compression="zstd")
            )


class ActivationTable(Callback):
    """Measure ``activations.csv`` after each task: how neurons respond to each task's classes.

    Row i, column j is the mean over the test images of task i of the largest activation, the
    sigmoid of the score, among the neurons of task j (fig:buffer_overlapping). Above the diagonal
    are neurons that were added after the images' classes had been learned: without calibration,
    they respond to them. It uses the evaluation that takes place anyway; add it to
    ``trainer.callbacks``. :class:`TaskMetrics` writes the table.
    """

    def on_validation_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Begin without any image."""
        # By batch, (n, 1 + K): task of an image, and the largest activation of each task's neurons.
        self._images: list[Tensor] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the largest activations of a batch."""
        if outputs is None:
            return
        module = cast(CIFNetModule, pl_module)
        sizes = [len(names) for names in module.learned_tasks]
        task_of_label = torch.repeat_interleave(torch.tensor(sizes))
        task = task_of_label[batch.label.cpu()]
        activations = torch.sigmoid(module.head(module.evaluated_embeddings)).cpu()
        by_task = torch.split(activations, sizes, dim=1)
        largest = [part.amax(dim=1) for part in by_task]
        self._images.append(torch.stack([task, *largest], dim=1))

    def on_validation_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Put the table over the images of all processes into the record."""
        if trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        tasks = range(1, len(module.learned_tasks) + 1)
        none = torch.zeros(0, len(tasks) + 1, dtype=torch.float64)
        local = torch.cat([none, *self._images])
        images = torch.cat(of_all_processes(local))
        rows: list[list[Any]] = []
        for task in tasks:
            of_task = images[images[:, 0] == task - 1, 1:]
            means = [None] * len(tasks)
            if len(of_task):
                means = of_task.mean(dim=0).tolist()
            rows.append([task, *means])
        header = ["image_task", *(f"neurons_{task}" for task in tasks)]
        module.record.tables["activations.csv"] = Table(header, rows)
