"""``extend``: teach a model new classes from a few photos each, without any old photo."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cifnet_pl.cli.commands import Engine, warn, writing
from cifnet_pl.utilities.text import next_command, number_of


def extend(
    model: str,
    images: str,
    output: str,
    check: str | None = None,
    more: bool = False,
    duplicates: Literal["leave_out", "keep"] = "leave_out",
    engine: Engine = "auto",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Teach a model new classes from one folder of photos per class, without any old photo.

    A fifth of the new photos is held back and scored by a model that learned the others; then all are learned, exactly
    as if they had been the next task of the original run.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        images: folder with one sub-folder of photos per new class; for a model of embeddings, a file of them.
        output: folder for the extended bundle.
        check: folder with one sub-folder of photos per old class, scored before and after, never learned.
        more: whether classes that are known already may get more photos.
        duplicates: leave_out for photos that were learned already or occur twice, keep to learn them all the same.
        engine: what runs the network: auto, torch or onnxruntime; auto is ONNX Runtime on a CPU, torch on a GPU.
        overwrite: whether a bundle at output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: a class that is known already without ``more``, or something at output already.
        UnsupportedError: ``more`` photos for a head that cannot take them in.
        DataError: a folder is missing, holds no photos, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.metrics import about_hardly_answered
    from cifnet_pl.model.store import load

    target = Path(output).expanduser()
    with writing(target, overwrite, "bundle"):
        old = load(model, engine=engine, trust=trust)
        result = old.extend(images, check=check, more=more, duplicates=duplicates, progress=True)
        result.model.save(target, overwrite)
    warn(result.warnings, result.unreadable)
    photos, classes = sum(result.learned.values()), len(result.learned)
    print(
        f"learned {number_of(photos, result.model.sample)} of {number_of(classes, 'class')} in {result.seconds:.1f} s: "
        f"{number_of(len(result.model.class_names), 'class')} in {target}"
    )
    if result.score.total:
        right = f"{result.score.percent:.1f} % of {result.score.total} right"
        print(f"photos of these days, the held-back fifth of the new ones: {right}")
    if result.old_before.total:
        change = f"{result.old_before.percent:.1f} % right before, {result.old_after.percent:.1f} % after"
        print(f"old classes, {number_of(result.old_before.total, 'photo')} of {check}: {change}")
    hardly = about_hardly_answered(result.hardly_answered, result.model.sample)
    for sentence in [*([hardly] if hardly else []), *result.model.about_days()]:
        print(sentence)
    print(next_command("classify", "--model", str(target), "--images", "PHOTOS", "--output", "out.csv", trust=trust))
