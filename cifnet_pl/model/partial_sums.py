"""Partial sums: the statistics of parts of a training set, one file each, merged to one model.

A file is safetensors: the statistics of a head that is not solved yet, the candidates of the
calibration buffer, the content hashes of the samples in them, and a description that is checked as
a bundle's is. Parts record the positions of their set that they cover.

To merge parts is to finish one task: each adds its statistics and candidates to what is observed,
and the task ends as in ``fit``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.buffer.calibration_buffer import STREAMING
from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches, ImageLoader
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import StoredModel, StoredRecord, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.model.merge import check_same_embeddings
from cifnet_pl.model.partition import SetPlan, Shard, ShardRecord, TrainingSet
from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained, prefixed
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import listed, number_of

FILE_ENDING = ".sums"

METADATA_KEY = "cifnet_sums"
"""Entry of a file's metadata that holds the header."""


class SumsRecord(StoredRecord):
    """The header of a file of partial sums."""

    shards: list[ShardRecord]
    sha256: str
    model: Any
    calibrated: bool = False


@dataclass
class PartialSums:
    """The statistics of one or more parts of a training set.

    Attributes:
        model: its head is not solved; its buffer holds candidates; ``images`` are the content
            hashes of the samples.
        shards: positions in the sums, ascending, without overlap.
    """

    model: Classifier
    shards: list[ShardRecord]

    @property
    def learned(self) -> str:
        """How many of the samples at these positions are in the sums, in words."""
        learned = sum(shard.learned for shard in self.shards)
        samples = sum(shard.stop - shard.start for shard in self.shards)
        return f"learned {learned:,} of {number_of(samples, 'sample')}"

    @property
    def missing(self) -> list[str]:
        """Positions of the set that are not in the sums, in words."""
        total = self.shards[0].total
        ends = [0, *(shard.stop for shard in self.shards)]
        starts = [*(shard.start for shard in self.shards), total]
        return [
            f"samples {end} to {start - 1} of {total}"
            for end, start in zip(ends, starts, strict=True)
            if end < start
        ]

    def solved(self) -> Classifier:
        """Return the model of all samples; the sums must not be used afterwards.

        Raises:
            UsageError: a part of a set is missing.
            DataError: a class without samples.
        """
        if self.missing:
            raise UsageError(
                f"not all sums are there: {listed(self.missing)} are missing; make those shards"
                " first"
            )
        self.model.finish_task()
        self.model.record_event("task", sum(self.model.counts.values()))
        return self.model

    def end(self) -> PartialSums:
        """End the observation of a part, which can be stored, and added up; return the same."""
        model = self.model
        model.add_up()
        # Which samples are duplicates is known when all are together.
        model.head.count_duplicates(-model.images.duplicates)
        # A fresh head holds nothing of the task that is under way.
        head = model.head.fresh()
        head.merge_(model.head)
        model.head = head
        if model.buffer is not None:
            # The draw of a part holds its share of the draw of all.
            model.buffer.commit()
        return self


# ---------------------------------------------------------------------- making a part


@dataclass
class ShardLearner:
    """Computes the partial sums of any part of a training set.

    Attributes:
        training_set: the samples; those of a part are read when it is made.
        empty: a model without classes; its backbone is none:<width> for embeddings.
        batch_size: images embedded in one batch.
        workers: number of processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.

    Raises:
        UnsupportedError: the statistics of the model's head are not sums.
        UsageError: its buffer selects by all embeddings of a class.
    """

    training_set: TrainingSet
    empty: Classifier
    batch_size: int = 64
    workers: int = 0
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        self.empty.head.require("merges")
        buffer = self.empty.buffer
        if buffer is not None and buffer.strategy not in STREAMING:
            raise UsageError(
                f"buffer strategy {buffer.strategy} selects among all embeddings of a class, which"
                " no part has: use random"
            )

    def sums(self, plan: SetPlan, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Args:
            plan: of the set.
            shard: of the set.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or infinity.
        """
        record = plan.record(shard)
        model = self.empty.clone()
        model.record_engines([model.engine])
        # The counts of all parts, so that these agree.
        model.begin_task(plan.class_names, plan.counts)
        labels = torch.arange(len(plan.class_names))
        for samples, rows in self.training_set.pieces(plan, record):
            loader = ImageLoader(
                samples,
                model.image_size,
                model.crop_ratio,
                self.workers,
                model.device.type,
            )
            batch_size = EMBEDDED_BATCH
            if samples.are_images:
                batch_size = self.batch_size
            model.observe_all(
                Batches(loader, rows, labels, batch_size, self.skip_unreadable)
            )
        sums = PartialSums(model, [record]).end()
        record.learned = sum(model.counts.values())
        return sums


# ---------------------------------------------------------------------- adding up


def add_up(files: Sequence[Path], trust: bool = False) -> PartialSums:
    """Add up files of sums in the order of the samples, so that parts always give the same bits.

    They are the observations of one task, which is still to be finished.

    Args:
        files: of parts of one set that do not overlap.
        trust: whether custom heads and backbones may be imported.

    Raises:
        UsageError: a sample that is in two parts, parts of different sets, or other backbones,
            image sizes, precisions, heads or settings.
        CheckpointError: a file that is damaged, or of an earlier version.
    """
    shards_of = {path: read_header(path).shards for path in files}
    in_order = sorted(files, key=lambda path: shards_of[path][0].start)
    every_shard = chain.from_iterable(shards_of[path] for path in files)
    shards = sorted(every_shard, key=lambda shard: (shard.start, shard.stop))
    for before, after in pairwise(shards):
        if after.set_hash != before.set_hash:
            raise UsageError(
                "these are sums of different sets: merge each set into a model, then the models"
            )
        if after.start < before.stop:
            raise UsageError(
                f"two have sample {after.start} of {after.total}, which would count twice"
            )
    first = in_order[0]
    total = emptied(read_sums(first, trust).model)
    for path in in_order:
        part = read_sums(path, trust, total.backbone).model
        with prefixed(f"cannot add {path.name} to {first.name}"):
            check_same_embeddings(total, part)
            total.observe_sums(part)
        total.record_engines(part.engines)
    return PartialSums(total, shards)


def emptied(model: Classifier) -> Classifier:
    """Forget what a model has observed, and begin a task of its classes; return the same."""
    names = model.class_names
    if model.buffer is not None:
        model.buffer.remove_classes(model.head.classes)
    model.head = model.head.fresh()
    model.images = ImageHashes()
    model.class_names = []
    model.begin_task(names)
    return model


# ---------------------------------------------------------------------- files


def content_of(sums: PartialSums) -> bytes:
    """Return the content of a file of partial sums; the same for the same sums."""
    tensors = sums.model.tensors()
    header = SumsRecord(
        shards=sums.shards,
        sha256=fingerprint(repr(sums.shards), tensors),
        model=sums.model.describe(),
        calibrated=sums.model.calibrated,
    )
    # Not by pydantic, which takes no names that are not UTF-8.
    content = json.dumps(header.model_dump())
    return safetensors.torch.save(tensors, {METADATA_KEY: content})


def read_sums(
    path: Path,
    trust: bool = False,
    backbone: Backbone | None = None,
) -> PartialSums:
    """Read a file of partial sums; nothing from it is executed unless ``trust``.

    Args:
        path: the file.
        trust: as for :func:`cifnet_pl.load`.
        backbone: one that is in memory already, as for :func:`~cifnet_pl.model.assembly.assemble`.

    Raises:
        CheckpointError: there is no such file, or it is damaged, or of another version.
    """
    header, tensors = read_tensors(path)
    stored = StoredModel(str(path), header.model, tensors)
    model = assemble(stored, trust=trust, solved=False, backbone=backbone)
    model.calibrated = header.calibrated
    return PartialSums(model, header.shards)


def read_tensors(path: Path) -> tuple[SumsRecord, dict[str, Tensor]]:
    """Read the header and the tensors of a file of partial sums, and check that it is whole.

    Raises:
        CheckpointError: there is no such file, or it is damaged, or of another version.
    """
    header = read_header(path)
    with explained(CheckpointError, f"cannot read {path}"):
        tensors = safetensors.torch.load_file(path)
    if fingerprint(repr(header.shards), tensors) != header.sha256:
        raise CheckpointError(
            f"{path} is damaged, or of an earlier version: its checksum is wrong; make it again"
        )
    return header, tensors


def read_header(path: Path) -> SumsRecord:
    """Read the positions and the description of a file of partial sums.

    Raises:
        CheckpointError: as :func:`read_tensors`.
    """
    unreadable = f"{path} is damaged, or no file that cifnet sums made"
    with (
        explained(CheckpointError, unreadable),
        safetensors.safe_open(path, framework="pt") as stored,
    ):
        content = json.loads(stored.metadata()[METADATA_KEY])
        return parse(SumsRecord, content, str(path))
