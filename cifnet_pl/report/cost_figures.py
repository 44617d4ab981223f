"""Draw figures of cost: training time, energy, accuracy per kWh, memory; one panel for each set of conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullFormatter

from cifnet_pl.report.memory import buffers
from cifnet_pl.report.page import number
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Study, differing_seeds
from cifnet_pl.report.style import COLOURS, MARKERS, SMALL, Picture, figure, fitted, label_rows, legend_below, wrapped

SMALLEST, LARGEST = 30.0, 900.0
"""Areas in square points of the bubbles of the least and the most energy that a figure can tell apart."""

PANELS = " Panels differ in machine, in how energy was measured, or in the use of the embedding cache."
BARS = " Bars: ± one standard deviation over seeds, where there are several."

Panel = tuple[str, list[Group]]
"""Title, and groups whose costs may be compared."""


def panels(study: Study, groups: Sequence[Group], key: str) -> list[Panel]:
    """Divide groups into panels of a figure, by kind and conditions; measured ones come first.

    Labels get the number of seeds if groups have different ones.

    Args:
        study: all results.
        groups: on the same data; the labels of measured ones have the network if there are several.
        key: value that a group must have to be shown.
    """
    by_title: dict[str, list[Group]] = {}
    several = len({group.setting for group in groups if group.kind == "measured"}) > 1
    shown = [alike for whole in groups for alike in whole.by_conditions() if alike.stat(key) is not None]
    for group, count in zip(shown, differing_seeds(shown), strict=True):
        network = group.setting.network if several and group.kind == "measured" else ""
        label = ", ".join(filter(None, [network, count]))
        ((_, conditions),) = study.conditions_of([group]).values()
        title = conditions if group.kind == "measured" else group.kind
        by_title.setdefault(title, []).append(replace(group, conditions_label=label))  # the title says the rest
    return list(by_title.items())


def _stacked(title: str, shown: Sequence[Panel], heights: Sequence[float], extra: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with the axes of panels below each other, all on one logarithmic x axis."""
    chart = figure(6.4, extra + sum(heights))
    every = list(chart.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0])
    for axes, (name, _) in zip(every, shown, strict=True):
        axes.set_title(wrapped(name, 52), fontsize=SMALL)
    every[-1].set_xscale("log")
    chart.suptitle(wrapped(title, 52))
    return chart, every


def _lines(group: Group) -> int:
    """Return how many lines a label may have: a network's name needs another one."""
    return 3 if group.conditions_label else 2


def plain_log_ticks(axes: Axes) -> None:
    """Write plain numbers at a log x axis, few enough that they do not touch; powers of ten if they are long."""
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high / low > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else subs, numticks=8))
    long = high >= 1e5 or low < 1e-3
    plain = FuncFormatter(lambda x, _: f"{x:,.10g}")
    axes.xaxis.set_major_formatter(LogFormatterSciNotation() if long and high / low > 300 else plain)
    axes.xaxis.set_minor_formatter(NullFormatter())


# ---------------------------------------------------------------------- accuracy against time


def time_bubbles(study: Study, setting: Setting) -> list[Picture]:
    """Draw Ā against training time; the area of a bubble is proportional to the energy (fig:bubble_green).

    Args:
        study: all results.
        setting: one of ``study.data_names``; all networks that learned its data are drawn.

    Returns:
        One figure, or none if there is nothing to draw.
    """
    compared = [group for s in study.on_the_same_data(setting) for group in study.compared(s) if group.stat("A_bar")]
    shown = panels(study, compared, "train_seconds")
    drawn = [group for _, groups in shown for group in groups]
    if len(drawn) < 2:
        return []
    energies = [stat.mean for group in drawn if (stat := group.stat("energy_kwh"))]
    unit = max(energies, default=1.0) / LARGEST
    name = study.data_names[setting]
    chart, every = _stacked(name, shown, [1.5 + 0.4 * len(groups) for _, groups in shown], 0.5)
    times = [group.mean("train_seconds") / 60 for group in drawn]
    margin = max(1.7, (max(times) / min(times)) ** 0.1)  # the largest bubble is a tenth of the axes wide
    every[-1].set(xlim=(min(times) / margin, max(times) * margin), xlabel="training time (minutes, all tasks)")
    for axes, (_, groups) in zip(every, shown, strict=True):
        _bubbles(axes, groups, unit)
    chart.supylabel(r"average accuracy $\bar{A}$ (%)", fontsize=12)
    small = " A dashed bubble is drawn larger than its energy." if any(e < SMALLEST * unit for e in energies) else ""
    caption = (
        f"Average accuracy against training time, {name}. The area of a bubble is proportional to the energy of "
        f"training{'; a cross has none measured' if len(energies) < len(drawn) else ''}.{small}"
        f"{PANELS * (len(shown) > 1)}"
    )
    return [Picture(f"time_{study.data_slug(setting)}", caption, chart)]


def _bubbles(axes: Axes, groups: Sequence[Group], unit: float) -> None:
    """Draw a bubble for each group; the least area is ``SMALLEST``."""
    ordered = sorted(groups, key=lambda group: -group.mean("A_bar"))
    for i, group in enumerate(ordered):
        at = group.mean("train_seconds") / 60, group.mean("A_bar")
        energy, colour = group.stat("energy_kwh"), COLOURS[i % len(COLOURS)]
        label = group.label
        if energy:
            area, label = energy.mean / unit, f"{label}, {number(energy.mean, None)} kWh"
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


# ---------------------------------------------------------------------- one cost of each method


def energy_points(study: Study, setting: Setting) -> list[Picture]:
    """Draw A_K per kWh (tab:cifar100-efficiency), and the energy divided by that of the reference.

    Args:
        study: all results.
        setting: one of ``study.data_names``; all networks that learned its data are drawn.
    """
    groups, name = study.of_all_networks(setting), study.data_names[setting]
    pictures = []
    shown = panels(study, groups, "A_K_per_kwh")
    if _worth_drawing(shown):
        chart = _points(name, shown, "$A_K$ per kWh (log scale)", lambda group: group.stat("A_K_per_kwh"))
        caption = f"Final accuracy per kWh, {name}; further right is better.{PANELS * (len(shown) > 1)}{BARS}"
        pictures.append(Picture(f"energy_{study.data_slug(setting)}", caption, chart))
    ratios: dict[int, Stat] = {}
    shown = []
    for title, members in panels(study, groups, "energy_kwh"):
        known = {id(g): stat for g, stat in zip(members, study.energy_ratios(members), strict=True) if stat is not None}
        if len(known) > 1:
            ratios.update(known)
            shown.append((title, [group for group in members if id(group) in known]))
    if _worth_drawing(shown):
        chart = _points(
            name, shown, f"energy of training ÷ that of {study.reference} (log scale)", lambda group: ratios[id(group)]
        )  # fmt: skip
        for axes in chart.axes:
            axes.axvline(1.0, color="#777777", linewidth=0.8, linestyle="--")
        caption = (
            f"Energy of training relative to {study.reference} under the same conditions, {name}: means of the ratios "
            f"over the seeds that both have.{PANELS * (len(shown) > 1)}{BARS}"
        )
        pictures.append(Picture(f"energy_ratio_{study.data_slug(setting)}", caption, chart))
    return pictures


def _worth_drawing(shown: Sequence[Panel]) -> bool:
    here = any(groups[0].kind != "published" for _, groups in shown)
    return here and sum(len(groups) for _, groups in shown) > 1


def _points(title: str, shown: Sequence[Panel], xlabel: str, value: Callable[[Group], Stat | None]) -> Figure:
    """Draw a point with its deviation for each method, on one logarithmic axis for all panels."""
    groups = [group for _, members in shown for group in members]
    height = 0.21 * max(map(_lines, groups))
    chart, every = _stacked(title, shown, [height * (len(g) + 0.8) for _, g in shown], 1.3 + 0.45 * len(shown))
    means = [stat.mean for group in groups if (stat := value(group))]
    every[-1].set(xlim=(min(means) / 1.7, max(means) * 1.7), xlabel=xlabel)
    for axes, (_, members) in zip(every, shown, strict=True):
        known = sorted(((g, stat) for g in members if (stat := value(g))), key=lambda pair: -pair[1].mean)
        for row, (_, stat) in enumerate(known):
            spread = min(stat.sd or 0.0, 0.99 * stat.mean)
            axes.errorbar(stat.mean, row, xerr=spread or None, fmt="o", color="black", capsize=2, markersize=5)
        names = [fitted(group.label, 26, _lines(group)) for group, _ in known]
        label_rows(axes, names, [number(stat.mean, None) for _, stat in known])
    plain_log_ticks(every[-1])
    return chart


# ---------------------------------------------------------------------- memory


def memory_points(study: Study, setting: Setting) -> list[Picture]:
    """Draw the numbers kept on a log scale: a point per component, and one for the total (fig:memory).

    Args:
        study: all results.
        setting: whose groups are drawn.
    """
    groups = [group for group in study.with_published(setting) if group.components and group.stat("kept_elements")]
    if not any(group.kind == "measured" for group in groups):
        return []
    names = [group.label if group.kind == "measured" else f"{group.label} ({group.kind})" for group in groups]
    sizes = [{"total": group.mean("kept_elements"), **group.components} for group in groups]
    numbers = [f"{n / 1e6:.3g} M" if (n := own["total"]) >= 1e6 else number(n, None) for own in sizes]
    chart = _parts(names, sizes, numbers, "numbers kept besides the backbone (log scale)")
    chart.axes[0].set_title(wrapped(study.names[setting], 52))
    caption = f"Memory besides the backbone after the last task by component, {study.names[setting]}; right: the total."
    return [Picture(f"memory_{study.slug(setting)}", caption, chart)]


def buffer_points(study: Study) -> list[Picture]:
    """Draw the megabytes of a buffer of embeddings and of as many raw images (the paper: 4.1 against 1206)."""
    parts = ("embeddings", "images, bytes", "images, float32")
    found = buffers(study)
    if not found:
        return []
    names = [f"{group.label}, {group.setting.dataset}, {size.samples} images" for group, size in found]
    sizes = [dict(zip(parts, size.megabytes, strict=True)) for _, size in found]
    names.append("CIFNet, ImageNet-100, 2000 images (published)")
    sizes.append({parts[0]: 4.10, parts[2]: 1206.40})
    numbers = [f"{number(own[parts[0]], None)} MB" for own in sizes]
    chart = _parts(names, sizes, numbers, "megabytes (log scale)")
    caption = "The same samples kept as embeddings and as raw images; right: the embeddings."
    return [Picture("buffer_bytes", caption, chart)]


def _parts(
    names: Sequence[str], sizes: Sequence[dict[str, float]], numbers: Sequence[str], xlabel: str
) -> Figure:  # fmt: skip
    """Draw a row for each name with a marker for each component, the first one filled, and a number at the right."""
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
    label_rows(axes, [fitted(name, 24) for name in names], numbers)
    axes.set(xlabel=xlabel, xscale="log")
    axes.margins(x=0.06)
    legend_below(chart, axes, 4)
    return chart
