"""The Lightning data module that feeds a run task by task: epoch k gets the samples of task k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Preprocessing
from cifnet_pl.backbones.embedding_cache import EmbeddingCache, EvaluationMemory, pipeline_folder
from cifnet_pl.data.loading import (
    EMBEDDED_BATCH,
    SCORES,
    Batch,
    Batches,
    ImageBatch,
    ImageLoader,
    Store,
    StoredLoader,
    Task,
    name_unreadable,
    pieces,
    shard_batches,
)
from cifnet_pl.data.plan import (
    Copies,
    Plan,
    TaskLearner,
    TaskStream,
    find_duplicates,
    of_first,
    without_test_images,
)
from cifnet_pl.data.sets import ImageSet, SampleSet, SourceOptions
from cifnet_pl.data.sources import OWN_IMAGES, build_source
from cifnet_pl.data.sources.tables import EmbeddingSet
from cifnet_pl.data.splitting import NEAR, SINGLE
from cifnet_pl.data.streams import Disjoint, Stream
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.images.image import LARGEST_IMAGE, cores
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import of_all_processes, rank_and_world
from cifnet_pl.utilities.text import number_of, printable


class CIFNetDataModule(LightningDataModule):
    """Feeds task k in epoch k; evaluates on the test images of all classes seen so far. Tasks are
    counted from 0.

    Args:
        source: name of a data source, see docs/sources.md: ``digits``, ``folder``, ``domains``,
            ``embeddings``, ``cifar100``, ``imagenet100``, ``tinyimagenet``, ``core50``,
            ``torchvision:<data set>``. In Python also arrays (X, y), a torch ``Dataset``, or a pair
            of these to learn and to test with.
        root: folder of the data.
        classes_per_task: number of new classes of each task, or a list with one number per task.
        initial_classes: number of classes of a larger first task, or null.
        class_order: a seed for the permutation, positions, class names, or null for the source's
            order.
        stream: which samples each task brings, a class of :mod:`cifnet_pl.data.streams`: Returning,
            Blurry, TaskFree, LongTailed, Domains or Listed; null for disjoint classes.
        max_tasks: stop after this many tasks, or null for all; a later run may raise it and go on.
        image_size: side in pixels (short side resized, centre cropped); null for the weights' own
            size and crop.
        batch_size: images per process and batch; the result does not depend on it.
        num_workers: decoding threads of each process that embeds, or null to share out the cores,
            at most 16 each.
        val_fraction: share of each class held out where the source has no validation part of its
            own.
        split_seed: seed of that split.
        tune: share of each class's training images that accuracies are measured on in place of the
            test images, which are left alone, so that settings can be chosen; null to learn from
            all and to test.
        group: images in class folders that are held out together: "near" (those that look alike, or
            of one burst), "folder" (of one sub-folder), "day" or "burst" (by EXIF), "name:REGEX"
            (names with the same match), or "single" for none; null is near.
        duplicates: "leave_out" to learn one of several images with the same content, "keep" to
            learn them all and only name them; null: leave_out for the user's own images, while
            benchmark sets are not looked through.
        download: whether a torchvision set may be fetched.
        on_corrupt: "error" to stop at an unreadable image, "skip" to leave it out and count it.
        cache: whether to keep all embeddings on disk, so that a later run never embeds the same
            image again.
        cache_folder: where.
        options: of one source alone, such as ``stride`` of core50.
        unknown: folder or archive with images of other things, with which it is measured after each
            task how well the model tells what it does not know; null for none.

    Attributes:
        plan: the tasks of the run, with its training and test samples.
        notes: sentences for the user about how those were chosen.
    """

    def __init__(
        self,
        source: str | Any = "folder",
        root: str | None = None,
        classes_per_task: int | list[int] = 10,
        initial_classes: int | None = None,
        class_order: int | list[int] | list[str] | None = None,
        stream: Stream | None = None,
        max_tasks: int | None = None,
        image_size: int | None = None,
        batch_size: int = 64,
        num_workers: int | None = None,
        val_fraction: float = 0.2,
        split_seed: int = 0,
        tune: float | None = None,
        group: str | None = None,
        duplicates: Duplicates | None = None,
        download: bool = False,
        on_corrupt: Literal["error", "skip"] = "error",
        cache: bool = False,
        cache_folder: str = "~/.cache/cifnet_pl",
        options: dict[str, Any] | None = None,
        unknown: str | None = None,
    ):
        self.given = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        super().__init__()
        check_that(on_corrupt in ("error", "skip"), "on_corrupt", on_corrupt, "error or skip")
        limits = {
            "batch_size": (batch_size, 1),
            "max_tasks": (max_tasks, 1),
            "num_workers": (num_workers, 0),
        }
        for name, (limit, least) in limits.items():
            check_that(limit is None or limit >= least, name, limit, f"at least {least}")
        fits = image_size is None or 1 <= image_size <= LARGEST_IMAGE
        check_that(fits, "image_size", image_size, f"1 to {LARGEST_IMAGE} pixels, or null")
        source_options = SourceOptions(
            Path(root) if root else None, val_fraction, split_seed, download, options or {}, group
        )
        self.source = build_source(source, source_options)
        if isinstance(source, tuple | list):
            kind = "arrays"
        else:
            kind = type(source).__name__
        self.source_name = self.given["source"] = source if isinstance(source, str) else kind
        if tune is not None:
            if group is not None:
                raise UsageError(
                    "--data.tune splits image by image, --data.group by groups: leave one of"
                    " them out"
                )
            self.source = without_test_images(self.source, tune, split_seed)
        # A model that is extended later cannot find out again which images were held out in groups.
        plain = tune is None and group in (None, NEAR, SINGLE)
        self._held_out = [val_fraction, split_seed] if plain else None
        self.image_size = image_size
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.on_corrupt = on_corrupt
        self.unknown = unknown
        self.cache_folder = Path(cache_folder).expanduser() if cache else None
        self.duplicates: Duplicates | None = duplicates or (
            "leave_out" if self.source_name in OWN_IMAGES else None
        )
        self.skipped: list[str] = []
        self._begun: tuple[int, StoredLoader | None] = (
            -1,
            None,
        )  # a task whose images are being decoded ahead
        self._labels = torch.zeros(0, dtype=torch.int64)
        self.plan = Plan(
            self.source, stream, class_order, classes_per_task, initial_classes, max_tasks
        )
        self.n_tasks = len(self.stream(()))
        self.notes = list(self.source.notes)
        if max_tasks:
            never = []
        else:
            never = sorted(set(self.source.class_names) - set(self.stream(()).classes()))
        if never:
            total = len(self.source.class_names)
            self.notes.append(
                f"note: classes_per_task {classes_per_task} leaves {len(never)} of"
                f" {number_of(total, 'class')} that no task learns, the first is"
                f" '{printable(never[0])}'"
            )

    @property
    def learns_held_out(self) -> bool:
        """Whether the test samples are the user's own images, held out for a score, and are learned
        after the last.

        Streams for research, images that the user keeps apart, and benchmark sets stay tested only.
        """
        return (
            self.source.held_out
            and self.source_name in OWN_IMAGES
            and isinstance(self.plan.kind, Disjoint)
        )

    # ------------------------------------------------------------------ tasks

    def stream(self, learned: Sequence[Sequence[str]]) -> TaskStream:
        """Return the new classes of all tasks of this run.

        Args:
            learned: class names of the tasks that were learned before; they come first and
                unchanged.
        """
        return self.plan.tasks(learned)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks for a loop of one's own, without a Trainer.

        Raises:
            UsageError: images, and no ``image_size``.
        """
        if self.image_size is None and isinstance(self.source.train, ImageSet):
            raise UsageError(
                "the size of the images depends on the backbone: without a Trainer set image_size="
            )
        train = self.source.train
        val = self.source.val
        stream = self.stream(())
        labels = torch.full((len(self.source.class_names),), -1)
        labels[[self.plan.position[name] for name in stream.classes()]] = torch.arange(
            len(stream.classes())
        )
        if self.num_workers is None:
            workers = cores()
        else:
            workers = self.num_workers
        if isinstance(train, ImageSet):
            side = self.image_size or 0
        else:
            side = 0
        options = (labels, self.batch_size, side, workers, self.on_corrupt == "skip")
        if self.duplicates == "leave_out":
            copies = find_duplicates(self.source, self.plan.all_rows(()))
            self.plan.left_out, self.plan.untested = copies.left_out(self.source)
        for number, new in enumerate(stream.tasks):
            rows = self.plan.rows(number, ())
            known = TaskStream(stream.tasks[: number + 1]).classes()
            rows = np.sort(rows) if train.sequential else rows
            tested = np.concatenate([rows[:0], *self.plan.test_rows(known, number + 1)])
            numbers = list(range(len(known) - len(new), len(known)))
            yield Task(
                number,
                list(new),
                numbers,
                Batches(train, rows, *options),
                Batches(val, tested, *options),
            )

    @property
    def attached(self) -> Trainer:
        """The Trainer of the run."""
        if self.trainer is None:
            raise UsageError(
                "the data module has no Trainer: pass it as datamodule=, or go through its tasks:"
                " for task in data"
            )
        return self.trainer

    @property
    def learner(self) -> TaskLearner:
        """The LightningModule that is being fed."""
        return cast(TaskLearner, self.attached.lightning_module)

    @property
    def task(self) -> int:
        """Number of the task that the current epoch learns, from 0."""
        return int(self.attached.current_epoch)

    def task_classes(self, task: int) -> list[str]:
        """Return the names of the classes that ``task`` introduces; none after the last."""
        tasks = self.stream(self.learner.learned_tasks[:task]).tasks
        # Lightning asks once more after the last
        if task < len(tasks):
            return list(tasks[task])
        return []

    def task_rows(self, task: int) -> np.ndarray:
        """Return the positions of the training samples of ``task``; none after the last."""
        rows = self.plan.rows(task, self.learner.learned_tasks[:task])
        if self.source.train.sequential:
            return np.sort(rows)
        return rows

    def images_of(self, task: int, at_most: int) -> Tensor:
        """Decode images of a task, without their labels.

        Args:
            task: its number.
            at_most: of more images, so many are taken, evenly spread.

        Returns:
            (n, 3, s, s) uint8; unreadable ones are left out.

        Raises:
            UsageError: the samples are embeddings.
        """
        if not isinstance(self.source.train, ImageSet):
            raise UsageError(
                f"data source {self.source_name} has no images to learn a backbone from"
            )
        rows = self.task_rows(task)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), at_most)).round().astype(np.int64)]
        return torch.cat(
            [batch.image for batch in self._train_images.decode(pieces(rows, self.batch_size))]
        )

    def returning_classes(self, task: int) -> list[str]:
        """Return the names of classes that ``task`` brings samples of, but an earlier task
        introduced.
        """
        if not self.plan.kind.samples_return:
            return []
        present = np.unique(self.source.train.labels[self.task_rows(task)])
        new = set(self.task_classes(task))
        return [
            name
            for name in (self.source.class_names[label] for label in present)
            if name not in new
        ]

    def class_counts(self, names: Iterable[str]) -> list[int]:
        """Return the number of training samples of each class in the current task, unreadable ones
        included.
        """
        labels = self.source.train.labels[self.task_rows(self.task)]
        counts = np.bincount(labels, minlength=len(self.source.class_names))
        return [int(counts[self.plan.position[name]]) for name in names]

    def test_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of held-out samples of each class, unreadable ones included."""
        labels = self.source.val.labels
        if self.plan.untested is None:
            tested = labels
        else:
            tested = labels[~self.plan.untested]
        counts = np.bincount(tested, minlength=len(self.source.class_names))
        return {
            name: int(counts[self.plan.position[name]])
            for name in names
            if name in self.plan.position
        }

    @cached_property
    def copies(self) -> Copies:
        """Images that occur more than once; read this in all processes before the first task.

        If copies are left out, they leave the plan, and the embedding cache gives each the
        embedding of the image that is learned.
        """
        if self.duplicates is None:
            return Copies()
        for cache in (self._train_cache, self._val_cache):
            if cache is not None:  # it knows the hashes of what it stores
                cache.known(np.arange(len(cache.images.labels)))
        copies = find_duplicates(self.source, self.plan.all_rows(self.learner.learned_tasks))
        if self.duplicates == "leave_out":
            self.plan.left_out, self.plan.untested = copies.left_out(self.source)
            self._require_images()
            for cache, pairs in (
                (self._train_cache, copies.twice),
                (self._val_cache, copies.tested_twice),
            ):
                if cache is not None:
                    cache.duplicates = of_first(pairs)
        return copies

    def _require_images(self) -> None:
        """Raise DataError if all images of a class that is learned lie in other classes, too."""
        assert self.plan.left_out is not None
        kept = np.bincount(
            self.source.train.labels[~self.plan.left_out], minlength=len(self.source.class_names)
        )
        for name in self.stream(self.learner.learned_tasks).classes():
            if not kept[self.plan.position[name]]:
                raise DataError(
                    f"every image of '{printable(name)}' is in another class, too: remove the wrong"
                    " copies"
                )

    # ------------------------------------------------------------------ stores of embeddings

    @cached_property
    def _memory(self) -> EvaluationMemory:
        return EvaluationMemory()

    @cached_property
    def _train_cache(self) -> EmbeddingCache | None:
        return self._cache(self.source.train, "train")

    @cached_property
    def _val_cache(self) -> EmbeddingCache | None:
        return self._cache(self.source.val, "val")

    def _cache(self, images: SampleSet, part: str) -> EmbeddingCache | None:
        if self.cache_folder is None or not isinstance(images, ImageSet):
            return None
        backbone = self.learner.backbone
        precision = str(self.attached.precision)
        engine = backbone.engine(self.attached.strategy.root_device.type, precision)
        size, crop = self.image_shape(backbone.preprocessing)
        outputs = backbone.outputs(size)
        folder = pipeline_folder(
            self.cache_folder, outputs, backbone.sha256, size, crop, precision, engine
        )
        return EmbeddingCache(images, self.source.class_names, folder / part)

    def _test_stores(self) -> list[EvaluationMemory | EmbeddingCache]:
        return [self._memory, *([] if self._val_cache is None else [self._val_cache])]

    def learner_labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the learner's labels (n,) of test samples ``rows``."""
        labels: np.ndarray = self._global_labels().numpy()[self.source.val.labels[rows]]
        return labels

    def remember(self, batch: ImageBatch, z: Tensor) -> None:
        """Keep the embeddings z (n, d) of a batch of the set that is being fed, as far as the
        options allow.
        """
        training = self.attached.training
        cache = self._train_cache if training else self._val_cache
        if cache is not None:
            cache.collect(batch.row, batch.key, z)
        if not training:
            self._memory.add(batch.row, z)

    def share_collected(self) -> None:
        """Write the classes of which every process has embedded a part; call on all processes."""
        rank, world = rank_and_world()
        for cache in (self._train_cache, self._val_cache):
            if cache is not None and world > 1:
                parts = of_all_processes(cache.collected())
                for part in chain.from_iterable(parts) if rank == 0 else []:
                    cache.collect(*part)

    # ------------------------------------------------------------------ loaders

    def training_batches(self, task: int) -> StoredLoader:
        """Return this process's exact share of a task; stored embeddings come in the same
        batches.
        """
        samples, cache, (rank, world) = self.source.train, self._train_cache, rank_and_world()
        # Embeddings take little memory, and sums are faster over many of them.
        if isinstance(samples, ImageSet):
            size = self.batch_size
        else:
            size = max(self.batch_size, EMBEDDED_BATCH)
        orders = self.learner.passes(self.task_rows(task), task)
        batches = [batch for order in orders for batch in shard_batches(order, size, rank, world)]
        if isinstance(samples, EmbeddingSet):
            return StoredLoader(
                samples, [(batch, samples) for batch in batches], None, learned=True
            )
        plan = [
            (batch, cache if cache is not None and cache.known(batch).all() else None)
            for batch in batches
        ]
        loader = StoredLoader(samples, plan, self._train_images, learned=True)
        if any(store is None for _, store in plan):
            loader.begin()
        return loader

    def begin_task(self, task: int) -> None:
        """Let threads decode the first images of the next task, number ``task``, while one is being
        solved.
        """
        if isinstance(self.source.train, ImageSet):
            self._begun = (task, self.training_batches(task))

    def train_dataloader(self) -> StoredLoader:
        """Return this process's share of the current task."""
        (task, loader), self._begun = self._begun, (-1, None)
        if loader is not None and task == self.task:
            return loader
        return self.training_batches(self.task)

    def val_dataloader(self) -> StoredLoader:
        """Return the test samples of all classes learned; those embedded before come from memory or
        the cache.
        """
        tasks, (rank, world) = self.learner.learned_tasks, rank_and_world()
        samples = self.source.val
        learned = list(chain.from_iterable(tasks))
        # Dealt out class by class, so that an image stays with one process over all tasks.
        none = np.zeros(0, dtype=np.int64)
        left = np.concatenate(
            [none, *(rows[rank::world] for rows in self.plan.test_rows(learned, len(tasks)))]
        )
        plan: list[tuple[np.ndarray, Store | None]] = []
        # At least one batch, empty if need be: Lightning skips a loop without any, and its hooks
        # with it.
        if isinstance(samples, EmbeddingSet):
            size = min(EMBEDDED_BATCH, max(1, SCORES // max(1, len(learned))))
            plan = [(batch, samples) for batch in pieces(left, size) or [left]]
            return StoredLoader(samples, plan, None, learned=False)
        for store in self._test_stores():
            known = store.known(left)
            plan += [(batch, store) for batch in pieces(left[known], EMBEDDED_BATCH)]
            left = left[~known]
        plan += [(batch, None) for batch in pieces(left, self.batch_size)]
        return StoredLoader(samples, plan or [(left, None)], self._val_images, learned=False)

    # A class-incremental run has one held-out set.
    test_dataloader = predict_dataloader = val_dataloader

    @cached_property
    def _train_images(self) -> ImageLoader:
        return self._image_loader(self.source.train)

    @cached_property
    def _val_images(self) -> ImageLoader:
        return self._image_loader(self.source.val)

    def _image_loader(self, images: SampleSet) -> ImageLoader:
        shape = self.image_shape(self.learner.backbone.preprocessing)
        assert isinstance(images, ImageSet)
        if self.num_workers is None:
            workers = cores(self.attached.num_devices)
        else:
            workers = self.num_workers
        return ImageLoader(images, *shape, workers, self.attached.strategy.root_device.type)

    def image_shape(self, preprocessing: Preprocessing) -> tuple[int, float]:
        """Return how images become squares.

        Args:
            preprocessing: what the weights of the backbone expect.

        Returns:
            The side in pixels and the crop ratio: those of the options, else the weights' own.
        """
        if self.image_size is not None:
            return self.image_size, 1.0
        return preprocessing.image_size, preprocessing.crop_ratio

    def describe_images(self, preprocessing: Preprocessing) -> dict[str, Any]:
        """Return what a stored model must know of its images: side, crop ratio, and which images
        were held out.

        Args:
            preprocessing: what the weights of the backbone expect.
        """
        size, crop_ratio = self.image_shape(preprocessing)
        return {"image_size": size, "crop_ratio": crop_ratio, "held_out": self._held_out}

    # ------------------------------------------------------------------ batches

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Replace the positions of classes by the learner's labels; stop at unreadable images, or
        count them.

        Raises:
            DataError: an image is unreadable, and ``on_corrupt`` is "error"; names all unreadable
                ones.
        """
        if isinstance(batch, ImageBatch) and batch.unreadable:
            if self.on_corrupt == "error":
                raise DataError(
                    name_unreadable(batch.unreadable, (self._train_images, self._val_images))
                )
            self.skipped += [name for name in batch.unreadable if name not in self.skipped]
        if isinstance(batch, tuple) and hasattr(batch, "label"):
            return cast(Batch, batch)._replace(label=self._global_labels()[batch.label])
        return batch

    def _global_labels(self) -> Tensor:
        """Return the learner's label of each class position, -1 where not learned yet: (classes,)
        int64.
        """
        names = self.learner.class_names
        if int((self._labels >= 0).sum()) != len(names):
            label = {name: i for i, name in enumerate(names)}
            self._labels = torch.tensor([label.get(name, -1) for name in self.source.class_names])
        return self._labels

    def teardown(self, stage: str) -> None:
        """Report images that were left out, stop the decoding threads, and drop what belonged to
        this learner.
        """
        skipped = list(dict.fromkeys(chain.from_iterable(of_all_processes(self.skipped))))
        if skipped:
            rank_zero_info(f"unreadable images left out: {len(skipped)}, the first: {skipped[0]}")
        self._release()

    def on_exception(self, exception: BaseException) -> None:
        """Tear down after an error: Lightning does not call ``teardown`` when a run fails."""
        self._release()

    def _release(self) -> None:
        self.skipped = []
        self._labels = torch.zeros(0, dtype=torch.int64)
        self._begun = (-1, None)
        self.plan.left_out = self.plan.untested = None
        for name in (
            "_train_images",
            "_val_images",
            "_memory",
            "_train_cache",
            "_val_cache",
            "copies",
        ):
            held = self.__dict__.pop(name, None)
            if isinstance(held, ImageLoader):
                held.close()
