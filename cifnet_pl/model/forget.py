"""Remove classes from a learned model, with or without what their photos contributed to the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones.engines import FLOAT32
from cifnet_pl.buffer import SAME
from cifnet_pl.heads import Head
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable, embed_batch, unreadable_of
from cifnet_pl.model.core import M, Model
from cifnet_pl.model.description import Event, now
from cifnet_pl.photos.copies import held_back, held_back_together
from cifnet_pl.photos.files import expanded, image_files, listing, place, require_folder
from cifnet_pl.photos.reading import hashes_of, looks_at, squares
from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
from cifnet_pl.utilities.text import number_of, printable

SHARE_OF_ONE = 0.1
"""Share of one photo's embedding by which a class's sums and those of its photos may differ in all.

The rounding of two machines averages out over many photos, so the bound for one photo is not enough for a large class.
"""


@dataclass(frozen=True)
class Forgetting(Generic[M]):
    """The result of :func:`forget`.

    Attributes:
        model: the model without the classes; the one that was given is not changed.
        photos: number of photos that each class had been learned from.
        exact: whether the photos were taken out of the statistics.
        recalled: classes that were taken out without photos, as the head remembered what it had learned from them.
        rounding: why that is not exact to 1e-8, or None where it is.
        can_be_exact: whether this head's statistics can be taken back, given the photos.
        earlier_removals: whether classes were removed earlier without their photos, which may still count.
        unreadable: photos that could not be decoded.
        ignored: photos in the folder that the classes were not learned from.
    """

    model: M
    photos: dict[str, int]
    exact: bool
    can_be_exact: bool
    earlier_removals: bool
    unreadable: list[Unreadable] = field(default_factory=list)
    rounding: str | None = None
    ignored: int = 0
    recalled: frozenset[str] = frozenset()


def forget(
    old: M, names: str | Sequence[str], images: Path | str | Sequence[Path | str] | None = None
) -> Forgetting[M]:
    """Remove classes from a model; with their photos, also what they contributed to the statistics.

    Without the photos a class can no longer be predicted and leaves the buffer, but the other classes keep what they
    learned from its photos as counterexamples. With them, or if the head remembers the class (``remember`` of
    ``RidgeHead``), the model becomes what it would be if it had never seen them.

    Args:
        old: a learned model; it is not changed.
        names: one class name or several.
        images: folder that holds all photos that the class was learned from, or several folders that do together.
            If the model knows their content hashes, anything else in them is ignored; otherwise it must be one folder
            that holds exactly those photos, and for several classes one sub-folder for each.

    Returns:
        The model without the classes, and what was done.

    Raises:
        UsageError: a class that is not known, or all classes.
        UnsupportedError: ``images`` for a head whose statistics cannot be taken back.
        DataError: the photos are not those that the class was learned from.
    """
    names = [names] if isinstance(names, str) else list(dict.fromkeys(names))
    old.labels(names)
    model = old.clone()
    photos = {name: old.counts[name] for name in names}
    unreadable: list[Unreadable] = []
    rounding = None
    ignored: list[set[Path]] = []
    if images is not None:
        folders = [expanded(Path(place)) for place in ([images] if isinstance(images, Path | str) else images)]
        with model.backbone.preferring(old.engines):
            for name in names:
                ignored.append(subtract(model, name, folders, len(names) == 1, unreadable))
            rounding = _rounding(model)
    recalled = frozenset(name for name in names if images is None and _recall(model, name))
    exact = images is not None or len(recalled) == len(names)
    model.remove_classes(names)
    removed = sum(photos.values()) if exact else None
    event = Event("forget", len(model.class_names), removed)
    model.history.append(replace(event, date=now(), class_names=names, parents=[old.identity]))
    others = len(set.intersection(*ignored)) if ignored else 0
    kinds = (exact, old.head.subtracts, old.remembers_removed)
    return Forgetting(model, photos, *kinds, unreadable, rounding, others, recalled)


def _recall(model: Model, name: str) -> bool:
    """Take what the head remembers of a class out of its statistics; return whether there was anything."""
    share = model.head.share_of(model.labels([name])[0])
    if share is not None:
        model.head.subtract_(share)
    return share is not None


def _rounding(model: Model) -> str | None:
    """Return why what is subtracted does not equal what was added to 1e-8; None where it does.

    Another engine rounds differently, and so does torch with another batch or number of threads: measured with
    EfficientNet-Lite0, 5e-7 of the largest sum. ONNX Runtime gave the same bits for any of these.
    """
    now = model.engine
    if model.engines in ([now], []):
        computes = any(True for _ in model.backbone.parameters())
        return "engine torch rounds as batches and threads are" if now == "torch" and computes else None
    return f"learned with engine {' and '.join(model.engines)}, taken out with {now}, which rounds otherwise"


def subtract(model: Model, name: str, folders: Sequence[Path], only: bool, unreadable: list[Unreadable]) -> set[Path]:
    """Take the photos of a class out of the statistics.

    If the model knows the content hashes of the class's photos, they are picked out of ``folders``, which may hold
    others.
    Otherwise one folder must hold exactly those photos.

    Args:
        model: it is changed in place.
        name: of the class.
        folders: where the photos are.
        only: whether it is the only class to be forgotten; else its photos are in the sub-folder of its name.
        unreadable: photos that cannot be decoded are appended.

    Returns:
        The other photos of the folders, which were ignored.

    Raises:
        UnsupportedError: the head's statistics cannot be taken back.
        UsageError: several folders, and no content hashes.
        DataError: other photos than those.
    """
    label = model.labels([name])[0]
    try:
        model.head.require("subtracts")
    except UnsupportedError as error:
        hint = "leave out --images to remove the class from what can be predicted"
        raise UnsupportedError(f"{error}: {hint}") from error
    learner = _learner_of(model, label, model.counts[name])
    known = model.photos.of(label) if model.photos is not None else np.zeros(0, dtype=np.int64)
    ignored: set[Path] = set()
    if len(known) == model.counts[name]:
        files, ignored = _known_files(name, folders, known)
    elif len(folders) > 1:
        raise UsageError(
            f"the model keeps no content hashes of the photos of '{printable(name)}': give one folder with --images, "
            "which holds exactly those that it learned"
        )
    else:
        folders = folders if only else [folders[0] / name]
        files = _learned_files(model, name, folders[0])
    seen = 0
    for batch in squares(files, model.image_size, model.crop_ratio):
        unreadable += unreadable_of(batch)
        z = embed_batch(model, batch)
        learner.observe(z, torch.full((len(z),), label, dtype=torch.int64, device=z.device))
        seen += len(z)
    if seen != model.counts[name]:
        raise DataError(_unlike(name, model.counts[name], folders, f"{seen} that can be read"))
    check_same(model, learner, name, folders)
    if model.photos is not None:
        before = model.photos.copies
        model.photos.remove([label])
        learner.note_copies(before - model.photos.copies)
    model.head.subtract_(learner)
    return ignored


def _learner_of(model: Model, label: int, count: int) -> Head:
    """Return an empty head for the ``count`` photos of one class."""
    head = model.head.fresh()
    head.begin_task([label], [count])
    return head


def _known_files(name: str, folders: Sequence[Path], known: np.ndarray) -> tuple[list[Path], set[Path]]:
    """Return the photos below ``folders`` whose contents have the hashes ``known``, and the others."""
    for folder in folders:
        require_folder(folder, "--images", "a folder or Zip archive with the photos of the class")
    with listing():
        files = list(dict.fromkeys(file for folder in folders for file in image_files(folder)))
    hashes = hashes_of(files)
    first = dict(reversed(list(zip(hashes.tolist(), files, strict=True))))
    missing = [value for value in known.tolist() if value not in first]
    if missing:
        raise DataError(_unlike(name, len(known), folders, f"{len(known) - len(missing)} of them", "all of them"))
    others = {file for file, value in zip(files, np.isin(hashes, known), strict=True) if not value}
    return [first[value] for value in known.tolist()], others


def _learned_files(model: Model, name: str, folder: Path) -> list[Path]:
    """Find the learned photos below ``folder``: all, or those that the run's own split did not hold back."""
    require_folder(folder, "--images", "a folder or Zip archive with the photos of the class")
    with listing():
        files = image_files(folder)
    if len(files) > model.counts[name] and model.held_back is not None:
        names = [f"{name}/{file.relative_to(folder).as_posix()}" for file in files]
        for held in (held_back(names, *model.held_back), held_back_together(names, looks_at(files), *model.held_back)):
            kept = [files[i] for i in np.flatnonzero(~held)]
            for learned in (kept, _distinct(kept)):
                if len(learned) == model.counts[name]:
                    return learned
    distinct = _distinct(files)
    return distinct if len(distinct) == model.counts[name] else files


def _distinct(files: list[Path]) -> list[Path]:
    """Return the first of each group of files with the same content, as a run learns them."""
    hashes = hashes_of(files)
    return [files[i] for i in np.sort(np.unique(hashes, return_index=True)[1])]


def check_same(model: Model, learner: Head, name: str, folders: Sequence[Path]) -> None:
    """Compare the class's share of the sums, if the head keeps it, with that of the photos given.

    Args:
        model: that is to forget.
        learner: a head that saw the photos given.
        name: of the class.
        folders: of the photos, for messages.

    Raises:
        DataError: they differ by more than rounding.
    """
    sums, theirs = getattr(model.head, "sums", None), getattr(learner, "sums", None)
    if sums is None or theirs is None:
        return
    learner.merge_(learner.fresh())  # moves what was observed into the sums
    column = model.class_names.index(name)
    stored_sum, given_sum = sums.class_sums[column], theirs.class_sums[0]
    tolerance = min(SAME, SHARE_OF_ONE / model.counts[name])
    if float((stored_sum - given_sum).norm()) > tolerance * float(stored_sum.norm()):
        reason = _unlike(name, model.counts[name], folders, "others")
        if model.precision != FLOAT32:
            reason += f" (in {model.precision}, other kinds of processors give others too: forget where it was learned)"
        raise DataError(reason)


def _unlike(name: str, count: int, folders: Sequence[Path], problem: str, needed: str = "exactly those") -> str:
    where = " and ".join(place(folder) for folder in folders)
    holds = "holds" if len(folders) == 1 else "hold"
    return (
        f"class '{printable(name)}' was learned from {number_of(count, 'photo')}, {where} {holds} {problem}: "
        f"give {needed}, or leave out --images to remove the class from what can be predicted"
    )


ROUNDING = 1e-4
"""Share of the largest score by which those of two engines may differ."""


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

    @property
    def is_rounding(self) -> bool:
        """Whether the difference is no more than that of two engines that run the network."""
        return self.largest <= ROUNDING * self.scale


def distance_to_retrained(model: Model, images: Path | str) -> Distance:
    """Learn a model's classes again from their photos, in the same tasks, and compare the scores of these photos.

    Args:
        model: what is left after a class was forgotten.
        images: folder or Zip archive with one sub-folder for each of its classes; from a model that knows the content
            hashes of all its photos these are picked out, otherwise it must hold exactly those.

    Raises:
        DataError: a class is missing, or has another number of photos that can be read.
        UnsupportedError: a head whose statistics cannot be taken back, so that there is nothing to compare.
    """
    model.head.require("subtracts")
    learned_files = _compared_files(model, expanded(Path(images)))
    with model.backbone.preferring(model.engines):
        embedded = {name: _embedded(model, files) for name, files in learned_files.items()}
    for name, z in embedded.items():
        if len(z) != model.counts[name]:
            learned, of_them = number_of(model.counts[name], "photo"), " of them" if model.knows_photos else ""
            raise DataError(f"class '{printable(name)}' was learned from {learned}, --compare holds {len(z)}{of_them}")
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


def _compared_files(model: Model, root: Path) -> dict[str, list[Path]]:
    """Return the photos of each class: those it learned, where it knows their contents, else all in its folder."""
    photos = ClassPhotos.find(root, "--compare")
    missing = [name for name in model.class_names if name not in photos.class_names]
    if missing:
        raise DataError(f"--compare has no photos of class '{printable(missing[0])}': give those of all classes left")
    files = [photos.files.root / name for name in photos.files.names]
    if model.photos is None or not model.knows_photos:
        return {
            name: [files[row] for row in photos.files.rows_of[photos.class_names.index(name)]]
            for name in model.class_names
        }
    hashes = hashes_of(files).tolist()
    first = dict(reversed(list(zip(hashes, files, strict=True))))
    learned = {name: model.photos.of(model.labels([name])[0]).tolist() for name in model.class_names}
    return {name: [first[value] for value in values if value in first] for name, values in learned.items()}


def _embedded(model: Model, files: list[Path]) -> Tensor:
    parts = [embed_batch(model, batch) for batch in squares(files, model.image_size, model.crop_ratio)]
    return torch.cat(parts) if parts else torch.zeros(0, model.head.in_features)
