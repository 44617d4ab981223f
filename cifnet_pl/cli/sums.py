"""``sums``: write the sums of parts of a training set to files, for ``merge``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.cli.parsing import (
    OneSentence,
    choose_backbone,
    chooses_method,
    find_config,
    open_seeds,
    with_clean_heads,
)
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    check_count,
)
from cifnet_pl.utilities.files import (
    RECOMMENDED,
    exclusive,
    expanded,
    read_yaml,
    write_bytes,
    write_json,
)
from cifnet_pl.utilities.plugins import current_folder_importable
from cifnet_pl.utilities.text import next_command, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partial_sums import ShardLearner
    from cifnet_pl.model.partition import SetPlan, Shard, ShardRecord, TrainingSet

UNUSED = {"tune", "stream", "max_tasks", "unknown"}
"""Options of ``--data`` that leave samples out, or are for scores alone: not known here."""

PLANNED = ("source", "root", "options", "duplicates", "zip_encoding", "image_size")
"""Options of ``--data`` that all sums of a folder must share."""


def sums(
    output: str,
    overrides: Sequence[tuple[str, str]] = (),
    shard: Sequence[str] = [],
    shards: int | None = None,
    config: str | None = None,
    workers: int = 2,
    retries: int = 3,
    threads: int = 1,
    workers_per_gpu: int = 1,
) -> None:
    """Embed parts of a training set, and write a file of sums for each; cifnet merge adds them.

    Options with a dot in their name are those of fit, such as --data.root and --model.head. Every
    training sample is learned, and nothing is held out. Shards that are finished are skipped.

    Args:
        output: folder for the files.
        shard: shards to compute one after the other, such as 3/64.
        shards: number of shards to cut the set into, and to compute all of them with Ray.
        config: configuration whose model is learned, such as folder; without it and --model.head
            that of fit for images in class folders, and heads/ridge for other data.
        workers: number of Ray's workers at a time, on the cluster of RAY_ADDRESS, too.
        retries: how often Ray retries a shard whose worker was lost, or whose files failed.
        threads: of torch in each worker; sums of a shard have the same bits for the same number.
        workers_per_gpu: number of Ray's workers that share a GPU, where the cluster has any.

    Raises:
        UsageError: options that do not fit, a head whose statistics are not sums, or Ray is not
            installed.
        DataError: samples that cannot be read.
        CifnetError: shards failed despite the retries.
    """
    from cifnet_pl.backbones import plugin_imports
    from cifnet_pl.model.partial_sums import read_header
    from cifnet_pl.model.partition import Shard

    if (shards is None) == (not shard):
        raise UsageError(
            "give either --shard 3/64 for one shard, or --shards 64 for all of them"
        )
    check_count("threads", threads)
    folder = expanded(output)
    words = words_of(config, [f"--{name}={value}" for name, value in overrides])
    if shards is None:
        for text in shard:
            print_text(make(folder, words, threads, Shard.parse(text)))
        return
    check_count("shards", shards)
    from cifnet_pl.cli.ray import Workers, make_with_ray

    # Here, as what workers print is not shown.
    planned(folder, words)
    everything = [Shard(i, shards) for i in range(1, shards + 1)]
    home = Path.cwd()

    def make_in_worker(shard: Shard) -> str:
        # Paths and custom code are relative to it; another machine may have no such folder.
        if home.is_dir():
            os.chdir(home)
        try:
            return make(home / folder, words, threads, shard)
        except CifnetError as error:
            if isinstance(error.__cause__, OSError):
                # The system refused a file, which may pass: Ray tries again.
                raise OSError(str(error)) from None
            raise

    ray_workers = Workers(workers, retries, threads, workers_per_gpu)
    failed = make_with_ray(make_in_worker, everything, ray_workers)
    if failed:
        raise CifnetError(
            f"{len(failed)} of {shards} shards failed, the first is {failed[0]}: finished ones"
            " stay, and the same command goes on"
        )
    print_text(f"{shards} shards in {folder}")
    model = read_header(file_of(folder, everything[0])).model
    backbone = model["backbone"]
    imports = plugin_imports(
        backbone["name"], backbone["architecture"], model["head"]["class"]
    )
    print_text(
        next_command("merge", str(folder), "--output", "MODEL", trust=bool(imports))
    )


def words_of(config: str | None, given: Sequence[str]) -> tuple[str, ...]:
    """Return all options that the sums depend on, so that a worker needs no configuration.

    Args:
        config: name or file of a configuration, or None.
        given: options of ``fit``, such as "--data.root=images".

    Raises:
        UsageError: there is no such configuration, or it has no model.
    """
    if config is None:
        if chooses_method(given):
            return tuple(given)
        config = RECOMMENDED
    content = read_yaml(find_config(config))
    if "model" not in content:
        raise UsageError(f"configuration {config} has no model: choose another one")
    words = [
        f"--{part}={json.dumps(content[part])}"
        for part in ("seed_everything", "model", "data")
        if part in content
    ]
    return (*words, *given)


def make(folder: Path, words: tuple[str, ...], threads: int, shard: Shard) -> str:
    """Make the file of a shard, unless it is finished.

    Args:
        folder: of the files.
        words: all options that the sums depend on (:func:`words_of`).
        threads: of torch from now on; sums round differently with another number.
        shard: to compute.

    Returns:
        A sentence.

    Raises:
        CifnetError: as for :func:`sums`.
    """
    import torch

    from cifnet_pl.model.partial_sums import content_of

    torch.set_num_threads(threads)
    plan = planned(folder, words)
    path = file_of(folder, shard)
    if is_finished(path, plan.record(shard)):
        return f"{shard.name} is finished already"
    with exclusive(path):
        shard_sums = learner_of(words).sums(plan, shard)
        write_bytes(path, content_of(shard_sums))
    return f"{shard.name}: {shard_sums.learned}"


def file_of(folder: Path, shard: Shard) -> Path:
    """Return the path of the sums of a shard."""
    return folder / f"{shard.name}.sums"


def is_finished(path: Path, wanted: ShardRecord) -> bool:
    """Return whether the file of a shard is there, undamaged, and of the samples as planned."""
    from cifnet_pl.model.partial_sums import read_tensors

    try:
        header, _ = read_tensors(path)
    except CheckpointError:
        return False
    (stored,) = header.shards
    stored.learned = 0  # it is not planned
    return stored == wanted


# ---------------------------------------------------------------------- options and plan


@cache
def configured(words: tuple[str, ...]) -> Any:
    """Parse options of ``fit`` about data and model.

    Raises:
        UsageError: options that do not fit.
    """
    from cifnet_pl.data.datamodule import CIFNetDataModule, check_options
    from cifnet_pl.learning.cifnet_module import CIFNetModule

    parser = OneSentence(prog="cifnet sums")
    parser.add_argument("--seed_everything", type=int, default=1)
    parser.add_class_arguments(
        CIFNetDataModule, "data", sub_configs=False, instantiate=False, skip=UNUSED
    )
    parser.add_subclass_arguments(CIFNetModule, "model", required=False)
    # The sums of this head are exact and small.
    model = ["--model=cifnet_pl.CIFNetModule", "--model.head=RidgeHead"]
    given = with_clean_heads([*model, *words])
    with current_folder_importable():
        config = parser.parse_args(given)
        for name in open_seeds(parser, config, given):
            config[name] = config.seed_everything
    choose_backbone(config)
    check_options(dict.fromkeys(UNUSED) | vars(config.data))
    config.parser = parser
    return config


@cache
def set_of(words: tuple[str, ...]) -> TrainingSet:
    """Return the training set that options of ``fit`` mean."""
    from cifnet_pl.data.samples import SourceOptions
    from cifnet_pl.data.sources import OWN_IMAGES
    from cifnet_pl.images.files import read_names_as
    from cifnet_pl.model.partition import TrainingSet

    data = configured(words).data
    root = None
    if data.root:
        root = read_names_as(data.zip_encoding, data.root)
    duplicates = data.duplicates
    if duplicates is None and data.source in OWN_IMAGES:
        duplicates = "leave_out"
    options = SourceOptions(
        root, val_fraction=0.0, download=data.download, own=data.options or {}
    )
    return TrainingSet(data.source, options, duplicates)


def planned(folder: Path, words: tuple[str, ...]) -> SetPlan:
    """Return the plan of a folder's parts; the first process makes it, the others wait.

    Raises:
        UsageError: the plan is of other data, or for another model.
        DataError: the data cannot be read.
    """
    from cifnet_pl.model.bundle import parse
    from cifnet_pl.model.partition import SetPlan

    config = configured(words)
    path = folder / "plan.json"
    wanted = {name: config.data[name] for name in PLANNED}
    wanted["model"] = config.model.as_dict()
    for name in ("engine", "download"):  # which change no sums
        wanted["model"]["init_args"].pop(name, None)
    with exclusive(path, wait=True):
        if not path.is_file():
            plan, notes = set_of(words).plan(wanted)
            print_text("\n".join(notes))
            write_json(path, plan.model_dump())
    plan = parse(SetPlan, json.loads(path.read_bytes()), str(path))
    if plan.data != json.loads(json.dumps(wanted)):
        raise UsageError(
            f"{folder} has sums of other data ({plan.data['root']}), or for another model: choose"
            " another --output"
        )
    return plan


@cache
def learner_of(words: tuple[str, ...]) -> ShardLearner:
    """Build data, backbone and head from all options that the sums depend on.

    Raises:
        UsageError: options that do not fit.
        UnsupportedError: the statistics of the head are not sums.
        DataError: data that is missing.
    """
    from cifnet_pl.data.datamodule import usual_batch_size
    from cifnet_pl.model.partial_sums import ShardLearner
    from cifnet_pl.utilities.growing_tensors import chosen_device

    config = configured(words)
    model = config.parser.instantiate(config).model.model
    data = config.data
    device = chosen_device(None)
    if data.image_size:
        model.image_size = data.image_size
        model.crop_ratio = 1.0
    return ShardLearner(
        set_of(words),
        model.to(device),
        data.batch_size or usual_batch_size(device.type, model.image_size),
        data.num_workers or 0,
        data.on_corrupt == "skip",
    )
