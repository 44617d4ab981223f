"""A picture of photos with their three most probable classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cifnet_pl.data.images import read_square
from cifnet_pl.model.classifier import Prediction
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.text import printable

IN_GALLERY = 24
"""Photos in one picture."""

SHOWN = 3
"""Classes under each photo."""

COLUMNS = 6
PIXELS = 160
LONGEST = 22
"""Characters of a class name that are shown."""


def write_gallery(predictions: Sequence[Prediction], path: Path) -> None:
    """Draw photos, sorted by name, each above its most probable classes as bars; PNG, written atomically.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ordered = sorted(predictions, key=lambda prediction: str(prediction.file))
    columns = min(COLUMNS, max(1, len(ordered)))
    rows = max(1, math.ceil(len(ordered) / columns))
    figure = Figure(figsize=(2.0 * columns, 2.85 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=[3, 1.15] * rows)
    for cell in cells.flat:
        cell.axis("off")
    for place, prediction in enumerate(ordered):
        row, column = divmod(place, columns)
        _draw_photo(cells[2 * row, column], prediction)
        _draw_bars(cells[2 * row + 1, column], prediction)
    write_atomic(path, lambda file: figure.savefig(file, format="png", dpi=110))


def _draw_photo(axes: Any, prediction: Prediction) -> None:
    assert prediction.file is not None  # the command line names files
    axes.imshow(read_square(prediction.file, PIXELS), interpolation="nearest")
    axes.set_title(_short(prediction.file.name), fontsize=7, color="0.4", pad=2)


def _draw_bars(axes: Any, prediction: Prediction) -> None:
    names, shares = prediction.classes[:SHOWN], prediction.probabilities[:SHOWN]
    for line, (name, share) in enumerate(zip(names, shares, strict=True)):
        axes.barh(line, share, height=0.85, color="#9ecae1" if line == 0 else "#dfe8ee", align="center")
        axes.text(0.01, line, _short(name), fontsize=8, va="center", ha="left", parse_math=False)
        axes.text(0.99, line, f"{100 * share:.0f} %", fontsize=8, va="center", ha="right")
    axes.set_xlim(0, 1)
    axes.set_ylim(SHOWN - 0.4, -0.6)


def _short(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= LONGEST else plain[: LONGEST - 1] + "…"
