"""Add up what several models learned from different images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import UsageError, prefixed
from cifnet_pl.utilities.text import number_of


@dataclass(frozen=True)
class Merger:
    """The result of :func:`merge`.

    Attributes:
        model: one model that knows what all of them learned.
        images: number of images in it.
        warnings: sentences for the user.
    """

    model: Classifier
    images: int
    warnings: list[str] = field(default_factory=list)


def merge(
    models: Sequence[Classifier], names: Sequence[str] | None = None, base: Classifier | None = None
) -> Merger:
    """Add up what several models learned from different images; no image is needed.

    Classes are matched by name; those that only a later model knows are appended. For heads whose
    statistics are plain sums, such as RidgeHead, the result equals one run over all images. Images
    that two models have learned are found by their content hashes: what two models have from a
    common ``base`` is taken out once, which is exact. Any other overlap is refused.

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
    if names is not None:
        names = list(names)
    else:
        names = [f"model {i + 1}" for i in range(len(models))]
    seen = {models[0].identity: names[0]}
    merged = models[0].clone()
    warnings = list[str]()
    for name, other in zip(names[1:], models[1:], strict=True):
        first = seen.setdefault(other.identity, name)
        for knowing, learned in ((merged, other), (other, merged)):
            warnings += [
                w for w in knowing.class_name_warnings(learned.class_names) if w not in warnings
            ]
        with prefixed(f"cannot merge {name} into {names[0]}"):
            check_same_embeddings(merged, other)
            news = _join(merged, other, name, base if first == name else None, first == name)
        if first != name:
            raise UsageError(
                f"{name} holds the same model as {first}: its images would count twice"
            )
        warnings += news
    merged.solve()
    parents = [model.identity for model in models]
    merged.history[-1] = replace(
        merged.history[-1], date=now(), class_names=list(merged.class_names), parents=parents
    )
    return Merger(merged, sum(merged.counts.values()), warnings)


def _join(
    model: Classifier, added: Classifier, name: str, base: Classifier | None, distinct: bool
) -> list[str]:
    """Add ``added`` to ``model``, each image once; return warnings for the user."""
    other = added.clone()
    ours = _images(model)
    theirs = _images(added)
    common = ours & theirs if distinct else Counter()
    if not common:
        absorb(model, other)
        return []
    count = sum(common.values())
    if base is None:
        raise UsageError(
            f"{number_of(count, 'image was', 'images were')} learned by both and would count twice:"
            " give the model that both were extended from with --base, or merge models that"
            " learned different images"
        )
    if _images(base) != common:
        raise UsageError(
            f"they have {number_of(count, 'image')} in common, not exactly the"
            f" {sum(base.counts.values())} of the base: give the model that both were extended from"
        )
    take_out(other, base)
    absorb(model, other)
    once = "counts once" if count == 1 else "count once"
    return [
        f"note: {number_of(count, 'image')} that {name} has in common with the models before it"
        f" {once}"
    ]


def take_out(model: Classifier, base: Classifier) -> None:
    """Subtract what ``base`` learned from the sums of ``model``, which was extended from it; solve
    afterwards.

    Args:
        model: it is changed in place.
        base: an earlier version of it.

    Raises:
        UnsupportedError: a head whose statistics cannot be subtracted.
        UsageError: a class of the base that the model does not know.
    """
    model.head.require("subtracts")
    labels = dict(zip(base.head.classes, model.labels(base.class_names), strict=True))
    shared = base.clone()
    shared.head.relabel(labels)
    model.head.subtract_(shared.head)
    before = model.images.duplicates - shared.images.duplicates
    shared.images.relabel(labels)
    model.images.subtract(shared.images)
    model.count_duplicates(before)


def _images(model: Classifier) -> Counter[tuple[str, int]]:
    """Return how often each image was learned, by class name and content hash."""
    name = model.name_of
    groups = model.images.by_label().items()
    return Counter((name[label], value) for label, hashes in groups for value in hashes.tolist())


def absorb(model: Classifier, other: Classifier) -> None:
    """Add what ``other`` learned to ``model``, which must be solved again afterwards.

    Args:
        model: it is changed in place.
        other: it must not be used afterwards.

    Raises:
        UsageError: other embeddings, or a head or buffer with other settings.
        UnsupportedError: the head's statistics cannot be added.
    """
    kinds = [type(m.head).__name__ for m in (model, other)]
    if len(set(kinds)) > 1:
        raise UsageError(f"their heads differ: {' and '.join(kinds)}")
    ours = model.buffer.settings() if model.buffer is not None else None
    theirs = other.buffer.settings() if other.buffer is not None else None
    if ours != theirs:
        raise UsageError(f"their buffers differ: {_shown(ours)}, and {_shown(theirs)}")
    label = model.label_of
    free = max(label.values(), default=-1) + 1
    new = [name for name in other.class_names if name not in label]
    label |= {name: free + i for i, name in enumerate(new)}
    images = sum(other.counts.values())
    renamed = {old: label[name] for old, name in other.name_of.items()}
    other.head.relabel(renamed)
    model.head.merge_(other.head)
    model.class_names += new
    if model.buffer is not None and other.buffer is not None:
        other.buffer.relabel(renamed)
        model.buffer.add(other.buffer.z, other.buffer.y, other.buffer.key)
        model.buffer.commit()
        model.calibration.add_given_groups(other.calibration.given_key, other.calibration.given)
        if len(other.calibration.chosen):
            model.calibration.exclude_selected(other.calibration.chosen)
    before = model.images.duplicates + other.images.duplicates
    for old, hashes in other.images.by_label().items():
        model.images.add(np.full(len(hashes), renamed[old]), hashes)
    model.count_duplicates(before)
    model.held_out = None  # which images the one held out says nothing of the other's
    if other.remembers_removed and not model.remembers_removed:
        model.history += other.removals
    model.record_engines(other.engines)
    model.history.append(_event(len(model.class_names), images, other.history))


def check_same_embeddings(model: Classifier, other: Classifier) -> None:
    """Check that both models make the same embedding of an image.

    Args:
        model: the one that is added to.
        other: the one that is added.

    Raises:
        UsageError: their backbones, or the size or crop of their images, differ.
    """
    if model.backbone.sha256 != other.backbone.sha256:
        raise UsageError(
            f"their backbones differ: {model.backbone.name} (sha256 {model.backbone.sha256[:12]}…)"
            f" and {other.backbone.name} ({other.backbone.sha256[:12]}…)"
        )
    ours, theirs = (f"{m.image_size} px with crop ratio {m.crop_ratio:g}" for m in (model, other))
    if ours != theirs:
        raise UsageError(f"their images are prepared differently: {ours}, and {theirs}")
    if model.precision != other.precision:
        raise UsageError(
            f"they embed images in different precisions: {model.precision}, and {other.precision}"
        )


def _shown(settings: Mapping[str, Any] | None) -> str:
    if settings is None:
        return "none"
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _event(classes: int, images: int, history: Sequence[Event]) -> Event:
    """Return one entry of the history that stands for the whole life of the model that was
    added.
    """
    seconds = [event.seconds for event in history if event.seconds is not None]
    energies = [event.energy_kwh for event in history if event.energy_kwh is not None]
    sources = sorted({event.energy_source for event in history if event.energy_source})
    return Event(
        "merge",
        classes,
        images,
        seconds=sum(seconds) if seconds else None,
        energy_kwh=sum(energies) if energies else None,
        energy_source="; ".join(sources) or None,
    )
