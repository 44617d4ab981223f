"""Make parts of a set with Ray: tasks, each of which writes one file, so that nothing is lost.

Why not Ray Data: sums that an actor has accumulated are gone with it, and Data runs only the block
again that was under way; the order of its blocks, on which the last bits depend, is that of their
arrival.

The driver is a process of its own, as Ray ends the process that loses the head of its cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partition import Shard

PATIENCE = 20
"""Seconds after which a head that does not answer is taken for lost."""


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

    Args:
        job: what is to be done.
        shards: that are missing.

    Returns:
        Names of those that failed.

    Raises:
        UsageError: Ray is not installed.
        CifnetError: there is no cluster at RAY_ADDRESS, or its head was lost.
    """
    optional("ray", "--shards, but not --shard,", "ray")
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    driver = context.Process(target=_drive, args=(job, shards, sender), daemon=True)
    driver.start()
    sender.close()
    try:
        outcome = receiver.recv()
    except EOFError:
        address = os.environ.get("RAY_ADDRESS", "")
        raise CifnetError(
            f"the head of the Ray cluster {address} does not answer: finished shards stay, and the"
            " same command goes on once it is there"
        ) from None
    finally:
        driver.terminate()
        driver.join()
    if isinstance(outcome, Exception):
        raise outcome
    failed: list[str] = outcome
    return failed


def _drive(job: RayJob, shards: Sequence[Shard], sender: Connection) -> None:
    """Make the shards, and send the names of those that failed, or an error in their place."""
    out = os.fdopen(os.dup(1), "w")
    errors = os.fdopen(os.dup(2), "w")
    # What Ray and its libraries print is no sentence.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # Read when Ray is imported.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(PATIENCE))
    try:
        import ray

        _start(ray, job)
        sender.send(_run(ray, job, shards, out, errors))
    except Exception as error:
        sender.send(CifnetError(f"Ray: {one_line(error)}"))


def _start(ray: Any, job: RayJob) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here; its workers get this package."""
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
    ray.init(log_to_driver=False, logging_level="error", **options)


def _run(
    ray: Any, job: RayJob, shards: Sequence[Shard], out: TextIO, errors: TextIO
) -> list[str]:
    """Keep as many shards under way as there are workers; return the names of those that failed.

    Args:
        ray: the package, which has joined a cluster.
        job: what is to be done.
        shards: to be made.
        out, errors: where a sentence about each is printed.
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
            print_text(ray.get(done), out)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            print_text(f"{name} failed: {one_line(cause)}", errors)
            failed.append(name)
    return failed
