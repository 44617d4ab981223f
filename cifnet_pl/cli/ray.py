"""Make parts of a set with Ray: tasks, each of which writes one file, so that nothing is lost.

Why not Ray Data: sums that an actor has accumulated are gone with it, and Data runs only the block
again that was under way; the order of its blocks, on which the last bits depend, is that of their
arrival.

Where the head of a cluster is lost, or was never there, Ray says so and ends this process with exit
code 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.utilities.errors import CifnetError, explained
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partition import Shard


@dataclass(frozen=True)
class RayJob:
    """What Ray's workers are to do.

    Attributes:
        make: function that makes a shard, and returns a sentence.
        workers: number of shards at a time.
        retries: how often a shard is tried again.
        threads: of torch in each worker.
        workers_per_gpu: number of workers that share a GPU.
    """

    make: Callable[[Shard], str]
    workers: int
    retries: int
    threads: int
    workers_per_gpu: int


def make_with_ray(job: RayJob, shards: Sequence[Shard]) -> list[str]:
    """Make shards on the cluster of RAY_ADDRESS, or with workers on this machine.

    A sentence about each is printed.

    Args:
        job: what is to be done.
        shards: that are missing.

    Returns:
        Names of those that failed.

    Raises:
        UsageError: Ray is not installed.
        CifnetError: Ray does not start.
    """
    ray = optional("ray", "--shards, but not --shard,", "ray")
    with explained(CifnetError, "Ray"):
        cluster = _join(ray, job)
    with cluster:
        return _make(ray, job, shards)


def _join(ray: Any, job: RayJob) -> Any:
    """Join the cluster of RAY_ADDRESS, or start one here; its workers get this package.

    Returns:
        A context that leaves the cluster in the end.
    """
    package = str(Path(__file__).parents[1])
    options: dict[str, Any] = {"runtime_env": {"py_modules": [package]}}
    if not os.environ.get("RAY_ADDRESS"):
        # Nothing is sent anywhere.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {
            "address": "local",
            "num_cpus": job.workers * job.threads,
            "include_dashboard": False,
        }
    return ray.init(log_to_driver=False, logging_level="error", **options)


def _make(ray: Any, job: RayJob, shards: Sequence[Shard]) -> list[str]:
    """Keep as many shards under way as there are workers; return the names of those that failed.

    Args:
        ray: the package, which has joined a cluster.
        job: what is to be done.
        shards: to be made.
    """
    resources: dict[str, float] = {"num_cpus": job.threads}
    if ray.cluster_resources().get("GPU"):
        resources["num_gpus"] = 1 / job.workers_per_gpu

    def make(shard: Shard) -> str:
        return job.make(shard)

    # Without a limit of calls, which is one on a GPU, a worker keeps backbone and data.
    task = ray.remote(
        **resources,
        max_calls=0,
        max_retries=job.retries,
        retry_exceptions=[OSError],
    )(make)
    failed = []
    running: dict[Any, str] = {}
    waiting = list(shards)
    while waiting or running:
        while waiting and len(running) < job.workers:
            shard = waiting.pop(0)
            running[task.remote(shard)] = shard.name
        (done,), _ = ray.wait(list(running))
        name = running.pop(done)
        try:
            print_text(ray.get(done))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            print_text(f"{name} failed: {one_line(cause)}", sys.stderr)
            failed.append(name)
    return failed

