"""Draw photos with their three most probable classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cifnet_pl.data.images import read_square
from cifnet_pl.model.classifier import Prediction
from cifnet_pl.utilities.files import write_atomic

if TYPE_CHECKING:
    from cifnet_pl.utilities.fonts import Lettering

IN_GALLERY = 24
"""Photos in one picture."""

SHOWN = 3
"""Classes under each photo."""

COLUMNS = 6
PIXELS = 160
UNKNOWN = "#b2182b"
"""Colour of what shows nothing known."""

LONGEST = 22
"""Characters of a class name that are shown."""


def write_gallery(predictions: Sequence[Prediction], path: Path) -> str | None:
    """Draw photos in the order given, each above its most probable classes as bars.

    Args:
        predictions: of the photos.
        path: the PNG file, written atomically.

    Returns:
        A note for the user if a name could not be drawn with the fonts of this machine.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    import matplotlib

    from cifnet_pl.utilities.fonts import lettering  # as matplotlib, only where there is a picture

    letters = lettering([text for p in predictions for text in (_title(p), *p.classes[:SHOWN])])
    columns = min(COLUMNS, max(1, len(predictions)))
    rows = max(1, math.ceil(len(predictions) / columns))
    with matplotlib.rc_context({"font.family": list(letters.families)}):
        figure = _figure(predictions, rows, columns, letters)
        write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=110))
    return letters.note


def _figure(predictions: Sequence[Prediction], rows: int, columns: int, letters: Lettering) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.0 * columns, 2.85 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[3, 1.15] * rows)
    for cell in cells.flat:
        cell.axis("off")
    for index, prediction in enumerate(predictions):
        row, column = divmod(index, columns)
        _draw_photo(cells[2 * row, column], prediction, letters)
        _draw_bars(cells[2 * row + 1, column], prediction, letters)
    return figure


def _draw_photo(axes: Any, prediction: Prediction, letters: Lettering) -> None:
    assert prediction.file is not None  # the command line names files
    axes.imshow(read_square(prediction.file, PIXELS), interpolation="nearest")
    title = letters.of(_title(prediction), LONGEST + 10)
    axes.set_title(title, fontsize=7, color="0.4", pad=2, parse_math=False)
    if prediction.known is False:
        _mark_unknown(axes)


def _mark_unknown(axes: Any) -> None:
    """Draw a frame around a photo that shows nothing known, and write so on it."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0, 0), 1, 1, transform=axes.transAxes, fill=False, linewidth=4, edgecolor=UNKNOWN))
    axes.text(
        *(0.5, 0.06, "unknown"),
        transform=axes.transAxes,
        ha="center",
        fontsize=8,
        color="white",
        bbox={"facecolor": UNKNOWN, "edgecolor": "none", "pad": 2},
    )


def _title(prediction: Prediction) -> str:
    return f"{prediction.file.parent.name}/{prediction.file.name}" if prediction.file is not None else ""


def _draw_bars(axes: Any, prediction: Prediction, letters: Lettering) -> None:
    names, shares = prediction.classes[:SHOWN], prediction.probabilities[:SHOWN]
    for line, (name, share) in enumerate(zip(names, shares, strict=True)):
        axes.barh(line, share, height=0.85, color="#9ecae1" if line == 0 else "#dfe8ee", align="center")
        axes.text(0.01, line, letters.of(name, LONGEST), fontsize=8, va="center", ha="left", parse_math=False)
        axes.text(0.99, line, f"{100 * share:.0f} %", fontsize=8, va="center", ha="right")
    axes.set_xlim(0, 1)
    axes.set_ylim(SHOWN - 0.4, -0.6)
