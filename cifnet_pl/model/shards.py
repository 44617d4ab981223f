"""Compute the sums of one shard of a training set, in plain torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.content_hashes import hashes_of
from cifnet_pl.data.embeddings import EmbeddingSet
from cifnet_pl.data.image_sets import ImageSet, Source
from cifnet_pl.data.loading import EMBEDDED_BATCH, ImageLoader, SquareDataset, pieces
from cifnet_pl.heads import Head
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.partial_sums import Part, PartialSums, listing_of
from cifnet_pl.utilities.errors import DataError, UsageError

AT_ONCE = 256
"""Embeddings that are added to the sums at once, at least."""


@dataclass(frozen=True)
class Shard:
    """Number ``index`` (from 1) of ``count`` parts of nearly the same size."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard.

        Args:
            text: such as "3/64".

        Raises:
            UsageError: anything else.

        Example:
            >>> Shard.parse("3/64").bounds(640)
            (20, 30)
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        shard = cls(int(match[1]), int(match[2])) if match else cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise UsageError(f"--shard is '{text}', expected one of n parts, such as 3/64")
        return shard

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the first position of the shard, and the one after its last, in a set of ``total`` samples."""
        return (self.index - 1) * total // self.count, self.index * total // self.count

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        width = len(str(self.count))
        return f"shard-{self.index:0{width}}-of-{self.count}"


@dataclass
class ShardLearner:
    """Computes the sums of any shard of a source.

    Attributes:
        source: the training set is cut into shards; the test set is not used.
        backbone: embeds images; none:<width> for embeddings.
        make_head: function from the width of the embeddings to an empty head whose statistics pool.
        image_size, crop_ratio: of the squares that the backbone gets.
        batch_size: images embedded at once.
        workers: processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.
    """

    source: Source
    backbone: Backbone
    make_head: Callable[[int], Head]
    image_size: int
    crop_ratio: float = 1.0
    batch_size: int = 64
    workers: int = 0
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        head = self.make_head(self.backbone.features)
        head.require("pools")
        features = getattr(self.source.train, "features", head.in_features)
        if features != head.in_features:
            raise UsageError(f"the embeddings have {features} numbers each, backbone none:{head.in_features} does not")
        self._listing = listing_of(self.source.train, self.source.class_names)

    def part(self, shard: Shard) -> Part:
        """Return the positions of a shard.

        Raises:
            UsageError: there are more shards than samples.
        """
        total = len(self.source.train)
        if shard.count > total:
            raise UsageError(f"{total} training samples cannot be cut into {shard.count} shards: use fewer")
        start, stop = shard.bounds(total)
        return Part(listing=self._listing, start=start, stop=stop, total=total)

    def sums(self, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or Inf.
        """
        rows_of_shard, names = self.part(shard), self.source.class_names
        head = self.make_head(self.backbone.features)
        model = Classifier(self.backbone, head, None, [], self.image_size, self.crop_ratio)
        if self.backbone.takes_images:
            model.note_engines([model.engine])
        model.begin_task(names)
        assert model.photos is not None
        waiting: list[tuple[Tensor, Tensor]] = []
        rows = np.arange(rows_of_shard.start, rows_of_shard.stop)
        for z, embedded_rows in chain(self._embedded(model, rows), [(torch.zeros(0, head.in_features), rows[:0])]):
            labels = self.source.train.labels[embedded_rows]
            if len(embedded_rows):
                model.photos.add(labels, hashes_of(self.source.train.content, embedded_rows.tolist()))
                waiting.append((z, torch.from_numpy(labels)))
            if sum(len(y) for _, y in waiting) >= AT_ONCE or (waiting and not len(embedded_rows)):
                zs, ys = zip(*waiting, strict=True)
                head.observe(torch.cat(zs), torch.cat(ys).to(model.device))
                waiting = []
        model.head = head.fresh()
        model.head.merge_(head)  # nothing of the task that was under way is left
        return PartialSums(model, [rows_of_shard], shard.name)

    def _embedded(self, model: Classifier, rows: np.ndarray) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Yield embeddings (n, d) and the positions (n,) of their samples."""
        samples = self.source.train
        if isinstance(samples, EmbeddingSet):
            for piece in pieces(rows, EMBEDDED_BATCH):
                yield samples.get(piece).to(model.device), piece
            return
        assert isinstance(samples, ImageSet)
        decoder = SquareDataset(samples, self.source.class_names, self.image_size, self.crop_ratio)
        loader = ImageLoader(decoder, self.workers, self.batch_size, model.device.type)
        try:
            for batch in loader.set_batches(pieces(rows, self.batch_size)):
                if batch.unreadable and not self.skip_unreadable:
                    raise DataError(
                        f"cannot read {batch.unreadable[0]}; repair or remove it, or add --data.on_corrupt skip"
                    )
                embedded = batch.row.numpy()
                if len(embedded):
                    yield model.embed(batch.image, partial(_place, samples, embedded)), embedded
        finally:
            loader.close()


def _place(samples: ImageSet, rows: np.ndarray, row: int) -> str:
    return samples.place(int(rows[row]))
