"""``extend``: add new classes to a model from a few images each, without the old images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from cifnet_pl.cli.commands import Engine
from cifnet_pl.cli.outputs import print_stored, warn, writing
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import number, number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.learn import Extension


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
    """Add new classes to a model from one folder of images per class, without the old images.

    It learns them exactly as if they had been the next task of the original run, and is scored on
    their samples in the calibration buffer, each left out.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        images: folder with one sub-folder of images per new class; for a model of embeddings, a
            file of them.
        output: folder for the extended bundle.
        check: folder with one sub-folder of images per old class, scored before and after, never
            learned.
        more: whether classes that are known already may get more images.
        duplicates: leave_out for images that were learned already or occur twice, keep to learn
            them too.
        engine: what runs the backbone: auto, torch or onnxruntime;
            auto is ONNX Runtime on a CPU, torch on a GPU.
        overwrite: whether a bundle at output may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.

    Raises:
        UsageError: a class that is known already without ``more``, or something at output already.
        UnsupportedError: ``more`` images for a head that cannot learn them.
        DataError: a folder is missing, holds no images, or none that can be read.
        CheckpointError: there is no model at ``model``, or it is damaged.
    """
    from cifnet_pl.model.learn import extend as extend_model
    from cifnet_pl.model.store import load

    target = expanded(output)
    with writing(target, overwrite, "extend"):
        old = load(model, engine=engine, trust=trust)
        result = extend_model(
            old, images, check=check, more=more, duplicates=duplicates, progress=True
        )
        result.model.save(target, overwrite)
    warn(result.warnings, result.unreadable)
    images_learned = number_of(
        sum(result.learned.values()), result.model.backbone.sample
    )
    classes_learned = number_of(len(result.learned), "class")
    print_text(
        f"{images_learned} of {classes_learned} learned in {result.seconds:.1f} s"
    )
    for line in accuracy_lines(result, check):
        print_text(line)
    print_stored(result.model, target, trust)


def accuracy_lines(result: Extension, check: str | None) -> list[str]:
    """Return lines on the accuracy on new classes, with its 95 % interval, and on old ones.

    Args:
        result: of the extension.
        check: folder of images of the old classes, or None.
    """
    from cifnet_pl.model.evaluation import rarely_predicted_notes

    lines = []
    sample = result.model.backbone.sample
    if result.score.images:
        images = f"{number_of(result.score.images, sample)}, each left out"
        percent = number(result.score.accuracy)
        interval = result.score.interval
        lines.append(f"Accuracy on new classes {percent} % ({interval}; {images})")
    else:
        lines.append(
            "Accuracy on new classes not measured: it takes a buffer, and two"
            f" {sample}s of a class"
        )
    if result.old_before.images:
        before = number(result.old_before.accuracy)
        after = number(result.old_after.accuracy)
        images = f"{number_of(result.old_before.images, sample)} in {check}"
        interval = result.old_after.interval
        lines.append(
            f"Accuracy on old classes {before} % before, {after} % after"
            f" ({interval}; {images})"
        )
    rare = result.score.rarely_predicted + result.old_after.rarely_predicted
    lines += rarely_predicted_notes(rare, result.model)
    return lines + result.model.accuracy_sentences()
