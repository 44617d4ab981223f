"""Make batches on the device from positions in an image set: exact sharding, decoding in worker processes."""

from __future__ import annotations

import atexit
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, starmap
from multiprocessing.connection import Connection
from traceback import format_exc
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor, multiprocessing

from cifnet_pl.data.sets import ImageSet, SampleSet
from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.photos.reading import cores
from cifnet_pl.utilities.errors import CifnetError

AHEAD = 2
"""Batches that each worker decodes ahead of the reader, or at a time where the two alternate."""


class Decoded(NamedTuple):
    """The result of decoding a batch, apart from the pixels."""

    numbers: np.ndarray  # (n, 3) int64: label, key and row of each image that could be read
    unreadable: tuple[str, ...]  # "place: reason" of each of the others


class Failed(NamedTuple):
    """What a worker sends instead of a batch; the traceback is text, as it cannot be sent itself."""

    error: Exception
    traceback: str


Decode = Callable[[Sequence[int], np.ndarray], Decoded]
"""Positions of a batch's images, and memory (len or more, s, s, 3) uint8 that their squares are written to."""


def decode_batch(images: ImageSet, size: int, crop_ratio: float, rows: Sequence[int], squares: np.ndarray) -> Decoded:
    """Decode a batch of images.

    Args:
        images: the set.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        rows: positions of the images.
        squares: (len(rows) or more, s, s, 3) uint8, into which they are written.

    Returns:
        Label, content hash and row of each image that could be read, and why others could not.
    """
    numbers: list[tuple[int, int, int]] = []
    unreadable: list[str] = []
    for row in rows:
        try:
            photo = images.photo(row)
            squares[len(numbers)] = photo.square(size, crop_ratio)
            numbers.append((int(images.labels[row]), photo.hash, row))
        except UnreadableImage as error:
            unreadable.append(f"{images.place(row)}: {error}")
    return Decoded(np.array(numbers, dtype=np.int64).reshape(-1, 3), tuple(unreadable))


# ---------------------------------------------------------------------- worker processes


KILLED = (
    "a process that decodes photos was killed, as systems do when memory is short: "
    "use fewer --data.num_workers or a smaller --data.batch_size; --ckpt_path last goes on"
)


class WorkerPool:
    """Processes that decode batches ahead, for all tasks of a run; they start when they are made.

    Pixels come through memory that is set up once: each worker has a few slots that it fills in turn. torch's own
    loader maps memory anew for every batch, which takes a third of the time that small JPEGs are decoded in.

    Args:
        decode: what a worker does with a batch; can be pickled, so that spawned workers can receive it.
        workers: number of processes.
        shape: (images, s, s, 3) of the largest batch.
        alternate: decode only while the reader waits: for a network of several threads on the cores that decode.
            torch's wait for each other at every layer, and a worker on the core of one would stop them all.
    """

    def __init__(self, decode: Decode, workers: int, shape: tuple[int, int, int, int], alternate: bool = False):
        self._alternate, self._ahead = alternate, AHEAD * workers
        # A worker is asked for its next batch when its oldest one is about to be yielded, so that this one and
        # AHEAD others are in memory.
        self._slots = _shared(workers, AHEAD + 1, *shape)
        self._asked = self._taken = 0  # batches, over all tasks; the worker of each is the next one in turn
        self._pipes: list[Connection] = []
        processes = []
        for number in range(workers):
            ours, theirs = multiprocessing.Pipe()
            process = multiprocessing.Process(target=_work, args=(theirs, decode, self._slots[number]), daemon=True)
            process.start()
            theirs.close()  # so that a worker that is gone is noticed
            self._pipes.append(ours)
            processes.append(process)
        self._stop = weakref.finalize(self, _stop, processes, os.getpid())  # for who forgets to close it
        self._stop.atexit = False
        atexit.register(self._stop)  # before Python's own, at exit, waits for them

    def decode(self, batches: list[list[int]]) -> Iterator[tuple[Tensor, Decoded]]:
        """Yield the batches in order, decoded by the workers, which begin at once.

        What is left of batches given before is dropped.

        Args:
            batches: positions of the images of each batch.

        Yields:
            The pixels, (n or more, s, s, 3) uint8, which are overwritten when the next batch is taken; and the rest.
        """
        while self._taken < self._asked:
            self._take()
        self._ask(batches[: self._ahead])
        return self._results(batches)

    def _results(self, batches: list[list[int]]) -> Iterator[tuple[Tensor, Decoded]]:
        if not self._alternate:
            for number in range(len(batches)):
                result = self._take()
                self._ask(batches[number + self._ahead : number + self._ahead + 1])
                yield result
            return
        for start in range(0, len(batches), self._ahead):
            part = batches[start : start + self._ahead]
            if start:
                self._ask(part)
            yield from [self._take() for _ in part]

    def _ask(self, batches: list[list[int]]) -> None:
        for rows in batches:
            try:
                self._pipes[self._asked % len(self._pipes)].send(rows)
            except ConnectionError as error:
                raise CifnetError(KILLED) from error
            self._asked += 1

    def _take(self) -> tuple[Tensor, Decoded]:
        turn, worker = divmod(self._taken, len(self._pipes))
        try:
            result = self._pipes[worker].recv()
        except (EOFError, ConnectionError) as error:
            raise CifnetError(KILLED) from error
        self._taken += 1
        if isinstance(result, Failed):
            raise result.error from RuntimeError(f"in a process that decodes photos:\n{result.traceback}")
        return self._slots[worker, turn % (AHEAD + 1)], cast(Decoded, result)

    def close(self) -> None:
        """Stop the processes.

        Left to the garbage collector they would outlive the run, as Lightning keeps its loaders.
        """
        atexit.unregister(self._stop)
        self._stop()


def _work(pipe: Connection, decode: Decode, slots: Tensor) -> None:
    """In a worker: decode each batch that is asked for into the next slot, until the reader is gone."""
    # A signal may be sent to the whole group of processes: the reader closes the workers when it stops.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    turn = 0
    try:
        while True:
            rows = pipe.recv()
            try:
                pipe.send(decode(rows, slots[turn].numpy()))
            except Exception as error:
                pipe.send(Failed(error, format_exc()))
            turn = (turn + 1) % len(slots)
    except (EOFError, ConnectionError):
        return


def _stop(workers: list[Any], process: int) -> None:
    """Stop the workers.

    Args:
        workers: their processes.
        process: the number of the process that started them; nothing is done in a copy of it.
    """
    if os.getpid() == process:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


def _shared(*shape: int) -> Tensor:
    """Return uint8 numbers in memory that processes share; CifnetError if there is not enough of it."""
    try:
        shared: Tensor = cast(Any, torch.empty(shape, dtype=torch.uint8)).share_memory_()
    except RuntimeError as error:
        raise CifnetError(
            f"cannot share {math.prod(shape) / 1e6:,.0f} MB of decoded photos between processes: use fewer "
            "--data.num_workers, a smaller --data.batch_size, or more shared memory (docker run --shm-size 1g)"
        ) from error
    return shared


# ---------------------------------------------------------------------- batches


class ImageBatch(NamedTuple):
    """Decoded images. ``unreadable`` lists "place: reason" of those that could not be decoded and are left out."""

    image: Tensor  # (n, 3, s, s) uint8, channels last in memory
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64, content hash
    row: Tensor  # (n,) int64, position in the image set
    unreadable: tuple[str, ...]


class EmbeddingBatch(NamedTuple):
    """Images that were embedded before."""

    embedding: Tensor  # (n, d) float32
    label: Tensor  # (n,) int64
    key: Tensor  # (n,) int64, content hash; of samples that are not learned 0
    row: Tensor  # (n,) int64


Batch = ImageBatch | EmbeddingBatch

EMBEDDED_BATCH = 4096
"""Samples in a batch of embeddings that are stored already: they take little memory, and sums over many are faster."""

SCORES = 2**19
"""Scores of an evaluation batch of such samples, at most: with many classes they take more memory than embeddings."""


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
    return [np.array_split(chunk, world)[rank] for chunk in pieces(rows, batch_size * world)]


def pieces(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut rows (n,) into pieces of ``size``; the last one may be smaller, and without rows there is none."""
    return [rows[i : i + size] for i in range(0, len(rows), size)]


class ImageLoader:
    """Decode batches of images, with one set of worker processes for all tasks.

    Args:
        images: the set.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        workers: number of processes; 0 to decode in this one.
        batch_size: images in the largest batch.
        device: type of the device that embeds the images.
    """

    def __init__(
        self, images: ImageSet, size: int, crop_ratio: float, workers: int, batch_size: int, device: str = "cpu"
    ):
        self._decode = partial(decode_batch, images, size, crop_ratio)
        self._size, self._workers, self._batch_size, self._device = size, workers, batch_size, device
        self._pool: WorkerPool | None = None

    def decode(self, batches: Sequence[np.ndarray]) -> Iterator[ImageBatch]:
        """Return an iterator over decoded batches; the workers start with the first ones now.

        Args:
            batches: positions of the images of each batch.
        """
        rows = [batch.tolist() for batch in batches]
        if self._workers and rows:
            self.start()
            assert self._pool is not None
            return starmap(self._batch, self._pool.decode(rows))
        return map(self._decode_here, rows)

    def _decode_here(self, rows: list[int]) -> ImageBatch:
        squares = torch.empty(self._shape(len(rows)), dtype=torch.uint8)
        return self._batch(squares, self._decode(rows, squares.numpy()))

    def _shape(self, images: int) -> tuple[int, int, int, int]:
        return (images, self._size, self._size, 3)

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
            self._pool = WorkerPool(self._decode, self._workers, self._shape(self._batch_size), alternate)

    def close(self) -> None:
        """Stop the worker processes; others start if the loader is used again."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class Store(Protocol):
    """A place from which embeddings of images are read without the backbone."""

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of images ``rows``."""


class StoredLoader:
    """Batches in a given order, each from a store of embeddings or from decoded images.

    Iteration starts lazily, at the first ``next``: Lightning creates the training iterator twice per task, and
    an eager one would decode its first images for nothing.

    Args:
        samples: the set that the rows are of.
        plan: rows of each batch, and the store that has them, or None to decode them.
        loader: decodes the batches that no store has; None if there are no such batches.
        learned: whether the samples are learned, so that their identity is needed.
    """

    def __init__(
        self,
        samples: SampleSet,
        plan: Sequence[tuple[np.ndarray, Store | None]],
        loader: ImageLoader | None,
        learned: bool,
    ):
        self._samples, self._plan, self._loader, self._learned = samples, plan, loader, learned
        self._begun: Iterator[ImageBatch] | None = None

    def __len__(self) -> int:
        return len(self._plan)

    def begin(self) -> None:
        """Let the workers decode the first images of the next iteration now."""
        missing = [rows for rows, store in self._plan if store is None]
        self._begun = self._loader.decode(missing) if self._loader is not None else iter(())

    def __iter__(self) -> Iterator[Batch]:
        if self._begun is None:
            self.begin()
        decoded, self._begun = cast(Iterator[ImageBatch], self._begun), None
        for rows, store in self._plan:
            yield next(decoded) if store is None else self._stored(rows, store)

    def _stored(self, rows: np.ndarray, store: Store) -> EmbeddingBatch:
        keys = self._samples.hashes(rows) if self._learned else np.zeros(len(rows), dtype=np.int64)
        labels = torch.from_numpy(self._samples.labels[rows])
        return EmbeddingBatch(store.get(rows), labels, torch.from_numpy(keys), torch.from_numpy(rows))


# ---------------------------------------------------------------------- unreadable images

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

    def failures(row: int) -> tuple[str, ...]:
        return decode_batch(images, size, crop_ratio, [row], np.empty((1, size, size, 3), dtype=np.uint8)).unreadable

    with ThreadPoolExecutor(cores(), "check") as pool:
        for start in range(0, len(images), CHECKED_AT_ONCE):
            rows = range(start, min(start + CHECKED_AT_ONCE, len(images)))
            yield from chain.from_iterable(pool.map(failures, rows))
