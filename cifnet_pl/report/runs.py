"""Read run folders: complete ones as :class:`Run`; for others, the reason why not."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import Field, TypeAdapter, ValidationError

from cifnet_pl.model.bundle import Number, StoredRecord
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.run_folders import FAILURE, POINT, versions
from cifnet_pl.utilities.text import first_line, printable

FILES = {
    "summary.json": "the run did not finish",
    "config.yaml": "so its settings are not known",
    "tasks.csv": "the run did not finish its first task",
}
"""File that a complete run has → what it means if it is not there."""

MEASURED = (
    "A_K", "A_bar", "forgetting", "bwt", "forward_transfer", "max_drop", "top5", "ece", "nll",
    "epochs", "set_size", "set_coverage", "known_rejected", "unknown_auroc", "unknown_fpr95",
    "train_seconds", "energy_kwh", "A_K_per_kwh", "co2_kg", "backbone_params", "network_params",
)  # fmt: skip
"""Keys of ``summary.json`` with a number, or null where it was not measured, that reports use."""


class SummaryTable(StoredRecord):
    """Fields of ``summary.json`` that reports use, besides measurements."""

    A_k: list[Number | None] = Field(min_length=1)
    n_tasks: int = Field(ge=1)
    n_classes: int = Field(ge=1)
    head: str
    title: str | None = None
    defaults: dict[str, Any] | None = None
    seed: int | None = None
    head_settings: dict[str, Any] | None = None
    learned_images: int | None = None
    buffer_settings: dict[str, Any] | None = None
    state_components: dict[str, Number | None] | None = None
    state_bytes_per_element: dict[str, Number | None] | None = None
    cached_images: int | None = None
    backbone: str | None = None
    machine: str | None = None
    device: str | None = None
    energy_source: str | None = None
    energy_counts_other_processes: bool | None = None
    threads: int | None = None
    cores: int | None = None


class DataSection(StoredRecord):
    """Fields of the section ``data`` of ``config.yaml`` that reports use."""

    source: str = "folder"
    root: str | None = None
    classes_per_task: int | list[int] | None = None
    initial_classes: int | None = None
    image_size: int | None = None
    tune: Number | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """One complete run: its configuration, its summary and its rows, as its folder holds them.

    Attributes:
        folder: where it was read from.
        config: content of ``config.yaml``.
        summary: content of ``summary.json``.
        classes_seen: number of classes after each task.
        activations: (K, K) ``activations.csv`` if the run recorded it: row i, column j is the mean
            over the test images of task i of the largest activation among the neurons of task j.
        predictions: its ``predictions.parquet`` if it kept one.
    """

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    classes_seen: tuple[int, ...]
    activations: np.ndarray | None = None
    predictions: Path | None = None

    @property
    def seed(self) -> int | None:
        """Seed of the buffer and the projections."""
        seed = self.config.get("seed_everything")
        if isinstance(seed, int) and not isinstance(seed, bool):
            return seed
        return self.summary.get("seed")


def read_run(folder: Path) -> Run:
    """Read one run's folder.

    Args:
        folder: of the run.

    Raises:
        DataError: the run is not complete, or a file of it is damaged; the sentence says which.
    """
    for name, meaning in FILES.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder}: no {name}, {meaning}")
    with reading(folder / "summary.json") as path:
        text = path.read_text(encoding="utf-8")
        summary = json.loads(text)
        SummaryTable.model_validate(summary)
        measured = {}
        for key in MEASURED:
            measured[key] = summary.get(key)
        TypeAdapter(dict[str, Number | None]).validate_python(measured)
    with reading(folder / "config.yaml") as path:
        config = read_yaml(path)
        if not isinstance(config, dict) or not isinstance(config.get("data"), dict):
            raise DataError(
                f"{path} is not a run's configuration: it has no section data"
            )
        DataSection.model_validate(config["data"])
    with reading(folder / "tasks.csv") as path:
        rows = pd.read_csv(path)
        n_tasks = summary["n_tasks"]
        n_classes = summary["n_classes"]
        if not len(rows) == n_tasks == len(summary["A_k"]):
            raise DataError(
                f"{path} has {len(rows)} rows, but summary.json says {n_tasks} tasks"
            )
        seen = tuple(int(count) for count in rows["classes_seen"])
        if seen[-1] != n_classes:
            raise DataError(
                f"{path} ends with {seen[-1]} classes, summary.json with {n_classes}"
            )
    activations = None
    with reading(folder / "activations.csv") as path:
        if path.is_file():
            table = pd.read_csv(path, index_col=0)
            activations = table.to_numpy(float)
    return Run(folder, config, summary, seen, activations)


@contextmanager
def reading(path: Path) -> Iterator[Path]:
    """Raise DataError that names the file if it cannot be read or understood within the block."""
    try:
        yield path
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        names = [printable(str(key))[:60] for key in first["loc"]]
        entry = ".".join(names)
        message = first["msg"].replace("Input should", "should")
        raise DataError(f"{path} is damaged: {entry} {message}") from error
    except (
        ValueError,
        KeyError,
        TypeError,
        OSError,
        RecursionError,
        UsageError,
    ) as error:
        reason = first_line(error)
        raise DataError(f"{path} is damaged: {reason}") from error


def is_complete(folder: Path) -> bool:
    """Return whether ``folder`` holds a complete run."""
    try:
        read_run(folder)
    except DataError:
        return False
    return True


# ---------------------------------------------------------------------- many folders


def natural_order(name: str) -> tuple[str, int]:
    """Return the sort key that puts version_10 after version_9."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    if digits:
        number = int(digits)
    else:
        number = -1
    return stem, number


def _sorted_folders(folders: Mapping[Path, Path]) -> list[Path]:
    """Return the folders in natural order, each once however it was reached."""
    return sorted(folders.values(), key=_path_order)


def _path_order(path: Path) -> list[tuple[str, int]]:
    return [natural_order(part) for part in path.parts]


def find_folders(paths: Iterable[str | Path]) -> list[Path]:
    """Find all run folders at or below some paths.

    A run folder has one of a run's files, or a folder ``checkpoints``.

    Args:
        paths: folders; files among them are passed over.

    Returns:
        The run folders, sorted, each once.

    Raises:
        UsageError: a path that does not exist.
    """
    folders: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UsageError(
                f"no folder {path}: give run folders, or folders that hold them"
            )
        for folder in [path, *path.rglob("*")]:
            has_file = any((folder / name).is_file() for name in FILES)
            if has_file or (folder / "checkpoints").is_dir():
                folders.setdefault(folder.resolve(), folder)
    return _sorted_folders(folders)


def read_runs(paths: Sequence[str | Path]) -> tuple[list[Run], list[str]]:
    """Read all runs at or below some paths.

    Args:
        paths: folders.

    Returns:
        The complete runs, and a sentence for each path, folder, or part of a run, that is left out.

    Raises:
        UsageError: a path that does not exist.
    """
    runs = []
    left_out = []
    for path in map(Path, paths):
        if path.is_file():
            left_out.append(f"{path} is a file, not a folder of runs")
    for folder in find_folders(paths):
        try:
            run = read_run(folder)
        except DataError as error:
            left_out.append(str(error))
            continue
        predictions = folder / "predictions.parquet"
        try:
            if predictions.exists():
                correct_predictions(predictions)
                run = replace(run, predictions=predictions)
        except DataError as error:  # the rest of the run is complete
            left_out.append(str(error))
        runs.append(run)
    return runs, list(dict.fromkeys(left_out))


def find_missing(paths: Iterable[str | Path]) -> list[str]:
    """Find the points of sweeps that have no complete run.

    Args:
        paths: folders.

    Returns:
        A sentence for each point at or below the paths, sorted by name: why there is no run, as far
        as is known.
    """
    # A run's own folder belongs to a point too, but then the user asked for that run alone.
    points: dict[Path, Path] = {}
    for path in map(Path, paths):
        for file in path.rglob(POINT):
            points[file.parent.resolve()] = file.parent
    missing = []
    for folder in _sorted_folders(points):
        started = versions(folder)
        if any(is_complete(version) for version in started):
            continue
        failure = folder / FAILURE
        if failure.is_file():
            text = failure.read_text(encoding="utf-8", errors="replace")
            reason = printable(text.strip())
        elif started:
            reason = "started, but not finished"
        else:
            reason = "not run yet"
        missing.append(f"{folder.name}: {reason}")
    return missing


def with_common_root(runs: Sequence[Run]) -> list[Run]:
    """Give runs on the same data the same folder of data in their configuration.

    On another machine the same images are in another folder, which makes no other configuration.
    Runs whose data have the same fingerprint get the folder of the first of them.

    Args:
        runs: complete runs.
    """
    roots: dict[str, Any] = {}
    changed = []
    for run in runs:
        data = run.config["data"]
        root = data.get("root")
        fingerprint = run.summary.get("data_fingerprint")
        if root is not None and fingerprint:
            known_as = str(fingerprint)
            root = roots.setdefault(known_as, root)
        own_data = {**data, "root": root}
        config = {**run.config, "data": own_data}
        changed.append(replace(run, config=config))
    return changed


# ---------------------------------------------------------------------- predictions


@lru_cache(maxsize=64)
def correct_predictions(path: Path) -> pd.Series:
    """Return which test images a run predicted correctly after its last task.

    Args:
        path: its ``predictions.parquet``.

    Returns:
        (n,) bool, with the label and the name of each image as index.

    Raises:
        DataError: the file is damaged, or pyarrow, which reads it, is not installed.
    """
    if find_spec("pyarrow") is None:
        raise DataError(
            "no run is compared over its test images: that needs pyarrow (pip install"
            " 'cifnet_pl[tables]')"
        )
    from pyarrow import ArrowException

    try:
        columns = ["task", "label", "image", "top_1"]
        rows = pd.read_parquet(path, columns=columns)
    except (ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} is damaged, so its run is not compared over test images"
        ) from error
    last_task = rows["task"].max()
    of_last_task = rows[rows["task"] == last_task]
    last = of_last_task.drop_duplicates(["label", "image"])
    correct = last["label"] == last["top_1"]
    images = pd.MultiIndex.from_frame(last[["label", "image"]])
    return correct.set_axis(images)


def paired_predictions(a: Path, b: Path) -> pd.DataFrame:
    """Return whether two runs are correct on the test images that both have.

    Args:
        a, b: their ``predictions.parquet``.

    Returns:
        (n, 2) bool with the columns ``a`` and ``b``, a row for each image.
    """
    series = [correct_predictions(a), correct_predictions(b)]
    return pd.concat(series, axis=1, join="inner", keys=["a", "b"])
