"""Estimate how long the remaining points of a sweep will take, from those that ran and from the one that is running."""

from __future__ import annotations

import csv
import json
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cifnet_pl.cli.grid import Point
from cifnet_pl.report.runs import read_run
from cifnet_pl.utilities.files import write_json
from cifnet_pl.utilities.run_folders import versions

LOG = "output.log"
"""What the processes of a point wrote, in its experiment's folder."""
PROGRESS = re.compile(r"^(?:task|step) \d+/(\d+):", re.MULTILINE)
"""What a run says after each task; the number of all tasks is in no other file of a run that is not complete."""
STEPS = re.compile(r"^task 1/(\d+): (\d+) of (\d+) steps took ([\d.]+) s(?:, ([\d.e+-]+) kWh)?$", re.MULTILINE)
"""What a run says once of the first steps of its first task, if these take long."""
ELAPSED = "elapsed.json"
"""Seconds that the processes of a point took, all attempts together, in its experiment's folder."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a whole process, and kWh of learning and evaluation; None where the energy is not known."""

    seconds: float
    kwh: float | None
    tasks: int


def elapsed(folder: Path) -> float | None:
    """Return the seconds that a point's processes took so far; None if no sweep has run it."""
    try:
        content = json.loads((folder / ELAPSED).read_text(encoding="utf-8"))
        return float(content["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def add_elapsed(folder: Path, seconds: float) -> None:
    """Add the time of one attempt to the file of a point."""
    write_json(folder / ELAPSED, {"seconds": (elapsed(folder) or 0.0) + seconds})


def cost_of(folder: Path, run: Path) -> Cost:
    """Return what a point took: the time of its processes, or of its run if no sweep has run it.

    Args:
        folder: of the point's experiment.
        run: folder of its run.
    """
    summary = read_run(run).summary
    measured = summary["train_seconds"] + (summary.get("eval_seconds") or 0.0)
    parts = [summary.get("energy_kwh"), summary.get("eval_energy_kwh")]
    kwh = sum(component for component in parts if component is not None) if parts[0] is not None else None
    return Cost(max(elapsed(folder) or 0.0, measured), kwh, summary["n_tasks"])


def estimate(point: Point, folder: Path, ran: Sequence[tuple[Point, Cost]]) -> Cost | None:
    """Estimate what is left of a point: the mean of its other seeds, less the tasks that it has learned already.

    Other configurations say nothing about it: a frozen network takes minutes where a trained one takes hours.

    Args:
        point: of the sweep.
        folder: of its experiment.
        ran: points that ran, and what they took.

    Returns:
        None if no other seed of the same configuration has run.
    """
    method = point.method
    same = [cost for other, cost in ran if other.method == method]
    if not same:
        return None
    tasks = max(cost.tasks for cost in same)
    left = max(0.0, 1 - tasks_learned(folder) / tasks)
    energies = [cost.kwh for cost in same if cost.kwh is not None]
    kwh = left * statistics.fmean(energies) if energies else None
    return Cost(left * statistics.fmean(cost.seconds for cost in same), kwh, tasks)


def estimate_running(folder: Path, seconds: float, before: int = 0) -> Cost | None:
    """Estimate what the point that is running takes in all, from the tasks that it has learned so far.

    Args:
        folder: its experiment.
        seconds: since its process was started.
        before: number of tasks that earlier processes of it had learned.

    Returns:
        The cost of a whole run, or None as long as this process has learned no task.
    """
    rows = _rows(folder)
    said = PROGRESS.findall((folder / LOG).read_text(encoding="utf-8", errors="replace")) if len(rows) > before else []
    if not said:
        return None
    tasks = int(said[-1])
    each = [float(row["train_seconds"]) + float(row["eval_seconds"] or 0.0) for row in rows]
    energies = [float(row["energy_kwh"]) + float(row["eval_energy_kwh"] or 0.0) for row in rows if row["energy_kwh"]]
    beginning = max(0.0, seconds - sum(each[before:]))
    kwh = tasks * statistics.fmean(energies) if energies else None
    return Cost(beginning + tasks * statistics.fmean(each), kwh, tasks)


def estimate_from_steps(folder: Path) -> Cost | None:
    """Estimate what the point that is running takes in all, from the first steps of its first task.

    Every task is expected to take as long as the first one.

    Args:
        folder: its experiment.

    Returns:
        The cost of a whole run, or None as long as it has said nothing of its steps.
    """
    try:
        said = STEPS.findall((folder / LOG).read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:  # its process has not started yet
        return None
    if not said:
        return None
    tasks, done, steps, seconds, kwh = said[-1]
    whole = int(tasks) * int(steps) / int(done)
    return Cost(whole * float(seconds), whole * float(kwh) if kwh else None, int(tasks))


def total(costs: Sequence[Cost | None]) -> str:
    """Return a sentence about the sum of estimates, with the number of points that have none."""
    known = [cost for cost in costs if cost is not None]
    if not known:
        return "no estimate yet: none of these configurations has run; the sweep gives one after a first task of each"
    energies = [cost.kwh for cost in known if cost.kwh is not None]
    energy = f", {sum(energies):.2g} kWh" if energies else ", energy not measured"
    without = len(costs) - len(known)
    more = f" for {len(known)} of them; {without} without an estimate, as no other seed has run" if without else ""
    return f"{duration(sum(cost.seconds for cost in known))}{energy}{more}"


def duration(seconds: float) -> str:
    """Format seconds as seconds, minutes or hours.

    Example:
        >>> duration(42), duration(600), duration(7200)
        ('42 s', '10 min', '2.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def tasks_learned(folder: Path) -> int:
    """Return the number of tasks in the newest run of an experiment."""
    return len(_rows(folder))


def _rows(folder: Path) -> list[dict[str, str]]:
    for version in reversed(versions(folder)):
        try:
            with (version / "tasks.csv").open(newline="", encoding="utf-8") as file:
                return list(csv.DictReader(file))
        except OSError:
            continue
    return []
