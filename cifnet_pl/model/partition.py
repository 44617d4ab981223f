"""Cut a training set into parts: planned once, then each part reads its own units alone.

A unit is what can be read without the others: a tar file, a block of rows of a file of embeddings
(in Parquet a row group), or the listing of any other source. Nothing is held out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import NonNegativeInt

from cifnet_pl.data.duplicates import find_duplicates
from cifnet_pl.data.samples import (
    SampleTable,
    Source,
    SourceOptions,
    labelled,
)
from cifnet_pl.data.sources import build_source, check_own_options
from cifnet_pl.data.sources.folders import SplitFiles
from cifnet_pl.data.sources.tables import ArrayFile, embedding_files, open_table
from cifnet_pl.data.sources.tar_shards import find_shards, webdataset
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.model.bundle import StoredRecord
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.growing_tensors import fingerprint


class ShardRecord(StoredRecord):
    """Positions ``start`` to ``stop`` (exclusive) of a set of ``total`` samples.

    Attributes:
        set_hash: of the set (:class:`SetPlan`).
        learned: number of its samples that are in the sums: duplicates and unreadable images are
            not.
    """

    set_hash: str
    start: NonNegativeInt
    stop: NonNegativeInt
    total: NonNegativeInt
    learned: NonNegativeInt = 0


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
        """
        if re.fullmatch(r"\d+/\d+", text):
            index, count = map(int, text.split("/"))
            if 1 <= index <= count:
                return cls(index, count)
        raise UsageError(f"--shard is '{text}', expected one of n parts, such as 3/64")

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        width = len(str(self.count))
        return f"shard-{self.index:0{width}}-of-{self.count}"


class UnitRecord(StoredRecord):
    """A unit of a training set.

    Attributes:
        name: path of a tar file, number of a block; empty for a listing.
        samples: number of its training samples.
        digest: of them (:func:`digest`).
    """

    name: str
    samples: NonNegativeInt
    digest: str


class SetPlan(StoredRecord):
    """What all parts of a training set must know of it.

    Attributes:
        data: options that say which set it is.
        set_hash: differs between any two sets.
        class_names: of all classes, in the order of their labels.
        counts: number of samples of each class that are learned, unreadable ones included.
        units: in the order of the samples.
        left_out: positions of samples that are duplicates of others, or lie in two classes.
    """

    data: dict[str, Any]
    set_hash: str
    class_names: list[str]
    counts: list[NonNegativeInt]
    units: list[UnitRecord]
    left_out: list[NonNegativeInt]

    def record(self, shard: Shard) -> ShardRecord:
        """Return the positions of a part, of which nothing is learned yet."""
        total = sum(unit.samples for unit in self.units)
        return ShardRecord(
            set_hash=self.set_hash,
            start=(shard.index - 1) * total // shard.count,
            stop=shard.index * total // shard.count,
            total=total,
        )


@dataclass(eq=False)
class TrainingSet:
    """The training samples of a source, without its test split.

    Attributes:
        source: name of the source.
        options: of the source; they hold nothing out.
        duplicates: as in ``fit``; None where the source is not searched for them.
    """

    source: str
    options: SourceOptions
    duplicates: Duplicates | None = None

    @cached_property
    def whole(self) -> Source:
        """The whole source, for a listing and to look for duplicates."""
        return build_source(self.source, self.options)

    @cached_property
    def _blocks(self) -> list[ArrayFile]:
        """Blocks of rows of all files of embeddings."""
        files = training_files(embedding_files(self.options.root))
        blocks = [open_table(file).blocks() for file in files]
        return list(chain.from_iterable(blocks))

    def units(self) -> tuple[list[str], list[str]]:
        """Return the names of all units in the order of the samples, and sentences about them."""
        if self.source not in ("embeddings", "webdataset"):
            return [""], list(self.whole.notes)
        check_own_options(self.source, self.options.own)
        if self.source == "embeddings":
            return list(map(str, range(len(self._blocks)))), []
        found = find_shards(self.options)
        return list(map(str, training_files(found))), list(found.notes)

    def read(self, unit: str) -> SampleTable:
        """Return the training samples of a unit."""
        if self.source == "embeddings":
            samples = self._blocks[int(unit)].samples(**self.options.own)
            if "split" not in samples.table:
                return samples
            is_training = samples.table["split"] == "train"
            return samples.subset(np.flatnonzero(is_training))
        if self.source == "webdataset":
            return webdataset(replace(self.options, root=Path(unit)))
        return replace(self.whole.train, class_names=self.whole.class_names)

    def plan(self, data: dict[str, Any]) -> tuple[SetPlan, list[str]]:
        """Plan the parts of the set: find its classes, units and duplicates.

        Args:
            data: options that say which set it is.

        Returns:
            The plan, and sentences for the user.

        Raises:
            DataError: as for the source; a class whose samples are all in another class, too.
        """
        names, notes = self.units()
        left_out = []
        if self.duplicates is not None:
            found = find_duplicates(self.whole, ())
            notes += found.sentences(self.duplicates)
            if self.duplicates == "leave_out":
                is_left_out = found.left_out(self.whole)["train"]
                left_out = np.flatnonzero(is_left_out).tolist()
        units = []
        counted = []
        first = 0
        for name in names:
            samples = self.read(name)
            labels = samples.table["label"]
            positions = first + np.arange(len(labels))
            first += len(labels)
            learned = labels[~np.isin(positions, left_out)]
            counted.append(learned.value_counts(dropna=False))
            unit = UnitRecord(name=name, samples=len(labels), digest=digest(samples))
            units.append(unit)
        counts = pd.concat(counted).rename_axis("label").reset_index()
        class_names, classes = labelled(
            replace(samples, table=counts, hash_of=np.zeros(0))
        )
        plan = SetPlan(
            data=data,
            set_hash=fingerprint(repr([unit.digest for unit in units]), {}),
            class_names=class_names,
            counts=classes.table.groupby("label")["count"].sum().tolist(),
            units=units,
            left_out=left_out,
        )
        return plan, notes

    def pieces(
        self,
        plan: SetPlan,
        shard: ShardRecord,
    ) -> Iterator[tuple[SampleTable, np.ndarray]]:
        """Read the samples of a part, unit by unit.

        Args:
            plan: of this set.
            shard: of the plan.

        Yields:
            The samples of a unit, labelled as in the plan, and the rows (n,) that are learned.

        Raises:
            DataError: a unit has changed since it was planned.
        """
        label_of = {name: label for label, name in enumerate(plan.class_names)}
        first = 0
        for unit in plan.units:
            end = first + unit.samples
            positions = np.arange(max(shard.start, first), min(shard.stop, end))
            if len(positions):
                samples = self.read(unit.name)
                if digest(samples) != unit.digest:
                    raise DataError(
                        f"{samples.where} has changed since it was planned: choose another --output"
                    )
                names, samples = labelled(samples)
                classes = np.array([label_of[name] for name in names])
                labels = classes[samples.labels]
                learned = np.setdiff1d(positions, plan.left_out)
                yield samples.with_columns(label=labels), learned - first
            first = end


def training_files(found: SplitFiles) -> list[Path]:
    """Return the files of the training split; all of them where there are no splits."""
    if not found.splits:
        return found.files
    is_training = [split == "train" for split in found.splits]
    return list(compress(found.files, is_training))


def digest(samples: SampleTable) -> str:
    """Return the hash of a unit's labels, and of the contents of its first and last samples."""
    rows = np.arange(len(samples))
    ends = samples.hashes(np.append(rows[:1], rows[-1:]))
    return fingerprint(repr([*samples.table["label"].tolist(), *ends.tolist()]), {})
