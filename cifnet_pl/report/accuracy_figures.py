"""Draw figures of accuracy: trajectories, ablations, buffer size and strategy, other settings, activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cifnet_pl.report.external_results import published_of
from cifnet_pl.report.page import Column, cell_text
from cifnet_pl.report.settings import JOINT, LACKING, Setting, heading, value_name
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Study, differing_seeds
from cifnet_pl.report.style import SMALL, Picture, figure, fitted, label_rows, legend_below, looks, wrapped

CLASSIFIERS = ("SLDA", "NCM", "kNN", "Logistic regression", "Linear (SGD)", JOINT)
"""Classifiers that are compared with the analytic heads on the same frozen backbone (fig:classifier_ablation)."""

ANALYTIC = ("CIFNet", "Exact ridge")
"""Heads that are shown with those classifiers."""

LONG = 40
"""Tasks from which on a sequence counts as a long horizon (fig:long_tail has 50)."""

MOST = 8
"""Lines that can be told apart in one panel; more of them are divided among panels on the same axes."""

BARS = "Bars: ± one standard deviation over seeds, where there are several."


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.lower())


def _with_seeds(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """Append the number of seeds to the labels of measured groups if these have different ones: "CIFNet (n = 2)"."""
    counts = differing_seeds(groups)
    return [f"{label} ({count})" if count else label for label, count in zip(labels, counts, strict=True)]


# ---------------------------------------------------------------------- trajectories


def trajectories(study: Study, setting: Setting) -> list[Picture]:
    """Draw A_k over classes seen: of the methods (fig:curves), of the classifiers, and of the variants.

    Args:
        study: all results.
        setting: whose groups are drawn.
    """
    slug, name = study.slug(setting), study.names[setting]
    compared = study.compared(setting)
    methods = [group for group in compared if group.name not in CLASSIFIERS]
    classifiers = [group for group in compared if group.name in CLASSIFIERS]
    figures = []
    if _drawable(methods):
        long = setting.n_tasks >= LONG
        title = "Long horizon" if long else "Accuracy over all classes seen"
        caption = f"{title}: A_k after each task, {name}. {BARS}"
        figures.append(Picture(f"{'long_horizon' if long else 'trajectory'}_{slug}", caption, _lines(methods, name)))
    if classifiers and _drawable(classifiers):
        beside = [group for group in methods if group.name in ANALYTIC]
        caption = f"Classifiers on the same frozen backbone: A_k after each task, {name}. {BARS}"
        figures.append(Picture(f"heads_{slug}", caption, _lines(beside + classifiers, name)))
    for family in study.varied(*LACKING):
        reference = family[0]
        if reference.setting == setting and _drawable(family):
            caption = f"{reference.label} without one of its parts: A_k after each task, {name}. {BARS}"
            chart = _lines(family, f"{reference.label}: {name}", variants=True)
            figures.append(Picture(f"ablation_curves_{slug}_{_plain(reference.name)}", caption, chart))
    return figures


def _drawable(groups: Sequence[Group]) -> bool:
    return any(sum(stat is not None for stat in group.curve()) > 1 for group in groups)


def _lines(groups: Sequence[Group], title: str, variants: bool = False) -> Figure:
    drawn = [group for group in groups if any(group.curve())]
    names = [group.variant if variants else group.label for group in drawn]
    names = [f"\u2009{n}" if n.startswith("_") else n for n in names]  # else legends leave it out
    names = [f"{n} (external)" if g.kind == "external" else n for n, g in zip(names, drawn, strict=True)]
    names = _with_seeds(names, drawn)
    parts = np.array_split(np.arange(len(drawn)), -(-len(drawn) // MOST))
    chart = figure(6.4, 4.0 + 0.24 * len(drawn) if len(parts) == 1 else 0.6 + 2.9 * len(parts))
    panels = chart.subplots(len(parts), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    seen = [o.run.classes_seen for group in drawn for o in group.outcomes if o.run is not None]
    for axes, rows in zip(panels, parts, strict=True):
        for i, look in zip(rows, looks(len(rows)), strict=True):
            _line(axes, drawn[i], seen[0] if seen else (), look, names[i], i / len(drawn))
        axes.set(ylabel="accuracy $A_k$ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(parts) > 1:
            handles, labels = axes.get_legend_handles_labels()
            labels = [fitted(label, 24) for label in labels]
            axes.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=SMALL)
    panels[0].set_title(wrapped(title, 52))
    panels[-1].set_xlabel("classes seen")
    bottom, top = panels[0].get_ylim()
    panels[0].set_ylim(max(bottom, -2.0), min(top, 102.0))
    if len(parts) == 1:
        legend_below(chart, panels[0], 2)
    return chart


def _line(axes: Axes, group: Group, seen: Sequence[int], look: dict[str, Any], label: str, phase: float) -> None:
    """Draw A_k with its deviation; in a long sequence only some tasks have a marker, at other tasks for each method."""
    run = group.outcomes[0].run
    places = (run.classes_seen if run is not None else ()) or seen or range(1, len(group.curve()) + 1)
    known = [(x, stat.mean, stat.sd or 0.0) for x, stat in zip(places, group.curve(), strict=False) if stat is not None]
    x, means, spread = np.array(known, dtype=float).T
    step = max(1, len(x) // 10)
    shown = (int(phase * step), step)
    bars = np.stack([np.minimum(spread, means), np.minimum(spread, 100 - means)]) if spread.any() else None
    axes.errorbar(x, means, bars, markevery=shown, errorevery=shown, label=label, capsize=2, elinewidth=0.8, **look)


# ---------------------------------------------------------------------- bars and sizes


def ablation_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K of the method and of its variants, one panel per setting (tab:ablation)."""
    figures = []
    for family in study.varied(*LACKING):
        setting, reference = family[0].setting, family[0]
        bars = _bars([group.variant for group in family], family)
        if reference.name == "CIFNet":
            averages, finals = (published_of("tab:ablation", setting, key) for key in ("A_bar", "A_K"))
            bars += [(f"{v or 'full method'} (published)", averages.get(v), finals[v]) for v in sorted(finals)]
        caption = f"{reference.label} without one of its parts, {study.names[setting]}. {BARS}"
        figures.append(_pair_picture("ablation", caption, bars, reference, study))
    return figures


def sampling_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K for each way to select the buffer (tab:sampling)."""
    figures = []
    for family in study.varied("buffer.strategy"):
        setting = family[0].setting
        key = "buffer.strategy"
        bars = _bars([value_name(key, group.config[key]) for group in family], family)
        published = published_of("tab:sampling", setting, "A_K")
        bars += [(f"{value_name(key, strategy)} (published)", None, stat) for strategy, stat in published.items()]
        caption = f"Selection of the buffer, {study.names[setting]}. {BARS}"
        figures.append(_pair_picture("sampling", caption, bars, family[0], study))
    return figures


Bar = tuple[str, Stat | None, Stat | None]
"""Label, Ā and A_K."""

SIDES: tuple[tuple[int, float, str, dict[str, Any]], ...] = (
    (1, -0.19, r"average accuracy $\bar{A}$", {"facecolor": "#FFFFFF", "hatch": "///"}),
    (2, 0.19, "final accuracy $A_K$", {"facecolor": "#222222"}),
)
"""The two bars of a label: place in :data:`Bar`, offset, name, and a fill that differs on paper without colours."""


def _bars(names: Sequence[str], groups: Sequence[Group]) -> list[Bar]:
    labels = _with_seeds(names, groups)
    return [(label, group.stat("A_bar"), group.stat("A_K")) for label, group in zip(labels, groups, strict=True)]


def _pair_picture(kind: str, caption: str, bars: Sequence[Bar], reference: Group, study: Study) -> Picture:
    chart = pair_bars(bars, f"{reference.label}: {study.names[reference.setting]}")
    return Picture(f"{kind}_{study.slug(reference.setting)}_{_plain(reference.name)}", caption, chart)


def pair_bars(bars: Sequence[Bar], title: str) -> Figure:
    """Draw two horizontal bars for each label: Ā hatched, A_K filled, each with its number at the end.

    Args:
        bars: label, Ā and A_K.
        title: of the figure.
    """
    chart = figure(6.4, 1.4 + 0.58 * len(bars))
    axes = chart.subplots()
    ends = [0.0]
    for side, offset, name, fill in SIDES:
        known = [(row + offset, stat) for row, bar in enumerate(bars) if isinstance(stat := bar[side], Stat)]
        if known:
            axes.barh(
                [place for place, _ in known], [stat.mean for _, stat in known], 0.36, label=name, edgecolor="black",
                linewidth=0.7, xerr=[np.nan if stat.sd is None else stat.sd for _, stat in known], ecolor="#888888",
                capsize=2, **fill,
            )  # fmt: skip
        for place, stat in known:
            ends.append(stat.mean + (stat.sd or 0.0))
            text = cell_text(stat, Column("", 1))
            axes.annotate(text, (ends[-1], place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
    label_rows(axes, [fitted(bar[0], 24) for bar in bars], [])
    axes.set(xlabel="accuracy (%)", xlim=(0, 1.22 * max(ends)), title=wrapped(title, 52))
    axes.grid(visible=False, axis="y")
    chart.legend(loc=cast(Any, "outside lower center"), ncols=2)
    return chart


def value_curves(study: Study, *keys: str) -> list[Picture]:
    """Draw A_K against each setting that varies alone, such as the buffer's size (fig:buffer_ablation).

    Args:
        study: all results.
        keys: dotted names of the settings.
    """
    figures = []
    for key in keys:
        families = [
            [g for g in family if _is_number(g.config.get(key)) and g.stat("A_K")] for family in study.varied(key)
        ]
        families = [family for family in families if len(family) > 1]
        if families:
            name = "buffer_size" if key == "buffer.capacity" else f"by_{_plain(key)}"
            caption = f"Final accuracy by {heading(key)}. {BARS}"
            figures.append(Picture(name, caption, _values(study, families, key)))
    return figures


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _values(study: Study, families: Sequence[Sequence[Group]], key: str) -> Figure:
    chart = figure(6.0, 3.8 + 0.18 * len(families))
    axes = chart.subplots()
    ticks: set[float] = set()
    for family, look in zip(families, looks(len(families)), strict=True):
        name = f"{study.names[family[0].setting]}: {family[0].label}"
        points = sorted((g.config[key], stat.mean, stat.sd or 0.0, stat.n) for g in family if (stat := g.stat("A_K")))
        x, means, spread, counts = zip(*points, strict=True)
        axes.errorbar(x, means, spread, capsize=3, label=name, **look)
        for place, mean, count in zip(x, means, counts, strict=True) if len(set(counts)) > 1 else ():
            axes.annotate(f"n = {count}", (place, mean), (5, 5), textcoords="offset points", fontsize=SMALL)
        ticks.update(x)
    axes.set_xscale("log")
    # Only the values that were run, and of those that would touch each other only the first.
    shown = [x for i, x in enumerate(sorted(ticks)) if i == 0 or x / sorted(ticks)[i - 1] > 1.15]
    axes.set_xticks(shown, [f"{x:g}" for x in shown])
    axes.set_xticks([], minor=True)
    axes.set(xlabel=heading(key), ylabel="final accuracy $A_K$ (%)")
    legend_below(chart, axes, 1)
    return chart


# ---------------------------------------------------------------------- activations


def calibration_maps(study: Study) -> list[Picture]:
    """Draw how much later neurons respond to earlier classes, with and without calibration (fig:buffer_overlapping)."""
    figures = []
    for family in study.varied("buffer"):
        maps = [(group, matrix) for group in reversed(family) if (matrix := mean_activations(group)) is not None]
        if len(maps) == 2:
            name = study.names[family[0].setting]
            caption = (
                f"Effect of calibration, {name}: largest activation among the neurons of one task (columns), averaged "
                "over the test images of another (rows), in percent, after the last task. Above the diagonal, whose "
                "mean the titles say, stand neurons that were added after the images' classes were learned: without "
                "calibration they fire on them."
            )
            figure_name = f"calibration_{study.slug(family[0].setting)}_{_plain(family[0].name)}"
            figures.append(Picture(figure_name, caption, _maps(maps)))
    return figures


def mean_activations(group: Group) -> np.ndarray | None:
    """Return the mean over seeds of the recorded activations.

    Returns:
        (K, K); None if no run recorded them.
    """
    runs = [outcome.run for outcome in group.outcomes if outcome.run is not None]
    recorded = [run.activations for run in runs if run.activations is not None]
    if len({matrix.shape for matrix in recorded}) != 1:
        return None
    return np.asarray(np.mean(recorded, axis=0))


def _maps(maps: Sequence[tuple[Group, np.ndarray]]) -> Figure:
    chart = figure(6.4, 5.0)
    panels = chart.subplots(1, 2, sharey=True)
    for axes, (group, shares) in zip(panels, maps, strict=True):
        matrix, size = 100 * shares, len(shares)
        image = axes.imshow(matrix, cmap="Greys", vmin=0, vmax=100, extent=(0.5, size + 0.5, size + 0.5, 0.5))
        later = matrix[np.triu_indices(size, 1)]
        mean = f"\nabove the diagonal: {np.nanmean(later):.0f} %" if len(later) else ""
        without = group.changes.get("buffer", "yes") is None
        axes.set_title(f"{'without' if without else 'with'} calibration{mean}")
        axes.set_xlabel("neurons of task")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        for (i, j), value in np.ndenumerate(matrix) if size <= 10 else ():
            if not np.isnan(value):
                colour = "white" if value > 50 else "black"
                axes.text(j + 1, i + 1, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=SMALL)
    panels[0].set_ylabel("test images of task")
    chart.colorbar(image, ax=list(panels), label="mean activation (%)", location="bottom", shrink=0.6, aspect=30)
    return chart
