"""What the shared source suite tests: a tiny data set on disk for each source, in that source's own
layout.

To add a source, add one line to ``CASES``.
"""

import hashlib
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from torchvision import datasets

from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from tests.data.tree import COLOURS, class_tree, fill, image


@dataclass(frozen=True)
class Case:
    """A source, how to lay it out below a folder, and what it must then hold.

    Attributes:
        source: its name on the command line.
        write: lays the data out below an empty folder.
        classes: the names that it must give, in order.
        sizes: number of training and of validation images.
        file: how the name of the file begins that is the root, if the root is none of the folders.
    """

    source: str
    write: Callable[[Path, pytest.MonkeyPatch], None]
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    file: str | None = None

    def build(self, root: Path) -> Source:
        """Build the source over what was laid out."""
        if self.file is not None:
            (root,) = root.glob(f"{self.file}*")
        return build_source(self.source, SourceOptions(root))


def nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data come with a package."""


def cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pickles of the original archive, two images a class for training and one for testing."""
    folder = root / "cifar-100-python"
    folder.mkdir()
    rng = np.random.default_rng(0)

    def write(name: str, content: dict[str, Any]) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def part(count: int) -> dict[str, Any]:
        labels = rng.permutation(np.repeat(np.arange(100), count)).tolist()
        return {
            "data": rng.integers(0, 256, (100 * count, 3072), dtype=np.uint8),
            "fine_labels": labels,
        }

    monkeypatch.setattr(
        datasets.CIFAR100, "train_list", [["train", write("train", part(2))]]
    )
    monkeypatch.setattr(
        datasets.CIFAR100, "test_list", [["test", write("test", part(1))]]
    )
    meta = {"fine_label_names": list(HUNDRED)}
    meta_entry = {
        "filename": "meta",
        "key": "fine_label_names",
        "md5": write("meta", meta),
    }
    monkeypatch.setattr(datasets.CIFAR100, "meta", meta_entry)


def cifar100_parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two files of the hub, with names of the classes in their description; three of the
    hundred occur.
    """
    features = {
        "img": {"_type": "Image"},
        "fine_label": {"names": list(HUNDRED), "_type": "ClassLabel"},
    }
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, first, count in (("train", 0, 9), ("test", 50, 3)):
        images = [
            {"bytes": encoded(COLOURS[THREE[i % 3]], i), "path": None}
            for i in range(first, first + count)
        ]
        table = pyarrow.table(
            {
                "img": images,
                "fine_label": [40 * (i % 3) for i in range(first, first + count)],
            }
        )
        pyarrow.parquet.write_table(
            table.replace_schema_metadata(about),
            root / f"{split}.parquet",
            row_group_size=4,
        )


def cifar100_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_tree(root / "train", 3)
    for name in THREE:
        fill(root / "test" / name, COLOURS[name], 1, first=50)


def gtsrb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traffic signs: numbered folders for training, a table for testing, and no class names."""
    base = root / "gtsrb"
    rows = ["Filename;ClassId"]
    (base / "GTSRB/Final_Test/Images").mkdir(parents=True)
    for c, colour in enumerate(COLOURS.values()):
        folder = base / f"GTSRB/Training/{c:05d}"
        folder.mkdir(parents=True)
        for i in range(3):
            image(colour, seed=i).save(folder / f"{i}.ppm")
        image(colour, seed=50).save(base / f"GTSRB/Final_Test/Images/{c}.ppm")
        rows.append(f"{c}.ppm;{c}")
    (base / "GT-final_test.csv").write_text("\n".join(rows) + "\n")


def imagenette(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class names are tuples of synonyms; the held-out part is called val."""
    for c, wnid in enumerate(("n01440764", "n02102040")):
        for split, count, first in (("train", 3, 0), ("val", 1, 90)):
            folder = root / "imagenette2" / split / wnid
            folder.mkdir(parents=True)
            for i in range(first, first + count):
                image(list(COLOURS.values())[c], seed=i).save(
                    folder / f"{i}.JPEG".lower()
                )


def eurosat(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No parts of its own."""
    class_tree(root / "eurosat/2750", 5)


def domain_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two domains; the second one lacks a class."""
    class_tree(root / "image", 5)
    for i, name in enumerate(("blue", "green")):
        fill(root / "sketch" / name, COLOURS[name], 5, first=100 * (i + 1))


def listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table over images in no particular folders, with tasks and domains."""
    rows = ["path,label,split,task,domain"]
    for i in range(24):
        name = THREE[i % 3]
        (root / "images").mkdir(exist_ok=True)
        image(COLOURS[name], seed=i).save(root / "images" / f"{i}.png")
        split = "test" if i >= 18 else "train"
        task = 10 if i % 2 else 9
        domain = "ab"[i % 2]
        rows.append(f"images/{i}.png,{name},{split},{task},{domain}")
    (root / "table.csv").write_text("\n".join(rows))


def add_sample(shard: tarfile.TarFile, key: str, members: dict[str, bytes]) -> None:
    """Append one sample to a tar shard, as WebDataset has them."""
    for ending, content in members.items():
        entry = tarfile.TarInfo(f"{key}.{ending}")
        entry.size = len(content)
        shard.addfile(entry, io.BytesIO(content))


def encoded(colour: tuple[int, int, int], seed: int) -> bytes:
    """The bytes of a PNG file."""
    buffer = io.BytesIO()
    image(colour, seed=seed).save(buffer, "PNG")
    return buffer.getvalue()


# ---------------------------------------------------------------------- embeddings


def vectors(
    count: int = 30, width: int = 4, classes: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (n, d) float32 around one point per class, and their labels (n,) in turn."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = 4 * np.random.default_rng(99).normal(size=(classes, width))
    return (centres[labels] + draw.normal(size=(count, width))).astype(
        np.float32
    ), labels


THREE = ("blue", "green", "red")
NUMBERED = ("0", "1", "2")
HUNDRED = tuple(f"class {c:02d}" for c in range(100))
CASES = [
    Case("digits", nothing, tuple(map(str, range(10))), (1438, 359)),
    Case("cifar100", cifar100, HUNDRED, (200, 100)),
    Case("cifar100", cifar100_parquet, HUNDRED[::40], (9, 3)),
    Case("cifar100", cifar100_folders, THREE, (9, 3)),
    Case("torchvision:GTSRB", gtsrb, ("0", "1", "2", "3"), (12, 4)),
    Case(
        "imagenette",
        imagenette,
        ("tench, Tinca tinca", "English springer, English springer spaniel"),
        (6, 2),
    ),
    Case("torchvision:EuroSAT", eurosat, THREE, (12, 3)),
    Case("domains", domain_folders, THREE, (20, 5)),
    Case("manifest", listed, THREE, (18, 6), file="table."),
]
