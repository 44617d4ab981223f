"""Read results that were not measured here: the paper's, and those of methods run elsewhere."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from cifnet_pl.report.runs import Row, Settings
from cifnet_pl.utilities.errors import DataError, UsageError, explained

VARIANTS: dict[str, Settings] = {
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

PUBLISHED = Path(__file__).parent / "published.csv"

KEPT = "elements of "
"""How a quantity begins that is a part of what a method keeps between tasks."""

COLUMNS = ("method", "seed", "task", "A_k", "seconds", "kWh")
"""Columns that a file of external results must have."""

NUMBER_COLUMNS = ("task", "A_k", "seconds", "kWh", "params")

WRONG = "method == '' or task < 1 or task % 1 > 0 or A_k < 0 or seconds < 0 or kWh < 0"
"""Query of lines that no file of results has."""

PLACE_COLUMNS = ("dataset", "classes_per_task", "backbone")
"""Columns that may say which setting a method belongs to."""

SHARED_COLUMNS = (
    "dataset", "n_tasks", "n_classes", "protocol", "tune", "root", "backbone", "data", "setting",
)  # fmt: skip
"""Columns that a row shares with all rows of its setting."""


def row_of(setting: Row, method: str, origin: str) -> Row:
    """Return the part of a row of results that says where it belongs.

    Args:
        setting: a row of a run of this package.
        method: name of the method.
        origin: "external" or "published".
    """
    shared = {column: setting[column] for column in SHARED_COLUMNS}
    return shared | {
        "run": f"{origin}: {method}, {setting['setting']}",
        "origin": origin,
        "method": method,
        "label": method,
        "variant": "full method",
        "changed": "",
        "config": {},
        "components": {},
        "machine": "",
        "pair": "",
    }


# ---------------------------------------------------------------------- the paper's numbers


def published_numbers() -> pd.DataFrame:
    """Return all numbers of the paper that ship with this package.

    Returns:
        A row for each with the columns table, dataset, classes_per_task (empty: any), method,
        variant, quantity, value.
    """
    texts = {"classes_per_task": str}
    return pd.read_csv(PUBLISHED, dtype=texts, keep_default_na=False)


def published_rows(setting: Row) -> list[Row]:
    """Return the paper's results of each method and variant in a setting, in the paper's order.

    There are none where only some of the data set's classes are learned, or where accuracies are
    measured on training images.

    Args:
        setting: a row of a run of this package.
    """
    n_classes = CLASSES.get(setting["dataset"])
    if setting["n_classes"] != n_classes or setting["tune"]:
        return []
    numbers = published_numbers()
    is_same_data = numbers["dataset"] == setting["dataset"]
    is_same_protocol = numbers["classes_per_task"].isin(["", setting["protocol"]])
    numbers = numbers[is_same_data & is_same_protocol]
    rows = []
    for (method, variant), own in numbers.groupby(["method", "variant"], sort=False):
        row = row_of(setting, method, "published")
        values = own.set_index("quantity")["value"]
        is_kept = values.index.str.startswith(KEPT)
        row |= values[~is_kept].to_dict()
        kept = values[is_kept].rename(lambda name: name.removeprefix(KEPT))
        row["components"] = kept.to_dict()
        row["energy_from"] = "CodeCarbon, in the paper"
        if variant:
            row["run"] += f", {variant}"
            row["label"] += f", {variant}"
            row["variant"] = variant
            row["config"] = VARIANTS[variant]
            row["changed"] = next(iter(VARIANTS[variant]))
        rows.append(row)
    return rows


# ---------------------------------------------------------------------- methods run elsewhere


def read_external(path: Path, settings: pd.DataFrame) -> list[Row]:
    """Read the methods of a file of external results as rows of the settings they belong to.

    The file is CSV with the columns ``method, seed, task, A_k, seconds, kWh``: one line per task,
    tasks counted from 1, A_k in percent, seconds and kWh of that task alone. A line without a task
    holds the final accuracy and the totals of the run. Any cell but the method may be empty.
    ``dataset``, ``classes_per_task`` and ``backbone`` say where a method belongs, and are needed
    only if it fits more than one setting of the report; ``params`` is the number of parameters.

    Args:
        path: the file.
        settings: a row of a run for each setting of the report.

    Raises:
        UsageError: a method that fits no setting or more than one.
        DataError: no CSV file, a missing column, a cell that is empty or holds no such number, two
            lines for one task, or accuracies that are no percentages.
    """
    named = ["method", "seed", *PLACE_COLUMNS]
    with explained(DataError, f"{path} is no table of external results"):
        lines = pd.read_csv(
            path, dtype=str, skipinitialspace=True, encoding="utf-8-sig"
        )
        lines[[*COLUMNS]]  # a missing one is named
        lines = lines.reindex(columns=[*named, *NUMBER_COLUMNS]).astype(object)
        lines = lines.astype(dict.fromkeys(NUMBER_COLUMNS, float))
    lines[named] = lines[named].fillna("")
    for row in lines.query(WRONG).index:
        raise DataError(
            f"{path}, row {row + 1}: expected a method, a task counted from 1, and no negative"
            " numbers"
        )
    for method in lines["method"][lines.duplicated([*named, "task"])]:
        raise DataError(f"{path} has two lines for one task and seed of {method}")
    highest = lines.groupby("method")["A_k"].max()
    for method, accuracy in highest.items():
        if accuracy > 100 or 0 < accuracy <= 1:
            raise DataError(
                f"{path}: the highest A_k of {method} is {accuracy:g}, expected percentages"
            )
    rows = []
    for (method, *place), own in lines.groupby(["method", *PLACE_COLUMNS], sort=False):
        setting = _setting_for(f"{path}: {method}", place, own["task"].max(), settings)
        for seed, of_seed in own.groupby("seed", sort=False):
            shared = row_of(setting, method, "external")
            run = f"{shared['run']}, seed {seed}"
            shared |= {"run": run, "seed": seed, "pair": seed}
            rows += _rows_of_seed(shared, of_seed)
    return rows


def _setting_for(
    name: str,
    place: Sequence[str],
    n_tasks: float,
    settings: pd.DataFrame,
) -> Row:
    """Return the one setting that a method's lines belong to.

    Raises:
        UsageError: none fits, or more than one.
    """
    dataset, protocol, backbone = place
    fits = settings["backbone"].str.startswith(backbone)
    if dataset:
        fits &= settings["dataset"] == dataset
    if protocol:
        fits &= settings["protocol"] == protocol
    if n_tasks > 0:
        fits &= settings["n_tasks"] == n_tasks
    fitting = settings[fits]
    if len(fitting) == 1:
        row: Row = fitting.iloc[0].to_dict()
        return row
    known = settings["setting"] + settings["n_tasks"].map(" ({} tasks)".format)
    count = len(fitting) or "none"
    raise UsageError(
        f"{name} fits {count} of the settings of this report ({'; '.join(known)}): name one in the"
        " columns dataset, classes_per_task and backbone"
    )


def _rows_of_seed(shared: Row, lines: pd.DataFrame) -> list[Row]:
    """Return the rows of one seed: a row for each task, which all know the whole run.

    The totals are those of the line without a task, else the sums over the tasks if all are known.
    """
    is_whole = lines["task"].isna()
    every_task = range(1, shared["n_tasks"] + 1)
    tasks = lines[~is_whole].set_index("task").reindex(every_task)
    accuracies = tasks["A_k"].astype(float)
    totals = tasks[["seconds", "kWh"]].sum(skipna=False)
    totals["A_k"] = accuracies.iloc[-1]
    for _, given in lines.loc[is_whole, totals.index].iterrows():
        totals = given.fillna(totals)
    run = {
        **shared,
        "energy_from": "external file",
        "train_seconds": totals["seconds"],
        "energy_kwh": totals["kWh"],
        "A_K": totals["A_k"],
        "A_bar": accuracies.mean(skipna=False),
        "max_drop": -accuracies.diff().min(),
        "network_params": lines["params"].max(),
    }
    if totals["kWh"] > 0:
        run["A_K_per_kwh"] = totals["A_k"] / totals["kWh"]
    return [run | {"task": task, "A_k": value} for task, value in accuracies.items()]
