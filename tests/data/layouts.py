"""A tiny data set for each source, in its own layout; a new source is one line in ``CASES``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from cifnet_pl.data.samples import Source
from tests.command_line import make_images
from tests.data.entrances import add_file, built, png


class Case(NamedTuple):
    """A source, how to lay it out below a folder, and what it must then hold.

    Attributes:
        source: its name on the command line.
        write: lays the data out below an empty folder.
        classes: the names that it must give, in order.
        sizes: number of training and of validation images.
        file: how the name of the file begins that is the root, if the root is none of the folders.
    """

    source: str
    write: Callable[[Path], None]
    classes: tuple[str, ...]
    sizes: tuple[int, int]
    file: str | None = None

    def build(self, root: Path) -> Source:
        """Build the source over what was laid out."""
        if self.file is not None:
            (root,) = root.glob(f"{self.file}*")
        return built(self.source, root)


def nothing(root: Path) -> None:
    """The data come with a package."""


def emnist(root: Path) -> None:
    """The files of EMNIST's balanced split, with three of its 47 classes."""
    raw = root / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 9), ("test", 3)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28))
        labels = np.arange(count) % 3 * 20
        for name, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            kind = bytes([0, 0, 8, array.ndim])
            header = kind + np.array(array.shape, ">i4").tobytes()
            path = raw / f"emnist-balanced-{part}-{name}-ubyte"
            path.write_bytes(header + array.astype(np.uint8).tobytes())


def cifar100_parquet(root: Path) -> None:
    """The two files of the hub, with the names of a hundred classes, of which three occur."""
    features = {"fine_label": {"names": list(HUNDRED), "_type": "ClassLabel"}}
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, rows in (("train", range(9)), ("test", range(50, 53))):
        images = [{"bytes": png(i), "path": None} for i in rows]
        labels = [40 * (i % 3) for i in rows]
        table = pyarrow.table({"img": images, "fine_label": labels})
        named = table.replace_schema_metadata(about)
        pyarrow.parquet.write_table(named, root / f"{split}.parquet", row_group_size=4)


def cifar100_folders(root: Path) -> None:
    for i in range(12):
        split = "test" if i >= 9 else "train"
        add_file(root, f"{split}/{THREE[i % 3]}/{i}.png", png(i))


def gtsrb(root: Path) -> None:
    """Traffic signs: numbered folders for training, a table for testing, and no class names."""
    base = root / "gtsrb"
    rows = ["Filename;ClassId"]
    for c in range(4):
        for i in range(3):
            add_file(base, f"GTSRB/Training/{c:05d}/{i}.ppm", png(10 * c + i))
        add_file(base, f"GTSRB/Final_Test/Images/{c}.ppm", png(100 + c))
        rows.append(f"{c}.ppm;{c}")
    (base / "GT-final_test.csv").write_text("\n".join(rows) + "\n")


def imagenette(root: Path) -> None:
    """Class names are tuples of synonyms; the held-out part is called val."""
    for c, wnid in enumerate(("n01440764", "n02102040")):
        for i, split in enumerate(("train", "train", "train", "val")):
            add_file(root, f"imagenette2/{split}/{wnid}/{i}.jpeg", png(10 * c + i))


def eurosat(root: Path) -> None:
    """No parts of its own."""
    make_images(root / "eurosat/2750", THREE, 5)


def domain_folders(root: Path) -> None:
    """Two domains; the second one lacks a class."""
    make_images(root / "image", THREE, 5)
    make_images(root / "sketch", THREE[:2], 5, noise=20)


def listed(root: Path) -> None:
    """A table over images in no particular folders, with tasks and domains."""
    rows = ["path,label,split,task,domain"]
    for i in range(24):
        (root / f"{i}.png").write_bytes(png(i))
        split = "test" if i >= 18 else "train"
        rows.append(f"{i}.png,{THREE[i % 3]},{split},{(9, 10)[i % 2]},{'ab'[i % 2]}")
    (root / "table.csv").write_text("\n".join(rows))


def vectors(count=30, width=4, classes=3, seed=0):
    """Embeddings (n, d) float32 around one point per class, and their labels (n,) in turn."""
    draw = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = 4 * np.random.default_rng(99).normal(size=(classes, width))
    z = centres[labels] + draw.normal(size=(count, width))
    return z.astype(np.float32), labels


THREE = ("blue", "green", "red")
NUMBERED = ("0", "1", "2")
HUNDRED = tuple(f"class {c:02d}" for c in range(100))
SYNONYMS = ("tench, Tinca tinca", "English springer, English springer spaniel")
CASES = [
    Case("digits", nothing, tuple(map(str, range(10))), (1438, 359)),
    Case("emnist", emnist, ("0", "K", "f"), (9, 3)),
    Case("cifar100", cifar100_parquet, HUNDRED[::40], (9, 3)),
    Case("cifar100", cifar100_folders, THREE, (9, 3)),
    Case("torchvision:GTSRB", gtsrb, ("0", "1", "2", "3"), (12, 4)),
    Case("imagenette", imagenette, SYNONYMS, (6, 2)),
    Case("torchvision:EuroSAT", eurosat, THREE, (12, 3)),
]
