"""Compare a model with one that is learned again from its classes' photos, to see what forgetting left behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cifnet_pl.data.image_sets import expanded
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import number_of, printable


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


def distance_to_retrained(model: IncrementalClassifier, images: Path | str) -> Distance:
    """Learn a model's classes again from their photos, in the same tasks, and compare the scores of these photos.

    Args:
        model: what is left after a class was forgotten.
        images: folder with one sub-folder for each of its classes, which holds exactly the photos that it learned.

    Raises:
        DataError: a class is missing, or has another number of photos that can be read.
        UnsupportedError: a head whose statistics cannot be taken back, so that there is nothing to compare.
    """
    model.head.require("subtracts")
    photos = ClassPhotos.find(expanded(Path(images)), "--compare")
    missing = [name for name in model.class_names if name not in photos.class_names]
    if missing:
        raise DataError(f"--compare has no photos of class '{printable(missing[0])}': give those of all classes left")
    embedded = {name: _embedded(model, photos.of({name})) for name in model.class_names}
    for name, z in embedded.items():
        if len(z) != model.counts[name]:
            learned = number_of(model.counts[name], "photo")
            raise DataError(f"class '{printable(name)}' was learned from {learned}, --compare holds {len(z)}")
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


def _embedded(model: IncrementalClassifier, photos: ClassPhotos) -> Tensor:
    parts = [z for _, z in photos.embedded(model, "embedding", [], False)]
    return torch.cat(parts) if parts else torch.zeros(0, model.head.in_features)
