"""Read results that were not measured here: the paper's, and those of methods run elsewhere."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import Stat, without_deviation
from cifnet_pl.report.study import Conditions, Group, Outcome
from cifnet_pl.utilities.errors import DataError, UsageError, explained

PUBLISHED_ENERGY = "published (CodeCarbon)"
RESULT_TABLES = (
    "tab:accuracy-results",
    "tab:cifar100-efficiency",
    "tab:imagenet100-efficiency",
    "fig:long_tail",
)
PUBLISHED_KEYS = ("A_bar", "A_K", "energy_kwh", "A_K_per_kwh")


# ---------------------------------------------------------------------- the paper's numbers


@cache
def published_numbers() -> pd.DataFrame:
    """Return all numbers of the paper that ship with this package.

    Returns:
        A row for each with the columns table, dataset, classes_per_task (empty: any), method,
        variant, quantity, value.
    """
    with (files("cifnet_pl.report") / "published.csv").open("rb") as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False).astype(
            {"value": float}
        )


def _numbers_of_setting(setting: Setting) -> pd.DataFrame:
    """Return the paper's numbers for a setting.

    There are none where only some of the data set's classes are learned, or where accuracies are
    measured on training images.
    """
    numbers = published_numbers()
    if setting.dataset == "CORe50":
        n_classes = 50
    else:
        n_classes = 100
    is_whole = setting.n_classes == n_classes and not setting.tune
    same_data = numbers["dataset"] == setting.dataset
    same_protocol = numbers["classes_per_task"].isin(["", setting.protocol])
    return numbers[same_data & same_protocol & is_whole]


def published_of(table: str, setting: Setting, quantity: str) -> dict[str, Stat | None]:
    """Return the paper's numbers for its own method in one of its tables.

    Args:
        table: label of the table.
        setting: whose data set and protocol must match.
        quantity: such as ``A_K``.

    Returns:
        Variant → number.
    """
    rows = _numbers_of_setting(setting)
    rows = rows[rows["table"] == table]
    rows = rows[rows["method"] == "CIFNet"]
    rows = rows[rows["quantity"] == quantity]
    by_variant = {}
    for variant, value in zip(rows["variant"], rows["value"], strict=True):
        by_variant[variant] = without_deviation(value, 3)
    return by_variant


def published_groups(settings: Sequence[Setting]) -> list[Group]:
    """Return the paper's rows, in its order, for every setting with its data set and protocol."""
    groups = []
    for setting in settings:
        rows = _numbers_of_setting(setting)
        memory = rows[rows["table"] == "tab:memory_breakdown"]
        memory = memory[memory["quantity"] == "elements_m"]
        results = rows[rows["table"].isin(RESULT_TABLES)]
        for method, own_results in results.groupby("method", sort=False):
            own_memory = memory[memory["method"] == method]
            outcome = _published_outcome(own_results, own_memory)
            groups.append(Group(setting, method, "published", [outcome]))
    return groups


def _published_outcome(results: pd.DataFrame, memory: pd.DataFrame) -> Outcome:
    """Return the paper's numbers of one method as the outcome of one seed."""
    printed_pairs = zip(results["quantity"], results["value"], strict=True)
    printed = dict(printed_pairs)
    values: dict[str, float | None] = {}
    for key in PUBLISHED_KEYS:
        values[key] = printed.get(key)
    if "params_m" in printed:
        parameters = 1e6 * printed["params_m"]
        values["backbone_params"] = values["network_params"] = parameters
    components = {}
    for name, millions in zip(memory["variant"], memory["value"], strict=True):
        components[name] = 1e6 * millions
    total = components.pop("total", None)
    if total is not None:
        values["state_elements"] = total
        values["state_bytes"] = 4 * total  # as the paper counts
    source = ""
    if "energy_kwh" in printed:
        source = PUBLISHED_ENERGY
    conditions = Conditions(source=source)
    return Outcome(None, (), values, conditions, components=components)


# ---------------------------------------------------------------------- methods run elsewhere

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ExternalRow(BaseModel):
    """One line of the file; None where a cell is empty.

    A line without a task is about the whole run.
    """

    method: str
    seed: str = ""
    task: Annotated[int, Field(ge=1)] | None = None
    A_k: Annotated[Amount, Field(le=100)] | None = None
    seconds: Amount | None = None
    kWh: Amount | None = None
    dataset: str = ""
    classes_per_task: str = ""
    backbone: str = ""
    params: Amount | None = None


COLUMNS = ("method", "seed", "task", "A_k", "seconds", "kWh")
"""Columns that a file must have; the others of :class:`ExternalRow` may be left out."""

METHOD_COLUMNS = ["method", "dataset", "classes_per_task", "backbone"]
"""Columns that say which method, and where it belongs."""


def read_external(path: Path, settings: Sequence[Setting]) -> list[Group]:
    """Read the methods of a CSV file as groups of the settings that they belong to.

    The file has the columns ``method, seed, task, A_k, seconds, kWh``: one line per task, tasks
    counted from 1, A_k in percent, seconds and kWh of that task alone. A line without a task holds
    the final accuracy and the totals of the run. Any cell but the method may be empty. ``dataset``,
    ``classes_per_task`` and ``backbone`` say where a method belongs, and are needed only if it fits
    more than one setting of the report; ``params`` is the number of parameters.

    Args:
        path: the file.
        settings: of the report.

    Raises:
        UsageError: no such file, columns that are missing or twice, a method that fits no setting
            or more than one.
        DataError: no CSV file, a cell that is not a number, a line with more or fewer cells than
            columns, two lines for one task, or accuracies that are fractions instead of
            percentages.
    """
    names = ["line", *ExternalRow.model_fields]
    content = read_rows(path)
    rows = pd.DataFrame(content, columns=names)
    rows = rows.astype(
        dict.fromkeys(["task", "A_k", "seconds", "kWh", "params"], float)
    )
    _check_once(path, rows)
    groups = []
    for (method, _, _, _), own in rows.groupby(METHOD_COLUMNS, sort=False):
        highest = own["A_k"].max()
        if 0 < highest <= 1:
            raise DataError(
                f"{path}: no A_k of {method} is above {highest:g}: give percentages, not fractions"
            )
        setting = _setting_for(path, own, settings)
        outcomes = []
        for seed, lines in own.groupby("seed", sort=False):
            outcomes.append(_external_outcome(seed, lines, setting.n_tasks))
        outcomes.sort(key=lambda outcome: (outcome.seed is None, outcome.seed or 0))
        groups.append(Group(setting, method, "external", outcomes))
    return groups


def _check_once(path: Path, rows: pd.DataFrame) -> None:
    """Raise DataError if a file has two lines for the same task of a method and seed."""
    key = [*METHOD_COLUMNS, "seed", "task"]
    is_duplicate = rows.duplicated(key)
    duplicates = rows[is_duplicate]
    for _, row in duplicates.iterrows():
        if pd.isna(row["task"]):
            task = "none"
        else:
            task = str(int(row["task"]))
        raise DataError(
            f"{path}, line {row['line']}: {row['method']} has two lines for task {task} of one seed"
        )


def _setting_for(
    path: Path, rows: pd.DataFrame, settings: Sequence[Setting]
) -> Setting:
    """Return the one setting that a method's lines belong to.

    Raises:
        UsageError: none fits, or more than one.
    """
    method, dataset, protocol, backbone = rows[METHOD_COLUMNS].iloc[0]
    n_tasks = 0
    if rows["task"].notna().any():
        n_tasks = int(rows["task"].max())
    fitting = []
    for setting in settings:
        fits = dataset in ("", setting.dataset)
        fits = fits and protocol in ("", setting.protocol)
        fits = fits and backbone in ("", setting.backbone)
        if fits and (n_tasks in (0, setting.n_tasks) or len(settings) == 1):
            fitting.append(setting)
    if len(fitting) == 1 and n_tasks <= fitting[0].n_tasks:
        return fitting[0]
    known = "; ".join(f"{s.short}, {s.backbone} ({s.n_tasks} tasks)" for s in settings)
    length = ""
    if n_tasks:
        length = f" with {n_tasks} tasks"
    count = "none"
    if len(fitting) > 1:
        count = str(len(fitting))
    raise UsageError(
        f"{path}: {method}{length} fits {count} of the settings of this report ({known}): name one"
        " in the columns dataset, classes_per_task and backbone"
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an external file, checked one by one, each with its number."""
    if not path.is_file():
        raise UsageError(
            f"no file {path}: --external takes a CSV file with the columns {', '.join(COLUMNS)}"
        )
    lines = []
    with (
        explained(DataError, f"{path} is not a CSV file in UTF-8"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        cells = next(reader, [])
        header = [name.strip() for name in cells]
        for cells in reader:
            if cells:
                lines.append((reader.line_num, cells))
    _check_header(path, header)
    rows = []
    for number, cells in lines:
        row = _checked_row(f"{path}, line {number}", header, cells)
        rows.append({"line": number, **row})
    return rows


def _check_header(path: Path, header: Sequence[str]) -> None:
    """Raise UsageError if a column is missing or stands twice."""
    missing = [name for name in COLUMNS if name not in header]
    fault = ""
    if missing:
        fault = f"no column {', '.join(missing)}"
    elif len(set(header)) < len(header):
        fault = "a column twice"
    if fault:
        raise UsageError(
            f"{path} has {fault}: expected {', '.join(COLUMNS)}, with commas between"
        )


def _checked_row(
    place: str, header: Sequence[str], cells: Sequence[str]
) -> dict[str, Any]:
    """Return the values of one line, or raise DataError that names its first wrong cell."""
    if len(cells) != len(header):
        raise DataError(
            f"{place}: {len(cells)} cells, but the header names {len(header)} columns; a cell"
            " may be empty, but not left out; put a method's name that holds a comma in"
            " quotation marks"
        )
    given = {}
    for name, cell in zip(header, cells, strict=True):
        text = cell.strip()
        if text:
            given[name] = text
    try:
        return ExternalRow.model_validate(given).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        content = "is empty"
        if name in given:
            content = f"is '{given[name]}'"
        raise DataError(f"{place}: {name} {content}: {first['msg']}") from error


def _total(column: str, by_task: pd.DataFrame, whole_run: pd.DataFrame) -> float | None:
    """Return an amount of a whole run: as given, or the sum over its tasks if all are known."""
    given = whole_run[column].dropna()
    if len(given):
        return float(given.iloc[0])
    if by_task[column].notna().all():
        return float(by_task[column].sum())
    return None


def _external_outcome(seed: str, rows: pd.DataFrame, n_tasks: int) -> Outcome:
    """Return the results of one seed.

    They are those of its lines for tasks, and of the line without a task where that says more.
    """
    whole_run = rows[rows["task"].isna()]
    tasks = rows[rows["task"].notna()].set_index("task")
    by_task = tasks.reindex(range(1, n_tasks + 1))
    trajectory = [None if pd.isna(value) else float(value) for value in by_task["A_k"]]
    finals = whole_run["A_k"].dropna()
    final = next(iter(finals), trajectory[-1])
    energy = _total("kWh", by_task, whole_run)
    parameters = rows["params"].dropna()
    values: dict[str, float | None] = {
        "A_K": final,
        "train_seconds": _total("seconds", by_task, whole_run),
        "energy_kwh": energy,
        "backbone_params": next(iter(parameters), None),
    }
    if final is not None and energy:
        values["A_K_per_kwh"] = final / energy
    known = by_task["A_k"].notna()
    if known.all():
        total = by_task["A_k"].sum()
        values["A_bar"] = total / n_tasks
        values["max_drop"] = max_drop(trajectory)
    source = ""
    if energy is not None:
        source = "external file"
    return Outcome(
        int(seed) if seed.lstrip("-").isdigit() else None,
        tuple(trajectory) if known.any() else (),
        values,
        Conditions(source=source),
        key=seed,
    )
