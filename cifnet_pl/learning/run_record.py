"""The measurements of a run: a row for each task, the accuracy matrix, and the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cifnet_pl.model.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    max_drop,
)
from cifnet_pl.utilities.files import to_csv, write_text

TENSORBOARD_TAGS = {
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
    "prediction_sets/size": "set_size",
    "prediction_sets/coverage": "set_coverage",
    "unknown/rejected": "known_rejected",
    "unknown/auroc": "unknown_auroc",
    "unknown/fpr95": "unknown_fpr95",
    "seconds/train": "train_seconds",
    "seconds/evaluation": "eval_seconds",
}
"""TensorBoard's tag of each column of ``tasks.csv`` that it shows."""


@dataclass
class TaskRow:
    """A row of ``tasks.csv``: percentages 0–100, seconds, kWh, nats.

    None where something was not measured. ``set_size`` and ``set_coverage`` are of prediction sets
    at 95 %, ``known_rejected`` is the share of test images that are called unknown where 5 % was
    asked for. ``waiting_seconds`` is the part of ``train_seconds`` in which the pass waited for
    decoded images, on a GPU without waits that ended while it still embedded, and ``solve_seconds``
    what followed the pass; the rest is the backbone's.
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
    known_rejected: float | None = None
    unknown_auroc: float | None = None
    unknown_fpr95: float | None = None
    A_k_classifier: float | None = None
    A_k_nearest_mean: float | None = None
    waiting_seconds: float | None = None


LAST_TASK_COLUMNS = (
    "ece",
    "nll",
    "top5",
    "set_size",
    "set_coverage",
    "known_rejected",
    "unknown_auroc",
    "unknown_fpr95",
    "energy_source",
    "state_elements",
    "buffer_elements",
)
"""Columns whose value after the last task is that of the run."""


@dataclass
class RunRecord:
    """The measurements so far.

    Attributes:
        rows: one for each task.
        matrix: accuracy matrix; row k holds the accuracies on tasks 0 to k after task k.
        energy: kWh of each component, and kg of CO₂ equivalents.
    """

    rows: list[TaskRow] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)
    energy: dict[str, float] = field(default_factory=dict)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that ``dataclasses.asdict`` describes, as checkpoints hold it."""
        rows = [TaskRow(**row) for row in state["rows"]]
        matrix = [list(row) for row in state["matrix"]]
        return cls(rows, matrix, dict(state["energy"]))

    def summary(self, **description: Any) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            description: what the record does not know (head, seed, …).
        """
        last = self.rows[-1]
        energy = self._sum("energy_kwh")
        components: dict[str, float] = {}
        per_kwh = None
        if energy is not None:
            components = self.energy
        if energy and last.A_k is not None:
            per_kwh = last.A_k / energy
        return {
            "A_K": last.A_k,
            "A_bar": average_accuracy(self.trajectory),
            "A_k": self.trajectory,
            "A_k_classifier": self._column("A_k_classifier"),
            "A_k_nearest_mean": self._column("A_k_nearest_mean"),
            "forgetting": forgetting(self.matrix),
            "bwt": backward_transfer(self.matrix),
            "max_drop": max_drop(self.trajectory),
            **{name: getattr(last, name) for name in LAST_TASK_COLUMNS},
            "train_seconds": self._sum("train_seconds"),
            "eval_seconds": self._sum("eval_seconds"),
            "energy_kwh": energy,
            "energy_cpu_kwh": components.get("cpu"),
            "energy_gpu_kwh": components.get("gpu"),
            "energy_ram_kwh": components.get("ram"),
            "co2_kg": components.get("co2_kg"),
            "eval_energy_kwh": self._sum("eval_energy_kwh"),
            "A_K_per_kwh": per_kwh,
            "cached_images": self._sum("cached_images"),
            "n_tasks": len(self.rows),
            "n_classes": last.classes_seen,
            **description,
        }

    def _column(self, name: str) -> list[float] | None:
        """Return a column; None if a cell of it is empty."""
        values = [getattr(row, name) for row in self.rows]
        if None in values:
            return None
        return values

    def _sum(self, name: str) -> float | None:
        values = self._column(name)
        if values is None:
            return None
        return sum(values)

    def write_tables(self, folder: Path) -> None:
        """Write ``tasks.csv`` and ``accuracy_matrix.csv``, each atomically."""
        columns = [column.name for column in fields(TaskRow)]
        rows = [list(vars(row).values()) for row in self.rows]
        write_text(folder / "tasks.csv", to_csv(columns, rows))
        header = ["task", *(f"task_{j + 1}" for j in range(len(self.matrix)))]
        matrix = [[k, *row] for k, row in enumerate(self.matrix, 1)]
        write_text(folder / "accuracy_matrix.csv", to_csv(header, matrix))
