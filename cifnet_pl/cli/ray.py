"""Make parts of a set with Ray: tasks, each of which writes one file, so that nothing is lost.

Why not Ray Data: sums that an actor has accumulated are gone with it, and Data runs only the block
again that was under way; the order of its blocks, on which the last bits depend, is that of their
arrival.

The driver is a process of its own, as Ray ends the process that loses the head of its cluster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partition import Shard

PATIENCE = 20
"""Seconds after which a head that does not answer is taken for lost."""


@dataclass(frozen=True)
class Workers:
    """Ray's workers, and what each of them gets.

    Attributes:
        count: number of shards at a time.
        retries: how often a shard is tried again.
        threads: of torch in each worker.
        per_gpu: number of workers that share a GPU, where the cluster has any.
    """

    count: int
    retries: int
    threads: int
    per_gpu: int


def make_with_ray(
    make: Callable[[Shard], str],
    shards: Sequence[Shard],
    workers: Workers,
) -> list[str]:
    """Make shards on the cluster of RAY_ADDRESS, or with workers on this machine.

    A sentence about each is printed.

    Args:
        make: function that makes a shard, and returns a sentence.
        shards: to make.
        workers: that make them.

    Returns:
        Names of those that failed.

    Raises:
        UsageError: Ray is not installed.
        CifnetError: there is no cluster at RAY_ADDRESS, or its head was lost.
    """
    ray = optional("ray", "--shards, but not --shard,", "ray")
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    # As Ray pickles: the function may be one within another.
    arguments = (ray.cloudpickle.dumps(make), shards, workers, sender)
    driver = context.Process(target=_drive, args=arguments, daemon=True)
    driver.start()
    sender.close()
    failed = []
    try:
        for _ in shards:
            outcome = receiver.recv()
            if isinstance(outcome, CifnetError):
                raise outcome
            name, sentence = outcome
            if name:
                failed.append(name)
            print_text(sentence, sys.stderr if name else sys.stdout)
        driver.join()
    except EOFError:
        address = os.environ.get("RAY_ADDRESS", "")
        raise CifnetError(
            f"the head of the Ray cluster {address} does not answer: finished shards stay, and the"
            " same command goes on once it is there"
        ) from None
    finally:
        driver.terminate()
        driver.join()
    return failed


def _drive(
    make: bytes,
    shards: Sequence[Shard],
    workers: Workers,
    sender: Connection,
) -> None:
    """Make shards with Ray.

    Args:
        make: pickled function, as for :func:`make_with_ray`.
        shards, workers: as there.
        sender: gets what :func:`_next_outcome` returns of each shard, or an error of Ray.
    """
    # What Ray and its libraries print is no sentence.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    # Read when Ray is imported.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(PATIENCE))
    try:
        import ray

        with _joined(workers):
            # Without a limit of calls, which is one on a GPU, a worker keeps backbone and data.
            task = ray.remote(
                num_cpus=workers.threads,
                num_gpus=min(
                    ray.cluster_resources().get("GPU", 0), 1 / workers.per_gpu
                ),
                max_calls=0,
                max_retries=workers.retries,
                retry_exceptions=[OSError],
            )(ray.cloudpickle.loads(make))
            running: dict[Any, str] = {}
            for shard in shards:
                if len(running) == workers.count:
                    sender.send(_next_outcome(running))
                running[task.remote(shard)] = shard.name
            while running:
                sender.send(_next_outcome(running))
    except Exception as error:
        sender.send(CifnetError(f"Ray: {one_line(error)}"))


def _next_outcome(running: dict[Any, str]) -> tuple[str, str]:
    """Wait for one of some shards that Ray makes, and take it out.

    Args:
        running: Ray's reference to each → its name.

    Returns:
        Its name if it failed, else nothing, and a sentence.
    """
    import ray

    (done,), _ = ray.wait(list(running))
    name = running.pop(done)
    try:
        return "", ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        return name, f"{name} failed: {one_line(cause)}"


def _joined(workers: Workers) -> Any:
    """Join the cluster of RAY_ADDRESS, or start one here; its workers get this package.

    Args:
        workers: of a cluster that is started here.

    Returns:
        A context that leaves the cluster in the end.
    """
    import ray

    package = str(Path(__file__).parents[1])
    options: dict[str, Any] = {"runtime_env": {"py_modules": [package]}}
    if not os.environ.get("RAY_ADDRESS"):
        # Nothing is sent anywhere.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        cores = workers.count * workers.threads
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    return ray.init(log_to_driver=False, logging_level="error", **options)
