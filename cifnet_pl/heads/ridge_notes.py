"""Write the notes for users about the ridges that generalised cross-validation chose."""

from __future__ import annotations

from collections.abc import Sequence

from cifnet_pl.statistics import Choice

JUMP = 100.0
"""Factor between the ridges before and after a lesson from which a note is written."""

REMARKS = {
    "smallest": "note: the classes are told apart without any error, as happens where photos are copies of each other: "
    "look for those (the ridge is at the lower edge of its grid, {})",
    "largest": "note: the photos are too few, or nothing in them tells their classes apart: add more, and look whether "
    "they are in the right folders (the ridge is at the upper edge of its grid, {})",
}
"""What is said of a ridge at an edge of the grid. One at its cap is usual where photos are few, all distinct and easy,
so that it is told only where many photos are near-copies."""


def at_cap(choices: Sequence[Choice]) -> bool:
    """Return whether a ridge that generalised cross-validation chose is at its cap."""
    return any(choice.place == "cap" for choice in choices)


def about_choices(choices: Sequence[Choice]) -> dict[str, str]:
    """Return notes on ridges that lie at the edge of what generalised cross-validation may choose.

    Args:
        choices: ridges, and where they lie.

    Returns:
        Where → sentence, for each edge that occurs.
    """
    ridges_of: dict[str, list[float]] = {}
    for choice in choices:
        if choice.place in REMARKS:
            ridges_of.setdefault(choice.place, []).append(choice.ridge)
    return {remark: REMARKS[remark].format(_shown(ridges)) for remark, ridges in ridges_of.items()}


def about_lesson(before: Sequence[Choice], after: Sequence[Choice]) -> list[str]:
    """Return notes on the ridges after a lesson, and on how much it changed them.

    Args:
        before: the choices before the lesson.
        after: the choices after it, in the same order.
    """
    jump = about_jump(before, after)
    return [*about_choices(after).values(), *([jump] if jump else [])]


def about_jump(before: Sequence[Choice], after: Sequence[Choice]) -> str | None:
    """Return a note if a ridge grew or shrank by more than a factor of ``JUMP``; else None.

    Args:
        before: the choices before a lesson.
        after: the choices after it, in the same order.
    """
    pairs = [(old.ridge, new.ridge) for old, new in zip(before, after, strict=False) if old.ridge > 0 < new.ridge]
    old, new = max(pairs, key=lambda pair: max(pair[1] / pair[0], pair[0] / pair[1]), default=(1.0, 1.0))
    if max(new / old, old / new) <= JUMP:
        return None
    return (
        "note: these photos change the model as much as if they were unlike all those before, or copies of each other: "
        f"look at them (the ridge went from {old:.3g} to {new:.3g})"
    )


def _shown(ridges: list[float]) -> str:
    low, high = min(ridges), max(ridges)
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
