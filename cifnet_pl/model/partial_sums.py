"""Partial sums: the statistics of parts of a training set, one file each, merged to one model.

A file is safetensors: the statistics of a head that is not solved yet, the candidates of the
calibration buffer, the content hashes of the samples in them, and a description that is checked as
a bundle's is. Parts of one set record the positions that they cover; parts of different sets are
compared by the hashes.

To merge parts is to finish one task: each adds its statistics and candidates to what is observed,
and the task ends as in ``fit``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.buffer.calibration_buffer import STREAMING
from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches, ImageLoader
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import Description, StoredModel, StoredRecord, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import check_same_embeddings
from cifnet_pl.model.partition import SetPlan, Shard, ShardRecord, TrainingSet
from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained, prefixed
from cifnet_pl.utilities.files import write_bytes
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
    """The statistics of one or more parts of training sets.

    Attributes:
        model: its head is not solved; its buffer holds candidates; ``images`` are the content
            hashes of the samples.
        shards: positions in the sums, by set, ascending, without overlap.
        name: what errors call it.
    """

    model: Classifier
    shards: list[ShardRecord]
    name: str = "sums"

    @property
    def learned(self) -> str:
        """How many of the samples at these positions are in the sums, in words."""
        learned = sum(self.model.counts.values())
        samples = sum(shard.stop - shard.start for shard in self.shards)
        return f"learned {learned:,} of {number_of(samples, 'sample')}"

    @property
    def missing(self) -> list[ShardRecord]:
        """Positions of the same sets that are not in the sums."""
        missing = []
        for before, after in self._neighbours():
            if before.stop < after.start:
                missing.append(before.between(before.stop, after.start))
        return missing

    def _neighbours(self) -> Iterator[tuple[ShardRecord, ShardRecord]]:
        """Yield each two shards of a set that follow each other, from its start to its end."""
        for _, of_set in groupby(self.shards, lambda shard: shard.set_hash):
            shards = list(of_set)
            total = shards[0].total
            start = shards[0].between(0, 0)
            end = shards[0].between(total, total)
            yield from pairwise([start, *shards, end])

    def check_overlap(self) -> None:
        """Raise UsageError where two of the shards have a position in common."""
        for before, after in self._neighbours():
            if after.start < before.stop:
                both = before.between(after.start, min(before.stop, after.stop))
                raise UsageError(
                    f"{self.name}: two have {both}, which would count twice"
                )

    def solved(self) -> Classifier:
        """Return the model of all samples; the sums must not be used afterwards.

        Raises:
            UsageError: a part of a set is missing.
            DataError: a class without samples.
        """
        if self.missing:
            missing = listed([str(shard) for shard in self.missing])
            raise UsageError(
                f"not all sums are there: {missing} are missing; make those shards first"
            )
        self.model.finish_task()
        self.model.history.clear()
        images = sum(self.model.counts.values())
        self.model.record_event("task", images)
        return self.model

    def end(self) -> PartialSums:
        """End the observation of a part, which can be stored, and added up; return the same."""
        self.model.add_up()
        # Which samples are duplicates is known when all are together.
        self.model.head.count_duplicates(-self.model.images.duplicates)
        # A fresh head holds nothing of the task that is under way.
        head = self.model.head.fresh()
        head.merge_(self.model.head)
        self.model.head = head
        if self.model.buffer is not None:
            # The draw of a part holds its share of the draw of all.
            self.model.buffer.commit()
        return self


def emptied(model: Classifier) -> Classifier:
    """Return a model of the same settings that has observed nothing."""
    buffer = None
    if model.buffer is not None:
        settings: dict[str, Any] = model.buffer.settings()
        buffer = CalibrationBuffer(**settings)
    return Classifier(
        model.backbone,
        model.head.fresh(),
        buffer,
        calibrated=model.calibrated,
        image_size=model.image_size,
        crop_ratio=model.crop_ratio,
        precision=model.precision,
    )


# ---------------------------------------------------------------------- making a part


@dataclass
class ShardLearner:
    """Computes the partial sums of any part of a training set.

    Attributes:
        training_set: the samples; those of a part are read when it is made.
        plan: of the set.
        empty: a model without classes; its backbone is none:<width> for embeddings.
        batch_size: images embedded in one batch.
        workers: number of processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.

    Raises:
        UnsupportedError: the statistics of the model's head are not sums.
        UsageError: its buffer selects by all embeddings of a class.
    """

    training_set: TrainingSet
    plan: SetPlan
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

    def sums(self, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or infinity.
        """
        record = self.plan.record(shard)
        model = emptied(self.empty)
        model.record_engines([model.engine])
        # The counts of all parts, so that these agree.
        model.begin_task(self.plan.class_names, self.plan.counts)
        for piece in self.training_set.pieces(self.plan, record.start, record.stop):
            loader = ImageLoader(
                piece.samples,
                model.image_size,
                model.crop_ratio,
                self.workers,
                model.device.type,
            )
            batch_size = EMBEDDED_BATCH
            if piece.samples.are_images:
                batch_size = self.batch_size
            labels = torch.from_numpy(piece.labels)
            model.observe_all(
                Batches(loader, piece.rows, labels, batch_size, self.skip_unreadable)
            )
        sums = PartialSums(model, [record], shard.name).end()
        record.learned = sum(model.counts.values())
        return sums


# ---------------------------------------------------------------------- adding up


def add_up(files: Sequence[Path], trust: bool = False) -> PartialSums:
    """Add up files of sums in the order of the samples, so that parts always give the same bits.

    They are the observations of one task, which is still to be finished.

    Args:
        files: of parts that do not overlap.
        trust: whether custom heads and backbones may be imported.

    Raises:
        UsageError: a sample that is in two parts, or other backbones, image sizes, precisions,
            heads or settings.
        CheckpointError: a file that is damaged, or of an earlier version.
    """
    headers = {path: read_header(path) for path in files}
    in_order = sorted(
        files, key=lambda path: (headers[path].shards[0].place, path.name)
    )
    names: dict[str, None] = {}
    for path in in_order:
        description = parse(Description, headers[path].model, str(path))
        names |= dict.fromkeys(description.class_names)
    part = read_sums(in_order[0], trust)
    total = PartialSums(emptied(part.model), [], in_order[0].name)
    total.model.begin_task(list(names))
    hashes_of_set: dict[str, list[np.ndarray]] = {}
    for path in in_order:
        part = read_sums(path, trust, total.model.backbone)
        with prefixed(f"cannot add {part.name} to {total.name}"):
            check_same_embeddings(total.model, part.model)
            total.model.observe_sums(part.model)
        total.model.record_engines(part.model.engines)
        total.shards += part.shards
        hashes = hashes_of_set.setdefault(part.shards[0].set_hash, [])
        hashes.append(part.model.images.hashes)
    total.shards.sort(key=lambda shard: shard.place)
    total.check_overlap()
    if len(hashes_of_set) > 1:
        _check_sets([np.concatenate(hashes) for hashes in hashes_of_set.values()])
    return total


def _check_sets(hashes_of_sets: Sequence[np.ndarray]) -> None:
    """Raise UsageError where two sets have samples in common, by their content hashes."""
    together = np.concatenate([np.unique(hashes) for hashes in hashes_of_sets])
    common = len(together) - len(np.unique(together))
    if common:
        raise UsageError(
            f"they have {common} samples in common, which would count twice"
        )


# ---------------------------------------------------------------------- files


def content_of(sums: PartialSums) -> bytes:
    """Return the content of a file of partial sums; the same for the same sums."""
    tensors = sums.model.tensors()
    header = SumsRecord(
        shards=sums.shards,
        sha256=fingerprint(repr(sums.shards), tensors),
        model={**sums.model.describe(), "history": []},
        calibrated=sums.model.calibrated,
    )
    metadata = {METADATA_KEY: header.model_dump_json()}
    return safetensors.torch.save(tensors, metadata)


def write_sums(sums: PartialSums, path: Path) -> None:
    """Write a file of partial sums, atomically.

    Args:
        sums: what to write.
        path: the file, which is replaced.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    write_bytes(path, content_of(sums))


def read_sums(
    path: Path, trust: bool = False, backbone: Backbone | None = None
) -> PartialSums:
    """Read a file of partial sums; nothing from it is executed unless ``trust``.

    Args:
        path: the file.
        trust: as for :func:`cifnet_pl.load`.
        backbone: one that is in memory already, as for :func:`~cifnet_pl.model.assembly.assemble`.

    Raises:
        CheckpointError: there is no such file, or it is damaged, of another version, or does not
            hold as many samples as it says.
    """
    header, tensors = read_tensors(path)
    stored = StoredModel(str(path), header.model, tensors)
    model = assemble(stored, trust=trust, solved=False, backbone=backbone)
    model.calibrated = header.calibrated
    learned = sum(model.counts.values())
    if learned != sum(shard.learned for shard in header.shards):
        raise CheckpointError(
            f"{path.name} has {number_of(learned, 'sample')}, not as many as it says: make"
            " it again"
        )
    return PartialSums(model, header.shards, path.name)


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
