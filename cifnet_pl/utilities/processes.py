"""Helpers for a run in several processes: which one writes, and what all of them hold."""

from __future__ import annotations

import os
from typing import Any, TypeVar

T = TypeVar("T")


def is_first_process() -> bool:
    """Return whether this process writes for the whole run, as its launcher's variables say.

    They are read at every call.
    """
    ranks = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
    return all(os.environ.get(name, "0") in ("", "0") for name in ranks)


def of_all_processes(value: T) -> list[T]:
    """Return the values of all processes of this run, in the order of their ranks; every process must call this."""
    import torch.distributed  # here: a command line that only shows help does not wait for it

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [value]
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, value)
    return parts


def rank_and_world() -> tuple[int, int]:
    """Return this process's number in its run, and the number of its processes."""
    import torch.distributed

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()
