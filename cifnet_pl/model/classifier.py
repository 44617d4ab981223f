"""A learned model in plain torch, without a Trainer: classifies photos, takes in new classes, forgets old ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cifnet_pl.backbones.precision import check_precision
from cifnet_pl.data.embeddings import unlabelled
from cifnet_pl.data.images import Photo
from cifnet_pl.data.photos import photos_of, squares
from cifnet_pl.model.bundle import write_bundle
from cifnet_pl.model.class_photos import embed_batch
from cifnet_pl.model.copies import Duplicates
from cifnet_pl.model.description import class_names
from cifnet_pl.model.extend import Extension, extend
from cifnet_pl.model.forget import Forgetting, forget
from cifnet_pl.model.incremental import IncrementalClassifier

AT_ONCE = 4096
"""Embeddings that are classified at once."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one photo, best first. ``unreadable`` is the reason where it cannot be decoded.

    ``file`` is None for a photo that was given as bytes or as an image.
    """

    file: Path | None
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    unreadable: str | None = None


class Classifier(IncrementalClassifier):
    """An :class:`IncrementalClassifier` that works on photos in files, as :func:`cifnet_pl.load` gives it.

    Example::

        model = cifnet_pl.load("lightning_logs/flowers")
        for prediction in model.classify(["a.jpg", "b.jpg"]):
            print(prediction.file, prediction.classes[0], prediction.probabilities[0])
        result = model.extend("new_classes")  # one sub-folder of photos for each new class
        result.model.save("flowers_2")
    """

    def classify(self, photos: Photo | str | Iterable[Photo | str], top: int = 5) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each photo, in the order given; streams, in constant memory.

        Args:
            photos: one photo or many: paths, bytes of image files, or Pillow images. A single path may also be a folder
                with photos, a Zip archive, or a pattern.
            top: number of classes.

        Raises:
            DataError: a single path where there is no photo.
            UsageError: something that is no photo.
        """
        top = min(top, len(self.class_names))
        for batch in squares(photos_of(photos), self.image_size, self.crop_ratio):
            best = self.head.probabilities(embed_batch(self, batch)).topk(top, dim=1)
            rows = iter(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            for photo, reason in zip(batch.files, batch.unreadable, strict=True):
                file = photo if isinstance(photo, Path) else None
                if reason is not None:
                    yield Prediction(file, unreadable=reason)
                    continue
                columns, shares = next(rows)
                yield Prediction(file, tuple(self.class_names[c] for c in columns), tuple(shares))

    def classify_embeddings(self, file: Path | str, top: int = 5) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each row of a file of embeddings, in constant memory.

        Args:
            file: .npz, .safetensors, .parquet or .arrow with ``embeddings`` (n, d) and, if wanted, ``ids`` (n,).
            top: number of classes per row.

        Raises:
            DataError: the file is missing or damaged, or an embedding holds NaN or infinity.
            UsageError: another kind of file.
            CifnetError: the embeddings have another width than those that were learned.
        """
        samples, top = unlabelled(Path(file).expanduser()), min(top, len(self.class_names))
        for start in range(0, len(samples), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(samples)))
            best = self.head.probabilities(samples.get(rows).to(self.device)).topk(top, dim=1)
            for row, columns, shares in zip(rows.tolist(), best.indices.tolist(), best.values.tolist(), strict=True):
                name = Path(f"{samples.file}#{samples.names[row]}")
                yield Prediction(name, tuple(self.class_names[c] for c in columns), tuple(shares))

    def extend(
        self,
        images: Path | str,
        *,
        check: Path | str | None = None,
        more: bool = False,
        duplicates: Duplicates = "skip",
        progress: bool = False,
    ) -> Extension[Classifier]:
        """Learn new classes from one folder of photos per class; see :func:`cifnet_pl.model.extend.extend`.

        This model is not changed: the one that learned is ``result.model``.
        """
        return extend(self, images, check=check, more=more, duplicates=duplicates, progress=progress)

    def forget(self, names: str | Sequence[str], images: Path | str | None = None) -> Forgetting[Classifier]:
        """Remove classes, with or without their photos; see :func:`cifnet_pl.model.forget.forget`.

        This model is not changed: the one without the classes is ``result.model``.
        """
        return forget(self, names, images)

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a bundle (see :mod:`cifnet_pl.model.bundle`).

        Raises:
            UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds other files; the
                model has an unknown precision.
            CheckpointError: a class name that could not be read back.
            CifnetError: the disk is full or not writable; an old bundle is left as it was.
        """
        class_names(self.class_names, "this model")
        check_precision(self.precision)
        write_bundle(self.describe(), self.tensors(), Path(folder), overwrite)
