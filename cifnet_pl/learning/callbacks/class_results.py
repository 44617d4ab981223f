"""Record the accuracy of each class after every task, and at the end which classes are mistaken for which."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from cifnet_pl.learning.callbacks.pictures import keep_picture
from cifnet_pl.learning.callbacks.run_folder import run_folder
from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.files import write_text

ACCURACY_FILE, CONFUSION_FILE, PICTURE_FILE = "class_accuracy.csv", "confusion.csv", "confusion.png"


class ClassResults(Callback):
    """Writes ``class_accuracy.csv`` after each task, ``confusion.csv`` and ``confusion.png`` at the end of a run.

    The first has a row per class, in the order of learning: its task, its number of test images at the end, and its
    accuracy in percent after each task. The second has numbers of test images, rows the true classes, columns the
    answers.

    Attributes:
        history: for each task, (2, C) int64: correct answers and test images of each class.
    """

    def __init__(self) -> None:
        self.history: dict[int, Tensor] = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the confusion matrix of a finished run that goes on with more tasks."""
        folder = run_folder(trainer)  # asks all processes
        if trainer.is_global_zero and folder is not None:
            for name in (CONFUSION_FILE, PICTURE_FILE):
                (folder / name).unlink(missing_ok=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the table, and after the last task the matrix."""
        if trainer.state.fn != "fit":
            return
        module, folder = cast(TaskModule, pl_module), run_folder(trainer)
        assert module.evaluation is not None
        confusion = module.evaluation.confusion
        counts = np.stack([confusion.diagonal(), confusion.sum(axis=1)])
        self.history[module.tasks_finished] = torch.from_numpy(counts)
        if trainer.is_global_zero and folder is not None:
            write_text(folder / ACCURACY_FILE, self.table(module.learned_tasks))
            if module.tasks_finished == trainer.max_epochs:
                names = module.class_names
                body = [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
                write_text(folder / CONFUSION_FILE, to_csv(["true_class", *names], body))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the matrix from its file, as the run may have been interrupted after it was written."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero or folder is None or not (folder / CONFUSION_FILE).is_file():
            return
        from cifnet_pl.learning.confusion_figure import draw_confusion, png  # matplotlib
        from cifnet_pl.utilities.fonts import lettering

        names, matrix = read_confusion(folder / CONFUSION_FILE)
        if not matrix.sum():
            return
        title = f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
        picture = png(draw_confusion(matrix, names, lettering([title, *names]), title))
        keep_picture(trainer, folder / PICTURE_FILE, picture, len(self.history))

    def table(self, learned: list[list[str]]) -> str:
        """Return the content of ``class_accuracy.csv``.

        A task that was learned before this was recorded has empty cells.

        Args:
            learned: class names of each task.
        """
        names = [name for task in learned for name in task]
        task_of = [k + 1 for k, task in enumerate(learned) for _ in task]
        last = self.history.get(len(learned))
        body: list[list[Any]] = []
        for c, name in enumerate(names):
            tested = None if last is None else int(last[1, c])
            body.append([name, task_of[c], tested, *(self._accuracy(k + 1, c) for k in range(len(learned)))])
        return to_csv(["class", "task", "test_images", *(f"after_task_{k + 1}" for k in range(len(learned)))], body)

    def _accuracy(self, task: int, column: int) -> float | None:
        counts = self.history.get(task)
        if counts is None or column >= counts.shape[1]:
            return None
        return percent(int(counts[0, column]), int(counts[1, column]))

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all tasks, for the checkpoint."""
        return {"tasks": list(self.history), "counts": list(self.history.values())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts of the checkpoint; CheckpointError if they are damaged."""
        try:
            self.history = dict(zip(state_dict["tasks"], state_dict["counts"], strict=True))
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError("the checkpoint is damaged: its class accuracies cannot be read") from error


def read_confusion(path: Path) -> tuple[list[str], np.ndarray]:
    """Read a ``confusion.csv``.

    Args:
        path: the file.

    Returns:
        The class names, and (C, C) int64 numbers of images.
    """
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = list(csv.reader(file))
    return rows[0][1:], np.array([row[1:] for row in rows[1:]], dtype=np.int64).reshape(len(rows) - 1, -1)
