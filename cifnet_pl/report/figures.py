"""Draw the figures of a report: accuracy over tasks, ablations, costs and memory.

All figures have one style, and lines and bars differ in grey too. Half a page wide their letters
are still legible, and no two texts of a figure overlap.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogFormatterSciNotation,
    LogLocator,
    MaxNLocator,
    NullFormatter,
)

from cifnet_pl.report.external_results import published_of
from cifnet_pl.report.settings import ABLATIONS, Setting, heading
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Study, seed_counts
from cifnet_pl.report.table_formats import Column, cell_text, format_number
from cifnet_pl.utilities.text import slug

COLOURS = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#7A5C00",
    "#8B8B8B",
    "#A50026",
    "#E69F00",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
LINE_STYLES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (5, 1)),
    (0, (3, 1, 1, 1)),
    (0, (1, 1)),
    (0, (7, 2, 1, 2)),
)
"""The three lists have different lengths, so that no two lines of a panel look the same."""

SMALL_FONT = 10.5
"""Points of numbers, long labels and titles of panels."""

STYLE_FILE = Path(__file__).parent / "templates" / "figures.mplstyle"
STYLE: Any = matplotlib.rc_params_from_file(STYLE_FILE, use_default_template=False)
"""Settings of all figures, with which two reports of the same runs are the same bytes."""

LONG_HORIZON_TASKS = 40
"""Tasks from which on a sequence counts as a long horizon (fig:long_tail has 50)."""

LINES_PER_PANEL = 8
"""Lines that can be told apart in one panel; more of them are divided among panels."""

SMALLEST_BUBBLE = 30.0
LARGEST_BUBBLE = 900.0
"""Areas in square points of the bubbles of the least and the most energy."""

DEVIATION_NOTE = " Bars: ± one standard deviation over seeds, where there are several."
PANEL_NOTE = (
    " Panels differ in machine, in how energy was measured, or in the use of the embedding"
    " cache."
)


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and its caption."""

    name: str
    caption: str
    figure: Figure


# ---------------------------------------------------------------------- what all figures share


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts never overlap.

    Args:
        width, height: in inches.
    """
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def label_rows(axes: Axes, names: Sequence[str], numbers: Sequence[str] = ()) -> None:
    """Write the names of the rows of a figure at the left, and their numbers at the right.

    Args:
        axes: row i is drawn at y = i; the y axis is turned, so that row 0 is at the top.
        names: of the rows.
        numbers: of the rows.
    """
    coordinates = ("axes fraction", "data")
    for row, text in enumerate(numbers):
        place = (1.02, row)
        axes.annotate(
            text, place, xycoords=coordinates, va="center", fontsize=SMALL_FONT
        )
    axes.set_yticks(range(len(names)), names)
    below = len(names) - 0.4
    axes.set_ylim(below, -0.6)


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Add a legend below the axes, where it hides no data; long names are wrapped.

    Args:
        figure: with a constrained layout.
        axes: whose handles and labels the legend shows.
        columns: number of columns, fewer if the names are too wide: a letter is about 6 points, the
            sample line 50.
    """
    handles, labels = axes.get_legend_handles_labels()
    if columns == 1:
        width = 54
    else:
        width = 26
    names = [wrapped_label(label, width) for label in labels]
    lines = []
    for name in names:
        lines += name.splitlines()
    longest = max(map(len, lines), default=1)
    points = 72 * figure.get_figwidth()
    width = 6 * longest + 50
    fitting = int(points / width)
    columns = max(1, min(columns, fitting, len(names)))
    place = cast(Any, "outside lower center")
    figure.legend(handles, names, loc=place, ncols=columns)


def wrapped_label(label: str, width: int, lines: int = 2) -> str:
    """Return a label in at most ``lines`` lines of ``width`` letters, broken between words.

    A dollar begins no formula. The middle of a longer label is left out: the end is kept, as
    variants of one method differ there, and tables have the whole name.

    Example:
        >>> wrapped_label("a method with a name that is far too long, width 64", 16)
        'a method with a\\n… long, width 64'
    """
    broken = textwrap.wrap(label, width, break_on_hyphens=False)
    if len(broken) > lines:
        reversed_lines = textwrap.wrap(label[::-1], width - 2, break_on_hyphens=False)
        end = reversed_lines[0][::-1]
        first_lines = broken[: lines - 1]
        broken = [*first_lines, f"… {end}"]
    return "\n".join(broken).replace("$", r"\$")


def plain_log_ticks(axes: Axes) -> None:
    """Write plain numbers at a log x axis, few enough not to touch; powers of ten if long."""
    low, high = axes.get_xlim()
    ratio = high / low
    if ratio > 300:
        steps: tuple[float, ...] = (1.0,)
    elif ratio > 8:
        steps = (1.0, 2.0, 5.0)
    else:
        steps = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=steps, numticks=8))
    is_extreme = high >= 1e5 or low < 1e-3
    if ratio > 300 and is_extreme:
        axes.xaxis.set_major_formatter(LogFormatterSciNotation())
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(_plain_number))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _plain_number(x: float, position: int | None = None) -> str:
    return f"{x:,.10g}"


def render(picture: Picture) -> tuple[bytes, bytes]:
    """Return a figure as PNG and SVG; the same figure gives the same bytes."""
    png = io.BytesIO()
    svg = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        picture.figure.savefig(png, format="png", metadata={"Software": None})
        picture.figure.savefig(
            svg, format="svg", metadata={"Date": None, "Creator": None}
        )
    return png.getvalue(), svg.getvalue()


def _with_seed_counts(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """Append the number of seeds to labels of measured groups if they differ: "CIFNet (n = 2)"."""
    names = []
    counts = seed_counts(groups)
    for label, count in zip(labels, counts, strict=True):
        if count:
            name = f"{label} ({count})"
        else:
            name = label
        names.append(name)
    return names


# ---------------------------------------------------------------------- lines over tasks


@dataclass(frozen=True)
class LineFigure:
    """A figure with a line of A_k for each group.

    Attributes:
        name: of its files.
        caption: below it.
        title: above it.
        groups: that are drawn.
        labels: of the groups.
    """

    name: str
    caption: str
    title: str
    groups: list[Group]
    labels: list[str]


def trajectories(study: Study) -> list[Picture]:
    """Draw A_k over classes seen.

    There is a figure of all methods on the same data (fig:curves), one of those on each backbone
    (fig:classifier_ablation), and one of the variants of a method (fig:ablation_curve).

    Args:
        study: all results.
    """
    requests = []
    for first, name in study.data_names.items():
        settings = study.on_the_same_data(first)
        groups = []
        for setting in settings:
            groups += study.compared(setting)
        file = study.data_slug(first)
        requests.append(_trajectory(file, name, groups))
        if len(settings) > 1:
            for s in settings:
                slug_of_setting = study.slug(s)
                request = _trajectory(
                    slug_of_setting, study.names[s], study.compared(s)
                )
                requests.append(request)
    for family in study.varied(*ABLATIONS):
        reference = family[0]
        name = study.names[reference.setting]
        request = LineFigure(
            name=_file_of_family("ablation_curves", study, reference),
            caption=f"{reference.label} without one of its parts: A_k after each task, {name}.",
            title=f"{reference.label}: {name}",
            groups=family,
            labels=[group.variant for group in family],
        )
        requests.append(request)
    pictures = [_draw_lines(request) for request in requests]
    return [picture for picture in pictures if picture is not None]


def _file_of_family(kind: str, study: Study, reference: Group) -> str:
    """Return the name of a figure of a method and its variants."""
    setting = study.slug(reference.setting)
    method = slug(reference.name.lower())
    return f"{kind}_{setting}_{method}"


def _trajectory(file: str, name: str, groups: list[Group]) -> LineFigure:
    """Return the figure of all methods of one or more settings."""
    labels = [group.label for group in groups]
    is_long = [group.setting.n_tasks >= LONG_HORIZON_TASKS for group in groups]
    if any(is_long):
        caption = f"Long horizon: A_k after each task, {name}."
        return LineFigure(f"long_horizon_{file}", caption, name, groups, labels)
    caption = f"Accuracy over all classes seen: A_k after each task, {name}."
    return LineFigure(f"trajectory_{file}", caption, name, groups, labels)


def _line_names(groups: Sequence[Group], labels: Sequence[str]) -> list[str]:
    """Return the labels as the legend shows them, no two the same."""
    names = []
    for group, label in zip(groups, labels, strict=True):
        name = label
        if labels.count(label) > 1:
            name = f"{name} ({group.setting.backbone_title})"
        if name.startswith("_"):  # else the legend leaves it out
            name = f"\u2009{name}"
        if group.kind == "external":
            name = f"{name} (external)"
        names.append(name)
    return _with_seed_counts(names, groups)


def _draw_lines(request: LineFigure) -> Picture | None:
    """Draw a line for each group; return None where no group has two tasks."""
    drawn = []
    labels = []
    longest = 0
    for group, label in zip(request.groups, request.labels, strict=True):
        n_known = sum(stat is not None for stat in group.curve())
        longest = max(longest, n_known)
        if n_known:
            drawn.append(group)
            labels.append(label)
    if longest < 2:
        return None
    names = _line_names(drawn, labels)
    figure = _draw_panels(drawn, names, request.title)
    caption = f"{request.caption}{DEVIATION_NOTE}"
    return Picture(request.name, caption, figure)


def _draw_panels(groups: Sequence[Group], names: Sequence[str], title: str) -> Figure:
    """Draw the lines of A_k, at most ``LINES_PER_PANEL`` in a panel."""
    n_panels = -(-len(groups) // LINES_PER_PANEL)
    if n_panels == 1:
        height = 4.0 + 0.24 * len(groups)
    else:
        height = 0.6 + 2.9 * n_panels
    figure = new_figure(6.4, height)
    grid = figure.subplots(n_panels, 1, squeeze=False, sharex=True, sharey=True)
    panels = grid[:, 0]
    runs = []
    for group in groups:
        runs += group.runs
    classes_seen: Sequence[int] = ()
    if runs:
        classes_seen = runs[0].classes_seen
    lines = np.arange(len(groups))
    parts = np.array_split(lines, n_panels)
    for axes, rows in zip(panels, parts, strict=True):
        for position, i in enumerate(rows):
            phase = i / len(groups)
            name = names[i]
            group = groups[i]
            _draw_line(axes, group, classes_seen, position, name, phase)
        axes.set(ylabel="accuracy $A_k$ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if n_panels > 1:
            _legend_beside(axes)
    panels[0].set_title(wrapped_label(title, 52, 3))
    panels[-1].set_xlabel("classes seen")
    bottom, top = panels[0].get_ylim()
    lowest = max(bottom, -2.0)
    highest = min(top, 102.0)
    panels[0].set_ylim(lowest, highest)
    if n_panels == 1:
        legend_below(figure, panels[0], 2)
    return figure


def _legend_beside(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    names = [wrapped_label(label, 24) for label in labels]
    place = (1.01, 0.5)
    axes.legend(
        handles, names, loc="center left", bbox_to_anchor=place, fontsize=SMALL_FONT
    )


def _line_style(position: int) -> dict[str, Any]:
    """Return colour, marker and line style of a line by its position in the panel."""
    return {
        "color": COLOURS[position % len(COLOURS)],
        "marker": MARKERS[position % len(MARKERS)],
        "linestyle": LINE_STYLES[position % len(LINE_STYLES)],
    }


def _draw_line(
    axes: Axes,
    group: Group,
    classes_seen: Sequence[int],
    position: int,
    label: str,
    phase: float,
) -> None:
    """Draw A_k with its deviation.

    In a long sequence only some tasks have a marker, at other tasks for each method.
    """
    curve = group.curve()
    run = group.outcomes[0].run
    if run is not None and run.classes_seen:
        classes_seen = run.classes_seen
    places = classes_seen or range(1, len(curve) + 1)
    known = []
    for place, stat in zip(places, curve, strict=False):
        if stat is not None:
            deviation = stat.sd or 0.0
            known.append((place, stat.mean, deviation))
    values = np.array(known, dtype=float)
    x, means, deviations = values.T
    bars = None
    if deviations.any():
        below = np.minimum(deviations, means)
        above = np.minimum(deviations, 100 - means)
        bars = np.stack([below, above])
    step = max(1, len(x) // 10)
    shown = (int(phase * step), step)
    axes.errorbar(
        x,
        means,
        bars,
        markevery=shown,
        errorevery=shown,
        label=label,
        capsize=2,
        elinewidth=0.8,
        **_line_style(position),
    )


# ---------------------------------------------------------------------- lines over a setting


def value_curves(study: Study, *keys: str) -> list[Picture]:
    """Draw A_K against each setting that varies alone, such as the buffer's size.

    This is fig:buffer_ablation for ``buffer.capacity``.

    Args:
        study: all results.
        keys: dotted names of the settings.
    """
    pictures = []
    for key in keys:
        families = []
        for family in study.varied(key):
            shown = []
            for g in family:
                if _is_positive(g.config.get(key)) and g.stat("A_K"):
                    shown.append(g)
            if len(shown) > 1:
                families.append(shown)
        if families:
            if key == "buffer.capacity":
                name = "buffer_size"
            else:
                name = f"by_{slug(key)}"
            caption = f"Final accuracy by {heading(key)}.{DEVIATION_NOTE}"
            figure = _draw_values(study, families, key)
            pictures.append(Picture(name, caption, figure))
    return pictures


def _is_positive(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) and value > 0


def _draw_values(study: Study, families: Sequence[Sequence[Group]], key: str) -> Figure:
    """Draw a line for each family over the values that were run, at equal distances."""
    height = 3.8 + 0.18 * len(families)
    figure = new_figure(6.0, height)
    axes = figure.subplots()
    found: set[Any] = set()
    for family in families:
        found |= {group.config[key] for group in family}
    values = sorted(found)
    for i, family in enumerate(families):
        reference = family[0]
        setting_name = study.names[reference.setting]
        name = f"{setting_name}: {reference.label}"
        points = []
        for group in family:
            stat = group.stat("A_K")
            if stat is not None:
                place = values.index(group.config[key])
                deviation = stat.sd or 0.0
                points.append((place, stat.mean, deviation))
        ordered = sorted(points)
        x, means, deviations = zip(*ordered, strict=True)
        style = _line_style(i)
        axes.errorbar(x, means, deviations, capsize=3, label=name, **style)
    if len(values) > LINES_PER_PANEL:
        rotation = 90
    else:
        rotation = 0
    texts = [f"{value:g}" for value in values]
    axes.set_xticks(range(len(values)), texts, rotation=rotation)
    axes.set(xlabel=heading(key), ylabel="final accuracy $A_K$ (%)")
    legend_below(figure, axes, 1)
    return figure


# ---------------------------------------------------------------------- bars


@dataclass(frozen=True)
class AccuracyBars:
    """The two bars of one label of a figure."""

    label: str
    average: Stat | None
    final: Stat | None


def ablation_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K of each method without one of its parts (tab:ablation).

    The paper's numbers stand beside its own method.
    """
    pictures = []
    for family in study.varied(*ABLATIONS):
        reference = family[0]
        setting = reference.setting
        title = f"{reference.label}: {study.names[setting]}"
        variants = [group.variant for group in family]
        labels = _with_seed_counts(variants, family)
        bars = []
        for label, group in zip(labels, family, strict=True):
            average = group.stat("A_bar")
            final = group.stat("A_K")
            bars.append(AccuracyBars(label, average, final))
        if reference.name == "CIFNet":
            averages = published_of("tab:ablation", setting, "A_bar")
            finals = published_of("tab:ablation", setting, "A_K")
            for variant, final in finals.items():
                label = f"{variant or 'full method'} (published)"
                average = averages.get(variant)
                bars.append(AccuracyBars(label, average, final))
        file = _file_of_family("ablation", study, reference)
        parts = f"{reference.label} without one of its parts, {study.names[setting]}."
        figure = draw_bars(bars, title)
        caption = f"{parts}{DEVIATION_NOTE}"
        pictures.append(Picture(file, caption, figure))
    return pictures


def draw_bars(bars: Sequence[AccuracyBars], title: str) -> Figure:
    """Draw two horizontal bars for each label: Ā hatched, A_K filled, with their numbers.

    Args:
        bars: label, Ā and A_K.
        title: of the figure.
    """
    height = 1.4 + 0.58 * len(bars)
    figure = new_figure(6.4, height)
    axes = figure.subplots()
    averages: dict[float, Stat] = {}
    finals: dict[float, Stat] = {}
    for row, bar in enumerate(bars):
        if bar.average is not None:
            averages[row - 0.19] = bar.average
        if bar.final is not None:
            finals[row + 0.19] = bar.final
    ends = [0.0]
    ends += _draw_side(axes, averages, r"average accuracy $\bar{A}$", "#FFFFFF", "///")
    ends += _draw_side(axes, finals, "final accuracy $A_K$", "#222222", "")
    names = [wrapped_label(bar.label, 24) for bar in bars]
    label_rows(axes, names)
    axes.set(
        xlabel="accuracy (%)",
        xlim=(0, 1.22 * max(ends)),
        title=wrapped_label(title, 52, 3),
    )
    axes.grid(visible=False, axis="y")
    figure.legend(loc=cast(Any, "outside lower center"), ncols=2)
    return figure


def _draw_side(
    axes: Axes, stats: Mapping[float, Stat], label: str, colour: str, hatch: str
) -> list[float]:
    """Draw one bar of each label, with a fill that differs on paper without colours.

    Args:
        axes: to draw in.
        stats: vertical place of a bar → its number.
        label: in the legend.
        colour, hatch: of the fill.

    Returns:
        Where the bars and their deviations end.
    """
    if not stats:
        return []
    means = [stat.mean for stat in stats.values()]
    deviations = [np.nan if stat.sd is None else stat.sd for stat in stats.values()]
    axes.barh(
        list(stats),
        means,
        0.36,
        label=label,
        edgecolor="black",
        linewidth=0.7,
        xerr=deviations,
        ecolor="#888888",
        capsize=2,
        facecolor=colour,
        hatch=hatch,
    )
    ends = []
    for place, stat in stats.items():
        end = stat.mean + (stat.sd or 0.0)
        ends.append(end)
        axes.annotate(
            cell_text(stat, Column("", 1)),
            (end, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL_FONT,
        )
    return ends


# ---------------------------------------------------------------------- activations


def calibration_maps(study: Study) -> list[Picture]:
    """Draw how much later neurons respond to earlier classes, with and without calibration.

    This is fig:buffer_overlapping.
    """
    pictures = []
    for family in study.varied("buffer"):
        maps = []
        for group in reversed(family):
            matrix = mean_activations(group)
            if matrix is not None:
                maps.append((group, matrix))
        if len(maps) != 2:
            continue
        setting = family[0].setting
        name = _file_of_family("calibration", study, family[0])
        caption = (
            f"Effect of calibration, {study.names[setting]}: largest activation among the neurons"
            " of one task (columns), in percent, on average over the test images of another (rows),"
            " after the last task. Above the diagonal neurons of later tasks fire on earlier"
            " classes unless they are calibrated."
        )
        figure = _draw_maps(maps)
        pictures.append(Picture(name, caption, figure))
    return pictures


def mean_activations(group: Group) -> np.ndarray | None:
    """Return the mean over seeds of the recorded activations.

    Returns:
        (K, K); None if no run recorded them.
    """
    recorded = []
    for run in group.runs:
        if run.activations is not None:
            recorded.append(run.activations)
    shapes = {matrix.shape for matrix in recorded}
    if len(shapes) != 1:
        return None
    return np.asarray(np.mean(recorded, axis=0))


def _draw_maps(maps: Sequence[tuple[Group, np.ndarray]]) -> Figure:
    figure = new_figure(6.4, 5.0)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (group, shares) in zip(panels, maps, strict=True):
        size = len(shares)
        percentages = 100 * shares
        extent = (0.5, size + 0.5, size + 0.5, 0.5)
        image = axes.imshow(percentages, cmap="Greys", vmin=0, vmax=100, extent=extent)
        is_calibrated = group.changes.get("buffer", "yes") is not None
        if is_calibrated:
            title = "with calibration"
        else:
            title = "without calibration"
        later = percentages[np.triu_indices(size, 1)]
        if len(later):
            mean = np.nanmean(later)
            title = f"{title}\nabove the diagonal: {mean:.0f} %"
        axes.set_title(title)
        axes.set_xlabel("neurons of task")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        if size <= 10:
            _write_percentages(axes, percentages)
    panels[0].set_ylabel("test images of task")
    figure.colorbar(
        image,
        ax=list(panels),
        label="mean activation (%)",
        location="bottom",
        shrink=0.6,
        aspect=30,
    )
    return figure


def _write_percentages(axes: Axes, percentages: np.ndarray) -> None:
    """Write the number of each cell of a map into it."""
    centred: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL_FONT}
    for (i, j), value in np.ndenumerate(percentages):
        if not np.isnan(value):
            if value > 50:
                colour = "white"
            else:
                colour = "black"
            text = f"{value:.0f}"
            row = i + 1
            axes.text(j + 1, row, text, color=colour, **centred)


# ---------------------------------------------------------------------- costs


def cost_panels(
    study: Study, groups: Sequence[Group], key: str
) -> dict[str, list[Group]]:
    """Divide groups into panels of a figure, by kind and conditions; measured ones come first.

    Labels get the number of seeds if groups have different ones, and the backbone if there are
    several.

    Args:
        study: all results.
        groups: on the same data.
        key: value that a group must have to be shown.

    Returns:
        Title → groups whose costs may be compared.
    """
    shown = []
    for group in groups:
        for part in group.by_conditions():
            if part.stat(key) is not None:
                shown.append(part)
    measured = {group.setting for group in groups if group.kind == "measured"}
    has_backbones = len(measured) > 1
    panels: dict[str, list[Group]] = {}
    counts = seed_counts(shown)
    for group, count in zip(shown, counts, strict=True):
        title = group.kind
        label = count
        if group.kind == "measured":
            conditions = filter(None, group.conditions[0])
            title = ", ".join(conditions)
            if has_backbones:
                parts = [group.setting.backbone_title, count]
                label = ", ".join(filter(None, parts))
        # The title says under which conditions, so the label need not.
        relabelled = replace(group, conditions_label=label)
        panels.setdefault(title, []).append(relabelled)
    return panels


def time_bubbles(study: Study, setting: Setting) -> list[Picture]:
    """Draw Ā against training time; a bubble's area is proportional to energy (fig:bubble_green).

    Args:
        study: all results.
        setting: one of ``study.data_names``; all backbones that learned its data are drawn.

    Returns:
        One figure, or none if there is nothing to draw.
    """
    compared = []
    for same_data in study.on_the_same_data(setting):
        compared += study.compared(same_data)
    with_average = [group for group in compared if group.stat("A_bar")]
    panels = cost_panels(study, with_average, "train_seconds")
    drawn = []
    for groups in panels.values():
        drawn += groups
    if len(drawn) < 2:
        return []
    energies = _mean_energies(drawn)
    kwh_per_area = max(energies, default=1.0) / LARGEST_BUBBLE
    name = study.data_names[setting]
    heights = []
    for groups in panels.values():
        heights.append(1.5 + 0.4 * len(groups))
    figure = new_figure(6.4, 0.5 + sum(heights))
    layout: dict[str, Any] = {
        "squeeze": False,
        "sharex": True,
        "height_ratios": heights,
    }
    grid = figure.subplots(len(panels), 1, **layout)
    every = grid[:, 0]
    figure.suptitle(wrapped_label(name, 52, 3))
    _scale_time_axis(every[-1], drawn)
    for axes, (title, groups) in zip(every, panels.items(), strict=True):
        axes.set_title(wrapped_label(title, 52, 3), fontsize=SMALL_FONT)
        _draw_bubbles(axes, groups, kwh_per_area)
    figure.supylabel(r"average accuracy $\bar{A}$ (%)", fontsize=12)
    caption = f"Average accuracy against training time, {name}."
    caption += " The area of a bubble is proportional to the energy of training"
    end = "."
    if len(energies) < len(drawn):
        end = "; a cross has none measured."
    caption += end
    smallest = SMALLEST_BUBBLE * kwh_per_area
    if any(energy < smallest for energy in energies):
        caption += " A dashed bubble is drawn larger than its energy."
    if len(panels) > 1:
        caption += PANEL_NOTE
    file = f"time_{study.data_slug(setting)}"
    return [Picture(file, caption, figure)]


def _mean_energies(groups: Sequence[Group]) -> list[float]:
    """Return the energy in kWh of each group that has one measured."""
    energies = []
    for group in groups:
        energy = group.stat("energy_kwh")
        if energy is not None:
            energies.append(energy.mean)
    return energies


def _scale_time_axis(axes: Axes, groups: Sequence[Group]) -> None:
    """Give the time axis a log scale with room for the largest bubble, a tenth of the axes wide."""
    minutes = [group.mean("train_seconds") / 60 for group in groups]
    shortest = min(minutes)
    longest = max(minutes)
    margin = max(1.7, (longest / shortest) ** 0.1)
    axes.set(xscale="log", xlabel="training time (minutes, all tasks)")
    earliest = shortest / margin
    latest = longest * margin
    axes.set_xlim(earliest, latest)


def _draw_bubbles(axes: Axes, groups: Sequence[Group], kwh_per_area: float) -> None:
    """Draw a bubble for each group; the least area is ``SMALLEST_BUBBLE``."""
    ordered = sorted(groups, key=lambda group: -group.mean("A_bar"))
    for i, group in enumerate(ordered):
        minutes = group.mean("train_seconds") / 60
        accuracy = group.mean("A_bar")
        energy = group.stat("energy_kwh")
        colour = COLOURS[i % len(COLOURS)]
        label = group.label
        if energy is None:
            axes.scatter(minutes, accuracy, s=SMALLEST_BUBBLE, marker="x", color=colour)
        else:
            area = energy.mean / kwh_per_area
            kwh = format_number(energy.mean, None)
            label = f"{label}, {kwh}\u00a0kWh"
            style = "-"
            if area < SMALLEST_BUBBLE:
                style = "--"
            axes.scatter(
                minutes,
                accuracy,
                s=max(SMALLEST_BUBBLE, area),
                marker="o",
                facecolor=(colour, 0.45),
                edgecolor=colour,
                linestyle=style,
                zorder=4 - area / LARGEST_BUBBLE,
            )
        if group.conditions_label:
            lines = 4
        else:
            lines = 2
        arrow = {
            "arrowstyle": "-",
            "linewidth": 0.6,
            "color": "#777777",
            "relpos": (0.0, 0.5),
        }
        height = 1 - (i + 0.5) / len(ordered)
        axes.annotate(
            wrapped_label(label, 26, lines),
            (minutes, accuracy),
            (1.03, height),
            textcoords="axes fraction",
            fontsize=SMALL_FONT,
            va="center",
            annotation_clip=False,
            arrowprops=arrow,
        )
    axes.margins(y=0.25)
    plain_log_ticks(axes)


# ---------------------------------------------------------------------- memory


def memory_points(study: Study, setting: Setting) -> list[Picture]:
    """Draw the elements kept on a log scale: a point per component, a filled one for the total.

    This is fig:memory.

    Args:
        study: all results.
        setting: whose groups are drawn.
    """
    groups = []
    for group in study.with_published(setting):
        if group.components and group.stat("state_elements"):
            groups.append(group)
    if not any(group.kind == "measured" for group in groups):
        return []
    names = []
    numbers = []
    points: dict[str, list[tuple[float, int]]] = {"total": []}
    for row, group in enumerate(groups):
        if group.kind == "measured":
            name = group.label
        else:
            name = f"{group.label} ({group.kind})"
        names.append(wrapped_label(name, 24))
        total = group.mean("state_elements")
        if total >= 1e6:
            size = f"{total / 1e6:.3g} M"
        else:
            size = format_number(total, None)
        numbers.append(size)
        points["total"].append((total, row))
        for component, count in group.components.items():
            of_component = points.setdefault(component, [])
            of_component.append((count, row))
    height = 1.8 + 0.45 * len(groups)
    figure = new_figure(6.4, height)
    axes = figure.subplots()
    for i, (component, places) in enumerate(points.items()):
        fill = "none"
        if i == 0:
            fill = "black"
        axes.plot(
            *zip(*places, strict=True),
            MARKERS[i % len(MARKERS)],
            markersize=7,
            markeredgewidth=1.4,
            label=component,
            markerfacecolor=fill,
            markeredgecolor=COLOURS[i % len(COLOURS)],
            linestyle="none",
            zorder=3 - i / len(points),
        )
    label_rows(axes, names, numbers)
    axes.set(xlabel="elements kept besides the backbone (log scale)", xscale="log")
    title = wrapped_label(study.names[setting], 52, 3)
    axes.set_title(title)
    axes.margins(x=0.06)
    legend_below(figure, axes, 4)
    caption = (
        f"Memory besides the backbone after the last task by component, {study.names[setting]};"
        " right: the total."
    )
    file = f"memory_{study.slug(setting)}"
    return [Picture(file, caption, figure)]


# ---------------------------------------------------------------------- all of them


def all_pictures(study: Study) -> dict[str, list[Picture]]:
    """Draw all figures.

    Returns:
        Section of the report → its figures.
    """
    with matplotlib.rc_context(STYLE):
        efficiency = []
        for setting in study.data_names:
            efficiency += time_bubbles(study, setting)
        memory = []
        for setting in study.settings:
            memory += memory_points(study, setting)
        return {
            "Accuracy": trajectories(study),
            "Efficiency": efficiency,
            "Memory": memory,
            "Ablation": [*ablation_bars(study), *calibration_maps(study)],
            "Buffer": value_curves(study, "buffer.capacity"),
            "Other settings": value_curves(study, *study.other_keys()),
        }
