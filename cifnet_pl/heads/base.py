"""The base class of all heads: the task protocol, the checks of what comes in, and the state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Dtype, check_samples
from cifnet_pl.heads.exactness import exact
from cifnet_pl.heads.scoring import ScoringHead
from cifnet_pl.utilities.errors import CifnetError, UsageError, check_choice


class Head(ScoringHead):
    """A classifier that learns classes task by task from embeddings, without gradients.

    Protocol per task: ``begin_task(classes)``, then ``observe`` for every batch, then ``observe_past`` with
    samples of earlier classes if the head uses them, then ``solve``.
    Scores are float64. Subclasses implement the methods with a leading underscore, and declare what they can do
    (:class:`Abilities`). Every argument of a subclass's constructor is an attribute of the same name.

    Buffers, besides those of :class:`LabelSpace`:
        solved: () bool, whether everything observed so far is in the weights.
        under_way: () bool, whether the task begun last is not yet part of the statistics, so that it can be aborted.
        temperature: () float64, divides the scores in ``probabilities``; 1 until calibrated.
    """

    title: ClassVar[str] = ""
    """Name in tables and figures; the class's own without "Head" if empty."""

    solved: Tensor
    under_way: Tensor
    temperature: Tensor

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__()
        if in_features < 1:
            raise UsageError(f"in_features is {in_features}, expected at least 1")
        check_choice("dtype of the statistics", dtype, Dtype)
        self.in_features = in_features
        self.dtype: torch.dtype = getattr(torch, dtype)
        self.register_buffer("solved", torch.tensor(True))
        self.register_buffer("under_way", torch.tensor(False))
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64))

    # ------------------------------------------------------------------ learning

    @exact
    def begin_task(self, classes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Open a task.

        Args:
            classes: labels of the classes that it introduces, any integers.
            counts: number of samples of each class where known.

        Raises:
            UsageError: no class, a class twice, or one that is already learned; counts that do not fit.
            CifnetError: the task before was never solved.
        """
        new = self._new_labels(classes, counts)
        if not self.solved:
            raise CifnetError("the task before was not finished: call solve() first")
        self._append_task(new)
        self.solved.fill_(False)
        self.under_way.fill_(True)
        self._begin(len(new), counts)

    @exact
    def observe(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Add samples of the current task to the sums.

        Args:
            z: (n, d) float embeddings; n may be 0 or 1.
            y: (n,) int64 labels, all of the task begun last.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label that is not of the current task.
        """
        check_samples(z, y, weight, self.in_features)
        columns = self._columns(y)
        current = self.task_of == self.task_of.max() if len(self.task_of) else self.task_of.bool()
        if not current[columns].all():
            stray = y[~current[columns]][0].item()
            raise UsageError(f"label {stray} is not a class of the current task {self.tasks[-1]}")
        if len(z):
            self.solved.fill_(False)
            self._observe(z, columns, weight)

    @exact
    def observe_past(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Show samples of earlier classes to this task's neurons only (the calibration buffer).

        A no-op where a head has no use for it.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, all of earlier tasks.
            weight: (n,) positive sample weights, or None for ones.

        Raises:
            UsageError: a label of the current task.
        """
        check_samples(z, y, weight, self.in_features)
        columns = self._columns(y)
        if (self.task_of[columns] == self.task_of.max()).any():
            raise UsageError("observe_past got labels of the current task; it takes samples of earlier tasks")
        if len(z) and self.uses_buffer:
            self.solved.fill_(False)
            self._observe_past(z, columns, weight)

    @exact
    def note_copies(self, count: int) -> None:
        """Count observed samples as copies of others; call it before ``solve``.

        They keep their weight, but ``ridge: gcv`` chooses by the number of distinct samples. With several processes
        call it after ``reduce_``, in all of them.

        Args:
            count: number of samples; a negative number takes an earlier call back.
        """
        if count:
            self.solved.fill_(False)
            self._note_copies(count)

    @exact
    def reduce_(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum what this task observed over processes, once, before ``solve``.

        Args:
            sum_in_place: replaces a tensor by its sum over all processes. Earlier tasks are common already.

        Raises:
            UnsupportedError: this head cannot (``reduces``).
        """
        self.require("reduces")
        self._reduce(sum_in_place)

    @exact
    def solve(self) -> None:
        """Bring the weights up to date with everything observed.

        Raises:
            CifnetError: no task yet, a class without samples, or a system that is not positive definite.
        """
        if not len(self.labels):
            raise CifnetError("nothing to solve: call begin_task() and observe() first")
        empty = [label for label, count in self.class_counts().items() if count == 0]
        if empty:
            raise CifnetError(f"class {empty[0]} has no samples: observe some, or leave the class out")
        self._solve()
        self._begin_stage()
        self.solved.fill_(True)
        self.under_way.fill_(False)

    def refresh(self) -> None:
        """Do now what the first prediction after ``solve`` would do; a no-op for heads that ``solve`` at once."""

    @exact
    def abort_task(self) -> None:
        """Forget the current task and all that was observed since it began; does nothing once it is solved.

        Of a task that was solved or merged before, only what was observed since is forgotten.
        """
        if self.solved:
            return
        self._discard()
        if not self.under_way:
            self.solve()
            return
        earlier = (self.task_of < self.task_of.max()).nonzero().flatten()
        self._keep(earlier)
        self._keep_labels(earlier)
        self.solved.fill_(True)
        self.under_way.fill_(False)

    # ------------------------------------------------------------------ the life of a model

    @exact
    def merge_(self, other: Head) -> None:
        """Add the statistics of another head; call ``solve`` afterwards.

        Args:
            other: it saw other samples. Classes are matched by label; new ones are appended.

        Raises:
            UnsupportedError: this head cannot (``merges``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("merges")
        self._same_kind(other)
        self._merge(other)

    @exact
    def subtract_(self, other: Head) -> None:
        """Take the statistics of another head out again; call ``solve`` afterwards.

        Args:
            other: it saw some of the samples that this head saw.

        Raises:
            UnsupportedError: this head cannot (``subtracts``).
            UsageError: ``other`` is of another class or has other settings.
        """
        self.require("subtracts")
        self._same_kind(other)
        self._subtract(other)

    @exact
    def remove_classes(self, classes: Sequence[int]) -> None:
        """Take classes out of the label space; their samples stay in the sums of the others.

        Args:
            classes: their labels.

        Raises:
            UsageError: a class that is not known, or all of them.
        """
        removed = set(classes)
        unknown = sorted(removed - set(self.classes))
        if unknown:
            raise UsageError(f"class {unknown[0]} is not known to this head")
        columns = torch.tensor([i for i, label in enumerate(self.classes) if label not in removed])
        if not len(columns):
            raise UsageError("cannot remove all classes: at least one must stay")
        columns = columns.to(self.labels.device)
        self._keep(columns)
        self._begin_stage()
        self.under_way.fill_(False)
        self._keep_labels(columns)

    def _begin_tasks_of(self, other: Head) -> None:
        """Append the classes of ``other`` that are new here, in its tasks."""
        known = set(self.classes)
        for task in other.tasks:
            new = [label for label in task if label not in known]
            if new:
                self.solved.fill_(True)
                self.begin_task(new)

    def _same_kind(self, other: Head) -> None:
        """Raise UsageError unless ``other`` is a head of the same class and settings."""
        if type(other) is not type(self):
            raise UsageError(f"cannot combine {type(self).__name__} with {type(other).__name__}")
        ours, theirs = self.settings(), other.settings()
        different = {k: (v, theirs[k]) for k, v in ours.items() if v != theirs[k]}
        if different:
            name, (mine, yours) = next(iter(different.items()))
            raise UsageError(f"cannot combine heads with different {name}: {mine} and {yours}")
