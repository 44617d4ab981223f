"""After every task: A_k, Ā, accuracy matrix, forgetting, ECE, times, energy, memory; into files and TensorBoard."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.resume import flat_settings
from cifnet_pl.learning.run_record import RunRecord, TaskRow
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import average_accuracy, forgetting
from cifnet_pl.utilities.errors import CheckpointError


class TaskMetrics(Callback):
    """Keeps the run's record and writes its folder's files; must come after :class:`EnergyMonitor`.

    The record is part of the checkpoint, so a run that goes on has all its rows.
    """

    def __init__(self) -> None:
        self.record = RunRecord()
        self._start = 0.0
        self._train_seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that all that was learned before has been measured.

        Raises:
            CheckpointError: it has not.
        """
        learned, measured = cast(TaskModule, pl_module).tasks_finished, len(self.record.rows)
        if learned != measured:
            raise CheckpointError(
                f"{learned} tasks are learned, but the record holds measurements of {measured}: "
                "go on from a checkpoint that has both, such as last.ckpt of the run's folder"
            )

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A task begins; a run that goes on with more tasks is not whole any more."""
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            (folder / "summary.json").unlink(missing_ok=True)
        self._start = time.perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The task is learned."""
        self._train_seconds = time.perf_counter() - self._start

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the task's row, write the tables, log."""
        if trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        self._add_row(module, _energy(trainer))
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            self.record.write_tables(folder)
            for logger in trainer.loggers:
                logger.log_metrics(_tags(self.record.rows[-1]), step=len(self.record.rows))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the summary of a run that learned all its tasks, now or before it was interrupted."""
        folder = run_folder(trainer)
        whole = len(self.record.rows) == trainer.max_epochs
        if trainer.is_global_zero and folder is not None and whole and (folder / "tasks.csv").is_file():
            self.record.write_summary(folder, **about(cast(TaskModule, pl_module)))
            self._log_hyperparameters(trainer, cast(TaskModule, pl_module))

    def _log_hyperparameters(self, trainer: Trainer, module: TaskModule) -> None:
        """TensorBoard's table of runs: settings beside the final metrics."""
        summary = self.record.summary()
        names = ("A_K", "A_bar", "forgetting", "state_elements")
        metrics = {f"final/{name}": summary[name] for name in names if summary[name] is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flat_settings(module.settings()), metrics)

    def state_dict(self) -> dict[str, Any]:
        """The record, for the checkpoint."""
        return self.record.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint; CheckpointError if it is damaged."""
        try:
            self.record = RunRecord.from_state_dict(state_dict)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError("the checkpoint is damaged: its measurements cannot be read") from error

    def _add_row(self, module: TaskModule, monitor: EnergyMonitor | None) -> None:
        evaluation, record = module.evaluation, self.record
        assert evaluation is not None
        record.matrix.append(list(evaluation.task_accuracy))
        elements = module.state_elements()
        learning = monitor.learning if monitor else None
        testing = monitor.evaluation if monitor else None
        if learning is not None:
            for part in ("cpu", "gpu", "ram", "co2_kg"):
                record.energy[part] = record.energy.get(part, 0.0) + getattr(learning, part)
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
            energy_source=monitor.source if monitor else None,
            state_elements=sum(elements.values()),
            buffer_elements=elements.get("buffer", 0),
            eval_energy_kwh=testing.total if testing else None,
            nll=evaluation.nll,
        )
        record.rows.append(row)


def run_folder(trainer: Trainer) -> Path | None:
    """The run's folder, or None for a Trainer without a logger."""
    return Path(trainer.log_dir) if trainer.loggers and trainer.log_dir else None


def about(module: TaskModule) -> dict[str, Any]:
    """What ``summary.json`` says about the run apart from its measurements."""
    packages = ("cifnet_pl", "torch", "torchvision", "lightning", "codecarbon")
    seed = os.environ.get("PL_GLOBAL_SEED")
    device = module.trainer.strategy.root_device  # at the end Lightning has moved the module back to the CPU
    return {
        **module.describe(),
        "epochs": module.epochs,
        "state_components": module.state_elements(),
        "image_size": module.data.image_shape(module.backbone.preprocessing)[0],
        "seed": int(seed) if seed else None,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
    }


def _energy(trainer: Trainer) -> EnergyMonitor | None:
    found = [c for c in cast(Any, trainer).callbacks if isinstance(c, EnergyMonitor)]
    return found[0] if found else None


def _tags(row: TaskRow) -> dict[str, float]:
    values = {
        "acc/seen": row.A_k,
        "acc/average": row.average,
        "forgetting": row.forgetting,
        "ece": row.ece,
        "nll": row.nll,
        "energy/kwh": row.energy_kwh,
        "memory/state_elements": float(row.state_elements),
    }
    return {tag: value for tag, value in values.items() if value is not None}
