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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.utilities.errors import CifnetError, explained
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partition import Shard


def make_with_ray(
    make: Callable[[Shard], str],
    shards: Sequence[Shard],
    workers: int,
    retries: int,
    threads: int,
    workers_per_gpu: int,
) -> list[str]:
    """Make shards on the cluster of RAY_ADDRESS, or with workers on this machine.

    A sentence about each is printed.

    Args:
        make: function that makes a shard, and returns a sentence.
        shards: to make.
        workers: number of shards at a time.
        retries: how often a shard is tried again.
        threads: of torch in each worker.
        workers_per_gpu: number of workers that share a GPU.

    Returns:
        Names of those that failed.

    Raises:
        UsageError: Ray is not installed.
        CifnetError: Ray does not start.
    """
    ray = optional("ray", "--shards, but not --shard,", "ray")
    failed = []
    running: dict[Any, str] = {}
    waiting = list(shards)
    with _joined(ray, workers * threads):
        resources: dict[str, float] = {"num_cpus": threads}
        if ray.cluster_resources().get("GPU"):
            resources["num_gpus"] = 1 / workers_per_gpu
        # Without a limit of calls, which is one on a GPU, a worker keeps backbone and data.
        task = ray.remote(
            **resources,
            max_calls=0,
            max_retries=retries,
            retry_exceptions=[OSError],
        )(make)
        while waiting or running:
            while waiting and len(running) < workers:
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


def _joined(ray: Any, cores: int) -> Any:
    """Join the cluster of RAY_ADDRESS, or start one here; its workers get this package.

    Args:
        ray: the package.
        cores: of a cluster that is started here.

    Returns:
        A context that leaves the cluster in the end.
    """
    package = str(Path(__file__).parents[1])
    options: dict[str, Any] = {"runtime_env": {"py_modules": [package]}}
    if not os.environ.get("RAY_ADDRESS"):
        # Nothing is sent anywhere.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    with explained(CifnetError, "Ray"):
        return ray.init(log_to_driver=False, logging_level="error", **options)
