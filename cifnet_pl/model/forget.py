"""Remove classes from a learned model, with or without what their photos contributed to the statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import torch

from cifnet_pl.backbones.engines import FLOAT32
from cifnet_pl.buffer import SAME
from cifnet_pl.heads import Head
from cifnet_pl.model.bundle import Event, now
from cifnet_pl.model.class_photos import Unreadable, embed_batch, unreadable_of
from cifnet_pl.model.core import M, Model
from cifnet_pl.photos.files import expanded, image_files, listing, place, require_folder
from cifnet_pl.photos.reading import hashes_of, squares
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
        earlier_removals: whether classes were removed earlier without their photos, which may still count.
        unreadable: photos that could not be decoded.
        ignored: photos in the folder that the classes were not learned from.
    """

    model: M
    photos: dict[str, int]
    exact: bool
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
                ignored.append(_subtract(model, name, folders, len(names) == 1, unreadable))
            rounding = _rounding(model)
    shares = {name: model.head.share_of(model.labels([name])[0]) for name in names if images is None}
    recalled = frozenset(name for name, share in shares.items() if share is not None)
    for name in recalled:
        model.head.subtract_(shares[name])
    exact = images is not None or len(recalled) == len(names)
    model.remove_classes(names)
    removed = sum(photos.values()) if exact else None
    parents = [old.identity]
    model.history.append(
        Event("forget", len(model.class_names), removed, date=now(), class_names=names, parents=parents)
    )
    others = len(set.intersection(*ignored)) if ignored else 0
    return Forgetting(model, photos, exact, old.remembers_removed, unreadable, rounding, others, recalled)


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


def _subtract(model: Model, name: str, folders: Sequence[Path], only: bool, unreadable: list[Unreadable]) -> set[Path]:
    """Take the photos of a class out of the statistics.

    Args:
        model: it is changed in place.
        name: of the class.
        folders: where the photos are.
        only: whether it is the only class to be forgotten; else one folder has a sub-folder of its name.
        unreadable: photos that cannot be decoded are appended.

    Returns:
        The other photos of the folders, which were ignored.

    Raises:
        UnsupportedError: the head's statistics cannot be taken back.
        UsageError: several folders, and no content hashes.
        DataError: other photos than those.
    """
    try:
        model.head.require("subtracts")
    except UnsupportedError as error:
        hint = "leave out --images to remove the class from what can be predicted"
        raise UnsupportedError(f"{error}: {hint}") from error
    label, count = model.labels([name])[0], model.counts[name]
    files, ignored = _photos_of(model, name, folders, only)
    gone = model.head.fresh()
    gone.begin_task([label], [count])
    seen = 0
    for batch in squares(files, model.image_size, model.crop_ratio):
        unreadable += unreadable_of(batch)
        z = embed_batch(model, batch)
        gone.observe(z, torch.full((len(z),), label, dtype=torch.int64, device=z.device))
        seen += len(z)
    if seen != count:
        raise DataError(_unlike(name, count, folders, f"{seen} that can be read"))
    check_same(model, gone, name, folders)
    before = model.photos.copies
    model.photos.remove([label])
    gone.note_copies(before - model.photos.copies)
    model.head.subtract_(gone)
    return ignored


def _photos_of(model: Model, name: str, folders: Sequence[Path], only: bool) -> tuple[list[Path], set[Path]]:
    """Return the photos that a class was learned from, and the others of the folders.

    If the model knows the hashes of all of them, the folders may hold others; else one must hold exactly those.
    """
    count = model.counts[name]
    known = model.photos.of(model.label_of[name]).tolist()
    picked = len(known) == count
    if not picked and len(folders) > 1:
        raise UsageError(
            f"the model keeps no content hashes of the photos of '{printable(name)}': give one folder with --images, "
            "which holds exactly those that it learned"
        )
    if not picked and not only:
        folders = [folders[0] / name]
    for folder in folders:
        require_folder(folder, "--images", "a folder or Zip archive with the photos of the class")
    with listing():
        files = list(dict.fromkeys(file for folder in folders for file in image_files(folder)))
    hashes = hashes_of(files).tolist()
    first = dict(reversed(list(zip(hashes, files, strict=True))))  # a run learns one of several copies
    if not picked:
        return list(first.values()) if len(first) == count else files, set()
    missing = sum(value not in first for value in known)
    if missing:
        raise DataError(_unlike(name, count, folders, f"{count - missing} of them", "all of them"))
    learned = set(known)
    ignored = {file for file, value in zip(files, hashes, strict=True) if value not in learned}
    return [first[value] for value in known], ignored


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
