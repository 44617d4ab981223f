"""Merge models that learned different images, by adding their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import UsageError, prefixed
from cifnet_pl.utilities.text import number_of

LearnedImages = Counter[tuple[str, int]]
"""How often each image was learned, by class name and content hash."""


@dataclass(frozen=True)
class Merger:
    """The result of :func:`merge`.

    Attributes:
        model: the model that knows what all of them learned.
        images: number of images in it.
        warnings: sentences for the user.
    """

    model: Classifier
    images: int
    warnings: list[str] = field(default_factory=list)


def merge(
    models: Sequence[Classifier],
    names: Sequence[str] | None = None,
    base: Classifier | None = None,
) -> Merger:
    """Merge models that learned different images; no image is needed.

    Classes are matched by name; those that only a later model knows are appended. For heads whose
    statistics can be added, such as RidgeHead, the result equals one run over all images. Images
    that two models have learned are found by their content hashes: what two models have from a
    common ``base`` is subtracted once, which is exact. Any other overlap is refused.

    Args:
        models: at least two, on the same device; they are not changed.
        names: what errors call each of them; by default "model 1", "model 2", ….
        base: the model that they were extended from.

    Returns:
        The merged model, and warnings for the user.

    Raises:
        UsageError: fewer than two models, the same one twice, images that would count twice, other
            backbones, image sizes, precisions, heads or settings.
        UnsupportedError: a head whose statistics cannot be added, or subtracted if there is a base.
    """
    if len(models) < 2:
        raise UsageError(f"merge got {len(models)} model, expected at least two")
    if names is None:
        names = []
        for i in range(len(models)):
            names.append(f"model {i + 1}")
    name_of_identity = {models[0].identity: names[0]}
    merged = models[0].clone()
    warnings: list[str] = []
    others = zip(names[1:], models[1:], strict=True)
    for name, other in others:
        warnings += merged.class_name_warnings(other.class_names)
        warnings += other.class_name_warnings(merged.class_names)
        first = name_of_identity.setdefault(other.identity, name)
        is_same = first != name
        with prefixed(f"cannot merge {name} into {names[0]}"):
            check_same_embeddings(merged, other)
            # What is wrong with one of two equal models is more helpful than that they are equal.
            common: LearnedImages = Counter()
            if not is_same:
                common = count_learned_images(merged) & count_learned_images(other)
            if common:
                check_base(common, base)
            shared = None
            if common:
                shared = base
            _add_without(merged, other, shared)
        if is_same:
            raise UsageError(
                f"{name} holds the same model as {first}: its images would count twice"
            )
        if common:
            warnings.append(_common_images_message(common, name))
    merged.solve()
    parents = [model.identity for model in models]
    merged.history[-1] = replace(
        merged.history[-1],
        date=now(),
        class_names=list(merged.class_names),
        parents=parents,
    )
    images = sum(merged.counts.values())
    distinct = list(dict.fromkeys(warnings))
    return Merger(merged, images, distinct)


def count_learned_images(model: Classifier) -> LearnedImages:
    """Return how often a model learned each image, by class name and content hash."""
    name_of = model.name_of
    counts: LearnedImages = Counter()
    for label, hashes in model.images.by_label().items():
        keys = [(name_of[label], content_hash) for content_hash in hashes.tolist()]
        counts.update(keys)
    return counts


def check_base(common: LearnedImages, base: Classifier | None) -> None:
    """Check that two models have exactly the images of a base in common.

    Args:
        common: images that both learned.
        base: the model that both were extended from.

    Raises:
        UsageError: there is no base, or it has other images.
    """
    count = sum(common.values())
    if base is None:
        raise UsageError(
            f"{number_of(count, 'image was', 'images were')} learned by both and would count twice:"
            " give the model that both were extended from with --base, or merge models that"
            " learned different images"
        )
    if count_learned_images(base) != common:
        raise UsageError(
            f"they have {number_of(count, 'image')} in common, not exactly the"
            f" {sum(base.counts.values())} of the base: give the model that both were extended from"
        )


def _common_images_message(common: LearnedImages, name: str) -> str:
    count = sum(common.values())
    once = "count once"
    if count == 1:
        once = "counts once"
    images = number_of(count, "image")
    return f"note: {images} that {name} has in common with the models before it {once}"


def _add_without(model: Classifier, added: Classifier, base: Classifier | None) -> None:
    """Add what ``added`` learned to ``model``, without what it has from ``base``."""
    other = added.clone()
    if base is not None:
        subtract_base(other, base)
    absorb(model, other)


def subtract_base(model: Classifier, base: Classifier) -> None:
    """Subtract what ``base`` learned from the statistics of ``model``; solve afterwards.

    Args:
        model: it was extended from the base; it is changed in place.
        base: an earlier version of it.

    Raises:
        UnsupportedError: a head whose statistics cannot be subtracted.
        UsageError: a class of the base that the model does not know.
    """
    model.head.require("subtracts")
    base_labels = model.labels(base.class_names)
    labels = dict(zip(base.head.classes, base_labels, strict=True))
    shared = base.clone()
    shared.head.relabel(labels)
    model.head.subtract_(shared.head)
    before = model.images.duplicates - shared.images.duplicates
    shared.images.relabel(labels)
    model.images.subtract(shared.images)
    model.count_duplicates(before)


def absorb(model: Classifier, other: Classifier) -> None:
    """Add what ``other`` learned to ``model``, which must be solved again afterwards.

    The samples of its buffer are candidates, among which the solve selects.

    Args:
        model: it is changed in place.
        other: it must not be used afterwards.

    Raises:
        UsageError: other embeddings, or a head or buffer with other settings.
        UnsupportedError: the head's statistics cannot be added.
    """
    _check_same_kind(model, other)
    images = sum(other.counts.values())
    label_of = model.label_of
    new = []
    for name in other.class_names:
        if name not in label_of:
            new.append(name)
    largest = max(label_of.values(), default=-1)
    next_label = largest + 1
    for label, name in enumerate(new, next_label):
        label_of[name] = label
    labels = {}
    for label, name in other.name_of.items():
        labels[label] = label_of[name]
    other.head.relabel(labels)
    model.head.merge_(other.head)
    model.class_names += new
    if model.buffer is not None and other.buffer is not None:
        other.buffer.relabel(labels)
        buffer = other.buffer
        model.buffer.add(buffer.z, buffer.y, buffer.key)
        model.calibration.add_given_groups(
            other.calibration.given_key, other.calibration.given
        )
        if len(other.calibration.chosen):
            model.calibration.exclude_selected(other.calibration.chosen)
    before = model.images.duplicates + other.images.duplicates
    for label, hashes in other.images.by_label().items():
        label_of_class = labels[label]
        repeated = np.full(len(hashes), label_of_class)
        model.images.add(repeated, hashes)
    model.count_duplicates(before)
    model.held_out = None  # the split of one says nothing of the other's images
    if other.remembers_removed and not model.remembers_removed:
        model.history += other.removals
    model.record_engines(other.engines)
    event = _merge_event(len(model.class_names), images, other.history)
    model.history.append(event)


def check_same_embeddings(model: Classifier, other: Classifier) -> None:
    """Check that both models make the same embedding of an image.

    Args:
        model: that the other one is added to.
        other: that is added.

    Raises:
        UsageError: their backbones, the size or crop of their images, or their precisions differ.
    """
    ours = model.backbone
    theirs = other.backbone
    if ours.sha256 != theirs.sha256:
        our_hash = ours.sha256[:12]
        their_hash = theirs.sha256[:12]
        raise UsageError(
            f"their backbones differ: {ours.name} (sha256 {our_hash}…)"
            f" and {theirs.name} ({their_hash}…)"
        )
    preprocessing = (model.image_size, model.crop_ratio)
    if preprocessing != (other.image_size, other.crop_ratio):
        raise UsageError(
            f"their images are prepared differently: {model.image_size} px with crop ratio"
            f" {model.crop_ratio:g}, and {other.image_size} px with crop ratio"
            f" {other.crop_ratio:g}"
        )
    if model.precision != other.precision:
        raise UsageError(
            f"they embed images in different precisions: {model.precision}, and {other.precision}"
        )


def _check_same_kind(model: Classifier, other: Classifier) -> None:
    """Raise UsageError unless both have the same kind of head and the same settings of a buffer."""
    kind = type(model.head).__name__
    other_kind = type(other.head).__name__
    if kind != other_kind:
        raise UsageError(f"their heads differ: {kind} and {other_kind}")
    buffer = _shown_buffer(model.buffer)
    other_buffer = _shown_buffer(other.buffer)
    if buffer != other_buffer:
        raise UsageError(f"their buffers differ: {buffer}, and {other_buffer}")


def _shown_buffer(buffer: CalibrationBuffer | None) -> str:
    if buffer is None:
        return "none"
    settings = buffer.settings().items()
    texts = [f"{name} {value}" for name, value in settings]
    return ", ".join(texts)


def _merge_event(classes: int, images: int, history: Sequence[Event]) -> Event:
    """Return one event that stands for the whole history of the model that was added."""
    seconds = [event.seconds for event in history]
    energies = [event.energy_kwh for event in history]
    sources = {event.energy_source for event in history if event.energy_source}
    return Event(
        "merge",
        classes,
        images,
        seconds=_sum_of_known(seconds),
        energy_kwh=_sum_of_known(energies),
        energy_source="; ".join(sorted(sources)) or None,
    )


def _sum_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known)
