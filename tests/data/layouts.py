"""A tiny data set for each source, in its own layout; a new source is one line in ``CASES``."""

import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from torchvision import datasets

from cifnet_pl.data.samples import Source, SourceOptions
from cifnet_pl.data.sources import build_source
from tests.data.entrances import add_file, png
from tests.data.tree import COLOURS, class_tree, fill


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
    rng = np.random.default_rng(0)
    contents: dict[str, Any] = {"meta": {"fine_label_names": list(HUNDRED)}}
    for name, count in (("train", 200), ("test", 100)):
        contents[name] = {
            "data": rng.integers(0, 256, (count, 3072), dtype=np.uint8),
            "fine_labels": (rng.permutation(count) % 100).tolist(),
        }
    (root / "cifar-100-python").mkdir()
    sums = {}
    for name, content in contents.items():
        data = pickle.dumps(content)
        (root / "cifar-100-python" / name).write_bytes(data)
        sums[name] = hashlib.md5(data).hexdigest()
    meta = {**datasets.CIFAR100.meta, "md5": sums["meta"]}
    monkeypatch.setattr(datasets.CIFAR100, "meta", meta)
    for name in ("train", "test"):
        monkeypatch.setattr(datasets.CIFAR100, f"{name}_list", [[name, sums[name]]])


def cifar100_parquet(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two files of the hub, with the names of a hundred classes, of which three occur."""
    features = {"fine_label": {"names": list(HUNDRED), "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, rows in (("train", range(9)), ("test", range(50, 53))):
        images = [{"bytes": png(i), "path": None} for i in rows]
        labels = [40 * (i % 3) for i in rows]
        table = pyarrow.table({"img": images, "fine_label": labels})
        pyarrow.parquet.write_table(
            table.replace_schema_metadata(about),
            root / f"{split}.parquet",
            row_group_size=4,
        )


def cifar100_folders(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(12):
        split = "test" if i >= 9 else "train"
        add_file(root, f"{split}/{THREE[i % 3]}/{i}.png", png(i))


def gtsrb(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traffic signs: numbered folders for training, a table for testing, and no class names."""
    base = root / "gtsrb"
    rows = ["Filename;ClassId"]
    for c in range(4):
        for i in range(3):
            add_file(base, f"GTSRB/Training/{c:05d}/{i}.ppm", png(10 * c + i))
        add_file(base, f"GTSRB/Final_Test/Images/{c}.ppm", png(100 + c))
        rows.append(f"{c}.ppm;{c}")
    (base / "GT-final_test.csv").write_text("\n".join(rows) + "\n")


def imagenette(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Class names are tuples of synonyms; the held-out part is called val."""
    for c, wnid in enumerate(("n01440764", "n02102040")):
        for i, split in enumerate(("train", "train", "train", "val")):
            add_file(root, f"imagenette2/{split}/{wnid}/{i}.jpeg", png(10 * c + i))


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
        (root / f"{i}.png").write_bytes(png(i))
        split = "test" if i >= 18 else "train"
        rows.append(f"{i}.png,{THREE[i % 3]},{split},{(9, 10)[i % 2]},{'ab'[i % 2]}")
    (root / "table.csv").write_text("\n".join(rows))


# ---------------------------------------------------------------------- embeddings


def vectors(
    count: int = 30, width: int = 4, classes: int = 3, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (n, d) float32 around one point per class, and their labels (n,) in turn."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = 4 * np.random.default_rng(99).normal(size=(classes, width))
    z = centres[labels] + draw.normal(size=(count, width))
    return z.astype(np.float32), labels


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
