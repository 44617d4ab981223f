"""Write a run's record into its folder and into TensorBoard."""

from __future__ import annotations

from typing import cast

import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.run_description import configuration, describe_run
from cifnet_pl.learning.run_record import (
    TENSORBOARD_TAGS,
    RunRecord,
    run_folder,
    write_table,
)
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import flatten, write_json, write_text

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
        """Remove the end of a finished run that goes on; write a configuration if there is none."""
        folder = run_folder(trainer)
        if not trainer.is_global_zero or folder is None:
            return
        # A run with a summary is complete.
        for name in ("summary.json", "confusion.csv", "confusion.png"):
            (folder / name).unlink(missing_ok=True)
        if not (folder / "config.yaml").exists():
            options = configuration(cast(TaskModule, pl_module))
            text = yaml.safe_dump(options, sort_keys=False, allow_unicode=True)
            write_text(folder / "config.yaml", text)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the tables, and log the task to TensorBoard."""
        if trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        record = module.record
        module.add_to_history(record.rows[-1])
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            record.write_tables(folder, module.learned_tasks)
            for logger in trainer.loggers:
                logger.log_metrics(logged_values(record), step=len(record.rows))
        assert module.evaluation is not None
        if module.tasks_finished == trainer.max_epochs:
            names = module.class_names
            counts = module.evaluation.confusion.tolist()
            rows = [[name, *row] for name, row in zip(names, counts, strict=True)]
            write_table(trainer, "confusion.csv", ["true_class", *names], rows)

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
        counts_others = None
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, EnergyMonitor) and callback.source:
                counts_others = callback.tracking_mode == "machine"
        summary = module.record.summary(
            energy_counts_other_processes=counts_others, **describe_run(module)
        )
        write_json(folder / "summary.json", summary)
        metrics = {f"final/{name}": summary[name] for name in FINAL_METRICS}
        metrics = {name: value for name, value in metrics.items() if value is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flatten(module.settings()), metrics)


def logged_values(record: RunRecord) -> dict[str, float]:
    """Return the values of the last task for TensorBoard, by tag."""
    row = record.rows[-1]
    values = {tag: getattr(row, column) for tag, column in TENSORBOARD_TAGS.items()}
    for task, accuracy in enumerate(record.matrix[-1], 1):
        values[f"acc_of_task/{task}"] = accuracy
    return {tag: float(value) for tag, value in values.items() if value is not None}
