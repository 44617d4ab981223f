"""Make batches on the device from positions in an image set: exact sharding, decoding in
threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.sets import ImageSet, SampleSet
from cifnet_pl.images.image import UnreadableImage, decoded
from cifnet_pl.utilities.errors import DataError

AHEAD = 2
"""Batches for each thread that are decoded ahead of the reader, or at a time where the two
alternate.
"""


class ImageBatch(NamedTuple):
    """Decoded images. ``unreadable`` lists "place: reason" of those that could not be decoded and
    are left out.
    """

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
"""Samples in a batch of embeddings that are stored already: they take little memory, and sums over
many are faster.
"""

SCORES = 2**19
"""Scores of an evaluation batch of such samples, at most: with many classes they take more memory
than embeddings.
"""


def shard_batches(rows: np.ndarray, batch_size: int, rank: int, world: int) -> list[np.ndarray]:
    """Divide rows into batches over processes: every row exactly once, and the same number of
    batches on each process.

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
    """Cut rows (n,) into pieces of ``size``; the last one may be smaller, and without rows there is
    none.
    """
    return [rows[i : i + size] for i in range(0, len(rows), size)]


class ImageLoader:
    """Decode batches of images in threads.

    Args:
        images: the set.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        workers: number of threads, at least one.
        device: type of the device that embeds the images.
    """

    def __init__(
        self, images: ImageSet, size: int, crop_ratio: float, workers: int, device: str = "cpu"
    ):
        self._images = images
        self._size = size
        self._crop_ratio = crop_ratio
        self._workers = max(1, workers)
        self._device = device
        self._pool = ThreadPoolExecutor(self._workers, "decode")

    def decode(self, batches: Sequence[np.ndarray]) -> Iterator[ImageBatch]:
        """Return an iterator over decoded batches; the threads begin with the first ones now.

        Args:
            batches: positions of the images of each batch.
        """
        alternate = self._device == "cpu" and torch.get_num_threads() > 1
        rows = iter([batch.tolist() for batch in batches])
        ahead = AHEAD * self._workers
        return map(
            self._batch,
            decoded(
                self._pool, rows, self._size, self._read, ahead, alternate, self._device == "cuda"
            ),
        )

    def _read(self, row: int, pixels: np.ndarray) -> tuple[int, str | None]:
        """Decode an image; return its content hash, and why it cannot be read or None."""
        try:
            image = self._images.image(row)
            pixels[:] = image.square(self._size, self._crop_ratio)
            return image.hash, None
        except UnreadableImage as error:
            return 0, f"{self._images.place(row)}: {error}"

    def _batch(
        self, batch: tuple[Sequence[int], Tensor, list[tuple[int, str | None]]]
    ) -> ImageBatch:
        given, pixels, outcomes = batch
        readable = np.array([reason is None for _, reason in outcomes], dtype=bool)
        rows = np.array(given, dtype=np.int64)[readable]
        hashes = np.array([value for value, _ in outcomes], dtype=np.int64)[readable]
        image = (pixels if readable.all() else pixels[torch.from_numpy(readable)]).permute(
            0, 3, 1, 2
        )
        label, key, row = (
            torch.from_numpy(column) for column in (self._images.labels[rows], hashes, rows)
        )
        return ImageBatch(
            image, label, key, row, tuple(reason for _, reason in outcomes if reason is not None)
        )

    def unreadable(self) -> Iterator[str]:
        """Decode all images of the set, and yield "place: reason" of each that cannot be
        decoded.
        """
        for batch in self.decode(pieces(np.arange(len(self._images)), CHECKED)):
            yield from batch.unreadable

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)


class Store(Protocol):
    """A place from which embeddings of images are read without the backbone."""

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of images ``rows``."""


class StoredLoader:
    """Batches in a given order, each from a store of embeddings or from decoded images.

    Iteration starts lazily, at the first ``next``: Lightning creates the training iterator twice
        per task, and
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
        self._samples = samples
        self._plan = plan
        self._loader = loader
        self._learned = learned
        self._begun: Iterator[ImageBatch] | None = None

    def __len__(self) -> int:
        return len(self._plan)

    def begin(self) -> None:
        """Let the workers decode the first images of the next iteration now."""
        missing = [rows for rows, store in self._plan if store is None]
        if self._loader is not None:
            self._begun = self._loader.decode(missing)
        else:
            self._begun = iter(())

    def __iter__(self) -> Iterator[Batch]:
        if self._begun is None:
            self.begin()
        decoded = cast(Iterator[ImageBatch], self._begun)
        self._begun = None
        for rows, store in self._plan:
            yield next(decoded) if store is None else self._stored(rows, store)

    def _stored(self, rows: np.ndarray, store: Store) -> EmbeddingBatch:
        if self._learned:
            keys = self._samples.hashes(rows)
        else:
            keys = np.zeros(len(rows), dtype=np.int64)
        labels = torch.from_numpy(self._samples.labels[rows])
        return EmbeddingBatch(
            store.get(rows), labels, torch.from_numpy(keys), torch.from_numpy(rows)
        )


# ---------------------------------------------------------------------- unreadable images

NAMED = 50
"""Unreadable images that one error names."""

CHECKED = 32
"""Images that are decoded at once to find unreadable ones."""


def name_unreadable(known: Sequence[str], loaders: Sequence[ImageLoader]) -> str:
    """Return a sentence that names the unreadable images of some sets.

    Args:
        known: "place: reason" of those that were found already; they come first.
        loaders: of the sets, all of which are looked through.
    """
    others = chain.from_iterable(loader.unreadable() for loader in loaders)
    names = list(islice(dict.fromkeys(chain(known, others)), NAMED + 1))
    shown = "; ".join(names[:NAMED]) + ("; and more" if len(names) > NAMED else "")
    these, them = ("image", "it") if len(names) == 1 else ("these images:", "them")
    return f"cannot read {these} {shown}: repair or remove {them}, or use --data.on_corrupt skip"


# ---------------------------------------------------------------------- a loop of one's own


@dataclass(frozen=True)
class Batches:
    """Some samples of a set in batches, read anew whenever they are gone through.

    Args:
        samples: the set.
        rows: (n,) positions of the samples.
        labels: (classes,) label of each class position.
        size: samples of a batch, at most.
        side: of the squares that images become, in pixels; 0 for embeddings.
        workers: threads that decode images.
        skip: whether images that cannot be read are left out.
        crop_ratio: share of the shorter side of an image that its square has.
    """

    samples: SampleSet
    rows: np.ndarray
    labels: Tensor
    size: int
    side: int
    workers: int
    skip: bool
    crop_ratio: float = 1.0

    def __len__(self) -> int:
        return len(pieces(self.rows, self.size))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, s, s) uint8 or embeddings (n, d) float32, and their labels (n,)
        int64.

        Raises:
            DataError: an image cannot be read, and is not to be left out; names it.
        """
        for samples, labels, _, _ in self.with_keys():
            yield samples, labels

    def with_keys(self) -> Iterator[tuple[Tensor, Tensor, Tensor, np.ndarray]]:
        """Yield the same batches, each with the content hashes (n,) int64 and positions (n,) of its
        samples.
        """
        batches = pieces(self.rows, self.size)
        if not isinstance(self.samples, ImageSet):
            for rows in batches:
                labels = self.labels[torch.from_numpy(self.samples.labels[rows])]
                yield (
                    cast(Store, self.samples).get(rows),
                    labels,
                    torch.from_numpy(self.samples.hashes(rows)),
                    rows,
                )
            return
        with closing(ImageLoader(self.samples, self.side, self.crop_ratio, self.workers)) as loader:
            for batch in loader.decode(batches):
                if batch.unreadable and not self.skip:
                    raise DataError(name_unreadable(batch.unreadable, ()))
                if len(batch.row):
                    yield batch.image, self.labels[batch.label], batch.key, batch.row.numpy()


@dataclass(frozen=True)
class Task:
    """One task of a stream.

    Attributes:
        number: of the task, from 0.
        class_names: names of the classes that it introduces.
        labels: their labels: classes are numbered in the order in which they are introduced.
        train: what it brings.
        test: the test samples of all classes introduced so far.
    """

    number: int
    class_names: list[str]
    labels: list[int]
    train: Batches
    test: Batches
