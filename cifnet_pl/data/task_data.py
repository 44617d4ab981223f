"""Describe a task of a run: its classes, its training samples, and how many there are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np
from lightning.pytorch import LightningDataModule

from cifnet_pl.data.image_sets import ImageSet, Source
from cifnet_pl.data.loading import StoredLoader
from cifnet_pl.data.plan import Plan, TaskLearner
from cifnet_pl.data.tasks import TaskStream
from cifnet_pl.utilities.errors import UsageError


class TaskData(LightningDataModule):
    """The tasks of a data module; tasks are counted from 0.

    Attributes:
        source: training and test samples.
        plan: the tasks of the run.
    """

    source: Source
    plan: Plan
    _begun: tuple[int, StoredLoader | None] = (-1, None)  # a task whose photos are being decoded ahead

    def stream(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """Return the new classes of all tasks of this run.

        Args:
            learned: class names of the tasks that were learned before; they come first and unchanged.
        """
        return self.plan.tasks(learned)

    @property
    def learner(self) -> TaskLearner:
        """The LightningModule that is being fed."""
        if self.trainer is None:
            raise UsageError("the data module is not attached to a Trainer: pass it as datamodule=")
        return cast(TaskLearner, self.trainer.lightning_module)

    @property
    def task(self) -> int:
        """Number of the task that the current epoch learns, from 0."""
        assert self.trainer is not None
        return int(self.trainer.current_epoch)

    def task_classes(self, task: int) -> list[str]:
        """Return the names of the classes that ``task`` introduces; none after the last."""
        tasks = self.stream(self.learner.learned_tasks[:task]).tasks
        return list(tasks[task]) if task < len(tasks) else []  # Lightning asks once more after the last

    def task_rows(self, task: int) -> np.ndarray:
        """Return the positions of the training samples of ``task``; none after the last."""
        rows = self.plan.rows(task, self.learner.learned_tasks[:task])
        return np.sort(rows) if self.source.train.sequential else rows

    def training_batches(self, task: int) -> StoredLoader:
        """Return this process's share of a task."""
        raise NotImplementedError

    def begin_task(self, task: int) -> None:
        """Let the workers decode the first photos of the next task, number ``task``, while one is being solved."""
        if isinstance(self.source.train, ImageSet):
            self._begun = (task, self.training_batches(task))

    def train_dataloader(self) -> StoredLoader:
        """Return this process's share of the current task."""
        (task, loader), self._begun = self._begun, (-1, None)
        return loader if loader is not None and task == self.task else self.training_batches(self.task)

    @property
    def rows_per_batch(self) -> int:
        """Samples of a training batch, over all processes."""
        raise NotImplementedError

    def order_mark(self, task: int) -> str:
        """Return a hash of the training samples of ``task`` in their order, and of the size of their batches."""
        digest, samples = hashlib.sha256(str(self.rows_per_batch).encode()), self.source.train
        for row in self.task_rows(task):
            name = f"{self.source.class_names[samples.labels[row]]}\0{samples.names[row]}\0"
            digest.update(name.encode("utf-8", "surrogateescape"))
        return digest.hexdigest()

    def returning_classes(self, task: int) -> list[str]:
        """Return the names of classes that ``task`` brings samples of, but an earlier task introduced."""
        if not self.plan.kind.samples_return:
            return []
        present = np.unique(self.source.train.labels[self.task_rows(task)])
        new = set(self.task_classes(task))
        return [name for name in (self.source.class_names[label] for label in present) if name not in new]

    def class_counts(self, names: Iterable[str]) -> list[int]:
        """Return the number of training samples of each class in the current task, unreadable ones included."""
        counts = np.bincount(
            self.source.train.labels[self.task_rows(self.task)], minlength=len(self.source.class_names)
        )
        return [int(counts[self.plan.position[name]]) for name in names]

    def test_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of held-out samples of each class, unreadable ones included."""
        counts = np.bincount(self.source.val.labels, minlength=len(self.source.class_names))
        return {name: int(counts[self.plan.position[name]]) for name in names if name in self.plan.position}
