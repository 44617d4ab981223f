"""Compute shards of a training set by the options of ``fit``, one file of sums each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from cifnet_pl.cli.option_errors import OneSentence, buried_error
from cifnet_pl.cli.parsing import choose_backbone, with_clean_heads
from cifnet_pl.model.sums import ENDING, Shard, ShardLearner, read_sums, write_sums
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.files import exclusive
from cifnet_pl.utilities.plugins import find_in_current_folder

HEAD = "RidgeHead"
"""Of sums, unless another one is given: its sums are exact, and small."""

SEED = 1
"""Of the head, as ``fit`` sets it: sums of another random projection could not be merged with a run."""


def make(folder: Path, shards: Sequence[Shard], options: Sequence[str], threads: int = 1) -> list[str]:
    """Compute the files of shards that are missing.

    Args:
        folder: of the files.
        shards: to compute.
        options: of ``fit``.
        threads: of torch.

    Returns:
        A sentence for each shard.
    """
    missing = [shard for shard in shards if not is_finished(folder, shard)]
    messages = [f"{shard.name} is finished already" for shard in shards if shard not in missing]
    learner = learner_of(tuple(options)) if missing else None
    for shard in missing:
        assert learner is not None
        path = file_of(folder, shard)
        with exclusive(path), _threads(threads):
            shard_sums = learner.sums(shard)
            write_sums(shard_sums, path)
        messages.append(f"{shard.name}: {sum(shard_sums.model.counts.values())} samples")
    return messages


def file_of(folder: Path, shard: Shard) -> Path:
    """Return the path of the sums of a shard."""
    return folder / (shard.name + ENDING)


def is_finished(folder: Path, shard: Shard) -> bool:
    """Return whether the file of a shard is complete; a damaged one is made again."""
    path = file_of(folder, shard)
    if not path.is_file():
        return False
    try:
        read_sums(path, trust=True)  # this user's own run, which imports what its options name anyway
    except CheckpointError:
        return False
    return True


@lru_cache(maxsize=1)
def learner_of(options: tuple[str, ...]) -> ShardLearner:
    """Build data, backbone and head from the options of ``fit``.

    Args:
        options: arguments of the command line.

    Raises:
        UsageError: options that do not fit.
        DataError: data that is missing.
    """
    from cifnet_pl.data import CIFNetDataModule
    from cifnet_pl.learning.cifnet_module import CIFNetModule

    find_in_current_folder()
    parser = OneSentence(prog="cifnet sums")
    parser.add_class_arguments(CIFNetDataModule, "data", sub_configs=False)
    parser.add_subclass_arguments(CIFNetModule, "model", required=False)
    # Which task a class belongs to makes no difference to sums.
    parser.set_defaults({"model": {"class_path": "cifnet_pl.CIFNetModule"}, "data.classes_per_task": 1})
    config = parser.parse_args(with_clean_heads([f"--model.head={HEAD}", *options]))
    choose_backbone(config)
    head_options = config.get("model.init_args.head.init_args")
    given = any(re.match(r"--model\.(init_args\.)?head\.(init_args\.)?seed\b", word) for word in options)
    if head_options is not None and "seed" in head_options and not given:
        head_options["seed"] = SEED
    try:
        built: Any = parser.instantiate_classes(config)
    except (ValueError, TypeError) as error:
        raise buried_error(error) or error from None
    module, data = built.model, built.data
    size, crop_ratio = data.image_shape(module.backbone.preprocessing)
    return ShardLearner(
        data.source,
        module.backbone,
        lambda width: module.head.fresh(),
        size,
        crop_ratio,
        data.batch_size,
        data.num_workers or 0,
        data.on_corrupt == "skip",
    )


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Within the block, compute with a fixed number of threads, as sums round differently with another number."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
