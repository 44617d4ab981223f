"""The task-sequenced data module: in epoch k Lightning gets the images of task k."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Backbone, Preprocessing
from cifnet_pl.data.cache import EmbeddingCache, pipeline_key
from cifnet_pl.data.image_sets import ImageSet, SourceOptions
from cifnet_pl.data.images import LARGEST_IMAGE
from cifnet_pl.data.loading import (
    Batch,
    EvaluationMemory,
    ImageBatch,
    ImageLoader,
    SquareDataset,
    Store,
    StoredLoader,
    shard_batches,
    unreadable_images,
)
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.tasks import ClassOrder, TaskStream
from cifnet_pl.data.workers import cores
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.processes import of_all_processes

EMBEDDED_BATCH = 4096

NAMED = 50
"""Unreadable images that one error names."""


class TaskLearner(Protocol):
    """What the data module asks of the LightningModule that it feeds."""

    class_names: list[str]
    learned_tasks: list[list[str]]
    backbone: Backbone

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """The images ``rows`` of a task in the order of learning, one array for each pass over them."""


class CIFNetDataModule(LightningDataModule):
    """Feeds task k in epoch k; evaluates on the test images of all classes seen so far.

    Args:
        source: ``digits``, ``folder``, ``cifar100``, ``imagenet100``, ``tinyimagenet``, ``core50`` or
            ``torchvision:<data set>``.
        root: folder of the data.
        classes_per_task: number of new classes of each task, or a list with one number a task.
        initial_classes: number of classes of a larger first task, or null.
        class_order: a seed for the permutation, positions, class names, or null for the source's order.
        max_tasks: stop after this many tasks, or null for all; a later run may raise it and go on.
        image_size: side in pixels (short side resized, centre cropped); null for the weights' own size and crop.
        batch_size: images per process and batch; the result does not depend on it.
        num_workers: decoding processes for each process that embeds, or null to share out the cores, at most 16 each.
        val_fraction: share of each class held back where the source has no validation part of its own.
        split_seed: seed of that split.
        download: whether a torchvision set may be fetched.
        on_corrupt: "error" to stop at an unreadable image, "skip" to leave it out and count it.
        memory_mb: bound in megabytes on evaluation embeddings kept between tasks.
        cache: whether to keep all embeddings on disk, so that a later run never embeds the same image again.
        cache_folder: where.
        options: of one source alone: ``stride`` and ``test_sessions`` of core50, ``class_list`` of imagenet100.
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
        cache: bool = False,
        cache_folder: str = "~/.cache/cifnet_pl",
        options: dict[str, Any] | None = None,
    ):
        super().__init__()
        if on_corrupt not in ("error", "skip"):
            raise UsageError(f"on_corrupt is '{on_corrupt}', expected error or skip")
        limits = {"batch_size": (batch_size, 1), "max_tasks": (max_tasks, 1), "num_workers": (num_workers, 0)}
        for name, (given, least) in {**limits, "memory_mb": (memory_mb, 0)}.items():
            if given is not None and not given >= least:
                raise UsageError(f"{name} is {given:g}, expected at least {least}")
        if image_size is not None and not 1 <= image_size <= LARGEST_IMAGE:
            raise UsageError(f"image_size is {image_size}, expected 1 to {LARGEST_IMAGE} pixels, or null")
        own = SourceOptions(Path(root) if root else None, val_fraction, split_seed, download, options or {})
        self.source_name = source
        self.source = build_source(source, own)
        self._held_back = [val_fraction, split_seed]
        self.class_order: ClassOrder = class_order
        self.classes_per_task, self.initial_classes = classes_per_task, initial_classes
        self.max_tasks, self.image_size, self.batch_size = max_tasks, image_size, batch_size
        self.num_workers, self.on_corrupt, self.memory_mb = num_workers, on_corrupt, memory_mb
        self.cache_folder = Path(cache_folder).expanduser() if cache else None
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
        """Class names that ``task`` introduces; none after the last."""
        learned = self.learner.learned_tasks
        if self._planned is None or self._planned[0] != min(len(learned), task):
            self._planned = (min(len(learned), task), self.stream(learned[:task]))
        tasks = self._planned[1].tasks
        return list(tasks[task]) if task < len(tasks) else []  # Lightning asks once more after the last

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

    def train_dataloader(self) -> StoredLoader:
        """Images of the current task, this process's exact share; cached embeddings in the same batches."""
        rows = self._rows(self.source.train, self.task_classes(self.task))
        cache = self._train_cache
        batches = [batch for order in self.learner.passes(rows, self.task) for batch in self._shards(order)]
        plan = [(batch, cache if cache and cache.known(batch).all() else None) for batch in batches]
        loader = StoredLoader(self.source.train, self.source.class_names, plan, self._train_images)
        if any(store is None for _, store in plan):
            self._val_images.start()
            loader.begin()
        return loader

    def val_dataloader(self) -> StoredLoader:
        """Test images of all classes learned so far; those embedded before come from memory or the cache."""
        names = [name for task in self.learner.learned_tasks for name in task]
        gone = [name for name in names if name not in self._position]
        if gone:
            raise DataError(f"class '{gone[0]}' was learned, but the data does not have it")
        images, stores = self.source.val, [s for s in (self._memory, self._val_cache) if s is not None]
        rank, world = self._rank_and_world()
        # Dealt out class by class, so that an image stays with one process over all tasks.
        none = np.zeros(0, dtype=np.int64)
        left = np.concatenate([none, *(self._rows(images, [name])[rank::world] for name in names)])
        plan: list[tuple[np.ndarray, Store | None]] = []
        for store in stores:
            known = store.known(left)
            plan += [(batch, store) for batch in _pieces(left[known], EMBEDDED_BATCH)]
            left = left[~known]
        plan += [(batch, None) for batch in _pieces(left, self.batch_size)]
        # At least one batch, empty if need be: Lightning skips a loop without any, and its hooks with it.
        return StoredLoader(images, self.source.class_names, plan or [(left, None)], self._val_images)

    def test_dataloader(self) -> StoredLoader:
        """As :meth:`val_dataloader`: a class-incremental run has one held-out set."""
        return self.val_dataloader()

    def predict_dataloader(self) -> StoredLoader:
        """As :meth:`val_dataloader`."""
        return self.val_dataloader()

    def remember(self, rows: Tensor, z: Tensor) -> None:
        """Keep embeddings (n, d) of images ``rows`` of the set that is being fed, as far as that is wanted."""
        assert self.trainer is not None
        training = self.trainer.training
        cache = self._train_cache if training else self._val_cache
        if cache is not None:
            cache.collect(rows, z)
        if not training:
            self._memory.add(rows, z)

    def share_collected(self) -> None:
        """Write the classes of which every process has embedded a part; call on all processes."""
        rank, world = self._rank_and_world()
        for cache in (self._train_cache, self._val_cache):
            if cache is None or world == 1:
                continue
            parts = of_all_processes(cache.collected())
            for rows, z in chain.from_iterable(parts) if rank == 0 else []:
                cache.collect(torch.tensor(rows), z)

    @cached_property
    def _memory(self) -> EvaluationMemory:
        return EvaluationMemory(len(self.source.val), self.memory_mb)

    @cached_property
    def _train_cache(self) -> EmbeddingCache | None:
        return self._open_cache(self.source.train, "train")

    @cached_property
    def _val_cache(self) -> EmbeddingCache | None:
        return self._open_cache(self.source.val, "val")

    def _open_cache(self, images: ImageSet, part: str) -> EmbeddingCache | None:
        if self.cache_folder is None:
            return None
        assert self.trainer is not None
        backbone = self.learner.backbone
        key = pipeline_key(backbone, *self.image_shape(backbone.preprocessing), str(self.trainer.precision))
        return EmbeddingCache(images, self.source.class_names, self.cache_folder / key / part)

    @cached_property
    def _train_images(self) -> ImageLoader:
        return self._image_loader(self.source.train)

    @cached_property
    def _val_images(self) -> ImageLoader:
        return self._image_loader(self.source.val)

    def _image_loader(self, images: ImageSet) -> ImageLoader:
        size, crop_ratio = self.image_shape(self.learner.backbone.preprocessing)
        dataset = SquareDataset(images, self.source.class_names, size, crop_ratio)
        assert self.trainer is not None
        workers = cores(self.trainer.num_devices) if self.num_workers is None else self.num_workers
        return ImageLoader(dataset, workers, self.batch_size, self.trainer.strategy.root_device.type)

    def image_shape(self, preprocessing: Preprocessing) -> tuple[int, float]:
        """Side in pixels and crop ratio: as asked for, or the weights' own."""
        if self.image_size is not None:
            return self.image_size, 1.0
        return preprocessing.image_size, preprocessing.crop_ratio

    def describe_images(self, preprocessing: Preprocessing) -> dict[str, Any]:
        """How photos became squares, and which were held back: for a model that lives on without this data module."""
        size, crop_ratio = self.image_shape(preprocessing)
        return {"image_size": size, "crop_ratio": crop_ratio, "held_back": self._held_back}

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
                raise DataError(self._all_unreadable(batch))
            self.skipped += [name for name in batch.unreadable if name not in self.skipped]
        if isinstance(batch, tuple) and hasattr(batch, "label"):
            return cast(Batch, batch)._replace(label=self._global_labels()[batch.label])
        return batch

    def _all_unreadable(self, batch: ImageBatch) -> str:
        """A sentence that names every unreadable image of this run, so that the user need not find them one by one."""
        size, crop_ratio = self.image_shape(self.learner.backbone.preprocessing)
        rank_zero_info("an image cannot be read: looking for others before the run stops")
        parts = (self.source.train, self.source.val)
        others = chain.from_iterable(unreadable_images(images, size, crop_ratio) for images in parts)
        found = list(islice(dict.fromkeys(chain(batch.unreadable, others)), NAMED + 1))
        shown = "; ".join(found[:NAMED]) + ("; and more" if len(found) > NAMED else "")
        if len(found) == 1:
            return f"cannot read image {shown}: repair or remove it, or use --data.on_corrupt skip"
        return f"cannot read these images: {shown}: repair or remove them, or use --data.on_corrupt skip"

    def _global_labels(self) -> Tensor:
        """(classes of the source,) int64: the learner's label of each class position, -1 where not learned yet."""
        names = self.learner.class_names
        if int((self._labels >= 0).sum()) != len(names):
            label = {name: i for i, name in enumerate(names)}
            self._labels = torch.tensor([label.get(name, -1) for name in self.source.class_names])
        return self._labels

    def teardown(self, stage: str) -> None:
        """Report images that were left out; stop the decoding processes; forget what belonged to this learner."""
        skipped = list(dict.fromkeys(chain.from_iterable(of_all_processes(self.skipped))))
        if skipped:
            rank_zero_info(f"unreadable images left out: {len(skipped)}, the first: {skipped[0]}")
        self._release()

    def on_exception(self, exception: BaseException) -> None:
        """Lightning leaves out ``teardown`` where a run fails."""
        self._release()

    def _release(self) -> None:
        self.skipped, self._planned = [], None
        self._labels = torch.zeros(0, dtype=torch.int64)
        for name in ("_train_images", "_val_images", "_memory", "_train_cache", "_val_cache"):
            held = self.__dict__.pop(name, None)
            if isinstance(held, ImageLoader):
                held.close()


def _pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[i : i + size] for i in range(0, len(rows), size)]
