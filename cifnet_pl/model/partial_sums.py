"""Partial sums: the statistics of shards of a training set, one file each, merged to one model.

A file is safetensors: the statistics of a head that is not solved yet, the content hashes of the
samples in them, and a description that is checked as a bundle's is. Shards of one set record the
positions that they cover; shards of different sets are compared by the hashes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from pydantic import Field, Strict

from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches, ImageLoader
from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import StoredModel, StoredRecord, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import absorb, check_same_embeddings
from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained, prefixed
from cifnet_pl.utilities.files import write_bytes
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import listed, printable

FILE_ENDING = ".sums"

METADATA_KEY = "cifnet_sums"
"""Entry of a file's metadata that holds the header."""

Position = Annotated[int, Strict(), Field(ge=0)]


class ShardRecord(StoredRecord):
    """Positions ``start`` to ``stop`` (exclusive) of a set of ``total`` samples.

    Attributes:
        set_hash: see :func:`set_hash`.
    """

    set_hash: str
    start: Position
    stop: Position
    total: Position

    def __str__(self) -> str:
        return f"samples {self.start} to {self.stop - 1} of {self.total}"

    def between(self, start: int, stop: int) -> ShardRecord:
        """Return other positions of the same set."""
        return self.model_copy(update={"start": start, "stop": stop})


class SumsRecord(StoredRecord):
    """The header of a file of partial sums."""

    shards: list[ShardRecord]
    sha256: str
    model: Any


@dataclass
class PartialSums:
    """The statistics of one or more shards of training sets.

    Attributes:
        model: its head is not solved; ``images`` are the content hashes of the samples.
        shards: positions in the sums, by set, ascending, without overlap.
        name: what errors call it.
    """

    model: Classifier
    shards: list[ShardRecord]
    name: str = "sums"

    @property
    def missing(self) -> list[ShardRecord]:
        """Positions of the same sets that are not in the sums."""
        missing: list[ShardRecord] = []
        for _, of_set in itertools.groupby(self.shards, lambda each: each.set_hash):
            end = 0
            for shard in of_set:
                if shard.start > end:
                    missing.append(shard.between(end, shard.start))
                end = shard.stop
            if end < shard.total:
                missing.append(shard.between(end, shard.total))
        return missing

    def add(self, other: PartialSums) -> None:
        """Add other sums.

        Args:
            other: sums of other samples; it must not be used afterwards.

        Raises:
            UsageError: a sample that is in both, or other backbones, image sizes, precisions, heads
                or settings.
        """
        with prefixed(f"cannot add {other.name} to {self.name}"):
            self._check_overlap(other)
            check_same_embeddings(self.model, other.model)
            absorb(self.model, other.model)
            if self.model.buffer is not None:
                self.model.buffer.commit()
        shards = [*self.shards, *other.shards]
        self.shards = sorted(shards, key=lambda each: (each.set_hash, each.start))

    def _check_overlap(self, other: PartialSums) -> None:
        """Compare shards of one set by their positions, those of different sets by hashes."""
        for shard, another in itertools.product(self.shards, other.shards):
            start = max(shard.start, another.start)
            stop = min(shard.stop, another.stop)
            if shard.set_hash == another.set_hash and start < stop:
                both = shard.between(start, stop)
                raise UsageError(f"both have {both}, which would count twice")
        sets = {shard.set_hash for shard in self.shards}
        if sets >= {shard.set_hash for shard in other.shards}:
            return
        ours = self.model.images.hashes
        common = np.intersect1d(ours, other.model.images.hashes)
        if len(common):
            raise UsageError(
                f"they have {len(common)} samples in common, which would count twice"
            )

    def solved(self) -> Classifier:
        """Return the model of all samples; the sums must not be used afterwards.

        Raises:
            UsageError: a shard of a set is missing.
        """
        if self.missing:
            missing = listed([str(shard) for shard in self.missing])
            raise UsageError(
                f"not all sums are there: {missing} are missing; make those shards first"
            )
        empty = [name for name, count in self.model.counts.items() if not count]
        if empty:
            raise UsageError(
                f"class '{printable(empty[0])}' has no samples in these sums"
            )
        self.model.head.solved.fill_(False)
        self.model.solve()
        self.model.history.clear()
        images = sum(self.model.counts.values())
        self.model.record_event("task", images)
        return self.model


def set_hash(samples: SampleTable, class_names: Sequence[str]) -> str:
    """Hash a set of samples: names, labels, and the contents of the first and the last sample.

    The contents are needed because names are often only positions.

    Args:
        samples: the set.
        class_names: name of each label.

    Returns:
        32 hexadecimal digits.
    """
    title = repr((list(class_names), len(samples)))
    encoded = title.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(encoded, digest_size=16)
    labels = np.ascontiguousarray(samples.labels)
    digest.update(labels.tobytes())
    for name in samples.names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    ends = np.array([0, len(samples) - 1])
    digest.update(samples.hashes(ends).tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------------- files


def is_sums(path: Path) -> bool:
    """Return whether a path names a file of partial sums."""
    return path.suffix == FILE_ENDING


def write_sums(sums: PartialSums, path: Path) -> None:
    """Write a file of partial sums, atomically.

    Args:
        sums: what to write.
        path: the file, which is replaced.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    tensors = sums.model.tensors()
    header = {
        "shards": [shard.model_dump() for shard in sums.shards],
        "sha256": fingerprint("", tensors),
        "model": {**sums.model.describe(), "history": []},
    }
    metadata = {METADATA_KEY: json.dumps(header)}
    write_bytes(path, safetensors.torch.save(tensors, metadata))


def read_sums(path: Path, trust: bool = False) -> PartialSums:
    """Read a file of partial sums; nothing from it is executed unless ``trust``.

    Args:
        path: the file.
        trust: as for :func:`cifnet_pl.load`.

    Raises:
        CheckpointError: there is no such file, or it is damaged, or of another version.
    """
    header = _read_header(path)
    with explained(CheckpointError, f"cannot read {path}"):
        tensors = safetensors.torch.load_file(path)
    if fingerprint("", tensors) != header.sha256:
        raise CheckpointError(
            f"{path} is damaged: its checksum is wrong; make it again"
        )
    stored = StoredModel(str(path), header.model, tensors)
    model = assemble(stored, trust=trust, solved=False)
    return PartialSums(model, header.shards, path.name)


def shards_of(path: Path) -> list[ShardRecord]:
    """Read the shards that a file covers.

    Raises:
        CheckpointError: as :func:`read_sums`.
    """
    return _read_header(path).shards


def _read_header(path: Path) -> SumsRecord:
    if not path.is_file():
        raise CheckpointError(f"no file of sums at {path}: make it with cifnet sums")
    unreadable = f"{path} is damaged, or not a file of sums"
    with (
        explained(CheckpointError, unreadable),
        safetensors.safe_open(path, framework="pt") as stored,
    ):
        content = json.loads(stored.metadata()[METADATA_KEY])
    header = parse(SumsRecord, content, str(path))
    whole = [shard.start < shard.stop <= shard.total for shard in header.shards]
    if not whole or not all(whole):
        raise CheckpointError(f"{path} is damaged: its shards are not parts of a set")
    return header


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
        if match:
            index, count = int(match[1]), int(match[2])
            if 1 <= index <= count:
                return cls(index, count)
        raise UsageError(f"--shard is '{text}', expected one of n parts, such as 3/64")

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the first and one past the last position of the shard among ``total`` samples."""
        start = (self.index - 1) * total // self.count
        stop = self.index * total // self.count
        return start, stop

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        width = len(str(self.count))
        return f"shard-{self.index:0{width}}-of-{self.count}"


@dataclass
class ShardLearner:
    """Computes the partial sums of any shard of a source.

    Attributes:
        source: the training set is cut into shards; the test set is not used.
        empty: a model without classes, whose head's statistics can be merged; its backbone is
            none:<width> for embeddings.
        batch_size: images embedded in one batch.
        workers: number of processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.
        left_out: (n,) bool, training samples that are duplicates of others or lie in two classes;
            None for none.
    """

    source: Source
    empty: Classifier
    batch_size: int = 64
    workers: int = 0
    skip_unreadable: bool = False
    left_out: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.empty.head.require("merges_sites")
        width = self.empty.head.in_features
        train = self.source.train
        if not train.are_images and train.features != width:
            features = train.features
            raise UsageError(
                f"embeddings of width {features}, expected none:{features} as backbone"
            )
        names = self.source.class_names
        self._set_hash = set_hash(train, names)

    def record(self, shard: Shard) -> ShardRecord:
        """Return the positions of a shard.

        Raises:
            UsageError: there are more shards than samples.
        """
        total = len(self.source.train)
        if shard.count > total:
            raise UsageError(
                f"{total} training samples cannot be cut into {shard.count} shards: use fewer"
            )
        start, stop = shard.bounds(total)
        return ShardRecord(set_hash=self._set_hash, start=start, stop=stop, total=total)

    def sums(self, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or infinity.
        """
        record = self.record(shard)
        model = self.empty.clone()
        if model.backbone.takes_images:
            model.record_engines([model.engine])
        names = self.source.class_names
        # The counts of all shards, so that these agree.
        labels = self.source.train.labels
        counts = np.bincount(labels, minlength=len(names)).tolist()
        known_counts = None
        if min(counts):
            known_counts = counts
        model.begin_task(names, known_counts)
        model.observe_all(self._batches(model, record))
        model.add_up()
        if model.buffer is not None:
            model.buffer.commit()
        # A fresh head holds nothing of the task that is under way.
        head = model.head.fresh()
        head.merge_(model.head)
        model.head = head
        return PartialSums(model, [record], shard.name)

    def _batches(self, model: Classifier, record: ShardRecord) -> Batches:
        """Return the samples of a shard in batches."""
        rows = np.arange(record.start, record.stop)
        if self.left_out is not None:
            stays = ~self.left_out[rows]
            rows = rows[stays]
        images = self.source.train
        loader = ImageLoader(images, model.image_size, model.crop_ratio, self.workers)
        labels = torch.arange(len(self.source.class_names))
        batch_size = EMBEDDED_BATCH
        if images.are_images:
            batch_size = self.batch_size
        return Batches(loader, rows, labels, batch_size, self.skip_unreadable)
