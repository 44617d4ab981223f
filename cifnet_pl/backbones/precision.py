"""Define the precisions that a frozen backbone computes in, by Lightning's names; the statistics use none of these."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

import torch

from cifnet_pl.utilities.errors import UsageError

log = logging.getLogger(__name__)

FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name → dtype that autocast computes most layers in."""

PRECISIONS = (FLOAT32, *REDUCED)


INSTRUCTIONS = {
    "bf16-mixed": (("avx512_bf16", "amx_bf16", "bf16"), 16),
    "16-mixed": (("avx512_fp16", "amx_fp16", "asimdhp"), 9),
}
"""Precision → flags of processors that compute in it, and how many times slower than float32 it is without them.

Measured with EfficientNet-Lite0 at 128 px on a processor with AVX2: 4.9 ms for a photo in float32, 76 in bf16 and 46 in
fp16 (docs/scale_out.md).
"""


def why_slow(precision: str, cpuinfo: str) -> str | None:
    """Explain that a processor has no instructions for a precision.

    Args:
        precision: one of ``PRECISIONS``.
        cpuinfo: content of Linux's ``/proc/cpuinfo``.

    Returns:
        A sentence; None if the processor has such instructions, or that is not known.
    """
    lines = [line.partition(":")[2].split() for line in cpuinfo.splitlines() if line.startswith(("flags", "Features"))]
    if precision not in INSTRUCTIONS or not lines:
        return None
    names, times = INSTRUCTIONS[precision]
    if set(names) & set(lines[0]):
        return None
    return (
        f"{precision} is slow here: this processor has no instructions for it, and takes about {times} times as long "
        f"as in {FLOAT32} (--trainer.precision {FLOAT32}; classify: --precision {FLOAT32})"
    )


@cache
def warn_if_slow(precision: str) -> None:
    """Log a note if a precision is slow on this machine's CPU."""
    cpu_info = Path("/proc/cpuinfo")
    reason = why_slow(precision, cpu_info.read_text(encoding="utf-8", errors="replace")) if cpu_info.is_file() else None
    if reason is not None:
        log.warning("%s", reason)


def check_precision(name: str) -> str:
    """Return ``name`` if it is one of ``PRECISIONS``.

    Raises:
        UsageError: it is another one.
    """
    if name not in PRECISIONS:
        raise UsageError(f"precision {name} does not leave the statistics alone: use {', '.join(PRECISIONS)}")
    return name


def autocast(device: str, precision: str) -> torch.autocast:
    """Return a context in which a network computes in a precision.

    On a CPU float16 is used where it is asked for, although Lightning takes bf16 there: a model that was learned on a
    GPU then gets the same embeddings.

    Args:
        device: type of the device, such as "cpu".
        precision: one of ``PRECISIONS``.

    Raises:
        UsageError: ``precision`` is none of ``PRECISIONS``.
    """
    reduced = REDUCED.get(check_precision(precision))
    return torch.autocast(device, reduced, enabled=reduced is not None)
