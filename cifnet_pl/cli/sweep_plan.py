"""Print what a sweep is going to run, and how long that will take."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from cifnet_pl.cli.estimates import Cost, cost_of, estimate, estimate_from_steps, estimate_running, tasks_learned, total
from cifnet_pl.cli.grid import Point, value_at
from cifnet_pl.report.runs import is_complete, read_run
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import number_of

PAUSE = 0.5
"""Seconds between two looks at a point that is running."""


def complete_run(folder: Path) -> Path | None:
    """Return the newest whole run of an experiment."""
    return next((path for path in reversed(versions(folder)) if is_complete(path)), None)


def result_of(run: Path) -> str:
    """Return the final accuracy of a run in words."""
    final = read_run(run).summary["A_K"]
    return "A_K not measured" if final is None else f"A_K {final:.1f} %"


def left_out_overrides(overrides: Sequence[tuple[str, str]], points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that some points do not have, and for each setting that some keep.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = _kept_settings(points)
    for name, _ in overrides:
        fitting = [point for point in points if name not in (*point.unfit, *point.kept)]
        if not fitting and any(name in point.kept for point in points):
            raise UsageError(f"--{name} fits no point, leave it out: the sweep keeps what its own file says")
        if not fitting:
            raise UsageError(f"--{name} fits no point: none of their classes has such an option")
        others = dict.fromkeys(_labels_of(point) for point in points if name in point.unfit)
        if others:
            sentences.append(f"--{name} is for {len(fitting)} of {len(points)} points, not for: {'; '.join(others)}")
    return sentences


def _kept_settings(points: Sequence[Point]) -> list[str]:
    """Return which points keep which settings against the overrides: a sentence for all of a part that are alike."""
    shared = {label for point in points if not point.kept for label in point.labels.values()}
    keeping: dict[tuple[str, str, str], dict[str, None]] = {}
    for point in points:
        own = [f"{name} {value}" for name in point.kept if (value := value_at(point.config, name)) is not None]
        if point.kept:
            part = f"{point.labels['part']}: " if "part" in point.labels else ""
            given = ", ".join(f"--{name}" for name in point.kept)
            named = [label for axis, label in point.labels.items() if axis != "seed" and label not in shared]
            name = " ".join(named) or _labels_of(point)
            keeping.setdefault((part, ", ".join(own) or "their own settings", given), {})[name] = None
    return [
        f"{part}{', '.join(names)} keep {own}; the command line holds for the others ({given})"
        for (part, own, given), names in keeping.items()
    ]


def _labels_of(point: Point) -> str:
    return " ".join(label for axis, label in point.labels.items() if axis != "seed") or point.name


def print_plan(
    console: Console, placed: Sequence[tuple[Point, Path]], left: Sequence[tuple[Point, Path]], whole: bool
) -> None:
    """Print how long the points that are left will take.

    Args:
        console: to print on.
        placed: all points, with their folders.
        left: those that are not complete.
        whole: whether to print what is known of each point as well.
    """
    ran = costs_of(placed)
    expected = {point.identity: estimate(point, folder, ran) for point, folder in left}
    for point, folder in placed if whole else ():
        if point.identity in expected:
            cost = expected[point.identity]
            state = "begun" if versions(folder) else "not run yet"
            said = f"{state}, {total([cost])}" if cost else state
        else:
            run = complete_run(folder)
            said = f"complete already, {result_of(run)}" if run else "complete already"
        console.print(f"{folder.name}: {said}", markup=False)
    if left:
        console.print(f"{len(left)} to run: {total(list(expected.values()))}", markup=False)
    else:
        console.print("all are complete")


def costs_of(placed: Sequence[tuple[Point, Path]]) -> list[tuple[Point, Cost]]:
    """Return what each point took that is complete."""
    runs = [(point, folder, complete_run(folder)) for point, folder in placed]
    return [(point, cost_of(folder, run)) for point, folder, run in runs if run is not None]


@contextmanager
def early_estimate(console: Console, folder: Path, same: int, others: Sequence[Cost | None] = ()) -> Iterator[None]:
    """Print an estimate as soon as the point that runs meanwhile has learned a task.

    If the task takes long, print one already after its first steps.

    Args:
        console: what to print on.
        folder: experiment of the point.
        same: number of points that are left of its configuration, this one among them: they take as long.
        others: estimates of the other points that are left.
    """
    start, before, over = time.monotonic(), tasks_learned(folder), threading.Event()

    def say(cost: Cost, first: str) -> None:
        left = [*[cost] * same, *others]
        every = f"; {len(left)} to run: {total(left)}" if len(left) > 1 else ""
        after = f"after its first {first} ({number_of(cost.tasks, 'task')} in all)"
        console.print(f"{folder.name}: {after} expected to take {total([cost])}{every}", markup=False)

    def watch() -> None:
        early = None
        while not over.wait(PAUSE):
            cost = estimate_running(folder, time.monotonic() - start, before)
            if cost is not None:
                say(cost, "task")
                return
            if early is None and not before and (early := estimate_from_steps(folder)) is not None:
                say(early, "steps")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
