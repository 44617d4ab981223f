"""Go through the tasks of a stream in plain Python: batches of tensors and labels, without a Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.loading import ImageLoader, pieces
from cifnet_pl.data.sets import ImageSet, SampleSet
from cifnet_pl.data.sources.embeddings import EmbeddingSet
from cifnet_pl.utilities.errors import DataError


@dataclass(frozen=True)
class Batches:
    """Some samples of a set in batches, read anew whenever they are gone through.

    Args:
        samples: the set.
        rows: (n,) positions of the samples.
        labels: (classes,) label of each class position.
        size: samples of a batch, at most.
        side: of the squares that images become, in pixels; 0 for embeddings.
        workers: processes that decode images; 0 for none.
        skip: whether images that cannot be read are left out.
    """

    samples: SampleSet
    rows: np.ndarray
    labels: Tensor
    size: int
    side: int
    workers: int
    skip: bool

    def __len__(self) -> int:
        return len(pieces(self.rows, self.size))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images (n, 3, s, s) uint8 or embeddings (n, d) float32, and their labels (n,) int64.

        Raises:
            DataError: an image cannot be read, and is not to be left out; names it.
        """
        for samples, labels, _ in self.with_keys():
            yield samples, labels

    def with_keys(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the same batches, each with the content hashes (n,) int64 of its samples."""
        batches = pieces(self.rows, self.size)
        if isinstance(self.samples, EmbeddingSet):
            for rows in batches:
                labels = self.labels[torch.from_numpy(self.samples.labels[rows])]
                yield self.samples.get(rows), labels, torch.from_numpy(self.samples.hashes(rows))
            return
        assert isinstance(self.samples, ImageSet)
        loader = ImageLoader(self.samples, self.side, 1.0, self.workers, self.size)
        try:
            for batch in loader.decode(batches):
                if batch.unreadable and not self.skip:
                    raise DataError(
                        f"cannot read image {batch.unreadable[0]}: repair or remove it, or use on_corrupt=skip"
                    )
                yield batch.image, self.labels[batch.label], batch.key
        finally:
            loader.close()


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
