"""Figures of cost: training time and energy, accuracy per kWh, memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cifnet_pl.report.groups import Group
from cifnet_pl.report.markup import number
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import Study, sources
from cifnet_pl.report.style import Picture, figure, fill, legend_of_bars, looks, wrapped
from cifnet_pl.report.tables import buffer_megabytes, buffered, raw_images

SMALLEST, LARGEST = 40.0, 900.0
"""Areas in square points of the bubbles of the least and the most energy that a figure can tell apart."""


def time_bubbles(study: Study, setting: Setting) -> list[Picture]:
    """Ā against training time, the area of a bubble proportional to its energy (fig:bubble_green)."""
    groups = [g for g in study.compared(setting) if g.stat("train_seconds") and g.stat("A_bar")]
    if len(groups) < 2:
        return []
    chart = figure(7.2, 4.2)
    axes = chart.subplots()
    energies = [stat.mean if (stat := group.stat("energy_kwh")) else None for group in groups]
    unit = max((e for e in energies if e), default=1.0) / LARGEST
    names = [f"{g.label} (external)" if g.kind == "external" else g.label for g in groups]
    handles = []
    for group, energy, (name, look) in zip(groups, energies, looks(names).items(), strict=True):
        minutes, accuracy = _mean(group, "train_seconds") / 60, _mean(group, "A_bar")
        area = max(SMALLEST, energy / unit) if energy else SMALLEST
        face = (look.colour, 0.55) if energy else "none"
        order = 4 - area / (2 * LARGEST)  # small bubbles in front of large ones
        axes.scatter(minutes, accuracy, s=area, marker=look.marker, facecolor=face, edgecolor=look.colour, zorder=order)
        said = f"{name}: {number(energy, None)} kWh" if energy else f"{name}: energy not measured"
        handles.append(
            Line2D([], [], linestyle="", marker=look.marker, markersize=7, label=said, markeredgecolor=look.colour,
                   markerfacecolor=look.colour if energy else "none")
        )  # fmt: skip
    axes.set_xscale("log")
    axes.margins(x=0.18, y=0.22)
    plain_log_ticks(axes)
    axes.set(xlabel="training time (minutes, all tasks)", ylabel=r"average accuracy $\bar{A}$ (%)")
    axes.set_title(wrapped(study.names[setting], 70))
    chart.legend(handles=handles, loc="outside right center", title="area ∝ energy", labelspacing=1.0)
    said_below(chart, " ".join(filter(None, [sources(groups), *study.cache_note(groups)])))
    floor = (
        " Bubbles below a readable size are drawn at that size."
        if any(e and e / unit < SMALLEST for e in energies)
        else ""
    )
    caption = f"Average accuracy against training time, {study.names[setting]}. {sources(groups) or ''}{floor}".strip()
    return [Picture(f"time_{study.slug(setting)}", caption, chart)]


def _mean(group: Group, key: str) -> float:
    stat = group.stat(key)
    assert stat is not None
    return stat.mean


def energy_bars(study: Study, setting: Setting) -> list[Picture]:
    """A_K per kWh with parameters and minutes (tab:cifar100-efficiency)."""
    groups = [group for group in study.with_published(setting) if group.stat("A_K_per_kwh")]
    if len(groups) < 2 or all(group.kind == "published" for group in groups):
        return []
    groups.sort(key=lambda group: (group.kind == "published", -_mean(group, "A_K_per_kwh"), group.name))
    chart = figure(7.4, 1.1 + 0.34 * len(groups))
    axes = chart.subplots()
    for row, group in enumerate(groups):
        ours = group.kind == "measured"
        said = [number(_mean(group, "A_K_per_kwh"), None)]
        if group.stat("backbone_params"):
            said.append(f"{_mean(group, 'backbone_params') / 1e6:.2f} M parameters")
        if group.stat("train_seconds"):
            said.append(f"{number(_mean(group, 'train_seconds') / 60, None)} min")
        _log_bar(axes, len(groups) - 1 - row, _mean(group, "A_K_per_kwh"), 0 if ours else 1, ", ".join(said))
    labels = [g.label if g.kind == "measured" else f"{g.label} ({g.kind})" for g in groups]
    axes.set_yticks(range(len(groups) - 1, -1, -1), labels)
    _log_axis(axes, [_mean(group, "A_K_per_kwh") for group in groups], 60)
    axes.set_ylim(-0.7, len(groups) - 0.3)
    said_below(chart, " ".join(filter(None, [sources(groups), *study.cache_note(groups)])))
    axes.set(xlabel="$A_K$ per kWh (log scale)", title=wrapped(study.names[setting], 70))
    caption = f"Final accuracy per kWh, {study.names[setting]}; longer is better. {sources(groups) or ''}".strip()
    return [Picture(f"energy_{study.slug(setting)}", caption, chart)]


def memory_bars(study: Study, setting: Setting) -> list[Picture]:
    """Numbers kept between tasks, one bar a component and one for the total, log scale (fig:memory)."""
    groups = [group for group in study.with_published(setting) if group.components and group.stat("state_elements")]
    if not any(group.kind == "measured" for group in groups):
        return []
    parts = list(dict.fromkeys(part for group in groups for part in group.components))
    kinds = {"total": 0} | {part: 1 + i for i, part in enumerate(parts)}
    bars: list[tuple[float, str, float]] = []
    ticks, place = [], 0.0
    for group in groups:
        own = [*group.components.items(), ("total", _mean(group, "state_elements"))]
        ticks.append(place - (len(own) - 1) / 2)
        bars += [(place - i, name, count) for i, (name, count) in enumerate(own)]
        place -= len(own) + 0.9
    chart = figure(7.4, 1.3 + 0.19 * -place)
    axes = chart.subplots()
    for at, name, count in bars:
        _log_bar(axes, at, count, kinds[name], number(count, None) if count < 1e6 else f"{count / 1e6:.3g} M", 0.9)
    axes.set_yticks(ticks, [g.label if g.kind == "measured" else f"{g.label}\n({g.kind})" for g in groups])
    _log_axis(axes, [count for _, _, count in bars], 4)
    axes.set(xlabel="numbers kept between tasks (log scale)", title=wrapped(study.names[setting], 70))
    axes.set_ylim(place + 1.2, 1.0)
    legend_of_bars(chart, list(kinds), list(kinds.values()), "right center")
    caption = f"Memory of the classifier after the last task by component, {study.names[setting]}."
    return [Picture(f"memory_{study.slug(setting)}", caption, chart)]


def buffer_bars(study: Study) -> list[Picture]:
    """Megabytes of a buffer of embeddings against as many raw images (the paper: 4.1 against 1206)."""
    rows: list[tuple[str, Sequence[float | None]]] = []
    for group in buffered(study):
        shape = raw_images(group)
        assert shape is not None
        rows.append((f"{group.name}, {group.setting.dataset}, {shape[0]} images", buffer_megabytes(*shape)))
    if not rows:
        return []
    rows.append(("CIFNet, ImageNet-100, 2000 images (published)", (4.10, None, 1206.40)))
    names = ("embeddings", "raw images, bytes", "raw images, float32")
    chart = figure(7.4, 1.4 + 0.62 * len(rows))
    axes = chart.subplots()
    for row, (_, sizes) in enumerate(rows):
        for i, size in enumerate(sizes):
            if size is not None:
                at = len(rows) - 1 - row + 0.27 * (1 - i)
                _log_bar(axes, at, size, (0, 1, 2)[i], f"{number(size, None)} MB", 0.25)
    axes.set_yticks(range(len(rows) - 1, -1, -1), [wrapped(name, 30) for name, _ in rows])
    _log_axis(axes, [size for _, sizes in rows for size in sizes if size], 8)
    axes.set(xlabel="megabytes (log scale)")
    legend_of_bars(chart, names, (0, 1, 2), "lower center", 3)
    return [Picture("buffer_bytes", "The same samples kept as embeddings and as raw images.", chart)]


def plain_log_ticks(axes: Axes) -> None:
    """Plain numbers on a logarithmic x axis: 1, 2 and 5 of each decade, or all nine where they are far apart."""
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high / low > 8 else tuple(float(i) for i in range(1, 10))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > 300 else subs, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def said_below(chart: Figure, text: str) -> None:
    """A line below the axes: an energy is never shown without where it comes from."""
    if text:
        chart.supxlabel(wrapped(text, 110), fontsize=7)


def _log_bar(axes: Axes, at: float, value: float, kind: int, text: str, height: float = 0.7) -> None:
    axes.barh(at, value, height, **fill(kind))
    axes.annotate(text, (value, at), (4, 0), textcoords="offset points", va="center", fontsize=7.5)


def _log_axis(axes: Axes, values: Sequence[float], room: float) -> None:
    """A log axis from below the smallest value to ``room`` times the largest, where the numbers stand."""
    axes.set_xscale("log")
    low = 10 ** np.floor(np.log10(min(values)) - 0.3)
    axes.set_xlim(low, max(values) * room)
    axes.grid(visible=False, axis="y")
