"""The task-sequenced data module: in epoch k Lightning gets the images of task k."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Preprocessing
from cifnet_pl.data.loading import (
    Batch,
    EvaluationLoader,
    EvaluationMemory,
    ImageBatch,
    ImageLoader,
    SquareDataset,
    shard_batches,
)
from cifnet_pl.data.sources import ImageSet, SourceOptions, build_source
from cifnet_pl.data.tasks import ClassOrder, TaskStream
from cifnet_pl.errors import DataError, UsageError

EMBEDDED_BATCH = 4096


class TaskLearner(Protocol):
    """What the data module asks of the LightningModule that it feeds."""

    class_names: list[str]
    learned_tasks: list[list[str]]
    preprocessing: Preprocessing


class CIFNetDataModule(LightningDataModule):
    """Feeds task k in epoch k; evaluates on the test images of all classes seen so far.

    Args:
        source: ``digits``, ``folder``, ``cifar100`` or ``torchvision:<data set>``.
        root: folder of the data.
        classes_per_task: number of new classes of each task, or a list with one number a task.
        initial_classes: number of classes of a larger first task, or null.
        class_order: a seed for the permutation, positions, class names, or null for the source's order.
        max_tasks: stop after this many tasks, or null for all; a later run may raise it and go on.
        image_size: side in pixels (short side resized, centre cropped); null for the weights' own size and crop.
        batch_size: images per process and batch; the result does not depend on it.
        num_workers: decoding processes, or null for one per core, at most 16.
        val_fraction: share of each class held back where the source has no validation part of its own.
        split_seed: seed of that split.
        download: whether a torchvision set may be fetched.
        on_corrupt: "error" to stop at an unreadable image, "skip" to leave it out and count it.
        memory_mb: bound in megabytes on evaluation embeddings kept between tasks.
    """

    def __init__(
        self,
        source: str = "folder",
        root: str | None = None,
        classes_per_task: int | list[int] = 10,
        initial_classes: int | None = None,
        class_order: int | list[int] | list[str] | None = None,
        max_tasks: int | None = None,
        image_size: int | None = None,
        batch_size: int = 64,
        num_workers: int | None = None,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        download: bool = False,
        on_corrupt: str = "error",
        memory_mb: float = 1024.0,
    ):
        super().__init__()
        if on_corrupt not in ("error", "skip"):
            raise UsageError(f"on_corrupt is '{on_corrupt}', expected error or skip")
        if batch_size < 1 or (max_tasks is not None and max_tasks < 1):
            raise UsageError(f"batch_size is {batch_size}, max_tasks {max_tasks}: expected at least 1")
        if image_size is not None and image_size < 1:
            raise UsageError(f"image_size is {image_size}, expected at least 1 pixel, or null")
        options = SourceOptions(Path(root) if root else None, val_fraction, split_seed, download)
        self.source_name = source
        self.source = build_source(source, options)
        self.class_order: ClassOrder = class_order
        self.classes_per_task, self.initial_classes = classes_per_task, initial_classes
        self.max_tasks, self.image_size, self.batch_size = max_tasks, image_size, batch_size
        self.num_workers = min(len(os.sched_getaffinity(0)), 16) if num_workers is None else num_workers
        self.on_corrupt, self.memory_mb = on_corrupt, memory_mb
        self.skipped: list[str] = []
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._planned: tuple[int, TaskStream] | None = None
        self.n_tasks = len(self.stream(()))

    # ------------------------------------------------------------------ tasks

    def stream(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """All tasks of this run, those ``learned`` before first and unchanged."""
        whole = TaskStream.plan(
            self.source.class_names, self.class_order, self.classes_per_task, self.initial_classes, learned
        )
        return whole[: max(self.max_tasks or len(whole), len(learned))]

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
        """Class names that ``task`` introduces."""
        learned = self.learner.learned_tasks
        if self._planned is None or self._planned[0] != min(len(learned), task):
            self._planned = (min(len(learned), task), self.stream(learned[:task]))
        return list(self._planned[1].tasks[task])

    def class_counts(self, names: Iterable[str]) -> list[int]:
        """Number of training images of each class, unreadable ones included."""
        return [len(self._rows(self.source.train, [name])) for name in names]

    def _rows(self, images: ImageSet, names: Iterable[str]) -> np.ndarray:
        position = self._position
        parts = [images.rows_of.get(position[name], np.zeros(0, dtype=np.int64)) for name in names]
        return np.concatenate([np.zeros(0, dtype=np.int64), *parts])

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.source.class_names)}

    # ------------------------------------------------------------------ loaders

    def train_dataloader(self) -> ImageLoader:
        """Images of the current task, this process's exact share."""
        rows = self._rows(self.source.train, self.task_classes(self.task))
        return self._train_images.set_batches(self._shards(rows))

    def val_dataloader(self) -> EvaluationLoader:
        """Test images of all classes learned so far; those embedded before come from memory."""
        names = [name for task in self.learner.learned_tasks for name in task]
        gone = [name for name in names if name not in self._position]
        if gone:
            raise DataError(f"class '{gone[0]}' was learned, but the data does not have it")
        images = self.source.val
        rank, world = self._rank_and_world()
        # Dealt out class by class, so that an image stays with one process over all tasks.
        own = np.concatenate([self._rows(images, [name])[rank::world] for name in names])
        known = self._memory.known(own)
        remembered = [own[known][i : i + EMBEDDED_BATCH] for i in range(0, known.sum(), EMBEDDED_BATCH)]
        # At least one batch, empty if need be: Lightning skips a loop without any, and its hooks with it.
        count = max(1 - len(remembered), -(-int((~known).sum()) // self.batch_size))
        fresh = [own[~known][i * self.batch_size : (i + 1) * self.batch_size] for i in range(count)]
        loader = self._val_images.set_batches(fresh)
        return EvaluationLoader(images, self.source.class_names, self._memory, remembered, loader)

    def test_dataloader(self) -> EvaluationLoader:
        """As :meth:`val_dataloader`: a class-incremental run has one held-out set."""
        return self.val_dataloader()

    def predict_dataloader(self) -> EvaluationLoader:
        """As :meth:`val_dataloader`."""
        return self.val_dataloader()

    def remember(self, rows: Tensor, z: Tensor) -> None:
        """Keep evaluation embeddings (n, d) of images ``rows`` for the tasks to come."""
        self._memory.add(rows, z)

    @cached_property
    def _memory(self) -> EvaluationMemory:
        return EvaluationMemory(len(self.source.val), self.memory_mb)

    @cached_property
    def _train_images(self) -> ImageLoader:
        return self._image_loader(self.source.train)

    @cached_property
    def _val_images(self) -> ImageLoader:
        return self._image_loader(self.source.val)

    def _image_loader(self, images: ImageSet) -> ImageLoader:
        size, crop_ratio = self.image_shape(self.learner.preprocessing)
        dataset = SquareDataset(images, self.source.class_names, size, crop_ratio)
        assert self.trainer is not None
        pin = self.trainer.strategy.root_device.type == "cuda"
        return ImageLoader(dataset, self.num_workers, pin)

    def image_shape(self, preprocessing: Preprocessing) -> tuple[int, float]:
        """Side in pixels and crop ratio: as asked for, or the weights' own."""
        if self.image_size is not None:
            return self.image_size, 1.0
        return preprocessing.image_size, preprocessing.crop_ratio

    def _rank_and_world(self) -> tuple[int, int]:
        assert self.trainer is not None
        return self.trainer.global_rank, self.trainer.world_size

    def _shards(self, rows: np.ndarray) -> list[np.ndarray]:
        return shard_batches(rows, self.batch_size, *self._rank_and_world())

    # ------------------------------------------------------------------ batches

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Put the learner's labels in place of class positions; stop at or count unreadable images."""
        if isinstance(batch, ImageBatch) and batch.unreadable:
            if self.on_corrupt == "error":
                raise DataError(
                    f"cannot read image {batch.unreadable[0]}: repair or remove it, or use --data.on_corrupt skip"
                )
            self.skipped += [name for name in batch.unreadable if name not in self.skipped]
        if isinstance(batch, tuple) and hasattr(batch, "label"):
            return cast(Batch, batch)._replace(label=self._global_labels()[batch.label])
        return batch

    def _global_labels(self) -> Tensor:
        """(classes of the source,) int64: the learner's label of each class position, -1 where not learned yet."""
        names = self.learner.class_names
        if int((self._labels >= 0).sum()) != len(names):
            label = {name: i for i, name in enumerate(names)}
            self._labels = torch.tensor([label.get(name, -1) for name in self.source.class_names])
        return self._labels

    def teardown(self, stage: str) -> None:
        """Report images that were left out; stop the decoding processes."""
        if self.skipped:
            rank_zero_info(f"left out {len(self.skipped)} unreadable images, the first: {self.skipped[0]}")
        for name in ("_train_images", "_val_images"):
            self.__dict__.pop(name, None)
