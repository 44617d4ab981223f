"""Observe new photos as a task of new classes, and as more samples of known ones."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.loading import sample_key
from cifnet_pl.heads import Head
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.model.near_copies import LearnedPhotos
from cifnet_pl.utilities.errors import UnsupportedError
from cifnet_pl.utilities.text import printable


class Lesson:
    """A task of new classes, and more samples of known ones, for one model.

    Args:
        model: what learns; it changes.
        photos: what it learns from.
        counts: number of photos of each class of ``photos`` that it will see.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
    """

    def __init__(self, model: IncrementalClassifier, photos: ClassPhotos, counts: list[int]):
        known, names = set(model.class_names), photos.class_names
        self.model, self.photos = model, photos
        self.is_new = np.array([name not in known for name in names])
        self.more: Head | None = None
        old, new = ([i for i, name in enumerate(names) if (name in known) == seen] for seen in (True, False))
        if old:
            _require_pooling(model, names[old[0]])
            self.more = model.head.fresh()
            self.more.begin_task(model.labels(names[i] for i in old), [counts[i] for i in old])
        if new:
            model.begin_task([names[i] for i in new], [counts[i] for i in new])
        self.labels = np.array(model.labels(names), dtype=np.int64)
        stored = model.buffer.items() if model.buffer is not None and len(model.buffer.y) else None
        self.learned = LearnedPhotos(stored)

    def observe(self, rows: np.ndarray, z: Tensor) -> None:
        """Take in the embeddings (n, d) of photos ``rows`` (n,)."""
        classes = self.photos.files.labels[rows]
        y = torch.from_numpy(self.labels[classes]).to(z.device)
        names = [
            (self.photos.class_names[c], self.photos.files.names[row]) for c, row in zip(classes, rows, strict=True)
        ]
        key = torch.tensor([sample_key(*name) for name in names], dtype=torch.int64, device=z.device)
        if self.model.photos is not None and self.photos.hashes is not None:
            self.model.add_photos(self.labels[classes], self.photos.hashes[rows])
        self.learned.add(z, y)
        new = torch.from_numpy(self.is_new[classes]).to(z.device)
        if new.any():
            self.model.observe(z[new], y[new], key[new])
        if self.more is not None and not new.all():
            self.more.observe(z[~new], y[~new])
            if self.model.buffer is not None:
                self.model.buffer.add_more(z[~new], y[~new], key[~new])

    def finish(self) -> None:
        """Solve on everything taken in."""
        if self.is_new.any():
            self.model.finish_task()
        if self.more is not None:
            self.model.merge(self.more)


def _require_pooling(model: IncrementalClassifier, name: str) -> None:
    try:
        model.head.require("pools")
    except UnsupportedError as error:
        known = f"cannot add photos to class '{printable(name)}', which is learned already"
        raise UnsupportedError(f"{known}: {error}") from error
