"""Extend a learned model by class folders: new classes, and more images of known ones."""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from cifnet_pl.buffer import buffer_samples
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.evaluation import (
    Evaluation,
    evaluate_left_out,
    judge,
    table_of,
    targets,
)
from cifnet_pl.model.labelled_images import (
    LabelledImages,
    Unreadable,
    duplicates_among,
    samples_of,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable


@dataclass(frozen=True)
class Extension:
    """The result of :func:`extend` and :func:`learn`.

    Attributes:
        model: the model that learned everything; the one that was extended is not changed.
        learned: class name → number of images learned.
        score: on the calibration buffer's samples of these classes, each left out with its group;
            on none without a buffer, or where the head has no leave-one-out scores.
        seconds: time to embed, learn and score the new images.
        unreadable: images that could not be decoded, and were left out.
        warnings: sentences for the user.
        old_before: score on the images of ``check`` before the extension.
        old_after: score on the images of ``check`` after the extension.
    """

    model: Classifier
    learned: dict[str, int]
    score: Evaluation
    seconds: float
    unreadable: list[Unreadable]
    warnings: list[str]
    old_before: Evaluation = field(default_factory=Evaluation)
    old_after: Evaluation = field(default_factory=Evaluation)


def extend(
    old: Classifier,
    images: Any,
    *,
    check: Any = None,
    more: bool = False,
    duplicates: Duplicates = "leave_out",
    progress: bool = False,
) -> Extension:
    """Learn new classes from one folder of images per class, without any earlier image.

    The new classes become the model's next task. Their samples in the calibration buffer are scored
    by the model that learned them, each left out with its group.

    Args:
        old: a learned model; it is not changed.
        images: folder with one sub-folder of images per class; for a model of embeddings, a file of
            those with labels. From memory (X, y): X images, or embeddings (n, d) of floats, and y
            (n,) names or integers; or a torch data set.
        check: images of old classes in the same form, scored before and after, never learned.
        more: whether classes that are known already may get more images.
        duplicates: "leave_out" to leave out images that were learned already, occur twice or lie in
            two classes, "keep" to learn them.
        progress: whether to draw progress bars on a terminal.

    Returns:
        The extended model with counts, scores and warnings.

    Raises:
        UsageError: a class that is known already without ``more``.
        UnsupportedError: ``more`` images for a head that cannot take them in.
        DataError: a folder is missing, holds no images, none of a class that can be read, or none
            that is new.
    """
    labelled = samples_of(old, images, "--images")
    known = sorted(set(labelled.class_names) & set(old.class_names))
    if known and not more:
        raise UsageError(
            f"class '{printable(known[0])}' is already learned: add --more to give it more images,"
            " or rename its folder"
        )
    warnings = [*labelled.files.notes, *old.class_name_warnings(labelled.class_names)]
    check_images = None
    if check is not None:
        found = samples_of(old, check, "--check", tested=True)
        warnings += found.files.notes
        check_images = found.of_classes(set(old.class_names))
        if not check_images.class_names:
            raise DataError(
                "--check has no image of a class that the model knows: give images of its old"
                " classes"
            )
    result = learn(old, labelled, duplicates, progress)
    model = result.model
    model.record_engines([model.engine])
    before = []
    after = []
    if check_images is not None:
        target = targets(old, check_images)
        for rows, z in check_images.embedded(old, "checking", progress):
            before.append(judge(old.head.probabilities(z), target[rows]))
            after.append(judge(model.head.probabilities(z), target[rows]))
        result.unreadable.extend(check_images.unreadable)
    warnings += result.warnings
    result = replace(
        result,
        warnings=warnings,
        old_before=Evaluation(old.class_names, table_of(before)),
        old_after=Evaluation(model.class_names, table_of(after)),
    )
    model.record_event(
        "extend",
        sum(result.learned.values()),
        accuracy=result.score.accuracy,
        old_accuracy_before=result.old_before.accuracy,
        old_accuracy=result.old_after.accuracy,
        seconds=result.seconds,
        class_names=list(result.learned),
        parents=[old.identity],
    )
    return result


def learn(
    old: Classifier,
    images: LabelledImages,
    duplicates: Duplicates = "keep",
    progress: bool = False,
) -> Extension:
    """Embed new images, learn them, and score the classes by leave-one-out.

    Each image is opened once for its hash, which tells whether it is a duplicate, and pixels.

    Args:
        old: a learned model; it is not changed.
        images: of new classes, and more of known ones.
        duplicates: "leave_out" to leave out images that were learned already, occur twice or lie in
            two classes, "keep" to learn them.
        progress: whether to draw a progress bar on a terminal.

    Returns:
        The model that learned, without an entry in its history, and warnings about duplicates.

    Raises:
        UsageError: a buffer that is too small for so many classes.
        UnsupportedError: images of a known class, where the head cannot take in more of them.
        DataError: a class of which no image can be read, or no image is new.
    """
    start = time.perf_counter()
    if old.buffer is not None:
        old.buffer.quota(len({*old.class_names, *images.class_names}))
    known = old.classes_of_hashes()

    def is_left_out(row: int, content_hash: int) -> bool:
        name = images.class_names[images.files.labels[row]]
        return duplicates == "leave_out" and name in known.get(content_hash, ())

    z, kept = images.all_embedded(old, "learning", progress=progress, skip=is_left_out)
    new, messages = duplicates_among(images, known, duplicates)
    taken = new & kept
    labels = images.files.labels
    unread = np.setdiff1d(labels[new], labels[taken])
    if len(unread):
        name = printable(images.class_names[unread[0]])
        raise DataError(
            f"no image of class '{name}' can be read: add some, or leave it out"
        )
    learned = images.select(taken)
    names = learned.class_names
    model = old.clone()
    every_row = np.arange(len(learned.files))
    columns = (z[taken], learned.files.labels, learned.files.hashes(every_row))
    model.learn_embeddings(names, buffer_samples(*map(torch.from_numpy, columns)))
    counts = np.bincount(learned.files.labels).tolist()
    left_out = evaluate_left_out(model, model.stored_samples())
    positions = [model.class_names.index(name) for name in names]
    is_new = left_out.samples["target"].isin(positions)
    return Extension(
        model=model,
        learned=dict(zip(names, counts, strict=True)),
        score=replace(left_out, samples=left_out.samples[is_new]),
        seconds=time.perf_counter() - start,
        unreadable=images.unreadable,
        warnings=messages,
    )
