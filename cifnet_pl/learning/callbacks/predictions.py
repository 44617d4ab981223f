"""Write predictions and activations: after each task, or before a sample is learned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import Table, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import TOP_K, top_classes
from cifnet_pl.utilities.files import (
    of_all_processes,
    to_csv,
    write_atomic,
    write_text,
)
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import utf8

if TYPE_CHECKING:
    import pandas as pd

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
        columns = [torch.cat(column) for column in zip(*predictions, strict=True)]
        gathered = of_all_processes([column.cpu() for column in columns])
        if not trainer.is_global_zero:
            return
        module = cast(TaskModule, pl_module)
        source = module.data.source
        table = []
        for local in gathered:
            for row, label, probability in zip(
                *(c.tolist() for c in local), strict=True
            ):
                true_class = source.class_names[int(source.val.labels[row])]
                name = source.val.names[row]
                table.append(
                    (name, true_class, module.class_names[label], f"{probability:.6f}")
                )
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
    import pandas as pd  # only here: it takes a second and 90 MB

    columns = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    rows, labels, top, probabilities = [column[order] for column in columns]
    # The last name is that of label −1, which stands for no class.
    names = pd.array([*map(utf8, class_names), None], dtype="string")
    image = [utf8(images[row]) for row in rows]
    table = pd.DataFrame({"task": task, "image": image, "label": names[labels]})
    missing = ((0, 0), (0, TOP_K - top.shape[1]))
    top = np.pad(top, missing, constant_values=-1)
    probabilities = probabilities.astype(np.float32)
    probabilities = np.pad(probabilities, missing, constant_values=np.nan)
    for k in range(TOP_K):
        table[f"top_{k + 1}"] = names[top[:, k]]
        table[f"probability_{k + 1}"] = probabilities[:, k]
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
        batches = []
        for local in of_all_processes(self._batches):
            batches += local
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
        """Reset the sums."""
        module = cast(TaskModule, pl_module)
        tasks = len(module.learned_tasks)
        self._sums = torch.zeros(
            tasks, tasks, dtype=torch.float64, device=module.device
        )
        self._images = torch.zeros(tasks, dtype=torch.float64, device=module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the activations of a batch to the rows of its images' tasks."""
        if outputs is None:
            return
        model = cast(CIFNetModule, pl_module)
        sizes = [len(names) for names in model.learned_tasks]
        task_of_label = torch.repeat_interleave(
            torch.tensor(sizes, device=batch.label.device)
        )
        task = task_of_label[batch.label]
        activations = torch.sigmoid(model.head(model.evaluated_embeddings))
        by_task = torch.split(activations, sizes, dim=1)
        largest = torch.stack([part.amax(dim=1) for part in by_task], dim=1)
        self._sums.index_add_(0, task, largest)
        self._images += torch.bincount(task, minlength=len(sizes))

    def on_validation_epoch_end(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Put the table over the images of all processes into the record."""
        if trainer.state.fn != "fit":
            return
        trainer.strategy.reduce(self._sums, reduce_op="sum")
        trainer.strategy.reduce(self._images, reduce_op="sum")
        means = self._sums / self._images[:, None]
        tasks = range(1, len(means) + 1)
        rows: list[list[float | None]] = []
        for task, images, mean in zip(
            tasks, self._images.tolist(), means.tolist(), strict=True
        ):
            if images:
                rows.append([task, *mean])
            else:
                rows.append([task, *[None] * len(mean)])
        header = ["image_task", *(f"neurons_{task}" for task in tasks)]
        module = cast(TaskModule, pl_module)
        module.record.tables["activations.csv"] = Table(header, rows)
