"""Remove classes from a learned model, with or without their part in the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from cifnet_pl.images.files import find_images
from cifnet_pl.images.image import EncodedImage
from cifnet_pl.images.reader import LEFT_OUT, decode_images
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import Unreadable, unreadable_of
from cifnet_pl.utilities.errors import DataError, UnsupportedError
from cifnet_pl.utilities.names import class_name
from cifnet_pl.utilities.text import number_of, printable


@dataclass(frozen=True)
class Forgetting:
    """The result of :func:`forget`.

    Attributes:
        model: the model without the classes; the one that was given is not changed.
        images: class name → number of images that it was learned from.
        exact: whether the images were taken out of the statistics.
        earlier_removals: whether classes were removed earlier without their images, which may still
            count as negatives.
        unreadable: images that could not be decoded.
        rounding: why the result differs by more than 1e-8 from a model that never saw the images;
            None where it does not.
        ignored: number of images in the folder that the classes were not learned from.
        recalled: classes that were taken out without images, because the head remembered them.
    """

    model: Classifier
    images: dict[str, int]
    exact: bool
    earlier_removals: bool
    unreadable: list[Unreadable] = field(default_factory=list)
    rounding: str | None = None
    ignored: int = 0
    recalled: frozenset[str] = frozenset()


def forget(
    old: Classifier,
    names: str | Sequence[str],
    images: Path | str | Sequence[Path | str] | None = None,
) -> Forgetting:
    """Remove classes from a model; with their images, also what they contributed to the statistics.

    Without the images a class can no longer be predicted and leaves the buffer, but the other
    classes keep what they learned from its images as negatives. With them, or if the head remembers
    the class (``remember`` of ``RidgeHead``), the model becomes what it would be without them.

    Args:
        old: a learned model; it is not changed.
        names: one class name or several.
        images: folder, Zip archive or files that hold all images that the class was learned from;
            several where they do together. Images are identified by their content hashes; others
            are ignored.

    Returns:
        The model without the classes, and what was done.

    Raises:
        UsageError: a class that is not known, or all classes.
        UnsupportedError: ``images`` for a head whose statistics cannot be subtracted.
        DataError: the images are not those that the class was learned from.
    """
    given = [names] if isinstance(names, str) else names
    names = list(dict.fromkeys(map(class_name, given)))
    old.labels(names)
    model = old.clone()
    counts = old.counts
    unreadable: list[Unreadable] = []
    recalled = set()
    rounding = None
    ignored = 0
    if images is not None:
        places = [images] if isinstance(images, Path | str) else images
        with model.backbone.preferring(old.engines):
            others = [
                _subtract_images(model, name, places, unreadable) for name in names
            ]
            rounding = _rounding(model)
        if others:
            ignored = len(set.intersection(*others))
    else:
        for name in names:
            label = model.labels([name])[0]
            share = model.head.statistics_of_class(label)
            if share is not None:
                model.head.subtract_(share)
                recalled.add(name)
    exact = images is not None or len(recalled) == len(names)
    model.remove_classes(names)
    learned = {name: counts[name] for name in names}
    removed = None
    if exact:
        removed = sum(learned.values())
    model.record_event("forget", removed, class_names=names, parents=[old.identity])
    return Forgetting(
        model=model,
        images=learned,
        exact=exact,
        earlier_removals=old.remembers_removed,
        unreadable=unreadable,
        rounding=rounding,
        ignored=ignored,
        recalled=frozenset(recalled),
    )


def _rounding(model: Classifier) -> str | None:
    """Return why what is subtracted differs from what was added by more than 1e-8; None if not.

    Another engine rounds differently, and so does torch with another batch or number of threads:
    measured with EfficientNet-Lite0, 5e-7 of the largest value. ONNX Runtime gave the same bits for
    any of these.
    """
    engine = model.engine
    if model.engines not in ([engine], []):
        learned_with = " and ".join(model.engines)
        return f"learned with engine {learned_with}, subtracted with {engine}: rounding differs"
    has_parameters = any(True for _ in model.backbone.parameters())
    if engine != "onnxruntime" and has_parameters:
        return f"engine {engine}: rounding differs with batch size and threads"
    return None


def _subtract_images(
    model: Classifier,
    name: str,
    places: Sequence[Path | str],
    unreadable: list[Unreadable],
) -> set[Path]:
    """Subtract the images of a class from the statistics.

    Args:
        model: it is changed in place.
        name: of the class.
        places: where the images are, as :func:`~cifnet_pl.images.files.find_images` takes each.
        unreadable: images that cannot be decoded are appended.

    Returns:
        The other images there, which were ignored.

    Raises:
        UnsupportedError: the head's statistics cannot be subtracted.
        DataError: nothing is at a place, or not all of those images.
    """
    hint = "leave out --images to remove the class from what can be predicted"
    try:
        model.head.require("subtracts")
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}: {hint}") from error
    label = model.labels([name])[0]
    hashes = model.images.of_label(label).tolist()
    found = _embed_images_of(model, set(hashes), places, unreadable)
    embeddings = [found.embeddings[key] for key in hashes if key in found.embeddings]
    if len(embeddings) < len(hashes):
        raise DataError(
            f"class '{printable(name)}' was learned from {number_of(len(hashes), 'image')},"
            f" {len(embeddings)} of them are there: give all of them, or {hint}"
        )
    removed = model.head.fresh()
    removed.begin_task([label], [len(hashes)])
    labels = torch.full((len(hashes),), label, device=model.device)
    removed.observe(torch.stack(embeddings), labels)
    duplicates = model.images.duplicates
    model.images.remove([label])
    removed.count_duplicates(duplicates - model.images.duplicates)
    model.head.subtract_(removed)
    return found.others


@dataclass
class FoundImages:
    """Images at some places, by whether they are wanted.

    Attributes:
        embeddings: content hash → (d,) embedding of each wanted image.
        others: the other images.
    """

    embeddings: dict[int, Tensor] = field(default_factory=dict)
    others: set[Path] = field(default_factory=set)


def _embed_images_of(
    model: Classifier,
    hashes: set[int],
    places: Sequence[Path | str],
    unreadable: list[Unreadable],
) -> FoundImages:
    """Embed the images at some places that have one of the content hashes; each is opened once."""
    files: dict[Path, None] = {}
    for place in places:
        files.update(dict.fromkeys(find_images(place)))

    def is_other(row: int, content_hash: int) -> bool:
        return content_hash not in hashes

    found = FoundImages()
    batches = decode_images(
        files,
        model.image_size,
        model.crop_ratio,
        EncodedImage.identify,
        is_other,
        model.device.type,
    )
    for batch in batches:
        unreadable += unreadable_of(batch)
        embeddings = iter(model.embed_batch(batch))
        for file, reason, look in zip(
            batch.files, batch.unreadable, batch.looks, strict=True
        ):
            if reason == LEFT_OUT:
                found.others.add(cast(Path, file))
            elif look is not None:
                found.embeddings[look.hash] = next(embeddings)
    return found
