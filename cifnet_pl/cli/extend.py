"""``extend``: a model takes in new classes from a few photos each, without any old photo."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Event
from cifnet_pl.model.lessons import ClassPhotos, Score, learn
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import printable


def extend(
    model: str, images: str, output: str, check: str | None = None, more: bool = False, overwrite: bool = False
) -> None:
    """Teach a model new classes from one folder of photos per class, without any old photo.

    A fifth of the new photos is held back and scored by a model that learned the others; then all are learned, exactly
    as if they had been the next task of the original run.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        images: folder with one sub-folder of photos per new class.
        output: folder for the extended bundle.
        check: folder with one sub-folder of photos per old class, scored before and after, never learned.
        more: whether classes that are known already may get more photos.
        overwrite: whether a bundle at output may be replaced.

    Raises:
        UsageError: a class that is known already without ``more``, or something at output already.
        UnsupportedError: ``more`` photos for a head that cannot take them in.
        DataError: a folder is missing, holds no photos, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    target = Path(output).expanduser()
    with exclusive(target):
        refuse_existing(target, overwrite)
        old = load(model)
        photos = ClassPhotos.find(images, "--images")
        known = sorted(set(photos.class_names) & set(old.class_names))
        if known and not more:
            name = printable(known[0])
            raise UsageError(
                f"class '{name}' is already learned: add --more to give it more photos, or rename its folder"
            )
        if warning := old.warning_of(photos.class_names):
            print(f"cifnet: {warning}", file=sys.stderr)
        old_photos = _old_photos(old, check) if check else None
        start = time.perf_counter()
        final, new_score = learn(old, photos)
        seconds = time.perf_counter() - start
        before, after = Score(), Score()
        if old_photos is not None:
            for rows, z in old_photos.embedded(old, "checking"):
                before.add(old, old_photos, rows, z)
                after.add(final, old_photos, rows, z)
        taken = sum(final.counts.values()) - sum(old.counts.values())
        classes = len(final.class_names)
        final.history.append(Event("extend", classes, taken, new_score.percent, before.percent, after.percent, seconds))
        final.save(target, overwrite)
    print(
        f"learned {taken} photos of {len(photos.class_names)} classes in {seconds:.1f} s: {classes} classes in {target}"
    )
    if new_score.total:
        print(f"held-back fifth of the new photos: {new_score.percent:.1f} % of {new_score.total} right")
    if before.total:
        change = f"{before.percent:.1f} % right before, {after.percent:.1f} % after"
        print(f"old classes, {before.total} photos of {check}: {change}")


def _old_photos(model: Classifier, check: str) -> ClassPhotos:
    found = ClassPhotos.find(check, "--check")
    old = found.of(set(model.class_names))
    if not old.class_names:
        raise DataError(f"{check} has no folder of a class that the model knows: expected photos of its old classes")
    return old
