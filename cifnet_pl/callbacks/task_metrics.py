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

from cifnet_pl.callbacks.energy import EnergyMonitor
from cifnet_pl.learner import TaskModule
from cifnet_pl.metrics import average_accuracy, forgetting
from cifnet_pl.record import RunRecord, TaskRow


class TaskMetrics(Callback):
    """Keeps the run's record and writes its folder's files; must come after :class:`EnergyMonitor`.

    The record is part of the checkpoint, so a run that goes on has all its rows.
    """

    def __init__(self) -> None:
        self.record = RunRecord()
        self._start = 0.0
        self._train_seconds = 0.0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A run that goes on with more tasks is not whole any more."""
        folder = run_folder(trainer)
        stale = folder / "summary.json" if folder else None
        unfinished = len(self.record.rows) < (trainer.max_epochs or 0)
        if trainer.is_global_zero and stale is not None and unfinished:
            stale.unlink(missing_ok=True)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A task begins."""
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
        """Write the summary of a run that learned all its tasks."""
        folder = run_folder(trainer)
        whole = len(self.record.rows) == trainer.max_epochs
        if trainer.is_global_zero and folder is not None and whole and self.record.rows:
            self.record.write_summary(folder, **about(cast(TaskModule, pl_module)))

    def state_dict(self) -> dict[str, Any]:
        """The record, for the checkpoint."""
        return self.record.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint."""
        self.record = RunRecord.from_state_dict(state_dict)

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
        )
        record.rows.append(row)


def run_folder(trainer: Trainer) -> Path | None:
    """The run's folder, or None for a Trainer without a logger."""
    return Path(trainer.log_dir) if trainer.loggers and trainer.log_dir else None


def about(module: TaskModule) -> dict[str, Any]:
    """What ``summary.json`` says about the run apart from its measurements."""
    packages = ("cifnet_pl", "torch", "torchvision", "lightning", "codecarbon")
    seed = os.environ.get("PL_GLOBAL_SEED")
    return {
        **module.describe(),
        "seed": int(seed) if seed else None,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "device": torch.cuda.get_device_name() if module.device.type == "cuda" else platform.machine(),
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
        "energy/kwh": row.energy_kwh,
        "memory/state_elements": float(row.state_elements),
    }
    return {tag: value for tag, value in values.items() if value is not None}
