"""Draw the figures of a report from its table: accuracy over tasks, ablations, costs and memory.

All figures have one style, and lines and bars differ in grey too. Half a page wide their letters
are still legible, and no two texts of a figure overlap.
"""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cifnet_pl.learning.columns import BY_KEY
from cifnet_pl.report.results import ABLATIONS, Results, last_rows
from cifnet_pl.report.tables import (
    FINAL,
    HEADINGS,
    file_name,
    kept_elements,
    memory_rows,
    number_text,
    summarise,
    value_rows,
)

STYLE_FILE = Path(__file__).parent / "templates" / "figures.mplstyle"
STYLE: Any = matplotlib.rc_params_from_file(STYLE_FILE, use_default_template=False)
"""Settings of all figures, with which two reports of the same runs are the same bytes.

Their lines differ in colour, marker and line style, and repeat after forty.
"""

LARGEST_BUBBLE = 900.0
"""Area in square points of the bubble of the most energy."""

DEVIATIONS = " Bars: ± one standard deviation over seeds, where there are several."


@dataclass
class Picture:
    """A figure with the name of its files and its caption."""

    name: str
    caption: str
    figure: Figure


# ---------------------------------------------------------------------- what all figures share


def new_figure(height: float) -> Figure:
    """Return an empty figure, as wide as half a page, whose parts never overlap.

    Args:
        height: in inches.
    """
    return Figure(figsize=(6.4, height), dpi=150, layout="constrained")


def wrapped(text: str, width: int) -> str:
    """Return a text in lines of at most ``width`` letters; a dollar begins no formula.

    Example:
        >>> wrapped("Exact ridge, λ 0.01", 12)
        'Exact ridge,\\nλ 0.01'
    """
    lines = textwrap.wrap(text, width, break_on_hyphens=False)
    return "\n".join(lines).replace("$", r"\$")


def add_legend(axes: Axes, owner: Axes | Figure, **place: Any) -> None:
    """Add a legend of the axes, with wrapped names, to them or to their figure."""
    handles, labels = axes.get_legend_handles_labels()
    owner.legend(handles, [wrapped(label, 26) for label in labels], **place)


BELOW: dict[str, Any] = {"loc": "outside lower center", "ncols": 2}
"""Place of a legend below the axes, where it hides no data."""


def draw_lines(stats: pd.DataFrame, title: str) -> tuple[Figure, Axes]:
    """Draw a line for each name, with bars of one standard deviation.

    In a long sequence only some points have a marker.

    Args:
        stats: ``mean`` and ``std``, by name and place.
        title: of the figure.
    """
    names = stats.index.unique(0)
    figure = new_figure(4.0 + 0.24 * len(names))
    axes = figure.subplots()
    for name in names:
        curve = stats.xs(name)
        step = max(1, len(curve) // 10)
        axes.errorbar(
            curve.index,
            curve["mean"],
            curve["std"],
            label=name,
            markevery=step,
            errorevery=step,
            capsize=2,
            elinewidth=0.8,
        )
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, -2.0), min(top, 102.0))
    axes.set_title(wrapped(title, 52))
    add_legend(axes, figure, **BELOW)
    return figure, axes


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure as "png" or "svg"; the same figure gives the same bytes."""
    content = io.BytesIO()
    metadata = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    with matplotlib.rc_context(STYLE):
        figure.savefig(content, format=kind, metadata=metadata[kind])
    return content.getvalue()


# ---------------------------------------------------------------------- lines over tasks


def trajectories(results: Results) -> list[Picture | None]:
    """Draw A_k over classes seen.

    There is a figure of all methods on the same data (fig:curves, fig:long_tail), one of those on
    each backbone (fig:classifier_ablation), and one of the variants of a method
    (fig:ablation_curve).

    Args:
        results: of the report.
    """
    compared = results.compared()
    pictures = []
    # With one backbone a setting has the name of its data, and is one figure.
    for name in dict.fromkeys([*results.data, *results.settings]):
        is_own = (compared["data"] == name) | (compared["setting"] == name)
        pictures.append(line_picture("trajectory", name, compared[is_own]))
    for family in results.families(*ABLATIONS):
        measured = family.query("origin == 'measured'")
        rows = measured.assign(label=measured["variant"])
        pictures.append(line_picture("ablation_curves", family_title(family), rows))
    return pictures


def family_title(family: pd.DataFrame) -> str:
    """Return the title of a figure of a method and its variants."""
    return f"{family['setting'].iloc[0]}, {family['method'].iloc[0]}"


def line_picture(kind: str, title: str, rows: pd.DataFrame) -> Picture | None:
    """Return a figure with a line of A_k for each label; None where no line has two tasks.

    Args:
        kind: first word in the name of its files.
        title: of the figure.
        rows: of results.
    """
    known = rows.dropna(subset="A_k")
    if known["task"].nunique() < 2:
        return None
    once = known.drop_duplicates(["setting", "label", "pair", "task"], keep="last")
    once = once.drop_duplicates(["setting", "label", "answers", "task"])
    grouped = once.groupby([line_names(once), "classes_seen"], sort=False)["A_k"]
    figure, axes = draw_lines(grouped.agg(["mean", "std"]), title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="classes seen", ylabel="accuracy $A_k$ (%)")
    caption = (
        f"{title}: accuracy A_k over all classes seen, after each task.{DEVIATIONS}"
    )
    return Picture(file_name(kind, title), caption, figure)


def line_names(rows: pd.DataFrame) -> pd.Series:
    """Return the label of each row, with its origin, and its backbone where it has several."""
    names = rows["label"]
    is_measured = rows["origin"] == "measured"
    names = names.where(is_measured, names + " (" + rows["origin"] + ")")
    several = rows["backbone"].groupby(names).transform("nunique") > 1
    return names.where(~several, names + " (" + rows["backbone"] + ")")


# ---------------------------------------------------------------------- lines over a setting


def value_curve(results: Results, key: str, name: str) -> Picture | None:
    """Draw A_K against a setting that varies alone, such as the buffer's size.

    This is fig:buffer_ablation for ``buffer.capacity``.

    Args:
        results: of the report.
        key: dotted name of the setting.
        name: of the figure's files.

    Returns:
        None if there are fewer than two numbers.
    """
    known = value_rows(results, key).dropna(subset=["number", "A_K"])
    values = sorted(known["number"].unique())
    if len(values) < 2:
        return None
    places = known.assign(place=known["number"].map(values.index))
    stats = summarise(places, {"line": "line", "place": "place"}, [FINAL])
    heading = HEADINGS.get(key, key)
    title = f"Final accuracy by {heading}"
    figure, axes = draw_lines(stats[FINAL.header].sort_index(level=1), title)
    texts = [f"{value:g}" for value in values]
    axes.set_xticks(range(len(values)), texts, rotation="vertical")
    axes.set(xlabel=heading, ylabel="final accuracy $A_K$ (%)")
    return Picture(name, f"{title}.{DEVIATIONS}", figure)


# ---------------------------------------------------------------------- activations


def calibration_maps(results: Results) -> list[Picture]:
    """Draw how much later neurons respond to earlier classes, with and without calibration.

    This is fig:buffer_overlapping.
    """
    pictures = []
    for family in results.families("buffer"):
        measured = last_rows(family.query("origin == 'measured'"))
        has_buffer = measured["config"].map(lambda config: config["buffer"] is not None)
        maps = []
        for _, rows in measured.groupby(has_buffer):
            paths = [Path(folder) / "activations.csv" for folder in rows["run"]]
            tables = [
                pd.read_csv(path, index_col=0) for path in paths if path.is_file()
            ]
            if tables:
                maps.append(100 * np.mean(tables, axis=0))
        if len(maps) < 2:
            continue
        title = family_title(family)
        caption = (
            f"Effect of calibration, {title}: largest activation among the neurons of one task"
            " (columns), in percent, on average over the test images of another (rows), after the"
            " last task. Above the diagonal neurons of later tasks fire on earlier classes unless"
            " they are calibrated."
        )
        picture = Picture(file_name("calibration", title), caption, draw_maps(maps))
        pictures.append(picture)
    return pictures


def draw_maps(maps: Sequence[np.ndarray]) -> Figure:
    """Draw the activations without and with calibration beside each other.

    Args:
        maps: of both, (K, K) in percent: row i, column j is the mean over the test images of task i
            of the largest activation among the neurons of task j.
    """
    figure = new_figure(5.0)
    panels = figure.subplots(1, 2, sharey=True)
    titles = ("without calibration", "with calibration")
    for axes, title, percentages in zip(panels, titles, maps, strict=True):
        size = len(percentages)
        extent = (0.5, size + 0.5, size + 0.5, 0.5)
        image = axes.imshow(percentages, cmap="Greys", vmin=0, vmax=100, extent=extent)
        later = np.nanmean(percentages[np.triu_indices(size, 1)])
        axes.set_title(f"{title}\nabove the diagonal: {later:.0f} %")
        axes.set_xlabel("neurons of task")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    panels[0].set_ylabel("test images of task")
    label = "mean activation (%)"
    figure.colorbar(image, ax=panels, label=label, location="bottom", shrink=0.6)
    return figure


# ---------------------------------------------------------------------- costs


def time_bubbles(results: Results, data: str) -> Picture | None:
    """Draw Ā against training time; a bubble's area is proportional to energy (fig:bubble_green).

    Costs under different conditions have panels of their own.

    Args:
        results: of the report.
        data: one of ``results.data``; all backbones that learned it are drawn.

    Returns:
        None if there are fewer than two methods.
    """
    compared = results.compared()
    rows = compared[compared["data"] == data].dropna(subset=["train_seconds", "A_bar"])
    if rows["run"].nunique() < 2:
        return None
    conditions = rows["machine"] + ", " + rows["energy_from"]
    rows = rows.assign(
        conditions=conditions.str.strip(", "), label=line_names(rows).map(str)
    )
    by = {"conditions": "conditions", "label": "label"}
    drawn = [BY_KEY[key] for key in ("A_bar", "train_seconds", "energy_kwh")]
    stats = summarise(rows, by, drawn)
    headers = [column.header for column in drawn]
    points = stats.xs("mean", axis=1, level=1).reindex(columns=headers)
    points = points.set_axis(["accuracy", "minutes", "energy"], axis=1)
    panels = list(points.groupby(level=0, sort=False))
    figure = new_figure(0.8 + 2.6 * len(panels))
    figure.suptitle(wrapped(data, 52))
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)
    for axes, (title, own) in zip(grid[:, 0], panels, strict=True):
        axes.set_title(wrapped(title, 64), fontsize="small")
        draw_bubbles(axes, own.droplevel(0), points["energy"].max())
    axes.margins(x=0.25)
    axes.set(xscale="log", xlabel="training time (minutes, all tasks)")
    axes.xaxis.set_major_formatter("{x:g}")
    figure.supylabel(r"average accuracy $\bar{A}$ (%)")
    caption = (
        f"{data}: average accuracy against training time. The area of a bubble is proportional to"
        " the energy of training; a mark without a bubble has none measured, or little."
    )
    return Picture(file_name("time", data), caption, figure)


def draw_bubbles(axes: Axes, points: pd.DataFrame, most: float) -> None:
    """Draw a mark and a bubble for each row.

    Args:
        axes: to draw in.
        points: name → ``accuracy``, ``minutes`` and ``energy``.
        most: energy in kWh of the largest bubble of the figure.
    """
    ordered = points.sort_values("accuracy", ascending=False)
    for name, accuracy, minutes, energy in ordered.itertuples():
        (mark,) = axes.plot(minutes, accuracy, linestyle="none", label=name)
        if energy > 0:
            mark.set_label(f"{name}, {number_text(energy)}\u00a0kWh")
            area = LARGEST_BUBBLE * energy / most
            axes.scatter(minutes, accuracy, area, color=mark.get_color(), alpha=0.35)
    axes.margins(y=0.25)
    add_legend(axes, axes, loc="center left", bbox_to_anchor=(1.01, 0.5))


# ---------------------------------------------------------------------- memory


def memory_points(results: Results, setting: str) -> Picture | None:
    """Draw the elements kept on a log scale: a point per component, a filled one for the total.

    This is fig:memory.

    Args:
        results: of the report.
        setting: whose methods are drawn.
    """
    rows = memory_rows(results, setting)
    if rows.query("origin == 'measured'").empty:
        return None
    kept = kept_elements(rows).set_index(line_names(rows))
    kept = kept[~kept.index.duplicated()]
    figure = new_figure(1.9 + 0.5 * len(kept))
    axes = figure.subplots()
    places = range(len(kept))
    for component in reversed(kept.columns):
        fill = "full" if component == "total" else "none"
        points = axes.plot(kept[component], places, label=component, fillstyle=fill)
        points[0].set(linestyle="none", markersize=7)
    axes.set_yticks(places, [wrapped(name, 26) for name in kept.index])
    axes.invert_yaxis()
    axes.margins(y=0.2)
    axes.set(xlabel="elements kept besides the backbone", xscale="log")
    axes.set_title(wrapped(setting, 52))
    add_legend(axes, figure, **BELOW)
    caption = f"{setting}: memory besides the backbone after the last task, by component, in all."
    return Picture(file_name("memory", setting), caption, figure)


# ---------------------------------------------------------------------- all of them


def all_pictures(results: Results) -> dict[str, list[Picture]]:
    """Draw all figures.

    Returns:
        Section of the report → its figures, which may be none.
    """
    keys = results.other_keys()
    with matplotlib.rc_context(STYLE):
        sections: dict[str, Sequence[Picture | None]] = {
            "Accuracy": trajectories(results),
            "Efficiency": [time_bubbles(results, data) for data in results.data],
            "Memory": [memory_points(results, name) for name in results.settings],
            "Ablation": calibration_maps(results),
            "Buffer": [value_curve(results, "buffer.capacity", "buffer_size")],
            "Other settings": [
                value_curve(results, key, file_name("by", key)) for key in keys
            ],
        }
    # Without those that could not be drawn.
    return {name: list(filter(None, drawn)) for name, drawn in sections.items()}
