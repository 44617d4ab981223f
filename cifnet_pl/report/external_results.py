"""Read results that were not measured here: the paper's, and those of methods run elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from cifnet_pl.model.metrics import max_drop
from cifnet_pl.utilities.errors import DataError, UsageError, explained

VARIANTS: dict[str, dict[str, Any]] = {
    "no buffer": {"buffer": None},
    "no oversampling": {"buffer.oversample": False},
    "random": {"buffer.strategy": "random"},
    "kmeans": {"buffer.strategy": "kmeans"},
    "herding": {"buffer.strategy": "herding"},
    "centroid": {"buffer.strategy": "centroid"},
}
"""Variant of CIFNet in the paper's ablations → the settings that make it."""

CLASSES = {"CIFAR-100": 100, "ImageNet-100": 100, "CORe50": 50}
"""Data set of the paper → its number of classes."""

COLUMNS = ("method", "seed", "task", "A_k", "seconds", "kWh")
"""Columns that a file of external results must have."""

PLACE_COLUMNS = ("dataset", "classes_per_task", "backbone")
"""Columns that may say which setting a method belongs to."""

SHARED_COLUMNS = (
    "dataset", "n_tasks", "n_classes", "protocol", "tune", "root", "backbone", "data", "setting",
)  # fmt: skip
"""Columns that a row shares with all rows of its setting."""


def row_of(setting: Mapping[str, Any], method: str, origin: str) -> dict[str, Any]:
    """Return the part of a row of results that says where it belongs.

    Args:
        setting: a row of a run of this package.
        method: name of the method.
        origin: "external" or "published".
    """
    row = {column: setting[column] for column in SHARED_COLUMNS}
    row |= {"origin": origin, "method": method, "label": method}
    row["variant"] = "full method"
    row |= {"config": {}, "changed": "", "components": {}, "machine": "", "pair": ""}
    row["run"] = f"{origin}: {method}, {setting['setting']}"
    return row


# ---------------------------------------------------------------------- the paper's numbers


@cache
def published_numbers() -> pd.DataFrame:
    """Return all numbers of the paper that ship with this package.

    Returns:
        A row for each with the columns table, dataset, classes_per_task (empty: any), method,
        variant, quantity, value.
    """
    with (files("cifnet_pl.report") / "published.csv").open("rb") as file:
        numbers = pd.read_csv(file, dtype=str, keep_default_na=False)
    return numbers.astype({"value": float})


def published_rows(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the paper's results of each method and variant in a setting, in the paper's order.

    There are none where only some of the data set's classes are learned, or where accuracies are
    measured on training images.

    Args:
        setting: a row of a run of this package.
    """
    numbers = published_numbers()
    n_classes = CLASSES.get(setting["dataset"])
    is_whole = setting["n_classes"] == n_classes and not setting["tune"]
    same_data = numbers["dataset"] == setting["dataset"]
    same_protocol = numbers["classes_per_task"].isin(["", setting["protocol"]])
    numbers = numbers[same_data & same_protocol & is_whole]
    is_memory = numbers["table"] == "tab:memory_breakdown"
    memory = numbers[is_memory & (numbers["quantity"] == "elements_m")]
    results = numbers[numbers["variant"].isin(["", *VARIANTS]) & ~is_memory]
    rows = []
    for (method, variant), own in results.groupby(["method", "variant"], sort=False):
        row = row_of(setting, method, "published")
        row |= dict(zip(own["quantity"], own["value"], strict=True))
        row["energy_from"] = "CodeCarbon, in the paper"
        if "params_m" in row:
            row["network_params"] = 1e6 * row["params_m"]
        if variant:
            row |= {"run": f"{row['run']}, {variant}", "variant": variant}
            row["label"] = f"{method}, {variant}"
            row["config"] = VARIANTS[variant]
            row["changed"] = next(iter(VARIANTS[variant]))
        else:
            kept = memory[memory["method"] == method].set_index("variant")["value"]
            row["state_bytes"] = 4e6 * kept.get("total", 0)  # as the paper counts
            row["components"] = (1e6 * kept.drop("total", errors="ignore")).to_dict()
        rows.append(row)
    return rows


# ---------------------------------------------------------------------- methods run elsewhere


def read_rows(path: Path) -> pd.DataFrame:
    """Return the lines of a file of external results.

    The file is CSV with the columns ``method, seed, task, A_k, seconds, kWh``: one line per task,
    tasks counted from 1, A_k in percent, seconds and kWh of that task alone. A line without a task
    holds the final accuracy and the totals of the run. Any cell but the method may be empty.
    ``dataset``, ``classes_per_task`` and ``backbone`` say where a method belongs, and are needed
    only if it fits more than one setting of the report; ``params`` is the number of parameters.

    Args:
        path: the file.

    Raises:
        UsageError: no such file.
        DataError: no CSV file, a missing column, a cell that is not a number, two lines for one
            task, or accuracies that are fractions instead of percentages.
    """
    if not path.is_file():
        raise UsageError(
            f"no file {path}: --external takes a CSV file with the columns {', '.join(COLUMNS)}"
        )
    with explained(DataError, f"{path} is not a CSV file in UTF-8"):
        rows = pd.read_csv(path, dtype=str, skipinitialspace=True, encoding="utf-8-sig")
    for column in COLUMNS:
        if column not in rows:
            raise DataError(
                f"{path} has no column {column}: it needs {', '.join(COLUMNS)}"
            )
    rows = rows.reindex(columns=[*COLUMNS, *PLACE_COLUMNS, "params"]).astype(object)
    for column in ("task", "A_k", "seconds", "kWh", "params"):
        numbers = pd.to_numeric(rows[column], errors="coerce")
        is_wrong = rows[column].notna() & ~(numbers >= 0)
        if column == "A_k":
            is_wrong |= numbers > 100
        for line, cell in rows[column][is_wrong].items():
            raise DataError(f"{path}, line {line + 2}: {column} is '{cell}'")
        rows[column] = numbers
    texts = ["method", "seed", *PLACE_COLUMNS]
    rows[texts] = rows[texts].fillna("")
    _check_lines(path, rows)
    return rows


def _check_lines(path: Path, rows: pd.DataFrame) -> None:
    """Raise DataError for two lines of one task, and for fractions."""
    twice = rows.duplicated(["method", "seed", "task", *PLACE_COLUMNS])
    for line, row in rows[twice].iterrows():
        raise DataError(
            f"{path}, line {line + 2}: {row['method']} has two lines for one task and seed"
        )
    for method, highest in rows.groupby("method")["A_k"].max().items():
        if 0 < highest <= 1:
            raise DataError(
                f"{path}: no A_k of {method} is above {highest:g}: give percentages, not fractions"
            )


def read_external(path: Path, settings: pd.DataFrame) -> list[dict[str, Any]]:
    """Read the methods of a CSV file as rows of the settings that they belong to.

    Args:
        path: the file, see :func:`read_rows`.
        settings: a row of a run for each setting of the report.

    Raises:
        UsageError: no such file, or a method that fits no setting or more than one.
        DataError: the file is not as it should be.
    """
    rows = []
    lines = read_rows(path)
    for (method, *place), own in lines.groupby(["method", *PLACE_COLUMNS], sort=False):
        setting = _setting_for(f"{path}: {method}", place, own["task"].max(), settings)
        for seed, of_seed in own.groupby("seed", sort=False):
            shared = row_of(setting, method, "external")
            shared["run"] = f"{shared['run']}, seed {seed}"
            shared |= {"seed": seed, "pair": seed}
            rows += _rows_of_seed(shared, of_seed)
    return rows


def _setting_for(
    name: str, place: Sequence[str], n_tasks: float, settings: pd.DataFrame
) -> pd.Series:
    """Return the one setting that a method's lines belong to.

    Raises:
        UsageError: none fits, or more than one.
    """
    dataset, protocol, backbone = place
    fitting = settings[settings["backbone"].str.startswith(backbone)]
    fitting = fitting[~(fitting["n_tasks"] < n_tasks)]
    for column, value in (("dataset", dataset), ("protocol", protocol)):
        if value:
            fitting = fitting[fitting[column] == value]
    if len(fitting) > 1 and n_tasks in set(fitting["n_tasks"]):
        fitting = fitting[fitting["n_tasks"] == n_tasks]
    if len(fitting) == 1:
        return fitting.iloc[0]
    known = settings["setting"] + settings["n_tasks"].map(" ({} tasks)".format)
    count = len(fitting) or "none"
    raise UsageError(
        f"{name} fits {count} of the settings of this report ({'; '.join(known)}): name one in the"
        " columns dataset, classes_per_task and backbone"
    )


def _rows_of_seed(
    shared: Mapping[str, Any], lines: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the rows of one seed: a row for each task, which all know the whole run.

    The totals are those of the line without a task, else the sums over the tasks if all are known.
    """
    whole = lines["task"].isna()
    tasks = lines[~whole].set_index("task").reindex(range(1, shared["n_tasks"] + 1))
    accuracies = tasks["A_k"].astype(float)
    totals = tasks[["seconds", "kWh"]].sum(skipna=False)
    totals["A_k"] = accuracies.iloc[-1]
    for _, given in lines[whole].iterrows():
        totals = given[totals.index].fillna(totals)
    run = {**shared, "energy_from": "external file"}
    run |= {"train_seconds": totals["seconds"], "energy_kwh": totals["kWh"]}
    run |= {"A_K": totals["A_k"], "A_bar": accuracies.mean(skipna=False)}
    run["max_drop"] = max_drop(
        accuracies.astype(object).where(~accuracies.isna(), None)
    )
    run["network_params"] = lines["params"].max()
    if totals["kWh"] > 0:
        run["A_K_per_kwh"] = totals["A_k"] / totals["kWh"]
    return [run | {"task": task, "A_k": value} for task, value in accuracies.items()]
