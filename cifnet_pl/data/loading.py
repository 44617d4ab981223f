"""From positions in an image set to batches on the device: exact sharding, worker decoding, embedding memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cifnet_pl.data.image_sets import ImageSet
from cifnet_pl.data.images import UnreadableImage


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


def sample_key(class_name: str, name: str) -> int:
    """A 63-bit hash of a sample's class and name: its identity in the calibration buffer, on any machine."""
    digest = hashlib.blake2b(f"{class_name}\0{name}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def shard_batches(rows: np.ndarray, batch_size: int, rank: int, world: int) -> list[np.ndarray]:
    """This process's batches: every row exactly once over all processes, the same number of batches on each.

    No row is padded or dropped; with fewer rows than processes some batches are empty.
    """
    step = batch_size * world
    chunks = [rows[i : i + step] for i in range(0, len(rows), step)]
    return [np.array_split(chunk, world)[rank] for chunk in chunks]


class SquareDataset(Dataset[tuple[Any, ...]]):
    """Decodes one image of a set to a uint8 square, in a worker process."""

    def __init__(self, images: ImageSet, class_names: Sequence[str], size: int, crop_ratio: float):
        self.images, self.class_names = images, class_names
        self.size, self.crop_ratio = size, crop_ratio

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        label, name = int(self.images.labels[index]), self.images.names[index]
        key = sample_key(self.class_names[label], name)
        try:
            return self.images.square(index, self.size, self.crop_ratio), label, key, index, ""
        except UnreadableImage as error:
            return None, label, key, index, f"{self.images.place(index)}: {error}"

    def collate(self, samples: Sequence[tuple[Any, ...]]) -> ImageBatch:
        """Stack what could be read; n may be 0."""
        good = [sample for sample in samples if sample[0] is not None]
        shape = (0, self.size, self.size, 3)
        pixels = np.stack([sample[0] for sample in good]) if good else np.zeros(shape, dtype=np.uint8)
        numbers = torch.tensor([sample[1:4] for sample in good], dtype=torch.int64).reshape(-1, 3)
        image = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        label, key, row = numbers.unbind(1)
        return ImageBatch(image, label, key, row, tuple(s[4] for s in samples if s[4]))


class _MutableBatches:
    """A batch sampler whose batches are replaced between tasks, while the workers live on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class ImageLoader:
    """Batches of decoded images; one set of worker processes for all tasks.

    Iteration starts lazily, at the first ``next``: Lightning creates the training iterator twice per task, and
    an eager one would decode its first images for nothing.

    Args:
        dataset: decodes one image.
        workers: number of processes; 0 to decode in this one.
        device: type of the device that embeds the images.
    """

    def __init__(self, dataset: SquareDataset, workers: int, device: str = "cpu"):
        self._sampler = _MutableBatches()
        self._loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=self._sampler,
            num_workers=workers,
            collate_fn=dataset.collate,
            persistent_workers=workers > 0,
            pin_memory=device == "cuda",
        )

    def set_batches(self, batches: Sequence[np.ndarray]) -> ImageLoader:
        """Choose what the next iteration yields."""
        self._sampler.batches = [batch.tolist() for batch in batches]
        return self

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[ImageBatch]:
        if len(self):
            yield from self._loader

    def start(self) -> None:
        """Start the worker processes, unless they run: best before a network's first pass.

        A process shares its memory with those it forks until it writes to a page, and then copies it: after one pass
        of a network on the CPU, a gigabyte or more.
        """
        if self._loader.num_workers and self._loader._iterator is None:
            batches, self._sampler.batches = self._sampler.batches, []
            iter(self._loader)
            self._sampler.batches = batches

    def close(self) -> None:
        """Stop the worker processes; others start if the loader is used again.

        Left to the garbage collector they would outlive the run, as Lightning keeps its loaders.
        """
        workers, self._loader._iterator = self._loader._iterator, None
        if workers is not None:
            cast(Any, workers)._shutdown_workers()


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
        """(n,) bool: which rows are in memory."""
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
        """(n, d) float32 embeddings of rows that are known."""
        assert self._store is not None
        return self._store[self._slot[rows]]


class Store(Protocol):
    """Where embeddings of images can be had without the backbone."""

    def get(self, rows: np.ndarray) -> Tensor:
        """(n, d) float32 embeddings of images ``rows``."""


class StoredLoader:
    """Batches in a given order, each from a store of embeddings or, where there is none, from decoded images.

    Args:
        images: the set that the rows are of.
        class_names: name of each label of the set.
        plan: rows of each batch, and the store that has them or None.
        loader: decodes the batches that no store has.
    """

    def __init__(
        self,
        images: ImageSet,
        class_names: Sequence[str],
        plan: Sequence[tuple[np.ndarray, Store | None]],
        loader: ImageLoader,
    ):
        self._images, self._class_names, self._plan, self._loader = images, class_names, plan, loader

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[Batch]:
        decoded = iter(self._loader.set_batches([rows for rows, store in self._plan if store is None]))
        for rows, store in self._plan:
            yield next(decoded) if store is None else self._stored(rows, store)

    def _stored(self, rows: np.ndarray, store: Store) -> EmbeddingBatch:
        labels = self._images.labels[rows]
        keys = [sample_key(self._class_names[c], self._images.names[i]) for c, i in zip(labels, rows, strict=True)]
        return EmbeddingBatch(
            store.get(rows), torch.from_numpy(labels), torch.tensor(keys, dtype=torch.int64), torch.from_numpy(rows)
        )
