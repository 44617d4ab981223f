"""Read results that were not measured here: the paper's numbers, and methods run elsewhere
(``--external``).
"""

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
from cifnet_pl.report.significance import Stat, fixed
from cifnet_pl.report.study import Conditions, Group, Outcome
from cifnet_pl.utilities.errors import DataError, UsageError, explained

PUBLISHED_ENERGY = "published (CodeCarbon)"
RESULT_TABLES = (
    "tab:accuracy-results",
    "tab:cifar100-efficiency",
    "tab:imagenet100-efficiency",
    "fig:long_tail",
)


# ---------------------------------------------------------------------- the paper's numbers


@cache
def published_numbers() -> pd.DataFrame:
    """Return all numbers of the paper that ship with this package.

    Returns:
        A row for each with the columns table, dataset, classes_per_task (empty: any), method,
        variant, quantity, value.
    """
    with (files("cifnet_pl.report") / "published.csv").open("rb") as file:
        return pd.read_csv(file, dtype=str, keep_default_na=False).astype({"value": float})


def _of_setting(setting: Setting) -> pd.DataFrame:
    """Return the paper's numbers for a setting; none where only some of the data set's classes are
    learned.
    """
    numbers = published_numbers()
    whole = not setting.tune and setting.n_classes == (50 if setting.dataset == "CORe50" else 100)
    same = (numbers["dataset"] == setting.dataset) & numbers["classes_per_task"].isin(
        ["", setting.protocol]
    )
    return numbers[same & whole]


def published_of(table: str, setting: Setting, quantity: str) -> dict[str, Stat | None]:
    """Return the paper's numbers for its own method in one of its tables.

    Args:
        table: label of the table.
        setting: whose data set and protocol must match.
        quantity: such as ``A_K``.

    Returns:
        Variant → number.
    """
    rows = _of_setting(setting)
    rows = rows[
        (rows["table"] == table) & (rows["method"] == "CIFNet") & (rows["quantity"] == quantity)
    ]
    return {
        variant: fixed(value, 3)
        for variant, value in zip(rows["variant"], rows["value"], strict=True)
    }


def published_groups(settings: Sequence[Setting]) -> list[Group]:
    """Return the paper's rows for every setting with its data set and classes per task, in the
    paper's order.
    """
    groups = []
    for setting in settings:
        rows = _of_setting(setting)
        kept = rows[(rows["table"] == "tab:memory_breakdown") & (rows["quantity"] == "elements_m")]
        for method, results in rows[rows["table"].isin(RESULT_TABLES)].groupby(
            "method", sort=False
        ):
            printed = dict(zip(results["quantity"], results["value"], strict=True))
            known: dict[str, float | None] = {
                key: printed.get(key) for key in ("A_bar", "A_K", "energy_kwh", "A_K_per_kwh")
            }
            known["backbone_params"] = known["network_params"] = (
                1e6 * printed["params_m"] if "params_m" in printed else None
            )
            own = kept[kept["method"] == method]
            parts = {
                name: count * 1e6 for name, count in zip(own["variant"], own["value"], strict=True)
            }
            known["kept_elements"] = total = parts.pop("total", None)
            known["kept_bytes"] = 4 * total if total else None  # as the paper counts
            conditions = Conditions(source=PUBLISHED_ENERGY if "energy_kwh" in printed else "")
            group = Group(
                setting,
                method,
                "published",
                [Outcome(None, (), known, conditions, components=parts)],
            )
            groups.append(group)
    return groups


# ---------------------------------------------------------------------- methods run elsewhere

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ExternalRow(BaseModel):
    """One line of the file; None where a cell is empty. A line without a task is about the whole
    run.
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
    rows = pd.DataFrame(_read_rows(path), columns=["line", *ExternalRow.model_fields])
    rows = rows.astype(dict.fromkeys(["task", "A_k", "seconds", "kWh", "params"], float))
    names = ["method", "dataset", "classes_per_task", "backbone"]
    for _, twice in rows[rows.duplicated([*names, "seed", "task"])].iterrows():
        if pd.isna(twice["task"]):
            task = "none"
        else:
            task = str(int(twice["task"]))
        raise DataError(
            f"{path}, line {twice['line']}: {twice['method']} has two lines for task {task} of one seed"
        )  # fmt: skip
    groups = []
    for (method, dataset, per_task, backbone), own in rows.groupby(names, sort=False):
        if 0 < own["A_k"].max() <= 1:
            raise DataError(
                f"{path}: no A_k of {method} is above {own['A_k'].max():g}: give percentages, not"
                " fractions"
            )
        if own["task"].notna().any():
            tasks = int(own["task"].max())
        else:
            tasks = 0
        fitting = [
            s for s in settings
            if dataset in ("", s.dataset) and per_task in ("", s.protocol) and backbone in ("", s.backbone)
            and (tasks in (0, s.n_tasks) or len(settings) == 1)
        ]  # fmt: skip
        if len(fitting) != 1 or tasks > fitting[0].n_tasks:
            known = "; ".join(f"{s.short}, {s.backbone} ({s.n_tasks} tasks)" for s in settings)
            long = f" with {tasks} tasks" if tasks else ""
            raise UsageError(
                f"{path}: {method}{long} fits {len(fitting) if len(fitting) > 1 else 'none'} of the"
                f" settings of this report ({known}): name one in the columns dataset,"
                " classes_per_task and backbone"
            )
        outcomes = [
            _external_outcome(seed, lines, fitting[0].n_tasks)
            for seed, lines in own.groupby("seed", sort=False)
        ]
        outcomes.sort(key=lambda outcome: (outcome.seed is None, outcome.seed or 0))
        groups.append(Group(fitting[0], method, "external", outcomes))
    return groups


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of an external file, checked one by one, each with its number."""
    if not path.is_file():
        raise UsageError(
            f"no file {path}: --external takes a CSV file with the columns {', '.join(COLUMNS)}"
        )
    with (
        explained(DataError, f"{path} is not a CSV file in UTF-8"),
        path.open(newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.reader(file, skipinitialspace=True, strict=True)
        header = [name.strip() for name in next(reader, [])]
        lines = [(reader.line_num, cells) for cells in reader if cells]
    missing = [name for name in COLUMNS if name not in header]
    if missing or len(set(header)) < len(header):
        if missing:
            what = f"no column {', '.join(missing)}"
        else:
            what = "a column twice"
        raise UsageError(f"{path} has {what}: expected {', '.join(COLUMNS)}, with commas between")
    rows = []
    for number, cells in lines:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells, but the header names {len(header)}"
                " columns; a cell may be empty, but not left out; put a method's name that holds a"
                " comma in quotation marks"
            )
        known = {
            name: text for name, cell in zip(header, cells, strict=True) if (text := cell.strip())
        }
        try:
            rows.append({"line": number, **ExternalRow.model_validate(known).model_dump()})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            said = f"is '{known[name]}'" if name in known else "is empty"
            raise DataError(f"{path}, line {number}: {name} {said}: {first['msg']}") from error
    return rows


def _external_outcome(seed: str, rows: pd.DataFrame, tasks: int) -> Outcome:
    """Return the results of one seed: of its lines for tasks, and of the line without a task where
    that says more.
    """
    each = rows[rows["task"].notna()].set_index("task").reindex(range(1, tasks + 1))
    whole = rows[rows["task"].isna()]

    def total(name: str) -> float | None:
        known = [*whole[name].dropna()] or ([sum(each[name])] if each[name].notna().all() else [])
        if known:
            return float(known[0])
        return None

    measured = each["A_k"].notna()
    trajectory = tuple(None if pd.isna(accuracy) else float(accuracy) for accuracy in each["A_k"])
    final = next(iter(whole["A_k"].dropna()), trajectory[-1])
    energy = total("kWh")
    params = rows["params"].dropna()
    values = {
        "A_K": final,
        "A_bar": sum(each["A_k"]) / tasks if measured.all() else None,
        "max_drop": max_drop(trajectory) if measured.all() else None,
        "train_seconds": total("seconds"),
        "energy_kwh": energy,
        "A_K_per_kwh": final / energy if final is not None and energy else None,
        "backbone_params": next(iter(params), None),
    }
    conditions = Conditions(source="external file" if energy is not None else "")
    number = int(seed) if seed.lstrip("-").isdigit() else None
    return Outcome(number, trajectory if measured.any() else (), values, conditions, key=seed)
