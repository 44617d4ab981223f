"""Make parts of a set with Ray: tasks, each of which writes one file, so that nothing is lost.

Why not Ray Data: sums that an actor has accumulated are gone with it, and Data runs only the block
again that was under way; the order of its blocks, on which the last bits depend, is that of their
arrival.

The driver is a process of its own, as Ray ends the process that loses the head of its cluster.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import one_line, print_text

if TYPE_CHECKING:
    from cifnet_pl.model.partial_sums import Shard

PATIENCE = 20
"""Seconds after which a head that does not answer is taken for lost."""


@dataclass(frozen=True)
class RayJob:
    """What Ray's workers are to do.

    Attributes:
        home: folder that the command was given in; paths and custom code are relative to it.
        folder: of the files.
        words: all options that the sums depend on.
        workers: number of shards at a time.
        retries: how often a shard is tried again.
        threads: of torch in each worker.
        workers_per_gpu: number of workers that share a GPU.
        make: function from the folder, a shard in a list, ``words`` and ``threads`` to sentences.
    """

    home: str
    folder: str
    words: tuple[str, ...]
    workers: int
    retries: int
    threads: int
    workers_per_gpu: int
    make: Callable[..., list[str]]


def make_with_ray(job: RayJob, shards: Sequence[Shard]) -> list[str]:
    """Make shards on the cluster of RAY_ADDRESS, or with workers on this machine.

    Args:
        job: what is to be done.
        shards: that are missing.

    Returns:
        Names of those that failed.

    Raises:
        UsageError: Ray is not installed, or there is no cluster at RAY_ADDRESS.
        CifnetError: the head of the cluster was lost.
    """
    optional("ray", "--shards, but not --shard,", "ray")
    if not shards:
        return []
    _check_head(os.environ.get("RAY_ADDRESS", ""))
    context = get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    driver = context.Process(
        target=_drive, args=(job, list(shards), sender), daemon=True
    )
    driver.start()
    sender.close()
    failed: list[str] = []
    try:
        while True:
            message = receiver.recv()
            if isinstance(message, Exception):
                raise message
            if message is None:
                return failed
            name, text, succeeded = message
            stream = sys.stdout
            if not succeeded:
                failed.append(name)
                stream = sys.stderr
            print_text(text, stream)
    except EOFError:
        raise CifnetError(
            "the head of the Ray cluster was lost, or ended the driver: finished shards stay, and"
            " the same command goes on"
        ) from None
    finally:
        driver.terminate()
        driver.join()


def _check_head(address: str) -> None:
    """Raise UsageError where nothing answers at the address of a cluster."""
    host, colon, port = address.rpartition("//")[2].rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError as error:
        raise UsageError(
            f"no Ray cluster answers at RAY_ADDRESS {address} ({error.strerror or error}): start"
            " its head, or unset RAY_ADDRESS to work on this machine"
        ) from None


def _drive(job: RayJob, shards: list[Shard], sender: Connection) -> None:
    """Send (name, sentence, whether it succeeded) for each shard, and None at the end.

    An error is sent in their place.
    """
    # What Ray and its libraries print is no sentence.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    try:
        import ray

        _start(ray, job)
        _run(ray, job, shards, sender)
        sender.send(None)
    except Exception as error:
        sender.send(CifnetError(f"Ray: {one_line(error)}"))


def _start(ray: Any, job: RayJob) -> None:
    """Join the cluster of RAY_ADDRESS, or start one here; its workers get this package."""
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(PATIENCE))
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


def _run(ray: Any, job: RayJob, shards: list[Shard], sender: Connection) -> None:
    """Keep as many shards under way as there are workers, until all have ended."""
    resources: dict[str, float] = {"num_cpus": job.threads}
    if ray.cluster_resources().get("GPU"):
        resources["num_gpus"] = 1 / job.workers_per_gpu
    # Without a limit of calls, which is one on a GPU, a worker keeps backbone and data.
    task = ray.remote(
        **resources,
        max_calls=0,
        max_retries=job.retries,
        retry_exceptions=[OSError],
    )(_make_one)
    waiting = list(reversed(shards))
    running: dict[Any, str] = {}
    while waiting or running:
        while waiting and len(running) < job.workers:
            shard = waiting.pop()
            running[task.remote(job, shard.index, shard.count)] = shard.name
        (done,), _ = ray.wait(list(running), num_returns=1)
        name = running.pop(done)
        try:
            sender.send((name, ray.get(done), True))
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            sender.send((name, f"{name} failed: {one_line(cause)}", False))


def _make_one(job: RayJob, index: int, count: int) -> str:
    """Make one shard in a worker, which keeps data, backbone and head for the next.

    Raises:
        OSError: the system refused a file, which may pass: Ray tries again.
    """
    from cifnet_pl.model.partial_sums import Shard

    if os.path.isdir(job.home):  # not on another machine of a cluster
        os.chdir(job.home)
    try:
        shards = [Shard(index, count)]
        return job.make(Path(job.folder), shards, job.words, job.threads)[0]
    except CifnetError as error:
        if isinstance(error.__cause__, OSError):
            raise OSError(str(error)) from None
        raise
