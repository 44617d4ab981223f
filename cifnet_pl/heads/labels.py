"""Keep which classes a head knows, in which order, and which task introduced each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.growing_tensors import GrowingModule


class LabelSpace(GrowingModule):
    """The classes of a head, task by task; labels are any integers in any order.

    Buffers:
        labels: (C,) int64, the classes in the order they were learned; columns of every score.
        task_of: (C,) int64, the task (0, 1, …) that introduced each class.
    """

    labels: Tensor
    task_of: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("labels", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("task_of", torch.zeros(0, dtype=torch.int64))

    @property
    def classes(self) -> list[int]:
        """Labels in column order, those of a task that is under way included."""
        labels: list[int] = self.labels.tolist()
        return labels

    @property
    def tasks(self) -> list[list[int]]:
        """Labels of each task, in the order learned."""
        tasks: dict[int, list[int]] = {}
        for task, label in zip(self.task_of.tolist(), self.labels.tolist(), strict=True):
            tasks.setdefault(task, []).append(label)
        return list(tasks.values())

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes; nothing else changes.

        Args:
            labels: old label → new one, of every class.

        Raises:
            UsageError: a class without a new label, or two with the same one.
        """
        if set(labels) != set(self.classes) or len(set(labels.values())) < len(labels):
            raise UsageError(f"relabel needs one new label for each of {self.classes}, got {dict(labels)}")
        old, new = self.labels, self.labels.new_tensor([labels[label] for label in self.classes])
        self._rename(lambda y: new[(y[:, None] == old).nonzero()[:, 1]])
        self.labels = new

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename the labels that are kept beside ``labels``; ``new`` maps (n,) old ones to (n,) new ones."""

    def _new_labels(self, classes: Sequence[int], counts: Sequence[int] | None) -> list[int]:
        """Check the labels of a task to come and return them, ``counts`` being their numbers of samples where known.

        Raises:
            UsageError: no class, a class twice, or one that is already known; counts that do not fit.
        """
        new = [operator.index(c) for c in classes]
        if not new:
            raise UsageError("a task needs at least one class, none was given")
        if not -(2**63) <= min(new) <= max(new) < 2**63:
            raise UsageError(f"classes {new} hold a label that does not fit into 64 bits")
        if len(set(new)) < len(new):
            raise UsageError(f"classes {new} of one task hold a label twice")
        known = sorted(set(new) & set(self.classes))
        if known:
            raise UsageError(f"class {known[0]} is already learned: a task introduces new classes only")
        if counts is not None and (len(counts) != len(new) or min(counts) < 1):
            raise UsageError(f"counts {list(counts)} do not give one positive number for each of {len(new)} classes")
        return new

    def _append_task(self, new: Sequence[int]) -> None:
        task = int(self.task_of.max()) + 1 if len(self.task_of) else 0
        self.labels = torch.cat([self.labels, self.labels.new_tensor(new)])
        self.task_of = torch.cat([self.task_of, self.task_of.new_full((len(new),), task)])

    def _keep_labels(self, columns: Tensor) -> None:
        """Drop all classes but those at ``columns``; a task whose classes are all gone leaves no gap in the numbers."""
        self.labels, self.task_of = self.labels[columns], self.task_of[columns]
        self.task_of = torch.unique(self.task_of, return_inverse=True)[1]

    def _columns(self, y: Tensor) -> Tensor:
        """Return the positions of labels in ``labels``.

        Raises:
            UsageError: a label that is not known.
        """
        if not len(self.labels):
            raise UsageError("no task has begun: call begin_task() first")
        order = torch.argsort(self.labels)
        position = torch.searchsorted(self.labels[order], y.contiguous()).clamp_max(len(order) - 1)
        columns = order[position]
        wrong = self.labels[columns] != y
        if wrong.any():
            raise UsageError(f"label {y[wrong][0].item()} was not introduced by begin_task()")
        return columns

    def _before_load(self, state: Mapping[str, Any]) -> None:
        labels, task_of = state.get("labels"), state.get("task_of")
        if isinstance(labels, Tensor) and isinstance(task_of, Tensor) and labels.shape != task_of.shape:
            raise CheckpointError(
                f"stored head has {labels.numel()} labels but {task_of.numel()} task numbers: the file is damaged"
            )
