"""Make batches from positions in a sample set: exact sharding, decoding."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.embedding_cache import EmbeddingCache
from cifnet_pl.data.samples import SampleTable
from cifnet_pl.images.image import Look, UnreadableImage
from cifnet_pl.images.reader import (
    BatchReader,
    ReadImage,
    decoding_batch_size,
    decoding_cores,
)
from cifnet_pl.utilities.errors import DataError


class ImageBatch(NamedTuple):
    """Decoded images.

    ``unreadable`` has "place: reason" of each row that could not be decoded and is left out.
    """

    image: Tensor  # (n, 3, s, s) uint8, channels last in memory
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64, content hash
    row: Tensor  # (n,) int64, position in the image set
    unreadable: Mapping[int, str]


class EmbeddingBatch(NamedTuple):
    """Images that were embedded before."""

    embedding: Tensor  # (n, d) float32
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64, content hash; of samples that are not learned 0
    row: Tensor  # (n,) int64
    unreadable: Mapping[int, str] = {}


Batch = ImageBatch | EmbeddingBatch

EMBEDDED_BATCH = 4096
"""Samples in a batch of stored embeddings.

They take little memory, and a Gram matrix over many of them is faster.
"""


def cut_batches(
    rows: np.ndarray,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
) -> list[np.ndarray]:
    """Cut rows into batches, and return those of one process.

    Every row is in exactly one batch of one process, and every process has the same number of
    batches. No row is padded or dropped; with fewer rows than processes some batches are empty.

    Args:
        rows: (n,) positions.
        batch_size: most rows of a batch.
        rank: number of this process.
        world: number of processes.

    Returns:
        The batches of this process.

    Example:
        >>> [[b.tolist() for b in cut_batches(np.arange(5), 2, rank, 2)] for rank in (0, 1)]
        [[[0, 1], [4]], [[2, 3], []]]
    """
    size = batch_size * world
    chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [np.array_split(chunk, world)[rank] for chunk in chunks]


class ImageLoader:
    """Decode batches of images, by threads or processes.

    Args:
        samples: the set.
        size: side of the squares in pixels; any for embeddings.
        crop_ratio: share of the short side that is kept.
        workers: their number; None to share out the cores.
        device: type of the device that embeds the images.
        processes: number of processes on this machine that decode.

    Attributes:
        reader: reads the images; closed, it starts its processes again when they are needed.
    """

    def __init__(
        self,
        samples: SampleTable,
        size: int,
        crop_ratio: float,
        workers: int | None,
        device: str = "cpu",
        processes: int = 1,
    ):
        self.samples = samples
        self.size = size
        self.crop_ratio = crop_ratio
        self.device = device
        if workers is None:
            workers = decoding_cores(processes)

        def read(row: int) -> ReadImage:
            try:
                image = samples.image(row)
                return ReadImage(image.square(size, crop_ratio), Look(image.hash))
            except UnreadableImage as error:
                return ReadImage(None, reason=str(error))

        self.reader = BatchReader(read, size, workers, device)

    def decode(self, batches: Sequence[np.ndarray]) -> Iterator[ImageBatch]:
        """Yield decoded batches.

        Args:
            batches: positions of the images of each batch.
        """
        rows_of_batches = [batch.tolist() for batch in batches]
        for batch in self.reader.read(rows_of_batches):
            readable = batch.readable
            hashes = [look.hash for look in batch.looks if look is not None]
            unreadable = {
                row: f"{self.samples.place(row)}: {reason}"
                for row, reason in zip(batch.files, batch.unreadable, strict=True)
                if reason is not None
            }
            rows = torch.tensor(readable, dtype=torch.int64)
            labels = torch.from_numpy(self.samples.labels[readable])
            keys = torch.tensor(hashes, dtype=torch.int64)
            yield ImageBatch(batch.images, labels, keys, rows, unreadable)

    def unreadable(self) -> list[str]:
        """Decode all images of the set; return "place: reason" of each that is unreadable."""
        every_row = np.arange(len(self.samples))
        batches = self.decode(cut_batches(every_row, decoding_batch_size(self.size)))
        places = [batch.unreadable.values() for batch in batches]
        return list(chain.from_iterable(places))


Store = EmbeddingCache | SampleTable
"""A place from which embeddings are read without the backbone."""


class PlannedBatch(NamedTuple):
    """Rows (n,) of a batch, and the store that has their embeddings; None to decode images."""

    rows: np.ndarray
    store: Store | None


@dataclass(eq=False)
class StoredLoader:
    """Batches in a given order, each from a store of embeddings or from decoded images.

    Iteration starts lazily, at the first ``next``: Lightning creates the training iterator twice
    per task, and an eager one would decode its first images for nothing.

    Args:
        plan: the batches.
        loader: decodes the batches that no store has.
        learned: whether the samples are learned, so that their identity is needed.

    Attributes:
        waiting_seconds: how long the consumer has waited for decoded images, without waits that
            ended while the device was still embedding the batches before.
    """

    plan: Sequence[PlannedBatch]
    loader: ImageLoader
    learned: bool
    waiting_seconds: float = field(default=0.0, init=False)

    def __len__(self) -> int:
        return len(self.plan)

    def __iter__(self) -> Iterator[Batch]:
        samples = self.loader.samples
        to_decode = [rows for rows, store in self.plan if store is None]
        images = self.loader.decode(to_decode)
        for rows, store in self.plan:
            if store is not None:
                keys = np.zeros_like(rows)
                if self.learned:
                    keys = samples.hashes(rows)
                yield EmbeddingBatch(
                    store.get(rows),
                    torch.from_numpy(samples.labels[rows]),
                    torch.from_numpy(keys),
                    torch.from_numpy(rows),
                )
                continue
            start = time.perf_counter()
            batch = next(images)
            # A GPU is told to embed a batch, and the program asks for the next one meanwhile. Where
            # the GPU is not done when that comes, it is not the images that it waits for.
            if self.loader.device != "cuda" or torch.cuda.current_stream().query():
                self.waiting_seconds += time.perf_counter() - start
            yield batch


# ---------------------------------------------------------------------- unreadable images

UNREADABLE_SHOWN = 50
"""Unreadable images that one message names."""


def unreadable_images(places: Iterable[str]) -> DataError:
    """Return the error for unreadable images, each "place: reason"."""
    distinct = list(dict.fromkeys(places))
    named = "; ".join(distinct[:UNREADABLE_SHOWN])
    if len(distinct) > UNREADABLE_SHOWN:
        named += "; and more"
    return DataError(
        f"cannot read image {named}; repair or remove it, or use --data.on_corrupt skip"
    )


# ---------------------------------------------------------------------- without a Trainer


@dataclass(frozen=True)
class Batches:
    """Some samples of a set in batches, read anew at each iteration.

    Args:
        loader: of the set; it decodes images, if the samples are such.
        rows: (n,) positions of the samples.
        labels: (classes,) label of each class position.
        size: most samples of a batch.
        skip: whether unreadable images are left out.
    """

    loader: ImageLoader
    rows: np.ndarray
    labels: Tensor
    size: int
    skip: bool

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, s, s) uint8 or embeddings (n, d) float32, and labels (n,) int64.

        Raises:
            DataError: an image is unreadable, and is not to be left out; names it.
        """
        for batch in self.with_keys():
            yield batch[0], batch.label

    def with_keys(self) -> Iterator[Batch]:
        """Yield the same batches, with the content hashes and positions of their samples."""
        samples = self.loader.samples
        store = None if samples.are_images else samples
        plan = [PlannedBatch(rows, store) for rows in cut_batches(self.rows, self.size)]
        for batch in StoredLoader(plan, self.loader, learned=True):
            if batch.unreadable and not self.skip:
                raise unreadable_images(batch.unreadable.values())
            if len(batch.row):
                yield batch._replace(label=self.labels[batch.label])


@dataclass(frozen=True)
class Task:
    """One task of a stream.

    Attributes:
        number: number of the task, from 0.
        class_names: names of the classes that it introduces.
        returning: names of earlier classes of which it has more samples.
        classes_before: number of classes that earlier tasks introduced.
        train: training samples of the task.
        test: the test samples of all classes introduced so far.
    """

    number: int
    class_names: list[str]
    returning: list[str]
    classes_before: int
    train: Batches
    test: Batches

    @property
    def labels(self) -> list[int]:
        """Labels of the new classes, in the order in which classes are introduced."""
        end = self.classes_before + len(self.class_names)
        return list(range(self.classes_before, end))
