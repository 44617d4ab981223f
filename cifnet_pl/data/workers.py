"""Decode images in worker processes, into memory that they share with the process that asks for them."""

from __future__ import annotations

import atexit
import math
import os
import signal
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

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
