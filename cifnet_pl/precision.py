"""The precisions that a frozen backbone computes in, by Lightning's names; the statistics are never in any of them."""

from __future__ import annotations

import torch

FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name → dtype that autocast computes most layers in."""


def autocast(device: str, precision: str) -> torch.autocast:
    """A context in which a network on a device of type ``device`` computes as in a run with ``precision``.

    ``precision`` is ``FLOAT32`` or a name in ``REDUCED``.
    """
    reduced = precision != FLOAT32
    return torch.autocast(device, REDUCED[precision] if reduced else None, enabled=reduced)
