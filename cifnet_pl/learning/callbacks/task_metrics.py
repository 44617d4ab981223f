"""Record the measurements of each task in the run's folder, in TensorBoard and in checkpoints."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.data.loading import EmbeddingBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.energy import Energy, EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import PrequentialAccuracy
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_description import configuration, describe_run
from cifnet_pl.learning.run_record import TENSORBOARD_TAGS, RunRecord, TaskRow
from cifnet_pl.learning.task_callback import TaskCallback, callback_of, run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import average_accuracy, forgetting
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import flatten, of_all_processes, write_json, write_text

FINAL_METRICS = ("A_K", "A_bar", "forgetting", "state_elements")
"""Figures of ``summary.json`` in TensorBoard's table of runs."""


class TaskMetrics(TaskCallback):
    """Write ``tasks.csv``, ``accuracy_matrix.csv`` and ``summary.json``; comes after EnergyMonitor.

    The record is part of the checkpoint, so a run that goes on has all its rows. The time that an
    open task has taken is stored too: it counts if the run goes on inside that task, not if the
    task is learned again from its beginning.

    Attributes:
        record: the measurements so far.
    """

    def __init__(self) -> None:
        self.record = RunRecord()
        self._task_start: float | None = None  # None between tasks
        self._stored_seconds = 0.0  # of the open task, in earlier runs
        self._train_seconds = 0.0
        self._cached_images = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that all tasks that were learned before were measured.

        Raises:
            CheckpointError: they were not.
        """
        learned = cast(TaskModule, pl_module).tasks_finished
        measured = len(self.record.rows)
        if learned != measured:
            raise CheckpointError(
                f"{learned} tasks are learned, but the record holds measurements of {measured}: "
                "go on from a checkpoint that has both, such as last.ckpt of the run's folder"
            )

    def on_train_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Start the clock of a task; write the configuration of a run without command line."""
        module = cast(TaskModule, pl_module)
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            _prepare_folder(folder, module)
        if module.resumes_inside_task:
            earlier = self._stored_seconds
        else:
            earlier = module.preparation_seconds
        self._task_start = time.perf_counter() - earlier
        self._stored_seconds = 0.0
        self._cached_images = 0

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Count images whose embeddings were read from the cache."""
        images = isinstance(cast(TaskModule, pl_module).data.source.train, ImageSet)
        if images and isinstance(batch, EmbeddingBatch):
            self._cached_images += len(batch.label)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock of the task."""
        if self._task_start is not None:
            self._train_seconds = time.perf_counter() - self._task_start
            self._task_start = None

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Add the task's row, write the tables, log to TensorBoard.

        All processes call this; the first one writes.
        """
        row = self._record_task(trainer, module)
        if isinstance(module, CIFNetModule):
            # The model's history, which is stored with it.
            module.model.record_event(
                "task",
                accuracy=row.A_k,
                seconds=row.train_seconds,
                energy_kwh=row.energy_kwh,
                energy_source=row.energy_source,
                class_names=list(module.learned_tasks[-1]),
            )
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            self.record.write_tables(folder)
            for logger in trainer.loggers:
                logger.log_metrics(self._logged(row), step=row.task)

    def _logged(self, row: TaskRow) -> dict[str, float]:
        """Return the values of a task for TensorBoard, by tag."""
        values = {tag: getattr(row, column) for tag, column in TENSORBOARD_TAGS.items()}
        for task, accuracy in enumerate(self.record.matrix[-1], 1):
            values[f"acc_of_task/{task}"] = accuracy
        return {tag: float(value) for tag, value in values.items() if value is not None}

    def _record_task(self, trainer: Trainer, module: TaskModule) -> TaskRow:
        """Add the row, the accuracies and the energy of a task to the record; return the row."""
        evaluation = module.evaluation
        assert evaluation is not None
        record = self.record
        record.matrix.append(list(evaluation.task_accuracy))
        elements = module.state_elements()
        row = TaskRow(
            task=len(record.matrix),
            classes_seen=len(module.class_names),
            A_k=evaluation.accuracy,
            average=average_accuracy([*record.trajectory, evaluation.accuracy]),
            forgetting=forgetting(record.matrix),
            ece=evaluation.ece,
            train_seconds=self._train_seconds,
            solve_seconds=module.solve_seconds,
            eval_seconds=evaluation.seconds,
            energy_kwh=None,
            energy_source=None,
            state_elements=sum(elements.values()),
            buffer_elements=elements.get("buffer", 0),
            eval_energy_kwh=None,
            nll=evaluation.nll,
            top5=evaluation.top5,
            cached_images=sum(of_all_processes(self._cached_images)),
            A_k_classifier=evaluation.accuracy_by_classifier.get("classifier"),
            A_k_nearest_mean=evaluation.accuracy_by_classifier.get("nearest_mean"),
            waiting_seconds=getattr(trainer.train_dataloader, "waiting_seconds", None),
        )
        monitor = callback_of(trainer, EnergyMonitor)
        if monitor is not None:
            row.energy_source = monitor.source
            if monitor.learning is not None:
                row.energy_kwh = monitor.learning.total
                self._add_energy(monitor.learning)
            if monitor.evaluation is not None:
                row.eval_energy_kwh = monitor.evaluation.total
        coverage = callback_of(trainer, CoverageAndNoveltyMetrics)
        if coverage is not None:
            for column, value in coverage.measured.items():
                setattr(row, column, value)
        record.rows.append(row)
        return row

    def _add_energy(self, energy: Energy) -> None:
        total = self.record.energy
        for component, used in asdict(energy).items():
            total[component] = total.get(component, 0.0) + used

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``summary.json`` of a run that has learned all its tasks.

        TensorBoard's table of runs gets the settings and the final metrics.
        """
        folder = run_folder(trainer)
        module = cast(TaskModule, pl_module)
        complete = len(self.record.rows) == trainer.max_epochs
        if not trainer.is_global_zero or folder is None or not complete:
            return
        if not (folder / "tasks.csv").is_file():
            return
        transfer = None
        prequential = callback_of(trainer, PrequentialAccuracy)
        if prequential is not None:
            transfer = prequential.forward_transfer()
        counts_others = None
        monitor = callback_of(trainer, EnergyMonitor)
        if monitor is not None and monitor.source:
            counts_others = monitor.tracking_mode == "machine"
        summary = self.record.summary(
            forward_transfer=transfer,
            energy_counts_other_processes=counts_others,
            **describe_run(module),
        )
        write_json(folder / "summary.json", summary)
        metrics = {f"final/{name}": summary[name] for name in FINAL_METRICS}
        metrics = {name: value for name, value in metrics.items() if value is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flatten(module.settings()), metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the record and the seconds that an open task has taken, for the checkpoint."""
        seconds = 0.0
        if self._task_start is not None:
            seconds = time.perf_counter() - self._task_start
        return {**asdict(self.record), "open_seconds": seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint; CheckpointError if it is damaged."""
        message = "the checkpoint is damaged, its measurements cannot be read"
        with explained(CheckpointError, message):
            self.record = RunRecord.from_state_dict(state_dict)
            self._stored_seconds = float(state_dict["open_seconds"])


def _prepare_folder(folder: Path, module: TaskModule) -> None:
    """Remove the summary of a finished run that goes on; write a configuration if there is none."""
    # A run with this file is complete.
    (folder / "summary.json").unlink(missing_ok=True)
    if not (folder / "config.yaml").exists():
        text = yaml.safe_dump(
            configuration(module), sort_keys=False, allow_unicode=True
        )
        write_text(folder / "config.yaml", text)
