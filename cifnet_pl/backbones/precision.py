"""The precisions that a frozen backbone computes in, by Lightning's names; the statistics are never in any of them."""

from __future__ import annotations

import torch

from cifnet_pl.utilities.errors import UsageError

FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name → dtype that autocast computes most layers in."""

PRECISIONS = (FLOAT32, *REDUCED)


def check_precision(name: str) -> str:
    """``name``, one of ``PRECISIONS``; UsageError otherwise."""
    if name not in PRECISIONS:
        raise UsageError(f"precision {name} does not leave the statistics alone: use {', '.join(PRECISIONS)}")
    return name


def autocast(device: str, precision: str) -> torch.autocast:
    """A context in which a network on a device of type ``device`` computes in ``precision``.

    In float16 on a CPU too, where Lightning takes bf16 instead: what was learned on a GPU is embedded alike.

    Raises:
        UsageError: ``precision`` is none of ``PRECISIONS``.
    """
    reduced = REDUCED.get(check_precision(precision))
    return torch.autocast(device, reduced, enabled=reduced is not None)
