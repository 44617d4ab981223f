"""Draw figures of cost: training time, energy, accuracy per kWh, memory; one panel for each set of conditions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullFormatter

from cifnet_pl.report.memory import buffer_megabytes, buffered, raw_images
from cifnet_pl.report.outcomes import Group, Stat, differing_seeds
from cifnet_pl.report.page import number
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import Study
from cifnet_pl.report.style import COLOURS, MARKERS, SMALL, Picture, figure, fitted, legend_of_points, wrapped

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
        (conditions,) = study.condition_words([group]).values()
        title = conditions if group.kind == "measured" else group.kind
        by_title.setdefault(title, []).append(replace(group, conditions_label=label))  # the title says the rest
    return list(by_title.items())


# ---------------------------------------------------------------------- accuracy against time


def time_bubbles(study: Study, setting: Setting) -> list[Picture]:
    """Draw Ā against training time; the area of a bubble is proportional to the energy (fig:bubble_green).

    Args:
        study: all results.
        setting: one of ``study.data_names``; all networks that learned its data are drawn.

    Returns:
        One figure, or none if there is nothing to draw.
    """
    compared = [group for s in study.on_the_same_data(setting) for group in study.compared(s)]
    name = study.data_names[setting]
    shown = [
        (title, kept) for title, groups in panels(study, compared, "train_seconds")
        if (kept := [group for group in groups if group.stat("A_bar")])
    ]  # fmt: skip
    if sum(len(groups) for _, groups in shown) < 2:
        return []
    energies = [stat.mean for _, groups in shown for g in groups if (stat := g.stat("energy_kwh"))]
    unit = max(energies, default=1.0) / LARGEST
    heights = [1.5 + 0.4 * len(groups) for _, groups in shown]
    chart = figure(6.4, 0.5 + sum(heights))
    every = chart.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
    times = [group.mean("train_seconds") / 60 for _, groups in shown for group in groups]
    margin = max(1.7, (max(times) / min(times)) ** 0.1)  # the largest bubble is a tenth of the axes wide
    every[-1].set(xlim=(min(times) / margin, max(times) * margin), xscale="log")
    for axes, (title, groups) in zip(every, shown, strict=True):
        _bubbles(axes, groups, unit)
        axes.set_title(wrapped(title, 52), fontsize=SMALL)
    every[-1].set_xlabel("training time (minutes, all tasks)")
    chart.supylabel(r"average accuracy $\bar{A}$ (%)", fontsize=12)
    chart.suptitle(wrapped(name, 52))
    too_small = (
        " A dashed bubble is drawn larger than its energy." if any(e < SMALLEST * unit for e in energies) else ""
    )
    crosses = any(group.stat("energy_kwh") is None for _, groups in shown for group in groups)
    caption = (
        f"Average accuracy against training time, {name}. The area of a bubble is proportional to the "
        f"energy of training{'; a cross has none measured' if crosses else ''}.{too_small}{PANELS * (len(shown) > 1)}"
    )
    return [Picture(f"time_{study.data_slug(setting)}", caption, chart)]


def area(energy: float, unit: float) -> float:
    """Return the area of a bubble in square points: ``energy / unit``, at least ``SMALLEST``."""
    return max(SMALLEST, energy / unit)


def _lines(group: Group) -> int:
    """Return how many lines a label may have: a network's name needs another one."""
    return 3 if group.conditions_label else 2


def _bubbles(axes: Axes, groups: Sequence[Group], unit: float) -> None:
    ordered = sorted(groups, key=lambda group: -group.mean("A_bar"))
    for i, group in enumerate(ordered):
        minutes, accuracy = group.mean("train_seconds") / 60, group.mean("A_bar")
        energy = group.stat("energy_kwh")
        colour = COLOURS[i % len(COLOURS)]
        said = f"{group.label}, {number(energy.mean, None)} kWh" if energy else group.label
        label = fitted(said, 26, _lines(group) + (1 if group.conditions_label else 0))
        if energy:
            line = "--" if energy.mean < SMALLEST * unit else "-"
            axes.scatter(
                minutes, accuracy, s=area(energy.mean, unit), marker="o", facecolor=(colour, 0.45), edgecolor=colour,
                linestyle=line, zorder=4 - energy.mean / unit / LARGEST,
            )  # fmt: skip
        else:
            axes.scatter(minutes, accuracy, s=SMALLEST, marker="x", color=colour)
        axes.annotate(
            label, (minutes, accuracy), (1.03, 1 - (i + 0.5) / len(ordered)), textcoords="axes fraction",
            fontsize=SMALL, va="center", annotation_clip=False,
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
    groups = study.of_all_networks(setting)
    drawn = panels(study, groups, "A_K_per_kwh")
    name = study.data_names[setting]
    pictures = []
    if _worth_drawing(drawn):
        chart = _points(name, drawn, "$A_K$ per kWh (log scale)", lambda group: group.stat("A_K_per_kwh"))
        caption = f"Final accuracy per kWh, {name}; further right is better.{PANELS * (len(drawn) > 1)}{BARS}"
        pictures.append(Picture(f"energy_{study.data_slug(setting)}", caption, chart))
    energies = panels(study, groups, "energy_kwh")
    ratios = {
        id(group): stat
        for _, members in energies
        for group, stat in zip(members, study.energy_ratios(members), strict=True)
    }
    known = [(title, [g for g in members if ratios[id(g)]]) for title, members in energies]
    known = [(title, members) for title, members in known if len(members) > 1]
    if _worth_drawing(known):
        label = f"energy of training ÷ that of {study.reference} (log scale)"
        caption = (
            f"Energy of training relative to {study.reference} under the same conditions, {name}: means of the ratios "
            f"over the seeds that both have.{PANELS * (len(known) > 1)}{BARS}"
        )
        chart = _points(name, known, label, lambda group: ratios[id(group)], line=1.0)
        pictures.append(Picture(f"energy_ratio_{study.data_slug(setting)}", caption, chart))
    return pictures


def _worth_drawing(panels: Sequence[Panel]) -> bool:
    measured = [groups for _, groups in panels if groups[0].kind != "published"]
    return bool(measured) and sum(len(groups) for _, groups in panels) > 1


def _points(
    title: str, shown: Sequence[Panel], xlabel: str, value: Callable[[Group], Stat | None], line: float | None = None
) -> Figure:
    """Draw a point with its deviation for each method, on one logarithmic axis for all panels."""
    sizes = [len(groups) + 0.8 for _, groups in shown]
    lines = max(_lines(group) for _, groups in shown for group in groups)
    chart = figure(6.4, 1.3 + 0.45 * len(shown) + 0.21 * lines * sum(sizes))
    every = chart.subplots(len(shown), 1, squeeze=False, sharex=True, height_ratios=sizes)[:, 0]
    means = [stat.mean for _, groups in shown for group in groups if (stat := value(group))]
    every[-1].set(xlim=(min(means) / 1.7, max(means) * 1.7), xscale="log")
    for axes, (name, groups) in zip(every, shown, strict=True):
        known = sorted(((g, stat) for g in groups if (stat := value(g))), key=lambda pair: -pair[1].mean)
        for row, (_, stat) in enumerate(known):
            at = len(known) - 1 - row
            spread = min(stat.sd or 0.0, 0.99 * stat.mean)
            axes.errorbar(stat.mean, at, xerr=spread or None, fmt="o", color="black", capsize=2, markersize=5)
            axes.annotate(
                number(stat.mean, None), (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL
            )
        axes.set_yticks(range(len(known) - 1, -1, -1), [fitted(g.label, 26, _lines(g)) for g, _ in known])
        axes.set_ylim(-0.6, len(known) - 0.4)
        axes.set_title(wrapped(name, 52), fontsize=SMALL)
        if line is not None:
            axes.axvline(line, color="#777777", linewidth=0.8, linestyle="--")
    plain_log_ticks(every[-1])
    every[-1].set_xlabel(xlabel)
    chart.suptitle(wrapped(title, 52))
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
    parts = ["total", *dict.fromkeys(component for group in groups for component in group.components)]
    rows = [
        (group.label if group.kind == "measured" else f"{group.label} ({group.kind})",
         {"total": group.mean("kept_elements"), **group.components})
        for group in groups
    ]  # fmt: skip
    xlabel = "numbers kept besides the backbone (log scale)"
    chart = _parts(rows, parts, xlabel, study.names[setting], _short_count)
    caption = f"Memory besides the backbone after the last task by component, {study.names[setting]}; right: the total."
    return [Picture(f"memory_{study.slug(setting)}", caption, chart)]


def buffer_points(study: Study) -> list[Picture]:
    """Draw the megabytes of a buffer of embeddings and of as many raw images (the paper: 4.1 against 1206)."""
    names = ("embeddings", "images, bytes", "images, float32")
    rows: list[tuple[str, dict[str, float]]] = []
    for group in buffered(study):
        shape = raw_images(group)
        assert shape is not None
        sizes = dict(zip(names, buffer_megabytes(*shape), strict=True))
        rows.append((f"{group.label}, {group.setting.dataset}, {shape[0]} images", sizes))
    if not rows:
        return []
    rows.append(("CIFNet, ImageNet-100, 2000 images (published)", {names[0]: 4.10, names[2]: 1206.40}))
    chart = _parts(rows, names, "megabytes (log scale)", "", lambda value: f"{number(value, None)} MB")
    caption = "The same samples kept as embeddings and as raw images; right: the embeddings."
    return [Picture("buffer_bytes", caption, chart)]


def _short_count(value: float) -> str:
    return number(value, None) if value < 1e6 else f"{value / 1e6:.3g} M"


def _parts(
    rows: Sequence[tuple[str, dict[str, float]]], parts: Sequence[str], xlabel: str, title: str,
    said: Callable[[float], str],
) -> Figure:  # fmt: skip
    """Draw a row for each method, a marker for each component, and the value of the first component at the right."""
    chart = figure(6.4, 1.8 + 0.45 * len(rows))
    axes = chart.subplots()
    for row, (_, sizes) in enumerate(rows):
        at = len(rows) - 1 - row
        for i, component in reversed(list(enumerate(parts))):
            if component in sizes:
                face = "black" if i == 0 else "none"
                axes.plot(
                    sizes[component], at, MARKERS[i], markersize=7, markerfacecolor=face, markeredgecolor=COLOURS[i],
                    markeredgewidth=1.4, linestyle="none",
                )  # fmt: skip
        if parts[0] in sizes:
            axes.annotate(
                said(sizes[parts[0]]), (1.02, at), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL
            )
    axes.set_yticks(range(len(rows) - 1, -1, -1), [fitted(name, 24) for name, _ in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_xscale("log")
    axes.margins(x=0.06)
    axes.set(xlabel=xlabel, title=wrapped(title, 52))
    legend_of_points(chart, parts)
    return chart


def plain_log_ticks(axes: Axes) -> None:
    """Write plain numbers at a log x axis, few enough that they do not touch; powers of ten if they are long."""
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high / low > 8 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else subs, numticks=8))
    long = high >= 1e5 or low < 1e-3
    plain = FuncFormatter(lambda x, _: f"{x:,.10g}")
    axes.xaxis.set_major_formatter(LogFormatterSciNotation() if long and high / low > 300 else plain)
    axes.xaxis.set_minor_formatter(NullFormatter())
