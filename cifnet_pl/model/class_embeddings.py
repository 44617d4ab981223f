"""Read labelled embeddings from a file, for models that learn embeddings, in the place of class folders."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor

from cifnet_pl.data.embeddings import EmbeddingSet, labelled
from cifnet_pl.data.image_sets import held_back
from cifnet_pl.data.loading import EMBEDDED_BATCH, pieces
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError


class NamedEmbeddings(EmbeddingSet):
    """Embeddings whose ``root`` is their file, as that of photos is a folder."""

    @property
    def root(self) -> Path:
        """File of the embeddings."""
        return self.file

    def subset(self, rows: np.ndarray) -> NamedEmbeddings:
        """Return the samples at positions ``rows``."""
        return NamedEmbeddings(self.embeddings, self.labels[rows], self.rows[rows], self.ids, self.file)


@dataclass(frozen=True)
class ClassEmbeddings(ClassPhotos):
    """:class:`ClassPhotos` of which ``files`` are embeddings."""

    @classmethod
    def find(cls, folder: Path | str, option: str) -> ClassEmbeddings:
        """Open the file that ``option`` named: embeddings with labels.

        Raises:
            UsageError: another kind of file.
            DataError: the file is missing or damaged; columns that are missing or do not fit.
        """
        names, files = labelled(Path(folder).expanduser())
        samples = NamedEmbeddings(files.embeddings, files.labels, files.rows, files.ids, files.file)
        return cls(names, cast(Any, samples))

    def select(self, kept: np.ndarray) -> ClassEmbeddings:
        """Select the samples of a mask (n,), and the classes that still have one."""
        files = self.files.subset(np.flatnonzero(kept))
        positions = np.unique(files.labels)
        files.labels = np.searchsorted(positions, files.labels)
        names = [self.class_names[i] for i in positions]
        return ClassEmbeddings(names, files, None if self.hashes is None else self.hashes[kept])

    def held_back(self, rows: np.ndarray, share: float, stop: threading.Event) -> np.ndarray:
        """Choose the samples of one class that are scored first, by a hash of their names.

        Args:
            rows: (n,) positions of the class's samples.
            share: of them.
            stop: not used, as this takes no time.

        Returns:
            (n,) bool.
        """
        return held_back([self.files.names[i] for i in rows], share, 0)

    def embedded(
        self, model: IncrementalClassifier, title: str, unreadable: list[Unreadable], progress: bool = False
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield the embeddings in pieces, as :meth:`ClassPhotos.embedded` does.

        Args:
            model: whose device they go to.
            title, unreadable, progress: not used, as every embedding can be read, and at once.

        Yields:
            (m,) rows, and their (m, d) embeddings.

        Raises:
            DataError: embeddings of another width than the model's.
        """
        samples = cast(EmbeddingSet, cast(Any, self.files))
        if samples.features != model.head.in_features:
            raise DataError(
                f"{samples.file}: the embeddings have {samples.features} numbers, the model's {model.head.in_features}"
            )
        for rows in pieces(np.arange(len(samples)), EMBEDDED_BATCH):
            yield rows, samples.get(rows).to(model.device)


def samples_of(model: IncrementalClassifier) -> type[ClassPhotos]:
    """Return what a model learns from: photos in class folders, or a file of embeddings."""
    return ClassPhotos if model.backbone.takes_images else ClassEmbeddings
