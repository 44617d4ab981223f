"""Every way in which a user's images come in, as the shared suite of entrances needs them.

A new source adds one line to ``ENTRANCES``.
"""

import csv
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source, hugging_face


class Sample(NamedTuple):
    """An image, its label, and the split that the data call it."""

    label: Any
    split: str | None = None
    seed: int = 0


def png(seed: int = 0) -> bytes:
    """Return a small PNG file of its own."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def samples(
    *labels: Any, count: int = 4, split: str | None = None, first: int = 0
) -> list[Sample]:
    """Return ``count`` samples of each label."""
    made = []
    for label in labels:
        for _ in range(count):
            made.append(Sample(label, split, first + len(made)))
    return made


def split_samples(*splits: str) -> list[Sample]:
    """Return samples of two classes in each split."""
    made: list[Sample] = []
    for split in splits:
        made += samples("blue", "red", split=split, first=len(made))
    return made


Lay = Callable[[Path, Sequence[Sample], pytest.MonkeyPatch], Any]
"""Function that lays samples out below a folder, and returns the root of the source."""


@dataclass(frozen=True)
class Entrance:
    """A source, and how samples are laid out for it.

    Attributes:
        source: name of the source; "" for Python objects.
        lay: lays samples out.
        files: whether images are files below folders named after the classes.
        typed: whether labels may be other than texts.
        splits: whether the data may have splits.
        images: whether there are images, and not embeddings.
        add: adds a file to what was laid out, by its path; None where that is not possible.
    """

    source: str
    lay: Lay
    files: bool = False
    typed: bool = False
    splits: bool = True
    images: bool = True
    add: Callable[[Path, str, bytes], None] | None = field(default=None)

    def build(
        self, folder: Path, given: Sequence[Sample], monkeypatch: pytest.MonkeyPatch
    ) -> Source:
        """Lay samples out, and build the source of them."""
        return self.open(self.lay(folder, given, monkeypatch))

    def open(self, root: Any) -> Source:
        """Build the source of what was laid out."""
        if self.source == "":
            return build_source(root, SourceOptions())
        return build_source(self.source, SourceOptions(root))


def _path(sample: Sample) -> str:
    split = "" if sample.split is None else f"{sample.split}/"
    return f"{split}{sample.label}/{sample.seed}.png"


def class_folders(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    for sample in given:
        path = folder / "root" / _path(sample)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(sample.seed))
    return folder / "root"


def zipped(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    with zipfile.ZipFile(folder / "root.zip", "w") as archive:
        for sample in given:
            archive.writestr(_path(sample), png(sample.seed))
    return folder / "root.zip"


def domain_folders(
    folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch
) -> Path:
    for i, sample in enumerate(given):
        path = folder / "root" / f"site {i % 2}" / _path(sample)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(sample.seed))
    return folder / "root"


def table(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        splits = given[0].split is not None
        writer.writerow(["path", "label", "split"][: 2 + splits])
        for sample in given:
            (folder / f"{sample.seed}.png").write_bytes(png(sample.seed))
            writer.writerow(
                [f"{sample.seed}.png", sample.label, sample.split][: 2 + splits]
            )
    return folder / "table.csv"


def parquet_table(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    columns: dict[str, list[Any]] = {"path": [], "label": []}
    for sample in given:
        (folder / f"{sample.seed}.png").write_bytes(png(sample.seed))
        columns["path"].append(f"{sample.seed}.png")
        columns["label"].append(sample.label)
    if given[0].split is not None:
        columns["split"] = [sample.split for sample in given]
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "table.parquet")
    return folder / "table.parquet"


def shards(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    """Tar files with labels in .json, one for each split."""
    (folder / "root").mkdir()
    for split in dict.fromkeys(sample.split for sample in given):
        with tarfile.open(folder / "root" / f"{split or 'part'}-0.tar", "w") as shard:
            for sample in given:
                if sample.split == split:
                    add_member(shard, f"{sample.seed}.png", png(sample.seed))
                    label = json.dumps({"label": sample.label}).encode()
                    add_member(shard, f"{sample.seed}.json", label)
    return folder / "root"


def add_member(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    """Append a file to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def vectors(folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch) -> Path:
    arrays = {
        "embeddings": np.random.default_rng(0)
        .normal(size=(len(given), 3))
        .astype(np.float32),
        "labels": np.array([sample.label for sample in given]),
    }
    if given[0].split is not None:
        arrays["split"] = np.array([sample.split for sample in given])
    np.savez(folder / "vectors.npz", **arrays)
    return folder / "vectors.npz"


def parquet_vectors(
    folder: Path, given: Sequence[Sample], _: pytest.MonkeyPatch
) -> Path:
    z = np.random.default_rng(0).normal(size=(len(given), 3))
    columns = {"embedding": list(z), "label": [sample.label for sample in given]}
    columns["id"] = [f"sample {i}" for i in range(len(given))]
    if given[0].split is not None:
        columns["split"] = [sample.split for sample in given]
    path = folder / "vectors.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=7)
    return path


def arrays(_: Path, given: Sequence[Sample], __: pytest.MonkeyPatch) -> Any:
    pixels = np.stack([np.full((6, 6, 3), sample.seed, np.uint8) for sample in given])
    labels = np.empty(len(given), dtype=object)
    labels[:] = [sample.label for sample in given]
    return (pixels, labels)


def data_sets_in_memory(
    folder: Path, given: Sequence[Sample], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Splits of the package ``datasets`` itself."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is missing")
    parts = {}
    for split in dict.fromkeys(sample.split for sample in given):
        members = [sample for sample in given if sample.split == split]
        images = [{"bytes": png(sample.seed), "path": None} for sample in members]
        columns = {"image": images, "label": [sample.label for sample in members]}
        part = datasets.Dataset.from_dict(columns)
        parts[split or "train"] = part.cast_column("image", datasets.Image())
    monkeypatch.setattr(hugging_face, "_load", lambda *_: parts)
    return folder


def add_file(root: Path, name: str, content: bytes) -> None:
    """Write a file below a folder."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def add_entry(root: Path, name: str, content: bytes) -> None:
    """Append an entry to a Zip archive."""
    with zipfile.ZipFile(root, "a") as archive:
        archive.writestr(name, content)


def add_shard_member(root: Path, name: str, content: bytes) -> None:
    """Append a member to the first tar file of a folder."""
    with tarfile.open(sorted(root.glob("*.tar"))[0], "a") as shard:
        add_member(shard, name, content)


ENTRANCES = {
    "folders": Entrance("folder", class_folders, files=True, add=add_file),
    "archive": Entrance("folder", zipped, files=True, add=add_entry),
    "domains": Entrance(
        "domains", domain_folders, files=True, splits=False, add=add_file
    ),
    "table": Entrance("manifest", table),
    "parquet table": Entrance("manifest", parquet_table, typed=True),
    "shards": Entrance("webdataset", shards, typed=True, add=add_shard_member),
    "vectors": Entrance("embeddings", vectors, typed=True, images=False),
    "vectors in Parquet": Entrance(
        "embeddings", parquet_vectors, typed=True, images=False
    ),
    "arrays": Entrance("", arrays, typed=True, splits=False),
    "data sets in memory": Entrance("hf", data_sets_in_memory, typed=True),
}
"""Name of an entrance → how samples come in by it."""
