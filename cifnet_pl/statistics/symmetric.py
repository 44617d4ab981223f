"""Compute Gram matrices for little more than half the operations: nothing above the diagonal."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor

BLOCK = 256
"""Columns that are computed at a time: narrower blocks leave out more, but their products are slower."""


def add_lower_(gram: Tensor, left: Tensor, right: Tensor) -> None:
    """Add ``leftᵀ right``, which is symmetric, to the blocks of ``gram`` on and below the diagonal, in place.

    Args:
        gram: (p, p).
        left, right: (n, p), in the dtype of ``gram``.
    """
    for start, stop in _blocks(len(gram)):
        gram[start:stop, :stop].addmm_(left[:, start:stop].T, right[:, :stop])


def mirror_(gram: Tensor) -> Tensor:
    """Fill ``gram`` (p, p) above the diagonal from below it, in place, and return it."""
    for start, stop in _blocks(len(gram), BLOCK // 4):
        gram[:start, start:stop] = gram[start:stop, :start].T
        block = gram[start:stop, start:stop]
        block.copy_(block.tril() + block.tril(-1).T)
    return gram


def _blocks(width: int, size: int = BLOCK) -> list[tuple[int, int]]:
    """Return the first column of each block, and the one after its last."""
    parts = max(1, round(width / size))
    return list(pairwise(width * i // parts for i in range(parts + 1)))
