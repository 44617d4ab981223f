"""The record of a run: what its module and callbacks measure, as tables and as a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from cifnet_pl.learning.columns import COLUMNS, TASK_COLUMNS, Column, custom_column
from cifnet_pl.model.evaluation import Evaluation
from cifnet_pl.model.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    max_drop,
    percent,
)
from cifnet_pl.utilities.files import to_csv, write_text


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder in the first process, which writes it; None in all others.

    All processes must call it, as Lightning asks the first one. A Trainer without a logger has
    none.
    """
    if not trainer.loggers:
        return None
    folder = trainer.log_dir
    if folder and trainer.is_global_zero:
        return Path(folder)
    return None


class TaskRow(SimpleNamespace):
    """A row of ``tasks.csv``: percentages 0–100, seconds, kWh, nats; None if not measured.

    Its attributes are the columns of tasks in :data:`~cifnet_pl.learning.columns.COLUMNS`, and the
    custom metrics.
    """

    def __init__(self, **values: Any):
        super().__init__(**(dict.fromkeys(TASK_COLUMNS) | values))


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
    open_seconds: float = 0.0
    energy_counts_other_processes: bool | None = None
    tables: dict[str, Table] = field(default_factory=dict, compare=False)

    @property
    def trajectory(self) -> list[float | None]:
        """A_k of each task."""
        return [row.A_k for row in self.rows]

    @property
    def columns(self) -> list[Column]:
        """The columns of ``tasks.csv``: those that all runs have, then custom metrics."""
        names = dict.fromkeys(name for row in self.rows for name in vars(row))
        custom = [custom_column(name) for name in names if name not in TASK_COLUMNS]
        return [*(column for column in COLUMNS if column.task), *custom]

    def state_dict(self) -> dict[str, Any]:
        """Return the record as plain containers and tensors, for a checkpoint."""
        return {**asdict(self), "rows": [dict(vars(row)) for row in self.rows]}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> RunRecord:
        """Return the record that :meth:`state_dict` describes."""
        rows = [TaskRow(**row) for row in state["rows"]]
        prequential = [PrequentialRow(**row) for row in state["prequential"]]
        values = {**state, "rows": rows, "prequential": prequential, "tables": {}}
        values.pop("remarks", None)  # of earlier versions
        return cls(**values)

    def add(self, evaluation: Evaluation, **measured: Any) -> TaskRow:
        """Add the row of a task that was learned and evaluated.

        Args:
            evaluation: after the task.
            measured: other columns of the row.
        """
        self.matrix.append(evaluation.task_accuracy)
        self.class_counts.append(torch.from_numpy(evaluation.class_counts))
        row = TaskRow(
            task=len(self.matrix),
            classes_seen=len(evaluation.class_names),
            forgetting=forgetting(self.matrix),
            eval_seconds=evaluation.seconds,
            **evaluation.figures(),
            **measured,
        )
        self.rows.append(row)
        row.average = average_accuracy(self.trajectory)
        return row

    def summary(self, **description: Any) -> dict[str, Any]:
        """Return the content of ``summary.json``.

        Args:
            description: what the record does not know (head, seed, …).
        """
        summary = {}
        metrics = {}
        for column in self.columns:
            if not column.over_tasks:
                continue
            values = [vars(row).get(column.task) for row in self.rows]
            number: Any = values
            if column.over_tasks == "last":
                number = values[-1]
            elif None in values:
                number = None
            elif column.over_tasks == "sum":
                number = sum(values)
            if column.task in TASK_COLUMNS:
                summary[column.run] = number
            else:
                metrics[column.task] = number
        energy = summary["energy_kwh"]
        components = {}
        per_kwh = None
        if energy is not None:
            components = self.energy
        if energy and summary["A_K"] is not None:
            per_kwh = summary["A_K"] / energy
        return {
            **summary,
            "A_k": self.trajectory,
            "metrics": metrics,
            "bwt": backward_transfer(self.matrix),
            "max_drop": max_drop(self.trajectory),
            "energy_cpu_kwh": components.get("cpu"),
            "energy_gpu_kwh": components.get("gpu"),
            "energy_ram_kwh": components.get("ram"),
            "energy_counts_other_processes": self.energy_counts_other_processes,
            "co2_kg": components.get("co2_kg"),
            "A_K_per_kwh": per_kwh,
            "forward_transfer": self.forward_transfer(),
            "n_tasks": len(self.rows),
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
        gains = [
            100.0 * row.correct / row.samples - 100.0 / row.known
            for row in self.prequential
            if row.samples and row.known
        ]
        return average_accuracy(gains)

    def write_tables(self, folder: Path, tasks: Sequence[Sequence[str]]) -> None:
        """Write ``tasks.csv``, ``accuracy_matrix.csv``, ``class_accuracy.csv`` and ``tables``.

        Each is written atomically. Where classes return there is also ``prequential.csv``.

        Args:
            folder: of the run.
            tasks: class names of each task.
        """
        columns = [column.task for column in self.columns]
        rows = [[vars(row).get(name) for name in columns] for row in self.rows]
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
                since = [counts[:, label] for counts in self.class_counts[task - 1 :]]
                accuracies = [percent(*counts.tolist()) for counts in since]
                not_yet = [None] * (task - 1)
                rows.append([name, task, int(since[-1][1]), *not_yet, *accuracies])
        return Table(header, rows)

    def _prequential_table(self) -> Table:
        """Return the accuracy on a task's samples before it, and on all samples so far."""
        samples = 0
        correct = 0
        rows = []
        for row in self.prequential:
            samples += row.samples
            correct += row.correct
            accuracy = percent(row.correct, row.samples)
            rows.append([row.task, row.samples, accuracy, percent(correct, samples)])
        return Table(["task", "samples", "accuracy", "accuracy_so_far"], rows)
