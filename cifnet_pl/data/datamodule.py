"""The Lightning data module of a run: epoch k gets the samples of task k."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Backbone, Preprocessing
from cifnet_pl.backbones.embedding_cache import (
    EmbeddingCache,
    EvaluationMemory,
    pipeline_folder,
)
from cifnet_pl.data.duplicates import Part, SourceDuplicates, find_duplicates
from cifnet_pl.data.loading import (
    EMBEDDED_BATCH,
    Batches,
    EmbeddingBatch,
    ImageBatch,
    ImageLoader,
    PlannedBatch,
    Store,
    StoredLoader,
    Task,
    name_unreadable,
    pieces,
    planned_batches,
    shard_batches,
)
from cifnet_pl.data.samples import SampleTable, Source, SourceOptions
from cifnet_pl.data.sources import OWN_IMAGES, build_source
from cifnet_pl.data.splitting import NEAR, SINGLE, tuning_source
from cifnet_pl.data.streams import Disjoint, Plan, Stream, Tasks, make_plan
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.images.files import use_zip_encoding
from cifnet_pl.images.image import IMAGE_SIZE_LIMIT
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.utilities.errors import DataError, UsageError, check_that
from cifnet_pl.utilities.files import expanded, of_all_processes, rank_and_world
from cifnet_pl.utilities.text import number_of, printable

CLASSES_PER_TASK = 10
"""Classes of a task by default."""


class FedModule(Protocol):
    """The part of a LightningModule that the data module needs.

    Attributes:
        any_batch_size: whether it learns the same from batches of any size.
    """

    any_batch_size: ClassVar[bool]
    class_names: list[str]
    learned_tasks: list[list[str]]
    backbone: Backbone

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned.

        Args:
            rows: (n,) rows of the task's images.
            task: number of the task, from 0.

        Returns:
            Rows for each part that is delivered in turn: a pass over all images, or one step.
        """


class CIFNetDataModule(LightningDataModule):
    """Feed task k in epoch k; evaluate on the test images of all classes seen so far.

    Tasks are counted from 0.

    Args:
        source: name of a data source, see docs/how_to/sources.md: ``folder``, ``domains``,
            ``manifest``, ``embeddings``, ``webdataset``, ``hf:<data set>``, ``cifar100``,
            ``core50``, ``imagenet100``, ``tinyimagenet``, ``torchvision:<data set>``, ``digits``,
            or the import of your own. In Python also arrays (X, y), a torch ``Dataset``, or a pair
            of these to learn and to test with.
        root: folder of the data.
        classes_per_task: number of new classes of each task, or a list with one number per task;
            by default 10, or all classes where there are fewer.
        initial_classes: number of classes of a larger first task, or null.
        class_order: a seed for the permutation, positions, class names, or null for the source's
            order.
        stream: which samples each task brings, a class of :mod:`cifnet_pl.data.streams`: Returning,
            Blurry, TaskFree, LongTailed, Domains or Listed; null for disjoint classes.
        max_tasks: stop after this many tasks, or null for all; a later run may raise it and go on.
        image_size: side in pixels (short side resized, centre cropped); null for the weights' own
            size and crop.
        batch_size: images per process and batch; null for 64, and for up to 256 where a frozen
            backbone embeds on a GPU. The result depends on it only in trained methods.
        num_workers: threads (with a GPU: processes) that decode for each process that embeds, or
            null to share out the cores, at most 16 each.
        val_fraction: share of each class held out where the source has no test split.
        split_seed: seed of that split.
        tune: share of each class's training images to measure accuracies on in place of the test
            images, so that settings can be chosen; null to learn from all and to test.
        group: groups of images in class folders that are held out together: "near"
            (near-duplicates and bursts), "folder" (of one sub-folder), "day" or "burst" (by EXIF),
            "name:REGEX" (names with the same match), or "single" for none; null is near.
        duplicates: "leave_out" to learn one of several images with the same content, "keep" to
            learn them all and only name them; null: leave_out for the user's own images, while
            benchmark sets are not searched.
        download: whether a set of torchvision or of the Hugging Face hub may be fetched.
        on_corrupt: "error" to stop at an unreadable image, "skip" to leave it out and count it.
        cache: whether to store all embeddings on disk, so that a later run never embeds the same
            image again.
        cache_folder: folder of these embeddings.
        options: options of one source alone, such as ``stride`` of core50.
        zip_encoding: encoding of names in Zip archives that are not UTF-8, such as cp932.
        unknown: folder or archive with images of no class, on which the detection of unknown
            samples is measured after each task; null for none.

    Attributes:
        given: the arguments, with the name of the source.
        kind: which samples each task brings.
        left_out: (n,) bool, training samples that are excluded as duplicates; None without any.
        untested: (m,) bool, test samples that are excluded; None without any.
        evaluated: the domain of each test sample where domains are evaluated one by one, or None.
        learns_held_out: whether the held-out samples are learned after the last task, as with the
            user's own images. Streams for research, test splits of the user, and benchmark sets
            stay tested only.
        notes: sentences for the user about how the samples were chosen.
    """

    source: Source
    """Training and test samples."""

    skipped: list[str]
    left_out: np.ndarray | None
    untested: np.ndarray | None

    def __init__(
        self,
        source: str | Any = "folder",
        root: str | None = None,
        classes_per_task: int | list[int] = CLASSES_PER_TASK,
        initial_classes: int | None = None,
        class_order: int
        | list[str]
        | list[int]
        | None = None,  # quoted entries are names
        stream: Stream | None = None,
        max_tasks: int | None = None,
        image_size: int | None = None,
        batch_size: int | None = None,
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
        zip_encoding: str | None = None,
    ):
        arguments = dict(locals())
        for name in ("self", "__class__"):
            arguments.pop(name, None)
        self.given = arguments
        super().__init__()
        check_that(
            on_corrupt in ("error", "skip"), "on_corrupt", on_corrupt, "error or skip"
        )
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("max_tasks", max_tasks, 1),
            ("num_workers", num_workers, 0),
        ):
            check_that(
                value is None or value >= least, name, value, f"at least {least}"
            )
        valid_size = image_size is None or 1 <= image_size <= IMAGE_SIZE_LIMIT
        check_that(
            valid_size,
            "image_size",
            image_size,
            f"1 to {IMAGE_SIZE_LIMIT} pixels, or null",
        )
        use_zip_encoding(zip_encoding)
        folder = Path(root) if root else None
        source_options = SourceOptions(
            folder, val_fraction, split_seed, download, options or {}, group
        )
        self.source = build_source(source, source_options)
        self.source_name = _source_name(source)
        self.given["source"] = self.source_name
        if tune is not None:
            if group is not None:
                raise UsageError(
                    "--data.tune splits image by image, --data.group by groups: leave one of"
                    " them out"
                )
            self.source = tuning_source(self.source, tune, split_seed)
        # A model that is extended later cannot find out again which images were held out in groups.
        by_seed = tune is None and group in (None, NEAR, SINGLE)
        self._held_out = [val_fraction, split_seed] if by_seed else None
        self.image_size = image_size
        self.batch_size = batch_size or DEFAULT_BATCH
        self.num_workers = num_workers
        self.on_corrupt = on_corrupt
        self.unknown = unknown
        self.cache_folder = expanded(cache_folder) if cache else None
        if duplicates is None and self.source_name in OWN_IMAGES:
            duplicates = "leave_out"
        self.duplicates: Duplicates | None = duplicates
        self._release()
        self.kind = stream or Disjoint()
        self.evaluated = self.kind.evaluated(self.source)
        self.learns_held_out = (
            self.source.held_out
            and self.source_name in OWN_IMAGES
            and isinstance(self.kind, Disjoint)
        )
        names = self.source.class_names
        if (
            stream is None
            and initial_classes is None
            and classes_per_task == CLASSES_PER_TASK
        ):
            classes_per_task = min(CLASSES_PER_TASK, len(names)) or CLASSES_PER_TASK
        self.given["classes_per_task"] = classes_per_task
        self._planned: tuple[Tasks, Plan] | None = None
        plan = self.plan(())
        self.n_tasks = len(plan.tasks)
        self.notes = list(self.source.notes)
        never = sorted(set(names) - set(plan.classes))
        if never and max_tasks is None:
            total = number_of(len(names), "class")
            self.notes.append(
                f"note: classes_per_task {classes_per_task} leaves {len(never)} of {total} that no"
                f" task learns, the first is '{printable(never[0])}'"
            )

    # ------------------------------------------------------------------ tasks

    def plan(self, learned: Sequence[Sequence[str]]) -> Plan:
        """Return the tasks of the run; see :func:`~cifnet_pl.data.streams.make_plan`.

        Args:
            learned: class names of the tasks that were learned before; they come first.
        """
        past = tuple(tuple(task) for task in learned)
        if self._planned is None or self._planned[0] != past:
            plan = make_plan(
                self.source,
                self.kind,
                self.given["class_order"],
                self.given["classes_per_task"],
                self.given["initial_classes"],
                self.given["max_tasks"],
                past,
            )
            self._planned = (past, plan)
        return self._planned[1]

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks, for use without a Trainer.

        Raises:
            UsageError: images, and no ``image_size``.
        """
        train = self.source.train
        if self.image_size is None and train.are_images:
            raise UsageError(
                "the size of the images depends on the backbone: without a Trainer set image_size="
            )
        plan = self.plan(())
        labels = torch.full((len(self.source.class_names),), -1)
        for label, name in enumerate(plan.classes):
            labels[self.source.position[name]] = label
        if self.duplicates == "leave_out":
            found = find_duplicates(self.source, plan.rows)
            self.left_out, self.untested = found.left_out(self.source)
        classes_before = 0
        for number, new in enumerate(plan.tasks):
            rows = self._kept(plan.rows[number])
            classes_seen = plan.classes[: classes_before + len(new)]
            test_rows = self.test_rows(classes_seen, number + 1)
            tested = np.concatenate([rows[:0], *test_rows])
            yield Task(
                number,
                list(new),
                self._returning(rows, new),
                classes_before,
                self._batches(train, rows, labels),
                self._batches(self.source.val, tested, labels),
            )
            classes_before = len(classes_seen)

    def _batches(
        self, samples: SampleTable, rows: np.ndarray, labels: Tensor
    ) -> Batches:
        """Return samples in batches, for use without a Trainer."""
        return Batches(
            samples,
            rows,
            labels,
            self.batch_size,
            side=self.image_size or 0,
            workers=self._workers(1),
            skip=self.on_corrupt == "skip",
        )

    def _workers(self, processes: int) -> int:
        """Return the number of decoding threads of each of some processes."""
        if self.num_workers is None:
            return decoding_cores(processes)
        return self.num_workers

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
    def learner(self) -> FedModule:
        """The LightningModule that is being fed."""
        return cast(FedModule, self.attached.lightning_module)

    @property
    def task(self) -> int:
        """Number of the task that the current epoch learns, from 0."""
        return int(self.attached.current_epoch)

    def task_classes(self, task: int) -> list[str]:
        """Return the names of the classes that ``task`` introduces; none after the last."""
        tasks = self.plan(self.learner.learned_tasks[:task]).tasks
        if task < len(tasks):  # Lightning asks once more after the last
            return list(tasks[task])
        return []

    def task_rows(self, task: int) -> np.ndarray:
        """Return the rows of the training samples of ``task``; none after the last."""
        rows = self.plan(self.learner.learned_tasks[:task]).rows
        if task < len(rows):
            return self._kept(rows[task])
        return np.zeros(0, dtype=np.int64)

    def _kept(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of a task without duplicates, in the order in which they are read."""
        if self.left_out is not None:
            rows = rows[~self.left_out[rows]]
        if self.source.train.sequential:
            return np.sort(rows)
        return rows

    def images_of(self, task: int, at_most: int) -> Tensor:
        """Decode images of a task, without their labels.

        Args:
            task: its number.
            at_most: number of images, evenly spread over those of the task.

        Returns:
            (n, 3, s, s) uint8; unreadable ones are left out.

        Raises:
            UsageError: the samples are embeddings.
        """
        if not self.source.train.are_images:
            raise UsageError(
                f"data source {self.source_name} has no images to learn a backbone from"
            )
        rows = self.task_rows(task)
        places = np.linspace(0, len(rows) - 1, min(len(rows), at_most)).round()
        chunks = pieces(rows[places.astype(np.int64)], self._loader_batch)
        batches = self._loaders["train"].decode(chunks)
        return torch.cat([batch.image for batch in batches])

    def returning_classes(self, task: int) -> list[str]:
        """Return the names of earlier classes that ``task`` brings samples of again."""
        return self._returning(self.task_rows(task), self.task_classes(task))

    def _returning(self, rows: np.ndarray, new: Sequence[str]) -> list[str]:
        """Return the names of the classes of some training samples, without the new ones."""
        if not self.kind.samples_return:
            return []
        present = np.unique(self.source.train.labels[rows])
        names = [self.source.class_names[label] for label in present]
        new_names = set(new)
        return [name for name in names if name not in new_names]

    def class_counts(self, names: Iterable[str]) -> list[int]:
        """Return the number of training samples of each class in the current task.

        Unreadable ones count, too.
        """
        labels = self.source.train.labels[self.task_rows(self.task)]
        counts = np.bincount(labels, minlength=len(self.source.class_names))
        return [int(counts[self.source.position[name]]) for name in names]

    def test_counts(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of held-out samples of each class, unreadable ones included."""
        labels = self.source.val.labels
        if self.untested is not None:
            labels = labels[~self.untested]
        counts = np.bincount(labels, minlength=len(self.source.class_names))
        position = self.source.position
        return {name: int(counts[position[name]]) for name in names if name in position}

    def test_rows(self, names: Iterable[str], tasks: int) -> list[np.ndarray]:
        """Return the rows of the test samples of each class.

        Test samples of domains that are evaluated one by one are left out until their task. Those
        of domains that no task learns, such as CORe50's test sessions, are always included.

        Args:
            names: names of the classes.
            tasks: number of tasks that are learned.

        Raises:
            DataError: a class that the data does not have.
        """
        val = self.source.val
        tested = np.ones(len(val), dtype=bool)
        if self.untested is not None:
            tested &= ~self.untested
        if self.evaluated is not None:
            trained = self.source.train.table["domain"].nunique()
            domains = self.evaluated.codes
            tested &= (domains < tasks) | (domains >= trained)
        none = np.zeros(0, dtype=np.int64)
        test_rows = []
        for name in names:
            if name not in self.source.position:
                raise DataError(
                    f"class '{name}' was learned, but the data does not have it"
                )
            rows = val.rows_of.get(self.source.position[name], none)
            test_rows.append(rows[tested[rows]])
        return test_rows

    @cached_property
    def found_duplicates(self) -> SourceDuplicates:
        """Samples with the same content; read this in all processes before the first task.

        If duplicates are left out, they leave the plan, and the embedding cache gives each the
        embedding of the image that is learned.
        """
        if self.duplicates is None:
            return SourceDuplicates()
        # A cache knows the hashes of the images that it stores.
        for cache in self._caches.values():
            every_row = np.arange(len(cache.images.labels))
            cache.known(every_row)
        plan = self.plan(self.learner.learned_tasks)
        found = find_duplicates(self.source, plan.rows)
        if self.duplicates == "leave_out":
            self.left_out, self.untested = found.left_out(self.source)
            labels = self.source.train.labels[~self.left_out]
            for name in plan.classes:
                if self.source.position[name] not in labels:
                    raise DataError(
                        f"every image of '{printable(name)}' is in another class, too: remove the"
                        " wrong duplicates"
                    )
            for part, cache in self._caches.items():
                cache.duplicates = found.of_originals(part)
        return found

    # ------------------------------------------------------------------ stores of embeddings

    @cached_property
    def _caches(self) -> dict[Part, EmbeddingCache]:
        """The embeddings of the training and the test images on disk; empty without a cache."""
        if self.cache_folder is None or not self.source.train.are_images:
            return {}
        backbone = self.learner.backbone
        precision = str(self.attached.precision)
        device = self.attached.strategy.root_device
        engine = backbone.engine(device.type, precision)
        size, crop = self.image_shape(backbone.preprocessing)
        outputs = backbone.outputs(size)
        folder = pipeline_folder(
            self.cache_folder, outputs, backbone.sha256, size, crop, precision, engine
        )
        names = self.source.class_names
        return {
            "train": EmbeddingCache(self.source.train, names, folder / "train"),
            "val": EmbeddingCache(self.source.val, names, folder / "val"),
        }

    def learner_labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the learner's labels (n,) of test samples ``rows``."""
        labels = self.source.val.labels[rows]
        positions = torch.from_numpy(labels)
        return self._global_labels()[positions].numpy()

    def remember(self, batch: ImageBatch, z: Tensor) -> None:
        """Store the embeddings of a batch of the current set, as far as the options allow.

        Args:
            batch: the images.
            z: (n, d) their embeddings.
        """
        training = self.attached.training
        cache = self._caches.get("train" if training else "val")
        if cache is not None:
            cache.collect(batch.row, batch.key, z)
        if not training:
            self._memory.add(batch.row, z)

    def share_collected(self) -> None:
        """Write the classes of which every process has embedded a part; call on all processes."""
        rank, world = rank_and_world()
        if world == 1:
            return
        for cache in self._caches.values():
            parts = of_all_processes(cache.take_incomplete())
            if rank == 0:
                for part in chain.from_iterable(parts):
                    cache.collect(*part)

    # ------------------------------------------------------------------ loaders

    def train_dataloader(self) -> StoredLoader:
        """Return this process's exact share of the current task.

        Stored embeddings come in like batches.
        """
        task = self.task
        samples = self.source.train
        cache = self._caches.get("train")
        size = self._loader_batch
        if not samples.are_images:
            # Embeddings take little memory, and a Gram matrix is faster over many of them.
            size = max(size, EMBEDDED_BATCH)
        plan: list[PlannedBatch] = []
        orders = self.learner.passes(self.task_rows(task), task)
        for order in orders:
            for rows in shard_batches(order, size, *rank_and_world()):
                store: Store | None = None
                if not samples.are_images:
                    store = samples
                elif cache is not None and cache.known(rows).all():
                    store = cache
                plan.append(PlannedBatch(rows, store))
        loader = None
        if samples.are_images:
            loader = self._loaders["train"]
        return StoredLoader(samples, plan, loader, learned=True)

    def val_dataloader(self) -> StoredLoader:
        """Return the test samples of all classes learned.

        Those that were embedded before come from memory or the cache.
        """
        samples = self.source.val
        tasks = self.learner.learned_tasks
        learned = list(chain.from_iterable(tasks))
        rank, world = rank_and_world()
        # Dealt out class by class, so that an image stays with one process over all tasks.
        shares = [np.zeros(0, dtype=np.int64)]
        for rows in self.test_rows(learned, len(tasks)):
            shares.append(rows[rank::world])
        left = np.concatenate(shares)
        plan: list[PlannedBatch] = []
        loader = None
        if samples.are_images:
            loader = self._loaders["val"]
            for store in (self._memory, self._caches.get("val")):
                if store is not None:
                    known = store.known(left)
                    plan += planned_batches(left[known], EMBEDDED_BATCH, store)
                    left = left[~known]
            plan += planned_batches(left, self._loader_batch, None)
        else:
            plan += planned_batches(left, EMBEDDED_BATCH, samples)
        if not plan:
            # Lightning skips a loop without any batch, and its hooks with it.
            plan = [PlannedBatch(left, None if loader else samples)]
        return StoredLoader(samples, plan, loader, learned=False)

    # A class-incremental run has one held-out set.
    test_dataloader = predict_dataloader = val_dataloader

    @property
    def _loader_batch(self) -> int:
        """Number of images in a batch of this run: a GPU needs more of them than a CPU."""
        device = self.attached.strategy.root_device.type
        chosen = self.given["batch_size"] is not None
        if chosen or device == "cpu" or not self.learner.any_batch_size:
            return self.batch_size
        side, _ = self.image_shape(self.learner.backbone.preprocessing)
        fitting = GPU_BATCH_PIXELS // side**2
        return max(1, min(GPU_BATCH, fitting))

    @cached_property
    def _loaders(self) -> dict[Part, ImageLoader]:
        """Decode the training and the test images."""
        shape = self.image_shape(self.learner.backbone.preprocessing)
        workers = self._workers(self.attached.num_devices)
        device = self.attached.strategy.root_device.type
        return {
            "train": ImageLoader(self.source.train, *shape, workers, device),
            "val": ImageLoader(self.source.val, *shape, workers, device),
        }

    def image_shape(self, preprocessing: Preprocessing) -> tuple[int, float]:
        """Return side and crop of the squares that images become.

        Args:
            preprocessing: what the weights of the backbone expect.

        Returns:
            The side in pixels and the crop ratio: those of the options, else the weights' own.
        """
        if self.image_size is not None:
            return self.image_size, 1.0
        return preprocessing.image_size, preprocessing.crop_ratio

    def describe_images(self, preprocessing: Preprocessing) -> dict[str, Any]:
        """Describe the images for a stored model: side, crop ratio, and the held-out split.

        Args:
            preprocessing: what the weights of the backbone expect.
        """
        size, crop_ratio = self.image_shape(preprocessing)
        return {
            "image_size": size,
            "crop_ratio": crop_ratio,
            "held_out": self._held_out,
        }

    # ------------------------------------------------------------------ batches

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Replace class positions by the learner's labels; count unreadable images.

        Raises:
            DataError: an image is unreadable, and ``on_corrupt`` is "error"; names all unreadable
                ones.
        """
        if isinstance(batch, ImageBatch) and batch.unreadable:
            if self.on_corrupt == "error":
                loaders = list(self._loaders.values())
                raise DataError(name_unreadable(batch.unreadable, loaders))
            self.skipped += batch.unreadable
        if isinstance(batch, ImageBatch | EmbeddingBatch):
            return batch._replace(label=self._global_labels()[batch.label])
        return batch

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Copy a batch to a device, without waiting for what the device is doing.

        Content hashes and positions stay on the CPU: they are needed there alone.
        """
        if isinstance(batch, ImageBatch | EmbeddingBatch):
            samples = batch[0].to(device, non_blocking=True)
            label = batch.label.to(device, non_blocking=True)
            return type(batch)(samples, label, *batch[2:])
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def _global_labels(self) -> Tensor:
        """Return the learner's label (classes,) int64 of each class position; -1 for new ones."""
        label = {name: i for i, name in enumerate(self.learner.class_names)}
        labels = [label.get(name, -1) for name in self.source.class_names]
        return torch.tensor(labels)

    def teardown(self, stage: str) -> None:
        """Report skipped images, and drop everything of this learner."""
        skipped_rows = of_all_processes(self.skipped)
        skipped = list(dict.fromkeys(chain.from_iterable(skipped_rows)))
        if skipped:
            rank_zero_info(
                f"unreadable images left out: {len(skipped)}, the first: {skipped[0]}"
            )
        self._release()

    def on_exception(self, exception: BaseException) -> None:
        """Tear down after an error: Lightning does not call ``teardown`` when a run fails."""
        self._release()

    def _release(self) -> None:
        """Drop everything of the last learner."""
        self.skipped = []
        self.left_out = None
        self.untested = None
        self._memory = EvaluationMemory()
        for loader in self.__dict__.pop("_loaders", {}).values():
            loader.close()
        for name in ("_caches", "found_duplicates"):
            self.__dict__.pop(name, None)


DEFAULT_BATCH = 64
"""Images in a batch unless told otherwise: on a CPU more are not faster, and need memory."""

GPU_BATCH = 256
"""Images in a batch on a GPU unless told otherwise: with 64 it waits for the program."""

GPU_BATCH_PIXELS = 2**24
"""Pixels in a batch on a GPU, at most; less than ``GPU_BATCH`` images above 256 pixels a side."""


def _source_name(source: Any) -> str:
    """Return the name of a source, or of the kind of Python object."""
    if isinstance(source, str):
        return source
    if isinstance(source, tuple | list):
        return "arrays"
    return type(source).__name__
