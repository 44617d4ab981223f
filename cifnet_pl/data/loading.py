"""Make batches on the device from positions in an image set: exact sharding, decoding, embeddings kept in memory."""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice, starmap
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from cifnet_pl.data.sets import ImageSet, SampleSet
from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.utilities.errors import CifnetError

AHEAD = 2
"""Batches that each worker decodes ahead of the reader, or at a time where the two alternate."""

MOST = 16
"""Cores that decoding takes unless told otherwise."""


def cores(processes: int = 1) -> int:
    """Return the number of cores for decoding.

    Args:
        processes: number of processes on this machine that decode; each gets an equal share.

    Returns:
        At least 1, at most ``MOST``.
    """
    # Not every system can say which cores a process may use.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(usable // processes, MOST))


class Decoded(NamedTuple):
    """The result of decoding a batch, apart from the pixels."""

    numbers: np.ndarray  # (n, 3) int64: label, key and row of each image that could be read
    unreadable: tuple[str, ...]  # "place: reason" of each of the others


Decode = Callable[[Sequence[int], np.ndarray], Decoded]
"""Positions of a batch's images, and memory (len or more, s, s, 3) uint8 that their squares are written to."""


class WorkerPool:
    """Processes that decode batches ahead, for all tasks of a run; they start when they are made.

    torch's DataLoader hands the batches out. Left to move the pixels too it would set up, map and fault in shared
    memory anew for every batch, which takes a third of the time that small JPEGs are decoded in; here each worker
    has a few slots that it fills in turn.

    Args:
        decode: what a worker does with a batch; can be pickled, so that spawned workers can receive it.
        workers: number of processes.
        shape: (images, s, s, 3) of the largest batch.
        alternate: decode only while the reader waits: for a network of several threads on the cores that decode.
            torch's wait for each other at every layer, and a worker on the core of one would stop them all.
    """

    def __init__(self, decode: Decode, workers: int, shape: tuple[int, int, int, int], alternate: bool = False):
        self._alternate, self._at_a_time = alternate, AHEAD * workers
        # A worker is asked for its next batch when its oldest one is about to be yielded, so that this one and
        # AHEAD others are in memory.
        self._slots = _shared(workers, AHEAD + 1, *shape)
        self._batches: list[list[int]] = []  # the loader's own sampler: replaced within, while the workers live on
        self._loader: DataLoader[Any] = DataLoader(
            _Filler(decode, self._slots),
            batch_size=None,
            sampler=self._batches,
            num_workers=workers,
            collate_fn=_as_it_is,
            prefetch_factor=AHEAD,
            persistent_workers=True,
            worker_init_fn=_outlive_the_signal,
        )
        self._stop = weakref.finalize(self, _stop, iter(self._loader), os.getpid())  # for who forgets to close it
        self._stop.atexit = False
        atexit.register(self._stop)  # before torch, at exit, waits five seconds for each worker

    def decode(self, batches: list[list[int]]) -> Iterator[tuple[Tensor, Decoded]]:
        """Yield the batches in order, decoded by the workers, which begin at once.

        What is left of batches given before is dropped.

        Args:
            batches: positions of the images of each batch.

        Yields:
            The pixels, (n or more, s, s, 3) uint8, which are overwritten when the next batch is taken; and the rest.
        """
        size = self._at_a_time if self._alternate else max(1, len(batches))
        parts = [batches[start : start + size] for start in range(0, len(batches), size)]
        first = [self._begin(batch) for batch in parts[:1]]
        later = (self._begin(batch) for batch in parts[1:])  # each when the one before has been read
        begun: Iterable[Iterable[_Filled]] = chain(first, later)
        filled = chain.from_iterable(map(list, begun) if self._alternate else begun)
        return ((self._slots[worker, turn], decoded) for worker, turn, decoded in filled)

    def _begin(self, batches: list[list[int]]) -> Iterator[_Filled]:
        self._batches[:] = batches
        return iter(self._loader)

    def close(self) -> None:
        """Stop the processes.

        Left to the garbage collector they would outlive the run, as Lightning keeps its loaders.
        """
        atexit.unregister(self._stop)
        self._loader._iterator = None
        self._stop()


def _stop(workers: Any, process: int) -> None:
    """Stop the workers of torch's iterator, which its own finaliser cannot do once their queues are collected.

    Args:
        workers: the iterator.
        process: the number of the process that started them; nothing is done in a copy of it.
    """
    if os.getpid() == process:
        workers._shutdown_workers()


_Filled = tuple[int, int, Decoded]
"""Worker, its slot, and what is in there."""


class _Filler(Dataset[_Filled]):
    """In a worker: decode each batch into the worker's next slot, and return the number of that slot."""

    def __init__(self, decode: Decode, slots: Tensor):
        self._decode, self._slots = decode, slots
        self._turn = -1

    def __getitem__(self, rows: Sequence[int]) -> _Filled:
        info = get_worker_info()
        assert info is not None
        self._turn = (self._turn + 1) % self._slots.shape[1]
        return info.id, self._turn, self._decode(rows, self._slots[info.id, self._turn].numpy())


def _shared(*shape: int) -> Tensor:
    """Return uint8 zeros in memory that processes share; CifnetError if there is not enough of it."""
    size = math.prod(shape)
    try:
        storage = cast(Any, torch.UntypedStorage)._new_shared(size)  # as torch's own collation does
    except RuntimeError as error:
        raise CifnetError(
            f"cannot share {size / 1e6:,.0f} MB of decoded photos between processes: use fewer --data.num_workers, "
            "a smaller --data.batch_size, or more shared memory (docker run --shm-size 1g)"
        ) from error
    return torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)


def _outlive_the_signal(worker: int) -> None:
    """Ignore an interrupt that is sent to the whole group of processes: the reader closes the workers when it stops.

    A worker that died first would look like a fault. Workers end by themselves when their parent is gone.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _as_it_is(batch: Any) -> Any:
    return batch


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


NAMED = 50
"""Unreadable images that one error names."""

CHECKED_AT_ONCE = 256
"""Images that are handed to the threads which look for unreadable ones, before the next are."""


def name_unreadable(known: Sequence[str], sets: Sequence[SampleSet], size: int, crop_ratio: float) -> str:
    """Return a sentence that names the unreadable images of some sets.

    Args:
        known: "place: reason" of those that were found already; they come first.
        sets: all are looked through.
        size, crop_ratio: how the images are decoded.
    """
    others = chain.from_iterable(unreadable_images(s, size, crop_ratio) for s in sets if isinstance(s, ImageSet))
    names = list(islice(dict.fromkeys(chain(known, others)), NAMED + 1))
    shown = "; ".join(names[:NAMED]) + ("; and more" if len(names) > NAMED else "")
    if len(names) == 1:
        return f"cannot read image {shown}: repair or remove it, or use --data.on_corrupt skip"
    return f"cannot read these images: {shown}: repair or remove them, or use --data.on_corrupt skip"


def unreadable_images(images: ImageSet, size: int, crop_ratio: float) -> Iterator[str]:
    """Decode all images of a set in threads, and yield "place: reason" of each that cannot be decoded.

    Args:
        images: the set.
        size, crop_ratio: how the images are decoded.
    """

    def failure(row: int) -> str | None:
        try:
            images.square(row, size, crop_ratio)
        except UnreadableImage as error:
            return f"{images.place(row)}: {error}"
        return None

    with ThreadPoolExecutor(cores(), "check") as pool:
        for start in range(0, len(images), CHECKED_AT_ONCE):
            rows = range(start, min(start + CHECKED_AT_ONCE, len(images)))
            yield from (image for image in pool.map(failure, rows) if image is not None)
