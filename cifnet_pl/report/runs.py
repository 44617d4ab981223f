"""Read run folders: complete ones as :class:`Run`, and for all others the reason why they are left out."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from cifnet_pl.model.description import Number, Table
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.run_folders import versions
from cifnet_pl.utilities.text import first_line, printable

ACTIVATIONS, ANSWER_SETS = "activations.csv", "answer_sets.csv"
MEASURED = (
    "A_K", "A_bar", "forgetting", "bwt", "forward_transfer", "max_drop", "top5", "ece", "nll", "epochs",
    "set_size", "set_coverage", "called_unknown", "unknown_auroc", "unknown_fpr95",
    "train_seconds", "eval_seconds", "energy_kwh", "A_K_per_kwh", "co2_kg", "backbone_params", "state_elements",
    "buffer_elements",
)  # fmt: skip
"""Keys of ``summary.json`` that have a number, or null where something was not measured."""

NEEDED = ("A_K", "A_bar", "A_k", "n_tasks", "n_classes", "head", "train_seconds", "energy_kwh", "state_elements")


class SummaryTable(Table):
    """What reports use of ``summary.json`` besides the numbers that were measured."""

    A_k: list[Number | None] = Field(min_length=1)
    n_tasks: int = Field(ge=1)
    n_classes: int = Field(ge=1)
    head: str
    seed: int | None = None
    head_settings: dict[str, Any] | None = None
    buffer_settings: dict[str, Any] | None = None
    state_components: dict[str, Number | None] | None = None
    state_bytes_per_element: dict[str, Number | None] | None = None
    cached_images: int | None = None
    image_size: int | None = None
    backbone: str | None = None
    machine: str | None = None
    device: str | None = None
    energy_source: str | None = None
    threads: int | None = None
    cores: int | None = None


class DataSection(Table):
    """What reports use of the section ``data`` of ``config.yaml``."""

    source: str = "folder"
    root: str | None = None
    classes_per_task: int | list[int] | None = None
    initial_classes: int | None = None
    image_size: int | None = None
    tune: Number | None = None


def read_summary(path: Path) -> tuple[dict[str, Any], list[str]]:
    """Read ``summary.json``.

    Args:
        path: the file.

    Returns:
        Its content, with null for numbers that are not finite; and the keys of those.

    Raises:
        DataError: no such file, it is damaged, or it lacks something.
    """
    if not path.is_file():
        raise DataError(f"{path.parent}: no summary.json, the run did not finish")
    with _damaged(path):
        content = json.loads(path.read_text(encoding="utf-8"))
    missing = [key for key in NEEDED if not isinstance(content, dict) or key not in content]
    if missing:
        raise DataError(f"{path} is not a run's summary: it lacks {missing[0]}")
    doubtful = [key for key, value in content.items() if _without_infinite(value) != value]
    content = {key: _without_infinite(value) for key, value in content.items()}
    with _damaged(path):
        SummaryTable.model_validate(content)
        TypeAdapter(dict[str, Number | None]).validate_python({key: content.get(key) for key in MEASURED})
    return content, doubtful


def _without_infinite(value: Any) -> Any:
    """Return a value of a JSON file with None for NaN and infinite numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_without_infinite(item) for item in value] if isinstance(value, list) else value


def read_config(path: Path) -> dict[str, Any]:
    """Read ``config.yaml``.

    Args:
        path: the file.

    Raises:
        DataError: no such file, or it is damaged.
    """
    if not path.is_file():
        raise DataError(f"{path.parent}: no config.yaml, so its settings are not known")
    with _damaged(path):
        content = read_yaml(path)
        if not isinstance(content, dict) or not isinstance(content.get("data"), dict):
            raise DataError(f"{path} is not a run's configuration: it has no section data")
        DataSection.model_validate(content["data"])
    return content


def read_rows(path: Path) -> list[Mapping[str, str]]:
    """Read ``tasks.csv``.

    Args:
        path: the file.

    Raises:
        DataError: no such file, or it is damaged.
    """
    if not path.is_file():
        raise DataError(f"{path.parent}: no tasks.csv, the run did not finish its first task")
    with _damaged(path), path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_activations(path: Path) -> tuple[tuple[float | None, ...], ...] | None:
    """Read ``activations.csv``; None if there is none.

    Args:
        path: the file.

    Raises:
        DataError: it is damaged.
    """
    if not path.is_file():
        return None
    with _damaged(path):
        with path.open(newline="", encoding="utf-8") as file:
            body = list(csv.reader(file))[1:]
        return tuple(tuple(float(cell) if cell else None for cell in row[1:]) for row in body)


def read_answer_sets(path: Path) -> dict[str, tuple[float, float]]:
    """Read ``answer_sets.csv``: class → percent covered and mean number of answers; nothing if there is no file.

    Args:
        path: the file.

    Raises:
        DataError: it is damaged.
    """
    if not path.is_file():
        return {}
    with _damaged(path), path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        rows = [row for row in csv.DictReader(file) if row["covered"]]  # classes with test images
        return {row["class"]: (float(row["covered"]), float(row["answers"])) for row in rows}


@contextmanager
def _damaged(path: Path) -> Iterator[None]:
    """Within the block, say of a file that cannot be read or understood that it is damaged."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = ".".join(printable(str(key))[:60] for key in first["loc"])
        raise DataError(f"{path} is damaged: {entry} {first['msg'].replace('Input should', 'should')}") from error
    except (ValueError, KeyError, TypeError, OSError, RecursionError, csv.Error, UsageError) as error:
        raise DataError(f"{path} is damaged: {first_line(error)}") from error


FILE = "predictions.parquet"
NOT_INSTALLED = "no run is compared over its test images: that needs pyarrow (pip install 'cifnet_pl[tables]')"


def answers_of(folder: Path) -> Path | None:
    """Return the file with the predictions of a run; None if it did not keep them.

    Args:
        folder: of the run.

    Raises:
        DataError: the file cannot be read; the sentence says why.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    if find_spec("pyarrow") is None:
        raise DataError(NOT_INSTALLED)
    right_answers(path)
    return path


@lru_cache(maxsize=64)
def right_answers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return which test images a run named right after its last task.

    Args:
        path: its ``predictions.parquet``.

    Returns:
        (n,) identities of the images, class and name, sorted; (n,) bool.

    Raises:
        DataError: the file is damaged.
    """
    table = _last_task(path)
    names = [f"{label}\0{image}" for label, image in zip(table["label"], table["image"], strict=True)]
    identities = np.array(names, dtype=np.str_)
    right = np.array([a == b for a, b in zip(table["label"], table["top_1"], strict=True)], dtype=bool)
    order = np.argsort(identities, kind="stable")
    return identities[order], right[order]


def _last_task(path: Path) -> dict[str, list[Any]]:
    """Return the label, the image and first answer of the last task's rows; each task is a row group."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            tables = (file.read_row_group(i) for i in reversed(range(file.num_row_groups)))
            table = next((t for t in tables if len(t)), None)
        if table is None:
            return {"label": [], "image": [], "top_1": []}
        last = pc.max(table["task"]).as_py()
        table = table.filter(pc.equal(table["task"], last))
        return {name: table[name].to_pylist() for name in ("label", "image", "top_1")}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged, so its run is not compared over test images") from error


def paired(a: Path, b: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether two runs are right on the test images that both have.

    Args:
        a, b: their ``predictions.parquet``.

    Returns:
        (n,) identities of the images; (n,) bool twice, in the same order.
    """
    ours, theirs = right_answers(a), right_answers(b)
    images, i, j = np.intersect1d(ours[0], theirs[0], assume_unique=False, return_indices=True)
    return images, ours[1][i], theirs[1][j]


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
