"""The record of a run: what its module and callbacks measure, as tables and as a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from torch import Tensor

from cifnet_pl.model.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    max_drop,
    percent,
)
from cifnet_pl.model.task_evaluation import TaskEvaluation
from cifnet_pl.utilities.files import to_csv, write_text


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger.

    All processes must call it, as it asks the first one.
    """
    if trainer.loggers and trainer.log_dir:
        return Path(trainer.log_dir)
    return None


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


@dataclass(kw_only=True)
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
    energy_kwh: float | None = None
    energy_source: str | None = None
    state_elements: int
    buffer_elements: int
    eval_energy_kwh: float | None = None
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


TRAJECTORIES = ("A_k_classifier", "A_k_nearest_mean")
"""Columns that the summary has for all tasks, or not at all."""

SUMMED_COLUMNS = (
    "train_seconds",
    "eval_seconds",
    "energy_kwh",
    "eval_energy_kwh",
    "cached_images",
)
"""Columns whose sum over tasks is that of the run."""

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
class PrequentialRow:
    """Predictions of the samples of a task before it is learned (Gama et al., 2013).

    The head predicts them as it was before the task; a sample of a class that it does not know is a
    wrong prediction. The first task is left out, as nothing is known before it.

    Attributes:
        task: number of the task, from 1.
        samples: number of samples.
        correct: number of correct predictions.
        known: number of classes that are known before the task.
    """

    task: int
    samples: int
    correct: int
    known: int


@dataclass
class Table:
    """A table that a callback has measured, for a file of the run's folder.

    Attributes:
        header: names of the columns.
        rows: the cells of each row.
    """

    header: list[str]
    rows: list[list[Any]]


@dataclass
class RunRecord:
    """The measurements so far, which are part of every checkpoint.

    Module and callbacks fill it; :class:`~cifnet_pl.learning.callbacks.TaskMetrics` writes it.

    Attributes:
        rows: one for each task.
        matrix: accuracy matrix; row k holds the accuracies on tasks 0 to k after task k.
        energy: kWh of each component, and kg of CO₂ equivalents.
        class_counts: (2, C) int64 of each task: correct predictions and test images by class.
        prequential: predictions before a task is learned, where classes return.
        remarks: what the screen says of the last task besides the figures, by topic.
        tables: further tables that callbacks measured, by file name, until they are written.
        energy_counts_other_processes: whether energy is that of the whole machine; None if nothing
            was measured.
        open_seconds: that a task has taken in which the checkpoint was written; else 0.
    """

    rows: list[TaskRow] = field(default_factory=list)
    matrix: list[list[float | None]] = field(default_factory=list)
    energy: dict[str, float] = field(default_factory=dict)
    class_counts: list[Tensor] = field(default_factory=list, compare=False)
    prequential: list[PrequentialRow] = field(default_factory=list)
    remarks: dict[str, str] = field(default_factory=dict)
    open_seconds: float = 0.0
    energy_counts_other_processes: bool | None = None
    tables: dict[str, Table] = field(default_factory=dict, compare=False)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that ``dataclasses.asdict`` describes, as checkpoints hold it."""
        rows = [TaskRow(**row) for row in state["rows"]]
        prequential = [PrequentialRow(**row) for row in state["prequential"]]
        return cls(
            **{**state, "rows": rows, "prequential": prequential, "tables": {}},
        )

    def add(self, evaluation: TaskEvaluation, **measured: Any) -> TaskRow:
        """Add the row of a task that was learned and evaluated.

        Args:
            evaluation: after the task.
            measured: other columns of the row.
        """
        self.matrix.append(evaluation.task_accuracy)
        counts = evaluation.class_counts
        self.class_counts.append(counts)
        figures: dict[str, Any] = evaluation.figures()
        row = TaskRow(
            task=len(self.matrix),
            classes_seen=counts.shape[1],
            average=average_accuracy([*self.trajectory, figures["A_k"]]),
            forgetting=forgetting(self.matrix),
            eval_seconds=evaluation.seconds,
            **figures,
            **measured,
        )
        self.rows.append(row)
        return row

    def summary(self, **description: Any) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            description: what the record does not know (head, seed, …).
        """
        last = self.rows[-1]
        columns: dict[str, list[float]] = {}
        sums: dict[str, float] = {}
        for name in (*TRAJECTORIES, *SUMMED_COLUMNS):
            values = [getattr(row, name) for row in self.rows]
            if None not in values:
                columns[name] = values
                sums[name] = sum(values)
        energy = sums.get("energy_kwh")
        components: dict[str, float] = {}
        per_kwh = None
        if energy is not None:
            components = self.energy
        if energy and last.A_k is not None:
            per_kwh = last.A_k / energy
        forward_transfer = None
        if self.prequential:
            forward_transfer = self.forward_transfer()
        return {
            "A_K": last.A_k,
            "A_bar": average_accuracy(self.trajectory),
            "A_k": self.trajectory,
            **{name: columns.get(name) for name in TRAJECTORIES},
            "forgetting": forgetting(self.matrix),
            "bwt": backward_transfer(self.matrix),
            "max_drop": max_drop(self.trajectory),
            **{name: getattr(last, name) for name in LAST_TASK_COLUMNS},
            **{name: sums.get(name) for name in SUMMED_COLUMNS},
            "energy_cpu_kwh": components.get("cpu"),
            "energy_gpu_kwh": components.get("gpu"),
            "energy_ram_kwh": components.get("ram"),
            "energy_counts_other_processes": self.energy_counts_other_processes,
            "co2_kg": components.get("co2_kg"),
            "A_K_per_kwh": per_kwh,
            "forward_transfer": forward_transfer,
            "n_tasks": len(self.rows),
            "n_classes": last.classes_seen,
            **description,
        }

    def forward_transfer(self) -> float | None:
        """Compute the forward transfer: how far earlier tasks help before a task is learned.

        This is the mean over tasks of the accuracy on a task's samples before they are learned,
        minus the accuracy of a guess among the classes known then (Lopez-Paz & Ranzato, 2017, with
        training samples in place of test samples).

        Returns:
            Percentage points; None if no class returns.
        """
        gains = []
        for row in self.prequential:
            if row.samples and row.known:
                gains.append(100.0 * row.correct / row.samples - 100.0 / row.known)
        return average_accuracy(gains)

    def write_tables(self, folder: Path, tasks: Sequence[Sequence[str]]) -> None:
        """Write ``tasks.csv``, ``accuracy_matrix.csv``, ``class_accuracy.csv`` and ``tables``.

        Each is written atomically. Where classes return there is also ``prequential.csv``.

        Args:
            folder: of the run.
            tasks: class names of each task.
        """
        columns = [column.name for column in fields(TaskRow)]
        rows = [list(vars(row).values()) for row in self.rows]
        header = ["task"]
        matrix: list[list[Any]] = []
        for k, accuracies in enumerate(self.matrix, 1):
            header.append(f"task_{k}")
            matrix.append([k, *accuracies])
        tables = {
            "tasks.csv": Table(columns, rows),
            "accuracy_matrix.csv": Table(header, matrix),
            "class_accuracy.csv": self._class_accuracy(tasks),
        }
        if self.prequential:
            tables["prequential.csv"] = self._prequential_table()
        for name, table in (tables | self.tables).items():
            write_text(folder / name, to_csv(table.header, table.rows))

    def _class_accuracy(self, tasks: Sequence[Sequence[str]]) -> Table:
        """Return a row per class, in the order of learning.

        It has the class's task, its number of test images at the end, and its accuracy in percent
        after each task.
        """
        header = ["class", "task", "test_images"]
        header += [f"after_task_{k}" for k in range(1, len(self.rows) + 1)]
        rows: list[list[Any]] = []
        for task, names in enumerate(tasks, 1):
            for name in names:
                label = len(rows)
                row = [name, task, int(self.class_counts[-1][1, label])]
                for counts in self.class_counts:
                    accuracy = None
                    if label < counts.shape[1]:
                        accuracy = percent(*counts[:, label].tolist())
                    row.append(accuracy)
                rows.append(row)
        return Table(header, rows)

    def _prequential_table(self) -> Table:
        """Return the accuracy on a task's samples before it, and on all samples so far."""
        samples = 0
        correct = 0
        rows: list[list[Any]] = []
        for row in self.prequential:
            samples += row.samples
            correct += row.correct
            accuracy = percent(row.correct, row.samples)
            rows.append([row.task, row.samples, accuracy, percent(correct, samples)])
        return Table(["task", "samples", "accuracy", "accuracy_so_far"], rows)
