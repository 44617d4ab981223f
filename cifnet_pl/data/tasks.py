"""Divide classes among tasks: their order, and how many each has. Pure Python, no images and no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

ClassOrder = int | list[int] | list[str] | str | None
"""A seed, positions in the source's order, class names, a file with either, or None for the source's own order."""


def order_classes(names: Sequence[str], order: ClassOrder) -> list[str]:
    """Return the names in the order in which they are to be learned.

    Args:
        names: classes as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; a list of all positions or of all names; a
            file that holds such a list (see :func:`read_order`); or None.

    Raises:
        UsageError: a negative seed; a list with a class twice, without a class, or with one that the source lacks.
    """
    if order is None:
        return list(names)
    if isinstance(order, int):
        if order < 0:
            raise UsageError(f"class_order is {order}, expected a seed of at least 0, a list, a file, or null")
        return [names[i] for i in np.random.default_rng(order).permutation(len(names))]
    if isinstance(order, str):
        order = read_order(Path(order))
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


def read_order(path: Path) -> list[int] | list[str]:
    """Read a class order from a text file.

    The file holds one list in brackets, as PyCIL and PILOT print and configure them (JSON, YAML or Python, whatever
    stands around it), or one class on each line.

    Args:
        path: of the file; ``~`` is the user's home folder.

    Returns:
        Positions of classes, or their names.

    Raises:
        UsageError: no such file, or one without such a list.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "order.json"
        >>> _ = file.write_text('{"dataset": "digits", "class_order": [2, 0, 1]}')
        >>> read_order(file)
        [2, 0, 1]
    """
    path = path.expanduser()
    if not path.is_file():
        raise UsageError(f"no file {printable(str(path))}: class_order is a seed, a list, or a file with a list")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {printable(str(path))}: class_order names a text file with a list") from error
    lists = re.findall(r"\[([^\[\]]*)\]", text)
    longest = max(lists, key=lambda part: part.count(","), default="")
    items = longest.split(",") if lists else text.splitlines()
    names = [item.strip().strip("'\"") for item in items if item.strip().strip("'\"")]
    if not names:
        raise UsageError(f"{printable(str(path))} holds no list of classes: expected [3, 0, …] or one class per line")
    return [int(word) for word in names] if all(word.isdecimal() for word in names) else names


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
