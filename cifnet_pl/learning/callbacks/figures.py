"""Draw a run's confusion matrix and trajectory, and show them in TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path
from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary

from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.drawing import draw_confusion, draw_trajectory, png
from cifnet_pl.utilities.files import write_bytes

RGBA = 4
"""TensorBoard's number for the colours of PNG files with transparency, which matplotlib writes."""


def write_figure(trainer: Trainer, path: Path, content: bytes, step: int) -> None:
    """Write a PNG file, and show it in TensorBoard under the file's name.

    Args:
        trainer: its loggers show the figure.
        path: the file.
        content: PNG.
        step: position on TensorBoard's axis.
    """
    write_bytes(path, content)
    with Image.open(io.BytesIO(content)) as opened:
        width, height = opened.size
    # Not ``add_image``: it would decode the file into floats, three times over, and encode it
    # again.
    image = Summary.Image(
        height=height, width=width, colorspace=RGBA, encoded_image_string=content
    )
    summary = Summary(value=[Summary.Value(tag=path.stem, image=image)])
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment.file_writer.add_summary(summary, step)


def run_title(folder: Path) -> str:
    """Return the title of figures of the run in a folder."""
    return f"{folder.parent.name}, {folder.name.replace('_', ' ')}"


class TrajectoryPlot(Callback):
    """Draw ``confusion.png`` after the last task, and ``trajectory.png`` when the run ends.

    The trajectory shows A_k, Ā and the accuracy matrix.
    """

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the confusion matrix after the last task."""
        module = cast(TaskModule, pl_module)
        last = module.tasks_finished == trainer.max_epochs
        if trainer.state.fn != "fit" or not last or module.evaluation is None:
            return
        folder = run_folder(trainer)
        confusion = module.evaluation.confusion
        if trainer.is_global_zero and folder is not None and confusion.any():
            figure = draw_confusion(confusion, module.class_names, run_title(folder))
            step = module.tasks_finished
            write_figure(trainer, folder / "confusion.png", png(figure), step)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the trajectory."""
        folder = run_folder(trainer)
        record = cast(TaskModule, pl_module).record
        if not trainer.is_global_zero or folder is None:
            return
        if not (folder / "tasks.csv").is_file():
            return
        classes_seen = [row.classes_seen for row in record.rows]
        average = [row.average for row in record.rows]
        figure = draw_trajectory(
            classes_seen, record.trajectory, average, record.matrix, run_title(folder)
        )
        write_figure(trainer, folder / "trajectory.png", png(figure), len(record.rows))
