"""Draw the figures of a report: accuracy over tasks, ablations, costs, memory; all look alike, and
differ in grey too.

Half a page wide their letters are still legible, and no two texts of a figure overlap.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import replace
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
from cifnet_pl.report.page import Column, Picture, cell_text, number
from cifnet_pl.report.settings import LACKING, Setting, heading
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Study, differing_seeds
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
LINES: tuple[Any, ...] = (
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

SMALL = 10.5
"""Points of numbers, long labels and titles of panels: half a page wide a figure is still
legible.
"""

STYLE = Path(__file__).parent / "templates" / "figures.mplstyle"
SETTINGS: Any = matplotlib.rc_params_from_file(STYLE, use_default_template=False)
"""What all figures have in common, with which two reports of the same runs are the same bytes."""

LONG = 40
"""Tasks from which on a sequence counts as a long horizon (fig:long_tail has 50)."""

MOST = 8
"""Lines that can be told apart in one panel; more of them are divided among panels on the same
axes.
"""

SMALLEST = 30.0
LARGEST = 900.0
"""Areas in square points of the bubbles of the least and the most energy that a figure can tell
apart.
"""

BARS = " Bars: ± one standard deviation over seeds, where there are several."
PANELS = (
    " Panels differ in machine, in how energy was measured, or in the use of the embedding cache."
)

# ---------------------------------------------------------------------- what all figures share


def figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts never overlap.

    Args:
        width, height: in inches.
    """
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def label_rows(axes: Axes, names: Sequence[str], numbers: Sequence[str] = ()) -> None:
    """Name the rows of a figure, 0 at the top, at the left, and write their numbers at the right.

    Args:
        axes: with something at y = 0, 1, …
        names: of the rows.
        numbers: of the rows.
    """
    for row, text in enumerate(numbers):
        axes.annotate(
            text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL
        )
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def legend_below(target: Figure, axes: Axes, columns: int) -> None:
    """Add a legend below the axes, where it hides no data; long names are wrapped.

    Args:
        target: figure with a constrained layout.
        axes: whose handles and labels the legend shows.
        columns: number of columns, fewer if the names are too wide: a letter is about 6 points, the
            sample line 50.
    """
    handles, labels = axes.get_legend_handles_labels()
    names = [fitted(label, 54 if columns == 1 else 26) for label in labels]
    longest = max((len(line) for name in names for line in name.splitlines()), default=1)
    fitting = int(72 * target.get_figwidth() / (6 * longest + 50))
    columns = max(1, min(columns, fitting, len(names)))
    target.legend(handles, names, loc=cast(Any, "outside lower center"), ncols=columns)


def fitted(label: str, width: int, lines: int = 2) -> str:
    """Return a label in at most ``lines`` lines of ``width`` letters, broken between words; a
    dollar begins no formula.

    The middle of a longer one is left out: the end is kept, as variants of one method differ there,
        and tables have
    the whole name.

    Example:
        >>> fitted("a method with a name that is far too long, width 64", 16)
        'a method with a\\n… long, width 64'
    """
    broken = textwrap.wrap(label, width, break_on_hyphens=False)
    if len(broken) > lines:
        end = textwrap.wrap(label[::-1], width - 2, break_on_hyphens=False)[0][::-1]
        broken = [*broken[: lines - 1], f"… {end}"]
    return "\n".join(broken).replace("$", r"\$")


def plain_log_ticks(axes: Axes) -> None:
    """Write plain numbers at a log x axis, few enough that they do not touch; powers of ten if they
    are long.
    """
    low, high = axes.get_xlim()
    if high / low > 8:
        subs: tuple[float, ...] = (1.0, 2.0, 5.0)
    else:
        subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else subs, numticks=8))
    long = high >= 1e5 or low < 1e-3
    plain = FuncFormatter(lambda x, _: f"{x:,.10g}")
    axes.xaxis.set_major_formatter(
        LogFormatterSciNotation() if long and high / low > 300 else plain
    )
    axes.xaxis.set_minor_formatter(NullFormatter())


def render(picture: Picture) -> tuple[bytes, bytes]:
    """Return a figure as PNG and SVG; the same figure gives the same bytes."""
    png = io.BytesIO()
    svg = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        picture.figure.savefig(png, format="png", metadata={"Software": None})
        picture.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()


def _with_seeds(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """Append the number of seeds to the labels of measured groups if these have different ones:
    "CIFNet (n = 2)".
    """
    counts = differing_seeds(groups)
    return [
        f"{label} ({count})" if count else label
        for label, count in zip(labels, counts, strict=True)
    ]


# ---------------------------------------------------------------------- lines over tasks, and over
# a setting's values


def trajectories(study: Study) -> list[Picture]:
    """Draw A_k over classes seen: of all methods on the same data, of those on each network, and of
    the variants.

    These are fig:curves, fig:classifier_ablation (all on one network) and fig:ablation_curve.

    Args:
        study: all results.
    """
    asked = []
    for first, name in study.data_names.items():
        beside = study.on_the_same_data(first)
        asked.append(
            (study.data_slug(first), name, [group for s in beside for group in study.compared(s)])
        )
        if len(beside) > 1:
            asked += [(study.slug(s), study.names[s], study.compared(s)) for s in beside]
    pictures = []
    for place, name, groups in asked:
        long = any(group.setting.n_tasks >= LONG for group in groups)
        file, what = (
            ("long_horizon", "Long horizon")
            if long
            else ("trajectory", "Accuracy over all classes seen")
        )
        pictures += _lines(f"{file}_{place}", f"{what}: A_k after each task, {name}.", name, groups)
    for family in study.varied(*LACKING):
        label = family[0].label
        setting = family[0].setting
        name = study.names[setting]
        file = f"ablation_curves_{study.slug(setting)}_{slug(family[0].name.lower())}"
        caption = f"{label} without one of its parts: A_k after each task, {name}."
        pictures += _lines(file, caption, f"{label}: {name}", family, variants=True)
    return pictures


def _lines(
    file: str, caption: str, title: str, groups: Sequence[Group], variants: bool = False
) -> list[Picture]:
    """Draw a line for each group, or none where no group has two tasks."""
    drawn = [group for group in groups if any(group.curve())]
    if not any(sum(stat is not None for stat in group.curve()) > 1 for group in drawn):
        return []
    names = [group.variant if variants else group.label for group in drawn]
    names = [
        f"{n} ({g.setting.network})" if names.count(n) > 1 else n
        for n, g in zip(names, drawn, strict=True)
    ]
    names = [f"\u2009{n}" if n.startswith("_") else n for n in names]  # else legends leave it out
    names = [
        f"{n} (external)" if g.kind == "external" else n for n, g in zip(names, drawn, strict=True)
    ]
    names = _with_seeds(names, drawn)
    parts = np.array_split(np.arange(len(drawn)), -(-len(drawn) // MOST))
    chart = figure(6.4, 4.0 + 0.24 * len(drawn) if len(parts) == 1 else 0.6 + 2.9 * len(parts))
    panels = chart.subplots(len(parts), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    seen = [run.classes_seen for group in drawn for run in group.runs]
    for axes, rows in zip(panels, parts, strict=True):
        for look, i in enumerate(rows):
            _line(axes, drawn[i], seen[0] if seen else (), look, names[i], i / len(drawn))
        axes.set(ylabel="accuracy $A_k$ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(parts) > 1:
            handles, labels = axes.get_legend_handles_labels()
            labels = [fitted(label, 24) for label in labels]
            axes.legend(
                handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=SMALL
            )
    panels[0].set_title(fitted(title, 52, 3))
    panels[-1].set_xlabel("classes seen")
    bottom, top = panels[0].get_ylim()
    panels[0].set_ylim(max(bottom, -2.0), min(top, 102.0))
    if len(parts) == 1:
        legend_below(chart, panels[0], 2)
    return [Picture(file, f"{caption}{BARS}", chart)]


def _look(i: int) -> dict[str, Any]:
    """Return colour, marker and line style of line ``i`` of a panel."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "linestyle": LINES[i % len(LINES)],
    }


def _line(
    axes: Axes, group: Group, seen: Sequence[int], look: int, label: str, phase: float
) -> None:
    """Draw A_k with its deviation; in a long sequence only some tasks have a marker, at other tasks
    for each method.
    """
    run = group.outcomes[0].run
    places = (
        (run.classes_seen if run is not None else ()) or seen or range(1, len(group.curve()) + 1)
    )
    known = [
        (x, stat.mean, stat.sd or 0.0)
        for x, stat in zip(places, group.curve(), strict=False)
        if stat is not None
    ]
    x, means, spread = np.array(known, dtype=float).T
    step = max(1, len(x) // 10)
    shown = (int(phase * step), step)
    bars = (
        np.stack([np.minimum(spread, means), np.minimum(spread, 100 - means)])
        if spread.any()
        else None
    )
    axes.errorbar(
        x,
        means,
        bars,
        markevery=shown,
        errorevery=shown,
        label=label,
        capsize=2,
        elinewidth=0.8,
        **_look(look),
    )


def value_curves(study: Study, *keys: str) -> list[Picture]:
    """Draw A_K against each setting that varies alone, such as the buffer's size
    (fig:buffer_ablation).

    Args:
        study: all results.
        keys: dotted names of the settings.
    """
    figures = []
    for key in keys:
        families = [
            [g for g in family if _is_number(g.config.get(key)) and g.stat("A_K")]
            for family in study.varied(key)
        ]
        families = [family for family in families if len(family) > 1]
        if families:
            if key == "buffer.capacity":
                name = "buffer_size"
            else:
                name = f"by_{slug(key)}"
            figures.append(
                Picture(
                    name, f"Final accuracy by {heading(key)}.{BARS}", _values(study, families, key)
                )
            )
    return figures


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _values(study: Study, families: Sequence[Sequence[Group]], key: str) -> Figure:
    """Draw a line for each family over the values that were run, which stand at equal distances."""
    chart = figure(6.0, 3.8 + 0.18 * len(families))
    axes = chart.subplots()
    values = sorted({group.config[key] for family in families for group in family})
    for i, family in enumerate(families):
        name = f"{study.names[family[0].setting]}: {family[0].label}"
        stats = {values.index(group.config[key]): group.stat("A_K") for group in family}
        points = sorted((place, stat.mean, stat.sd or 0.0) for place, stat in stats.items() if stat)
        x, means, spread = zip(*points, strict=True)
        axes.errorbar(x, means, spread, capsize=3, label=name, **_look(i))
    axes.set_xticks(
        range(len(values)),
        [f"{value:g}" for value in values],
        rotation=90 if len(values) > MOST else 0,
    )
    axes.set(xlabel=heading(key), ylabel="final accuracy $A_K$ (%)")
    legend_below(chart, axes, 1)
    return chart


# ---------------------------------------------------------------------- bars


def ablation_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K of each method without one of its parts, and the paper's numbers beside its
    own (tab:ablation).
    """
    figures = []
    for family in study.varied(*LACKING):
        reference = family[0]
        setting = family[0].setting
        labels = _with_seeds([group.variant for group in family], family)
        bars = [
            (label, group.stat("A_bar"), group.stat("A_K"))
            for label, group in zip(labels, family, strict=True)
        ]
        averages, finals = (published_of("tab:ablation", setting, key) for key in ("A_bar", "A_K"))
        for variant, final in finals.items() if reference.name == "CIFNet" else ():
            bars.append((f"{variant or 'full method'} (published)", averages.get(variant), final))
        chart = pair_bars(bars, f"{reference.label}: {study.names[setting]}")
        file = f"ablation_{study.slug(setting)}_{slug(reference.name.lower())}"
        text = f"{reference.label} without one of its parts, {study.names[setting]}.{BARS}"
        figures.append(Picture(file, text, chart))
    return figures


SIDES: tuple[tuple[int, float, str, dict[str, Any]], ...] = (
    (1, -0.19, r"average accuracy $\bar{A}$", {"facecolor": "#FFFFFF", "hatch": "///"}),
    (2, 0.19, "final accuracy $A_K$", {"facecolor": "#222222"}),
)
"""The two bars of a label: place in a bar, offset, name, and a fill that differs on paper without
colours.
"""


def pair_bars(bars: Sequence[tuple[str, Stat | None, Stat | None]], title: str) -> Figure:
    """Draw two horizontal bars for each label: Ā hatched, A_K filled, each with its number at the
    end.

    Args:
        bars: label, Ā and A_K.
        title: of the figure.
    """
    chart = figure(6.4, 1.4 + 0.58 * len(bars))
    axes = chart.subplots()
    ends = [0.0]
    for side, offset, name, fill in SIDES:
        known = [
            (row + offset, stat)
            for row, bar in enumerate(bars)
            if isinstance(stat := bar[side], Stat)
        ]
        if known:
            axes.barh(
                [place for place, _ in known], [stat.mean for _, stat in known], 0.36, label=name, edgecolor="black",
                linewidth=0.7, xerr=[np.nan if stat.sd is None else stat.sd for _, stat in known], ecolor="#888888",
                capsize=2, **fill,
            )  # fmt: skip
        for place, stat in known:
            ends.append(stat.mean + (stat.sd or 0.0))
            text = cell_text(stat, Column("", 1))
            axes.annotate(
                text,
                (ends[-1], place),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=SMALL,
            )
    label_rows(axes, [fitted(label, 24) for label, _, _ in bars])
    axes.set(xlabel="accuracy (%)", xlim=(0, 1.22 * max(ends)), title=fitted(title, 52, 3))
    axes.grid(visible=False, axis="y")
    chart.legend(loc=cast(Any, "outside lower center"), ncols=2)
    return chart


# ---------------------------------------------------------------------- activations


def calibration_maps(study: Study) -> list[Picture]:
    """Draw how much later neurons respond to earlier classes, with and without calibration
    (fig:buffer_overlapping).
    """
    figures = []
    for family in study.varied("buffer"):
        maps = [
            (group, matrix)
            for group in reversed(family)
            if (matrix := mean_activations(group)) is not None
        ]
        if len(maps) == 2:
            setting = family[0].setting
            caption = (
                f"Effect of calibration, {study.names[setting]}: largest activation among the"
                " neurons of one task (columns), in percent, on average over the test images of"
                " another (rows), after the last task. Above the diagonal neurons of later tasks"
                " fire on earlier classes unless they are calibrated."
            )
            figures.append(
                Picture(
                    f"calibration_{study.slug(setting)}_{slug(family[0].name.lower())}",
                    caption,
                    _maps(maps),
                )
            )
    return figures


def mean_activations(group: Group) -> np.ndarray | None:
    """Return the mean over seeds of the recorded activations.

    Returns:
        (K, K); None if no run recorded them.
    """
    recorded = [
        o.run.activations
        for o in group.outcomes
        if o.run is not None and o.run.activations is not None
    ]
    if len({matrix.shape for matrix in recorded}) == 1:
        return np.asarray(np.mean(recorded, axis=0))
    return None


def _maps(maps: Sequence[tuple[Group, np.ndarray]]) -> Figure:
    chart = figure(6.4, 5.0)
    panels = chart.subplots(1, 2, sharey=True)
    for axes, (group, shares) in zip(panels, maps, strict=True):
        matrix = 100 * shares
        size = len(shares)
        image = axes.imshow(
            matrix, cmap="Greys", vmin=0, vmax=100, extent=(0.5, size + 0.5, size + 0.5, 0.5)
        )
        later = matrix[np.triu_indices(size, 1)]
        if len(later):
            mean = f"\nabove the diagonal: {np.nanmean(later):.0f} %"
        else:
            mean = ""
        without = group.changes.get("buffer", "yes") is None
        axes.set_title(f"{'without' if without else 'with'} calibration{mean}")
        axes.set_xlabel("neurons of task")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        for (i, j), value in np.ndenumerate(matrix) if size <= 10 else ():
            if not np.isnan(value):
                colour = "white" if value > 50 else "black"
                axes.text(
                    j + 1,
                    i + 1,
                    f"{value:.0f}",
                    ha="center",
                    va="center",
                    color=colour,
                    fontsize=SMALL,
                )
    panels[0].set_ylabel("test images of task")
    chart.colorbar(
        image,
        ax=list(panels),
        label="mean activation (%)",
        location="bottom",
        shrink=0.6,
        aspect=30,
    )
    return chart


# ---------------------------------------------------------------------- costs, a panel for each set
# of conditions


def panels(study: Study, groups: Sequence[Group], key: str) -> dict[str, list[Group]]:
    """Divide groups into panels of a figure, by kind and conditions; measured ones come first.

    Labels get the number of seeds if groups have different ones.

    Args:
        study: all results.
        groups: on the same data; the labels of measured ones have the network if there are several.
        key: value that a group must have to be shown.

    Returns:
        Title → groups whose costs may be compared.
    """
    by_title: dict[str, list[Group]] = {}
    several = len({group.setting for group in groups if group.kind == "measured"}) > 1
    shown = [
        alike for whole in groups for alike in whole.by_conditions() if alike.stat(key) is not None
    ]
    for group, count in zip(shown, differing_seeds(shown), strict=True):
        if several and group.kind == "measured":
            network = group.setting.network
        else:
            network = ""
        label = ", ".join(filter(None, [network, count]))
        if group.kind == "measured":
            title = ", ".join(filter(None, group.conditions[0]))
        else:
            title = group.kind
        by_title.setdefault(title, []).append(
            replace(group, conditions_label=label)
        )  # the title says the rest
    return by_title


def time_bubbles(study: Study, setting: Setting) -> list[Picture]:
    """Draw Ā against training time; the area of a bubble is proportional to the energy
    (fig:bubble_green).

    Args:
        study: all results.
        setting: one of ``study.data_names``; all networks that learned its data are drawn.

    Returns:
        One figure, or none if there is nothing to draw.
    """
    compared = [
        group
        for s in study.on_the_same_data(setting)
        for group in study.compared(s)
        if group.stat("A_bar")
    ]
    shown = panels(study, compared, "train_seconds")
    drawn = [group for groups in shown.values() for group in groups]
    if len(drawn) < 2:
        return []
    energies = [stat.mean for group in drawn if (stat := group.stat("energy_kwh"))]
    unit = max(energies, default=1.0) / LARGEST
    name = study.data_names[setting]
    heights = [1.5 + 0.4 * len(groups) for groups in shown.values()]
    chart = figure(6.4, 0.5 + sum(heights))
    every = chart.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    chart.suptitle(fitted(name, 52, 3))
    times = [group.mean("train_seconds") / 60 for group in drawn]
    margin = max(
        1.7, (max(times) / min(times)) ** 0.1
    )  # the largest bubble is a tenth of the axes wide
    every[-1].set(xscale="log", xlabel="training time (minutes, all tasks)")
    every[-1].set_xlim(min(times) / margin, max(times) * margin)
    for axes, (title, groups) in zip(every, shown.items(), strict=True):
        axes.set_title(fitted(title, 52, 3), fontsize=SMALL)
        _bubbles(axes, groups, unit)
    chart.supylabel(r"average accuracy $\bar{A}$ (%)", fontsize=12)
    if any(e < SMALLEST * unit for e in energies):
        small = " A dashed bubble is drawn larger than its energy."
    else:
        small = ""
    caption = (
        f"Average accuracy against training time, {name}. The area of a bubble is proportional to"
        " the energy of "
        f"training{'; a cross has none measured' if len(energies) < len(drawn) else ''}.{small}"
        f"{PANELS * (len(shown) > 1)}"
    )
    return [Picture(f"time_{study.data_slug(setting)}", caption, chart)]


def _bubbles(axes: Axes, groups: Sequence[Group], unit: float) -> None:
    """Draw a bubble for each group; the least area is ``SMALLEST``."""
    ordered = sorted(groups, key=lambda group: -group.mean("A_bar"))
    for i, group in enumerate(ordered):
        at = group.mean("train_seconds") / 60, group.mean("A_bar")
        energy = group.stat("energy_kwh")
        colour = COLOURS[i % len(COLOURS)]
        label = group.label
        if energy:
            area = energy.mean / unit
            label = f"{label}, {number(energy.mean, None)}\u00a0kWh"
            axes.scatter(
                *at, s=max(SMALLEST, area), marker="o", facecolor=(colour, 0.45), edgecolor=colour,
                linestyle="--" if area < SMALLEST else "-", zorder=4 - area / LARGEST,
            )  # fmt: skip
        else:
            axes.scatter(*at, s=SMALLEST, marker="x", color=colour)
        axes.annotate(
            fitted(label, 26, 4 if group.conditions_label else 2), at, (1.03, 1 - (i + 0.5) / len(ordered)),
            textcoords="axes fraction", fontsize=SMALL, va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "linewidth": 0.6, "color": "#777777", "relpos": (0.0, 0.5)},
        )  # fmt: skip
    axes.margins(y=0.25)
    plain_log_ticks(axes)


# ---------------------------------------------------------------------- memory


def memory_points(study: Study, setting: Setting) -> list[Picture]:
    """Draw the numbers kept on a log scale: a point per component, and a filled one for the total
    (fig:memory).

    Args:
        study: all results.
        setting: whose groups are drawn.
    """
    groups = [
        group
        for group in study.with_published(setting)
        if group.components and group.stat("kept_elements")
    ]
    if not any(group.kind == "measured" for group in groups):
        return []
    names = [
        group.label if group.kind == "measured" else f"{group.label} ({group.kind})"
        for group in groups
    ]
    sizes = [{"total": group.mean("kept_elements"), **group.components} for group in groups]
    chart = figure(6.4, 1.8 + 0.45 * len(names))
    axes = chart.subplots()
    parts = list(dict.fromkeys(part for own in sizes for part in own))
    for i, part in enumerate(parts):
        known = [(own[part], row) for row, own in enumerate(sizes) if part in own]
        axes.plot(
            *zip(*known, strict=True), MARKERS[i % len(MARKERS)], markersize=7, markeredgewidth=1.4, label=part,
            markerfacecolor="black" if i == 0 else "none", markeredgecolor=COLOURS[i % len(COLOURS)],
            linestyle="none", zorder=3 - i / len(parts),
        )  # fmt: skip
    numbers = [
        f"{n / 1e6:.3g} M" if (n := own["total"]) >= 1e6 else number(n, None) for own in sizes
    ]
    label_rows(axes, [fitted(name, 24) for name in names], numbers)
    axes.set(xlabel="numbers kept besides the backbone (log scale)", xscale="log")
    axes.set_title(fitted(study.names[setting], 52, 3))
    axes.margins(x=0.06)
    legend_below(chart, axes, 4)
    caption = (
        f"Memory besides the backbone after the last task by component, {study.names[setting]};"
        " right: the total."
    )
    return [Picture(f"memory_{study.slug(setting)}", caption, chart)]


# ---------------------------------------------------------------------- all of them


def all_pictures(study: Study) -> dict[str, list[Picture]]:
    """Draw all figures.

    Returns:
        Section of the report → its figures.
    """
    with matplotlib.rc_context(SETTINGS):
        return {
            "Accuracy": trajectories(study),
            "Efficiency": [p for s in study.data_names for p in time_bubbles(study, s)],
            "Memory": [p for s in study.settings for p in memory_points(study, s)],
            "Ablation": [*ablation_bars(study), *calibration_maps(study)],
            "Buffer": value_curves(study, "buffer.capacity"),
            "Other settings": value_curves(study, *study.other_keys()),
        }
