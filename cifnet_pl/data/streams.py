"""Plan a run: the classes and training samples of each task; pure NumPy, no images and no torch.

Which samples a task brings is said by the kind of stream. A new kind is one subclass of
:class:`Stream`; ``--data.stream`` finds it by its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal
from zlib import crc32

import numpy as np
import pandas as pd

from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.utilities.errors import DataError, UsageError, check_choice, check_that
from cifnet_pl.utilities.names import class_name
from cifnet_pl.utilities.text import printable

# ---------------------------------------------------------------------- classes of each task

ClassOrder = int | list[int] | list[str] | None
"""A seed, positions in the source's order, class names, or None for the source's own order."""


def order_classes(
    names: Sequence[str],
    order: int | list[int] | list[str],
    option: str = "class_order",
) -> list[str]:
    """Return the names in the order in which they are to be learned.

    Args:
        names: classes, or domains, as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; or a list of all positions
            or of all names.
        option: what the order is called in messages.

    Raises:
        UsageError: a negative seed, or a list that does not hold each class once.
    """
    if isinstance(order, int):
        check_that(order >= 0, option, order, "a seed of at least 0, a list, or null")
        generator = np.random.default_rng(order)
        permutation = generator.permutation(len(names))
        return [names[i] for i in permutation]
    chosen = []
    for item in order:
        if isinstance(item, int) and 0 <= item < len(names):
            chosen.append(names[item])
        else:
            chosen.append(class_name(str(item)))
    if sorted(chosen) != sorted(names):
        odd = [*(set(chosen) ^ set(names)), *chosen]
        raise UsageError(
            f"{option} must list each of the {len(names)} names once, which is not so for"
            f" '{printable(odd[0])}'; --data.max_tasks learns fewer"
        )
    return chosen


Tasks = tuple[tuple[str, ...], ...]
"""Class names of each task."""


def class_tasks(
    names: Sequence[str],
    order: ClassOrder = None,
    per_task: int | list[int] = 10,
    initial: int | None = None,
    learned: Tasks = (),
) -> Tasks:
    """Divide classes into tasks, after the tasks that were learned before.

    The learned tasks come first, unchanged, and the other classes follow in their order. So a class
    that is added to the data later never moves one that was learned.

    Args:
        names: all classes as the source gives them.
        order: see :func:`order_classes`.
        per_task: classes of each new task, the last of which may be smaller; or one number for each
            task.
        initial: classes of the first task, if it differs.
        learned: class names of the tasks that were learned before.

    Raises:
        DataError: a learned class is gone from the data.
        UsageError: as :func:`order_classes`; sizes below one, or a list that asks for more classes
            than there are.

    Example:
        >>> class_tasks(["a", "b", "c", "d", "e"], per_task=2, initial=1)
        (('a',), ('b', 'c'), ('d', 'e'))
    """
    ordered = names
    if order is not None:
        ordered = order_classes(names, order)
    known = set(chain.from_iterable(learned))
    gone = sorted(known - set(names))
    if gone:
        raise DataError(
            f"class '{gone[0]}' was learned before, but the data no longer has it: put it back"
        )
    new = [name for name in ordered if name not in known]
    listed = per_task if isinstance(per_task, list) else [per_task]
    if not listed or min(listed) < 1:
        raise UsageError(
            f"classes_per_task is {per_task}: every task needs at least one class"
        )
    first = [] if initial is None else [initial]
    if isinstance(per_task, list):
        sizes = [*first, *per_task][len(learned) :]
    else:
        sizes = first[len(learned) :]
        starts = range(sum(sizes), len(new), per_task)
        sizes += [min(per_task, len(new) - start) for start in starts]
    if sum(sizes) > len(new):
        raise UsageError(
            f"the tasks ask for {sum(sizes)} classes, the data has {len(new)}: lower"
            " classes_per_task"
        )
    left = iter(new)
    return learned + tuple(tuple(islice(left, size)) for size in sizes)


# ---------------------------------------------------------------------- samples of each task


@dataclass(frozen=True)
class Classes:
    """The input of a stream: the training samples, and the classes in the order of learning.

    Attributes:
        source: where the samples are from.
        tasks: labels of the classes of each task, as ``classes_per_task`` and ``class_order`` give
            them.
    """

    source: Source
    tasks: tuple[tuple[int, ...], ...]

    @property
    def order(self) -> list[int]:
        """Labels of all classes in the order of learning."""
        return list(chain.from_iterable(self.tasks))

    def rows(self, labels: Sequence[int]) -> np.ndarray:
        """Return the rows of all training samples of classes ``labels``, class by class."""
        rows_of = self.source.train.rows_of
        return np.concatenate([rows_of[label] for label in labels])

    def numbered(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield the task that introduces each class, the class's label, and its samples' rows."""
        for number, task in enumerate(self.tasks):
            for label in task:
                yield number, label, self.rows([label])

    def by_task(self, task_of: np.ndarray, count: int) -> list[np.ndarray]:
        """Return the rows of each task, class by class in the order of learning.

        Args:
            task_of: (n,) number of the task of each training sample; others belong to none.
            count: number of tasks.
        """
        rows = self.rows(self.order)
        tasks = task_of[rows]
        return [rows[tasks == number] for number in range(count)]

    def no_task(self) -> np.ndarray:
        """Return (n,) int64 for :meth:`by_task`, in which no training sample has a task."""
        return np.full(len(self.source.train), -1)

    def random(self, seed: int, label: int) -> np.random.Generator:
        """Return a random number generator for one class that does not depend on other classes.

        Args:
            seed: seed of all classes.
            label: label of the class.
        """
        class_name = self.source.class_names[label]
        name = class_name.encode("utf-8", "surrogateescape")
        entropy = [seed, crc32(name)]
        return np.random.default_rng(entropy)


class Stream(ABC):
    """A rule that divides the training samples into tasks."""

    samples_return = True
    """Whether a class may bring samples in tasks after the one that introduces it."""

    def evaluated(self, source: Source) -> pd.Categorical | None:
        """Return the domain of each test sample; None to evaluate the classes of each task.

        Its categories are the domains in the order of learning, then those that no task learns.
        """
        return None

    @abstractmethod
    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task.

        Args:
            classes: the samples, and the order of the classes.
        """


class Disjoint(Stream):
    """Every class has all its samples in one task."""

    samples_return = False

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        return [classes.rows(task) for task in classes.tasks]


class Returning(Stream):
    """Every class comes back in later tasks with samples that were not there before.

    Args:
        share: share of a class's samples that come after the task which introduces it, in equal
            parts in all later tasks.
        seed: seed of the choice.
    """

    def __init__(self, share: float = 0.5, seed: int = 0):
        check_that(0 < share < 1, "share", share, "a number between 0 and 1")
        self.share = share
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        count = len(classes.tasks)
        task_of = classes.no_task()
        for number, label, samples in classes.numbered():
            rows = classes.random(self.seed, label).permutation(samples)
            later = np.arange(number + 1, count)
            first = len(rows)
            if len(later):
                first = max(1, len(rows) - round(self.share * len(rows)))
            task_of[rows[:first]] = number
            # Equal parts: each later task in turn until the rows are used up.
            in_turn = np.resize(later, len(rows) - first)
            task_of[rows[first:]] = np.sort(in_turn)
        return classes.by_task(task_of, count)


class Blurry(Stream):
    """i-Blurry (Koh et al., ICLR 2022): some classes stay in one task, the others appear in all.

    Args:
        disjoint: percentage N of the classes that stay in one task.
        blurry: percentage M of the samples of each other class that are spread over the other
            tasks, earlier ones too.
        seed: seed of all choices.
        every: samples between two solves, those of each task shuffled, so that the mean of A_k is
            the paper's A_AUC; null to solve after each task.
    """

    def __init__(
        self,
        disjoint: float = 50.0,
        blurry: float = 10.0,
        seed: int = 0,
        every: int | None = None,
    ):
        expected = "a percentage from 0 to 100"
        check_that(0 <= disjoint <= 100, "disjoint", disjoint, expected)
        check_that(0 <= blurry <= 100, "blurry", blurry, expected)
        check_that(every is None or every > 0, "every", every, "at least 1 sample")
        self.disjoint = disjoint
        self.blurry = blurry
        self.every = every
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        order = classes.order
        generator = np.random.default_rng(self.seed)
        mixed = generator.permutation(order)
        count = round(self.disjoint / 100 * len(order))
        stay = set(mixed[:count].tolist())
        numbers = np.arange(len(classes.tasks))
        task_of = classes.no_task()
        for number, label, samples in classes.numbered():
            others = np.delete(numbers, number)
            random = classes.random(self.seed, label)
            rows = random.permutation(samples)
            leaving = round(self.blurry / 100 * len(rows))
            if label in stay or not len(others):
                leaving = 0
            task_of[rows[leaving:]] = number
            task_of[rows[:leaving]] = random.choice(others, leaving)
        tasks = classes.by_task(task_of, len(numbers))
        if self.every is None:
            return tasks
        shuffled = [
            np.random.default_rng([self.seed, number]).permutation(task)
            for number, task in enumerate(tasks)
        ]
        in_order = np.concatenate(shuffled)
        return np.split(in_order, range(self.every, len(in_order), self.every))


class TaskFree(Blurry):
    """No task boundaries: the head is solved after a fixed number of samples.

    The samples come in the order of the classes' tasks, shuffled within each task, so that a solve
    can fall anywhere. This is i-Blurry without classes that are spread over the tasks.

    Args:
        every: samples between two solves.
        seed: seed of the shuffling.
    """

    def __init__(self, every: int = 500, seed: int = 0):
        super().__init__(disjoint=100.0, seed=seed, every=every)


SizeOrder = Literal["shuffled", "descending"]


class LongTailed(Stream):
    """Class sizes that fall exponentially, in disjoint tasks.

    The class of rank r of C classes has ``n_r = n_max · ratio^(−r/(C−1))`` samples.

    Args:
        ratio: size of the largest class divided by that of the smallest.
        order: "descending", the largest classes are learned first; or "shuffled", sizes are drawn
            by seed.
        seed: seed of the sizes and of the choice of samples.
    """

    samples_return = False

    def __init__(
        self,
        ratio: float = 100.0,
        order: SizeOrder = "shuffled",
        seed: int = 0,
    ):
        expected = "at least 1: the largest class divided by the smallest"
        check_that(ratio >= 1, "ratio", ratio, expected)
        check_choice("order of a long-tailed stream", order, SizeOrder)
        self.ratio = ratio
        self.order = order
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        order = classes.order
        ranked = order
        if self.order == "shuffled":
            generator = np.random.default_rng(self.seed)
            ranked = generator.permutation(order).tolist()
        largest = max(len(samples) for _, _, samples in classes.numbered())
        last_rank = max(1, len(order) - 1)
        rank_of = {label: rank for rank, label in enumerate(ranked)}
        task_of = classes.no_task()
        for number, label, samples in classes.numbered():
            size = round(largest * self.ratio ** (-rank_of[label] / last_rank))
            rows = classes.random(self.seed, label).permutation(samples)
            task_of[rows[: max(1, size)]] = number
        return classes.by_task(task_of, len(classes.tasks))


class Domains(Stream):
    """Domain-incremental: each task is one domain (a session, place or camera), with its classes.

    Args:
        order: names of the domains in the order of learning, or null for the source's order.
    """

    def __init__(self, order: list[str] | None = None):
        self.order = order

    def evaluated(self, source: Source) -> pd.Categorical | None:
        """Return the domain of each test sample."""
        trained = self._learned(source).categories
        domains = _groups(source.test, "domain")
        return domains.set_categories(trained.union(domains.categories, sort=False))

    def _learned(self, source: Source) -> pd.Categorical:
        """Return the domain of each training sample, in the order of learning."""
        domains = _groups(source.train, "domain")
        if self.order is None:
            return domains
        present = list(domains.categories)
        order = order_classes(present, self.order, "the order of domains")
        return domains.set_categories(pd.Index(order, dtype=object))

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        return _divided(classes, self._learned(classes.source))


class Listed(Stream):
    """The tasks of the source itself, such as the column ``task`` of a manifest, sorted."""

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the rows of the training samples of each task."""
        return _divided(classes, _groups(classes.source.train, "task"))


def _groups(samples: SampleTable, column: str) -> pd.Categorical:
    """Return the domain or task of each sample; UsageError where the source has none.

    Its categories are those that occur, in their order.
    """
    if column not in samples.table:
        raise UsageError(
            f"this data source knows no {column}s: use a manifest with a column {column}"
        )
    return pd.Categorical(samples.table[column]).remove_unused_categories()


def _divided(classes: Classes, groups: pd.Categorical) -> list[np.ndarray]:
    """Return the rows of each category, class by class in the order of learning."""
    tasks = classes.by_task(groups.codes, len(groups.categories))
    for name, task in zip(groups.categories, tasks, strict=True):
        if not len(task):
            raise DataError(
                f"no training sample of the chosen classes is in '{name}': leave it out"
            )
    return tasks


# ---------------------------------------------------------------------- the plan


@dataclass(frozen=True)
class Plan:
    """The tasks of a run over one source.

    Attributes:
        tasks: the new classes of each task.
        rows: rows of the training samples of each task.
        classes: all class names, in the order learned.
    """

    tasks: Tasks
    rows: list[np.ndarray]
    classes: list[str]


def make_plan(
    source: Source,
    stream: Stream,
    class_order: ClassOrder,
    classes_per_task: int | list[int],
    initial_classes: int | None = None,
    max_tasks: int | None = None,
    learned: Tasks = (),
) -> Plan:
    """Divide the classes and training samples of a source into tasks.

    Args:
        source: training and test samples.
        stream: kind of stream.
        class_order: see :func:`order_classes`.
        classes_per_task: number of new classes of each task, or a list with one number per task.
        initial_classes: number of classes of a larger first task, or None.
        max_tasks: tasks to keep, or None for all.
        learned: class names of the tasks that were learned before; they come first and unchanged.

    Raises:
        DataError: the tasks that were learned are not those of the source and the stream.
        UsageError: as :func:`class_tasks`.
    """
    fixed = () if stream.samples_return else learned
    tasks = class_tasks(
        source.class_names, class_order, classes_per_task, initial_classes, fixed
    )
    labels = tuple(tuple(source.position[name] for name in task) for task in tasks)
    classes = Classes(source, labels)
    rows = stream.divide(classes)
    if stream.samples_return:
        tasks = _first_seen(classes, rows)
    if tasks[: len(learned)] != learned:
        raise DataError(
            "the tasks learned before are not those of this stream: use the same data and settings"
        )
    count = max(max_tasks or len(rows), len(learned))
    kept = tasks[:count]
    return Plan(kept, rows[:count], list(chain.from_iterable(kept)))


def _first_seen(classes: Classes, rows: Sequence[np.ndarray]) -> Tasks:
    """Return the names of the classes that each task is the first to bring."""
    source = classes.source
    unseen = classes.order
    tasks = []
    for rows_of_task in rows:
        present = set(source.train.labels[rows_of_task].tolist())
        new = [label for label in unseen if label in present]
        unseen = [label for label in unseen if label not in present]
        tasks.append(tuple(source.class_names[label] for label in new))
    return tuple(tasks)
