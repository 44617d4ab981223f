"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cifnet_pl.report.results import Results, last_rows
from cifnet_pl.report.tables import ReportTable, number_text
from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import slug

QUANTITIES = {"A_K": "final accuracy A_K", "A_bar": "average accuracy Ā"}


def compare_methods(results: Results, names: Sequence[str]) -> list[ReportTable]:
    """Compare two methods wherever both were run on the same data.

    Args:
        results: of the report.
        names: two methods. Each is a label as the tables have it, also with its backbone.

    Returns:
        A table for each pair of configurations that have a seed in common.

    Raises:
        UsageError: not two names, an unknown one, or no data and seed that both have.
    """
    if len(names) != 2:
        raise UsageError(
            f"--compare takes two methods, but got {len(names)}: {', '.join(names)}"
        )
    first_groups = _groups_named(results, names[0])
    second_groups = _groups_named(results, names[1])
    pairs = []
    for first in first_groups:
        for second in second_groups:
            is_same = first["label"].iloc[0] == second["label"].iloc[0]
            is_same &= first["setting"].iloc[0] == second["setting"].iloc[0]
            if first["data"].iloc[0] == second["data"].iloc[0] and not is_same:
                pairs.append((first, second))
    if not pairs:
        raise UsageError(
            f"{names[0]} and {names[1]} were run on different data: compare methods of one data"
            " set and task protocol (table runs.csv lists the settings)"
        )
    tables = []
    for first, second in pairs:
        if set(first["pair"]) & set(second["pair"]):
            tables.append(comparison_table(first, second))
    if not tables:
        raise UsageError(
            f"{names[0]} and {names[1]} have no common seed and class order: run both with the"
            " same seeds (table runs.csv lists them)"
        )
    return tables


def _groups_named(results: Results, name: str) -> list[pd.DataFrame]:
    """Return the last rows of the runs that one of two compared names stands for, by setting."""
    rows = last_rows(results.table)
    rows = rows[rows["origin"] != "published"]
    with_backbone = rows["label"] + ", " + rows["backbone"]
    is_reference = (rows["method"] == name) & (rows["changes"].map(len) == 0)
    exact = rows[(rows["label"] == name) | (with_backbone == name)]
    others = rows[is_reference & ~rows["setting"].isin(exact["setting"])]
    named = pd.concat([exact, others])
    if named.empty:
        known = [*rows["label"], *rows["method"]]
        raise unknown_name("method for --compare", name, dict.fromkeys(known))
    # A seed that ran on two machines, or with and without the cache, counts once.
    once = named.drop_duplicates(["setting", "pair"], keep="last")
    return [own for _, own in once.groupby("setting", sort=False)]


def comparison_table(a: pd.DataFrame, b: pd.DataFrame) -> ReportTable:
    """Tabulate the differences of two configurations on the same data.

    The rows are: Ā and A_K over seeds, A_K over seeds and images, and A_K of each seed over its
    images.

    Args:
        a, b: the last rows of their runs; their backbones tell them apart where these differ.
    """
    first = a["label"].iloc[0]
    second = b["label"].iloc[0]
    if a["backbone"].iloc[0] != b["backbone"].iloc[0]:
        first = f"{first}, {a['backbone'].iloc[0]}"
        second = f"{second}, {b['backbone'].iloc[0]}"
    data = a["data"].iloc[0]
    both = a.merge(b, on="pair", suffixes=("_a", "_b"))
    predictions = {}
    notes = [
        f"Difference: {first} minus {second}, over the seeds, class orders and test images that"
        " both have. Interval and p over seeds: paired t-test, empty where all seeds have the same"
        " difference. Interval over images: bootstrap of the test images, the same ones for all"
        " seeds, and of the seeds. p over images: McNemar's exact test."
    ]
    for pair in both.to_dict("records"):
        common, note = _common_predictions(pair)
        if common is not None:
            predictions[pair["seed_a"]] = common
        if note:
            notes.append(note)
    if not predictions:
        notes.append(
            "No test images are compared: run with --predictions.every_task true to keep the"
            " predictions."
        )
    rows = [*_over_seeds(both), *_over_images(predictions)]
    names = {"first": f"{first} (%)", "second": f"{second} (%)"}
    names |= {"only_first": f"only {first}", "only_second": f"only {second}"}
    values = pd.DataFrame(rows, dtype=object).dropna(axis=1, how="all")
    values = values.rename(columns=names)
    return ReportTable(
        name=f"comparison_{slug(data.lower())}",
        title=f"{first} against {second}: {data}",
        texts=values.map(_cell),
        values=values,
        text_columns=1,
        notes=notes,
    )


def _cell(value: Any) -> str:
    """Return a cell as it is shown: percentages and points with two decimals."""
    if pd.isna(value):
        return "–"
    if isinstance(value, float):
        return number_text(value, is_percentage=True)
    return str(value)


# ---------------------------------------------------------------------- over seeds


def _over_seeds(both: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the differences of A_K and Ā over the common seeds."""
    rows = []
    for key, title in QUANTITIES.items():
        known = both.dropna(subset=[f"{key}_a", f"{key}_b"])
        if known.empty:
            continue
        first = known[f"{key}_a"].to_numpy()
        second = known[f"{key}_b"].to_numpy()
        row = _difference(f"{title}, over seeds", first.mean(), second.mean())
        row["seeds"] = len(known)
        # Methods that no seed changes give one measurement however often they are run.
        if not np.allclose(first - second, first[0] - second[0]):
            test = stats.ttest_rel(first, second)
            row |= _interval(test.confidence_interval())
            row["p"] = f"{test.pvalue:.2g}"
        rows.append(row)
    return rows


def _difference(quantity: str, first: float, second: float) -> dict[str, Any]:
    difference = float(first - second)
    accuracies = {"first": float(first), "second": float(second)}
    return {"quantity": quantity, **accuracies, "difference (points)": difference}


def _interval(interval: Any) -> dict[str, float]:
    return {"95 % from": float(interval.low), "95 % to": float(interval.high)}


# ---------------------------------------------------------------------- over test images


def _over_images(predictions: Mapping[Any, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the difference of A_K over all seeds, if there are several, and for each seed."""
    rows = []
    if len(predictions) > 1:
        frames = list(predictions.values())
        means = 100 * pd.DataFrame([frame.mean() for frame in frames]).mean()
        title = f"{QUANTITIES['A_K']}, over seeds and images"
        row = _difference(title, means["a"], means["b"])
        row |= _interval(bootstrap_interval(frames))
        row |= {"seeds": len(frames), "images": min(map(len, frames))}
        rows.append(row)
    for seed, frame in predictions.items():
        means = 100 * frame.mean()
        title = f"{QUANTITIES['A_K']}, over images, seed {seed}"
        row = _difference(title, means["a"], means["b"])
        row |= _interval(bootstrap_interval([frame]))
        row |= {"seeds": 1, "images": len(frame)}
        row["only_first"] = only_first = int((frame["a"] & ~frame["b"]).sum())
        row["only_second"] = only_second = int((frame["b"] & ~frame["a"]).sum())
        if only_first + only_second:
            test = stats.binomtest(only_first, only_first + only_second)
            row["p"] = f"{test.pvalue:.2g}"
        rows.append(row)
    return rows


def bootstrap_interval(frames: Sequence[pd.DataFrame]) -> Any:
    """Return the 95 % percentile interval of the mean difference of accuracy a − b in points.

    Seeds are drawn with replacement, and so are test images. The images are the same for all
    seeds, since an image that is hard is hard for all of them. The interval covers other class
    orders and other images; with one seed, other images only.

    Args:
        frames: predictions of both methods, for each common seed, with the columns ``a`` and ``b``.
    """
    columns = [frame["a"].astype(int) - frame["b"].astype(int) for frame in frames]
    # A row for each seed, a column for each image, NaN where a seed was not tested on the image.
    differences = 100 * pd.concat(columns, axis=1).to_numpy(float).T
    n_seeds, n_images = differences.shape
    samples: tuple[Any, ...] = (np.arange(n_images),)
    if n_seeds > 1:
        samples = (np.arange(n_images), np.arange(n_seeds))

    def mean_difference(images: np.ndarray, seeds: Any = 0) -> float:
        drawn = differences[:, images][seeds]
        return float(np.nanmean(drawn))

    result = stats.bootstrap(
        samples,
        mean_difference,
        vectorized=False,
        batch=1,  # else the images of all draws are in memory at once
        method="percentile",
        random_state=0,
    )
    return result.confidence_interval


def correct_predictions(path: Path) -> pd.Series:
    """Return which test images a run predicted correctly after its last task.

    Args:
        path: its ``predictions.parquet``.

    Returns:
        (n,) bool, with the label and the name of each image as index.

    Raises:
        DataError: the file is damaged.
        UsageError: pyarrow, which reads it, is not installed.
    """
    optional("pyarrow", "a comparison over test images", "tables")
    columns = ["task", "label", "image", "top_1"]
    with explained(DataError, f"{path} is damaged"):
        rows = pd.read_parquet(path, columns=columns)
    last = rows[rows["task"] == rows["task"].max()]
    last = last.drop_duplicates(["label", "image"])
    correct = last["label"] == last["top_1"]
    return correct.set_axis(pd.MultiIndex.from_frame(last[["label", "image"]]))


def _common_predictions(pair: Mapping[str, Any]) -> tuple[pd.DataFrame | None, str]:
    """Return whether two runs are correct on the test images that both have.

    Returns:
        The columns ``a`` and ``b``, a row for each image, or None without common images; and a note
        if one has further images, or if a file cannot be read.
    """
    first_file = Path(pair["run_a"]) / "predictions.parquet"
    second_file = Path(pair["run_b"]) / "predictions.parquet"
    if not first_file.exists() or not second_file.exists():
        return None, ""
    try:
        first = correct_predictions(first_file)
        second = correct_predictions(second_file)
    except CifnetError as error:
        return None, f"Seed {pair['seed_a']} is not compared over images: {error}."
    common = pd.concat([first, second], axis=1, join="inner", keys=["a", "b"])
    note = ""
    if len(common) < max(len(first), len(second)):
        note = (
            f"Seed {pair['seed_a']}: {len(common)} test images are common to both, of"
            f" {len(first)} and {len(second)}."
        )
    if common.empty:
        return None, note
    return common, note


def comparison_lines(table: ReportTable) -> list[str]:
    """Return the rows of a comparison for the screen, one line each."""
    lines = []
    for row in table.texts.to_dict("records"):
        name = row.pop("quantity")
        known = [f"{header} {text}" for header, text in row.items() if text != "–"]
        lines.append(f"{name}: {'; '.join(known)}")
    return lines
