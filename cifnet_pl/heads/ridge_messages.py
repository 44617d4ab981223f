"""Messages on ridges that generalised cross-validation chose, and on how an update changed them."""

from __future__ import annotations

from collections.abc import Sequence

from cifnet_pl.statistics import RidgeChoice

LARGE_CHANGE = 100.0
"""Factor between the ridges before and after an update from which on there is a message."""

EDGE_MESSAGES = {
    "smallest": (
        "note: training classes are separated perfectly: check for duplicates (`cifnet audit`); the"
        " ridge is at the lower edge of its grid, {}"
    ),
    "largest": (
        "note: the images are too few, or nothing in them separates their classes: add images, and"
        " check that they are in the right folders (the ridge is at the upper edge of its grid, {})"
    ),
}
"""Position of a ridge → message. A ridge at its cap is usual where images are few and distinct."""


def edge_messages(choices: Sequence[RidgeChoice]) -> dict[str, str]:
    """Return messages on ridges at an edge of the grid of generalised cross-validation.

    Args:
        choices: ridges, and their positions.

    Returns:
        Position → message, for each edge that occurs.
    """
    messages = dict[str, str]()
    for position, message in EDGE_MESSAGES.items():
        ridges = [choice.ridge for choice in choices if choice.position == position]
        if ridges:
            messages[position] = message.format(_range_of(ridges))
    return messages


def update_messages(
    before: Sequence[RidgeChoice], after: Sequence[RidgeChoice]
) -> list[str]:
    """Return messages on the ridges after an update, and on how much it changed them.

    Args:
        before: the choices before the update.
        after: the choices after it, in the same order.
    """
    messages = list(edge_messages(after).values())
    change = change_message(before, after)
    if change is not None:
        messages.append(change)
    return messages


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


def _range_of(ridges: list[float]) -> str:
    low = min(ridges)
    high = max(ridges)
    if low == high:
        return f"{low:.3g}"
    return f"{low:.3g} to {high:.3g}"
