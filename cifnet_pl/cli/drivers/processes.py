"""Run the workers as plain processes on this machine, and distribute again what failed."""

from __future__ import annotations

import os
import subprocess
import sys

from cifnet_pl.cli.drivers import Job


def run(job: Job) -> None:
    """Make the missing shards, in ``job.workers`` processes."""
    for _ in range(1 + job.retries):
        missing = job.missing()
        if not missing:
            return
        shares = [missing[i :: job.workers] for i in range(min(job.workers, len(missing)))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
        running = [
            subprocess.Popen(
                [sys.executable, "-m", "cifnet_pl", *job.command(*(f"{s.index}/{s.count}" for s in share))],
                env=environment,
            )
            for share in shares
        ]
        try:
            for process in running:
                process.wait()
        finally:
            for process in running:
                process.terminate()
