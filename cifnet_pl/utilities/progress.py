"""Draw a progress bar if there is a terminal, else nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def on_terminal() -> bool:
    """Return whether a bar would be seen."""
    return Console(stderr=True).is_terminal


def counted(items: Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Yield the same items, with a bar that counts them while they are consumed.

    Args:
        items: what to iterate over.
        description: the words in front of the bar.
        total: number of items.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not on_terminal(), transient=True) as progress:
        bar = progress.add_task(description, total=total)
        for item in items:
            yield item
            progress.advance(bar)
