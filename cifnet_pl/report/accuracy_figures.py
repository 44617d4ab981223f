"""Draw figures of accuracy: trajectories, ablations, buffer size and strategy, other settings, activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cifnet_pl.report.outcomes import Group, Stat, with_seeds
from cifnet_pl.report.page import Column, cell_text
from cifnet_pl.report.settings import Setting, heading, strategy_name
from cifnet_pl.report.study import ABLATIONS, ANALYTIC, CLASSIFIERS, Study
from cifnet_pl.report.style import (
    SMALL,
    Look,
    Picture,
    figure,
    fill,
    fitted,
    legend_below,
    legend_beside,
    legend_of_bars,
    looks,
    wrapped,
)

LONG = 40
"""Tasks from which on a sequence counts as a long horizon (fig:long_tail has 50)."""

MOST = 8
"""Lines that can be told apart in one panel; more of them are divided among panels on the same axes."""

BARS = "Bars: ± one standard deviation over seeds, where there are several."


def trajectories(study: Study, setting: Setting) -> list[Picture]:
    """Draw A_k over classes seen: of the methods (fig:curves), of the classifiers, and of the variants.

    Args:
        study: all results.
        setting: whose groups are drawn.
    """
    slug, name = study.slug(setting), study.names[setting]
    every = study.compared(setting)
    methods = [group for group in every if group.name not in CLASSIFIERS]
    classifiers = [group for group in every if group.name in CLASSIFIERS]
    long = setting.n_tasks >= LONG
    figures = []
    if _drawable(methods):
        kind = "long_horizon" if long else "trajectory"
        title = "Long horizon" if long else "Accuracy over all classes seen"
        caption = f"{title}: A_k after each task, {name}. {BARS}"
        figures.append(Picture(f"{kind}_{slug}", caption, _lines(methods, name)))
    if classifiers and _drawable(classifiers):
        beside = [group for group in methods if group.name in ANALYTIC]
        caption = f"Classifiers on the same frozen backbone: A_k after each task, {name}. {BARS}"
        figures.append(Picture(f"heads_{slug}", caption, _lines(beside + classifiers, name)))
    for reference in study.references(setting):
        family = study.variants(reference, *ABLATIONS)
        if _drawable(family):
            caption = f"{reference.label} without one of its parts: A_k after each task, {name}. {BARS}"
            figure_name = f"ablation_curves_{slug}_{_plain(reference.name)}"
            figures.append(Picture(figure_name, caption, _lines(family, f"{reference.label}: {name}", variants=True)))
    return figures


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name.lower())


def _drawable(groups: Sequence[Group]) -> bool:
    return any(sum(stat is not None for stat in group.curve()) > 1 for group in groups)


def _lines(groups: Sequence[Group], title: str, variants: bool = False) -> Figure:
    drawn = [group for group in groups if any(group.curve())]
    names = [group.variant if variants else group.label for group in drawn]
    names = [f"\u2009{n}" if n.startswith("_") else n for n in names]  # else legends leave it out
    names = [f"{n} (external)" if g.kind == "external" else n for n, g in zip(names, drawn, strict=True)]
    names = with_seeds(names, drawn)
    parts = np.array_split(np.arange(len(drawn)), -(-len(drawn) // MOST))
    height = 4.0 + 0.24 * len(drawn) if len(parts) == 1 else 0.6 + 2.9 * len(parts)
    chart = figure(6.4, height)
    panels = chart.subplots(len(parts), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    styles = [look for rows in parts for look in looks(len(rows))]
    seen = next((group.classes_seen for group in drawn if group.classes_seen), ())
    for axes, rows in zip(panels, parts, strict=True):
        for i in rows:
            _line(axes, drawn[i], seen, styles[i], names[i], i / len(drawn))
        axes.set(ylabel="accuracy $A_k$ (%)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if len(parts) > 1:
            legend_beside(axes)
    panels[0].set_title(wrapped(title, 52))
    panels[-1].set_xlabel("classes seen")
    bottom, top = panels[0].get_ylim()
    panels[0].set_ylim(max(bottom, -2.0), min(top, 102.0))
    if len(parts) == 1:
        legend_below(chart, panels[0], 2)
    return chart


def _line(axes: Axes, group: Group, seen: Sequence[int], look: Look, label: str, phase: float) -> None:
    """Draw A_k with its deviation; in a long sequence only some tasks have a marker, at other tasks for each method."""
    stats = group.curve()
    x = list(group.classes_seen or seen or range(1, len(stats) + 1))[: len(stats)]
    known = [(a, s) for a, s in zip(x, stats, strict=True) if s is not None]
    places, means = [a for a, _ in known], np.array([s.mean for _, s in known])
    spread = np.array([s.sd or 0.0 for _, s in known])
    every = max(1, len(places) // 10)
    start = int(phase * every)
    axes.errorbar(
        places, means, np.stack([np.minimum(spread, means), np.minimum(spread, 100 - means)]) if spread.any() else None,
        linestyle=look.line, marker=look.marker, markevery=(start, every), errorevery=(start, every), color=look.colour,
        label=label, capsize=2, elinewidth=0.8,
    )  # fmt: skip


# ---------------------------------------------------------------------- bars and sizes


def ablation_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K of the method and of its variants, one panel per setting (tab:ablation)."""
    families = study.varied(*ABLATIONS)
    figures = []
    for family in families:
        setting, name = family[0].setting, family[0].label
        bars = _bars([group.variant for group in family], family)
        averages = study.published_of("tab:ablation", setting, "A_bar") if family[0].name == "CIFNet" else {}
        finals = study.published_of("tab:ablation", setting, "A_K") if family[0].name == "CIFNet" else {}
        bars += [(f"{v or 'full method'} (published)", averages.get(v), finals.get(v)) for v in sorted(finals)]
        caption = f"{name} without one of its parts, {study.names[setting]}. {BARS}"
        title = f"{name}: {study.names[setting]}"
        figures.append(
            Picture(f"ablation_{study.slug(setting)}_{_plain(family[0].name)}", caption, pair_bars(bars, title))
        )
    return figures


def sampling_bars(study: Study) -> list[Picture]:
    """Draw Ā and A_K for each way to select the buffer (tab:sampling)."""
    figures = []
    for family in study.varied("buffer.strategy"):
        setting = family[0].setting
        bars = _bars([strategy_name(group.config["buffer.strategy"]) for group in family], family)
        values = study.published_of("tab:sampling", setting, "A_K")
        bars += [(f"{strategy_name(strategy)} (published)", None, value) for strategy, value in values.items()]
        caption = f"Selection of the buffer, {study.names[setting]}. {BARS}"
        title = f"{family[0].label}: {study.names[setting]}"
        figures.append(
            Picture(f"sampling_{study.slug(setting)}_{_plain(family[0].name)}", caption, pair_bars(bars, title))
        )
    return figures


def _bars(names: Sequence[str], groups: Sequence[Group]) -> list[tuple[str, Stat | None, Stat | None]]:
    return [
        (label, group.stat("A_bar"), group.stat("A_K"))
        for label, group in zip(with_seeds(names, groups), groups, strict=True)
    ]


def pair_bars(bars: Sequence[tuple[str, Stat | None, Stat | None]], title: str) -> Figure:
    """Draw two horizontal bars for each label: Ā hatched, A_K filled, each with its number at the end.

    Args:
        bars: label, Ā and A_K.
        title: of the figure.
    """
    chart = figure(6.4, 1.4 + 0.58 * len(bars))
    axes = chart.subplots()
    top = 0.0
    places = range(len(bars) - 1, -1, -1)
    for side, offset in enumerate((0.19, -0.19)):
        stats = [(average, final)[side] for _, average, final in bars]
        known = [(position + offset, stat) for position, stat in zip(places, stats, strict=True) if stat is not None]
        for position, stat in known:
            axes.barh(position, stat.mean, 0.36, xerr=stat.sd, ecolor="#888888", capsize=2, **fill(1 - side))
            end = stat.mean + (stat.sd or 0.0)
            text = cell_text(stat, Column("", 1))
            axes.annotate(text, (end, position), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
            top = max(top, end)
    axes.set_yticks(places, [fitted(bar[0], 24) for bar in bars])
    axes.set(xlabel="accuracy (%)", xlim=(0, 1.22 * top), ylim=(-0.6, len(bars) - 0.4), title=wrapped(title, 52))
    axes.grid(visible=False, axis="y")
    shown = [side for side in (0, 1) if any(bar[1 + side] for bar in bars)]
    names = (r"average accuracy $\bar{A}$", "final accuracy $A_K$")
    legend_of_bars(chart, [names[side] for side in shown], [1 - side for side in shown], "lower center", 2)
    return chart


def value_curves(study: Study, *keys: str) -> list[Picture]:
    """Draw A_K against each setting that varies alone, such as the buffer's size (fig:buffer_ablation).

    Args:
        study: all results.
        keys: dotted names of the settings.
    """
    figures = []
    for key in keys:
        families = [[g for g in f if _is_number(g.config.get(key))] for f in study.varied(key)]
        families = [family for family in families if len(family) > 1]
        if families:
            name = "buffer_size" if key == "buffer.capacity" else f"by_{_plain(key)}"
            title = heading(key)
            caption = f"Final accuracy by {title}. {BARS}"
            figures.append(Picture(name, caption, _values(study, families, key, title)))
    return figures


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _values(study: Study, families: Sequence[Sequence[Group]], key: str, title: str) -> Figure:
    chart = figure(6.0, 3.8 + 0.18 * len(families))
    axes = chart.subplots()
    names = [f"{study.names[family[0].setting]}: {family[0].label}" for family in families]
    ticks: set[float] = set()
    for family, name, look in zip(families, names, looks(len(families)), strict=True):
        points = sorted((g.config[key], stat) for g in family if (stat := g.stat("A_K")) is not None)
        axes.errorbar(
            [x for x, _ in points], [s.mean for _, s in points], [s.sd or 0.0 for _, s in points], capsize=3,
            linestyle=look.line, marker=look.marker, color=look.colour, label=name,
        )  # fmt: skip
        for x, stat in points if len({stat.n for _, stat in points}) > 1 else ():
            axes.annotate(f"n = {stat.n}", (x, stat.mean), (5, 5), textcoords="offset points", fontsize=SMALL)
        ticks.update(x for x, _ in points)
    axes.set_xscale("log")
    # Only the values that were run, and of those that would touch each other only the first.
    shown = [x for i, x in enumerate(sorted(ticks)) if i == 0 or x / sorted(ticks)[i - 1] > 1.15]
    axes.set_xticks(shown, [f"{x:g}" for x in shown])
    axes.set_xticks([], minor=True)
    axes.set(xlabel=title, ylabel="final accuracy $A_K$ (%)")
    legend_below(chart, axes, 1)
    return chart


# ---------------------------------------------------------------------- activations


def calibration_maps(study: Study) -> list[Picture]:
    """Draw how much later neurons respond to earlier classes, with and without calibration (fig:buffer_overlapping)."""
    figures = []
    for family in study.varied("buffer"):
        shown = [(group, matrix) for group in reversed(family) if (matrix := mean_activations(group)) is not None]
        if len(shown) == 2:
            name = study.names[family[0].setting]
            caption = (
                f"Effect of calibration, {name}: largest activation among the neurons of one task (columns), averaged "
                "over the test images of another (rows), in percent, after the last task. Above the diagonal, whose "
                "mean the titles say, stand neurons that were added after the images' classes were learned: without "
                "calibration they fire on them."
            )
            figure_name = f"calibration_{study.slug(family[0].setting)}_{_plain(family[0].name)}"
            figures.append(Picture(figure_name, caption, _maps(shown)))
    return figures


def mean_activations(group: Group) -> np.ndarray | None:
    """Return the mean over seeds of the recorded activations.

    Returns:
        (K, K); None if no run recorded them.
    """
    recorded = [o.run.activations for o in group.outcomes if o.run is not None and o.run.activations is not None]
    shapes = {len(matrix) for matrix in recorded}
    if len(shapes) != 1:
        return None
    whole: np.ndarray = np.array(recorded, dtype=float).mean(axis=0)
    return whole


def _maps(shown: Sequence[tuple[Group, np.ndarray]]) -> Figure:
    size = len(shown[0][1])
    chart = figure(6.4, 5.0)
    panels = chart.subplots(1, 2, sharey=True)
    for axes, (group, shares) in zip(panels, shown, strict=True):
        matrix = 100 * shares
        image = axes.imshow(matrix, cmap="Greys", vmin=0, vmax=100, extent=(0.5, size + 0.5, size + 0.5, 0.5))
        later = matrix[np.triu_indices(size, 1)]
        mean = f"\nabove the diagonal: {np.nanmean(later):.0f} %" if len(later) else ""
        axes.set_title(
            ("without calibration" if group.changes.get("buffer", "yes") is None else "with calibration") + mean
        )
        axes.set_xlabel("neurons of task")
        axes.grid(visible=False)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
        for i, j in np.ndindex(size, size) if size <= 10 else ():
            if not np.isnan(matrix[i, j]):
                colour = "white" if matrix[i, j] > 50 else "black"
                axes.text(j + 1, i + 1, f"{matrix[i, j]:.0f}", ha="center", va="center", color=colour, fontsize=SMALL)
    panels[0].set_ylabel("test images of task")
    chart.colorbar(image, ax=list(panels), label="mean activation (%)", location="bottom", shrink=0.6, aspect=30)
    return chart
