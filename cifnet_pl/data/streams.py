"""Divide training samples among tasks by the kind of stream. Pure NumPy, no images and no torch.

A new kind is one subclass of :class:`Stream`; ``--data.stream`` finds it by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

import numpy as np

from cifnet_pl.data.sets import Grouping, Source
from cifnet_pl.utilities.errors import DataError, UsageError, check_choice, check_that


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
        return [label for task in self.tasks for label in task]

    def rows(self, labels: Sequence[int]) -> np.ndarray:
        """Return the positions of all training samples of classes ``labels``, class by class."""
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate(
            [none, *(self.source.train.rows_of.get(label, none) for label in labels)]
        )

    def random(self, seed: int, label: int) -> np.random.Generator:
        """Return a random number generator for one class that does not depend on other classes.

        Args:
            seed: of all classes.
            label: of the class.
        """
        name = self.source.class_names[label].encode("utf-8", "surrogateescape")
        return np.random.default_rng([seed, crc32(name)])


class Stream(ABC):
    """A rule that divides the training samples into tasks."""

    samples_return = True
    """Whether a class may bring samples in tasks after the one that introduces it."""

    def evaluated(self, source: Source) -> Grouping | None:
        """Return the domains that are evaluated one by one; None to evaluate the classes of each
        task.
        """
        return None

    @abstractmethod
    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task.

        Args:
            classes: the samples, and the order of the classes.
        """


class Disjoint(Stream):
    """Every class has all its samples in one task."""

    samples_return = False

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        return [classes.rows(task) for task in classes.tasks]


class Returning(Stream):
    """Every class comes back in later tasks with samples that were not there before.

    Args:
        share: of a class's samples that come after the task which introduces it, in equal parts in
            all later tasks.
        seed: of the choice.
    """

    def __init__(self, share: float = 0.5, seed: int = 0):
        check_that(0 < share < 1, "share", share, "a number between 0 and 1")
        self.share = share
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        parts: list[list[np.ndarray]] = [[] for _ in classes.tasks]
        for k, task in enumerate(classes.tasks):
            later = len(classes.tasks) - 1 - k
            for label in task:
                rows = classes.random(self.seed, label).permutation(classes.rows([label]))
                if later:
                    first = max(1, len(rows) - round(self.share * len(rows)))
                else:
                    first = len(rows)
                parts[k].append(np.sort(rows[:first]))
                for i, chunk in enumerate(np.array_split(rows[first:], later) if later else []):
                    parts[k + 1 + i].append(np.sort(chunk))
        return [np.concatenate(chunk) for chunk in parts]


class Blurry(Stream):
    """i-Blurry (Koh et al., ICLR 2022): some classes stay in one task, the others also appear in
    all others.

    Args:
        disjoint: percentage N of the classes that stay in one task.
        blurry: percentage M of the samples of each other class that are spread over the other
            tasks, earlier ones too.
        seed: of all choices.
        every: samples between two solves, those of each task shuffled, so that the mean of A_k is
            the paper's A_AUC; null to solve after each task.
    """

    def __init__(
        self, disjoint: float = 50.0, blurry: float = 10.0, seed: int = 0, every: int | None = None
    ):
        for name, value in (("disjoint", disjoint), ("blurry", blurry)):
            check_that(0 <= value <= 100, name, value, "a percentage from 0 to 100")
        check_every(every)
        self.disjoint = disjoint
        self.blurry = blurry
        self.every = every
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        order = classes.order
        tasks = len(classes.tasks)
        mixed = np.random.default_rng(self.seed).permutation(order)
        stay = {int(label) for label in mixed[: round(self.disjoint / 100 * len(order))]}
        parts: list[list[np.ndarray]] = [[] for _ in classes.tasks]
        for k, task in enumerate(classes.tasks):
            others = np.delete(np.arange(tasks), k)
            for label in task:
                random = classes.random(self.seed, label)
                rows = random.permutation(classes.rows([label]))
                if label in stay or tasks == 1:
                    leaving = 0
                else:
                    leaving = round(self.blurry / 100 * len(rows))
                parts[k].append(np.sort(rows[leaving:]))
                if leaving:
                    goes_to = random.choice(others, leaving)
                else:
                    goes_to = np.zeros(0, dtype=np.int64)
                for other in others:
                    parts[other].append(np.sort(rows[:leaving][goes_to == other]))
        whole = [np.concatenate(chunks) for chunks in parts]
        if self.every is None:
            return whole
        return _cut(whole, self.every, self.seed)


class TaskFree(Stream):
    """No task boundaries: the head is solved after a fixed number of samples.

    The samples come in the order of the classes' tasks, shuffled within each task, so that a solve
    can fall anywhere.

    Args:
        every: samples between two solves.
        seed: of the shuffling.
    """

    def __init__(self, every: int = 500, seed: int = 0):
        check_every(every)
        self.every = every
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        return _cut([classes.rows(task) for task in classes.tasks], self.every, self.seed)


def check_every(every: int | None) -> None:
    """Check a number of samples between two solves; UsageError if there are none."""
    check_that(every is None or every >= 1, "every", every, "at least 1 sample between two solves")


def _cut(tasks: Sequence[np.ndarray], every: int, seed: int) -> list[np.ndarray]:
    """Shuffle the rows of each task, and cut all of them into parts of ``every`` rows."""
    rows = np.concatenate(
        [np.random.default_rng([seed, k]).permutation(task) for k, task in enumerate(tasks)]
    )
    return [rows[start : start + every] for start in range(0, len(rows), every)]


SizeOrder = Literal["shuffled", "descending"]


class LongTailed(Stream):
    """Class sizes that fall exponentially, ``n_r = n_max · ratio^(−r/(C−1))`` for the class of rank
    r; disjoint tasks.

    Args:
        ratio: size of the largest class divided by that of the smallest.
        order: "descending", the largest classes are learned first; or "shuffled", sizes are dealt
            out by seed.
        seed: of the sizes and of the choice of samples.
    """

    samples_return = False

    def __init__(self, ratio: float = 100.0, order: SizeOrder = "shuffled", seed: int = 0):
        check_that(
            ratio >= 1, "ratio", ratio, "at least 1: the largest class divided by the smallest"
        )
        check_choice("order of a long-tailed stream", order, SizeOrder)
        self.ratio = ratio
        self.order = order
        self.seed = seed

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        order = classes.order
        if self.order == "descending":
            ranked = order
        else:
            ranked = np.random.default_rng(self.seed).permutation(order).tolist()
        largest = max(len(classes.rows([label])) for label in order)
        rows_of: dict[int, np.ndarray] = {}
        for rank, label in enumerate(ranked):
            rows = classes.random(self.seed, label).permutation(classes.rows([label]))
            size = round(largest * self.ratio ** (-rank / max(1, len(order) - 1)))
            rows_of[label] = np.sort(rows[: max(1, size)])
        return [np.concatenate([rows_of[label] for label in task]) for task in classes.tasks]


class Domains(Stream):
    """Domain-incremental: each task is one domain (a session, place or camera) with all its
    classes.

    Args:
        order: names of the domains in the order of learning, or null for the source's order.
    """

    def __init__(self, order: list[str] | None = None):
        self.order = order

    def evaluated(self, source: Source) -> Grouping | None:
        """Return the domains, in the order of learning; those that no task learns come after
        them.
        """
        domains = _grouping(source.domains, "domains")
        order = self._order(domains)
        return _reordered(domains, order + [name for name in domains.names if name not in order])

    def _order(self, domains: Grouping) -> list[str]:
        present = [name for i, name in enumerate(domains.names) if (domains.train == i).any()]
        if self.order is None:
            chosen = present
        else:
            chosen = [str(name) for name in self.order]
        if sorted(chosen) != sorted(present):
            raise UsageError(
                f"the order of domains is {', '.join(chosen)}, expected each of"
                f" {', '.join(present)} once"
            )
        return chosen

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        domains = _grouping(classes.source.domains, "domains")
        return _divided(classes, domains, self._order(domains))


class Listed(Stream):
    """The tasks that the source itself lists, such as the column ``task`` of a manifest, in sorted
    order.
    """

    def divide(self, classes: Classes) -> list[np.ndarray]:
        """Return the positions of the training samples of each task."""
        tasks = _grouping(classes.source.tasks, "tasks")
        return _divided(
            classes, tasks, [name for i, name in enumerate(tasks.names) if (tasks.train == i).any()]
        )


def _grouping(grouping: Grouping | None, stream: str) -> Grouping:
    if grouping is None:
        raise UsageError(
            f"this data source knows no {stream}: use a manifest with a column"
            f" {stream.removesuffix('s')}"
        )
    return grouping


def _divided(classes: Classes, groups: Grouping, order: Sequence[str]) -> list[np.ndarray]:
    """Return the rows of each group, class by class in the order of learning."""
    rows = classes.rows(classes.order)
    domains = [rows[groups.train[rows] == groups.names.index(name)] for name in order]
    empty = [name for name, domain_rows in zip(order, domains, strict=True) if not len(domain_rows)]
    if empty:
        raise DataError(
            f"no training sample of the chosen classes is in '{empty[0]}': leave it out"
        )
    return domains


def _reordered(groups: Grouping, order: list[str]) -> Grouping:
    position = np.array([order.index(name) for name in groups.names])
    return Grouping(order, position[groups.train], position[groups.val])
