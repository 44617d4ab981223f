"""Read results that were not measured here: the paper's numbers, and methods run elsewhere (``--external``)."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.outcomes import Conditions, Group, Outcome
from cifnet_pl.report.settings import Setting
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import first_line

COLUMNS = ("method", "seed", "task", "A_k", "seconds", "kWh")
OPTIONAL = ("dataset", "classes_per_task", "params")
PUBLISHED_ENERGY = "published (CodeCarbon)"
RESULT_TABLES = ("tab:accuracy-results", "tab:cifar100-efficiency", "tab:imagenet100-efficiency", "fig:long_tail")


class Published(NamedTuple):
    """One number of the paper.

    Attributes:
        table: label of the table that it is in.
        dataset, classes_per_task: the setting; an empty protocol means any.
        method, variant: what it was measured with.
        quantity: such as ``A_K``.
        value: the number.
    """

    table: str
    dataset: str
    classes_per_task: str
    method: str
    variant: str
    quantity: str
    value: float


def published_numbers() -> list[Published]:
    """Return all numbers of the paper that ship with this package."""
    text = (files("cifnet_pl.report") / "published.csv").read_text(encoding="utf-8")
    return [Published(**{**row, "value": float(row["value"])}) for row in csv.DictReader(text.splitlines())]  # type: ignore[arg-type]


def published_values(numbers: Sequence[Published], table: str, setting: Setting, quantity: str) -> dict[str, float]:
    """Return the numbers of the paper's own method in one of its tables, if data set and protocol match the setting.

    Args:
        numbers: of the paper.
        table: label of the table.
        setting: of a report.
        quantity: such as ``A_K``.

    Returns:
        Variant → value.
    """
    return {
        n.variant: n.value
        for n in numbers
        if n.table == table and n.method == "CIFNet" and n.quantity == quantity and _matches(n, setting)
    }


def _matches(number: Published, setting: Setting) -> bool:
    return number.dataset == setting.dataset and number.classes_per_task in ("", setting.protocol) and _whole(setting)


def _whole(setting: Setting) -> bool:
    """Tell whether the paper's data set is learned as a whole: with fewer classes the numbers do not compare."""
    return setting.tune is None and setting.n_classes == (50 if setting.dataset == "CORe50" else 100)


def published_groups(settings: Sequence[Setting]) -> list[Group]:
    """Return the paper's rows for every setting with its data set and classes per task, in the paper's order."""
    groups = []
    numbers = published_numbers()
    for setting in settings:
        methods: dict[str, dict[str, float]] = defaultdict(dict)
        parts: dict[str, dict[str, float]] = defaultdict(dict)
        for number in numbers:
            if not _matches(number, setting):
                continue
            if number.table in RESULT_TABLES:
                methods[number.method][number.quantity] = number.value
            elif number.table == "tab:memory_breakdown" and number.quantity == "elements_m":
                parts[number.method][number.variant] = number.value * 1e6
        for method, values in methods.items():
            groups.append(_published_group(setting, method, values, parts.get(method, {})))
    return groups


def _published_group(setting: Setting, method: str, values: Mapping[str, float], parts: Mapping[str, float]) -> Group:
    known: dict[str, float | None] = {key: values.get(key) for key in ("A_bar", "A_K", "energy_kwh", "A_K_per_kwh")}
    known["backbone_params"] = values["params_m"] * 1e6 if "params_m" in values else None
    known["kept_elements"] = parts.get("total")
    known["kept_bytes"] = 4 * parts["total"] if parts else None  # as the paper counts
    conditions = Conditions(source=PUBLISHED_ENERGY if "energy_kwh" in values else "")
    components = {name: count for name, count in parts.items() if name != "total"}
    return Group(setting, method, "published", [Outcome(None, (), known, conditions)], components=components)


# ---------------------------------------------------------------------- methods run elsewhere


class ExternalRow(NamedTuple):
    """One line of the file; None where a cell is empty. A line without a task is about the whole run."""

    task: int | None
    accuracy: float | None
    seconds: float | None
    kwh: float | None
    params: float | None


def read_external(path: Path, settings: Sequence[Setting]) -> list[Group]:
    """Read the methods of a CSV file as groups of the settings that they belong to.

    The file has the columns ``method, seed, task, A_k, seconds, kWh``: one line per task, tasks counted from 1, A_k in
    percent, seconds and kWh of that task alone. A line without a task holds the final accuracy and the totals of the
    run. Any cell but the method may be empty. ``dataset`` and ``classes_per_task`` say where a method belongs, and are
    needed only if it fits more than one setting of the report; ``params`` is the number of parameters.

    Args:
        path: the file.
        settings: of the report.

    Raises:
        UsageError: no such file, columns that are missing or twice, a method that fits no setting or more than one.
        DataError: no CSV file, a cell that is not a number, a line with more or fewer cells than columns, two lines
            for one task, or accuracies that are fractions instead of percentages.
    """
    if not path.is_file():
        raise UsageError(f"no file {path}: --external takes a CSV file with the columns {', '.join(COLUMNS)}")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            header = [name.strip() for name in next(reader, [])]
            lines = [(reader.line_num, cells) for cells in reader if cells]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"{path} is not a CSV file in UTF-8: {first_line(error)}") from error
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise UsageError(
            f"{path} has no column {', '.join(missing)}: expected {', '.join(COLUMNS)}, with commas between"
        )
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UsageError(f"{path} has the column {twice[0]} twice")
    runs: dict[tuple[str, str, str], dict[str, list[ExternalRow]]] = defaultdict(lambda: defaultdict(list))
    for number, row in lines:
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(row)} cells, but the header names {len(header)} columns; a cell may be "
                "empty, but not left out; put a method's name that holds a comma in quotation marks"
            )
        cells = {**dict.fromkeys(OPTIONAL, ""), **dict(zip(header, map(str.strip, row), strict=True))}
        if not cells["method"]:
            raise DataError(f"{path}, line {number}: the method has no name")
        line = f"{path}, line {number}"
        seed_rows = runs[cells["method"], cells["dataset"], cells["classes_per_task"]][cells["seed"]]
        seed_rows.append(_external_row(cells, line))
        if sum(r.task == seed_rows[-1].task for r in seed_rows) > 1:
            raise DataError(
                f"{line}: {cells['method']} has two lines for task {seed_rows[-1].task or 'none'} of one seed"
            )
    for key, seeds in runs.items():
        _refuse_fractions(path, key[0], [row.accuracy for rows in seeds.values() for row in rows])
    return [_external_group(path, key, seeds, settings) for key, seeds in runs.items()]


def _refuse_fractions(path: Path, method: str, accuracies: Sequence[float | None]) -> None:
    known = [accuracy for accuracy in accuracies if accuracy]
    if known and max(known) <= 1:
        raise DataError(
            f"{path}: no A_k of {method} is above {max(known):g}: give percentages from 0 to 100, not fractions"
        )


def _external_row(cells: Mapping[str, str], line: str) -> ExternalRow:
    def number(name: str) -> float | None:
        try:
            value = float(cells[name]) if cells[name] else None
        except ValueError:
            raise DataError(f"{line}: {name} is '{cells[name]}', expected a number or an empty cell") from None
        if value is not None and not 0 <= value < float("inf"):
            raise DataError(f"{line}: {name} is {cells[name]}, expected a number that is not negative")
        return value

    task = number("task")
    if task is not None and (task < 1 or task != int(task)):
        raise DataError(f"{line}: task is '{cells['task']}', expected 1, 2, … or an empty cell")
    accuracy = number("A_k")
    if accuracy is not None and accuracy > 100:
        raise DataError(f"{line}: A_k is {accuracy:g}, expected a percentage from 0 to 100")
    params = number("params")
    return ExternalRow(int(task) if task is not None else None, accuracy, number("seconds"), number("kWh"), params)


def _external_group(
    path: Path, key: tuple[str, str, str], seeds: Mapping[str, list[ExternalRow]], settings: Sequence[Setting]
) -> Group:
    method, dataset, per_task = key
    tasks = max((row.task or 0 for rows in seeds.values() for row in rows), default=0)
    fitting = [
        s for s in settings
        if dataset in ("", s.dataset) and per_task in ("", s.protocol)
        and (tasks in (0, s.n_tasks) or len(settings) == 1)
    ]  # fmt: skip
    if len(fitting) != 1 or tasks > fitting[0].n_tasks:
        known = "; ".join(f"{s.short} ({s.n_tasks} tasks)" for s in settings)
        raise UsageError(
            f"{path}: {method} with {tasks} tasks fits {len(fitting) if len(fitting) > 1 else 'none'} of the settings "
            f"of this report ({known}): name one in the columns dataset and classes_per_task"
        )
    outcomes = [_external_outcome(seed, rows, fitting[0].n_tasks) for seed, rows in seeds.items()]
    return Group(fitting[0], method, "external", sorted(outcomes, key=lambda o: (o.seed is None, o.seed or 0)))


def _external_outcome(seed: str, rows: Sequence[ExternalRow], tasks: int) -> Outcome:
    by_task = {row.task: row for row in rows}
    whole = by_task.pop(None, None)
    each = [by_task.get(k + 1) for k in range(tasks)]
    trajectory = tuple(row.accuracy if row else None for row in each) if by_task else ()

    def total(name: str) -> float | None:
        if whole is not None and getattr(whole, name) is not None:
            return float(getattr(whole, name))
        parts = [getattr(row, name) if row else None for row in each]
        known = [float(component) for component in parts if component is not None]
        return sum(known) if known and len(known) == tasks else None

    known = [a for a in trajectory if a is not None]
    final = whole.accuracy if whole is not None and whole.accuracy is not None else (trajectory or (None,))[-1]
    energy, params = total("kwh"), next((row.params for row in rows if row.params is not None), None)
    values = {
        "A_K": final,
        "A_bar": sum(known) / tasks if len(known) == tasks else None,
        "max_drop": max_drop(trajectory) if len(known) == tasks else None,
        "train_seconds": total("seconds"),
        "energy_kwh": energy,
        "A_K_per_kwh": final / energy if final is not None and energy else None,
        "backbone_params": params,
    }
    number = int(seed) if seed.lstrip("-").isdigit() else None
    conditions = Conditions(source="external file" if energy is not None else "")
    return Outcome(number, trajectory if known else (), values, conditions, key=seed)
