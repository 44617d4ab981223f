"""Start the workers of ``cifnet sums --shards n``; one short file for each way to do it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from cifnet_pl.cli.shard_maker import is_finished
from cifnet_pl.model.description import outside_parts
from cifnet_pl.model.sums import Shard
from cifnet_pl.utilities.text import next_command


@dataclass(frozen=True)
class Job:
    """Shards that are to be computed.

    Attributes:
        folder: of their files.
        shards: all of them.
        options: of data and model, as on the command line.
        workers: number at a time.
        threads: of torch in each worker.
        retries: how often a shard that failed is tried again.
    """

    folder: Path
    shards: list[Shard]
    options: tuple[str, ...]
    workers: int
    threads: int
    retries: int

    def missing(self) -> list[Shard]:
        """Return the shards whose file is missing or not complete."""
        return [shard for shard in self.shards if not is_finished(self.folder, shard)]

    def command(self, *shards: str) -> list[str]:
        """Return the arguments after ``cifnet`` that compute ``shards``, such as "3/64"."""
        arguments = ["sums", "--output", str(self.folder), "--threads", str(self.threads)]
        return [*arguments, *(word for shard in shards for word in ("--shard", shard)), *self.options]

    def merging(self) -> str:
        """Return the line that tells how the shards become a model."""
        given = dict(zip(self.options[::2], self.options[1::2], strict=True))
        names = {part: given.get(f"--model.{part}", "") for part in ("head", "backbone", "architecture")}
        trust = bool(outside_parts(names["head"], names["backbone"], names["architecture"]))
        return next_command("merge", str(self.folder), "--output", "MODEL", trust=trust)


def _driver(name: str) -> Callable[[], Any]:
    return lambda: import_module(f"cifnet_pl.cli.drivers.{name}")


DRIVERS = {"processes": _driver("processes"), "ray": _driver("ray_tasks"), "slurm": _driver("slurm")}
"""Name → its module, imported when it is used; its function ``run`` makes the missing shards of a job."""
