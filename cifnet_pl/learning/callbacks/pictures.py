"""Save the pictures of a run, in its folder and in TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor

from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics
from cifnet_pl.learning.task_module import (
    TaskCallback,
    TaskModule,
    callback_of,
    run_folder,
    write_table,
)
from cifnet_pl.model.drawing import draw_confusion, draw_trajectory, png
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import write_bytes

RGBA = 4
"""TensorBoard's number for the colours of a PNG file with transparency, which matplotlib writes."""


def keep_picture(trainer: Trainer, path: Path, picture: bytes, step: int) -> None:
    """Write a PNG file, and show its pixels in TensorBoard under the file's name.

    Args:
        trainer: whose loggers show it.
        path: the file.
        picture: its content.
        step: position on TensorBoard's axis.
    """
    write_bytes(path, picture)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # As it is: ``add_image`` would unpack it into floats, three times over, and pack it
            # again.
            width, height = Image.open(io.BytesIO(picture)).size
            image = Summary.Image(
                height=height, width=width, colorspace=RGBA, encoded_image_string=picture
            )
            summary = Summary(value=[Summary.Value(tag=path.stem, image=image)])
            logger.experiment.file_writer.add_summary(summary, step)


class TrajectoryPlot(Callback):
    """Draws the trajectory once, when the run ends."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``trajectory.png`` and add the figure to TensorBoard."""
        folder = run_folder(trainer)
        metrics = callback_of(trainer, TaskMetrics)
        if (
            not trainer.is_global_zero
            or folder is None
            or metrics is None
            or not (folder / "tasks.csv").is_file()
        ):
            return
        record = metrics.record
        classes_seen = [row.classes_seen for row in record.rows]
        average = [row.average for row in record.rows]
        figure = draw_trajectory(
            classes_seen, record.trajectory, average, record.matrix, _title(folder)
        )
        keep_picture(trainer, folder / "trajectory.png", png(figure), len(record.rows))


class ClassResults(TaskCallback):
    """Writes ``class_accuracy.csv`` after each task, ``confusion.csv`` and ``confusion.png`` at the
    end of a run.

    The first has a row per class, in the order of learning: its task, its number of test images at
        the end, and its
    accuracy in percent after each task. The second has numbers of test images, rows the true
    classes, columns the answers.

    Attributes:
        history: for each task, (2, C) int64: correct answers and test images of each class.
    """

    def __init__(self) -> None:
        self.history: list[Tensor] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the confusion matrix of a finished run that goes on with more tasks."""
        folder = run_folder(trainer)  # asks all processes
        if trainer.is_global_zero and folder is not None:
            for name in ("confusion.csv", "confusion.png"):
                (folder / name).unlink(missing_ok=True)

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Write the table, and after the last task the matrix."""
        assert module.evaluation is not None
        confusion = module.evaluation.confusion
        names = module.class_names
        self.history.append(
            torch.from_numpy(np.stack([confusion.diagonal(), confusion.sum(axis=1)]))
        )
        task_of = [k for k, task in enumerate(module.learned_tasks, 1) for _ in task]
        body: list[list[Any]] = []
        for column, (name, task) in enumerate(zip(names, task_of, strict=True)):
            counts = [
                after[:, column].tolist() if column < after.shape[1] else (0, 0)
                for after in self.history
            ]
            body.append(
                [name, task, counts[-1][1], *(percent(right, tested) for right, tested in counts)]
            )
        last = module.tasks_finished
        recorded = range(last - len(self.history) + 1, last + 1)
        header = ["class", "task", "test_images", *(f"after_task_{k}" for k in recorded)]
        write_table(trainer, "class_accuracy.csv", header, body)
        if last == trainer.max_epochs:
            body = [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
            write_table(trainer, "confusion.csv", ["true_class", *names], body)
            folder = run_folder(trainer)  # asks all processes
            if trainer.is_global_zero and folder is not None and confusion.any():
                picture = png(draw_confusion(confusion, names, _title(folder)))
                keep_picture(trainer, folder / "confusion.png", picture, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all tasks, for the checkpoint."""
        return {"counts": list(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts of the checkpoint; CheckpointError if they are damaged."""
        with explained(
            CheckpointError, "the checkpoint is damaged, its class accuracies cannot be read"
        ):
            self.history = list(state_dict["counts"])


def _title(folder: Path) -> str:
    """Return what pictures call the run of a folder."""
    return f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
