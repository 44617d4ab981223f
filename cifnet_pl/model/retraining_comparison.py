"""Compare a model with one that is learned again from its classes' photos, to see what forgetting left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cifnet_pl.data.content_hashes import hashes_of
from cifnet_pl.data.image_sets import expanded
from cifnet_pl.data.photos import squares
from cifnet_pl.model.class_photos import ClassPhotos, embed_batch
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import number_of, printable

ROUNDING = 1e-4
"""Share of the largest score by which those of two engines may differ."""


@dataclass(frozen=True)
class Distance:
    """How far the scores of a model are from those of one that was learned again.

    Attributes:
        photos: number of photos that were learned again and scored by both.
        largest: largest difference of two scores.
        scale: largest score of the model that was learned again.
    """

    photos: int
    largest: float
    scale: float

    @property
    def is_rounding(self) -> bool:
        """Whether the difference is no more than that of two engines that run the network."""
        return self.largest <= ROUNDING * self.scale


def distance_to_retrained(model: IncrementalClassifier, images: Path | str) -> Distance:
    """Learn a model's classes again from their photos, in the same tasks, and compare the scores of these photos.

    Args:
        model: what is left after a class was forgotten.
        images: folder or Zip archive with one sub-folder for each of its classes; from a model that knows the content
            hashes of all its photos these are picked out, otherwise it must hold exactly those.

    Raises:
        DataError: a class is missing, or has another number of photos that can be read.
        UnsupportedError: a head whose statistics cannot be taken back, so that there is nothing to compare.
    """
    model.head.require("subtracts")
    learned_files = _learned_files(model, expanded(Path(images)))
    with model.backbone.preferring(model.engines):
        embedded = {name: _embedded(model, files) for name, files in learned_files.items()}
    for name, z in embedded.items():
        if len(z) != model.counts[name]:
            learned, of_them = number_of(model.counts[name], "photo"), " of them" if model.knows_photos else ""
            raise DataError(f"class '{printable(name)}' was learned from {learned}, --compare holds {len(z)}{of_them}")
    head, start = model.head.fresh(), 0
    for names in model.tasks:
        labels = model.labels(names)
        head.begin_task(labels, [len(embedded[name]) for name in names])
        for label, name in zip(labels, names, strict=True):
            head.observe(embedded[name], torch.full((len(embedded[name]),), label, device=embedded[name].device))
        start += len(names)
        if model.photos is not None and start == len(model.class_names):
            head.note_copies(model.photos.copies)
        head.solve()
    z = torch.cat([embedded[name] for name in model.class_names])
    again, ours = head(z), model.head(z)
    return Distance(len(z), float((ours - again).abs().max()), float(again.abs().max()))


def _learned_files(model: IncrementalClassifier, root: Path) -> dict[str, list[Path]]:
    """Return the photos of each class: those it learned, where it knows their contents, else all in its folder."""
    photos = ClassPhotos.find(root, "--compare")
    missing = [name for name in model.class_names if name not in photos.class_names]
    if missing:
        raise DataError(f"--compare has no photos of class '{printable(missing[0])}': give those of all classes left")
    files = [photos.files.root / name for name in photos.files.names]
    if model.photos is None or not model.knows_photos:
        return {
            name: [files[row] for row in photos.files.rows_of[photos.class_names.index(name)]]
            for name in model.class_names
        }
    hashes = hashes_of(photos.files.content, range(len(files))).tolist()
    first = dict(reversed(list(zip(hashes, files, strict=True))))
    learned = {name: model.photos.of(model.labels([name])[0]).tolist() for name in model.class_names}
    return {name: [first[value] for value in values if value in first] for name, values in learned.items()}


def _embedded(model: IncrementalClassifier, files: list[Path]) -> Tensor:
    parts = [embed_batch(model, batch) for batch in squares(files, model.image_size, model.crop_ratio)]
    return torch.cat(parts) if parts else torch.zeros(0, model.head.in_features)
