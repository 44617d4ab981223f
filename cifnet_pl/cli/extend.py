"""``extend``: teach a model new classes from a few images each, without any old image."""

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
    """Teach a model new classes from one folder of images per class, without any old image.

    A fifth of the new images is held out and scored by a model that learned the others; then all
    are learned, exactly as if they had been the next task of the original run.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        images: folder with one sub-folder of images per new class; for a model of embeddings, a
            file of them.
        output: folder for the extended bundle.
        check: folder with one sub-folder of images per old class, scored before and after, never
            learned.
        more: whether classes that are known already may get more images.
        duplicates: leave_out for images that were learned already or occur twice, keep to learn
            them all the same.
        engine: what runs the network: auto, torch or onnxruntime; auto is ONNX Runtime on a CPU,
            torch on a GPU.
        overwrite: whether a bundle at output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be
            imported, code and all.

    Raises:
        UsageError: a class that is known already without ``more``, or something at output already.
        UnsupportedError: ``more`` images for a head that cannot take them in.
        DataError: a folder is missing, holds no images, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.learn import extend as extend_model
    from cifnet_pl.model.metrics import rarely_predicted_message
    from cifnet_pl.model.store import load

    target = Path(output).expanduser()
    with writing(target, overwrite, "bundle"):
        old = load(model, engine=engine, trust=trust)
        result = extend_model(
            old, images, check=check, more=more, duplicates=duplicates, progress=True
        )
        result.model.save(target, overwrite)
    warn(result.warnings, result.unreadable)
    count = sum(result.learned.values())
    classes = len(result.learned)
    print(
        f"learned {number_of(count, result.model.sample)} of {number_of(classes, 'class')} in"
        f" {result.seconds:.1f} s: {number_of(len(result.model.class_names), 'class')} in {target}"
    )
    if result.score.total:
        right = f"{result.score.percent:.1f} % of {result.score.total} right"
        print(f"images of these days, the held-out fifth of the new ones: {right}")
    if result.old_before.total:
        change = (
            f"{result.old_before.percent:.1f} % right before, {result.old_after.percent:.1f} %"
            " after"
        )
        print(f"old classes, {number_of(result.old_before.total, 'image')} of {check}: {change}")
    hardly = rarely_predicted_message(result.rarely_predicted, result.model.sample)
    for sentence in [*([hardly] if hardly else []), *result.model.accuracy_sentences()]:
        print(sentence)
    print(
        next_command(
            "classify",
            "--model",
            str(target),
            "--images",
            "IMAGES",
            "--output",
            "out.csv",
            trust=trust,
        )
    )
