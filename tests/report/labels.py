"""Find the texts of a drawn figure, and check that each can be read."""

import itertools

import matplotlib
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from cifnet_pl.report.figures import STYLE, Picture


def assert_labels_are_readable(picture: Picture) -> None:
    """No two texts overlap, and none is cut off."""
    boxes = text_boxes(picture.figure)
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        meet = Bbox.intersection(one, other)
        is_apart = meet is None or min(meet.width, meet.height) < 1.5
        assert is_apart, f"{picture.name}: '{a}' and '{b}' overlap"
    width, height = picture.figure.canvas.get_width_height()
    for text, box in boxes:
        is_within = -1 <= box.x0 <= box.x1 <= width + 1
        is_within &= -1 <= box.y0 <= box.y1 <= height + 1
        assert is_within, f"{picture.name}: '{text}' is cut off"


def text_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Every visible text of a drawn figure with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    with matplotlib.rc_context(STYLE):
        canvas.draw()
    hidden = set()
    for axes in figure.axes:
        hidden |= {id(label) for label in [*beyond(axes.xaxis), *beyond(axes.yaxis)]}
    # Ticks that an axis no longer needs stay where they were.
    result: dict[tuple[str, tuple[int, ...]], Bbox] = {}
    for artist in figure.findobj(Text):
        assert isinstance(artist, Text)
        text = artist.get_text()
        if artist.get_visible() and text.strip() and id(artist) not in hidden:
            # Of an annotation without its arrow.
            box = Text.get_window_extent(artist, canvas.get_renderer())
            result[text, tuple(box.extents.round().astype(int))] = box
    return [(text, box) for (text, _), box in result.items()]


def beyond(axis: Axis) -> list[Text]:
    """Labels of ticks outside the limits of an axis: they exist, but are not drawn."""
    low, high = sorted(axis.get_view_interval())
    labels = []
    for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
        is_within = low - 1e-9 <= tick.get_loc() <= high + 1e-9
        for label in (tick.label1, tick.label2):
            if not is_within or not label.get_visible():
                labels.append(label)
    return labels
