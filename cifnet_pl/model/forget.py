"""Remove classes from a learned model, with or without what their images contributed to the
statistics.
"""

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
from cifnet_pl.utilities.text import number_of, printable


@dataclass(frozen=True)
class Forgetting:
    """The result of :func:`forget`.

    Attributes:
        model: the model without the classes; the one that was given is not changed.
        images: number of images that each class had been learned from.
        exact: whether the images were taken out of the statistics.
        recalled: classes that were taken out without images, as the head remembered what it had
            learned from them.
        rounding: why that is not exact to 1e-8, or None where it is.
        earlier_removals: whether classes were removed earlier without their images, which may still
            count.
        unreadable: images that could not be decoded.
        ignored: images in the folder that the classes were not learned from.
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
    classes keep what they learned from its images as counterexamples. With them, or if the head
    remembers the class (``remember`` of ``RidgeHead``), the model becomes what it would be if it
    had never seen them.

    Args:
        old: a learned model; it is not changed.
        names: one class name or several.
        images: folder, Zip archive or files that hold all images that the class was learned from;
            several where they do together. The images are known by their content hashes; anything
            else there is ignored.

    Returns:
        The model without the classes, and what was done.

    Raises:
        UsageError: a class that is not known, or all classes.
        UnsupportedError: ``images`` for a head whose statistics cannot be taken back.
        DataError: the images are not those that the class was learned from.
    """
    if isinstance(names, str):
        names = [names]
    else:
        names = list(dict.fromkeys(names))
    old.labels(names)
    model = old.clone()
    counts = {name: old.counts[name] for name in names}
    unreadable: list[Unreadable] = []
    rounding = None
    ignored: list[set[Path]] = []
    if images is not None:
        if isinstance(images, Path | str):
            places: Sequence[Path | str] = [images]
        else:
            places = images
        with model.backbone.preferring(old.engines):
            for name in names:
                ignored.append(_subtract(model, name, places, unreadable))
            rounding = _rounding(model)
    shares = {
        name: model.head.share_of(model.labels([name])[0]) for name in names if images is None
    }
    recalled = frozenset(name for name, share in shares.items() if share is not None)
    for name in recalled:
        model.head.subtract_(shares[name])
    exact = images is not None or len(recalled) == len(names)
    model.remove_classes(names)
    removed = sum(counts.values()) if exact else None
    model.record_event("forget", removed, class_names=names, parents=[old.identity])
    others = len(set.intersection(*ignored)) if ignored else 0
    return Forgetting(
        model, counts, exact, old.remembers_removed, unreadable, rounding, others, recalled
    )


def _rounding(model: Classifier) -> str | None:
    """Return why what is subtracted does not equal what was added to 1e-8; None where it does.

    Another engine rounds differently, and so does torch with another batch or number of threads:
    measured with EfficientNet-Lite0, 5e-7 of the largest sum. ONNX Runtime gave the same bits for
    any of these.
    """
    now = model.engine
    if model.engines in ([now], []):
        computes = any(True for _ in model.backbone.parameters())
        if now == "torch" and computes:
            return "engine torch rounds as batches and threads are"
        return None
    return (
        f"learned with engine {' and '.join(model.engines)}, taken out with {now}, which rounds"
        " otherwise"
    )


def _subtract(
    model: Classifier, name: str, places: Sequence[Path | str], unreadable: list[Unreadable]
) -> set[Path]:
    """Take the images of a class out of the statistics.

    Args:
        model: it is changed in place.
        name: of the class.
        places: where the images are, as :func:`~cifnet_pl.images.files.find_images` takes each.
        unreadable: images that cannot be decoded are appended; each is opened once, and known by
            its content hash.

    Returns:
        The other images there, which were ignored.

    Raises:
        UnsupportedError: the head's statistics cannot be taken back.
        DataError: nothing is at a place, or not all of those images.
    """
    try:
        model.head.require("subtracts")
    except UnsupportedError as error:
        hint = "leave out --images to remove the class from what can be predicted"
        raise UnsupportedError(f"{error}: {hint}") from error
    label = model.labels([name])[0]
    learned = model.images.of_label(label).tolist()
    files = dict.fromkeys(file for place in places for file in find_images(place))
    wanted = set(learned)
    found = dict[int, Tensor]()
    others = set[Path]()
    shape = model.image_size, model.crop_ratio
    for batch in decode_images(
        files, *shape, EncodedImage.identify, lambda _, value: value not in wanted
    ):
        unreadable += unreadable_of(batch)
        z = iter(model.embed_batch(batch))
        for file, reason, seen in zip(batch.files, batch.unreadable, batch.looks, strict=True):
            if reason == LEFT_OUT:
                others.add(cast(Path, file))
            elif seen is not None:
                found[seen.hash] = next(z)
    there = sum(value in found for value in learned)
    if there < len(learned):
        raise DataError(
            f"class '{printable(name)}' was learned from {number_of(len(learned), 'image')},"
            f" {there} of them are there: give all of them, or leave out --images to remove the"
            " class from what can be predicted"
        )
    gone = model.head.fresh()
    gone.begin_task([label], [len(learned)])
    gone.observe(
        torch.stack([found[value] for value in learned]),
        torch.full((len(learned),), label).to(model.device),
    )
    before = model.images.duplicates
    model.images.remove([label])
    gone.note_duplicates(before - model.images.duplicates)
    model.head.subtract_(gone)
    return others
