"""Remove classes from a learned model, with or without their part in the statistics."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.samples import SampleTable
from cifnet_pl.data.sources.python_objects import read_samples
from cifnet_pl.heads import Head
from cifnet_pl.images.files import find_images
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable
from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
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
        recalled: whether the classes were taken out without images, because the head remembered
            them.
    """

    model: Classifier
    images: dict[str, int]
    exact: bool
    earlier_removals: bool
    unreadable: list[Unreadable]
    rounding: str | None
    ignored: int
    recalled: bool


def forget(
    old: Classifier,
    names: str | Sequence[str],
    images: Any = None,
) -> Forgetting:
    """Remove classes from a model; with their images, also what they contributed to the statistics.

    Without the images a class can no longer be predicted and leaves the buffer, but the other
    classes keep what they learned from its images as negatives. With them, or if the head remembers
    the class (``remember`` of ``RidgeHead``), the model becomes what it would be without them.

    Args:
        old: a learned model; it is not changed.
        names: one class name or several.
        images: folder, Zip archive or files that hold all images that the class was learned from,
            one or a list of these; a list or array of images in memory; or an array (n, d) of
            embeddings. Images are identified by their content hashes; others are ignored.

    Returns:
        The model without the classes, and what was done.

    Raises:
        UsageError: a class that is not known, or all classes.
        UnsupportedError: ``images`` for a head whose statistics cannot be subtracted.
        DataError: the images are not those that the class was learned from.
    """
    given = [names] if isinstance(names, str) else names
    names = list(dict.fromkeys(map(class_name, given)))
    labels = old.labels(names)
    model = old.clone()
    counts = old.counts
    unreadable = []
    recalled = False
    rounding = None
    ignored = 0
    if images is not None:
        with model.backbone.preferring(old.engines):
            found = _embed_images_of(model, labels, images)
            for name in names:
                _subtract_images(model, name, found.embeddings)
            rounding = _rounding(model)
        ignored = found.ignored
        unreadable = found.unreadable
    else:
        shares = [model.head.statistics_of_class(label) for label in labels]
        recalled = None not in shares
        if recalled:
            for label, share in zip(labels, shares, strict=True):
                _subtract(model, label, share)
    exact = images is not None or recalled
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
        earlier_removals=bool(old.removals),
        unreadable=unreadable,
        rounding=rounding,
        ignored=ignored,
        recalled=recalled,
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


HINT = "leave out --images to remove the class from what can be predicted"


def _subtract_images(
    model: Classifier,
    name: str,
    embeddings: Mapping[int, Tensor],
) -> None:
    """Subtract the images of a class from the statistics.

    Args:
        model: it is changed in place.
        name: of the class.
        embeddings: content hash → (d,) embedding of the images that are there.

    Raises:
        DataError: not all images of the class are there.
    """
    label = model.labels([name])[0]
    hashes = model.images.of_label(label).tolist()
    z = [embeddings[key] for key in hashes if key in embeddings]
    if len(z) < len(hashes):
        raise DataError(
            f"class '{printable(name)}' was learned from {number_of(len(hashes), 'image')},"
            f" {len(z)} of them are there: give all of them, or {HINT}"
        )
    removed = model.head.fresh()
    removed.begin_task([label])
    labels = torch.full((len(hashes),), label, device=model.device)
    removed.observe(torch.stack(z), labels)
    _subtract(model, label, removed)


def _subtract(model: Classifier, label: int, share: Head) -> None:
    """Subtract the statistics of a class, of which duplicates were counted once.

    Args:
        model: it is changed in place.
        label: of the class.
        share: a head that has learned the images of this class alone, duplicates included.
    """
    before = model.images.duplicates
    model.images.remove([label])
    share.count_duplicates(before - model.images.duplicates)
    model.head.subtract_(share)


class FoundImages(NamedTuple):
    """Images of the classes to forget.

    Attributes:
        embeddings: content hash → (d,) embedding.
        ignored: number of other images beside them.
        unreadable: those that cannot be decoded.
    """

    embeddings: dict[int, Tensor]
    ignored: int
    unreadable: list[Unreadable]


def _embed_images_of(
    model: Classifier,
    labels: Sequence[int],
    given: Any,
) -> FoundImages:
    """Embed the given images that some classes were learned from; each is opened once.

    Args:
        model: that learned them.
        labels: of the classes.
        given: the images, as for :func:`forget`.

    Raises:
        UnsupportedError: the head's statistics cannot be subtracted.
        DataError: nothing is at a place.
    """
    try:
        model.head.require("subtracts")
    except UnsupportedError as error:
        raise UnsupportedError(f"{error}: {HINT}") from error
    image_labels = model.images.image_labels
    is_wanted = torch.isin(image_labels, image_labels.new_tensor(labels))
    wanted = set(model.images.content[is_wanted].tolist())
    images = LabelledImages([""], _samples(given))
    embeddings: dict[int, Tensor] = {}
    for rows, z in images.embedded(
        model, "", skip=lambda _, content_hash: content_hash not in wanted
    ):
        hashes = images.files.hashes(rows).tolist()
        embeddings.update(zip(hashes, z, strict=True))
    hashes = images.files.hash_of
    is_other_image = (hashes >= 0) & ~np.isin(hashes, list(wanted))
    return FoundImages(embeddings, int(is_other_image.sum()), images.unreadable)


def _samples(given: Any) -> SampleTable:
    """Return the samples of one or several places, or of arrays and images in memory."""
    if isinstance(given, str | Path):
        given = [given]
    if isinstance(given, list | tuple):
        if not given:
            raise UsageError(
                "images is empty: give the images, or None to forget without them"
            )
        if isinstance(given[0], str | Path):
            found = itertools.chain.from_iterable(map(find_images, given))
            given = list(dict.fromkeys(found))
    return read_samples((given, [0] * len(given)))
