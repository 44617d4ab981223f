"""The task stream: which classes are learned when. Pure Python, no images and no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cifnet_pl.utilities.errors import DataError, UsageError

ClassOrder = int | list[int] | list[str] | None
"""A seed, positions in the source's order, class names, or None for the source's own order."""


def order_classes(names: Sequence[str], order: ClassOrder) -> list[str]:
    """The names in the order in which they are to be learned.

    Args:
        names: classes as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; a list of positions or of names (a subset
            selects classes); or None.

    Raises:
        UsageError: a negative seed; a class named twice; a position or name that the source does not have.
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
        return [names[int(i)] for i in order]
    chosen = [str(item) for item in order]
    missing = [name for name in chosen if name not in set(names)]
    if missing:
        raise UsageError(f"class_order names '{missing[0]}', which the data source does not have")
    return chosen


def task_sizes(classes: int, per_task: int | list[int], initial: int | None = None) -> list[int]:
    """Number of classes of each task; the last may be smaller where ``per_task`` is one number.

    Raises:
        UsageError: sizes below one, or more classes asked for than there are.
    """
    first = [] if initial is None else [initial]
    listed = per_task if isinstance(per_task, list) else [per_task]
    if not listed or min(first + listed) < 1:
        given = "" if initial is None else f", initial_classes {initial}"
        raise UsageError(f"classes_per_task is {per_task}{given}: every task needs at least one class")
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
    """Tasks as tuples of class names; slices are streams again."""

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
        """Divide ``names`` into tasks, after the tasks that were ``learned`` before.

        A class that was added to the data later on never moves a learned one: the learned tasks come first as they
        were, the others follow in their order.

        Raises:
            DataError: a learned class is gone from the data.
            UsageError: as :func:`order_classes` and :func:`task_sizes`.
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

    def __getitem__(self, part: slice) -> TaskStream:
        return TaskStream(self.tasks[part])

    def classes(self) -> list[str]:
        """All class names of the stream, in the order learned."""
        return [name for task in self.tasks for name in task]
