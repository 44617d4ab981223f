"""Messages on ridges that generalised cross-validation chose, and on how an update changed them."""

from __future__ import annotations

from collections.abc import Sequence

from cifnet_pl.statistics import RidgeChoice

LARGE_CHANGE = 100.0
"""Factor between the ridges before and after an update from which on there is a message."""

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


def update_messages(
    before: Sequence[RidgeChoice], after: Sequence[RidgeChoice]
) -> list[str]:
    """Return messages on the ridges after an update, and on how much it changed them.

    Args:
        before: the choices before the update.
        after: the choices after it, in the same order.
    """
    messages = [edge_message(after), change_message(before, after)]
    return [message for message in messages if message is not None]


def change_message(
    before: Sequence[RidgeChoice], after: Sequence[RidgeChoice]
) -> str | None:
    """Return a message if a ridge grew or shrank by more than ``LARGE_CHANGE``; else None.

    Args:
        before: the choices before an update.
        after: the choices after it, in the same order.
    """
    largest = 1.0
    message = None
    for old, new in zip(before, after, strict=False):
        if old.ridge <= 0 or new.ridge <= 0:
            continue
        factor = max(new.ridge / old.ridge, old.ridge / new.ridge)
        if factor > largest:
            largest = factor
            message = (
                "note: these images change the model as much as if they were unlike all those"
                " before, or duplicates of each other: check them (the ridge changed from"
                f" {old.ridge:.3g} to {new.ridge:.3g})"
            )
    if largest <= LARGE_CHANGE:
        return None
    return message
