"""Read run folders: complete ones as :class:`Run`; for others, the reason why not."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from cifnet_pl.learning.columns import COLUMNS, custom_column
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.run_folders import FAILURE, POINT
from cifnet_pl.utilities.text import printable

NUMBERS = tuple(column.run for column in COLUMNS if column.tables)
"""Keys of ``summary.json`` that reports tabulate: a number, or null if not measured."""


Row = dict[str, Any]
"""A row of results, by its columns."""

Settings = dict[str, Any]
"""Dotted name of each setting → its value."""


@dataclass(frozen=True, eq=False)
class Run:
    """One complete run, as its folder holds it.

    Attributes:
        folder: where it was read from.
        config: content of ``config.yaml``.
        summary: content of ``summary.json``.
        tasks: content of ``tasks.csv``: a row for each task.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    tasks: pd.DataFrame


def read_run(folder: Path) -> Run:
    """Read one run's folder.

    Args:
        folder: of the run.

    Raises:
        DataError: the run is not complete, or a file of it is damaged.
    """
    path = folder / "summary.json"
    if not path.exists():
        raise DataError(f"{folder} has no summary.json: the run has not finished")
    with explained(DataError, f"{folder} is damaged"):
        summary = json.loads(path.read_text(encoding="utf-8"))
        for name, value in summary.get("metrics", {}).items():
            summary[custom_column(name).run] = value
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        summary["head"]
        config["data"]["source"]
        model = config.get("model") or {}
        config["model"] = model | {"init_args": model.get("init_args") or {}}
        tasks = pd.read_csv(folder / "tasks.csv")
        tasks = tasks.astype({"task": int, "classes_seen": int, "A_k": float})
    return Run(folder, config, summary, tasks)


# ---------------------------------------------------------------------- many folders


def natural_order(text: str) -> str:
    """Return the sort key that puts version_10 after version_9.

    Example:
        >>> sorted(["run_10", "run_9"], key=natural_order)
        ['run_9', 'run_10']
    """
    return re.sub(r"\d+", lambda digits: digits.group().zfill(20), text)


def find_folders(paths: Iterable[Path]) -> list[Path]:
    """Find all run folders at or below some paths, in natural order, each once.

    A run folder has one of a run's files, or a folder ``checkpoints``.

    Args:
        paths: folders; files among them are passed over.

    Raises:
        UsageError: a path that does not exist.
    """
    marks = ("summary.json", "config.yaml", "tasks.csv", "checkpoints")
    folders: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise UsageError(
                f"no folder {path}: give run folders, or folders that hold them"
            )
        for folder in [path, *path.rglob("*")]:
            if any((folder / mark).exists() for mark in marks):
                folders.setdefault(folder.resolve(), folder)
    return sorted(folders.values(), key=lambda folder: natural_order(str(folder)))


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read all runs at or below some paths.

    Args:
        paths: folders.

    Returns:
        The complete runs, and a sentence for each path or folder that is left out.

    Raises:
        UsageError: a path that does not exist.
    """
    runs = []
    left_out = [
        f"{path} is a file, not a folder of runs" for path in paths if path.is_file()
    ]
    for folder in find_folders(paths):
        try:
            runs.append(read_run(folder))
        except DataError as error:
            left_out.append(str(error))
    return runs, left_out


def find_missing(paths: Iterable[Path], complete: Iterable[Run]) -> list[str]:
    """Find the points of sweeps that have no complete run.

    Args:
        paths: folders.
        complete: all complete runs at or below them.

    Returns:
        A sentence for each point below the paths: why there is no run, as far as is known.
    """
    # A run's own folder belongs to a point too, but then the user asked for that run alone.
    done = {run.folder.resolve().parent for run in complete}
    missing = set()
    for path in paths:
        for point in path.rglob(POINT):
            folder = point.parent
            failure = folder / FAILURE
            reason = "not finished"
            if failure.is_file():
                reason = failure.read_text(encoding="utf-8", errors="replace").strip()
            if folder.resolve() not in done:
                missing.add(f"{folder.name}: {printable(reason)}")
    return sorted(missing, key=natural_order)
