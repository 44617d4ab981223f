"""Plan a run: which classes and training samples each task has, which samples test it, and which
are copies.

Which of several copies is learned depends on the plan alone, so that it is the same whatever the
batches and the processes, and wherever a run went on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Protocol

import numpy as np

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.sets import Grouping, SampleSet, Source, held_out_rows, in_two
from cifnet_pl.data.streams import Classes, Disjoint, Stream
from cifnet_pl.images.duplicates import Duplicates, about_copies, about_labels, find_repeats
from cifnet_pl.images.image import NOTHING
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import is_or_are, listed, printable

ClassOrder = int | list[int] | list[str] | None
"""A seed, positions in the source's order, class names, or None for the source's own order."""


def order_classes(names: Sequence[str], order: ClassOrder) -> list[str]:
    """Return the names in the order in which they are to be learned.

    Args:
        names: classes as the source gives them.
        order: a seed for ``numpy.random.default_rng(seed).permutation``; a list of all positions or
            of all names; or None.

    Raises:
        UsageError: a negative seed; a list with a class twice, without a class, or with one that
            the source lacks.
    """
    if order is None:
        return list(names)
    if isinstance(order, int):
        check_that(order >= 0, "class_order", order, "a seed of at least 0, a list, or null")
        return [names[i] for i in np.random.default_rng(order).permutation(len(names))]
    if len(set(order)) < len(order):
        raise UsageError("class_order names a class twice")
    if all(isinstance(item, int) for item in order):
        wrong = [i for i in order if not 0 <= int(i) < len(names)]
        if wrong:
            raise UsageError(
                f"class_order holds position {wrong[0]}, expected 0 to {len(names) - 1}"
            )
        chosen = [names[int(i)] for i in order]
    else:
        chosen = [str(item) for item in order]
    missing = [name for name in chosen if name not in set(names)]
    if missing:
        raise UsageError(f"class_order names '{missing[0]}', which the data source does not have")
    if len(chosen) < len(names):
        raise UsageError(
            f"class_order lists {len(chosen)} of {len(names)} classes: list all of them, and set"
            " --data.max_tasks to learn fewer"
        )
    return chosen


def task_sizes(classes: int, per_task: int | list[int], initial: int | None = None) -> list[int]:
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
    if isinstance(per_task, list):
        listed = per_task
    else:
        listed = [per_task]
    if not listed or min(first + listed) < 1:
        if initial is None:
            option = ""
        else:
            option = f", initial_classes {initial}"
        raise UsageError(
            f"classes_per_task is {per_task}{option}: every task needs at least one class"
        )
    if isinstance(per_task, list):
        if sum(first + per_task) > classes:
            raise UsageError(
                f"the tasks ask for {sum(first + per_task)} classes, the data has {classes}"
            )
        return first + per_task
    wanted = (first + listed)[0]
    if classes < wanted:
        raise UsageError(
            f"the first task asks for {wanted} classes, the data has {classes}: lower"
            " classes_per_task"
        )
    full, rest = divmod(classes - sum(first), per_task)
    return first + [per_task] * full + ([rest] if rest else [])


@dataclass(frozen=True)
class TaskStream:
    """The new classes of each task, as tuples of class names."""

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
        known = {name for task in past for name in task}
        gone = sorted(known - set(names))
        if gone:
            raise DataError(
                f"class '{gone[0]}' was learned before, but the data no longer has it: put it back"
            )
        fresh = [name for name in ordered if name not in known]
        if not past:
            sizes = task_sizes(len(fresh), per_task, initial)
        elif isinstance(per_task, list):
            planned = ([initial] if initial else []) + per_task
            if len(planned) > len(past):
                sizes = task_sizes(len(fresh), planned[len(past) :])
            else:
                sizes = []
        else:
            if fresh:
                sizes = task_sizes(len(fresh), min(per_task, len(fresh)))
            else:
                sizes = []
        left = iter(fresh)
        return cls(past + tuple(tuple(islice(left, size)) for size in sizes))

    def __len__(self) -> int:
        return len(self.tasks)

    def classes(self) -> list[str]:
        """Return all class names of the stream, in the order learned."""
        return [name for task in self.tasks for name in task]


class TaskLearner(Protocol):
    """The part of a LightningModule that the data module needs."""

    class_names: list[str]
    learned_tasks: list[list[str]]
    backbone: Backbone

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned, one array for each pass over
        them.

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
        self.source = source
        self.kind = stream or Disjoint()
        self.max_tasks = max_tasks
        self._options = (class_order, classes_per_task, initial_classes)
        self._planned: tuple[tuple[tuple[str, ...], ...], TaskStream, list[np.ndarray]] | None = (
            None
        )

    def tasks(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """Return the new classes of all tasks.

        Args:
            learned: class names of the tasks that were learned before; they come first and
                unchanged.
        """
        return self._plan(learned)[0]

    def rows(self, task: int, learned: Sequence[Sequence[str]]) -> np.ndarray:
        """Return the positions of the training samples of a task; none after the last.

        Args:
            task: its number, from 0.
            learned: class names of the tasks that were learned before.
        """
        tasks = self.all_rows(learned)
        if task < len(tasks):
            rows: np.ndarray = tasks[task]
        else:
            rows = np.zeros(0, dtype=np.int64)
        if self.left_out is None:
            return rows
        kept: np.ndarray = rows[~self.left_out[rows]]
        return kept

    def all_rows(self, learned: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the positions of the training samples of every task, those that are left out
        included.

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
        stream = TaskStream.plan(
            names, order, per_task, initial, () if self.kind.samples_return else past
        )
        sequence = tuple(tuple(self.position[name] for name in task) for task in stream.tasks)
        rows = self.kind.divide(Classes(self.source, sequence))
        if not self.kind.samples_return:
            learned = stream
        else:
            learned = TaskStream(self._first_seen(rows, stream.classes()))
        if learned.tasks[: len(past)] != past:
            raise DataError(
                "the tasks learned before are not those of this stream: use the same data and"
                " settings"
            )
        count = max(self.max_tasks or len(rows), len(past))
        return TaskStream(learned.tasks[:count]), rows[:count]

    def _first_seen(
        self, rows: Sequence[np.ndarray], order: Sequence[str]
    ) -> tuple[tuple[str, ...], ...]:
        """Return the names of the classes that each task is the first to bring, in the order of
        learning.
        """
        rank = {self.position[name]: i for i, name in enumerate(order)}
        seen: set[int] = set()
        tasks = []
        for task_rows in rows:
            new = sorted(
                set(self.source.train.labels[task_rows].tolist()) - seen, key=rank.__getitem__
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

        Test samples of domains that are evaluated one by one are left out until their task; those
        of domains that no task learns, such as CORe50's test sessions, are always included.

        Args:
            names: names of the classes.
            tasks: number of tasks that are learned.

        Raises:
            DataError: a class that the data does not have.
        """
        val = self.source.val
        groups = self.evaluated
        none = np.zeros(0, dtype=np.int64)
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

    The split is by a seeded hash of names, as that of a source without a test part. If the source
    has domains, the same share of each domain is taken.

    Args:
        source: with a test part, which is dropped.
        fraction: share of each class's training samples; none of a single one.
        seed: of the split.

    Raises:
        UsageError: the fraction is not between 0 and 1.
    """
    check_that(
        0 < fraction < 1, "--data.tune", fraction, "a share between 0 and 1 of the training images"
    )
    train = source.train
    if source.domains is None:
        domains = np.zeros(len(train), dtype=np.int64)
    else:
        domains = source.domains.train
    # A seed of its own: the same one would take the samples that a source holds out from what it
    # left.
    chosen = held_out_rows(train, domains, fraction, seed + 1)
    groups = {"domains": source.domains, "tasks": source.tasks}
    known = {
        kind: (group.names, group.train) for kind, group in groups.items() if group is not None
    }
    return in_two(source.class_names, train, chosen, **known)


# ---------------------------------------------------------------------- copies

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class Copies:
    """Samples with the same content, by their rows.

    Attributes:
        twice: (copy, first) training samples of one class; the first is the one that is learned.
        tested: (test sample, training sample) of one class.
        tested_twice: (copy, first) test samples of one class; the first is the one that is tested.
        undecided: training sample → label of another class in which it lies, too: it is learned as
            neither.
        tested_undecided: the same of test samples, which are not tested.
    """

    twice: Pairs = field(default_factory=list)
    tested: Pairs = field(default_factory=list)
    tested_twice: Pairs = field(default_factory=list)
    undecided: dict[int, int] = field(default_factory=dict)
    tested_undecided: dict[int, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def left_out(self, source: Source) -> tuple[np.ndarray, np.ndarray]:
        """Return which samples are copies of an earlier one or in two classes: two masks, of
        training and of test.
        """
        train = np.zeros(len(source.train), dtype=bool)
        val = np.zeros(len(source.val), dtype=bool)
        train[[*(row for row, _ in self.twice), *self.undecided]] = True
        val[[*(row for row, _ in self.tested_twice), *self.tested_undecided]] = True
        return train, val

    def sentences(self, source: Source, duplicates: Duplicates) -> list[str]:
        """Return one note for the user about each kind of copy that occurs.

        Args:
            source: where the samples are from.
            duplicates: whether copies are left out.
        """
        table = [
            (kind, printable(image), printable(other)) for kind, image, other in self.table(source)
        ]
        copies = [image for kind, image, _ in table if kind == "copy"]
        labels = [
            f"{image} (also in {other})" for kind, image, other in table if kind == "two classes"
        ]
        both = listed(
            [
                f"{image} (learned as {other})"
                for kind, image, other in table
                if kind == "learned and tested"
            ]
        )
        sentences = [about_copies(copies, duplicates), about_labels(labels, duplicates)]
        if both:
            sentences += [
                f"note: {both} {is_or_are(len(self.tested))} learned and tested with: the score"
                " flatters"
            ]
        return [sentence for sentence in sentences if sentence]

    def table(self, source: Source) -> list[tuple[str, str, str]]:
        """Return a row for each sample: the kind of copy, the sample, and the other sample or
        class.

        Args:
            source: where the samples are from.
        """
        train = source.train.names
        val = source.val.names
        names = source.class_names
        return [
            *(("copy", train[a], train[b]) for a, b in self.twice),
            *(("copy", val[a], val[b]) for a, b in self.tested_twice),
            *(("two classes", train[row], names[other]) for row, other in self.undecided.items()),
            *(
                ("two classes", val[row], names[other])
                for row, other in self.tested_undecided.items()
            ),
            *(("learned and tested", val[a], train[b]) for a, b in self.tested),
        ]


def of_first(pairs: Pairs) -> dict[int, list[int]]:
    """Return the copies of each first sample of pairs (copy, first)."""
    copies: dict[int, list[int]] = {}
    for row, first in pairs:
        copies.setdefault(first, []).append(row)
    return copies


def find_duplicates(source: Source, tasks: Iterable[np.ndarray]) -> Copies:
    """Compare all samples of a source with each other.

    Samples of classes that no task learns yet count, too: which samples are in two classes must not
        depend on where a
    run stops.

    Args:
        source: where they are from.
        tasks: rows of the training samples of each task; of several copies the first one is
            learned.
    """
    train = source.train
    val = source.val
    planned = np.concatenate([np.zeros(0, dtype=np.int64), *tasks])
    rows = np.concatenate([planned, np.setdiff1d(np.arange(len(train)), planned)])
    sizes = np.array([train.size(row) for row in rows.tolist()])
    tested_sizes = np.array([val.size(row) for row in range(len(val))])
    ours = _where_alike(train, rows, sizes, tested_sizes)
    theirs = _where_alike(val, np.arange(len(val)), tested_sizes, sizes)
    count = len(train)  # test samples are numbered after the training samples
    pairs = [*ours, *((count + row, value) for row, value in theirs)]
    repeats = find_repeats(pairs, np.concatenate([train.labels, val.labels]))
    copies = Copies()
    tested_as = dict[int, int]()
    for row, first in sorted(repeats.twice.items()):
        if row < count:
            copies.twice.append((row, first))
        elif first < count and first not in tested_as:
            copies.tested.append((row - count, first))
            tested_as[first] = row
        else:
            copies.tested_twice.append((row - count, tested_as.get(first, first) - count))
    for row, other in sorted(repeats.undecided.items()):
        if row < count:
            copies.undecided[row] = other
        else:
            copies.tested_undecided[row - count] = other
    return copies


def _where_alike(
    samples: SampleSet, rows: np.ndarray, sizes: np.ndarray, others: np.ndarray
) -> Pairs:
    """Find the samples that may be a copy of another one.

    Samples of a size that no other one of them and none of the others has are not read. With
    several processes each reads a share of the samples; all must call this.

    Args:
        samples: the set.
        rows: (n,) positions of the samples to compare.
        sizes: (n,) of them in bytes; -1 where that is not known without reading.
        others: (m,) sizes of samples elsewhere.

    Returns:
        Row and hash of those that can be read, in the order of ``rows``.
    """
    values, counts = np.unique(np.concatenate([sizes, others]), return_counts=True)
    candidates = rows[np.isin(sizes, values[(counts > 1) | (values < 0)])]
    rank, world = rank_and_world()
    share = candidates[rank::world]
    for known, hashes in of_all_processes((share, samples.hashes(share))):
        samples.note_hashes(known, hashes)
    pairs = zip(candidates.tolist(), samples.hashes(candidates).tolist(), strict=True)
    return [(row, value) for row, value in pairs if value != NOTHING]
