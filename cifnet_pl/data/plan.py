"""Plan a run: which classes and training samples each task has, and which samples test it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.sets import Grouping, Source, held_back_rows, in_two
from cifnet_pl.data.streams import Classes, Disjoint, Stream
from cifnet_pl.utilities.errors import DataError, UsageError

ClassOrder = int | list[int] | list[str] | None
"""A seed, positions in the source's order, class names, or None for the source's own order."""


def order_classes(names: Sequence[str], order: ClassOrder) -> list[str]:
    """Return the names in the order in which they are to be learned.

    Args:
        names: classes as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; a list of all positions or of all names; or
            None.

    Raises:
        UsageError: a negative seed; a list with a class twice, without a class, or with one that the source lacks.
    """
    if order is None:
        return list(names)
    if isinstance(order, int):
        if order < 0:
            raise UsageError(f"class_order is {order}, expected a seed of at least 0, a list, or null")
        return [names[i] for i in np.random.default_rng(order).permutation(len(names))]
    if len(set(order)) < len(order):
        raise UsageError("class_order names a class twice")
    if all(isinstance(item, int) for item in order):
        wrong = [i for i in order if not 0 <= int(i) < len(names)]
        if wrong:
            raise UsageError(f"class_order holds position {wrong[0]}, expected 0 to {len(names) - 1}")
        chosen = [names[int(i)] for i in order]
    else:
        chosen = [str(item) for item in order]
    missing = [name for name in chosen if name not in set(names)]
    if missing:
        raise UsageError(f"class_order names '{missing[0]}', which the data source does not have")
    if len(chosen) < len(names):
        dropped = sorted(set(names) - set(chosen))
        raise UsageError(
            f"class_order leaves out {len(dropped)} of {len(names)} classes, the first is '{dropped[0]}': list all of "
            "them, and set --data.max_tasks to learn fewer"
        )
    return chosen


def task_sizes(classes: int, per_task: int | list[int], initial: int | None = None) -> list[int]:
    """Return the number of classes of each task.

    Args:
        classes: number of all classes.
        per_task: classes of each task, the last of which may be smaller; or one number for each task.
        initial: classes of the first task, if it differs.

    Raises:
        UsageError: sizes below one, or more classes asked for than there are.

    Example:
        >>> task_sizes(100, 20, initial=50)
        [50, 20, 20, 10]
    """
    first = [] if initial is None else [initial]
    listed = per_task if isinstance(per_task, list) else [per_task]
    if not listed or min(first + listed) < 1:
        option = "" if initial is None else f", initial_classes {initial}"
        raise UsageError(f"classes_per_task is {per_task}{option}: every task needs at least one class")
    if isinstance(per_task, list):
        if sum(first + per_task) > classes:
            raise UsageError(f"the tasks ask for {sum(first + per_task)} classes, the data has {classes}")
        return first + per_task
    wanted = (first + listed)[0]
    if classes < wanted:
        raise UsageError(
            f"the first task asks for {wanted} classes, the data has {classes}: set a smaller --data.classes_per_task"
        )
    full, rest = divmod(classes - sum(first), per_task)
    return first + [per_task] * full + ([rest] if rest else [])


@dataclass(frozen=True)
class TaskStream:
    """The new classes of each task, as tuples of class names; a slice is a stream again."""

    tasks: tuple[tuple[str, ...], ...]

    @classmethod
    def plan(
        cls,
        names: Sequence[str],
        order: ClassOrder = None,
        per_task: int | list[int] = 10,
        initial: int | None = None,
        learned: Sequence[Sequence[str]] = (),
    ) -> TaskStream:
        """Divide classes into tasks, after the tasks that were learned before.

        The learned tasks come first, unchanged, and the other classes follow in their order. So a class that is added
        to the data later never moves one that was learned.

        Args:
            names: all classes as the source gives them.
            order: see :func:`order_classes`.
            per_task, initial: see :func:`task_sizes`.
            learned: class names of the tasks that were learned before.

        Raises:
            DataError: a learned class is gone from the data.
            UsageError: as :func:`order_classes` and :func:`task_sizes`.

        Example:
            >>> TaskStream.plan(["a", "b", "c"], per_task=2).tasks
            (('a', 'b'), ('c',))
        """
        if not names:
            raise DataError("the data source has no classes")
        ordered = order_classes(names, order)
        past = tuple(tuple(task) for task in learned)
        known = {name for task in past for name in task}
        gone = sorted(known - set(names))
        if gone:
            raise DataError(f"class '{gone[0]}' was learned before, but the data no longer has it: put it back")
        fresh = [name for name in ordered if name not in known]
        if not past:
            sizes = task_sizes(len(fresh), per_task, initial)
        elif isinstance(per_task, list):
            planned = ([initial] if initial else []) + per_task
            sizes = task_sizes(len(fresh), planned[len(past) :]) if len(planned) > len(past) else []
        else:
            sizes = task_sizes(len(fresh), min(per_task, len(fresh))) if fresh else []
        tasks, start = [], 0
        for size in sizes:
            tasks.append(tuple(fresh[start : start + size]))
            start += size
        return cls(past + tuple(tasks))

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, tasks: slice) -> TaskStream:
        return TaskStream(self.tasks[tasks])

    def classes(self) -> list[str]:
        """Return all class names of the stream, in the order learned."""
        return [name for task in self.tasks for name in task]


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
        class_order: see :func:`cifnet_pl.data.plan.order_classes`.
        classes_per_task: number of new classes of each task, or a list with one number per task.
        initial_classes: number of classes of a larger first task, or None.
        max_tasks: tasks to keep, or None for all.

    Attributes:
        left_out: (n,) bool, training samples that no task brings; None for none.
        untested: (m,) bool, test samples that no task is tested with; None for none.
    """

    left_out: np.ndarray | None = None
    untested: np.ndarray | None = None

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
            if self.untested is not None:
                rows = rows[~self.untested[rows]]
            if groups is not None:
                to_come = set(range(tasks, len(groups.names))) & set(groups.train.tolist())
                rows = rows[~np.isin(groups.val[rows], sorted(to_come))]
            test_rows.append(rows)
        return test_rows


def without_test_images(source: Source, fraction: float, seed: int) -> Source:
    """Replace the test samples by a share of the training samples of each class.

    The split is by a seeded hash of names, as that of a source without a test part. If the source has domains, the same
    share of each domain is taken.

    Args:
        source: with a test part, which is dropped.
        fraction: share of each class's training samples.
        seed: of the split.

    Raises:
        UsageError: the fraction is not between 0 and 1, or a class has a single training sample.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"--data.tune is {fraction:g}, expected a share between 0 and 1 of the training images")
    train = source.train
    for label, rows in train.rows_of.items():
        if len(rows) < 2:
            name = source.class_names[label]
            raise UsageError(f"--data.tune needs two training images of each class, but '{name}' has one")
    domains = np.zeros(len(train), dtype=np.int64) if source.domains is None else source.domains.train
    # A seed of its own: the same one would take the samples that a source holds back from what it left.
    chosen = held_back_rows(train, domains, fraction, seed + 1)
    groups = {"domains": source.domains, "tasks": source.tasks}
    known = {kind: (group.names, group.train) for kind, group in groups.items() if group is not None}
    return in_two(source.class_names, train, chosen, **known)
