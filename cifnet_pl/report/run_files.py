"""Read the files of a run's folder that reports use, and check them: a file that is damaged is said in one sentence."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from cifnet_pl.model.description import Number, Table
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import read_yaml
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
