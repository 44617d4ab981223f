"""Photos of a folder as embeddings, from the cache that ``fit --data.cache true`` fills, and heads that learn them."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import FLOAT32, autocast
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.loading import ImageLoader
from cifnet_pl.data.sets import ImageSet, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import ACILHead, Head
from cifnet_pl.photos.cache import EmbeddingCache, pipeline_key
from cifnet_pl.utilities.memory import keep_freed_memory

BACKBONE, BATCH = "embedded:efficientnet_lite0", 64


@dataclass(frozen=True)
class Photos:
    """(n, d) float32 embeddings and (n,) int64 classes of the training and the validation images of a folder."""

    z: Tensor
    y: Tensor
    val_z: Tensor
    val_y: Tensor

    @property
    def classes(self) -> int:
        """Number of classes."""
        return int(self.y.max()) + 1

    def tasks(self, order: int, per_task: int) -> list[list[int]]:
        """Classes of each task; ``order`` is the seed that ``--data.class_order`` takes."""
        shuffled = np.random.default_rng(order).permutation(self.classes).tolist()
        return [shuffled[i : i + per_task] for i in range(0, self.classes, per_task)]


def study_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all studies share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--cache_folder", type=Path, default=Path("~/.cache/cifnet_pl"))
    return parser


def read_photos(root: Path, image_size: int, cache: Path, network: str = BACKBONE, precision: str = FLOAT32) -> Photos:
    """Embeddings of ``ROOT/train`` and ``ROOT/val``; what the cache lacks is embedded and added to it."""
    keep_freed_memory()  # as the command line does: the network is several times slower without
    engine = "auto" if precision == FLOAT32 else "torch"
    source, backbone = build_source("folder", SourceOptions(root)), build_backbone(network, engine=engine)
    folder = cache.expanduser() / pipeline_key(
        backbone.sha256, image_size, 1.0, precision, backbone.engine("cpu", precision)
    )
    parts: list[Tensor] = []
    for name, images in (("train", source.train), ("val", source.val)):
        store = EmbeddingCache(images, source.class_names, folder / name)
        with autocast("cpu", precision):
            _fill(store, images, backbone, image_size)
        parts += [store.get(np.arange(len(images))).clone(), torch.from_numpy(images.labels)]
    return Photos(*parts)


def _fill(store: EmbeddingCache, images: ImageSet, backbone: Backbone, image_size: int) -> None:
    rows = np.arange(len(images))
    rows = rows[~store.known(rows)]
    loader = ImageLoader(images, image_size, 1.0, 1, BATCH)
    for batch in loader.set_batches(np.array_split(rows, range(BATCH, len(rows), BATCH))):
        store.collect(batch.row, batch.key, backbone(batch.image))
    loader.close()


def learn(head: Head, photos: Photos, classes: list[int], buffer: CalibrationBuffer | None = None) -> None:
    """One task; a buffer samples from it, and is shown to the head."""
    rows = torch.isin(photos.y, torch.tensor(classes)).nonzero().flatten()
    head.begin_task(classes, [int((photos.y == c).sum()) for c in classes])
    for batch in torch.split(rows, 2048):
        head.observe(photos.z[batch], photos.y[batch])
    if buffer is not None:
        buffer.add(photos.z[rows], photos.y[rows], rows)
        buffer.show_to(head)
        buffer.commit()
    head.solve()


def mean_eigenvalue(z: Tensor, width: int) -> float:
    """tr(G)/B of ACIL's random features of embeddings (n, d): what ridges are a share of."""
    head = ACILHead(z.shape[1], width=width)
    head.begin_task([0])
    head.observe(z, torch.zeros(len(z), dtype=torch.int64))
    head.solve()
    return head.sums.gram.diagonal().mean().item()


def seen(photos: Photos, head: Head) -> Tensor:
    """Positions of the validation images whose classes were learned."""
    return torch.isin(photos.val_y, head.labels).nonzero().flatten()


def accuracy(head: Head, photos: Photos) -> float:
    """A_k in percent."""
    rows = seen(photos, head)
    return 100 * (head.predict(photos.val_z[rows]) == photos.val_y[rows]).double().mean().item()
