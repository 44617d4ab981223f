"""``forget``: a class leaves a model, with or without what its photos left in the statistics."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from cifnet_pl.backbones.precision import FLOAT32
from cifnet_pl.buffer import SAME
from cifnet_pl.data.folders import image_files, listing
from cifnet_pl.data.image_sets import expanded, held_back, place
from cifnet_pl.data.photos import squares
from cifnet_pl.heads import Head
from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Event
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import DataError, UnsupportedError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import printable

SHARE_OF_ONE = 0.1
"""What a class left in the sums and what its photos give now differ by no more than one photo's embeddings may on two
machines; and, as that averages out over many photos, by no more than this share of one of them."""


def forget(model: str, class_: str, output: str, images: str | None = None, overwrite: bool = False) -> None:
    """Remove a class from a model; with its photos, also what they left in the statistics.

    Without the photos the class can no longer be predicted and leaves the buffer, but the other classes keep what they
    learned from its photos as counterexamples. With them the model becomes what it would be had it never seen them.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        class_: name of the class.
        output: folder for the bundle without it.
        images: folder with all photos that the class was learned from.
        overwrite: whether a bundle at output may be replaced.

    Raises:
        UsageError: a class that is not known, the only one, or something at output already.
        UnsupportedError: ``images`` for a head whose statistics cannot be taken back.
        DataError: the photos are not those that the class was learned from.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    target = Path(output).expanduser()
    with exclusive(target):
        refuse_existing(target, overwrite)
        found = load(model)
        label, count = found.labels([class_])[0], found.counts[class_]
        lasting, earlier = None, found.remembers_removed
        if images is not None:
            subtract(found, class_, expanded(Path(images)))
        else:
            lasting = _why_not_subtracted(found, label)
        remove(found, [label])
        found.history.append(Event("forget", len(found.class_names), count if images is not None else None))
        found.save(target, overwrite)
    name = printable(class_)
    if images is not None:
        print(f"class '{name}' is forgotten exactly: its {count} photos were taken out of the statistics,")
        if earlier:
            print("but a class was removed earlier without its photos, which still count: if it was the same one,")
            print("forget it from the model before that, with --images")
        else:
            print("and the model is what it would be had it never seen them")
    else:
        left = ", and has left the buffer" if found.buffer is not None else ""
        print(f"class '{name}' is removed: it cannot be predicted any more{left};")
        if not found.head.counterexamples:
            print(f"nothing remains of its {count} photos, as {type(found.head).__name__} learns each class on its own")
        else:
            print(f"what the other classes learned from its {count} photos remains;")
            if lasting is None:
                print(f"to undo that too, forget it from {place(Path(model))}, with --images.")
                print("Before the class is learned again, do that: its old photos would count against it")
            else:
                print(f"{type(found.head).__name__} cannot undo that. Learned again, its old photos count against it")
    print(f"{len(found.class_names)} classes in bundle {target}")


def remove(model: Classifier, labels: Sequence[int]) -> None:
    """Take classes out of the label space and the buffer."""
    known = model.head.classes
    model.head.remove_classes(labels)
    model.class_names = [name for name, label in zip(model.class_names, known, strict=True) if label not in set(labels)]
    if model.buffer is not None:
        model.buffer.remove_classes(list(labels))
    if model.head.solved:
        model.calibrate()
    else:
        model.solve()


def subtract(model: Classifier, name: str, folder: Path) -> None:
    """Take the photos of class ``name`` out of the statistics; they must be all that it was learned from.

    Raises:
        UnsupportedError: the head's statistics cannot be taken back.
        DataError: other photos than those.
    """
    label = model.labels([name])[0]
    lasting = _why_not_subtracted(model, label)
    if lasting is not None:
        hint = "leave out --images to remove the class from what can be predicted"
        raise UnsupportedError(f"{lasting}: {hint}") from lasting
    own = _learner_of(model, label, model.counts[name])
    files = _learned_files(model, name, folder)
    seen = 0
    for batch in squares(files, model.image_size, model.crop_ratio):
        for file, reason in zip(batch.files, batch.unreadable, strict=True):
            if reason is not None:
                print(f"skipped {printable(str(file))}: {reason}", file=sys.stderr)
        z = model.embed_photos(batch)
        own.observe(z, torch.full((len(z),), label, dtype=torch.int64, device=z.device))
        seen += len(z)
    if seen != model.counts[name]:
        raise DataError(_unlike(name, model.counts[name], folder, f"{seen} that can be read"))
    check_same(model, own, name, folder)
    model.head.subtract_(own)


def _why_not_subtracted(model: Classifier, label: int) -> UnsupportedError | None:
    """The reason why this head's statistics cannot be taken back, or None if they can."""
    try:
        model.clone().head.subtract_(_learner_of(model, label, 1))
    except UnsupportedError as error:
        return error
    return None


def _learner_of(model: Classifier, label: int, count: int) -> Head:
    """An empty head for the ``count`` photos of one class."""
    own = model.head.fresh()
    own.begin_task([label], [count])
    return own


def _learned_files(model: Classifier, name: str, folder: Path) -> list[Path]:
    """The photos below ``folder`` that were learned: all, or those that the run's own split did not hold back."""
    if not folder.is_dir():
        raise DataError(f"no folder {place(folder)}: set --images to the folder with the photos of the class")
    with listing():
        files = image_files(folder)
    if len(files) > model.counts[name] and model.held_back is not None:
        names = [f"{name}/{file.relative_to(folder).as_posix()}" for file in files]
        held = held_back(names, *model.held_back)
        if int((~held).sum()) == model.counts[name]:
            return [files[i] for i in np.flatnonzero(~held)]
    return files


def check_same(model: Classifier, own: Head, name: str, folder: Path) -> None:
    """Compare the class's share of the sums, where the head keeps it, with that of the photos given."""
    sums, theirs = getattr(model.head, "sums", None), getattr(own, "sums", None)
    if sums is None or theirs is None:
        return
    own.merge_(own.fresh())  # moves what was observed into the sums
    column = model.class_names.index(name)
    kept, given = sums.class_sums[column], theirs.class_sums[0]
    tolerance = min(SAME, SHARE_OF_ONE / model.counts[name])
    if float((kept - given).norm()) > tolerance * float(kept.norm()):
        reason = _unlike(name, model.counts[name], folder, "others")
        if model.precision != FLOAT32:
            reason += f" (in {model.precision}, other kinds of processors give others too: forget where it was learned)"
        raise DataError(reason)


def _unlike(name: str, count: int, folder: Path, given: str) -> str:
    return (
        f"class '{printable(name)}' was learned from {count} photos, {place(folder)} holds {given}: "
        "give exactly those, or leave out --images to remove the class from what can be predicted"
    )
