"""Write the metrics of each task into files and TensorBoard: accuracies, forgetting, ECE, times, energy, memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, cast

import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.data.loading import EmbeddingBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import PrequentialAccuracy
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import (
    RunRecord,
    TaskRow,
    callback_of,
    configuration,
    fingerprint,
    machine,
    package_commit,
    run_folder,
)
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, flat_settings
from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.metrics import average_accuracy, forgetting
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.files import of_all_processes, write_text

TAGS = {
    "acc/seen": "A_k",
    "acc/average": "average",
    "acc/top5": "top5",
    "acc/classifier": "A_k_classifier",
    "acc/nearest_mean": "A_k_nearest_mean",
    "forgetting": "forgetting",
    "ece": "ece",
    "nll": "nll",
    "energy/kwh": "energy_kwh",
    "memory/state_elements": "state_elements",
    "sets/size": "set_size",
    "sets/coverage": "set_coverage",
    "unknown/called": "called_unknown",
    "unknown/auroc": "unknown_auroc",
    "unknown/fpr95": "unknown_fpr95",
    "seconds/train": "train_seconds",
    "seconds/evaluation": "eval_seconds",
}
"""TensorBoard's tag → column of ``tasks.csv``."""


class TaskMetrics(TaskCallback):
    """Keeps the run's record and writes its folder's files; must come after :class:`EnergyMonitor`.

    The record is part of the checkpoint, so a run that goes on has all its rows. So is the time that a task under way
    has taken: it counts if the run goes on inside that task, not if the task is learned again from its beginning.
    """

    def __init__(self) -> None:
        self.record = RunRecord()
        self._start: float | None = None  # of the task under way
        self._before_stop = 0.0  # seconds that the task under way took in earlier runs
        self._train_seconds = 0.0
        self._cached = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that everything that was learned before was measured.

        Raises:
            CheckpointError: it was not.
        """
        learned, measured = cast(TaskModule, pl_module).tasks_finished, len(self.record.rows)
        if learned != measured:
            raise CheckpointError(
                f"{learned} tasks are learned, but the record holds measurements of {measured}: "
                "go on from a checkpoint that has both, such as last.ckpt of the run's folder"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a task; remove the summary of a finished run that goes on with more tasks."""
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            (folder / "summary.json").unlink(missing_ok=True)
            if not (folder / "config.yaml").exists():  # the command line has written its own
                config = yaml.safe_dump(configuration(cast(TaskModule, pl_module)), sort_keys=False, allow_unicode=True)
                write_text(folder / "config.yaml", config)
        module = cast(TaskModule, pl_module)
        earlier = self._before_stop if module.goes_on_inside else module.preparing
        self._start, self._cached, self._before_stop = time.perf_counter() - earlier, 0, 0.0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count images whose embeddings were read from the cache."""
        images = isinstance(cast(TaskModule, pl_module).data.source.train, ImageSet)
        if images and isinstance(batch, EmbeddingBatch):
            self._cached += len(batch.label)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note how long the task took to learn."""
        if self._start is not None:
            self._train_seconds, self._start = time.perf_counter() - self._start, None

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Add the task's row, write the tables, log."""
        self._add_row(trainer, module)
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            self.record.write_tables(folder)
            row = self.record.rows[-1]
            values = {tag: getattr(row, column) for tag, column in TAGS.items()}
            values |= {f"acc_of_task/{j}": value for j, value in enumerate(self.record.matrix[-1], 1)}
            measured = {tag: float(value) for tag, value in values.items() if value is not None}
            for logger in trainer.loggers:
                logger.log_metrics(measured, step=len(self.record.rows))

    def _add_row(self, trainer: Trainer, module: TaskModule) -> None:
        evaluation, record, energy = module.evaluation, self.record, callback_of(trainer, EnergyMonitor)
        assert evaluation is not None
        record.matrix.append(list(evaluation.task_accuracy))
        record.dates.append(now())
        elements = module.state_elements()
        learning, testing = (energy.learning, energy.evaluation) if energy else (None, None)
        for component, used in asdict(learning).items() if learning else ():
            record.energy[component] = record.energy.get(component, 0.0) + used
        checks = callback_of(trainer, CoverageAndNoveltyMetrics)
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
            energy_kwh=learning.total if learning else None,
            energy_source=energy.source if energy else None,
            state_elements=sum(elements.values()),
            buffer_elements=elements.get("buffer", 0),
            eval_energy_kwh=testing.total if testing else None,
            nll=evaluation.nll,
            top5=evaluation.top5,
            cached_images=sum(of_all_processes(self._cached)),
            A_k_classifier=evaluation.accuracy_by.get("classifier"),
            A_k_nearest_mean=evaluation.accuracy_by.get("nearest_mean"),
            **(checks.measured if checks else {}),
        )
        record.rows.append(row)
        if isinstance(module, CIFNetModule):  # the life of the model, as a bundle tells it
            event = Event(
                "task",
                row.classes_seen,
                accuracy=row.A_k,
                seconds=row.train_seconds,
                energy_kwh=row.energy_kwh,
                energy_source=row.energy_source,
                date=record.dates[-1],
                class_names=list(module.learned_tasks[-1]),
            )
            module.model.history.append(event)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the summary of a run that learned all its tasks, now or before it was interrupted.

        TensorBoard's table of runs gets the settings and the final metrics.
        """
        folder, module = run_folder(trainer), cast(TaskModule, pl_module)
        whole = len(self.record.rows) == trainer.max_epochs
        if not (trainer.is_global_zero and folder is not None and whole and (folder / "tasks.csv").is_file()):
            return
        prequential = callback_of(trainer, PrequentialAccuracy)
        transfer = prequential.forward_transfer() if prequential else None
        self.record.write_summary(folder, forward_transfer=transfer, **about(module))
        summary = self.record.summary()
        names = ("A_K", "A_bar", "forgetting", "state_elements")
        metrics = {f"final/{name}": summary[name] for name in names if summary[name] is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flat_settings(module.settings()), metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the record, for the checkpoint, and the seconds that a task under way has taken."""
        seconds = time.perf_counter() - self._start if self._start is not None else 0.0
        return {**asdict(self.record), "open_seconds": seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint; CheckpointError if it is damaged."""
        try:
            self.record = RunRecord.from_state_dict(state_dict)
            self._before_stop = float(state_dict["open_seconds"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError("the checkpoint is damaged: its measurements cannot be read") from error


def about(module: TaskModule) -> dict[str, Any]:
    """Return what ``summary.json`` says about the run besides its measurements.

    Args:
        module: that learned.
    """
    data, packages = module.data, ("cifnet_pl", "torch", "torchvision", "lightning", "codecarbon")
    seed = os.environ.get("PL_GLOBAL_SEED")
    device = module.trainer.strategy.root_device  # at the end Lightning has moved the module back to the CPU
    components, monitor = module.state_elements(), callback_of(module.trainer, EnergyMonitor)
    return {
        **module.describe(),
        "epochs": module.epochs,
        "state_components": components,
        "state_bytes_per_element": {name: module.bytes_of(name) for name in components},
        "image_size": data.image_shape(module.backbone.preprocessing)[0],
        "seed": int(seed) if seed else None,
        "class_order": module.class_names,
        "tasks": [list(names) for names in module.learned_tasks],
        "data_fingerprint": fingerprint(data.source),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "git_commit": package_commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        **machine(device),
        "processes": module.trainer.world_size,
        "energy_counts_other_processes": monitor.tracking_mode == "machine" if monitor and monitor.source else None,
    }
