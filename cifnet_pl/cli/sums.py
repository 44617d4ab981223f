"""``sums``: write the sums of shards of a training set to files, for ``merge``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.cli.configs import choose_backbone
from cifnet_pl.cli.parsing import (
    OneSentence,
    own_errors,
    plain,
    with_clean_heads,
)
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.utilities.files import exclusive, expanded
from cifnet_pl.utilities.plugins import current_folder_importable, optional
from cifnet_pl.utilities.text import next_command, one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partial_sums import Shard, ShardLearner

DEFAULT_SUMS_HEAD = "RidgeHead"
"""Head where options of one are given, and none is named."""

HEAD_SEED = 1
"""As ``fit`` sets it: sums of another random projection could not be merged with a run."""


def sums(
    output: str,
    overrides: Sequence[tuple[str, str]] = (),
    shard: Sequence[str] = [],
    shards: int | None = None,
    workers: int = 2,
    retries: int = 3,
    threads: int = 1,
) -> None:
    """Embed shards of a training set, and write a file of sums for each; cifnet merge adds them.

    Options with a dot in their name are those of fit, such as --data.root and --model.head. Shards
    that are finished are skipped.

    Args:
        output: folder for the files.
        shard: shards to compute one after the other, such as 3/64.
        shards: number of shards to cut the set into, and to compute all of them with Ray.
        workers: number of Ray's workers at a time.
        retries: how often Ray retries a shard whose worker was lost.
        threads: of torch in each worker; sums of a shard have the same bits for the same number.

    Raises:
        UsageError: options that do not fit, a head whose statistics are not sums, or Ray is not
            installed.
        DataError: samples that cannot be read.
        CifnetError: shards failed despite the retries.
    """
    from cifnet_pl.model.bundle import plugin_imports
    from cifnet_pl.model.partial_sums import Shard

    folder = expanded(output)
    options = [word for name, value in overrides for word in (f"--{name}", value)]
    if shard and shards is None:
        for line in make(
            folder, [Shard.parse(text) for text in shard], options, threads
        ):
            print_text(line)
        return
    if shards is None or shard:
        raise UsageError(
            "give either --shard 3/64 for one shard, or --shards 64 for all of them"
        )
    everything = [Shard(i, shards) for i in range(1, shards + 1)]
    _make_with_ray(
        folder, unfinished(folder, everything), options, workers, retries, threads
    )
    left = unfinished(folder, everything)
    if left:
        raise CifnetError(
            f"{len(left)} of {shards} shards failed, the first is {left[0].index}: see above"
        )
    print_text(f"{shards} shards in {folder}")
    given = dict(overrides)
    parts = [f"model.{part}" for part in ("head", "backbone", "architecture")]
    trust = bool(plugin_imports(*[given.get(part, "") for part in parts]))
    print_text(next_command("merge", str(folder), "--output", "MODEL", trust=trust))


def make(
    folder: Path, shards: Sequence[Shard], options: Sequence[str], threads: int = 1
) -> list[str]:
    """Compute the files of shards that are missing.

    Args:
        folder: of the files.
        shards: to compute.
        options: of ``fit``.
        threads: of torch from now on; sums round differently with another number.

    Returns:
        A sentence for each shard.
    """
    import torch

    from cifnet_pl.model.partial_sums import write_sums

    torch.set_num_threads(threads)
    missing = unfinished(folder, shards)
    messages = [
        f"{shard.name} is finished already" for shard in shards if shard not in missing
    ]
    for shard in missing:
        learner = learner_of(tuple(options))
        path = file_of(folder, shard)
        with exclusive(path):
            shard_sums = learner.sums(shard)
            write_sums(shard_sums, path)
        messages.append(
            f"{shard.name}: {sum(shard_sums.model.counts.values())} samples"
        )
    return messages


def file_of(folder: Path, shard: Shard) -> Path:
    """Return the path of the sums of a shard."""
    return folder / f"{shard.name}.sums"


def unfinished(folder: Path, shards: Sequence[Shard]) -> list[Shard]:
    """Return the shards whose file is missing or damaged."""
    from cifnet_pl.model.partial_sums import read_sums

    left = []
    for shard in shards:
        try:
            read_sums(
                file_of(folder, shard), trust=True
            )  # this user's own run, which imports what its options name
        except CheckpointError:
            left.append(shard)
    return left


@lru_cache(maxsize=1)
def learner_of(options: tuple[str, ...]) -> ShardLearner:
    """Build data, backbone and head from the options of ``fit``.

    Args:
        options: arguments of the command line.

    Raises:
        UsageError: options that do not fit.
        DataError: data that is missing.
    """
    from cifnet_pl.data.datamodule import CIFNetDataModule
    from cifnet_pl.data.duplicates import find_duplicates
    from cifnet_pl.learning.cifnet_module import CIFNetModule
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.partial_sums import ShardLearner

    parser = OneSentence(prog="cifnet sums")
    parser.add_class_arguments(CIFNetDataModule, "data", sub_configs=False)
    parser.add_subclass_arguments(CIFNetModule, "model", required=False)
    # Which task a class belongs to makes no difference to sums.
    parser.set_defaults(
        {"model": {"class_path": "cifnet_pl.CIFNetModule"}, "data.classes_per_task": 1}
    )
    given = {plain(word.partition("=")[0]) for word in options}
    words = list(options)
    if any(name.startswith("--model.head.") for name in given):
        words.insert(0, f"--model.head={DEFAULT_SUMS_HEAD}")
    words = with_clean_heads(words)
    with current_folder_importable():
        config = parser.parse_args(words)
    choose_backbone(config)
    head_options = config.get("model.init_args.head.init_args")
    has_seed = head_options is not None and "seed" in head_options
    if has_seed and "--model.head.seed" not in given:
        head_options["seed"] = HEAD_SEED
    with own_errors():
        built: Any = parser.instantiate_classes(config)
    module = built.model
    data = built.data
    size, crop_ratio = data.image_shape(module.backbone.preprocessing)
    source = data.source
    if data.learns_held_out:
        source = source.untested()  # sums have no score to hold out for
    left_out = None
    if data.duplicates is not None:
        copies = find_duplicates(source, ())
        for message in (*data.notes, *copies.sentences(data.duplicates)):
            print_text(message)
        if data.duplicates == "leave_out":
            left_out = copies.left_out(source)[0]
    return ShardLearner(
        source,
        Classifier(
            module.backbone,
            module.head,
            module.buffer,
            image_size=size,
            crop_ratio=crop_ratio,
            calibrated=module.model.calibrated,
        ),
        data.batch_size,
        data.num_workers or 0,
        data.on_corrupt == "skip",
        left_out,
    )


# ---------------------------------------------------------------------- Ray


def _make_with_ray(
    folder: Path,
    missing: Sequence[Shard],
    options: Sequence[str],
    workers: int,
    retries: int,
    threads: int,
) -> None:
    """Make shards, ``workers`` at a time; join the cluster of RAY_ADDRESS, or start one here.

    Each shard is a task; Ray itself starts the task of a lost worker again.
    """
    ray = optional("ray", "--shards, but not --shard,", "ray")
    if not missing:
        return
    began = not ray.is_initialized()
    if began:
        _start(ray, workers)
    try:
        task = ray.remote(num_cpus=1, max_retries=retries, retry_exceptions=False)(
            _make_one
        )
        where = str(folder.resolve())
        words = tuple(options)
        home = os.getcwd()
        waiting = {
            task.remote(home, where, (s.index, s.count), words, threads): s.name
            for s in missing
        }
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            name = waiting.pop(done)
            try:
                print_text(ray.get(done))
            except ray.exceptions.RayError as error:
                print_text(f"{name} failed: {one_line(error)}", sys.stderr)
    finally:
        if began:
            ray.shutdown()


def _start(ray: Any, workers: int) -> None:
    # Workers import this package also where it is not installed.
    home = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), home]))
    options: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": paths}}}
    if not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault(
            "RAY_USAGE_STATS_ENABLED", "0"
        )  # nothing is sent anywhere
        options |= {
            "num_cpus": workers,
            "include_dashboard": False,
            "logging_level": "error",
        }
    ray.init(log_to_driver=False, **options)


def _make_one(
    home: str,
    folder: str,
    shard: tuple[int, int],
    options: tuple[str, ...],
    threads: int,
) -> str:
    """Compute one shard in a worker, which keeps data, backbone and head for the next.

    Args:
        home: folder that the command was given in; paths and custom code are relative to it.
        folder: of the files.
        shard: its number, and how many there are.
        options: of ``fit``.
        threads: of torch.
    """
    from cifnet_pl.model.partial_sums import Shard

    if os.path.isdir(home):  # not on another machine of a cluster
        os.chdir(home)
    return make(Path(folder), [Shard(*shard)], options, threads)[0]
