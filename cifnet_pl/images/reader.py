"""Read many images in order: by threads, or by processes where a GPU embeds.

On a CPU threads decode a batch while the network waits: beside it, they would stop its threads at
every layer. A GPU would wait for threads, which pass Python's lock to each other, so it gets its
batches from the processes of a DataLoader.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice, tee
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from cifnet_pl.images.files import find_images, shown_path
from cifnet_pl.images.image import (
    UNREADABLE_HASH,
    EncodedImage,
    ImageLike,
    Look,
    UnreadableImage,
    pillow_image,
)
from cifnet_pl.utilities.errors import CifnetError

CORES_LIMIT = 16
"""Cores that decoding uses unless told otherwise."""

BATCH_IMAGES = 256
"""Images of a batch of :func:`decode_images`, at most."""

BATCH_PIXELS = 2**22
"""Pixels of such a batch, at most, if it has more than one image.

A process decodes a whole batch. A GPU that waits for the first one waits longer for a larger one,
and of few large batches some processes get none."""

GivenImages = ImageLike | str | np.ndarray | Tensor | Iterable[Any]
"""One image or many: paths, bytes of image files, Pillow images, or uint8 arrays (h, w, 3).

An array (n, h, w, 3) is many. A single path may also be a folder with images, a Zip archive, or a
pattern."""

LOOKING_THREADS = 4
"""Threads that look at images: more wait for Python's lock, fewer for a slow disk.

On two cores 1, 2, 4 and 16 threads look at 3,000, 3,000, 2,650 and 2,450 JPEGs a second, and on 16
cores 16 threads at 1,000."""

LEFT_OUT = "left out"
"""Why an image that was not wanted has no pixels."""


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
        share //= processes
    return max(1, min(share, CORES_LIMIT))


def iterate_images(images: GivenImages) -> Iterator[ImageLike]:
    """Return an iterator over one or many images.

    Args:
        images: see :data:`GivenImages`.

    Raises:
        DataError: there is no image at a single path; something is no image, which the iterator
            raises.
    """
    if isinstance(images, str | Path):
        return find_images(images)
    shape = tuple(getattr(images, "shape", ()))
    is_pixels = len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))
    if isinstance(images, bytes | Image.Image) or is_pixels:
        images = [images]
    return map(_as_image, images)


def _as_image(item: Any) -> ImageLike:
    if isinstance(item, bytes | Path):
        return item
    if isinstance(item, str):
        return Path(item)
    return pillow_image(item, "an image in memory")


def image_location(image: ImageLike) -> str:
    """Return where an image is, for messages, on one line."""
    if isinstance(image, Path):
        return shown_path(image)
    return "an image in memory"


# ---------------------------------------------------------------------- batches


class ReadImage(NamedTuple):
    """Result of reading an image.

    Attributes:
        pixels: (s, s, 3) uint8; None if it could not be read.
        look: what was wanted of it besides its pixels; None if it could not be read.
        reason: why it has no pixels, or None.
    """

    pixels: np.ndarray | None
    look: Look | None = None
    reason: str | None = None


Item = TypeVar("Item")
Reader = Callable[[Item], ReadImage]


class DecodedBatch(NamedTuple):
    """Decoded images.

    Attributes:
        files: what ``read`` was given for each of the n images of the batch: files or rows.
        images: (m, 3, s, s) uint8, channels last in memory, those that could be read.
        unreadable: for each of ``files`` the reason why it has no pixels, or None.
        looks: for each of ``files`` what was wanted besides its pixels; None if it could not be
            read.
    """

    files: Sequence[Any]
    images: Tensor
    unreadable: Sequence[str | None]
    looks: Sequence[Look | None]

    @property
    def readable(self) -> list[Any]:
        """Those of the files that could be read, as ``images`` has them."""
        pairs = zip(self.files, self.unreadable, strict=True)
        return [file for file, reason in pairs if reason is None]

    def location(self, row: int) -> str:
        """Return where one of ``images`` is, for messages."""
        return image_location(self.readable[row])


class BatchReader(Generic[Item]):
    """Read batches of images in order, in one pass or several.

    Processes are started by the first pass, which takes half a second beside a GPU, and kept for
    the others.

    Args:
        read: reads an image; several threads or processes call it.
        size: side of the squares in pixels.
        workers: number of threads or processes.
        device: type of the device that embeds the images.
    """

    def __init__(self, read: Reader[Item], size: int, workers: int, device: str):
        self._read_item = read
        self._size = size
        self._threads = max(1, workers)
        self._asked = _AskedBatches()
        self._loader: DataLoader[Any] | None = None
        if device == "cuda" and workers and hasattr(os, "fork"):
            self._loader = DataLoader(
                _Batches(read, size),
                batch_size=None,
                sampler=self._asked,
                num_workers=workers,
                collate_fn=lambda batch: batch,  # it is one already
                pin_memory=True,
                persistent_workers=True,
                multiprocessing_context="fork",  # functions of a source need not be picklable
            )

    def read(self, batches: Iterable[Sequence[Item]]) -> Iterator[DecodedBatch]:
        """Read batches; a pass that is left midway ends with the next one.

        Args:
            batches: what the function reads, in batches.

        Raises:
            CifnetError: the data are damaged or were changed.
        """
        if self._loader is None:
            read = self._read_item
            with ThreadPoolExecutor(self._threads, "decode") as pool:
                for items in batches:
                    # Threads that took one image after another would wait for Python's lock more
                    # often.
                    length = max(1, math.ceil(len(items) / self._threads))
                    starts = range(0, len(items), length)
                    shares = [items[start : start + length] for start in starts]
                    results = pool.map(lambda share: list(map(read, share)), shares)
                    yield _batch(items, chain.from_iterable(results), self._size)
            return
        given, self._asked.batches = tee(batches)
        for items, batch in zip(given, self._loader, strict=False):
            if isinstance(batch, CifnetError):
                self.close()
                raise batch
            yield batch._replace(files=items)

    def close(self) -> None:
        """End the processes; another pass starts new ones."""
        if self._loader is None or self._loader._iterator is None:
            return
        # A DataLoader has no public method for this. As a part of a cycle, such as an error with
        # its traceback, it would be collected later, and wait five seconds for each process.
        cast(Any, self._loader._iterator)._shutdown_workers()
        self._loader._iterator = None


@dataclass
class _AskedBatches(Sampler[Any]):
    """The batches of the next pass, as a DataLoader takes them."""

    batches: Iterable[Sequence[Any]] = ()

    def __iter__(self) -> Iterator[Sequence[Any]]:
        return iter(self.batches)


@dataclass
class _Batches(Dataset[DecodedBatch | CifnetError]):
    """Batches as a DataLoader takes them: what it calls an index is what is read for a batch.

    The error of a process gets a traceback, so those of this package are brought like results.
    ``files`` stays empty, lest images in memory be sent back.
    """

    read: Reader[Any]
    size: int

    def __getitem__(self, items: Sequence[Any]) -> DecodedBatch | CifnetError:
        try:
            batch = _batch(items, map(self.read, items), self.size)
        except CifnetError as error:
            return error
        return batch._replace(files=())


def _batch(
    items: Sequence[Any],
    results: Iterable[ReadImage],
    size: int,
) -> DecodedBatch:
    """Return the batch of some images; their pixels are copied as soon as they are read.

    Args:
        items: what is read for the images.
        results: of all of them, in order.
        size: side of the squares in pixels.
    """
    pixels = np.empty((len(items), size, size, 3), np.uint8)
    count = 0
    reasons = []
    looks = []
    for result in results:
        if result.pixels is not None:
            pixels[count] = result.pixels
            count += 1
        reasons.append(result.reason)
        looks.append(result.look)
    images = torch.from_numpy(pixels[:count]).permute(0, 3, 1, 2)
    return DecodedBatch(items, images, reasons, looks)


def decode_images(
    files: Iterable[ImageLike],
    size: int,
    crop_ratio: float,
    look: Callable[[EncodedImage], Look] | None = None,
    skip: Callable[[int, int], bool] | None = None,
    device: str = "cpu",
) -> Iterator[DecodedBatch]:
    """Decode images; memory does not grow with their number.

    Args:
        files: the images.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        look: what else is wanted of each image while its bytes are in memory; None for nothing.
        skip: whether the image of a position and hash is not decoded; ``LEFT_OUT`` is then its
            reason.
        device: type of the device that embeds the images.
    """

    def read(item: tuple[int, ImageLike]) -> ReadImage:
        position, image = item
        try:
            encoded = EncodedImage(image)
            if skip is not None and skip(position, encoded.hash):
                return ReadImage(None, encoded.identify(), LEFT_OUT)
            pixels = encoded.square(size, crop_ratio)
            return ReadImage(pixels, look and look(encoded))
        except UnreadableImage as error:
            return ReadImage(None, reason=str(error))

    count = decoding_batch_size(size)
    numbered = enumerate(files)
    batches = iter(lambda: list(islice(numbered, count)), [])
    with closing(BatchReader(read, size, decoding_cores(), device)) as reader:
        for batch in reader.read(batches):
            yield batch._replace(files=[file for _, file in batch.files])


def decoding_batch_size(size: int) -> int:
    """Return the number of images in a batch of :func:`decode_images`, a power of two.

    Args:
        size: side of the squares in pixels.
    """
    fitting = max(1, min(BATCH_IMAGES, BATCH_PIXELS // size**2))
    return 1 << (fitting.bit_length() - 1)


# ---------------------------------------------------------------------- looks


def look_at_image(file: Path) -> Look:
    """Read an image, and return its look; ``UNREADABLE_HASH`` where it cannot be read."""
    try:
        return EncodedImage(file).look()
    except UnreadableImage:
        return Look(UNREADABLE_HASH)


def look_at_images(files: Sequence[Path]) -> list[Look]:
    """Look at images, by several threads."""
    with ThreadPoolExecutor(LOOKING_THREADS, "look") as pool:
        return list(pool.map(look_at_image, files))
