"""Write the metrics of each task into files and TensorBoard: accuracies, forgetting, ECE, times, energy, memory."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.data.loading import EmbeddingBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNovelty, CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.prequential import PrequentialAccuracy
from cifnet_pl.learning.resume import flat_settings
from cifnet_pl.learning.run_record import (
    RunRecord,
    TaskRow,
    fingerprint,
    machine,
    package_commit,
    run_folder,
    write_configuration,
)
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.description import now
from cifnet_pl.model.metrics import average_accuracy, forgetting
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.files import of_all_processes

OPEN_SECONDS = "open_seconds"


class TaskMetrics(Callback):
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
            write_configuration(cast(TaskModule, pl_module), folder)
        earlier = self._before_stop if cast(TaskModule, pl_module).goes_on_inside else 0.0
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

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the task's row, write the tables, log."""
        if trainer.state.fn != "fit":
            return
        module = cast(TaskModule, pl_module)
        self._add_row(module, _energy(trainer), _coverage_and_novelty(trainer))
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            self.record.write_tables(folder)
            for logger in trainer.loggers:
                logger.log_metrics(_tags(self.record), step=len(self.record.rows))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the summary of a run that learned all its tasks, now or before it was interrupted."""
        folder = run_folder(trainer)
        whole = len(self.record.rows) == trainer.max_epochs
        if trainer.is_global_zero and folder is not None and whole and (folder / "tasks.csv").is_file():
            transfer = _forward_transfer(trainer)
            self.record.write_summary(folder, forward_transfer=transfer, **about(cast(TaskModule, pl_module)))
            self._log_hyperparameters(trainer, cast(TaskModule, pl_module))

    def _log_hyperparameters(self, trainer: Trainer, module: TaskModule) -> None:
        """Write the settings and the final metrics to TensorBoard's table of runs."""
        summary = self.record.summary()
        names = ("A_K", "A_bar", "forgetting", "state_elements")
        metrics = {f"final/{name}": summary[name] for name in names if summary[name] is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flat_settings(module.settings()), metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the record, for the checkpoint, and the seconds that a task under way has taken."""
        seconds = time.perf_counter() - self._start if self._start is not None else 0.0
        return {**self.record.state_dict(), OPEN_SECONDS: seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint; CheckpointError if it is damaged."""
        try:
            self.record = RunRecord.from_state_dict(state_dict)
            self._before_stop = float(state_dict.get(OPEN_SECONDS, 0.0))  # not told by older versions
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError("the checkpoint is damaged: its measurements cannot be read") from error

    def _add_row(self, module: TaskModule, monitor: EnergyMonitor | None, coverage: CoverageAndNovelty) -> None:
        evaluation, record = module.evaluation, self.record
        assert evaluation is not None
        record.matrix.append(list(evaluation.task_accuracy))
        record.dates.append(now())
        elements = module.state_elements()
        learning = monitor.learning if monitor else None
        testing = monitor.evaluation if monitor else None
        if learning is not None:
            for component in ("cpu", "gpu", "ram", "co2_kg"):
                record.energy[component] = record.energy.get(component, 0.0) + getattr(learning, component)
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
            top5=evaluation.top5,
            cached_images=sum(of_all_processes(self._cached)),
            A_k_classifier=evaluation.accuracy_by.get("classifier"),
            A_k_nearest_mean=evaluation.accuracy_by.get("nearest_mean"),
            **asdict(coverage),
        )
        record.rows.append(row)


def about(module: TaskModule) -> dict[str, Any]:
    """Return what ``summary.json`` says about the run besides its measurements.

    Args:
        module: that learned.
    """
    data, packages = module.data, ("cifnet_pl", "torch", "torchvision", "lightning", "codecarbon")
    seed = os.environ.get("PL_GLOBAL_SEED")
    device = module.trainer.strategy.root_device  # at the end Lightning has moved the module back to the CPU
    components, monitor = module.state_elements(), _energy(module.trainer)
    measured = monitor is not None and monitor.source is not None
    return {
        **module.describe(),
        "epochs": module.epochs,
        "state_components": components,
        "state_bytes_per_element": {
            name: module.bytes_per_buffer_element if name == "buffer" else module.bytes_per_element
            for name in components
        },
        "image_size": data.image_shape(module.backbone.preprocessing)[0],
        "seed": int(seed) if seed else None,
        "class_order": module.class_names,
        "tasks": [list(names) for names in module.learned_tasks],
        "data_fingerprint": fingerprint(data.train_hashes, data.test_hashes, data.source.class_names),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "git_commit": package_commit(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        **machine(device),
        "processes": module.trainer.world_size,
        "energy_counts_other_processes": monitor.tracking_mode == "machine" if monitor and measured else None,
    }


def _energy(trainer: Trainer) -> EnergyMonitor | None:
    monitors = [c for c in cast(Any, trainer).callbacks if isinstance(c, EnergyMonitor)]
    return monitors[0] if monitors else None


def _coverage_and_novelty(trainer: Trainer) -> CoverageAndNovelty:
    checks = [c for c in cast(Any, trainer).callbacks if isinstance(c, CoverageAndNoveltyMetrics)]
    return checks[0].measured if checks else CoverageAndNovelty()


def _forward_transfer(trainer: Trainer) -> float | None:
    callbacks = [c for c in cast(Any, trainer).callbacks if isinstance(c, PrequentialAccuracy)]
    return callbacks[0].forward_transfer() if callbacks else None


def _tags(record: RunRecord) -> dict[str, float]:
    """Return the numbers of the last task, by TensorBoard's tag."""
    row = record.rows[-1]
    values = {
        "acc/seen": row.A_k,
        "acc/average": row.average,
        "acc/top5": row.top5,
        "acc/classifier": row.A_k_classifier,
        "acc/nearest_mean": row.A_k_nearest_mean,
        "forgetting": row.forgetting,
        "ece": row.ece,
        "nll": row.nll,
        "energy/kwh": row.energy_kwh,
        "memory/state_elements": float(row.state_elements),
        "sets/size": row.set_size,
        "sets/coverage": row.set_coverage,
        "unknown/called": row.called_unknown,
        "unknown/auroc": row.unknown_auroc,
        "unknown/fpr95": row.unknown_fpr95,
        "seconds/train": row.train_seconds,
        "seconds/evaluation": row.eval_seconds,
        **{f"acc_of_task/{j + 1}": value for j, value in enumerate(record.matrix[-1])},
    }
    return {tag: value for tag, value in values.items() if value is not None}
