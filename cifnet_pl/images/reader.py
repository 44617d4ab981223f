"""Read many images by threads, in order and a few batches ahead of the consumer."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from cifnet_pl.images.files import find_images, shown_path
from cifnet_pl.images.image import (
    UNREADABLE_HASH,
    EncodedImage,
    ImageLike,
    Look,
    UnreadableImage,
)
from cifnet_pl.images.pool import DecodingPool
from cifnet_pl.images.slices import ReadResult, SliceRequest
from cifnet_pl.images.worker import AREA_BYTES
from cifnet_pl.utilities.errors import UsageError

CORES_LIMIT = 16
"""Cores that decoding uses unless told otherwise."""

BATCHES_AHEAD = 3
"""Batches that are being decoded, or wait for the consumer."""

IMAGES_PER_JOB = 8
"""Images that a thread decodes at once, if there are enough for all threads."""


def usable_cores() -> int:
    """Return the number of cores that this process may use; not every system can say which."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def decoding_cores(processes: int = 1) -> int:
    """Return the number of cores for decoding.

    Args:
        processes: number of processes on this machine that decode; each gets an equal share,
            unless SLURM has given it cores of its own.

    Returns:
        At least 1, at most ``CORES_LIMIT``.
    """
    share = usable_cores()
    if os.environ.get("SLURM_CPUS_PER_TASK") != str(share):
        share = share // processes
    return max(1, min(share, CORES_LIMIT))


def iterate_images(
    images: ImageLike | str | Iterable[ImageLike | str],
) -> Iterator[ImageLike]:
    """Return an iterator over one or many images.

    Args:
        images: paths, contents of files, or Pillow images; one alone, or several. A single path may
            be a folder, a zip archive or a pattern.

    Raises:
        DataError: there is no image at a single path.
        UsageError: something is no image; raised by the iterator.
    """
    if isinstance(images, str | Path):
        return find_images(images)
    if isinstance(images, bytes | bytearray | Image.Image):
        return map(_as_image, [images])
    return map(_as_image, images)


def _as_image(item: object) -> ImageLike:
    if isinstance(item, bytes | Path | Image.Image):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str | os.PathLike):
        return Path(os.fspath(item))
    raise UsageError(
        f"a {type(item).__name__} is no image: give a path, the bytes of a file, or a Pillow image"
    )


def image_location(image: ImageLike) -> str:
    """Return where an image is, for messages, on one line."""
    if isinstance(image, Path):
        return shown_path(image)
    return "an image in memory"


# ---------------------------------------------------------------------- batches

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class PixelBatch(Generic[Item, Result]):
    """A batch of images that threads decode.

    Attributes:
        items: the images.
        pixels: (n, s, s, 3) uint8.
        jobs: consecutive parts of ``items`` that are being read, in their order.
    """

    items: Sequence[Item]
    pixels: Tensor
    jobs: list[Future[list[Result]]]

    def results(self) -> list[Result]:
        """Return what is known of each image; raise what went wrong in its thread."""
        results = []
        for job in self.jobs:
            results += job.result()
        return results


def decode_batches(
    pool: DecodingPool,
    batches: Iterator[Sequence[Item]],
    size: int,
    read: Callable[[Sequence[Item], np.ndarray], list[Result]],
    ahead: int = BATCHES_AHEAD,
    alternate: bool = False,
    pinned: bool = False,
) -> Iterator[PixelBatch[Item, Result]]:
    """Decode batches by the threads of a pool, some ahead of the consumer; they begin at once.

    Args:
        pool: of the threads.
        batches: images.
        size: side of the squares in pixels.
        read: reads some images of a batch, writes their squares (n, size, size, 3) uint8, and
            returns what is known of each.
        ahead: batches that are being decoded, or wait for the consumer.
        alternate: whether to decode only while the consumer waits: for a backbone of several
            threads on the cores that decode, which wait for each other at every layer.
        pinned: whether the pixels are to be copied to a GPU.

    Returns:
        The batches in their order, each fully decoded.
    """
    queue = _DecodingQueue(pool, batches, size, read, pinned)
    queue.begin(ahead)
    if alternate:
        return queue.in_turn(ahead)
    return queue.in_order()


class _DecodingQueue(Generic[Item, Result]):
    """Batches that are being decoded; the arguments are those of :func:`decode_batches`."""

    def __init__(
        self,
        pool: DecodingPool,
        batches: Iterator[Sequence[Item]],
        size: int,
        read: Callable[[Sequence[Item], np.ndarray], list[Result]],
        pinned: bool,
    ):
        self._pool = pool
        self._batches = batches
        self._size = size
        self._read = read
        self._pinned = pinned
        self._waiting: deque[PixelBatch[Item, Result]] = deque()

    def begin(self, count: int) -> None:
        """Let the threads decode the next batches."""
        for items in islice(self._batches, count):
            shape = (len(items), self._size, self._size, 3)
            pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=self._pinned)
            rows = pixels.numpy()
            length = self._job_length(len(items))
            jobs = []
            for start in range(0, len(items), length):
                end = start + length
                jobs.append(
                    self._pool.submit(self._read, items[start:end], rows[start:end])
                )
            self._waiting.append(PixelBatch(items, pixels, jobs))

    def _job_length(self, images: int) -> int:
        """Return how many images of a batch a thread reads at once."""
        share = images // self._pool.threads
        fitting = AREA_BYTES // (3 * self._size**2)
        return max(1, min(IMAGES_PER_JOB, share, fitting))

    def in_order(self) -> Iterator[PixelBatch[Item, Result]]:
        """Yield the batches; for each one that is done another one is begun."""
        while self._waiting:
            batch = self._waiting.popleft()
            wait(batch.jobs)
            self.begin(1)
            yield batch

    def in_turn(self, ahead: int) -> Iterator[PixelBatch[Item, Result]]:
        """Yield the batches; others are begun when all are done and the consumer waits."""
        while self._waiting:
            for batch in self._waiting:
                wait(batch.jobs)
            yield self._waiting.popleft()
            if not self._waiting:
                self.begin(ahead)


class DecodedBatch(NamedTuple):
    """Decoded images.

    Attributes:
        files: all images of the batch.
        images: (m, 3, s, s) uint8, those that could be read, in the order of ``files``.
        unreadable: for each of ``files`` the reason why it could not be read, or None.
        looks: for each of ``files`` what ``look`` of :func:`decode_images` gave; None if it could
            not be read.
    """

    files: tuple[ImageLike, ...]
    images: Tensor
    unreadable: tuple[str | None, ...]
    looks: tuple[Look | None, ...]

    @property
    def readable(self) -> list[ImageLike]:
        """Those of the files that could be read, as ``images`` has them."""
        pairs = zip(self.files, self.unreadable, strict=True)
        return [file for file, reason in pairs if reason is None]


def decode_images(
    files: Iterable[ImageLike],
    size: int,
    crop_ratio: float,
    look: Callable[[EncodedImage], Look] | None = None,
    skip: Callable[[int, int], bool] | None = None,
) -> Iterator[DecodedBatch]:
    """Decode images by threads; memory does not grow with their number.

    Args:
        files: the images.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        look: what else is wanted of each image while its bytes are in memory; None for nothing.
        skip: whether the image of a position and hash is not decoded; ``LEFT_OUT`` is then its
            reason.
    """

    count = decoding_batch_size(size)
    pool = DecodingPool(decoding_cores())

    def read(
        numbered: Sequence[tuple[int, ImageLike]], pixels: np.ndarray
    ) -> list[ReadResult]:
        request = SliceRequest([file for _, file in numbered], crop_ratio, look)
        if skip is None:
            return pool.read(request, pixels)
        first, _ = numbered[0]
        return pool.read(request, pixels, lambda place, hash: skip(first + place, hash))

    remaining = enumerate(files)
    try:
        batches = iter(lambda: tuple(islice(remaining, count)), ())
        for batch in decode_batches(pool, batches, size, read):
            reasons, looks = zip(*batch.results(), strict=True)
            readable = torch.tensor([reason is None for reason in reasons])
            pixels = batch.pixels if readable.all() else batch.pixels[readable]
            read_files = tuple(file for _, file in batch.items)
            yield DecodedBatch(read_files, pixels.permute(0, 3, 1, 2), reasons, looks)
    finally:
        pool.close()


def decoding_batch_size(size: int) -> int:
    """Return the number of images in a batch: about 2²² pixels, but 64 to 256 images.

    At the end of each batch the threads that embed wait for each other. In batches of small images
    they would do so too often. Of images above 512 pixels a batch has at most 2²⁴ pixels.

    Args:
        size: side of the squares in pixels.
    """
    count = max(64, 2**22 // size**2)
    largest = min(256, 2**24 // size**2)
    return max(1, min(count, largest))


# ---------------------------------------------------------------------- looks


def look_at_image(file: Path) -> Look:
    """Read an image, and return its look; ``UNREADABLE_HASH`` where it cannot be read."""
    try:
        return EncodedImage(file).look()
    except UnreadableImage:
        return Look(UNREADABLE_HASH)


def look_at_images(files: Sequence[Path]) -> list[Look]:
    """Look at images, by several threads."""
    with ThreadPoolExecutor(decoding_cores(), "look") as pool:
        return list(pool.map(look_at_image, files))
