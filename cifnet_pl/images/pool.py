"""Threads that decode images, and on many cores processes that do it for them.

Threads pass Python's lock to each other several times for each image, even where no call holds it
for long: on 16 cores more than four of them were not faster. So on many cores each thread hands its
images to a process that has few threads, and gets their pixels in shared memory.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
from PIL import Image

from cifnet_pl.images.slices import (
    GivenImage,
    ReadResult,
    Skip,
    SliceRequest,
    read_slice,
)
from cifnet_pl.images.worker import (
    AREA_BYTES,
    Fault,
    HashQuestion,
    SharedMemory,
    SharedRequest,
    is_sendable,
)
from cifnet_pl.utilities.errors import CifnetError, explained

PROCESSES_FROM = 8
"""Threads from which on processes decode."""

THREADS_OF_A_PROCESS = 4
"""Threads that one lock of Python's serves well."""

IMAGES_BEFORE_PROCESSES = 1024
"""Images that threads decode themselves before processes are started, which takes seconds."""

PROGRAM = """
import sys
sys.path[:] = {path!r}
from cifnet_pl.images.worker import serve
serve{arguments!r}
"""
"""What Python runs in a process that decodes."""

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""Environment of that process: it must have no threads of libraries when it forks itself."""

Value = TypeVar("Value")


class _Channel:
    """A thread of another process that decodes for one thread at a time."""

    def __init__(self, connection: Connection, memory: SharedMemory, area: int):
        self.connection = connection
        self._memory = memory
        self._area = area

    def read(
        self, request: SliceRequest, pixels: np.ndarray, skip: Skip | None
    ) -> list[ReadResult]:
        """Read images as :func:`read_slice` does.

        Raises:
            CifnetError: the process has ended.
        """
        texts: list[GivenImage | str] = []
        for image in request.images:
            texts.append(str(image) if isinstance(image, Path) else image)
        size = pixels.shape[1]
        asked = SharedRequest(
            request._replace(images=texts),  # type: ignore[arg-type]
            size,
            skip is not None,
        )
        with explained(
            CifnetError,
            "a process that decodes images has ended",
            EOFError,
            OSError,
            end=f": if memory is short, decode with fewer than {PROCESSES_FROM} threads",
        ):
            self.connection.send(asked)
            answer = self.connection.recv()
            while isinstance(answer, HashQuestion):
                assert skip is not None
                self.connection.send(skip(answer.position, answer.hash))
                answer = self.connection.recv()
        if isinstance(answer, Fault):
            raise RuntimeError(f"a process that decodes images failed:\n{answer.text}")
        pixels[:] = self._memory.squares(self._area, len(pixels), size)
        results: list[ReadResult] = answer
        return results


class DecodingProcesses:
    """Processes that decode images for the threads of this one.

    Args:
        threads: number of threads that they have together.

    Attributes:
        ready: whether they have been started and decode.
    """

    def __init__(self, threads: int):
        self.ready = threading.Event()
        self._threads = threads
        self._idle: SimpleQueue[_Channel] = SimpleQueue()
        self._lock = threading.Lock()
        self._images = 0
        self._channels: list[_Channel] = []
        self._program: subprocess.Popen[bytes] | None = None

    def count(self, images: int) -> None:
        """Count images that threads have decoded themselves; start the processes after many."""
        with self._lock:
            self._images += images
            if self._images >= IMAGES_BEFORE_PROCESSES and self._program is None:
                self._start()

    def read(
        self, request: SliceRequest, pixels: np.ndarray, skip: Skip | None
    ) -> list[ReadResult]:
        """Read images as :func:`read_slice` does, in a process that is ready.

        Raises:
            CifnetError: the process has ended.
        """
        channel = self._idle.get()
        try:
            return channel.read(request, pixels, skip)
        except CifnetError:
            _forget(self)  # the next pool gets others
            raise
        finally:
            self._idle.put(channel)

    def close(self) -> None:
        """Let the processes end."""
        self.ready.clear()
        for channel in self._channels:
            channel.connection.close()
        if self._program is not None:
            # A fork of this process may still hold the connections open.
            self._program.terminate()
            self._program.wait()

    def _start(self) -> None:
        """Start the processes; they are used once they are ready.

        Raises:
            CifnetError: the system refuses.
        """
        with explained(
            CifnetError,
            "cannot start processes that decode images",
            OSError,
            end=f": decode with fewer than {PROCESSES_FROM} threads",
        ):
            memory = os.memfd_create("cifnet_pl decoding")
            os.ftruncate(memory, self._threads * AREA_BYTES)
            pipes = [Pipe() for _ in range(self._threads)]
            theirs = [pipe[1].fileno() for pipe in pipes]
            self._program = subprocess.Popen(
                [sys.executable, "-c", self._code(theirs, memory)],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD},
                pass_fds=[*theirs, memory],
                start_new_session=True,  # Ctrl-C is for the process that asks
            )
        shared = SharedMemory(memory, self._threads)
        os.close(memory)
        for area, (own, other) in enumerate(pipes):
            other.close()
            self._channels.append(_Channel(own, shared, area))
        threading.Thread(target=self._await_start, daemon=True).start()

    def _code(self, descriptors: list[int], memory: int) -> str:
        processes = max(1, self._threads // THREADS_OF_A_PROCESS)
        asking = os.getpid()
        arguments = (descriptors, processes, memory, asking, Image.MAX_IMAGE_PIXELS)
        return PROGRAM.format(path=sys.path, arguments=arguments)

    def _await_start(self) -> None:
        """Wait until each thread of the processes is ready."""
        starting = {channel.connection: channel for channel in self._channels}
        while starting:
            for connection in wait(list(starting)):
                assert isinstance(connection, Connection)
                channel = starting.pop(connection)
                try:
                    connection.recv()
                except (EOFError, OSError):
                    # It could not be started, and has said why; threads go on without it.
                    return
                self._idle.put(channel)
        self.ready.set()


_shared: DecodingProcesses | None = None
_sharing = threading.Lock()


def shared_processes(threads: int) -> DecodingProcesses | None:
    """Return the processes that decode for all pools; None where threads decode themselves.

    Args:
        threads: number of threads of the first pool that asks.
    """
    global _shared
    if threads < PROCESSES_FROM or not hasattr(os, "memfd_create"):
        return None
    if not sys.executable:
        return None
    with _sharing:
        if _shared is None:
            _shared = DecodingProcesses(threads)
            atexit.register(_shared.close)
        return _shared


def _forget(processes: DecodingProcesses | None = None) -> None:
    """Share processes no longer: these have ended, or belong to the process that was forked."""
    global _shared
    if processes is None or processes is _shared:
        _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class DecodingPool:
    """Threads that decode images, themselves or by processes.

    Args:
        threads: their number.

    Attributes:
        threads: their number.
    """

    def __init__(self, threads: int):
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, "decode")
        self._processes = shared_processes(threads)

    def submit(
        self, function: Callable[..., Value], *arguments: object
    ) -> Future[Value]:
        """Let a thread call a function."""
        return self._executor.submit(function, *arguments)

    def read(
        self, request: SliceRequest, pixels: np.ndarray, skip: Skip | None = None
    ) -> list[ReadResult]:
        """Read images as :func:`read_slice` does; threads of this pool call it."""
        processes = self._processes
        if processes is None or not all(map(is_sendable, request.images)):
            return read_slice(request, pixels, skip)
        if processes.ready.is_set():
            return processes.read(request, pixels, skip)
        processes.count(len(pixels))
        return read_slice(request, pixels, skip)

    def close(self) -> None:
        """Stop the threads; what was not begun is left."""
        self._executor.shutdown(cancel_futures=True)
