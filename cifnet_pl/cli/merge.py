"""``merge``: add up models that learned from different images, or sums of shards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cifnet_pl.cli.outputs import refuse_other, warn, writing
from cifnet_pl.utilities.files import expanded, write_bytes
from cifnet_pl.utilities.text import number_of, print_text


def merge(
    models: Sequence[str],
    output: str,
    base: str | None = None,
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Add up what several models learned from different images; no image is needed.

    Classes are matched by name, and new ones of later models are appended. For heads whose
    statistics are plain sums, such as RidgeHead, the result equals one run over all images. Images
    that two models have learned are found by their content hashes. With --base they count once;
    without it they are refused.

    Files of sums that cifnet sums made, and folders of them, become one model of the whole set, or
    one such file if the output ends in .sums.

    Args:
        models: run folders, checkpoint files or bundles, or files of sums; they are not changed.
        output: folder for the merged bundle.
        base: the model that the others were extended from; what it learned is counted once.
        overwrite: whether a bundle at output may be replaced.
        trust: whether custom heads and backbones that a model names may be imported, which runs
            their code.

    Raises:
        UsageError: fewer than two models, one given twice, other backbones, image sizes,
            precisions, heads or settings, or something at output already.
        UnsupportedError: a head whose statistics cannot be added.
        CheckpointError: there is no model at one of ``models``, or it is damaged.
    """
    from cifnet_pl.model import merge as merging
    from cifnet_pl.model.partial_sums import FILE_ENDING
    from cifnet_pl.model.store import load

    target = expanded(output)
    files = []
    for text in models:
        path = expanded(text)
        files += sorted(path.glob(f"*{FILE_ENDING}")) or [path]
    if any(file.suffix == FILE_ENDING for file in files):
        merge_sums(files, target, overwrite, trust)
        return
    with writing(target, overwrite, "merge"):
        loaded = [load(path, trust=trust) for path in models]
        ancestor = load(base, trust=trust) if base is not None else None
        result = merging.merge(loaded, models, ancestor)
        result.model.save(target, overwrite)
    warn(result.warnings)
    classes = number_of(len(result.model.class_names), "class")
    images = number_of(result.images, "image")
    print_text(f"{len(models)} models merged: {classes} from {images}")
    for sentence in result.model.accuracy_sentences():
        print_text(sentence)
    print_text(f"Bundle {target}")


def merge_sums(
    files: Sequence[Path],
    target: Path,
    overwrite: bool,
    trust: bool,
) -> None:
    """Add up files of sums, and write a bundle, or a file of sums if ``target`` ends in .sums.

    Args:
        files: of parts that do not overlap.
        target: bundle or file.
        overwrite: whether it may be replaced.
        trust: whether custom heads and backbones may be imported.

    Raises:
        AlreadyThere: the same is at ``target`` already.
        UsageError: the same samples twice, sums of other settings, or something else is at
            ``target``.
        CheckpointError: a file that is damaged, or a model.
    """
    from cifnet_pl.model.partial_sums import FILE_ENDING, add_up, content_of

    count = number_of(len(files), "file")
    if target.suffix == FILE_ENDING:
        with writing(target, True, "file"):
            total = add_up(files, trust).end()
            content = content_of(total)
            if target.is_file() and not overwrite:
                refuse_other(target, target.read_bytes() == content)
            write_bytes(target, content)
        missing = number_of(len(total.missing), "part")
        print_text(
            f"{count} of sums added up in {target}: {total.learned}, {missing} missing"
        )
        return
    with writing(target, overwrite, "task"):
        total = add_up(files, trust)
        model = total.solved()
        model.save(target, overwrite)
    classes = number_of(len(model.class_names), "class")
    print_text(f"{count} of sums merged: {classes}, {total.learned}")
    for sentence in [*model.accuracy_sentences(), *model.calibration_notes()]:
        print_text(sentence)
    print_text(f"Bundle {target}")
