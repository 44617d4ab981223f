"""Record how strongly the neurons of each task respond to the classes of every other (fig:buffer_overlapping)."""

from __future__ import annotations

from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import run_folder, to_csv
from cifnet_pl.utilities.files import write_text


class ActivationTable(Callback):
    """Writes ``activations.csv`` after each task.

    Row i, column j is the mean over the test images of task i of the largest activation, the sigmoid of the score,
    among the neurons of task j. Above the diagonal are neurons that were added after the images' classes had been
    learned: without calibration, they respond to them. Evaluation is not repeated for it; add it to
    ``trainer.callbacks``.
    """

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with no images."""
        module = cast(CIFNetModule, pl_module)
        tasks = len(module.learned_tasks)
        self._sums = torch.zeros(tasks, tasks, dtype=torch.float64, device=module.device)
        self._counts = torch.zeros(tasks, dtype=torch.float64, device=module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the batch's activations to those of the tasks that its images belong to."""
        if outputs is None:
            return
        module = cast(CIFNetModule, pl_module)
        sizes = [len(names) for names in module.learned_tasks]
        task_of = torch.repeat_interleave(torch.tensor(sizes, device=batch.label.device))[batch.label]
        parts = torch.split(torch.sigmoid(module.head(module.evaluated)), sizes, dim=1)
        largest = torch.stack([column.amax(dim=1) for column in parts], dim=1)
        self._sums.index_add_(0, task_of, largest)
        self._counts += torch.bincount(task_of, minlength=len(sizes))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table over the images of all processes."""
        for total in (self._sums, self._counts):
            trainer.strategy.reduce(total, reduce_op="sum")
        folder = run_folder(trainer)  # asks all processes
        if trainer.state.fn == "fit" and trainer.is_global_zero and folder is not None:
            counted = zip((self._sums / self._counts[:, None]).tolist(), self._counts.tolist(), strict=True)
            body = [[i + 1, *(row if count else [None] * len(row))] for i, (row, count) in enumerate(counted)]
            header = ["image_task", *(f"neurons_{j + 1}" for j in range(len(body)))]
            write_text(folder / "activations.csv", to_csv(header, body))
