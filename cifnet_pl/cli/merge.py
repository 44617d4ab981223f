"""``merge``: models that learned from different photos, on different machines, become one."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Event
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import UnsupportedError, UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.growing import fingerprint


def merge(models: list[str], output: str, overwrite: bool = False) -> None:
    """Add up what several models learned from different photos; no photo is needed.

    Classes are matched by name; those that only a later model knows are appended. For heads whose statistics are plain
    sums, such as RidgeHead, the result equals one run over all photos. Photos that two models have seen count twice.

    Args:
        models: run folders, checkpoint files or bundles; they are not changed.
        output: folder for the merged bundle.
        overwrite: whether a bundle at output may be replaced.

    Raises:
        UsageError: fewer than two models, one given twice, other backbones, photo sizes, precisions, heads or settings,
            or something at output already.
        UnsupportedError: a head whose statistics cannot be added.
        CheckpointError: there is no model at one of ``models``, or it is damaged.
    """
    if len(models) < 2:
        raise UsageError(f"merge got {len(models)} model, expected at least two")
    for one, again in combinations(models, 2):
        if Path(one).expanduser().resolve() == Path(again).expanduser().resolve():
            raise UsageError(f"{again} is given twice: its photos would count twice")
    target = Path(output).expanduser()
    with exclusive(target):
        refuse_existing(target, overwrite)
        merged = load(models[0])
        seen = {fingerprint(repr(merged.class_names), merged.tensors()): models[0]}
        for place in models[1:]:
            other = load(place, device=merged.device)
            same = seen.setdefault(fingerprint(repr(other.class_names), other.tensors()), place)
            for knowing, learned in ((merged, other), (other, merged)):
                if warning := knowing.warning_of(learned.class_names):
                    print(f"cifnet: {warning}", file=sys.stderr)
            try:
                absorb(merged, other)
            except (UsageError, UnsupportedError) as error:
                raise type(error)(f"cannot merge {place} into {models[0]}: {error}") from error
            if same != place:
                raise UsageError(f"{place} holds the same model as {same}: its photos would count twice")
        merged.solve()
        merged.save(target, overwrite)
    photos = sum(merged.counts.values())
    print(f"{len(models)} models merged: {len(merged.class_names)} classes from {photos:,} photos in bundle {target}")


def absorb(model: Classifier, other: Classifier) -> None:
    """Add what ``other`` learned to ``model``, which must be solved again afterwards; ``other`` is used up.

    Raises:
        UsageError: other embeddings, or a head or buffer with other settings.
        UnsupportedError: the head's statistics cannot be added.
    """
    _check_same_embeddings(model, other)
    kinds = [type(m.head).__name__ for m in (model, other)]
    if len(set(kinds)) > 1:
        raise UsageError(f"their heads differ: {' and '.join(kinds)}")
    ours = model.buffer.settings() if model.buffer is not None else None
    theirs = other.buffer.settings() if other.buffer is not None else None
    if ours != theirs:
        raise UsageError(f"their buffers differ: {_shown(ours)}, and {_shown(theirs)}")
    label = dict(zip(model.class_names, model.head.classes, strict=True))
    free = max(label.values(), default=-1) + 1
    new = [name for name in other.class_names if name not in label]
    label |= {name: free + i for i, name in enumerate(new)}
    photos = sum(other.counts.values())
    names = dict(zip(other.head.classes, other.class_names, strict=True))
    renamed = {old: label[name] for old, name in names.items()}
    other.head.relabel(renamed)
    model.head.merge_(other.head)
    model.class_names += new
    if model.buffer is not None and other.buffer is not None:
        other.buffer.relabel(renamed)
        model.buffer.add_more(other.buffer.z, other.buffer.y, other.buffer.key)
        model.buffer.commit()
    model.held_back = None  # which photos the one held back says nothing of the other's
    if other.remembers_removed and not model.remembers_removed:
        model.history += other.removals
    model.history.append(_event(len(model.class_names), photos, other.history))


def _check_same_embeddings(model: Classifier, other: Classifier) -> None:
    if model.backbone.sha256 != other.backbone.sha256:
        raise UsageError(
            f"their backbones differ: {model.backbone.name} (sha256 {model.backbone.sha256[:12]}…) and "
            f"{other.backbone.name} ({other.backbone.sha256[:12]}…)"
        )
    ours, theirs = (f"{m.image_size} px with crop ratio {m.crop_ratio:g}" for m in (model, other))
    if ours != theirs:
        raise UsageError(f"their photos are prepared differently: {ours}, and {theirs}")
    if model.precision != other.precision:
        raise UsageError(f"they embed photos in different precisions: {model.precision}, and {other.precision}")


def _shown(settings: Mapping[str, Any] | None) -> str:
    return "none" if settings is None else ", ".join(f"{name} {value}" for name, value in settings.items())


def _event(classes: int, photos: int, history: Sequence[Event]) -> Event:
    """One entry for the whole life of the model that was added."""
    seconds = [event.seconds for event in history if event.seconds is not None]
    energies = [event.energy_kwh for event in history if event.energy_kwh is not None]
    sources = sorted({event.energy_source for event in history if event.energy_source})
    return Event(
        "merge",
        classes,
        photos,
        seconds=sum(seconds) if seconds else None,
        energy_kwh=sum(energies) if energies else None,
        energy_source="; ".join(sources) or None,
    )
