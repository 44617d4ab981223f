"""Make batches on the device from positions in an image set: exact sharding, decoding, embeddings kept in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import starmap
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.image_sets import ImageSet, SampleSet
from cifnet_pl.data.images import UnreadableImage
from cifnet_pl.data.workers import Decoded, WorkerPool


class ImageBatch(NamedTuple):
    """Decoded images. ``unreadable`` lists "place: reason" of those that could not be decoded and are left out."""

    image: Tensor  # (n, 3, s, s) uint8, channels last in memory
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64, hash of class name and image name
    row: Tensor  # (n,) int64, position in the image set
    unreadable: tuple[str, ...]


class EmbeddingBatch(NamedTuple):
    """Images that were embedded before."""

    embedding: Tensor  # (n, d) float32
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64
    row: Tensor  # (n,) int64


Batch = ImageBatch | EmbeddingBatch

EMBEDDED_BATCH = 4096
"""Samples in a batch of embeddings that are stored already: they take little memory, and sums over many are faster."""

SCORES = 2**19
"""Scores of an evaluation batch of such samples, at most: with many classes they take more memory than embeddings."""


def sample_key(class_name: str, name: str) -> int:
    """Return a 63-bit hash of a sample's class and name: its identity in the calibration buffer, on any machine.

    Args:
        class_name: name of the sample's class.
        name: of the sample within its class.
    """
    digest = hashlib.blake2b(f"{class_name}\0{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shard_batches(rows: np.ndarray, batch_size: int, rank: int, world: int) -> list[np.ndarray]:
    """Divide rows into batches over processes: every row exactly once, and the same number of batches on each process.

    No row is padded or dropped; with fewer rows than processes some batches are empty.

    Args:
        rows: (n,) positions.
        batch_size: rows of a batch, at most.
        rank: number of this process.
        world: number of processes.

    Returns:
        The batches of this process.

    Example:
        >>> [[b.tolist() for b in shard_batches(np.arange(5), 2, rank, 2)] for rank in (0, 1)]
        [[[0, 1], [4]], [[2, 3], []]]
    """
    step = batch_size * world
    chunks = [rows[i : i + step] for i in range(0, len(rows), step)]
    return [np.array_split(chunk, world)[rank] for chunk in chunks]


def pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut rows (n,) into pieces of ``size``; the last one may be smaller, and without rows there is none."""
    return [rows[i : i + size] for i in range(0, len(rows), size)]


class SquareDataset:
    """Decodes images of a set to uint8 squares, a batch at a time."""

    def __init__(self, images: ImageSet, class_names: Sequence[str], size: int, crop_ratio: float):
        self.images, self.class_names = images, class_names
        self.size, self.crop_ratio = size, crop_ratio

    def decode(self, rows: Sequence[int], squares: np.ndarray) -> Decoded:
        """Decode a batch of images.

        Args:
            rows: positions of the images.
            squares: (len(rows) or more, s, s, 3) uint8, into which they are written.

        Returns:
            Label, key and row of each image that could be read, and why others could not.
        """
        numbers: list[tuple[int, int, int]] = []
        unreadable: list[str] = []
        for row in rows:
            try:
                squares[len(numbers)] = self.images.square(row, self.size, self.crop_ratio)
            except UnreadableImage as error:
                unreadable.append(f"{self.images.place(row)}: {error}")
            else:
                label, name = int(self.images.labels[row]), self.images.names[row]
                numbers.append((label, sample_key(self.class_names[label], name), row))
        return Decoded(np.array(numbers, dtype=np.int64).reshape(-1, 3), tuple(unreadable))


class ImageLoader:
    """Batches of decoded images; one set of worker processes for all tasks.

    Iteration starts lazily, at the first ``next``: Lightning creates the training iterator twice per task, and
    an eager one would decode its first images for nothing.

    Args:
        dataset: decodes the images.
        workers: number of processes; 0 to decode in this one.
        batch_size: images in the largest batch.
        device: type of the device that embeds the images.
    """

    def __init__(self, dataset: SquareDataset, workers: int, batch_size: int, device: str = "cpu"):
        self._dataset, self._workers, self._batch_size = dataset, workers, batch_size
        self._device = device
        self._batches: list[list[int]] = []
        self._pool: WorkerPool | None = None

    def set_batches(self, batches: Sequence[np.ndarray]) -> ImageLoader:
        """Choose the batches of the next iteration.

        Args:
            batches: positions of the images of each batch.
        """
        self._batches = [batch.tolist() for batch in batches]
        return self

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[ImageBatch]:
        yield from self.begin()

    def begin(self) -> Iterator[ImageBatch]:
        """Return an iterator over the batches; the workers start to decode the first ones now."""
        if self._workers and self._batches:
            self.start()
            assert self._pool is not None
            return starmap(self._batch, self._pool.decode(self._batches))
        return map(self._decode_here, self._batches)

    def _decode_here(self, rows: list[int]) -> ImageBatch:
        squares = torch.empty(self._shape(len(rows)), dtype=torch.uint8)
        return self._batch(squares, self._dataset.decode(rows, squares.numpy()))

    def _shape(self, images: int) -> tuple[int, int, int, int]:
        return (images, self._dataset.size, self._dataset.size, 3)

    def _batch(self, squares: Tensor, decoded: Decoded) -> ImageBatch:
        image = torch.empty(self._shape(len(decoded.numbers)), dtype=torch.uint8, pin_memory=self._device == "cuda")
        # By NumPy, in this thread alone: torch's threads would wait for a core that a worker has just woken up on.
        np.copyto(image.numpy(), squares[: len(image)].numpy())
        label, key, row = torch.from_numpy(decoded.numbers).unbind(1)
        return ImageBatch(image.permute(0, 3, 1, 2), label, key, row, decoded.unreadable)

    def start(self) -> None:
        """Start the worker processes, unless they run: best before a network's first pass.

        A forked process copies each page of memory that it or its parent writes to. After one pass of a network on the
        CPU that is a gigabyte or more.
        """
        if self._workers and self._pool is None:
            alternate = self._device == "cpu" and torch.get_num_threads() > 1
            self._pool = WorkerPool(self._dataset.decode, self._workers, self._shape(self._batch_size), alternate)

    def close(self) -> None:
        """Stop the worker processes; others start if the loader is used again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class EvaluationMemory:
    """Embeddings of evaluation images, each computed once per run, up to a stated number of bytes.

    Args:
        images: number of images in the set.
        limit_mb: memory bound in megabytes (10⁶ bytes); images past it are embedded anew at every task.
    """

    def __init__(self, images: int, limit_mb: float):
        self._slot = np.full(images, -1, dtype=np.int64)
        self._limit = int(limit_mb * 1e6)
        self._store: Tensor | None = None
        self._used = 0

    def known(self, rows: np.ndarray) -> np.ndarray:
        """Return (n,) bool: which rows are in memory."""
        return np.asarray(self._slot[rows] >= 0)

    def add(self, rows: Tensor, z: Tensor) -> None:
        """Keep embeddings (n, d) of images ``rows`` (n,) as far as the bound allows."""
        if self._store is None:
            capacity = min(len(self._slot), self._limit // (4 * z.shape[1]))
            with torch.inference_mode(False):
                self._store = torch.empty(capacity, z.shape[1])
        positions = rows.cpu().numpy()
        fresh = np.flatnonzero(self._slot[positions] < 0)[: len(self._store) - self._used]
        slots = np.arange(self._used, self._used + len(fresh))
        self._store[slots] = z[torch.from_numpy(fresh).to(z.device)].float().cpu()
        self._slot[positions[fresh]] = slots
        self._used += len(fresh)

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of rows that are known."""
        assert self._store is not None
        return self._store[self._slot[rows]]


class Store(Protocol):
    """A place from which embeddings of images are read without the backbone."""

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of images ``rows``."""


class StoredLoader:
    """Batches in a given order, each from a store of embeddings or from decoded images.

    Args:
        images: the set that the rows are of.
        class_names: name of each label of the set.
        plan: rows of each batch, and the store that has them, or None to decode them.
        loader: decodes the batches that no store has; None if there are no such batches.
    """

    def __init__(
        self,
        images: SampleSet,
        class_names: Sequence[str],
        plan: Sequence[tuple[np.ndarray, Store | None]],
        loader: ImageLoader | None,
    ):
        self._images, self._class_names, self._plan, self._loader = images, class_names, plan, loader
        self._begun: Iterator[ImageBatch] | None = None

    def __len__(self) -> int:
        return len(self._plan)

    def begin(self) -> None:
        """Let the workers decode the first images of the next iteration now."""
        missing = [rows for rows, store in self._plan if store is None]
        self._begun = self._loader.set_batches(missing).begin() if self._loader is not None else iter(())

    def __iter__(self) -> Iterator[Batch]:
        if self._begun is None:
            self.begin()
        decoded, self._begun = cast(Iterator[ImageBatch], self._begun), None
        for rows, store in self._plan:
            yield next(decoded) if store is None else self._stored(rows, store)

    def _stored(self, rows: np.ndarray, store: Store) -> EmbeddingBatch:
        labels = self._images.labels[rows]
        keys = [sample_key(self._class_names[c], self._images.names[i]) for c, i in zip(labels, rows, strict=True)]
        return EmbeddingBatch(
            store.get(rows), torch.from_numpy(labels), torch.tensor(keys, dtype=torch.int64), torch.from_numpy(rows)
        )
