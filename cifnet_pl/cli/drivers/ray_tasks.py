"""Run the workers with Ray, one task for each shard; Ray itself starts the task of a lost worker again."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from cifnet_pl.cli.drivers import Job
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import one_line


def run(job: Job) -> None:
    """Make the missing shards, ``job.workers`` at a time; joins the cluster of RAY_ADDRESS, or starts one here."""
    try:
        import ray
    except ImportError:
        raise UsageError("--by ray needs the package ray: pip install 'cifnet_pl[ray]'") from None
    missing = job.missing()
    if not missing:
        return
    began = not ray.is_initialized()
    if began:
        _start(ray, job.workers)
    try:
        make = ray.remote(num_cpus=1, max_retries=job.retries, retry_exceptions=False)(_make)
        folder = str(job.folder.resolve())
        waiting = {make.remote(folder, (s.index, s.count), job.options, job.threads): s for s in missing}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            shard = waiting.pop(done)
            try:
                print(ray.get(done), flush=True)
            except ray.exceptions.RayError as error:
                print(f"{shard.name} failed: {one_line(error)}", file=sys.stderr, flush=True)
    finally:
        if began:
            ray.shutdown()


def _start(ray: Any, workers: int) -> None:
    # Workers import what this process imports: its folder, and the package where it is not installed.
    paths = os.pathsep.join(dict.fromkeys([*os.environ.get("PYTHONPATH", "").split(os.pathsep), os.getcwd()]))
    environment = {"env_vars": {"PYTHONPATH": paths.strip(os.pathsep)}}
    if os.environ.get("RAY_ADDRESS"):
        ray.init(runtime_env=environment, log_to_driver=False)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    ray.init(
        num_cpus=workers, include_dashboard=False, log_to_driver=False, runtime_env=environment, logging_level="error"
    )


def _make(folder: str, shard: tuple[int, int], options: tuple[str, ...], threads: int) -> str:
    """Make one shard in a worker, which keeps data, network and head for the next."""
    from cifnet_pl.cli.shard_maker import make
    from cifnet_pl.model.sums import Shard

    return make(Path(folder), [Shard(*shard)], options, threads)[0]
