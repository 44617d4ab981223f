"""Find the texts of a drawn figure, and check that each can be read."""

import itertools

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from PIL import Image

from cifnet_pl.report.figures import STYLE


def assert_labels_are_readable(picture):
    """No two texts overlap, and none is cut off."""
    canvas = FigureCanvasAgg(picture.figure)
    with matplotlib.rc_context(STYLE):
        canvas.draw()
    grey = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("L")
    assert grey.getextrema() == (0, 255)
    boxes = []
    for text in texts_of(picture.figure):
        # Of an annotation without its arrow.
        box = Text.get_window_extent(text, canvas.get_renderer())
        boxes.append((text.get_text(), box))
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        meet = Bbox.intersection(one, other)
        is_apart = meet is None or min(meet.width, meet.height) < 1.5
        assert is_apart, f"{picture.name}: '{a}' and '{b}' overlap"
    width, height = canvas.get_width_height()
    for name, box in boxes:
        is_within = -1 <= box.x0 <= box.x1 <= width + 1
        is_within &= -1 <= box.y0 <= box.y1 <= height + 1
        assert is_within, f"{picture.name}: '{name}' is cut off"


def texts_of(figure):
    """Every text that is drawn; of ticks only those within the limits of their axis."""
    ticks = set()
    shown = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            ticks |= set(axis.findobj(Text)) - {axis.label, axis.offsetText}
            shown |= {tick.label1 for tick in axis._update_ticks()}  # type: ignore[attr-defined]
    texts = (set(figure.findobj(Text)) - ticks) | shown  # type: ignore[arg-type]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]
