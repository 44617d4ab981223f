"""A progress bar where there is a terminal to draw it on, and silence elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")


def on_terminal() -> bool:
    """Whether a bar would be seen."""
    return Console(stderr=True).is_terminal


def counted(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """The same items, with a bar that counts them while they are consumed."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not on_terminal(), transient=True) as progress:
        bar = progress.add_task(what, total=total)
        for item in items:
            yield item
            progress.advance(bar)
