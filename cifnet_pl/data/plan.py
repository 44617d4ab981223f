"""Plan a run: the classes and training samples of each task, and the samples that test it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.sets import (
    Grouping,
    SampleGroups,
    Source,
    held_out_rows,
    source_by_mask,
)
from cifnet_pl.data.streams import Classes, Disjoint, Stream
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.names import class_name

ClassOrder = int | list[int] | list[str] | None
"""A seed, positions in the source's order, class names, or None for the source's own order."""


def order_classes(names: Sequence[str], order: ClassOrder) -> list[str]:
    """Return the names in the order in which they are to be learned.

    Args:
        names: classes as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; a list of all positions or
            of all names; or None for the order of the source.

    Raises:
        UsageError: a negative seed; a list with a class twice, without a class, or with one that
            the source lacks.
    """
    if order is None:
        return list(names)
    if isinstance(order, int):
        check_that(
            order >= 0, "class_order", order, "a seed of at least 0, a list, or null"
        )
        generator = np.random.default_rng(order)
        permutation = generator.permutation(len(names))
        return [names[i] for i in permutation]
    if len(set(order)) < len(order):
        raise UsageError("class_order names a class twice")
    chosen = []
    are_numbers = [isinstance(item, int) for item in order]
    by_position = all(are_numbers)
    for item in order:
        if by_position:
            name = _name_at(names, int(item))
        else:
            name = class_name(str(item))
        chosen.append(name)
    known = set(names)
    for name in chosen:
        if name not in known:
            raise UsageError(
                f"class_order names '{name}', which the data source does not have"
            )
    if len(chosen) < len(names):
        raise UsageError(
            f"class_order lists {len(chosen)} of {len(names)} classes: list all of them, and set"
            " --data.max_tasks to learn fewer"
        )
    return chosen


def _name_at(names: Sequence[str], position: int) -> str:
    if not 0 <= position < len(names):
        last = len(names) - 1
        raise UsageError(f"class_order holds position {position}, expected 0 to {last}")
    return names[position]


def task_sizes(
    classes: int, per_task: int | list[int], initial: int | None = None
) -> list[int]:
    """Return the number of classes of each task.

    Args:
        classes: number of all classes.
        per_task: classes of each task, the last of which may be smaller; or one number for each
            task.
        initial: classes of the first task, if it differs.

    Raises:
        UsageError: sizes below one, or more classes asked for than there are.

    Example:
        >>> task_sizes(100, 20, initial=50)
        [50, 20, 20, 10]
    """
    if initial is None:
        first = []
    else:
        first = [initial]
    if isinstance(per_task, list):
        sizes = [*first, *per_task]
    else:
        sizes = [*first, per_task]
    if len(sizes) == len(first) or min(sizes) < 1:
        if initial is None:
            option = ""
        else:
            option = f", initial_classes {initial}"
        raise UsageError(
            f"classes_per_task is {per_task}{option}: every task needs at least one class"
        )
    if isinstance(per_task, list):
        if sum(sizes) > classes:
            raise UsageError(
                f"the tasks ask for {sum(sizes)} classes, the data has {classes}"
            )
        return sizes
    if classes < sizes[0]:
        raise UsageError(
            f"the first task asks for {sizes[0]} classes, the data has {classes}: lower"
            " classes_per_task"
        )
    left = classes - sum(first)
    full, rest = divmod(left, per_task)
    if rest:
        last = [rest]
    else:
        last = []
    full_tasks = [per_task] * full
    return first + full_tasks + last


Tasks = tuple[tuple[str, ...], ...]
"""Class names of each task."""


@dataclass(frozen=True)
class TaskStream:
    """The new classes of each task, as tuples of class names."""

    tasks: Tasks

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

        The learned tasks come first, unchanged, and the other classes follow in their order. So a
        class that is added to the data later never moves one that was learned.

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
        known = set(chain.from_iterable(past))
        gone = sorted(known - set(names))
        if gone:
            raise DataError(
                f"class '{gone[0]}' was learned before, but the data no longer has it: put it back"
            )
        new = []
        for name in ordered:
            if name not in known:
                new.append(name)
        n_new = len(new)
        sizes = _remaining_sizes(n_new, per_task, initial, len(past))
        left = iter(new)
        tasks = tuple(tuple(islice(left, size)) for size in sizes)
        return cls(past + tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def classes(self) -> list[str]:
        """Return all class names of the stream, in the order learned."""
        return list(chain.from_iterable(self.tasks))


def _remaining_sizes(
    classes: int, per_task: int | list[int], initial: int | None, learned_tasks: int
) -> list[int]:
    """Return the sizes of the tasks that follow those learned before.

    Args:
        classes: number of the classes that are still to be learned.
        per_task, initial: see :func:`task_sizes`.
        learned_tasks: number of the tasks that were learned before.
    """
    if not learned_tasks:
        return task_sizes(classes, per_task, initial)
    if isinstance(per_task, list):
        if initial:
            planned = [initial, *per_task]
        else:
            planned = per_task
        to_come = planned[learned_tasks:]
        if to_come:
            return task_sizes(classes, to_come)
        return []
    if classes:
        return task_sizes(classes, min(per_task, classes))
    return []


class TaskLearner(Protocol):
    """The part of a LightningModule that the data module needs.

    Attributes:
        any_batch_size: whether it learns the same from batches of any size.
    """

    any_batch_size: ClassVar[bool]
    class_names: list[str]
    learned_tasks: list[list[str]]
    backbone: Backbone

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned.

        Args:
            rows: (n,) positions of the task's images.
            task: number of the task, from 0.

        Returns:
            Positions for each part that is delivered in turn: a pass over all images, or one step.
        """


class PlannedTasks(NamedTuple):
    """The tasks of a run that follow on tasks learned before.

    Attributes:
        past: class names of the tasks that were learned before.
        stream: the new classes of all tasks.
        rows: positions of the training samples of each task.
    """

    past: Tasks
    stream: TaskStream
    rows: list[np.ndarray]


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
        left_out: (n,) bool, training samples that are excluded as duplicates; None without any.
        untested: (m,) bool, test samples that are excluded; None without any.
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
        self.source = source
        self.kind = stream or Disjoint()
        self.max_tasks = max_tasks
        self._order = class_order
        self._per_task = classes_per_task
        self._initial = initial_classes
        self._planned: PlannedTasks | None = None

    def tasks(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """Return the new classes of all tasks.

        Args:
            learned: class names of the tasks that were learned before; they come first and
                unchanged.
        """
        return self._plan(learned).stream

    def rows(self, task: int, learned: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the positions of the training samples of a task; empty after the last task.

        Args:
            task: its number, from 0.
            learned: class names of the tasks that were learned before.
        """
        tasks = self.all_rows(learned)
        if task >= len(tasks):
            return np.zeros(0, dtype=np.int64)
        rows = tasks[task]
        if self.left_out is None:
            return rows
        stays = ~self.left_out[rows]
        remaining: np.ndarray = rows[stays]
        return remaining

    def all_rows(self, learned: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the positions of the training samples of every task, left out ones included.

        Args:
            learned: class names of the tasks that were learned before.
        """
        return self._plan(learned).rows

    def _plan(self, learned: Sequence[Sequence[str]]) -> PlannedTasks:
        past = tuple(tuple(task) for task in learned)
        if self._planned is None or self._planned.past != past:
            self._planned = self._divide(past)
        return self._planned

    def _divide(self, past: Tasks) -> PlannedTasks:
        names = self.source.class_names
        fixed = past
        if self.kind.samples_return:
            fixed = ()
        stream = TaskStream.plan(
            names, self._order, self._per_task, self._initial, fixed
        )
        sequence = []
        for task in stream.tasks:
            positions = tuple(self.position[name] for name in task)
            sequence.append(positions)
        classes = Classes(self.source, tuple(sequence))
        rows = self.kind.divide(classes)
        tasks = stream.tasks
        if self.kind.samples_return:
            tasks = self._first_seen(rows, stream.classes())
        if tasks[: len(past)] != past:
            raise DataError(
                "the tasks learned before are not those of this stream: use the same data and"
                " settings"
            )
        planned = self.max_tasks or len(rows)
        count = max(planned, len(past))
        stream = TaskStream(tasks[:count])
        return PlannedTasks(past, stream, rows[:count])

    def _first_seen(self, rows: Sequence[np.ndarray], order: Sequence[str]) -> Tasks:
        """Return the names of the classes that each task is the first to bring.

        Args:
            rows: positions of the training samples of each task.
            order: names of all classes in the order of learning.
        """
        labels_in_order = []
        for name in order:
            labels_in_order.append(self.position[name])
        seen: set[int] = set()
        tasks = []
        for task_rows in rows:
            labels = self.source.train.labels[task_rows]
            unseen = set(labels.tolist()) - seen
            new = []
            for label in labels_in_order:
                if label in unseen:
                    new.append(label)
            seen |= unseen
            names = [self.source.class_names[label] for label in new]
            tasks.append(tuple(names))
        return tuple(tasks)

    @cached_property
    def position(self) -> dict[str, int]:
        """Class name → label within the source."""
        positions = {}
        for i, name in enumerate(self.source.class_names):
            positions[name] = i
        return positions

    @cached_property
    def evaluated(self) -> Grouping | None:
        """The domains that are evaluated one by one, in the order of learning, or None."""
        return self.kind.evaluated(self.source)

    def test_rows(self, names: Iterable[str], tasks: int) -> list[np.ndarray]:
        """Return the positions of the test samples of each class.

        Test samples of domains that are evaluated one by one are left out until their task. Those
        of domains that no task learns, such as CORe50's test sessions, are always included.

        Args:
            names: names of the classes.
            tasks: number of tasks that are learned.

        Raises:
            DataError: a class that the data does not have.
        """
        val = self.source.val
        tested = np.ones(len(val), dtype=bool)
        if self.untested is not None:
            tested &= ~self.untested
        groups = self.evaluated
        if groups is not None:
            last = len(groups.names)
            later = np.arange(tasks, last)
            to_come = np.intersect1d(later, groups.train)
            is_later = np.isin(groups.val, to_come)
            tested &= ~is_later
        none = np.zeros(0, dtype=np.int64)
        test_rows = []
        for name in names:
            if name not in self.position:
                raise DataError(
                    f"class '{name}' was learned, but the data does not have it"
                )
            position = self.position[name]
            rows = val.rows_of.get(position, none)
            test_rows.append(rows[tested[rows]])
        return test_rows


def without_test_images(source: Source, fraction: float, seed: int) -> Source:
    """Replace the test samples by a share of the training samples of each class.

    The split is by a seeded hash of names, as that of a source without a test split. If the source
    has domains, the same share of each domain is held out.

    Args:
        source: with a test split, which is dropped.
        fraction: share of each class's training samples; none of a single one.
        seed: seed of the split.

    Raises:
        UsageError: the fraction is not between 0 and 1.
    """
    expected = "a share between 0 and 1 of the training images"
    check_that(0 < fraction < 1, "--data.tune", fraction, expected)
    train = source.train
    domains = _training_groups(source.domains)
    tasks = _training_groups(source.tasks)
    if domains is None:
        numbers = np.zeros(len(train), dtype=np.int64)
    else:
        numbers = domains.numbers
    # A seed of its own: the same one would choose the samples that a source holds out from those
    # that it left.
    chosen = held_out_rows(train, numbers, fraction, seed + 1)
    return source_by_mask(source.class_names, train, chosen, domains, tasks)


def _training_groups(grouping: Grouping | None) -> SampleGroups | None:
    if grouping is None:
        return None
    return SampleGroups(grouping.names, grouping.train)
