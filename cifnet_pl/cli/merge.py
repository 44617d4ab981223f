"""``merge``: add up models that learned from different images, or sums of shards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from cifnet_pl.cli.outputs import warn, writing
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.text import number_of, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partial_sums import PartialSums


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
    from cifnet_pl.model.store import load

    paths = [expanded(text) for text in models]
    target = expanded(output)
    files = sums_files(paths)
    if files:
        merge_sums(files, target, overwrite, trust)
        return
    for one, again in combinations(paths, 2):
        if one.resolve() == again.resolve():
            raise UsageError(f"{again} is given twice: its images would count twice")
    if len(models) < 2:
        raise UsageError(f"merge got {len(models)} model, expected at least two")
    with writing(target, overwrite, "merge"):
        first = load(models[0], trust=trust)
        loaded = [
            first,
            *(load(path, device=first.device, trust=trust) for path in models[1:]),
        ]
        if base is not None:
            ancestor = load(base, device=first.device, trust=trust)
        else:
            ancestor = None
        result = merging.merge(loaded, models, ancestor)
        result.model.save(target, overwrite)
    warn(result.warnings)
    classes = number_of(len(result.model.class_names), "class")
    images = number_of(result.images, "image")
    print_text(f"{len(models)} models merged: {classes} from {images}")
    for sentence in result.model.accuracy_sentences():
        print_text(sentence)
    print_text(f"Bundle {target}")


def sums_files(paths: list[Path]) -> list[Path]:
    """Return the files of sums at some paths, which are files or folders; none for models.

    Raises:
        UsageError: both files of sums and models.
    """
    from cifnet_pl.model.partial_sums import FILE_ENDING, is_sums

    files: list[Path] = []
    models: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob(f"*{FILE_ENDING}"))
        else:
            inside = []
        if is_sums(path) and not path.is_dir():
            files.append(path)
        elif inside:
            files += inside
        else:
            models.append(path)
    if files and models:
        raise UsageError(
            f"{models[0]} is no file of sums, and the others are: merge models with models, sums"
            " with sums"
        )
    return files


def reduce_sums(files: Sequence[Path], trust: bool = False) -> PartialSums:
    """Add up files of sums in the order of the samples, so that parts always give the same bits.

    Args:
        files: of parts that do not overlap.
        trust: whether custom heads and backbones may be imported.

    Raises:
        UsageError: the same samples twice, or sums of other settings.
        CheckpointError: a file that is damaged, or of an earlier version.
    """
    from cifnet_pl.model.bundle import Description, parse
    from cifnet_pl.model.partial_sums import added_up, place_of, read_header, read_sums

    headers = {path: read_header(path) for path in files}
    order = sorted(
        files, key=lambda path: (place_of(headers[path].shards[0]), path.name)
    )
    names: dict[str, None] = {}
    for path in order:
        description = parse(Description, headers[path].model, str(path))
        names |= dict.fromkeys(description.class_names)

    def parts() -> Iterator[PartialSums]:
        backbone = None
        for path in order:
            part = read_sums(path, trust, backbone)
            backbone = part.model.backbone
            yield part

    return added_up(parts(), list(names), order[0].name)


def merge_sums(files: list[Path], target: Path, overwrite: bool, trust: bool) -> None:
    """Add up files of sums, and write a bundle, or a file of sums if ``target`` ends in .sums.

    Args:
        files: of parts that do not overlap.
        target: bundle or file.
        overwrite: whether it may be replaced.
        trust: whether custom heads and backbones may be imported.

    Raises:
        UsageError: the same samples twice, sums of other settings, or something is at ``target``
            already.
        CheckpointError: a file that is damaged.
    """
    from cifnet_pl.model.partial_sums import is_sums, part_of, write_sums

    count = number_of(len(files), "file")
    if is_sums(target):
        with writing(target, overwrite, "file"):
            total = reduce_sums(files, trust)
            write_sums(part_of(total.model, total.shards, target.name), target)
        missing = number_of(len(total.missing), "part")
        print_text(
            f"{count} of sums added up in {target}: {total.learned}, {missing} missing"
        )
        return
    with writing(target, overwrite, "merge"):
        total = reduce_sums(files, trust)
        model = total.solved()
        model.save(target, overwrite)
    classes = number_of(len(model.class_names), "class")
    print_text(f"{count} of sums merged: {classes}, {total.learned}")
    sentences = model.accuracy_sentences()
    if not model.calibrated:
        sentences.append(
            "note: not calibrated, as the options of cifnet sums asked for: confidences are too low"
            " or too high (--config heads/ridge or --config folder calibrate)"
        )
    for sentence in sentences:
        print_text(sentence)
    print_text(f"Bundle {target}")
