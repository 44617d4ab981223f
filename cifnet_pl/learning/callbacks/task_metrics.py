"""Write a run's record: tables and figures in its folder, the same in TensorBoard."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import cast

import numpy as np
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_description import (
    configuration,
    describe_run,
    plugin_hashes,
)
from cifnet_pl.learning.run_record import (
    TENSORBOARD_TAGS,
    Table,
    run_folder,
)
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.drawing import draw_confusion, draw_trajectory, png
from cifnet_pl.utilities.files import (
    flatten,
    write_bytes,
    write_json,
    write_text,
)
from cifnet_pl.utilities.run_folders import COMPLETE

FINAL_METRICS = ("A_K", "A_bar", "forgetting", "state_elements")
"""Figures of ``summary.json`` in TensorBoard's table of runs."""


class TaskMetrics(Callback):
    """Write the record of a run; comes after the callbacks that fill it, such as EnergyMonitor.

    ``tasks.csv``, ``accuracy_matrix.csv`` and ``class_accuracy.csv`` are written after each task,
    ``confusion.csv`` after the last one: numbers of test images, true classes in rows, predicted
    ones in columns. ``summary.json`` ends the run.
    """

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Remove the end of a finished run that goes on; write a configuration if there is none.

        Plug-ins are hashed before they learn: their files may be edited while the run goes on.
        """
        plugin_hashes(cast(TaskModule, pl_module))
        folder = run_folder(trainer)
        if not trainer.is_global_zero or folder is None:
            return
        # A run with a summary is complete.
        for name in ("summary.json", "confusion.csv", "confusion.png"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / COMPLETE, ignore_errors=True)
        if not (folder / "config.yaml").exists():
            options = configuration(cast(TaskModule, pl_module))
            text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
            write_text(folder / "config.yaml", text)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the tables, log the task to TensorBoard, and add it to the model's history."""
        if trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        record = module.record
        row = record.rows[-1]
        if isinstance(module, CIFNetModule):
            module.model.record_event(
                "task",
                accuracy=row.A_k,
                seconds=row.train_seconds,
                energy_kwh=row.energy_kwh,
                energy_source=row.energy_source,
                class_names=list(module.learned_tasks[-1]),
            )
        if module.tasks_finished == trainer.max_epochs:
            assert module.evaluation is not None
            names = module.class_names
            counts = module.evaluation.confusion.tolist()
            rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
            record.tables["confusion.csv"] = Table(["true_class", *names], rows)
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            record.write_tables(folder, module.learned_tasks)
            values = {}
            for tag, column in TENSORBOARD_TAGS.items():
                if getattr(row, column) is not None:
                    values[tag] = float(getattr(row, column))
            for task, accuracy in enumerate(record.matrix[-1], 1):
                if accuracy is not None:
                    values[f"acc_of_task/{task}"] = accuracy
            for logger in trainer.loggers:
                logger.log_metrics(values, step=len(record.rows))
        record.tables.clear()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``summary.json`` of a run that has learned all its tasks.

        TensorBoard's table of runs gets the settings and the final metrics.
        """
        folder = run_folder(trainer)
        module = cast(TaskModule, pl_module)
        complete = len(module.record.rows) == trainer.max_epochs
        if not trainer.is_global_zero or folder is None or not complete:
            return
        if not (folder / "tasks.csv").is_file():
            return
        summary = module.record.summary(**describe_run(module))
        write_json(folder / "summary.json", summary)
        metrics = {}
        for name in FINAL_METRICS:
            if summary[name] is not None:
                metrics[f"final/{name}"] = summary[name]
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flatten(module.settings()), metrics)


class TrajectoryPlot(Callback):
    """Draw ``trajectory.png`` when a run ends, and ``confusion.png`` once it has learned all tasks.

    The trajectory shows A_k, Ā and the accuracy matrix.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw both."""
        folder = run_folder(trainer)
        module = cast(TaskModule, pl_module)
        record = module.record
        if not trainer.is_global_zero or folder is None:
            return
        if not (folder / "tasks.csv").is_file():
            return
        title = f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
        classes_seen = [row.classes_seen for row in record.rows]
        average = [row.average for row in record.rows]
        figure = draw_trajectory(
            classes_seen, record.trajectory, average, record.matrix, title
        )
        write_figure(trainer, folder / "trajectory.png", png(figure))
        evaluation = module.evaluation
        complete = module.tasks_finished == trainer.max_epochs
        if complete and evaluation is not None and evaluation.images:
            figure = draw_confusion(evaluation.confusion, module.class_names, title)
            write_figure(trainer, folder / "confusion.png", png(figure))


def write_figure(trainer: Trainer, path: Path, content: bytes) -> None:
    """Write a PNG file, and show it in TensorBoard under the file's name.

    Args:
        trainer: its loggers show the figure, at the number of tasks.
        path: the file.
        content: PNG.
    """
    write_bytes(path, content)
    with Image.open(io.BytesIO(content)) as opened:
        pixels = np.asarray(opened)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            step = trainer.global_step
            logger.experiment.add_image(path.stem, pixels, step, dataformats="HWC")
