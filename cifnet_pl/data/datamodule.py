"""The Lightning data module of a run: epoch k gets the samples of task k."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.duplicates import Part, SourceDuplicates, find_duplicates
from cifnet_pl.data.embedding_cache import EmbeddingCache, pipeline_folder
from cifnet_pl.data.loading import (
    EMBEDDED_BATCH,
    UNREADABLE_SHOWN,
    Batch,
    Batches,
    ImageBatch,
    ImageLoader,
    PlannedBatch,
    Store,
    StoredLoader,
    Task,
    cut_batches,
    unreadable_images,
)
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import OWN_IMAGES, build_source
from cifnet_pl.data.splitting import NEAR, SINGLE, tuning_source
from cifnet_pl.data.streams import Disjoint, Plan, Stream, make_plan
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.images.files import read_names_as
from cifnet_pl.images.image import IMAGE_SIZE_LIMIT
from cifnet_pl.images.reader import decoding_batch_size
from cifnet_pl.utilities.errors import DataError, UsageError, check_choice, check_that
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.growing_tensors import float64_device
from cifnet_pl.utilities.processes import of_all_processes
from cifnet_pl.utilities.text import listed, number_of

DEFAULT_BATCH = 64
"""Images in a batch unless told otherwise: on a CPU more are not faster, and need memory."""

OnCorrupt = Literal["error", "skip"]

SMALLEST = {"batch_size": 1, "initial_classes": 1, "max_tasks": 1, "num_workers": 0}
"""Option → its smallest value."""


class Learner(NamedTuple):
    """What a LightningModule tells the data module, once, when it is set up.

    Attributes:
        backbone: the network that embeds; it says how images are prepared.
        learned_tasks: class names of each task begun; labels are positions among all of them. The
            list grows with the run.
        passes: function from the rows (n,) of a task's images, and its number, to the rows that are
            delivered in turn: of a pass over all images, or of one step.
        any_batch_size: whether the module learns the same from batches of any size.
    """

    backbone: Backbone
    learned_tasks: list[list[str]]
    passes: Callable[[np.ndarray, int], list[np.ndarray]]
    any_batch_size: bool


class TaskSamples(NamedTuple):
    """The training samples of a task.

    Attributes:
        new: names of the classes that it introduces.
        rows: of the samples without duplicates, in the order in which they are read.
        counts: number of samples, unreadable ones included, of each new class, and after these of
            each earlier class that the task brings samples of again.
    """

    new: list[str]
    rows: np.ndarray
    counts: dict[str, int]


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
            where fewer are left, the last task has these.
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
        on_corrupt: "error" to stop at an unreadable image, "skip" to leave it out and name it.
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
        learner: what the LightningModule that is being fed has told.
        found_duplicates: samples with the same content, once they were searched.
        left_out: (n,) bool, training samples that are excluded as duplicates.
        untested: (m,) bool, test samples that are excluded.
        evaluated: the domain of each test sample where domains are evaluated one by one, or None.
        image_shape: side in pixels and crop ratio of the squares that images become: those of the
            options, else those that the learner's weights expect.
        learns_held_out: whether the held-out samples are learned after the last task, as with the
            user's own images. Streams for research, test splits of the user, and benchmark sets
            stay tested only.
    """

    trainer: Trainer
    skipped: list[str]
    left_out: np.ndarray
    untested: np.ndarray
    found_duplicates: SourceDuplicates
    image_shape: tuple[int, float]
    learner: Learner

    def __init__(
        self,
        source: str | Any = "folder",
        root: str | None = None,
        classes_per_task: int | list[int] = 10,
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
        on_corrupt: OnCorrupt = "error",
        cache: bool = False,
        cache_folder: str = "~/.cache/cifnet_pl",
        options: dict[str, Any] | None = None,
        unknown: str | None = None,
        zip_encoding: str | None = None,
    ):
        self.given = dict(locals())
        del self.given["self"], self.given["__class__"]
        super().__init__()
        check_options(self.given)
        self.source_name = source
        if isinstance(source, tuple | list):
            self.source_name = "arrays"
        elif not isinstance(source, str):
            self.source_name = type(source).__name__
        self.given["source"] = self.source_name
        place = None
        if root:
            place = read_names_as(zip_encoding, root)
        own = options or {}
        taken = SourceOptions(place, val_fraction, split_seed, download, own, group)
        self.source = build_source(source, taken)
        if tune is not None:
            self.source = tuning_source(self.source, tune, split_seed)
        # By these two numbers `audit` divides the images again, unless the user named the groups.
        by_seed = tune is None and group in (None, NEAR, SINGLE)
        self._held_out = (val_fraction, split_seed) if by_seed else None
        self.image_size = image_size
        self.batch_size = batch_size or DEFAULT_BATCH
        self._loaders: dict[Part, ImageLoader] = {}
        self.num_workers = num_workers
        self.on_corrupt = on_corrupt
        self.unknown = unknown
        self.cache_folder = expanded(cache_folder) if cache else None
        own_images = self.source_name in OWN_IMAGES
        if duplicates is None and own_images:
            duplicates = "leave_out"
        self.duplicates = duplicates
        self.kind = stream or Disjoint()
        self.evaluated = self.kind.evaluated(self.source)
        is_disjoint = isinstance(self.kind, Disjoint)
        self.learns_held_out = self.source.held_out and own_images and is_disjoint
        self._release()
        self.n_tasks = len(self.plan.tasks)

    # ------------------------------------------------------------------ tasks

    @cached_property
    def plan(self) -> Plan:
        """The tasks of the run; those that the learner has learned come first, as they were."""
        learned = []
        if self._loaders:
            learned = self.learner.learned_tasks
        return make_plan(
            self.source,
            self.kind,
            self.given["class_order"],
            self.given["classes_per_task"],
            self.given["initial_classes"],
            self.given["max_tasks"],
            tuple(map(tuple, learned)),
        )

    def task(self, number: int) -> TaskSamples:
        """Return the training samples of a task; none after the last, of which Lightning asks, too.

        Args:
            number: of the task, from 0.
        """
        plan = self.plan
        if number >= len(plan.tasks):
            return TaskSamples([], np.zeros(0, dtype=np.int64), {})
        train = self.source.train
        rows = plan.rows[number]
        rows = rows[~self.left_out[rows]]
        if train.sequential:
            rows = np.sort(rows)
        new = list(plan.tasks[number])
        names = self.source.class_names
        images = np.bincount(train.labels[rows], minlength=len(names))
        returning = [names[label] for label in np.flatnonzero(images)]
        position = self.source.position
        counts = {name: int(images[position[name]]) for name in (*new, *returning)}
        return TaskSamples(new, rows, counts)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks, for use without a Trainer.

        Raises:
            UsageError: images, and no ``image_size``.
        """
        source = self.source
        if self.image_size is None and source.train.are_images:
            raise UsageError(
                "the size of the images depends on the backbone: without a Trainer set image_size="
            )
        plan = self.plan
        self.find_duplicates()
        size = self.image_size or 0
        train = ImageLoader(source.train, size, 1.0, self.num_workers)
        test = ImageLoader(source.test, size, 1.0, self.num_workers)
        skip = self.on_corrupt == "skip"
        options = (self.labels(plan.classes), self.batch_size, skip)
        before = 0
        for number in range(len(plan.tasks)):
            samples = self.task(number)
            returning = list(samples.counts)[len(samples.new) :]
            seen = plan.classes[: before + len(samples.new)]
            tested = np.concatenate(self.test_rows(seen, number + 1))
            yield Task(
                number,
                samples.new,
                returning,
                before,
                Batches(train, samples.rows, *options),
                Batches(test, tested, *options),
            )
            before = len(seen)

    def feed(self, learner: Learner) -> None:
        """Prepare data for a learner from now on."""
        self._release()
        self.learner = learner
        weights = learner.backbone.preprocessing
        self.image_shape = (weights.image_size, weights.crop_ratio)
        if self.image_size is not None:
            self.image_shape = (self.image_size, 1.0)
        device = self.trainer.strategy.root_device.type
        if self.given["batch_size"] is None:
            self.batch_size = DEFAULT_BATCH
            if learner.any_batch_size:
                # A GPU needs more images in a batch than a CPU.
                self.batch_size = usual_batch_size(device, self.image_shape[0])
        processes = self.trainer.num_devices
        options = (*self.image_shape, self.num_workers, device, processes)
        self._loaders = {
            "train": ImageLoader(self.source.train, *options),
            "test": ImageLoader(self.source.test, *options),
        }

    def first_images(self, at_most: int) -> Tensor:
        """Decode images of the first task, without their labels.

        Args:
            at_most: number of images, evenly spread over those of the task.

        Returns:
            (n, 3, s, s) uint8; unreadable ones are left out.
        """
        rows = self.task(0).rows
        places = np.linspace(0, len(rows) - 1, min(len(rows), at_most)).round()
        chunks = cut_batches(rows[places.astype(np.int64)], self.batch_size)
        batches = self._loaders["train"].decode(chunks)
        return torch.cat([batch.image for batch in batches])

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
        test = self.source.test
        tested = ~self.untested
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
            rows = test.rows_of.get(self.source.position[name], none)
            test_rows.append(rows[tested[rows]])
        return test_rows

    def find_duplicates(self) -> None:
        """Find samples with the same content; call this in all processes before the first task.

        If duplicates are left out, they leave the plan, and the embedding cache needs none of them.

        Raises:
            DataError: all images of a class are in another one, or those of a task repeat others.
        """
        if self.duplicates is None:
            return
        caches = {}
        if self._loaders:
            caches = self._caches
        # A cache knows the hashes of the images that it stores.
        for cache in caches.values():
            cache.known(np.arange(len(cache.samples)))
        found = find_duplicates(self.source, self.plan.rows)
        self.found_duplicates = found
        if self.duplicates == "keep":
            return
        masks = found.left_out(self.source)
        self.left_out = masks["train"]
        self.untested = masks["test"]
        for part, cache in caches.items():
            cache.left_out = masks[part]
        for number in range(len(self.plan.tasks)):
            counts = self.task(number).counts
            if not counts or 0 in counts.values():
                raise DataError(
                    f"all images of task {number + 1}, or of a new class in it, are duplicates that"
                    " are left out: keep them by --data.duplicates keep, or choose other tasks"
                )

    # ------------------------------------------------------------------ stores of embeddings

    @cached_property
    def _caches(self) -> dict[Part, EmbeddingCache]:
        """The embeddings of images: on disk where that is wanted, else of test images in memory.

        Raises:
            UsageError: no LightningModule is being fed.
        """
        if not self._loaders:
            raise UsageError(
                "the data module has no Trainer: pass it as datamodule=, or go through its tasks:"
                " for task in data"
            )
        names = self.source.class_names
        if self.cache_folder is None or not self.source.train.are_images:
            return {"test": EmbeddingCache(self.source.test, names, None)}
        folder = pipeline_folder(
            self.cache_folder,
            self.learner.backbone,
            *self.image_shape,
            str(self.trainer.precision),
            self.trainer.strategy.root_device.type,
        )
        return {
            "train": EmbeddingCache(self.source.train, names, folder / "train"),
            "test": EmbeddingCache(self.source.test, names, folder / "val"),
        }

    def remember(self, batch: ImageBatch, z: Tensor) -> None:
        """Store the embeddings of a batch of the current set, as far as the options allow.

        Args:
            batch: the images.
            z: (n, d) their embeddings.
        """
        part: Part = "train" if self.trainer.training else "test"
        cache = self._caches.get(part)
        if cache is not None:
            cache.collect(batch.row, batch.key, z)
            if batch.unreadable:
                cache.leave_out(np.array(list(batch.unreadable)))

    def share_collected(self) -> None:
        """Write the classes of which every process has embedded a part; call on all processes."""
        if self.trainer.world_size == 1 or self.cache_folder is None:
            return
        for cache in self._caches.values():
            left_out = of_all_processes(np.flatnonzero(cache.left_out))
            cache.leave_out(np.concatenate(left_out))
            parts = of_all_processes(cache.take_incomplete())
            if self.trainer.is_global_zero:
                for part in chain.from_iterable(parts):
                    cache.collect(*part)

    # ------------------------------------------------------------------ loaders

    def train_dataloader(self) -> StoredLoader:
        """Return this process's exact share of the current task.

        Stored embeddings come in like batches.
        """
        store: Store | None = self._caches.get("train")
        trainer = self.trainer
        size = self.batch_size
        if not self.source.train.are_images:
            store = self.source.train
            # Embeddings take little memory, and a Gram matrix is faster over many of them.
            size = max(size, EMBEDDED_BATCH)
        number = trainer.current_epoch
        plan = []
        for order in self.learner.passes(self.task(number).rows, number):
            for rows in cut_batches(
                order, size, trainer.global_rank, trainer.world_size
            ):
                stored = store is not None and len(rows) and store.known(rows).all()
                plan.append(PlannedBatch(rows, store if stored else None))
        return StoredLoader(plan, self._loaders["train"], learned=True)

    def val_dataloader(self) -> StoredLoader:
        """Return the test samples of all classes learned.

        Those that were embedded before come from memory or the cache.
        """
        trainer = self.trainer
        if trainer.state.fn in ("validate", "test"):
            # As in the run: the same samples are left out.
            self.find_duplicates()
        store: Store = self._caches["test"]
        tasks = self.learner.learned_tasks
        # Dealt out class by class, so that an image stays with one process over all tasks.
        by_class = self.test_rows(chain.from_iterable(tasks), len(tasks))
        shares = [rows[trainer.global_rank :: trainer.world_size] for rows in by_class]
        tested = np.concatenate([np.zeros(0, dtype=np.int64), *shares])
        if not self.source.test.are_images:
            store = self.source.test
        known = store.known(tested)
        embedded = cut_batches(tested[known], EMBEDDED_BATCH)
        plan = [PlannedBatch(rows, store) for rows in embedded]
        others = cut_batches(tested[~known], self.batch_size)
        plan += [PlannedBatch(rows, None) for rows in others]
        if not plan:
            # Lightning skips a loop without any batch, and its hooks with it.
            plan = [PlannedBatch(tested, None)]
        return StoredLoader(plan, self._loaders["test"], learned=False)

    # A class-incremental run has one held-out set.
    test_dataloader = predict_dataloader = val_dataloader

    def describe_images(self) -> dict[str, Any]:
        """Describe the images for a stored model: side, crop ratio, and the held-out split."""
        size, crop_ratio = self.image_shape
        return {
            "image_size": size,
            "crop_ratio": crop_ratio,
            "held_out": self._held_out,
        }

    # ------------------------------------------------------------------ batches

    def transfer_batch_to_device(
        self,
        batch: Batch,
        device: torch.device,
        dataloader_idx: int,
    ) -> Batch:
        """Give a batch the learner's labels, -1 for new classes, and copy it to a device.

        The copy does not wait for what a CUDA device is doing; that is not safe for others. Labels
        are brought to the statistics: to the CPU where the device has no float64. Content hashes
        and positions stay on the CPU: they are needed there alone.

        Raises:
            DataError: an image is unreadable, and ``on_corrupt`` is "error"; names all unreadable
                ones, with several processes those of the batch.
        """
        if batch.unreadable:
            if self.on_corrupt == "error":
                places = list(batch.unreadable.values())
                # Other processes would wait while one decodes all images.
                if self.trainer.world_size == 1:
                    for loader in self._loaders.values():
                        places += loader.unreadable()
                raise unreadable_images(places)
            self.skipped += batch.unreadable.values()
        labels = self.labels(chain.from_iterable(self.learner.learned_tasks))
        non_blocking = device.type == "cuda"
        samples = batch[0].to(device, non_blocking=non_blocking)
        place = float64_device(device)
        label = labels[batch.label].to(place, non_blocking=non_blocking)
        return type(batch)(samples, label, *batch[2:])

    def labels(self, learned: Iterable[str]) -> Tensor:
        """Return the learner's label of each class of the source; -1 for those not learned."""
        label_of = {name: label for label, name in enumerate(learned)}
        return torch.tensor(
            [label_of.get(name, -1) for name in self.source.class_names]
        )

    def teardown(self, stage: str) -> None:
        """Report skipped images, and drop everything of this learner."""
        skipped_rows = of_all_processes(self.skipped)
        skipped = list(dict.fromkeys(chain.from_iterable(skipped_rows)))
        if skipped:
            rank_zero_info(
                f"{number_of(len(skipped), 'unreadable image')} left out:"
                f" {listed(skipped, UNREADABLE_SHOWN)}"
            )
        self._release()

    def on_exception(self, exception: BaseException) -> None:
        """Tear down after an error: Lightning does not call ``teardown`` when a run fails."""
        self._release()

    def _release(self) -> None:
        """Drop everything of the last learner."""
        self.skipped = []
        self.left_out = np.zeros(len(self.source.train), dtype=bool)
        self.untested = np.zeros(len(self.source.test), dtype=bool)
        self.found_duplicates = SourceDuplicates()
        # The Trainer still refers to the loaders.
        for loader in self._loaders.values():
            loader.reader.close()
            if loader.samples.in_files:
                # Files may be replaced before the next learner comes.
                loader.samples.hash_of[:] = -1
        self._loaders = {}
        for name in ("learner", "plan", "_caches"):
            self.__dict__.pop(name, None)


def usual_batch_size(device: str, side: int) -> int:
    """Return the number of images in a batch for a frozen backbone, unless told otherwise.

    Args:
        device: type of the device that embeds them.
        side: of the images, in pixels.
    """
    if device == "cpu":
        return DEFAULT_BATCH
    return decoding_batch_size(side)


def check_options(given: Mapping[str, Any]) -> None:
    """Check the options that every source has, by their names.

    Raises:
        UsageError: one has a value that it cannot have.
    """
    check_choice("on_corrupt", given["on_corrupt"], OnCorrupt)
    for name, least in SMALLEST.items():
        value = given[name]
        is_enough = value is None or value >= least
        check_that(is_enough, name, value, f"at least {least}")
    side = given["image_size"]
    is_side = side is None or 1 <= side <= IMAGE_SIZE_LIMIT
    check_that(is_side, "image_size", side, f"1 to {IMAGE_SIZE_LIMIT}")
    for name in ("val_fraction", "tune"):
        share = given[name]
        is_share = share is None or 0 < share < 1
        check_that(is_share, name, share, "a number between 0 and 1")
    if given["tune"] is not None and given["group"] is not None:
        raise UsageError(
            "--data.tune splits image by image, --data.group by groups: leave one of them out"
        )
