"""Compare two methods: differences over the same seeds and test images, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cifnet_pl.report.results import Results, last_rows
from cifnet_pl.report.tables import ReportTable, file_name, number_text
from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.plugins import optional

QUANTITIES = {"A_K": "final accuracy A_K", "A_bar": "average accuracy Ā"}

RESAMPLES = 10_000
"""Resamples of a bootstrap: the ends of an interval then vary by about a hundredth of its width."""

NOT_TESTED = 2
"""In place of a difference, where a seed was not tested on an image."""


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
    pairs = []
    for first in _groups_named(results, names[0]):
        for second in _groups_named(results, names[1]):
            a = first.iloc[0]
            b = second.iloc[0]
            is_same = a["label"] == b["label"] and a["setting"] == b["setting"]
            if a["data"] == b["data"] and not is_same:
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
    is_reference = (rows["method"] == name) & (rows["changed"] == "")
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
        folders = [Path(pair["run_a"]), Path(pair["run_b"])]
        files = [folder / "predictions.parquet" for folder in folders]
        if not all(file.exists() for file in files):
            continue
        try:
            correct = [correct_predictions(file) for file in files]
        except CifnetError as error:
            notes.append(f"Seed {pair['seed_a']} has no images to compare: {error}.")
            continue
        common = pd.concat(correct, axis=1, join="inner", keys=["a", "b"])
        if len(common):
            predictions[pair["seed_a"]] = common
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
        name=file_name("comparison", data),
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
        interval = None
        more: dict[str, Any] = {"seeds": len(known)}
        # Methods that no seed changes give one measurement however often they are run.
        if not np.allclose(first - second, first[0] - second[0]):
            test = stats.ttest_rel(first, second)
            interval = test.confidence_interval()
            more["p"] = f"{test.pvalue:.2g}"
        means = [first.mean(), second.mean()]
        rows.append(_difference(f"{title}, over seeds", means, interval) | more)
    return rows


def _difference(quantity: str, means: Sequence[float], interval: Any) -> dict[str, Any]:
    """Return a row: two accuracies, and the interval of their difference if it is known."""
    first, second = map(float, means)
    row = {"quantity": quantity, "first": first, "second": second}
    row["difference (points)"] = first - second
    if interval is not None:
        low, high = interval
        row["95 % from"] = float(low)
        row["95 % to"] = float(high)
    return row


# ---------------------------------------------------------------------- over test images


def _over_images(predictions: Mapping[Any, pd.DataFrame]) -> list[dict[str, Any]]:
    """Return the difference of A_K over all seeds, if there are several, and for each seed."""
    rows = []
    if len(predictions) > 1:
        frames = list(predictions.values())
        means = 100 * pd.DataFrame([frame.mean() for frame in frames]).mean()
        title = f"{QUANTITIES['A_K']}, over seeds and images"
        row = _difference(title, means, bootstrap_interval(frames))
        rows.append(row | {"seeds": len(frames), "images": min(map(len, frames))})
    for seed, frame in predictions.items():
        title = f"{QUANTITIES['A_K']}, over images, seed {seed}"
        row = _difference(title, 100 * frame.mean(), bootstrap_interval([frame]))
        only_first = int((frame["a"] & ~frame["b"]).sum())
        only_second = int((frame["b"] & ~frame["a"]).sum())
        row |= {"seeds": 1, "images": len(frame)}
        row |= {"only_first": only_first, "only_second": only_second}
        if only_first + only_second:
            test = stats.binomtest(only_first, only_first + only_second)
            row["p"] = f"{test.pvalue:.2g}"
        rows.append(row)
    return rows


def bootstrap_interval(frames: Sequence[pd.DataFrame]) -> np.ndarray:
    """Return the 95 % percentile interval of the mean difference of accuracy a − b in points.

    Seeds are drawn with replacement, and so are test images. The images are the same for all
    seeds, since an image that is hard is hard for all of them. The interval covers other class
    orders and other images; with one seed, other images only.

    Args:
        frames: predictions of both methods, for each common seed, with the columns ``a`` and ``b``.

    Returns:
        (2,) lower and upper end.
    """
    columns = [frame["a"].astype(int) - frame["b"].astype(int) for frame in frames]
    # A row for each image, a column for each seed, NaN where a seed was not tested on the image.
    differences = pd.concat(columns, axis=1).fillna(NOT_TESTED)
    # Images with the same row are alike: how many of each kind are drawn is enough.
    counts = differences.value_counts()
    kinds = np.array(counts.index.to_list())
    is_tested = kinds != NOT_TESTED
    n_images = len(differences)
    n_seeds = len(frames)
    generator = np.random.default_rng(0)
    shares = counts.to_numpy() / n_images
    images = generator.multinomial(n_images, shares, size=RESAMPLES)
    equal = np.full(n_seeds, 1 / n_seeds)
    seeds = generator.multinomial(n_seeds, equal, size=RESAMPLES)
    sums = images @ np.where(is_tested, kinds, 0)
    by_seed = sums / np.maximum(images @ is_tested, 1)
    means = (seeds * by_seed).sum(axis=1) / n_seeds
    ends: np.ndarray = 100 * np.percentile(means, [2.5, 97.5])
    return ends


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


def comparison_lines(table: ReportTable) -> list[str]:
    """Return the rows of a comparison for the screen, one line each."""
    lines = []
    for row in table.texts.to_dict("records"):
        name = row.pop("quantity")
        known = [f"{header} {text}" for header, text in row.items() if text != "–"]
        lines.append(f"{name}: {'; '.join(known)}")
    return lines
