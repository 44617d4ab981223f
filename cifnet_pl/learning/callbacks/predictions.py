"""Write the predictions of ``predict``, and the activations after each task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch.nn.functional import pad

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import Table
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import to_csv, write_text
from cifnet_pl.utilities.processes import of_all_processes

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
        pl_module: TaskModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Write the predictions of all processes."""
        # Rows, labels and probabilities; nothing where this process had no batch.
        local = [torch.cat(parts).tolist() for parts in zip(*predictions, strict=True)]
        gathered = of_all_processes(local)
        if not trainer.is_global_zero:
            return
        source = pl_module.data.source
        table = []
        for columns in gathered:
            for row, label, probability in zip(*columns, strict=True):
                true_class = source.class_names[int(source.test.labels[row])]
                predicted = pl_module.class_names[label]
                name = source.test.names[row]
                table.append((name, true_class, predicted, f"{probability:.6f}"))
        path = self.folder / "predictions.csv"
        write_text(path, to_csv(PREDICTION_COLUMNS, sorted(table)))
        self._message = f"{len(table)} predictions in {path}"

    def teardown(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        stage: str,
    ) -> None:
        """Print where the predictions are, once the progress bar is gone."""
        if self._message:
            print(self._message, flush=True)


class ActivationTable(Callback):
    """Measure ``activations.csv`` after each task: how neurons respond to each task's classes.

    Row i, column j is the mean over the test images of task i of the largest activation, the
    sigmoid of the score, among the neurons of task j (fig:buffer_overlapping). Above the diagonal
    are neurons that were added after the images' classes had been learned: without calibration,
    they respond to them. It uses the evaluation that takes place anyway; add it to
    ``trainer.callbacks``. :class:`TaskMetrics` writes the table.
    """

    def on_validation_epoch_start(
        self,
        trainer: Trainer,
        pl_module: TaskModule,
    ) -> None:
        """Begin without any image."""
        tasks = len(pl_module.learned_tasks)
        # By task: images, and sums of the largest activation of each task's neurons.
        self._sums = torch.zeros(tasks, 1 + tasks, dtype=torch.float64)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: CIFNetModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the largest activations of a batch."""
        if outputs is None:
            return
        activations = torch.sigmoid(
            pl_module.head(pl_module.evaluated_embeddings)
        ).cpu()
        by_task = torch.split(activations, pl_module.task_sizes, dim=1)
        # A task may bring no class, and so no neuron: 0.
        largest = [pad(part, (0, 1)).amax(dim=1) for part in by_task]
        ones = torch.ones_like(largest[0])
        rows = torch.stack([ones, *largest], dim=1)
        tasks = pl_module.task_of_label[batch.label.cpu()]
        self._sums.index_add_(0, tasks, rows.double())

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Put the table over the images of all processes into the record."""
        if trainer.state.fn != "fit":
            return
        total = torch.stack(of_all_processes(self._sums)).sum(dim=0)
        tasks = range(1, len(total) + 1)
        rows = []
        for task, (images, *sums) in zip(tasks, total.tolist(), strict=True):
            rows.append([task, *(value / images if images else None for value in sums)])
        header = ["image_task", *(f"neurons_{task}" for task in tasks)]
        record = pl_module.record
        record.tables["activations.csv"] = Table(header, rows)
