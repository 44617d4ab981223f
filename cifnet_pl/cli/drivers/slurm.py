"""Write the script of a SLURM array with one task for each shard, for ``sbatch``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from cifnet_pl.cli.drivers import Job
from cifnet_pl.utilities.files import write_text

SCRIPT = """#!/bin/bash
#SBATCH --job-name=cifnet-sums
#SBATCH --array={numbers}%{workers}
#SBATCH --cpus-per-task={threads}
#SBATCH --requeue
#SBATCH --output={folder}/slurm-%a.log
# One file of sums for each task of the array; a task that finds its file whole ends at once. Start this script again
# for what failed: shards that are finished are skipped.
set -e
cd {here}
export OMP_NUM_THREADS={threads}
exec {command}
"""


def run(job: Job) -> None:
    """Write the script for the missing shards, and print how to start it."""
    missing = job.missing()
    path = job.folder / "sums.sbatch"
    if not missing:
        print(f"all {len(job.shards)} shards are finished")
        print(job.merging())
        return
    count = job.shards[0].count
    command = shlex.join([sys.executable, "-m", "cifnet_pl", *job.command("SHARD")])
    text = SCRIPT.format(
        numbers=_ranges([shard.index for shard in missing]),
        workers=job.workers,
        threads=job.threads,
        folder=job.folder.resolve(),
        here=shlex.quote(str(Path.cwd())),
        command=command.replace("SHARD", f'"$SLURM_ARRAY_TASK_ID/{count}"'),
    )
    write_text(path, text)
    print(f"{len(missing)} of {count} shards to be made: sbatch {shlex.quote(str(path))}")
    print(job.merging().replace("next:", "then:", 1))


def _ranges(numbers: list[int]) -> str:
    """Write ascending numbers as SLURM does: 1-3,7."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
