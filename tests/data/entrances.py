"""Every way in which a user's images come in; a new source is one line in ``ENTRANCES``."""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from tests.images.contents import file_of


def built(source: Any, root: Path | None = None, **options: Any) -> Source:
    """Build a source with some options."""
    return build_source(source, SourceOptions(root, **options))


class Sample(NamedTuple):
    """An image, its label, and the split that the data call it."""

    label: Any
    split: str | None = None
    seed: int = 0


def png(seed: int = 0) -> bytes:
    """Return a small PNG file of its own."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return file_of(Image.fromarray(pixels), "PNG")


def samples(*labels, count=4, split=None, first=0):
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


Lay = Callable[[Path, Sequence[Sample]], Any]
"""Function that lays samples out below a folder, and returns the root of the source."""


class Entrance(NamedTuple):
    """A source, and how samples are laid out for it.

    Attributes:
        source: name of the source; "" for Python objects.
        lay: lays samples out.
        typed: whether labels may be other than texts.
        splits: whether the data may have splits.
        images: whether there are images, and not embeddings.
        add: adds a file to what was laid out, by its path; None where that is not possible.
    """

    source: str
    lay: Lay
    typed: bool = False
    splits: bool = True
    images: bool = True
    add: Callable[[Path, str, bytes], None] | None = None

    def build(self, folder: Path, given: Sequence[Sample]) -> Source:
        """Lay samples out, and build the source of them."""
        return self.open(self.lay(folder, given))

    def open(self, root: Any) -> Source:
        """Build the source of what was laid out."""
        if self.source == "":
            return built(root)
        return built(self.source, root)


def class_folders(folder, given, homes=(".",)):
    """Images in class folders, these in splits, and those in ``homes`` in turn."""
    for i, sample in enumerate(given):
        home = folder / "root" / homes[i % len(homes)] / (sample.split or ".")
        add_file(home, f"{sample.label}/{sample.seed}.png", png(sample.seed))
    return folder / "root"


def zipped(folder: Path, given: Sequence[Sample]) -> Path:
    root = class_folders(folder, given)
    return Path(shutil.make_archive(str(root), "zip", root))


def columns(given: Sequence[Sample], **others: Any) -> pd.DataFrame:
    """Return a table of labels, of splits if there are any, and of other columns."""
    labels = [sample.label for sample in given]
    result = pd.DataFrame({**others, "label": labels}, dtype=object)
    if given[0].split is not None:
        result["split"] = [sample.split for sample in given]
    return result


def image_table(folder: Path, given: Sequence[Sample]) -> pd.DataFrame:
    for sample in given:
        (folder / f"{sample.seed}.png").write_bytes(png(sample.seed))
    return columns(given, path=[f"{sample.seed}.png" for sample in given])


def table(folder: Path, given: Sequence[Sample]) -> Path:
    image_table(folder, given).to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


def parquet_table(folder: Path, given: Sequence[Sample]) -> Path:
    image_table(folder, given).to_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def shards(folder: Path, given: Sequence[Sample]) -> Path:
    """Tar files with labels in .json, one for each split."""
    (folder / "root").mkdir()
    for sample in given:
        shard = folder / "root" / f"{sample.split or 'part'}-0.tar"
        label = json.dumps({"label": sample.label}).encode()
        add_member(shard, f"{sample.seed}.png", png(sample.seed))
        add_member(shard, f"{sample.seed}.json", label)
    return folder / "root"


def add_member(shard: Path, name: str, content: bytes) -> None:
    """Append a file to a tar file."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    with tarfile.open(shard, "a") as archive:
        archive.addfile(member, io.BytesIO(content))


def noise(count: int) -> np.ndarray:
    """Return embeddings (count, 3) float32."""
    return np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)


def vectors(folder: Path, given: Sequence[Sample]) -> Path:
    arrays = {name: np.array(list(cells)) for name, cells in columns(given).items()}
    arrays["labels"] = arrays.pop("label")
    np.savez(folder / "vectors.npz", embeddings=noise(len(given)), **arrays)
    return folder / "vectors.npz"


def parquet_vectors(folder: Path, given: Sequence[Sample]) -> Path:
    ids = [f"sample {i}" for i in range(len(given))]
    rows = columns(given, embedding=list(noise(len(given))), id=ids)
    rows.to_parquet(folder / "vectors.parquet", row_group_size=7)
    return folder / "vectors.parquet"


def arrays(_: Path, given: Sequence[Sample]) -> Any:
    pixels = np.stack([np.full((6, 6, 3), sample.seed, np.uint8) for sample in given])
    return (pixels, columns(given)["label"].to_numpy())


def saved_data_sets(folder: Path, given: Sequence[Sample]) -> Path:
    """What the package ``datasets`` itself writes."""
    datasets = pytest.importorskip("datasets", reason="the extra `hf` is missing")
    parts = {}
    for split in dict.fromkeys(sample.split for sample in given):
        members = [sample for sample in given if sample.split == split]
        images = [{"bytes": png(sample.seed), "path": None} for sample in members]
        cells = {"image": images, "label": [sample.label for sample in members]}
        part = datasets.Dataset.from_dict(cells)
        parts[split or "train"] = part.cast_column("image", datasets.Image())
    datasets.DatasetDict(parts).save_to_disk(str(folder / "root"))
    return folder / "root"


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
    add_member(min(root.glob("*.tar")), name, content)


DOMAINS = ("site 0", "site 1")
ENTRANCES = {
    "folders": Entrance("folder", class_folders, add=add_file),
    "archive": Entrance("folder", zipped, add=add_entry),
    "domains": Entrance(
        "domains", partial(class_folders, homes=DOMAINS), splits=False, add=add_file
    ),
    "table": Entrance("manifest", table),
    "parquet table": Entrance("manifest", parquet_table, typed=True),
    "shards": Entrance("webdataset", shards, typed=True, add=add_shard_member),
    "vectors": Entrance("embeddings", vectors, typed=True, images=False),
    "vectors in Parquet": Entrance(
        "embeddings", parquet_vectors, typed=True, images=False
    ),
    "arrays": Entrance("", arrays, typed=True, splits=False),
    "data sets": Entrance("hf", saved_data_sets, typed=True),
}
"""Name of an entrance → how samples come in by it."""
