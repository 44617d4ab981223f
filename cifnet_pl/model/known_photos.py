"""Tell which photos a model has learned, by their content hashes and the embeddings in its buffer."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.copies import find_repeats
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.model.near_copies import LearnedPhotos


class KnownPhotos:
    """Compares photos with those that a model has learned.

    Args:
        model: a learned model; what it can tell depends on what it keeps: hashes of all photos, embeddings of some.
        photos: of classes that it knows.

    Attributes:
        repeats: photos that were learned, that occur twice, or that are in two classes, by their contents.
    """

    def __init__(self, model: IncrementalClassifier, photos: ClassPhotos):
        self._labels = np.array(model.labels(photos.class_names), dtype=np.int64)[photos.files.labels]
        self.repeats = find_repeats(model, photos.hashed())
        self._stored = LearnedPhotos()
        if model.buffer is not None and len(model.buffer.y):
            z, y = model.buffer.items()
            self._stored.add(z, y)

    def seen(self, rows: np.ndarray, z: Tensor) -> np.ndarray:
        """Tell which photos were learned, or resemble a stored one.

        Args:
            rows: (n,) positions of the photos.
            z: (n, d) their embeddings.

        Returns:
            (n,) bool.
        """
        near = self._stored.resemble(z, torch.from_numpy(self._labels[rows]))
        return np.asarray(near | self.repeats.learned[rows])
