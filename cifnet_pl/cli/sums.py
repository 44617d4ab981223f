"""``sums``: compute the sums of parts of a training set, one file each, which ``merge`` adds up and solves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from cifnet_pl.cli.drivers import DRIVERS, Job
from cifnet_pl.cli.shard_maker import make
from cifnet_pl.model.sums import Shard
from cifnet_pl.utilities.errors import CifnetError, UsageError


def sums(
    output: str,
    overrides: Sequence[tuple[str, str]] = (),
    shard: list[str] | None = None,
    shards: int | None = None,
    by: Literal["processes", "ray", "slurm"] = "processes",
    workers: int = 2,
    retries: int = 3,
    threads: int = 1,
) -> None:
    """Embed parts of a training set and write one file of sums for each; cifnet merge adds them up.

    Options with a dot in their name are those of fit: --data.source, --data.root, --model.backbone, --model.head, ….
    Shards that are finished are skipped, and those that fail are tried again.

    Args:
        output: folder for the files.
        shard: parts to make here, one after the other, such as 3/64.
        shards: cut the set into so many parts and make them all, in several workers.
        by: what starts the workers: processes, ray, or slurm, which writes a script for sbatch.
        workers: number of workers at a time.
        retries: how often a part that failed is tried again.
        threads: of torch in each worker; sums of one part are the same to the last bit for the same number.

    Raises:
        UsageError: options that do not fit, or a head whose statistics are not sums.
        DataError: samples that cannot be read.
        CifnetError: parts that failed however often they were tried.
    """
    if (shard is None) == (shards is None):
        raise UsageError("give either --shard 3/64 for one part, or --shards 64 for all of them")
    folder = Path(output).expanduser()
    options = [word for name, value in overrides for word in (f"--{name}", value)]
    if shard is not None:
        for line in make(folder, [Shard.parse(text) for text in shard], options, threads):
            print(line, flush=True)
        return
    assert shards is not None
    everything = [Shard(i, shards) for i in range(1, shards + 1)]
    job = Job(folder, everything, tuple(options), workers, threads, retries)
    DRIVERS[by]().run(job)
    if by != "slurm":
        left = job.missing()
        if left:
            raise CifnetError(f"{len(left)} of {shards} shards failed, the first is {left[0].index}: see above")
        print(f"{shards} shards in {folder}")
        print(job.merging())
