"""Make the tables of a report, in the paper's layout where the paper has the table.

Each is a ``groupby`` of the rows of results; pandas writes CSV, Markdown, LaTeX and HTML.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from cifnet_pl.learning.columns import BY_KEY, Column
from cifnet_pl.report.external_results import KEPT
from cifnet_pl.report.results import (
    ABLATIONS,
    Results,
    last_rows,
    value_text,
)
from cifnet_pl.report.runs import Settings
from cifnet_pl.utilities.files import rendered
from cifnet_pl.utilities.text import printable

ROW = {"label": "method", "origin": "origin"}
"""Columns of results that say which row of a table it is → their headers."""

FINAL = BY_KEY["A_K"]
ACCURACIES = (BY_KEY["A_bar"], FINAL)

HEADINGS = {
    "head.ridge": "ridge λ",
    "buffer.capacity": "size of the buffer (embeddings)",
}
"""Setting of a figure of the paper → its name as a heading; others have their dotted name."""

SUFFIXES = {"mean": "", "std": " sd", "count": " n"}
"""What a group of runs is summarised by → end of the column's name in CSV files."""

NOTES = Path(__file__).parent / "templates" / "notes.txt"

LATEX = {
    "λ": r"$\lambda$", "±": r"$\pm$", "Ā": r"$\bar{A}$", "A\\_K": "$A_K$", " A_K": " $A_K$",
    "₂": r"$_2$", "–": "--", "→": r"$\to$", "…": r"\dots{}",
}  # fmt: skip
"""Texts that LaTeX would not print as they are, once its special characters are escaped."""


# ---------------------------------------------------------------------- a table and its formats


@dataclass
class ReportTable:
    """A table of a report.

    Attributes:
        name: of its files.
        title: above the table.
        texts: its cells as they are shown.
        values: its numbers in full, with deviations and numbers of seeds, for the CSV file.
        text_columns: number of columns of text, which come first.
        notes: sentences below the table.
    """

    name: str
    title: str
    texts: pd.DataFrame
    values: pd.DataFrame
    text_columns: int
    notes: list[str] = field(default_factory=list)

    def to_markdown(self) -> str:
        """Return a pipe table with the title above and the notes below."""
        escaped = self.texts.map(lambda text: text.replace("|", "\\|"))
        table = escaped.to_markdown(
            index=False,
            disable_numparse=True,
            stralign="right",
            colalign=["left"] * self.text_columns,
        )
        notes = "\n".join(f"{note}  " for note in self.notes)
        return f"**{self.title}**\n\n{table}\n\n{notes}\n"

    def to_latex(self) -> str:
        """Return a ``table`` environment of the package booktabs."""
        letters = "l" * self.text_columns
        letters = letters.ljust(len(self.texts.columns), "r")
        table = self.texts.to_latex(
            index=False,
            escape=True,
            column_format=letters,
            caption=f"{self.title}. {' '.join(self.notes)}".replace("%", r"\%"),
            label=f"tab:{self.name}",
        )
        for text, command in LATEX.items():
            table = table.replace(text, command)
        return str(table)

    def to_html(self) -> str:
        """Return a ``<table>`` whose class says how many columns of text it has."""
        kind = f"text{self.text_columns}"
        return str(self.texts.to_html(index=False, border=0, classes=kind))


def summarise(
    rows: pd.DataFrame,
    by: Mapping[str, str],
    numbers: Iterable[Column],
) -> pd.DataFrame:
    """Return mean, deviation and number of seeds for each group of runs.

    Args:
        rows: of results.
        by: columns that make a group → their headers.
        numbers: columns of numbers; those that nothing measured are left out.

    Returns:
        Headers of ``by`` as index, pairs of a header and one of ``SUFFIXES`` as columns.
    """
    # A seed that ran on two machines counts once, unless they make two groups.
    runs = last_rows(rows).drop_duplicates([*by, "pair"], keep="last")
    # Runs that answered alike are one measurement of quality, and several of costs.
    is_distinct = ~runs.duplicated([*by, "answers"])
    shown = runs[list(by)].rename(columns=by)
    for column in numbers:
        values = runs[column.run] / column.scale
        if column.over_seeds == "distinct":
            values = values.where(is_distinct)
        if values.notna().any():
            shown[column.header] = values
    stats = shown.groupby(list(by.values()), sort=False).agg(list(SUFFIXES))
    if "origin" in by:
        is_published = stats.index.get_level_values("origin") == "published"
        stats.loc[is_published, pd.IndexSlice[:, "count"]] = math.nan
    return stats


def table_of(name: str, title: str, stats: pd.DataFrame) -> ReportTable:
    """Return the table of summarised groups, in the order of their rows.

    Args:
        name: of its files.
        title: above the table.
        stats: as :func:`summarise` returns it.
    """
    labels = stats.index.to_frame(index=False).map(printable)
    numbers = stats.reset_index(drop=True)
    counts = numbers.xs("count", axis=1, level=1).max(axis=1)
    if counts.nunique() > 1:
        labels["seeds"] = counts.map("{:.0f}".format).replace("nan", "")
    texts = labels.copy()
    for header in numbers.columns.unique(0):
        texts[header] = _column_texts(numbers[header], counts, "%" in header)
    names = [f"{header}{SUFFIXES[key]}" for header, key in numbers]
    values = labels.join(numbers.set_axis(names, axis=1))
    return ReportTable(name, title, texts, values, len(labels.columns))


def _column_texts(
    column: pd.DataFrame,
    counts: pd.Series,
    is_percentage: bool,
) -> list[str]:
    """Return the cells of a column, with the number of seeds where it is not that of the row."""
    texts = []
    for most, stats in zip(counts, column.itertuples(), strict=True):
        text = "–"
        if not math.isnan(stats.mean):
            text = number_text(stats.mean, stats.std, is_percentage)
        if 0 < stats.count < most:
            text = f"{text} (n = {stats.count:.0f})"
        texts.append(text)
    return texts


def file_name(*words: str) -> str:
    """Return words as the name of a file: letters of any script, digits and underscores.

    Example:
        >>> file_name("memory", "CIFAR-100, 10 cls/task")
        'memory_cifar_100_10_cls_task'
    """
    return re.sub(r"\W+", "_", " ".join(words).lower()).strip("_")


def number_text(
    mean: float,
    deviation: float = math.nan,
    is_percentage: bool = False,
) -> str:
    """Return a mean with its deviation: percentages with two decimals, others three digits.

    Example:
        >>> number_text(59.256, 0.504, True), number_text(0.0603, 0.00112), number_text(1611.2)
        ('59.26 ± 0.50', '0.0603 ± 0.0011', '1,611')
        >>> number_text(0.0)
        '0.00'
    """
    decimals = 2
    if not is_percentage and mean:
        power = math.floor(math.log10(abs(mean)))
        decimals = max(0, 2 - power)
    text = f"{mean:,.{decimals}f}"
    if deviation > 0:
        text = f"{text} ± {deviation:,.{decimals}f}"
    return text


def text_table(name: str, title: str, rows: pd.DataFrame) -> ReportTable:
    """Return a table whose cells are all texts."""
    texts = rows.map(printable)
    return ReportTable(name, title, texts, texts, len(texts.columns))


# ---------------------------------------------------------------------- accuracy


def side_by_side(stats: pd.DataFrame, level: str, names: Iterable[str]) -> pd.DataFrame:
    """Return the groups of one level of the index beside each other, each with its numbers.

    Args:
        stats: as :func:`summarise` returns it.
        level: header of a column that made the groups.
        names: its values, in order; others are left out.
    """
    parts = {}
    for name in names:
        if name in stats.index.unique(level):
            own = stats.xs(name, level=level)
            for header in own.columns.unique(0):
                parts[f"{name}: {header}"] = own[header]
    order = stats.index.droplevel(level).unique()
    return pd.concat(parts, axis=1).reindex(order)


def accuracy_table(results: Results) -> ReportTable:
    """Tabulate Ā and A_K of every method in every setting (tab:accuracy-results).

    One row is one configuration.
    """
    names = results.table["origin"] + results.table["label"]
    is_compared = results.table["changed"] == ""
    rows = results.table[names.isin(names[is_compared])]
    by = ROW | {"setting": "setting"}
    stats = summarise(rows, by, ACCURACIES)
    columns = side_by_side(stats, "setting", results.settings)
    title = "Average accuracy Ā and final accuracy A_K"
    return table_of("accuracy", title, columns)


def results_table(results: Results, setting: str) -> ReportTable:
    """Tabulate everything that was measured in one setting, but for the costs."""
    rows = results.table[results.table["setting"] == setting]
    measured = rows.query("origin != 'published'")
    columns = [*ACCURACIES, *results.columns("results")]
    stats = summarise(measured, ROW, columns)
    return table_of(file_name("results", setting), setting, stats)


# ---------------------------------------------------------------------- variants


def ablation_table(results: Results) -> ReportTable | None:
    """Tabulate the method without one of its parts at a time (tab:ablation)."""
    families = results.families(*ABLATIONS)
    if not families:
        return None
    rows = pd.concat(families)
    rows["label"] = rows["method"] + ", " + rows["variant"]
    by = {"label": "variant", "origin": "origin", "setting": "setting"}
    stats = summarise(rows, by, ACCURACIES)
    columns = side_by_side(stats, "setting", results.settings)
    return table_of("ablation", "The method without one of its parts", columns)


def value_rows(results: Results, key: str) -> pd.DataFrame:
    """Return the rows of results that vary one setting.

    The new columns are its ``value``, that as a ``number``, and the name of the ``line``.

    Args:
        results: of the report.
        key: dotted name of the setting.
    """
    rows = pd.concat([results.table.head(0), *results.families(key)])
    is_known = [key in config for config in rows["config"]]
    rows = rows.loc[np.array(is_known, dtype=bool)]
    values = [config[key] for config in rows["config"]]
    line = rows["setting"] + ": " + rows["method"]
    is_published = rows["origin"] == "published"
    return rows.assign(
        value=pd.Series(values, rows.index, dtype=object),
        number=pd.to_numeric(list(map(str, values)), errors="coerce"),
        line=line.where(~is_published, line + " (published)"),
    )


def value_table(results: Results, key: str, name: str) -> ReportTable | None:
    """Tabulate the final accuracy for each value of one setting (fig:buffer_ablation).

    Args:
        results: of the report.
        key: dotted name of the setting.
        name: of the table's files.
    """
    rows = value_rows(results, key)
    if rows.empty:
        return None
    rows = rows.assign(value=rows["value"].map(value_text))
    rows = rows.sort_values(["number", "value"])
    title = HEADINGS.get(key, key)
    by = {"value": title, "line": "line", "origin": "origin"}
    stats = summarise(rows, by, [FINAL]).droplevel("origin")
    lines = rows["line"].sort_index().unique()
    columns = side_by_side(stats, "line", lines)
    return table_of(name, f"Final accuracy by {title}", columns)


# ---------------------------------------------------------------------- costs and memory


def efficiency_table(results: Results, data: str) -> ReportTable | None:
    """Tabulate parameters, minutes, energy and A_K per kWh of all that learned the same data.

    These are tab:cifar100-efficiency and tab:imagenet100-efficiency. Costs under different
    conditions stand in rows of their own.

    Args:
        results: of the report.
        data: one of ``results.data``.
    """
    rows = results.table[results.table["data"] == data]
    rows = rows.dropna(how="all", subset=["train_seconds", "energy_kwh"])
    if rows.empty:
        return None
    rows = rows.assign(
        backbone=rows["backbone"].where(rows["origin"] == "measured", "")
    )
    by = ROW | {
        "backbone": "backbone",
        "machine": "machine",
        "energy_from": "energy from",
    }
    stats = summarise(rows, by, results.columns("costs"))
    name = file_name("efficiency", data)
    return table_of(name, f"Accuracy and costs: {data}", stats)


def memory_table(results: Results, setting: str) -> ReportTable | None:
    """Tabulate the elements kept between tasks by component, and the bytes as they are stored.

    Args:
        results: of the report.
        setting: whose methods are listed.
    """
    rows = memory_rows(results, setting)
    if rows.empty:
        return None
    kept = kept_elements(rows)
    components = [
        Column(run=f"{KEPT}{name}", over_seeds="every", title=name, unit="M", scale=1e6)
        for name in kept
    ]
    numbers = [*components, *results.columns("memory")]
    stats = summarise(rows.join(kept.add_prefix(KEPT)), ROW, numbers)
    name = file_name("memory", setting)
    return table_of(name, f"Memory besides the backbone: {setting}", stats)


def memory_rows(results: Results, setting: str) -> pd.DataFrame:
    """Return the last row of each compared run of a setting that says what it keeps."""
    rows = last_rows(results.compared())
    return rows[(rows["setting"] == setting) & (rows["components"].map(len) > 0)]


def kept_elements(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the elements that each run keeps, a column for each component and their total."""
    kept = pd.DataFrame(list(rows["components"]), index=rows.index)
    kept["total"] = kept.sum(axis=1)
    return kept


# ---------------------------------------------------------------------- settings and runs


def settings_table(results: Results) -> ReportTable:
    """Tabulate the reference configuration of each method in each setting."""
    compared = results.compared()
    references = compared.query("origin == 'measured'")
    rows = references.drop_duplicates(["setting", "label"])
    texts = rows[["setting", "label"]].rename(columns={"label": "method"})
    texts["reference configuration"] = rows["config"].map(config_text)
    title = "What a method's name stands for; variants say what they change"
    return text_table("settings", title, texts)


def config_text(config: Settings) -> str:
    """Return the settings of a method itself as text."""
    return "; ".join(
        f"{key}: {value_text(value)}"
        for key, value in sorted(config.items())
        if key != "head" and not key.startswith(("data.", "trainer."))
    )


def runs_table(results: Results) -> ReportTable:
    """Tabulate every run that was used, with its folder and its machine."""
    runs = last_rows(results.table).query("origin != 'published'")
    accuracies = {column.run: column.header for column in ACCURACIES}
    columns = {
        "setting": "setting",
        "label": "method",
        "seed": "seed",
        "class_order": "class order",
        **accuracies,
        "machine": "machine",
        "energy_from": "energy from",
        "commit": "commit",
        "run": "folder",
    }
    rows = runs[list(columns)].astype(object)
    for column in accuracies:
        rows[column] = rows[column].map("{:.2f}".format)
    texts = rows.fillna("").map(str).rename(columns=columns)
    return text_table("runs", "Runs", texts)


# ---------------------------------------------------------------------- all of them


def all_tables(results: Results) -> dict[str, list[ReportTable]]:
    """Make all tables.

    Returns:
        Section of the report → its tables, which may be none.
    """
    settings = results.settings
    keys = results.other_keys()
    sections: dict[str, list[ReportTable | None]] = {
        "Accuracy": [accuracy_table(results)],
        "Efficiency": [efficiency_table(results, data) for data in results.data],
        "Memory": [memory_table(results, setting) for setting in settings],
        "Ablation": [ablation_table(results)],
        "Buffer": [
            value_table(results, "buffer.capacity", "buffer_size"),
            value_table(results, "buffer.strategy", "sampling"),
        ],
        "Other settings": [value_table(results, key, file_name(key)) for key in keys],
        "All results": [results_table(results, setting) for setting in settings],
        "Settings": [settings_table(results)],
        "Runs": [runs_table(results)],
    }
    # Without those that could not be made.
    return {name: list(filter(None, tables)) for name, tables in sections.items()}


def report_notes(results: Results) -> list[str]:
    """Return the notes that concern more than one table; they end the report."""
    measured = results.measured
    orders = measured["class_order"]
    lines = rendered(
        NOTES,
        one_order=orders.nunique() == 1,
        orders_are_seeds=orders.equals(measured["seed"]),
        published=(results.table["origin"] == "published").any(),
        locked=measured["variant"].str.contains("locked").any(),
    )
    return lines.strip().splitlines()
