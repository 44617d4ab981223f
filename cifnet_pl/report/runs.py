"""Read run folders: complete ones as :class:`Run`, and for all others the reason why they are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cifnet_pl.report.answers import answers_of
from cifnet_pl.report.run_files import (
    ACTIVATIONS,
    ANSWER_SETS,
    read_activations,
    read_answer_sets,
    read_config,
    read_rows,
    read_summary,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import printable

POINT = "point.yaml"
"""Configuration of a sweep's point, in its experiment's folder."""
FAILURE = "failure.txt"
"""Why a point failed the last time, beside it."""
FILES = ("config.yaml", "tasks.csv", "summary.json")


@dataclass(frozen=True)
class Run:
    """One complete run: its configuration, its summary and its rows, as the run's folder holds them.

    Attributes:
        folder: where it was read from.
        config: content of ``config.yaml``.
        summary: content of ``summary.json``.
        classes_seen: number of classes after each task.
        activations: ``activations.csv`` if the run recorded it: row i, column j is the mean over the test images
            of task i of the largest activation among the neurons of task j.
        answer_sets: class → percent of its test images that have it among the answers at 95 %, and their mean number
            of answers, if the run is calibrated.
        answers: its ``predictions.parquet`` if it kept its predictions.
        doubts: sentences about what of it is not shown.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    classes_seen: tuple[int, ...]
    activations: tuple[tuple[float | None, ...], ...] | None = None
    answer_sets: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    answers: Path | None = None
    doubts: tuple[str, ...] = ()

    @property
    def seed(self) -> int | None:
        """Seed of the buffer and the projections."""
        seed = self.config.get("seed_everything")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else self.summary.get("seed")


def find_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Find all run folders at or below some paths: folders with one of a run's files or checkpoints.

    Args:
        paths: folders.

    Returns:
        The run folders, sorted, each once.

    Raises:
        UsageError: a path that does not exist.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise UsageError(f"no folder {path}: give run folders, or folders that hold them")
        inner = (entry for entry in path.rglob("*") if entry.is_dir())
        for folder in [path, *inner]:
            if any((folder / name).is_file() for name in FILES) or (folder / "checkpoints").is_dir():
                folders.setdefault(folder.resolve(), folder)
    return sorted(folders.values(), key=lambda folder: [natural(component) for component in folder.parts])


def natural(name: str) -> tuple[str, int]:
    """Return the sort key that puts version_10 after version_9."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1


def read_run(folder: Path) -> Run:
    """Read one run's folder.

    Args:
        folder: of the run.

    Raises:
        DataError: the run is not complete, or a file of it is damaged; the sentence says which.
    """
    summary, doubtful = read_summary(folder / "summary.json")
    config = read_config(folder / "config.yaml")
    rows = read_rows(folder / "tasks.csv")
    tasks, trajectory = summary["n_tasks"], summary["A_k"]
    if not len(rows) == tasks == len(trajectory):
        raise DataError(f"{folder}: tasks.csv has {len(rows)} rows, but summary.json says {tasks} tasks")
    try:
        seen = tuple(int(row["classes_seen"]) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: tasks.csv is damaged, a row has no number of classes") from error
    if seen[-1] != summary["n_classes"]:
        raise DataError(f"{folder}: tasks.csv ends with {seen[-1]} classes, summary.json with {summary['n_classes']}")
    activations, answer_sets = read_activations(folder / ACTIVATIONS), read_answer_sets(folder / ANSWER_SETS)
    about = f"{folder}/summary.json: not finite, shown as not measured: {', '.join(doubtful)}"
    doubts = (about,) if doubtful else ()
    return Run(folder, config, summary, seen, activations, answer_sets, doubts=doubts)


def read_runs(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """Read all runs at or below some paths.

    Args:
        paths: folders.

    Returns:
        The complete runs, and a sentence for each folder, or part of a run, that is left out.

    Raises:
        UsageError: a path that does not exist.
    """
    runs, left_out = [], []
    for folder in find_folders(paths):
        try:
            run = read_run(folder)
        except DataError as error:
            left_out.append(str(error))
            continue
        left_out += run.doubts
        try:
            runs.append(replace(run, answers=answers_of(folder)))
        except DataError as error:  # the rest of the run is whole
            left_out.append(str(error))
            runs.append(run)
    return runs, list(dict.fromkeys(left_out))


def at_one_place(runs: Sequence[Run]) -> list[Run]:
    """Let runs whose data have the same fingerprint say the same folder of data: that of the first of them.

    On another machine the same photos are in another folder, which makes no other configuration.

    Args:
        runs: complete runs.
    """
    roots: dict[str, Any] = {}
    placed = []
    for run in runs:
        root, mark = run.config["data"].get("root"), run.summary.get("data_fingerprint")
        common = roots.setdefault(str(mark), root) if root is not None and mark else root
        config = {**run.config, "data": {**run.config["data"], "root": common}}
        placed.append(run if common == root else replace(run, config=config))
    return placed


@dataclass(frozen=True)
class MissingPoint:
    """A point of a sweep that has no complete run, and why, as far as the sweep knows."""

    folder: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.reason}"


def find_missing(paths: Iterable[str | Path]) -> list[MissingPoint]:
    """Find the points of sweeps that have no complete run.

    Args:
        paths: folders.

    Returns:
        The points at or below the paths, sorted by name.
    """
    missing = {}
    for path in map(Path, paths):
        # A run's own folder belongs to a point too, but then the user asked for that run alone.
        for file in path.rglob(POINT):
            folder = file.parent
            if not any(is_complete(version) for version in versions(folder)):
                missing[folder.resolve()] = MissingPoint(folder, _reason(folder))
    return sorted(missing.values(), key=lambda point: [natural(component) for component in point.folder.parts])


def _reason(folder: Path) -> str:
    failure = folder / FAILURE
    if failure.is_file():
        return printable(failure.read_text(encoding="utf-8", errors="replace").strip())
    return "begun, but not finished" if versions(folder) else "not run yet"


def is_complete(folder: Path) -> bool:
    """Return whether ``folder`` holds a complete run."""
    try:
        read_run(folder)
    except DataError:
        return False
    return True
