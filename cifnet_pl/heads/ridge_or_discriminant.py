"""Choose the rule that turns the sums of :class:`~cifnet_pl.heads.RidgeHead` into scores."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Decision = Literal["ridge", "discriminant", "auto"]
"""Ridge regression, linear discriminant analysis, or the one with the higher leave-one-out accuracy."""


def is_better(other: Tensor, current: Tensor, columns: Tensor) -> bool:
    """Tell whether one way of scoring is right significantly more often than another; both leave one out.

    On samples where only one of the two is right, each would be right equally often if both were equally good. The
    difference has to be more than twice its standard deviation (McNemar, 1947), so that a choice does not change back
    and forth from task to task.

    Args:
        other, current: (n, C) scores of the same samples; rows that are not all finite in both do not count.
        columns: (n,) int64 true column of each.
    """
    known = (torch.isfinite(other) & torch.isfinite(current)).all(dim=1)
    right = [scores[known].argmax(dim=1) == columns[known] for scores in (other, current)]
    gained, lost = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    return gained - lost > 2 * math.sqrt(gained + lost)


def rows_without(rows: Tensor, gone: Tensor) -> Tensor | None:
    """Remove one copy of each of some rows.

    Args:
        rows: (n, p).
        gone: (m, p) rows to remove.

    Returns:
        (n − m, p); None if one of them is not among ``rows``.
    """
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for row in gone.to(rows.device):
        matches = ((rows == row).all(dim=1) & kept).nonzero()
        if not len(matches):
            return None
        kept[matches[0]] = False
    return rows[kept]
