"""What the studies share: images of a folder as embeddings, heads that learn them, paired
differences, tables.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import FLOAT32
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.embedding_cache import EmbeddingCache, pipeline_folder
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import ACILHead, Head
from cifnet_pl.model.task_learner import observe_buffer

BACKBONE = "embedded:efficientnet_lite0"
BATCH = 64
RICH = BACKBONE + "+layers+mirror"
Make = Callable[[int], Head]
"""Width of the embeddings → a new head."""


@dataclass(frozen=True)
class Images:
    """(n, d) float32 embeddings and (n,) int64 classes of the training and the validation images of
    a folder.
    """

    z: Tensor
    y: Tensor
    val_z: Tensor
    val_y: Tensor

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def keep(self, rows: Tensor) -> Images:
        """The same with the training images at some rows alone."""
        return replace(self, z=self.z[rows], y=self.y[rows])

    def tasks(self, order: int, per_task: int) -> list[list[int]]:
        """Classes of each task; ``order`` is the seed that ``--data.class_order`` takes."""
        shuffled = np.random.default_rng(order).permutation(self.classes).tolist()
        return [shuffled[i : i + per_task] for i in range(0, self.classes, per_task)]


def study_parser(
    description: str | None, roots: str | None = None
) -> argparse.ArgumentParser:
    """The options that studies share; ``roots`` is "+" where a study takes several folders."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path, nargs=roots)
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--cache_folder", type=Path, default=Path("~/.cache/cifnet_pl"))
    return parser


def read_images(
    root: Path, options: argparse.Namespace, network: str = BACKBONE
) -> Images:
    """Embeddings of ``ROOT/train`` and ``ROOT/val``, from the cache of ``fit``; what it lacks is
    embedded and added.

    Args:
        root: folder of the images, or a file that ``cifnet embed`` made of them.
        options: those of :func:`study_parser`.
        network: name of the backbone; not looked at where a file is given.
    """
    if root.is_file():
        source = build_source("embeddings", SourceOptions(root))
        assert not source.train.are_images
        assert not source.test.are_images
        sets = (
            (one.get(np.arange(len(one))), torch.from_numpy(one.labels))
            for one in (source.train, source.test)
        )
        return Images(*(part for pair in sets for part in pair))
    source = build_source("folder", SourceOptions(root))
    backbone = build_backbone(network)
    side: int = options.image_size
    cache = options.cache_folder.expanduser()
    folder = pipeline_folder(cache, backbone, side, 1.0, FLOAT32, "cpu")
    parts: list[Tensor] = []
    for name, images in (("train", source.train), ("val", source.test)):
        assert images.are_images
        store = EmbeddingCache(images, source.class_names, folder / name)
        rows = np.arange(len(images))
        missing = rows[~store.known(rows)]
        loader = ImageLoader(images, side, 1.0, 1)
        for batch in loader.decode(
            np.array_split(missing, range(BATCH, len(missing), BATCH))
        ):
            store.collect(batch.row, batch.key, backbone(batch.image))
        parts += [store.get(rows).clone(), torch.from_numpy(images.labels)]
    return Images(*parts)


PAIR: dict[str, Any] = {
    "nargs": 3,
    "action": "append",
    "metavar": ("NAME", "TRAIN", "VAL"),
}
"""An option of a pair of files."""


def pairs_parser(description: str | None) -> argparse.ArgumentParser:
    """The options of studies on pairs of files, which :func:`read_pair` reads."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", required=True, **PAIR)
    return parser


def read_pair(train: str, val: str) -> Images:
    """Embeddings of two files that ``cifnet embed`` made, of training and validation images."""
    learned = np.load(train)
    asked = np.load(val)
    names = np.unique(learned["labels"])
    parts = list[Tensor]()
    for each in (learned, asked):
        parts.append(torch.from_numpy(each["embeddings"]))
        parts.append(torch.from_numpy(np.searchsorted(names, each["labels"])))
    return Images(*parts)


# ---------------------------------------------------------------------- learning


def learn(
    head: Head,
    images: Images,
    classes: list[int],
    buffer: CalibrationBuffer | None = None,
) -> None:
    """One task; a buffer samples from it, and is shown to the head."""
    rows = torch.isin(images.y, torch.tensor(classes)).nonzero().flatten()
    head.begin_task(classes, [int((images.y == c).sum()) for c in classes])
    for batch in torch.split(rows, 2048):
        head.observe(images.z[batch], images.y[batch])
    if buffer is not None:
        buffer.add(images.z[rows], images.y[rows], rows)
        observe_buffer(head, buffer)
        buffer.commit()
    head.solve()


def learned(make: Make, images: Images) -> Head:
    """A head that has learned all classes at once."""
    head = make(images.z.shape[1])
    learn(head, images, list(range(images.classes)))
    return head


def mean_eigenvalue(z: Tensor, width: int) -> float:
    """tr(G)/B of ACIL's random features of embeddings (n, d): what ridges are a share of."""
    head = ACILHead(z.shape[1], width=width)
    head.begin_task([0])
    head.observe(z, torch.zeros(len(z), dtype=torch.int64))
    head.solve()
    return head.sums.gram.diagonal().mean().item()


# ---------------------------------------------------------------------- accuracy


def seen(images: Images, head: Head) -> Tensor:
    """Positions of the validation images whose classes were learned."""
    return torch.isin(images.val_y, head.labels).nonzero().flatten()


def accuracy(head: Head, images: Images) -> float:
    """A_k in percent."""
    rows = seen(images, head)
    return (
        100
        * (head.predict(images.val_z[rows]) == images.val_y[rows])
        .double()
        .mean()
        .item()
    )


def left_out(head: Head, images: Images) -> Tensor:
    """(n,) what each training image adds to leave-one-out accuracy, in percent; an unknown one is
    wrong.
    """
    parts = zip(torch.split(images.z, 2500), torch.split(images.y, 2500), strict=True)
    scores = torch.cat([head.leave_one_out(*part) for part in parts]).nan_to_num(
        -torch.inf
    )
    return 100 * (head.labels[scores.argmax(1)] == images.y).double() / len(images.y)


def interval(ours: Tensor, theirs: Tensor) -> str:
    """Difference of two sums over images with its 95 % interval, the images being a sample; – if
    one is unknown.
    """
    if theirs.isnan().any():
        return "–"
    gap = ours - theirs
    half = 1.96 * gap.std().item() * math.sqrt(len(gap))
    return f"{gap.sum().item():+.2f} ± {half:.2f}"


# ---------------------------------------------------------------------- tables


def show(cells: Sequence[str]) -> None:
    """Print a row of a table."""
    print(f"| {' | '.join(cells)} |", flush=True)


def show_columns(names: Sequence[str]) -> None:
    """Print the head of a table."""
    show(names)
    show(["---"] * len(names))
