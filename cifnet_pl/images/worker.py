"""A process that decodes images for another one, with few threads and nothing but decoders.

It is started as a program of its own, not as a fork of the process that asks: that one has threads
and perhaps a GPU. It forks itself once its modules are imported, so that all such processes share
them in memory. They end when the process that asks ends, however that happens.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from cifnet_pl.images.image import IMAGE_SIZE_LIMIT, UnreadableImage
from cifnet_pl.images.slices import SliceRequest, read_slice

AREA_BYTES = 3 * IMAGE_SIZE_LIMIT**2
"""Bytes of the shared memory of each thread: one square of the largest size, or many small ones."""

READY = "ready"
"""First message of each thread."""

SECONDS_BETWEEN_LOOKS = 0.5
"""How often a process looks whether the process that asks is still there."""


class SharedRequest(NamedTuple):
    """Images that a thread of another process is to read.

    Attributes:
        request: the images; texts are paths.
        size: side of the squares in pixels.
        asks: whether the process that asks decides by its hash if an image is decoded.
    """

    request: SliceRequest
    size: int
    asks: bool


class HashQuestion(NamedTuple):
    """Asks whether an image of a request is not decoded."""

    position: int
    hash: int


class Fault(NamedTuple):
    """A traceback of a fault of this package."""

    text: str


class SharedMemory:
    """Memory of several processes, with an area for each thread.

    Args:
        descriptor: of the file in memory.
        areas: number of areas.
    """

    def __init__(self, descriptor: int, areas: int):
        self._map = mmap.mmap(descriptor, areas * AREA_BYTES)

    def squares(self, area: int, count: int, size: int) -> np.ndarray:
        """Return squares (count, size, size, 3) uint8 at the beginning of an area."""
        bytes_of_squares = np.frombuffer(
            self._map, np.uint8, count * 3 * size**2, area * AREA_BYTES
        )
        return bytes_of_squares.reshape(count, size, size, 3)


def serve(
    descriptors: Sequence[int],
    processes: int,
    memory: int,
    asking: int,
    pixel_limit: int | None,
) -> None:
    """Decode images in some processes until the process that asks ends.

    Args:
        descriptors: of the connections, one for each thread.
        processes: number of processes that share them; this one is the first.
        memory: descriptor of the shared memory.
        asking: id of the process that asks.
        pixel_limit: Pillow's ``MAX_IMAGE_PIXELS`` there.
    """
    torch.set_num_threads(1)
    Image.MAX_IMAGE_PIXELS = pixel_limit
    shared = SharedMemory(memory, len(descriptors))
    parent = asking
    own = 0
    for number in range(1, processes):
        first = os.getpid()
        if not os.fork():
            own = number
            parent = first
            break
    threads = []
    for area, descriptor in enumerate(descriptors):
        if area % processes == own:
            arguments = (Connection(descriptor), shared, area)
            thread = threading.Thread(target=_answer_all, args=arguments, daemon=True)
            threads.append(thread)
        else:
            os.close(descriptor)  # else nobody would notice the end of its process
    for thread in threads:
        thread.start()
    while os.getppid() == parent and any(thread.is_alive() for thread in threads):
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os._exit(0)


def _answer_all(connection: Connection, shared: SharedMemory, area: int) -> None:
    """Read what one thread of the process that asks wants, until that one ends."""
    try:
        connection.send(READY)
        while True:
            connection.send(_answer(connection, connection.recv(), shared, area))
    except (EOFError, ConnectionError):
        return


def _answer(
    connection: Connection, asked: SharedRequest, shared: SharedMemory, area: int
) -> object:
    def skip(position: int, content_hash: int) -> bool:
        connection.send(HashQuestion(position, content_hash))
        return bool(connection.recv())

    request = asked.request
    images = []
    for image in request.images:
        images.append(Path(image) if isinstance(image, str) else image)
    pixels = shared.squares(area, len(images), asked.size)
    try:
        return read_slice(
            request._replace(images=images), pixels, skip if asked.asks else None
        )
    except (EOFError, ConnectionError):
        raise
    except Exception:
        return Fault(traceback.format_exc())


def is_sendable(image: object) -> bool:
    """Return whether an image can be read by another process: a file, bytes, or none at all."""
    return isinstance(image, Path | bytes | UnreadableImage)
