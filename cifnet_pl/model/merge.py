"""Merge models that learned different images, by adding their statistics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

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
    warnings: list[str]


def merge(
    models: Sequence[Classifier],
    names: Sequence[str] | None = None,
    base: Classifier | None = None,
) -> Merger:
    """Merge models that learned different images; no image is needed.

    Classes are matched by name; those that only a later model knows are appended. For heads whose
    statistics can be added, such as RidgeHead, the result equals one run over all images. Images
    that two models have learned are found by their content hashes: what two models have from a
    common ``base`` is subtracted once, which is exact. Any other overlap is refused, or warned of
    where the classes have different names.

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
        names = [f"model {number}" for number in range(1, len(models) + 1)]
    merged = models[0].clone()
    warnings = []
    for name, other in zip(names[1:], models[1:], strict=True):
        warnings += merged.class_name_warnings(other.class_names)
        warnings += other.class_name_warnings(merged.class_names)
        with prefixed(f"cannot merge {name} into {names[0]}"):
            check_same_embeddings(merged, other)
            added = other.clone()
            common = count_learned_images(merged) & count_learned_images(other)
            ours = merged.images.content
            in_both = torch.isin(ours, other.images.content)
            shared = torch.unique(ours[in_both])
            twice = len(shared) - len({content_hash for _, content_hash in common})
            if twice:
                images = number_of(twice, "image")
                warnings.append(
                    f"{name} and {names[0]} have {images} in classes of different names: they count"
                    " twice; if a class was renamed, merge it under one name"
                )
            if common:
                if base is None:
                    raise UsageError(
                        f"{common.total():,} images were learned by both and would count twice:"
                        " give the model that both were extended from with --base, or merge models"
                        " that learned different images"
                    )
                subtract_base(added, base, common)
            absorb(merged, added)
    merged.solve()
    merged.history[-1] = replace(
        merged.history[-1],
        class_names=list(merged.class_names),
        parents=[model.identity for model in models],
    )
    return Merger(merged, sum(merged.counts.values()), list(dict.fromkeys(warnings)))


def count_learned_images(model: Classifier) -> LearnedImages:
    """Return how often a model learned each image, by class name and content hash."""
    name_of = model.name_of
    names = [name_of[label] for label in model.images.image_labels.tolist()]
    return Counter(zip(names, model.images.content.tolist(), strict=True))


def subtract_base(model: Classifier, base: Classifier, common: LearnedImages) -> None:
    """Subtract what ``base`` learned from the statistics of ``model``; solve afterwards.

    Args:
        model: it was extended from the base; it is changed in place.
        base: an earlier version of it.
        common: images that the model has in common with another one.

    Raises:
        UnsupportedError: a head whose statistics cannot be subtracted.
        UsageError: these are not exactly the images of the base.
    """
    if count_learned_images(base) != common:
        raise UsageError(
            "the images that they have in common are not exactly those of the base: give the model"
            " that both were extended from"
        )
    model.head.require("subtracts")
    base_labels = model.labels(base.class_names)
    labels = dict(zip(base.head.classes, base_labels, strict=True))
    shared = base.clone()
    model.calibration.subtract_errors(base.calibration)
    shared.head.relabel(labels)
    model.head.subtract_(shared.head)
    before = model.images.duplicates - shared.images.duplicates
    shared.images.relabel(labels)
    model.images.subtract(shared.images)
    model.head.count_duplicates(model.images.duplicates - before)


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
    images = sum(other.counts.values())
    model.observe_sums(other)
    model.add_up()
    model.head.count_duplicates(-other.images.duplicates)  # its own head counted them
    model.calibrated |= other.calibrated
    model.calibration.absorb(other.calibration)
    model.held_out = None  # the split of one says nothing of the other's images
    if not model.removals:
        model.history += other.removals
    model.record_engines(other.engines)
    # One event stands for the whole history of the other model.
    history = other.history
    sources = {event.energy_source for event in history if event.energy_source}
    model.record_event(
        "merge",
        images,
        seconds=sum(event.seconds or 0.0 for event in history) or None,
        energy_kwh=sum(event.energy_kwh or 0.0 for event in history) or None,
        energy_source="; ".join(sorted(sources)) or None,
    )


def check_same_embeddings(model: Classifier, other: Classifier) -> None:
    """Check that both models make the same embedding of an image.

    Args:
        model: that the other one is added to.
        other: that is added.

    Raises:
        UsageError: their backbones, the size or crop of their images, or their precisions differ.
    """
    ours = _embeds_by(model)
    theirs = _embeds_by(other)
    if ours != theirs:
        raise UsageError(f"their embeddings differ: {ours}, and {theirs}")


def _embeds_by(model: Classifier) -> str:
    """Return what the embeddings of a model depend on, in words."""
    return (
        f"backbone with sha256 {model.backbone.sha256[:12]}… on {model.image_size} px with crop"
        f" ratio {model.crop_ratio:g} in {model.precision}"
    )
