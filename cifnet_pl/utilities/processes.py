"""The processes of a run: which one this is, and what all of them have."""

import os
from typing import Any, TypeVar

T = TypeVar("T")

RANKS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")
"""Environment variables of launchers, which number the processes of a run."""


def is_first_process() -> bool:
    """Return whether this process writes for the whole run, as its launcher's variables say.

    They are read at every call.
    """
    ranks_of_process = [os.environ.get(name, "0") in ("", "0") for name in RANKS]
    return all(ranks_of_process)


def rank_and_world() -> tuple[int, int]:
    """Return this process's number in its run, and the number of its processes."""
    import torch.distributed  # here: a command line that only shows help does not wait for it

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return 0, 1
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def of_all_processes(value: T) -> list[T]:
    """Return the values of all processes in the order of ranks; each process must call this."""
    import torch.distributed

    _, world = rank_and_world()
    if world == 1:
        return [value]
    parts: list[Any] = [None] * world
    torch.distributed.all_gather_object(parts, value)
    return parts
