"""Record a run: the metrics of each task in files and TensorBoard, and at the end what the run was
and its summary.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from cifnet_pl.data.loading import EmbeddingBatch
from cifnet_pl.data.sets import ImageSet, Source
from cifnet_pl.data.streams import Stream
from cifnet_pl.images.reader import usable_cores
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import PrequentialAccuracy
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, callback_of, run_folder
from cifnet_pl.model.metrics import average_accuracy, backward_transfer, forgetting, max_drop
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import flatten, of_all_processes, to_csv, write_json, write_text

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


@dataclass
class TaskRow:
    """One row of ``tasks.csv``: percentages 0–100, seconds, kWh, nats; None where something was not
    measured.
    """

    task: int
    classes_seen: int
    A_k: float | None
    average: float | None
    forgetting: float | None
    ece: float | None
    train_seconds: float
    solve_seconds: float
    eval_seconds: float
    energy_kwh: float | None
    energy_source: str | None
    state_elements: int
    buffer_elements: int
    eval_energy_kwh: float | None
    nll: float | None = None
    top5: float | None = None
    cached_images: int | None = None
    set_size: float | None = None
    set_coverage: float | None = None
    called_unknown: float | None = None
    unknown_auroc: float | None = None
    unknown_fpr95: float | None = None
    A_k_classifier: float | None = None
    A_k_nearest_mean: float | None = None


OF_THE_LAST_TASK = (
    *(
        "ece",
        "nll",
        "top5",
        "set_size",
        "set_coverage",
        "called_unknown",
        "unknown_auroc",
        "unknown_fpr95",
    ),
    *("energy_source", "state_elements", "buffer_elements"),
)
"""Columns whose last value is the run's."""


@dataclass
class RunRecord:
    """Everything measured so far: the rows, the accuracy matrix, and energy by component."""

    rows: list[TaskRow] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)
    energy: dict[str, float] = field(default_factory=dict)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that ``dataclasses.asdict`` describes, which a checkpoint holds."""
        rows = [TaskRow(**row) for row in state["rows"]]
        return cls(rows, [list(row) for row in state["matrix"]], dict(state["energy"]))

    def summary(self, **about: Any) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            about: what the record does not know (head, seed, …).
        """
        last = self.rows[-1]
        energy = self._sum("energy_kwh")
        parts = self.energy if energy is not None else {}
        return {
            "A_K": last.A_k,
            "A_bar": average_accuracy(self.trajectory),
            "A_k": self.trajectory,
            "A_k_classifier": self._all("A_k_classifier"),
            "A_k_nearest_mean": self._all("A_k_nearest_mean"),
            "forgetting": forgetting(self.matrix),
            "bwt": backward_transfer(self.matrix),
            "max_drop": max_drop(self.trajectory),
            **{name: getattr(last, name) for name in OF_THE_LAST_TASK},
            "train_seconds": self._sum("train_seconds"),
            "eval_seconds": self._sum("eval_seconds"),
            "energy_kwh": energy,
            "energy_cpu_kwh": parts.get("cpu"),
            "energy_gpu_kwh": parts.get("gpu"),
            "energy_ram_kwh": parts.get("ram"),
            "co2_kg": parts.get("co2_kg"),
            "eval_energy_kwh": self._sum("eval_energy_kwh"),
            "A_K_per_kwh": last.A_k / energy if energy and last.A_k is not None else None,
            "cached_images": self._sum("cached_images"),
            "n_tasks": len(self.rows),
            "n_classes": last.classes_seen,
            **about,
        }

    def _all(self, column: str) -> list[float] | None:
        """Return a column; None if a cell of it is empty."""
        values = [getattr(row, column) for row in self.rows]
        if None in values:
            return None
        return values

    def _sum(self, column: str) -> float | None:
        values = self._all(column)
        if values is None:
            return None
        return sum(values)

    def write_tables(self, folder: Path) -> None:
        """Write ``tasks.csv`` and ``accuracy_matrix.csv``, each atomically."""
        columns = [f.name for f in fields(TaskRow)]
        write_text(
            folder / "tasks.csv",
            to_csv(columns, [[getattr(r, c) for c in columns] for r in self.rows]),
        )
        header = ["task", *(f"task_{j + 1}" for j in range(len(self.matrix)))]
        body = [[k + 1, *row] for k, row in enumerate(self.matrix)]
        write_text(folder / "accuracy_matrix.csv", to_csv(header, body))


class TaskMetrics(TaskCallback):
    """Keeps the run's record and writes its folder's files; must come after :class:`EnergyMonitor`.

    The record is part of the checkpoint, so a run that goes on has all its rows. So is the time
    that a task under way has taken: it counts if the run goes on inside that task, not if the task
        is learned again from its beginning.
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
        learned = cast(TaskModule, pl_module).tasks_finished
        measured = len(self.record.rows)
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
                config = yaml.safe_dump(
                    configuration(cast(TaskModule, pl_module)), sort_keys=False, allow_unicode=True
                )
                write_text(folder / "config.yaml", config)
        module = cast(TaskModule, pl_module)
        if module.goes_on_inside:
            earlier = self._before_stop
        else:
            earlier = module.preparing
        self._start = time.perf_counter() - earlier
        self._cached = 0
        self._before_stop = 0.0

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
            self._train_seconds = time.perf_counter() - self._start
            self._start = None

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Add the task's row, write the tables, log."""
        self._add_row(trainer, module)
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            self.record.write_tables(folder)
            row = self.record.rows[-1]
            values = {tag: getattr(row, column) for tag, column in TAGS.items()}
            values |= {
                f"acc_of_task/{j}": value for j, value in enumerate(self.record.matrix[-1], 1)
            }
            measured = {tag: float(value) for tag, value in values.items() if value is not None}
            for logger in trainer.loggers:
                logger.log_metrics(measured, step=len(self.record.rows))

    def _add_row(self, trainer: Trainer, module: TaskModule) -> None:
        evaluation = module.evaluation
        record = self.record
        energy = callback_of(trainer, EnergyMonitor)
        assert evaluation is not None
        record.matrix.append(list(evaluation.task_accuracy))
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
            module.model.record_event(
                "task",
                accuracy=row.A_k,
                seconds=row.train_seconds,
                energy_kwh=row.energy_kwh,
                energy_source=row.energy_source,
                class_names=list(module.learned_tasks[-1]),
            )

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the summary of a run that learned all its tasks, now or before it was interrupted.

        TensorBoard's table of runs gets the settings and the final metrics.
        """
        folder = run_folder(trainer)
        module = cast(TaskModule, pl_module)
        whole = len(self.record.rows) == trainer.max_epochs
        if not (
            trainer.is_global_zero
            and folder is not None
            and whole
            and (folder / "tasks.csv").is_file()
        ):
            return
        prequential = callback_of(trainer, PrequentialAccuracy)
        transfer = prequential.forward_transfer() if prequential else None
        summary = self.record.summary(forward_transfer=transfer, **about(module))
        write_json(folder / "summary.json", summary)  # a run with this file is complete
        names = ("A_K", "A_bar", "forgetting", "state_elements")
        metrics = {f"final/{name}": summary[name] for name in names if summary[name] is not None}
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(flatten(module.settings()), metrics)

    def state_dict(self) -> dict[str, Any]:
        """Return the record, for the checkpoint, and the seconds that a task under way has
        taken.
        """
        if self._start is not None:
            seconds = time.perf_counter() - self._start
        else:
            seconds = 0.0
        return {**asdict(self.record), "open_seconds": seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the record of the checkpoint; CheckpointError if it is damaged."""
        with explained(
            CheckpointError, "the checkpoint is damaged, its measurements cannot be read"
        ):
            self.record = RunRecord.from_state_dict(state_dict)
            self._before_stop = float(state_dict["open_seconds"])


def about(module: TaskModule) -> dict[str, Any]:
    """Return what ``summary.json`` says about the run besides its measurements.

    Args:
        module: that learned.
    """
    data = module.data
    packages = ("cifnet_pl", "torch", "torchvision", "lightning", "codecarbon")
    seed = os.environ.get("PL_GLOBAL_SEED")
    device = (
        module.trainer.strategy.root_device
    )  # at the end Lightning has moved the module back to the CPU
    components = module.state_elements()
    monitor = callback_of(module.trainer, EnergyMonitor)
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
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "git_commit": package_commit(),
        "device": (
            torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        ),
        **machine(device),
        "processes": module.trainer.world_size,
        "energy_counts_other_processes": (
            monitor.tracking_mode == "machine" if monitor and monitor.source else None
        ),
    }


# ---------------------------------------------------------------------- about the run

SAMPLED = 256
"""Samples of each set whose contents are in its fingerprint."""


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of a run.

    Args:
        device: of the run.

    Returns:
        One line for people, the processor, the GPU or None, the cores that this process may use,
        and torch's threads.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    name = processor()
    count = usable_cores()
    description = gpu or f"{name}, {count} core{'s' if count > 1 else ''}"
    return {
        "machine": description,
        "processor": name,
        "gpu": gpu,
        "cores": count,
        "threads": torch.get_num_threads(),
    }


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor, as the system calls it.

    Args:
        info: Linux's description of the processors.
    """
    try:
        match = re.search(
            r"^(?:model name|Model)\s*:\s*(.+)$", info.read_text(encoding="utf-8"), re.MULTILINE
        )
    except OSError:
        match = None
    if match:
        return " ".join(match[1].split())
    return platform.processor() or platform.machine()


@cache
def package_commit(folder: Path = Path(__file__).parents[2]) -> str | None:
    """Return the git commit of the package, with "+changes" if its files differ from it; None
    outside a repository.

    Args:
        folder: of the package.
    """
    # A package that is installed below someone's repository does not belong to it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    if commit and changed:
        return f"{commit}+changes"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return done.stdout.strip()
    return None


def fingerprint(source: Source) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents
    of 256 samples of each set, evenly spread: to read all would take as long as to learn them.

    Args:
        source: the two sets; contents whose hashes are known are not read again.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for samples in (source.train, source.val):
        digest.update(b"\0\0")
        for row, name in enumerate(samples.names):
            text = f"{source.class_names[samples.labels[row]]}\0{name}\0{samples.size(row)}\0"
            digest.update(text.encode("utf-8", "surrogateescape"))
        sampled = (
            np.linspace(0, len(samples) - 1, min(len(samples), SAMPLED)).round().astype(np.int64)
        )
        digest.update(samples.hashes(sampled).tobytes())
    return digest.hexdigest()[:16]


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml`` of a run without the command line: seed, model and
    data.

    Args:
        module: attached to a Trainer with its data module.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    data = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in module.data.given.items()
    }
    for name, value in data.items():
        if isinstance(value, Stream):
            data[name] = _made_by(value, dict(vars(value)))
    options: dict[str, Any] = {
        "backbone": module.backbone.name,
        "architecture": module.backbone.architecture,
    }
    if not isinstance(module, CIFNetModule):
        options |= {
            name: value
            for name, value in module.settings().items()
            if name not in ("module", "backbone")
        }
    else:
        settings = {
            name: value for name, value in module.head.settings().items() if name != "in_features"
        }
        options["head"] = _made_by(module.head, settings)
        if module.buffer is not None:
            options["buffer"] = _made_by(module.buffer, module.buffer.settings())
        options["calibrate"] = module.model.calibrated
    return {
        "seed_everything": int(seed) if seed else None,
        "model": _made_by(module, options),
        "data": data,
    }


def _made_by(part: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a configuration names an object and its arguments."""
    return {
        "class_path": f"{type(part).__module__}.{type(part).__qualname__}",
        "init_args": dict(arguments),
    }
