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
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning.pytorch import Trainer

from cifnet_pl.data.copies import ContentHashes
from cifnet_pl.data.streams import Stream
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import average_accuracy, backward_transfer, forgetting, max_drop
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


@dataclass
class RunRecord:
    """Everything measured so far: the rows, their dates (UTC), the accuracy matrix, and energy by component."""

    rows: list[TaskRow] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)
    energy: dict[str, float] = field(default_factory=dict)
    dates: list[str | None] = field(default_factory=list)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings, lists and dictionaries, for a checkpoint."""
        rows = [asdict(row) for row in self.rows]
        state = {"rows": rows, "matrix": [list(row) for row in self.matrix], "energy": dict(self.energy)}
        return {**state, "dates": list(self.dates)}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that :meth:`state_dict` describes."""
        names = {f.name for f in fields(TaskRow)}
        rows = [TaskRow(**{k: v for k, v in row.items() if k in names}) for row in state["rows"]]
        dates = list(state.get("dates", [None] * len(rows)))  # not told by older versions
        return cls(rows, [list(row) for row in state["matrix"]], dict(state["energy"]), dates)

    def summary(self, **about: Any) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            about: what the record does not know (head, seed, …).
        """
        last = self.rows[-1]
        energy = _sum_if_all_known([row.energy_kwh for row in self.rows])
        known = energy is not None
        return {
            "A_K": last.A_k,
            "A_bar": average_accuracy(self.trajectory),
            "A_k": self.trajectory,
            "A_k_classifier": _all_known([row.A_k_classifier for row in self.rows]),
            "A_k_nearest_mean": _all_known([row.A_k_nearest_mean for row in self.rows]),
            "forgetting": forgetting(self.matrix),
            "bwt": backward_transfer(self.matrix),
            "max_drop": max_drop(self.trajectory),
            "ece": last.ece,
            "nll": last.nll,
            "top5": last.top5,
            "set_size": last.set_size,
            "set_coverage": last.set_coverage,
            "called_unknown": last.called_unknown,
            "unknown_auroc": last.unknown_auroc,
            "unknown_fpr95": last.unknown_fpr95,
            "train_seconds": sum(row.train_seconds for row in self.rows),
            "eval_seconds": sum(row.eval_seconds for row in self.rows),
            "energy_kwh": energy,
            "energy_source": last.energy_source,
            "energy_cpu_kwh": self.energy.get("cpu") if known else None,
            "energy_gpu_kwh": self.energy.get("gpu") if known else None,
            "energy_ram_kwh": self.energy.get("ram") if known else None,
            "co2_kg": self.energy.get("co2_kg") if known else None,
            "eval_energy_kwh": _sum_if_all_known([row.eval_energy_kwh for row in self.rows]),
            "A_K_per_kwh": last.A_k / energy if energy and last.A_k is not None else None,
            "state_elements": last.state_elements,
            "buffer_elements": last.buffer_elements,
            "cached_images": _sum_if_all_known([row.cached_images for row in self.rows]),
            "n_tasks": len(self.rows),
            "n_classes": last.classes_seen,
            **about,
        }

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


def _all_known(values: Sequence[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _sum_if_all_known(values: Sequence[float | None]) -> float | None:
    known = _all_known(values)
    return None if known is None else sum(known)


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
    name, count = processor(), cores()
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


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


def fingerprint(train: ContentHashes, test: ContentHashes, class_names: Sequence[str]) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents of 256 samples of
    each set, evenly spread: to read all would take as long as to learn them.

    Args:
        train, test: the two sets; contents whose hashes are known are not read again.
        class_names: name of each label.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for hashes in (train, test):
        digest.update(b"\0\0")
        count, names, labels = len(hashes.samples), hashes.samples.names, hashes.samples.labels
        for row, size in enumerate(hashes.sizes(np.arange(count)).tolist()):
            digest.update(f"{class_names[labels[row]]}\0{names[row]}\0{size}\0".encode("utf-8", "surrogateescape"))
        sampled = np.linspace(0, count - 1, min(count, SAMPLED)).round().astype(np.int64)
        digest.update(hashes.of(sampled).tobytes())
    return digest.hexdigest()[:16]


def write_configuration(module: TaskModule, folder: Path) -> None:
    """Write ``config.yaml`` into a run's folder unless the command line has written it already."""
    path = folder / "config.yaml"
    if not path.exists():
        write_text(path, yaml.safe_dump(configuration(module), sort_keys=False, allow_unicode=True))


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml``: seed, model and data.

    Args:
        module: attached to a Trainer with its data module.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    data = {name: _class_of(value) if isinstance(value, Stream) else value for name, value in module.data.given.items()}
    data = {name: str(value) if isinstance(value, Path) else value for name, value in data.items()}
    return {"seed_everything": int(seed) if seed else None, "model": _model(module), "data": data}


def _model(module: TaskModule) -> dict[str, Any]:
    backbone = module.backbone
    options: dict[str, Any] = {"backbone": backbone.name, "architecture": backbone.architecture}
    if not isinstance(module, CIFNetModule):
        model_settings = {
            name: value for name, value in module.settings().items() if name not in ("module", "backbone")
        }
        return {"class_path": _path(type(module)), "init_args": {**options, **model_settings}}
    head, buffer = module.head, module.buffer
    settings = {name: value for name, value in head.settings().items() if name != "in_features"}
    options["head"] = {"class_path": _path(type(head)), "init_args": settings}
    if buffer is not None:
        options["buffer"] = {"class_path": _path(type(buffer)), "init_args": buffer.settings()}
    return {"class_path": _path(type(module)), "init_args": {**options, "calibrate": module.model.calibrated}}


def _class_of(stream: Stream) -> dict[str, Any]:
    return {"class_path": _path(type(stream)), "init_args": dict(vars(stream))}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger."""
    return Path(trainer.log_dir) if trainer.loggers and trainer.log_dir else None
