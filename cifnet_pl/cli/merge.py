"""``merge``: join models that learned from different photos, on different machines, into one."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from cifnet_pl.backbones.engines import EngineChoice
from cifnet_pl.cli.extend import warn
from cifnet_pl.cli.merge_sums import merge_sums, sums_files
from cifnet_pl.model import merge as merging
from cifnet_pl.model.bundle import refuse_existing
from cifnet_pl.model.loading import load
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.text import number_of


def merge(
    models: list[str],
    output: str,
    base: str | None = None,
    engine: EngineChoice = "auto",
    overwrite: bool = False,
    trust: bool = False,
) -> None:
    """Add up what several models learned from different photos; no photo is needed.

    Classes are matched by name; those that only a later model knows are appended. For heads whose statistics are plain
    sums, such as RidgeHead, the result equals one run over all photos. Photos that two models have learned are found by
    their content hashes: they count once where that is exact, with --base, and are refused elsewhere.

    Files of sums, and folders of them, as cifnet sums makes them, become one model of the whole set; with an output
    that ends in .sums they become one such file.

    Args:
        models: run folders, checkpoint files or bundles, or files of sums; they are not changed.
        output: folder for the merged bundle.
        base: the model that the others were extended from; what it learned is counted once.
        engine: what must have run the network while all of them learned: torch, onnxruntime, or auto for either.
        overwrite: whether a bundle at output may be replaced.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: fewer than two models, one given twice, other backbones, photo sizes, precisions, heads or settings,
            or something at output already.
        UnsupportedError: a head whose statistics cannot be added.
        CheckpointError: there is no model at one of ``models``, or it is damaged.
    """
    files = sums_files(models)
    if files:
        return merge_sums(files, Path(output).expanduser(), overwrite, trust, engine)
    for one, again in combinations(models, 2):
        if Path(one).expanduser().resolve() == Path(again).expanduser().resolve():
            raise UsageError(f"{again} is given twice: its photos would count twice")
    if len(models) < 2:
        raise UsageError(f"merge got {len(models)} model, expected at least two")
    target = Path(output).expanduser()
    with exclusive(target):
        refuse_existing(target, overwrite)
        first = load(models[0], trust=trust)
        others = [load(path, device=first.device, trust=trust) for path in models[1:]]
        for path, loaded in zip(models, [first, *others], strict=True):
            if engine != "auto" and set(loaded.engines) - {engine}:
                used = " and ".join(loaded.engines)
                raise UsageError(f"{path} learned with engine {used}, not with {engine} alone: use --engine auto")
        ancestor = load(base, device=first.device, trust=trust) if base is not None else None
        result = merging.merge([first, *others], models, ancestor)
        result.model.save(target, overwrite)
    warn(result.warnings, [])
    classes, photos = number_of(len(result.model.class_names), "class"), number_of(result.photos, "photo")
    print(f"{len(models)} models merged: {classes} from {photos} in bundle {target}")
