"""Write the rows, the matrix and the summary of a run's folder. Plain Python, no Lightning."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer

from cifnet_pl.data.sets import Source
from cifnet_pl.data.streams import Stream
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import average_accuracy, backward_transfer, forgetting, max_drop
from cifnet_pl.photos.reading import usable_cores
from cifnet_pl.utilities.files import write_json, write_text


@dataclass
class TaskRow:
    """One row of ``tasks.csv``: percentages 0–100, seconds, kWh, nats; None where something was not measured."""

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
    *("ece", "nll", "top5", "set_size", "set_coverage", "called_unknown", "unknown_auroc", "unknown_fpr95"),
    *("energy_source", "state_elements", "buffer_elements"),
)
"""Columns whose last value is the run's."""


@dataclass
class RunRecord:
    """Everything measured so far: the rows, their dates (UTC), the accuracy matrix, and energy by component."""

    rows: list[TaskRow] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)
    energy: dict[str, float] = field(default_factory=dict)
    dates: list[str] = field(default_factory=list)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that ``dataclasses.asdict`` describes, which a checkpoint holds."""
        rows = [TaskRow(**row) for row in state["rows"]]
        return cls(rows, [list(row) for row in state["matrix"]], dict(state["energy"]), list(state["dates"]))

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
        return None if None in values else values

    def _sum(self, column: str) -> float | None:
        values = self._all(column)
        return None if values is None else sum(values)

    def write_tables(self, folder: Path) -> None:
        """Write ``tasks.csv`` and ``accuracy_matrix.csv``, each atomically."""
        columns = [f.name for f in fields(TaskRow)]
        write_text(folder / "tasks.csv", to_csv(columns, [[getattr(r, c) for c in columns] for r in self.rows]))
        header = ["task", *(f"task_{j + 1}" for j in range(len(self.matrix)))]
        body = [[k + 1, *row] for k, row in enumerate(self.matrix)]
        write_text(folder / "accuracy_matrix.csv", to_csv(header, body))

    def write_summary(self, folder: Path, **about: Any) -> None:
        """Write ``summary.json`` atomically; a run with this file is complete.

        Args:
            folder: of the run.
            about: what the record does not know (head, seed, …).
        """
        write_json(folder / "summary.json", self.summary(**about))


def to_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return CSV text; None is an empty cell, and short rows are filled with empty cells.

    Args:
        header: names of the columns.
        rows: the cells of each row.

    Example:
        >>> print(to_csv(["task", "A_k"], [[1, 97.5], [2]]), end="")
        task,A_k
        1,97.5
        2,
    """
    lines = []
    for row in (header, *rows):
        cells = ["" if value is None else value for value in row]
        line = io.StringIO()
        # Before Python 3.13 only characters of the line's own end are quoted, and a file name may hold either.
        csv.writer(line, lineterminator="\r\n").writerow(cells + [""] * (len(header) - len(cells)))
        lines.append(line.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)


SAMPLED = 256
"""Samples of each set whose contents are in its fingerprint."""


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of a run.

    Args:
        device: of the run.

    Returns:
        One line for people, the processor, the GPU or None, the cores that this process may use, and torch's threads.
    """
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    name, count = processor(), usable_cores()
    description = gpu or f"{name}, {count} core{'s' if count > 1 else ''}"
    return {"machine": description, "processor": name, "gpu": gpu, "cores": count, "threads": torch.get_num_threads()}


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor, as the system calls it.

    Args:
        info: Linux's description of the processors.
    """
    try:
        match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        match = None
    return " ".join(match[1].split()) if match else platform.processor() or platform.machine()


@cache
def package_commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """Return the git commit of the package, with "+changes" if its files differ from it; None outside a repository.

    Args:
        folder: of the package.
    """
    # A package that is installed below someone's repository does not belong to it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return f"{commit}+changes" if commit and changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def fingerprint(source: Source) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents of 256 samples of
    each set, evenly spread: to read all would take as long as to learn them.

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
        sampled = np.linspace(0, len(samples) - 1, min(len(samples), SAMPLED)).round().astype(np.int64)
        digest.update(samples.hashes(sampled).tobytes())
    return digest.hexdigest()[:16]


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml`` of a run without the command line: seed, model and data.

    Args:
        module: attached to a Trainer with its data module.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    data = {name: str(value) if isinstance(value, Path) else value for name, value in module.data.given.items()}
    for name, value in data.items():
        if isinstance(value, Stream):
            data[name] = _made_by(value, dict(vars(value)))
    options: dict[str, Any] = {"backbone": module.backbone.name, "architecture": module.backbone.architecture}
    if not isinstance(module, CIFNetModule):
        options |= {name: value for name, value in module.settings().items() if name not in ("module", "backbone")}
    else:
        settings = {name: value for name, value in module.head.settings().items() if name != "in_features"}
        options["head"] = _made_by(module.head, settings)
        if module.buffer is not None:
            options["buffer"] = _made_by(module.buffer, module.buffer.settings())
        options["calibrate"] = module.model.calibrated
    return {"seed_everything": int(seed) if seed else None, "model": _made_by(module, options), "data": data}


def _made_by(part: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a configuration names an object and its arguments."""
    return {"class_path": f"{type(part).__module__}.{type(part).__qualname__}", "init_args": dict(arguments)}


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger; it asks the first process, so all call it."""
    return Path(trainer.log_dir) if trainer.loggers and trainer.log_dir else None


def write_table(trainer: Trainer, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a CSV file into the run's folder, if there is one; all processes call it, and the first one writes.

    Args:
        trainer: of the run.
        name: of the file.
        header: names of the columns.
        rows: the cells of each row.
    """
    folder = run_folder(trainer)
    if trainer.is_global_zero and folder is not None:
        write_text(folder / name, to_csv(header, rows))


C = TypeVar("C", bound=Callback)


def callback_of(trainer: Trainer, kind: type[C]) -> C | None:
    """Return the first of a Trainer's callbacks that is of a kind; None if there is none."""
    return next((callback for callback in cast(Any, trainer).callbacks if isinstance(callback, kind)), None)
