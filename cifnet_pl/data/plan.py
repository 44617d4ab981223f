"""Plan a run: the classes and training samples of each task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

from cifnet_pl.data.samples import Source
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
    by_position = all(isinstance(item, int) for item in order)
    if by_position:
        chosen = [_name_at(names, int(item)) for item in order]
    else:
        chosen = [class_name(str(item)) for item in order]
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
    first = [] if initial is None else [initial]
    asked = per_task if isinstance(per_task, list) else [per_task]
    sizes = [*first, *asked]
    if not asked or min(sizes) < 1:
        option = "" if initial is None else f", initial_classes {initial}"
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
    full, rest = divmod(classes - sum(first), per_task)
    sizes = first + [per_task] * full
    if rest:
        sizes.append(rest)
    return sizes


Tasks = tuple[tuple[str, ...], ...]
"""Class names of each task."""


def class_tasks(
    names: Sequence[str],
    order: ClassOrder = None,
    per_task: int | list[int] = 10,
    initial: int | None = None,
    learned: Sequence[Sequence[str]] = (),
) -> Tasks:
    """Divide classes into tasks, after the tasks that were learned before.

    The learned tasks come first, unchanged, and the other classes follow in their order. So a class
    that is added to the data later never moves one that was learned.

    Args:
        names: all classes as the source gives them.
        order: see :func:`order_classes`.
        per_task, initial: see :func:`task_sizes`.
        learned: class names of the tasks that were learned before.

    Raises:
        DataError: a learned class is gone from the data.
        UsageError: as :func:`order_classes` and :func:`task_sizes`.

    Example:
        >>> class_tasks(["a", "b", "c"], per_task=2)
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
    new = [name for name in ordered if name not in known]
    if not past:
        sizes = task_sizes(len(new), per_task, initial)
    elif isinstance(per_task, list):
        first = [initial] if initial else []
        to_come = [*first, *per_task][len(past) :]
        sizes = task_sizes(len(new), to_come) if to_come else []
    else:
        sizes = task_sizes(len(new), min(per_task, len(new))) if new else []
    left = iter(new)
    tasks = tuple(tuple(islice(left, size)) for size in sizes)
    return past + tasks


@dataclass(frozen=True)
class Plan:
    """The tasks of a run over one source.

    Attributes:
        tasks: the new classes of each task.
        rows: rows of the training samples of each task.
    """

    tasks: Tasks
    rows: list[np.ndarray]

    @property
    def classes(self) -> list[str]:
        """All class names, in the order learned."""
        return list(chain.from_iterable(self.tasks))


def make_plan(
    source: Source,
    stream: Stream | None = None,
    class_order: ClassOrder = None,
    classes_per_task: int | list[int] = 10,
    initial_classes: int | None = None,
    max_tasks: int | None = None,
    learned: Sequence[Sequence[str]] = (),
) -> Plan:
    """Divide the classes and training samples of a source into tasks.

    Args:
        source: training and test samples.
        stream: kind of stream, or None for disjoint classes.
        class_order: see :func:`order_classes`.
        classes_per_task: number of new classes of each task, or a list with one number per task.
        initial_classes: number of classes of a larger first task, or None.
        max_tasks: tasks to keep, or None for all.
        learned: class names of the tasks that were learned before; they come first and unchanged.

    Raises:
        DataError: the tasks that were learned are not those of the source and the stream.
        UsageError: as :func:`class_tasks`.
    """
    kind = stream or Disjoint()
    past = tuple(tuple(task) for task in learned)
    fixed = () if kind.samples_return else past
    tasks = class_tasks(
        source.class_names, class_order, classes_per_task, initial_classes, fixed
    )
    labels = tuple(tuple(source.position[name] for name in task) for task in tasks)
    classes = Classes(source, labels)
    rows = kind.divide(classes)
    if kind.samples_return:
        tasks = _first_seen(classes, rows)
    if tasks[: len(past)] != past:
        raise DataError(
            "the tasks learned before are not those of this stream: use the same data and settings"
        )
    count = max(max_tasks or len(rows), len(past))
    return Plan(tasks[:count], rows[:count])


def _first_seen(classes: Classes, rows: Sequence[np.ndarray]) -> Tasks:
    """Return the names of the classes that each task is the first to bring."""
    source = classes.source
    seen: set[int] = set()
    tasks = []
    for task_rows in rows:
        labels = source.train.labels[task_rows]
        unseen = set(labels.tolist()) - seen
        new = [label for label in classes.order if label in unseen]
        seen |= unseen
        tasks.append(tuple(source.class_names[label] for label in new))
    return tuple(tasks)
