"""Define how every figure looks: colours that differ in grey too, a marker and a line style for each method."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#7A5C00", "#8B8B8B", "#A50026", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">", "p", "h", "d")
LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2, 1, 2)))

SMALL = 10.5
"""Points of numbers, long labels and titles of panels: half a page wide a figure is still legible."""

SETTINGS: Any = {
    "font.size": 12.0,
    "axes.titlesize": 12.5,
    "figure.titlesize": 12.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "lines.markersize": 5.0,
    "legend.frameon": False,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "cifnet",  # else identifiers in the file are random, and two reports never the same
    "svg.fonttype": "path",  # the same letters on every machine
}


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its files and its caption."""

    name: str
    caption: str
    figure: Figure


def looks(count: int) -> list[dict[str, Any]]:
    """Return colour, marker and line style of ``count`` lines of a panel.

    The lists of colours, markers and lines have different lengths, so that no two of them are the same.
    """
    return [
        {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "linestyle": LINES[i % len(LINES)]}
        for i in range(count)
    ]


def figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts never overlap.

    Args:
        width, height: in inches.
    """
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def label_rows(axes: Axes, names: Sequence[str], numbers: Sequence[str]) -> None:
    """Name the rows of a figure, 0 at the top, at the left, and write their numbers at the right.

    Args:
        axes: with something at y = 0, 1, …
        names: of the rows.
        numbers: of the rows.
    """
    for row, text in enumerate(numbers):
        axes.annotate(text, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)


def legend_below(target: Figure, axes: Axes, columns: int) -> None:
    """Add a legend below the axes, where it hides no data; long names are wrapped.

    Args:
        target: figure with a constrained layout.
        axes: whose handles and labels the legend shows.
        columns: number of columns, fewer if the names are too wide: a letter is about 6 points, the sample line 50.
    """
    handles, labels = axes.get_legend_handles_labels()
    names = [fitted(label, 54 if columns == 1 else 26) for label in labels]
    longest = max((len(line) for name in names for line in name.splitlines()), default=1)
    fitting = int(72 * target.get_figwidth() / (6 * longest + 50))
    columns = max(1, min(columns, fitting, len(names)))
    target.legend(handles, names, loc=cast(Any, "outside lower center"), ncols=columns)


def wrapped(text: str, width: int) -> str:
    """Return ``text`` in lines of at most ``width`` characters, long words broken; a dollar begins no formula."""
    return "\n".join(textwrap.wrap(text, width)).replace("$", r"\$")


def fitted(label: str, width: int, lines: int = 2) -> str:
    """Return a label in at most ``lines`` lines of ``width`` characters; the middle of a longer one is left out.

    The end is kept, as variants of one method differ there; tables have the whole name.

    Example:
        >>> fitted("a method with a name that is far too long, width 64", 16)
        'a method with a\\n… long, width 64'
    """
    shortened = wrapped(label, width)
    taken = len(label)
    while shortened.count("\n") >= lines and taken > 2:
        taken -= 1
        first = taken // 2
        shortened = wrapped(f"{label[:first].rstrip()} … {label[len(label) - taken + first :].lstrip()}", width)
    return shortened


def render(picture: Picture) -> tuple[bytes, bytes]:
    """Return a figure as PNG and SVG; the same figure gives the same bytes."""
    png, svg = io.BytesIO(), io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        picture.figure.savefig(png, format="png", metadata={"Software": None})
        picture.figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return png.getvalue(), svg.getvalue()
