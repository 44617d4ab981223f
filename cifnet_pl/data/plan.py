"""Plan a run: which classes and training samples each task has, and which samples test it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.image_sets import Grouping, Source
from cifnet_pl.data.streams import Classes, Disjoint, Stream
from cifnet_pl.data.tasks import ClassOrder, TaskStream
from cifnet_pl.utilities.errors import DataError


class TaskLearner(Protocol):
    """The part of a LightningModule that the data module needs."""

    class_names: list[str]
    learned_tasks: list[list[str]]
    backbone: Backbone

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned, one array for each pass over them.

        Args:
            rows: (n,) positions of the task's images.
            task: number of the task, from 0.
        """


class Plan:
    """All tasks of a run over one source.

    Args:
        source: training and test samples.
        stream: kind of stream, or None for disjoint classes.
        class_order: see :func:`cifnet_pl.data.tasks.order_classes`.
        classes_per_task: number of new classes of each task, or a list with one number per task.
        initial_classes: number of classes of a larger first task, or None.
        max_tasks: tasks to keep, or None for all.

    Attributes:
        left_out: (n,) bool, training samples that no task brings; None for none.
    """

    left_out: np.ndarray | None = None

    def __init__(
        self,
        source: Source,
        stream: Stream | None,
        class_order: ClassOrder,
        classes_per_task: int | list[int],
        initial_classes: int | None,
        max_tasks: int | None,
    ):
        self.source, self.kind, self.max_tasks = source, stream or Disjoint(), max_tasks
        self._options = (class_order, classes_per_task, initial_classes)
        self._planned: tuple[tuple[tuple[str, ...], ...], TaskStream, list[np.ndarray]] | None = None

    def tasks(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """Return the new classes of all tasks.

        Args:
            learned: class names of the tasks that were learned before; they come first and unchanged.
        """
        return self._plan(learned)[0]

    def rows(self, task: int, learned: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the positions of the training samples of a task; none after the last.

        Args:
            task: its number, from 0.
            learned: class names of the tasks that were learned before.
        """
        tasks = self.all_rows(learned)
        rows = tasks[task] if task < len(tasks) else np.zeros(0, dtype=np.int64)
        return rows if self.left_out is None else rows[~self.left_out[rows]]

    def all_rows(self, learned: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the positions of the training samples of every task, those that are left out included.

        Args:
            learned: class names of the tasks that were learned before.
        """
        return self._plan(learned)[1]

    def _plan(self, learned: Sequence[Sequence[str]]) -> tuple[TaskStream, list[np.ndarray]]:
        past = tuple(tuple(task) for task in learned)
        if self._planned is None or self._planned[0] != past:
            self._planned = (past, *self._divide(past))
        return self._planned[1:]

    def _divide(self, past: tuple[tuple[str, ...], ...]) -> tuple[TaskStream, list[np.ndarray]]:
        order, per_task, initial = self._options
        names = self.source.class_names
        stream = TaskStream.plan(names, order, per_task, initial, () if self.kind.samples_return else past)
        sequence = tuple(tuple(self.position[name] for name in task) for task in stream.tasks)
        rows = self.kind.divide(Classes(self.source, sequence))
        learned = stream if not self.kind.samples_return else TaskStream(self._first_seen(rows, stream.classes()))
        if learned.tasks[: len(past)] != past:
            raise DataError(
                "the tasks that were learned before are not those of this stream: use the same data and settings"
            )
        count = max(self.max_tasks or len(rows), len(past))
        return learned[:count], rows[:count]

    def _first_seen(self, rows: Sequence[np.ndarray], order: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """Return the names of the classes that each task is the first to bring, in the order of learning."""
        rank = {self.position[name]: i for i, name in enumerate(order)}
        seen: set[int] = set()
        tasks = []
        for task_rows in rows:
            new = sorted(
                {int(label) for label in np.unique(self.source.train.labels[task_rows])} - seen, key=rank.__getitem__
            )
            seen |= set(new)
            tasks.append(tuple(self.source.class_names[label] for label in new))
        return tuple(tasks)

    @cached_property
    def position(self) -> dict[str, int]:
        """Class name → label within the source."""
        return {name: i for i, name in enumerate(self.source.class_names)}

    @cached_property
    def evaluated(self) -> Grouping | None:
        """The domains that are evaluated one by one, in the order of learning, or None."""
        return self.kind.evaluated(self.source)

    def test_rows(self, names: Iterable[str], tasks: int) -> list[np.ndarray]:
        """Return the positions of the test samples of each class.

        Test samples of domains that are evaluated one by one are left out until their task; those of domains that no
        task learns, such as CORe50's test sessions, are always included.

        Args:
            names: names of the classes.
            tasks: number of tasks that are learned.

        Raises:
            DataError: a class that the data does not have.
        """
        val, groups, none = self.source.val, self.evaluated, np.zeros(0, dtype=np.int64)
        test_rows = []
        for name in names:
            if name not in self.position:
                raise DataError(f"class '{name}' was learned, but the data does not have it")
            rows = val.rows_of.get(self.position[name], none)
            if groups is not None:
                to_come = set(range(tasks, len(groups.names))) & set(groups.train.tolist())
                rows = rows[~np.isin(groups.val[rows], sorted(to_come))]
            test_rows.append(rows)
        return test_rows
