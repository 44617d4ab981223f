"""Store sums over parts of a training set, one file each, and add them up to a model of the whole
set.

A file is safetensors: the statistics of a head that is not solved yet, the content hashes of the
samples in them, and a description that is checked as a bundle's is. Parts of one set name the
positions that they cover; parts of different sets are compared by the hashes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, Strict
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches
from cifnet_pl.data.sets import SampleSet, Source
from cifnet_pl.model.bundle import StoredTensors, Table, open_tensors, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import absorb, check_same_embeddings
from cifnet_pl.model.store import assemble
from cifnet_pl.utilities.errors import CheckpointError, UsageError, prefixed
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import listed, printable

ENDING = ".sums"
"""Of the names of files of sums."""

KEY = "cifnet_sums"
"""The entry of a file's metadata."""

PROBES = 64
"""Samples whose contents tell sets with the same names apart."""

Position = Annotated[int, Strict(), Field(ge=0)]


class Part(Table):
    """Positions ``start`` to ``stop`` (exclusive) of a set of ``total`` samples; ``listing`` is the
    set's hash.
    """

    listing: str
    start: Position
    stop: Position
    total: Position

    def __str__(self) -> str:
        return f"samples {self.start} to {self.stop - 1} of {self.total}"


class SumsTable(Table):
    """The header of a file of sums, besides the description of its model."""

    parts: list[Part]
    sha256: str
    model: Any


@dataclass
class PartialSums:
    """The sums of one or more parts of a training set.

    Attributes:
        model: its head is not solved; ``images`` are the content hashes of the samples.
        parts: positions in the sums, by set, ascending, without overlap.
        name: what errors call it.
    """

    model: Classifier
    parts: list[Part]
    name: str = "sums"

    @property
    def missing(self) -> list[Part]:
        """Positions of the same sets that are not in the sums."""
        missing: list[Part] = []
        for listing in dict.fromkeys(part.listing for part in self.parts):
            listed = [part for part in self.parts if part.listing == listing]
            stops = [0, *(part.stop for part in listed)]
            starts = [*(part.start for part in listed), listed[0].total]
            gaps = zip(stops, starts, strict=True)
            missing += [
                listed[0].model_copy(update={"start": a, "stop": b})
                for a, b in gaps
                if a < b
            ]
        return missing

    def add(self, other: PartialSums) -> None:
        """Add other sums.

        Args:
            other: sums of other samples; it must not be used afterwards.

        Raises:
            UsageError: a sample that both saw, or other backbones, image sizes, precisions, heads
                or settings.
        """
        for one, another in itertools.product(self.parts, other.parts):
            start = max(one.start, another.start)
            stop = min(one.stop, another.stop)
            if one.listing == another.listing and start < stop:
                raise UsageError(
                    f"{other.name} and {self.name} both have samples {start} to {stop - 1}, which"
                    " would count twice"
                )
        known = {part.listing for part in self.parts}
        if any(part.listing not in known for part in other.parts):
            ours, theirs = (
                sums.model.images.content.cpu().numpy() for sums in (self, other)
            )
            common = np.intersect1d(ours, theirs)
            if len(common):
                raise UsageError(
                    f"{other.name} and {self.name} have {len(common)} samples in common, which"
                    " would count twice"
                )
        with prefixed(f"cannot add {other.name} to {self.name}"):
            check_same_embeddings(self.model, other.model)
            absorb(self.model, other.model)
        self.parts = _joined([*self.parts, *other.parts])

    def solved(self) -> Classifier:
        """Return the model of all samples; the sums must not be used afterwards.

        Raises:
            UsageError: a part of a set is missing.
        """
        if self.missing:
            parts = listed([str(part) for part in self.missing])
            raise UsageError(
                f"not all sums are there: {parts} are missing; make those shards first"
            )
        empty = [name for name, count in self.model.counts.items() if not count]
        if empty:
            raise UsageError(
                f"class '{printable(empty[0])}' has no samples in these sums"
            )
        self.model.head.solved.fill_(False)
        self.model.solve()
        self.model.history.clear()
        self.model.record_event("task", sum(self.model.counts.values()))
        return self.model


def listing_of(samples: SampleSet, class_names: Sequence[str]) -> str:
    """Hash the list of a set's samples: names, labels and the contents of a few samples, in order.

    The contents are needed because names are often only positions.

    Args:
        samples: the set.
        class_names: name of each label.

    Returns:
        32 hexadecimal digits.
    """
    digest = hashlib.blake2b(
        repr((list(class_names), len(samples))).encode("utf-8", "surrogateescape"),
        digest_size=16,
    )
    digest.update(np.ascontiguousarray(samples.labels).tobytes())
    for name in samples.names:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    probes = np.linspace(0, len(samples) - 1, min(PROBES, len(samples))).astype(
        np.int64
    )
    digest.update(samples.hashes(probes).tobytes())
    return digest.hexdigest()


def write_sums(sums: PartialSums, path: Path) -> None:
    """Write a file of sums, atomically.

    Args:
        sums: what to write.
        path: the file, which is replaced.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    tensors = sums.model.tensors()
    digest = fingerprint("", tensors)
    about = {**sums.model.describe(), "history": []}
    header = {
        "parts": [part.model_dump() for part in sums.parts],
        "sha256": digest,
        "model": about,
    }
    content = save(tensors, {KEY: json.dumps(header)})
    write_atomic(path, lambda file: file.write(content))


def read_sums(path: Path, trust: bool = False) -> PartialSums:
    """Read a file of sums; nothing from it is executed unless ``trust``.

    Args:
        path: the file.
        trust: as for :func:`cifnet_pl.load`.

    Raises:
        CheckpointError: there is no such file, or it is damaged, hostile, or of another version.
    """
    with _opened(path) as (table, stored):

        def read() -> dict[str, Tensor]:
            tensors = stored.read()
            if fingerprint("", tensors) != table.sha256:
                raise CheckpointError(
                    f"{path} is damaged: its checksum is wrong; make it again"
                )
            return tensors

        model = assemble(
            table.model, stored.shapes, read, str(path), trust=trust, solved=False
        )
    return PartialSums(model, table.parts, path.name)


def parts_of(path: Path) -> list[Part]:
    """Read the parts that a file covers.

    Raises:
        CheckpointError: as :func:`read_sums`.
    """
    with _opened(path) as (table, _):
        return table.parts


@contextmanager
def _opened(path: Path) -> Iterator[tuple[SumsTable, StoredTensors]]:
    """Open a file of sums: its header, checked, and its tensors."""
    if not path.is_file():
        raise CheckpointError(f"no file of sums at {path}: make it with cifnet sums")
    with open_tensors(path) as stored:
        table = parse(
            SumsTable, json.loads(stored.metadata.get(KEY, "null")), str(path)
        )
        if not table.parts or any(
            part.start >= part.stop or part.stop > part.total for part in table.parts
        ):
            raise CheckpointError(
                f"{path} is damaged: its parts are not parts of a set"
            )
        yield table, stored


def is_sums(path: Path) -> bool:
    """Return whether a path names a file of sums."""
    return path.suffix == ENDING


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring parts, so that a list of many shards stays short."""
    joined: list[Part] = []
    for part in sorted(parts, key=lambda part: (part.listing, part.start)):
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.listing == part.listing
            and last.stop == part.start
        ):
            joined[-1] = last.model_copy(update={"stop": part.stop})
        else:
            joined.append(part)
    return joined


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
            shard = cls(int(match[1]), int(match[2]))
        else:
            shard = cls(0, 0)
        if not 1 <= shard.index <= shard.count:
            raise UsageError(
                f"--shard is '{text}', expected one of n parts, such as 3/64"
            )
        return shard

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the first position of the shard, and the one after its last, in a set of ``total``
        samples.
        """
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
        empty: a model without classes, whose head's statistics pool; its backbone is none:<width>
            for embeddings.
        batch_size: images embedded at once.
        workers: processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.
        left_out: (n,) bool, training samples that are copies of others or lie in two classes; None
            for none.
    """

    source: Source
    empty: Classifier
    batch_size: int = 64
    workers: int = 0
    skip_unreadable: bool = False
    left_out: np.ndarray | None = None

    def __post_init__(self) -> None:
        width = self.empty.head.in_features
        self.empty.head.require("pools")
        features = getattr(self.source.train, "features", width)
        if features != width:
            raise UsageError(
                f"the embeddings have {features} numbers each, backbone none:{width} does not"
            )
        self._listing = listing_of(self.source.train, self.source.class_names)

    def part(self, shard: Shard) -> Part:
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
        return Part(listing=self._listing, start=start, stop=stop, total=total)

    def sums(self, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or Inf.
        """
        part = self.part(shard)
        samples = self.source.train
        model = self.empty.clone()
        rows = np.arange(part.start, part.stop)
        images = model.backbone.takes_images
        if self.left_out is not None:
            rows = rows[~self.left_out[rows]]
        if images:
            model.record_engines([model.engine])
        names = self.source.class_names
        counts = np.bincount(
            samples.labels, minlength=len(names)
        ).tolist()  # of all shards, which so agree
        model.begin_task(names, counts if min(counts) else None)
        labels = torch.arange(len(names))
        side, size = (
            (model.image_size, self.batch_size) if images else (0, EMBEDDED_BATCH)
        )
        options = (size, side, self.workers, self.skip_unreadable, model.crop_ratio)
        model.observe_all(Batches(samples, rows, labels, *options))
        model.add_up()
        sums = model.head.fresh()
        sums.merge_(model.head)  # nothing of the task that is under way is left
        model.head = sums
        return PartialSums(model, [part], shard.name)
