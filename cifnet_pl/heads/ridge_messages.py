"""The message on a ridge at the edge of generalised cross-validation."""

from __future__ import annotations

from collections.abc import Sequence

from cifnet_pl.statistics import RidgeChoice

EDGE_MESSAGE = (
    "note: the images are too few, or nothing in them separates their classes: add images, and"
    " check that they are in the right folders (the ridge is at the upper edge of its range,"
    " {:.3g})"
)


def edge_message(choices: Sequence[RidgeChoice]) -> str | None:
    """Return a message on ridges at the upper edge of generalised cross-validation.

    Args:
        choices: ridges, and their positions.

    Returns:
        The message on the largest; None if none is at the edge.
    """
    ridges = [choice.ridge for choice in choices if choice.position == "largest"]
    if not ridges:
        return None
    return EDGE_MESSAGE.format(max(ridges))
