"""Write a run's record: tables, predictions and figures in its folder, and TensorBoard's."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from torch.nn.functional import pad

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.held_out import HeldOutImages
from cifnet_pl.learning.callbacks.screen import (
    DuplicatesReport,
    RunTable,
    TaskProgressBar,
)
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_description import (
    configuration,
    describe_run,
    plugin_hashes,
)
from cifnet_pl.learning.run_record import Table, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.drawing import draw_confusion, draw_trajectory, png
from cifnet_pl.model.metrics import TOP_K, top_classes
from cifnet_pl.utilities.files import (
    flatten,
    write_atomic,
    write_bytes,
    write_json,
    write_text,
)
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.run_folders import COMPLETE
from cifnet_pl.utilities.text import utf8

FINAL_METRICS = ("A_K", "A_bar", "forgetting", "state_elements")
"""Figures of ``summary.json`` in TensorBoard's table of runs."""


@dataclass(eq=False)
class TaskMetrics(Callback):
    """Write the record of a run; comes after the callbacks that fill it, such as EnergyMonitor.

    ``tasks.csv``, ``accuracy_matrix.csv`` and ``class_accuracy.csv`` are written after each task,
    ``confusion.csv`` after the last one: numbers of test images, true classes in rows, predicted
    ones in columns. ``summary.json`` ends the run.

    Args:
        config: content of ``config.yaml``; empty to describe the module and its data there.
    """

    config: str = ""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the end of a finished run that goes on, and write its configuration.

        A folder with a configuration is a run's folder.
        Plug-ins are hashed before they learn: their files may be edited while the run goes on.
        """
        plugin_hashes(cast(TaskModule, pl_module))
        folder = run_folder(trainer)
        if folder is None:
            return
        # A run with a summary is complete.
        for name in ("summary.json", "confusion.csv", "confusion.png"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / COMPLETE, ignore_errors=True)
        path = folder / "config.yaml"
        if self.config:
            write_text(path, self.config)
        elif not path.exists():
            options = configuration(cast(TaskModule, pl_module))
            text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
            write_text(path, text)

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
        if module.is_complete:
            assert module.evaluation is not None
            names = module.class_names
            counts = module.evaluation.confusion.tolist()
            rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
            record.tables["confusion.csv"] = Table(["true_class", *names], rows)
        folder = run_folder(trainer)
        if folder is not None:
            record.write_tables(folder, module.learned_tasks)
            values = {}
            for column in record.columns:
                value = vars(row).get(column.task)
                if column.tag and value is not None:
                    values[column.tag] = float(value)
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
        if folder is None or not module.is_complete:
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


def predictions_table(
    task: int, samples: pd.DataFrame, images: Sequence[str], class_names: Sequence[str]
) -> pd.DataFrame:
    """Return the rows of ``predictions.parquet`` of a task, in the order of the data.

    Args:
        task: number of the task, from 1.
        samples: of an evaluation: the true label (``target``), the ``row`` in the test set, and the
            most probable labels with their probabilities, as :class:`PredictionRecord` adds them.
        images: names of all test images.
        class_names: by label.
    """
    samples = samples.sort_values("row", kind="stable")
    names = pd.array([utf8(name) for name in class_names], dtype="string")
    image = [utf8(images[row]) for row in samples["row"]]
    table = pd.DataFrame({"task": task, "image": image})
    table["label"] = names[samples["target"]]
    for k in range(1, TOP_K + 1):
        labels = samples[f"top_{k}"].to_numpy()
        probabilities = samples[f"probability_{k}"].to_numpy()
        table[f"top_{k}"] = names.take(labels, allow_fill=True)
        table[f"probability_{k}"] = probabilities.astype("float32")
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
        """Add the most probable classes to the samples of the evaluation."""
        if not self.every_task or outputs is None:
            return
        judged = cast(TaskModule, pl_module).judged[-1]
        judged["row"] = batch.row
        labels, probabilities = top_classes(outputs)
        # Fewer classes than five may be known.
        missing = (0, TOP_K - labels.shape[1])
        labels = pad(labels, missing, value=-1)
        probabilities = pad(probabilities, missing, value=math.nan)
        for k in range(TOP_K):
            judged[f"top_{k + 1}"] = labels[:, k]
            judged[f"probability_{k + 1}"] = probabilities[:, k]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the predictions of all processes."""
        if not self.every_task or trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        evaluation = module.evaluation
        folder = run_folder(trainer)
        if folder is None or evaluation is None or not evaluation.images:
            return
        task = module.tasks_finished
        images = module.data.source.test.names
        names = evaluation.class_names
        table = predictions_table(task, evaluation.samples, images, names)
        path = folder / "predictions.parquet" / f"task_{task:04}.parquet"
        write_atomic(
            path, lambda to: table.to_parquet(to, index=False, compression="zstd")
        )


class TrajectoryPlot(Callback):
    """Draw ``trajectory.png`` when a run ends, and ``confusion.png`` once it has learned all tasks.

    The trajectory shows A_k, Ā and the accuracy matrix.
    """

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw both."""
        folder = run_folder(trainer)
        module = cast(TaskModule, pl_module)
        record = module.record
        if folder is None or not record.rows:
            return
        title = f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
        classes_seen = [row.classes_seen for row in record.rows]
        average = [row.average for row in record.rows]
        figure = draw_trajectory(
            classes_seen, record.trajectory, average, record.matrix, title
        )
        write_figure(trainer, folder / "trajectory.png", png(figure))
        evaluation = module.evaluation
        if module.is_complete and evaluation is not None and evaluation.images:
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


def run_callbacks(config: str = "", progress_bar: bool = False) -> list[Callback]:
    """Return the callbacks that measure, write and show a run, in the order that they need.

    Those that measure energy come before them, and those that read complete rows after them.

    Args:
        config: content of ``config.yaml``, see :class:`TaskMetrics`.
        progress_bar: whether there is a progress bar.
    """
    callbacks = [
        CoverageAndNoveltyMetrics(),
        TaskMetrics(config),
        TrajectoryPlot(),
        HeldOutImages(),
        DuplicatesReport(),
    ]
    if progress_bar:
        callbacks.append(TaskProgressBar())
    return [*callbacks, RunTable()]
