"""Read run folders: complete ones as :class:`Run`, and for all others the reason why they are left out."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import printable

ACTIVATIONS = "activations.csv"
POINT = "point.yaml"
"""Configuration of a sweep's point, in its experiment's folder."""
FAILURE = "failure.txt"
"""Why a point failed the last time, beside it."""
FILES = ("config.yaml", "tasks.csv", "summary.json")
NEEDED = ("A_K", "A_bar", "A_k", "n_tasks", "n_classes", "head", "train_seconds", "energy_kwh", "state_elements")


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
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    classes_seen: tuple[int, ...]
    activations: tuple[tuple[float | None, ...], ...] | None = None

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
    # version_10 after version_9
    return sorted(folders.values(), key=lambda folder: [_natural(component) for component in folder.parts])


def _natural(name: str) -> tuple[str, int]:
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
    summary = _summary(folder)
    config = _config(folder / "config.yaml")
    rows = _rows(folder / "tasks.csv")
    tasks, trajectory = summary["n_tasks"], summary["A_k"]
    if not isinstance(trajectory, list) or not len(rows) == tasks == len(trajectory) > 0:
        raise DataError(f"{folder}: tasks.csv has {len(rows)} rows, but summary.json says {tasks} tasks")
    try:
        seen = tuple(int(row["classes_seen"]) for row in rows)
        activations = _activations(folder / ACTIVATIONS)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: a table is damaged ({error})") from error
    return Run(folder, config, summary, seen, activations)


def read_runs(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """Read all runs at or below some paths.

    Args:
        paths: folders.

    Returns:
        The complete runs, and a sentence for each folder that is left out.

    Raises:
        UsageError: a path that does not exist.
    """
    runs, left_out = [], []
    for folder in find_folders(paths):
        try:
            runs.append(read_run(folder))
        except DataError as error:
            left_out.append(str(error))
    return runs, left_out


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
    return sorted(missing.values(), key=lambda point: [_natural(component) for component in point.folder.parts])


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


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    if not path.is_file():
        raise DataError(f"{folder}: no summary.json, the run did not finish")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{path} is not a run's summary: it lacks {missing[0]}")
    return dict(content)


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path.parent}: no config.yaml, so its settings are not known")
    try:
        content = read_yaml(path)
    except UsageError as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("data"), dict):
        raise DataError(f"{path} is not a run's configuration: it has no section data")
    return content


def _rows(path: Path) -> list[Mapping[str, str]]:
    if not path.is_file():
        raise DataError(f"{path.parent}: no tasks.csv, the run did not finish its first task")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _activations(path: Path) -> tuple[tuple[float | None, ...], ...] | None:
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        body = list(csv.reader(file))[1:]
    return tuple(tuple(float(cell) if cell else None for cell in row[1:]) for row in body)
