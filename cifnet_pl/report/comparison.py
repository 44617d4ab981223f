"""Compare two methods: differences over the same seeds and test images, with their intervals."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from cifnet_pl.learning.columns import Column
from cifnet_pl.report.results import ACCURACY_DIGITS, Results, last_rows
from cifnet_pl.report.runs import Row
from cifnet_pl.report.tables import ReportTable, file_name, number_text
from cifnet_pl.utilities.errors import (
    DataError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.plugins import optional

RESAMPLES = 10_000
"""Resamples of a bootstrap: the ends of an interval then vary by about a hundredth of its width."""

SAME = 10**-ACCURACY_DIGITS
"""Points of accuracy that are only rounding."""


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
    columns = results.columns("comparison")
    groups = [_groups_named(results, name) for name in names]
    tables = []
    for first, second in itertools.product(*groups):
        a = first.iloc[0]
        b = second.iloc[0]
        is_same = a["label"] == b["label"] and a["setting"] == b["setting"]
        has_pairs = set(first["pair"]) & set(second["pair"])
        if a["data"] == b["data"] and has_pairs and not is_same:
            tables.append(comparison_table(first, second, columns))
    if not tables:
        raise UsageError(
            f"{names[0]} and {names[1]} have no data, seed and class order in common: run both"
            " methods with the same ones (table runs.csv lists them)"
        )
    return tables


def _groups_named(results: Results, name: str) -> list[pd.DataFrame]:
    """Return the last rows of the runs that one of two compared names stands for, by setting."""
    rows = last_rows(results.table).query("origin != 'published'")
    rows = rows.assign(with_backbone=rows["label"] + ", " + rows["backbone"])
    named = rows[(rows["label"] == name) | (rows["with_backbone"] == name)]
    if named.empty:
        raise unknown_name("method for --compare", name, set(rows["label"]))
    # A seed that ran on two machines, or with and without the cache, counts once.
    once = named.drop_duplicates(["setting", "pair"], keep="last")
    return [own for _, own in once.groupby("setting", sort=False)]


def comparison_table(
    a: pd.DataFrame,
    b: pd.DataFrame,
    columns: Sequence[Column],
) -> ReportTable:
    """Tabulate the differences of two configurations on the same data.

    The rows are: Ā, A_K and custom metrics over seeds, A_K over seeds and images, and A_K of each
    seed over its images.

    Args:
        a, b: the last rows of their runs; their backbones tell them apart where these differ.
        columns: what is compared over seeds.
    """
    name = "label"
    if a["backbone"].iloc[0] != b["backbone"].iloc[0]:
        name = "with_backbone"
    first = a[name].iloc[0]
    second = b[name].iloc[0]
    data = a["data"].iloc[0]
    both = a.merge(b, on="pair", suffixes=("_a", "_b"))
    both = both.drop_duplicates(["answers_a", "answers_b"])
    notes = [
        f"Difference: {first} minus {second}, over the seeds, class orders and test images that"
        " both have, in the unit of the row. Interval and p over seeds: paired t-test, empty where"
        " all seeds have the same difference. Interval over images: bootstrap of the test images,"
        " the same ones for all seeds, and of the seeds. p over images: McNemar's exact test. Pairs"
        " of runs of one class order with the same accuracies, as where no seed changes a method,"
        " count once."
    ]
    predictions = _common_predictions(both)
    if not predictions:
        notes.append(
            "No test images are compared: run with --predictions.every_task true to keep the"
            " predictions."
        )
    rows = _over_seeds(both, columns)
    if len(predictions) > 1:
        rows.append(_over_images("seeds and images", list(predictions.values())))
    for drawn, frame in predictions.items():
        rows.append(_over_images(f"images, {drawn}", [frame]))
    names = {
        "first": first,
        "second": second,
        "only_first": f"only {first}",
        "only_second": f"only {second}",
    }
    values = pd.DataFrame(rows, dtype=object).dropna(axis=1, how="all")
    values = values.rename(columns=names)
    return ReportTable(
        name=file_name("comparison", data),
        title=f"{first} against {second}: {data}",
        texts=values.apply(_cells, axis=1),
        values=values,
        text_columns=1,
        notes=notes,
    )


def _common_predictions(both: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return which test images both runs of each pair predicted correctly, as ``a`` and ``b``."""
    predictions = {}
    for pair in both.to_dict("records"):
        correct = {}
        for side in ("a", "b"):
            # A run may have gone on without keeping its predictions.
            name = f"task_{pair[f'task_{side}']:04.0f}.parquet"
            file = Path(pair[f"run_{side}"], "predictions.parquet", name)
            if file.exists():
                correct[side] = correct_predictions(file)
        if len(correct) == 2:
            common = pd.concat(correct, axis=1, join="inner")
            if len(common):
                drawn = f"seed {pair['seed_a']}, order {pair['class_order_a']}"
                predictions[drawn] = common
    return predictions


def _cells(row: pd.Series) -> pd.Series:
    """Return the cells of a row as they are shown."""
    texts = row.map(str)
    texts[row.isna()] = "–"
    for name, value in row.dropna().items():
        if isinstance(value, float):
            texts[name] = number_text(value, is_percentage="%" in row["quantity"])
    return texts


# ---------------------------------------------------------------------- over seeds


def _over_seeds(both: pd.DataFrame, columns: Iterable[Column]) -> list[Row]:
    """Return the differences of some numbers over the common seeds."""
    rows = []
    for column in columns:
        sides = [f"{column.run}_a", f"{column.run}_b"]
        known = both.dropna(subset=sides)
        if known.empty:
            continue
        first, second = [known[side] for side in sides]
        row: Row = {"distinct pairs": len(known)}
        # Methods that no seed changes give one measurement however often they are run.
        if np.ptp(first - second) > SAME:
            test = stats.ttest_rel(first, second)
            interval = test.confidence_interval()
            row["p"] = f"{test.pvalue:.2g}"
        else:
            interval = (None, None)
        quantity = f"{column.words} {column.header}, over seeds".strip()
        rows.append(_difference(quantity, known[sides].mean(), interval) | row)
    return rows


def _difference(
    quantity: str,
    means: Iterable[float],
    interval: Iterable[float | None],
) -> Row:
    """Return a row: two means, and the interval of their difference if it is known."""
    first, second = map(float, means)
    low, high = interval
    return {
        "quantity": quantity,
        "first": first,
        "second": second,
        "difference": first - second,
        "95 % from": low,
        "95 % to": high,
    }


# ---------------------------------------------------------------------- over test images


def _over_images(over: str, frames: Sequence[pd.DataFrame]) -> Row:
    """Return the difference of A_K over common seeds and their test images, of one seed with p."""
    accuracies = pd.DataFrame([100 * frame.mean() for frame in frames])
    interval = bootstrap_interval(frames)
    quantity = f"final accuracy A_K (%), over {over}"
    row = _difference(quantity, accuracies.mean(), interval)
    row |= {"distinct pairs": len(frames), "images": min(map(len, frames))}
    if len(frames) > 1:
        return row
    first = frames[0]["a"]
    second = frames[0]["b"]
    only_first = int((first & ~second).sum())
    only_second = int((second & ~first).sum())
    row |= {"only_first": only_first, "only_second": only_second}
    discordant = only_first + only_second
    if discordant:
        test = stats.binomtest(only_first, discordant)
        row["p"] = f"{test.pvalue:.2g}"
    return row


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
    differences = pd.concat(columns, axis=1)
    # Images with the same row are alike: how many of each kind are drawn is enough.
    counts = differences.value_counts(dropna=False)
    kinds = np.array(counts.index.to_list())
    is_tested = ~np.isnan(kinds)
    n_images = len(differences)
    n_seeds = len(frames)
    generator = np.random.default_rng(0)
    shares = counts.to_numpy() / n_images
    images = generator.multinomial(n_images, shares, size=RESAMPLES)
    equal = np.full(n_seeds, 1 / n_seeds)
    seeds = generator.multinomial(n_seeds, equal, size=RESAMPLES)
    sums = images @ np.nan_to_num(kinds)
    by_seed = sums / np.maximum(images @ is_tested, 1)
    means = (seeds * by_seed).sum(axis=1) / n_seeds
    ends: np.ndarray = 100 * np.percentile(means, [2.5, 97.5])
    return ends


def correct_predictions(path: Path) -> pd.Series:
    """Return which test images a run predicted correctly after its last task.

    Args:
        path: its predictions of that task.

    Returns:
        (n,) bool, with the label and the name of each image as index.

    Raises:
        DataError: the file is damaged.
        UsageError: pyarrow, which reads it, is not installed.
    """
    optional("pyarrow", "a comparison over test images", "tables")
    columns = ["label", "image", "top_1"]
    with explained(DataError, f"{path} is damaged"):
        rows = pd.read_parquet(path, columns=columns)
    last = rows.drop_duplicates(["label", "image"])
    last = last.set_index(["label", "image"], drop=False)
    return last["label"] == last["top_1"]


def comparison_lines(comparison: ReportTable) -> list[str]:
    """Return the rows of a comparison for the screen, one line each."""
    lines = []
    for row in comparison.texts.to_dict("records"):
        name = row.pop("quantity")
        known = [f"{header} {text}" for header, text in row.items() if text != "–"]
        lines.append(f"{name}: {'; '.join(known)}")
    return lines
