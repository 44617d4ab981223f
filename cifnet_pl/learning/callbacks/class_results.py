"""Write the accuracy of each class after each task, and the confusion matrix of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from cifnet_pl.learning.callbacks.figures import run_title, write_figure
from cifnet_pl.learning.task_callback import TaskCallback, run_folder, write_table
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.drawing import draw_confusion, png
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import CheckpointError, explained


class ClassResults(TaskCallback):
    """Write ``class_accuracy.csv`` after each task, and the confusion matrix at the end of a run.

    ``class_accuracy.csv`` has a row per class, in the order of learning: its task, its number of
    test images at the end, and its accuracy in percent after each task. ``confusion.csv`` has
    numbers of test images, true classes in rows and predicted classes in columns;
    ``confusion.png`` shows them.

    Attributes:
        history: for each task, (2, C) int64: correct predictions and test images of each class.
    """

    def __init__(self) -> None:
        self.history: list[Tensor] = []

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Remove the confusion matrix of a finished run that goes on with more tasks."""
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            (folder / "confusion.csv").unlink(missing_ok=True)
            (folder / "confusion.png").unlink(missing_ok=True)

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Write the table, and after the last task the matrix."""
        assert module.evaluation is not None
        confusion = module.evaluation.confusion
        correct = confusion.diagonal()
        images = confusion.sum(axis=1)
        counts = np.stack([correct, images])
        self.history.append(torch.from_numpy(counts))
        last = module.tasks_finished
        first = last - len(self.history) + 1
        columns = [f"after_task_{task}" for task in range(first, last + 1)]
        header = ["class", "task", "test_images", *columns]
        write_table(trainer, "class_accuracy.csv", header, self._rows(module))
        if last == trainer.max_epochs:
            _write_confusion(trainer, confusion, module.class_names, last)

    def _rows(self, module: TaskModule) -> list[list[Any]]:
        """Return the rows of ``class_accuracy.csv``."""
        images = self.history[-1][1].tolist()
        rows: list[list[Any]] = []
        for task, names in enumerate(module.learned_tasks, 1):
            for name in names:
                label = len(rows)
                rows.append([name, task, images[label], *self._accuracies(label)])
        return rows

    def _accuracies(self, label: int) -> list[float | None]:
        """Return the accuracy of a class after each task; None before it was learned."""
        accuracies: list[float | None] = []
        for counts in self.history:
            if label < counts.shape[1]:
                correct, images = counts[:, label].tolist()
                accuracies.append(percent(correct, images))
            else:
                accuracies.append(None)
        return accuracies

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all tasks, for the checkpoint."""
        return {"counts": list(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts of the checkpoint; CheckpointError if they are damaged."""
        message = "the checkpoint is damaged, its class accuracies cannot be read"
        with explained(CheckpointError, message):
            self.history = list(state_dict["counts"])


def _write_confusion(
    trainer: Trainer, confusion: np.ndarray, names: list[str], step: int
) -> None:
    """Write the confusion matrix as a table and as a figure."""
    rows = [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
    write_table(trainer, "confusion.csv", ["true_class", *names], rows)
    folder = run_folder(trainer)
    if trainer.is_global_zero and folder is not None and confusion.any():
        figure = draw_confusion(confusion, names, run_title(folder))
        write_figure(trainer, folder / "confusion.png", png(figure), step)
