"""The picture of confusions: its order, and that any number of classes can be drawn."""

import io
import tracemalloc

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image

from cifnet_pl.learning.callbacks.pictures import (
    MOST_CLASSES,
    clustered,
    draw_calibration,
    draw_confusion,
    png,
)
from cifnet_pl.utilities.fonts import lettering


def test_confused_classes_are_neighbours():
    matrix = 100 * np.eye(8)
    for a, b in ((0, 5), (2, 7), (1, 6)):
        matrix[a, b] = matrix[b, a] = 30
    position = np.argsort(clustered(matrix / matrix.sum(axis=1, keepdims=True)))
    assert sorted(position) == list(range(8))
    assert all(abs(position[a] - position[b]) == 1 for a, b in ((0, 5), (2, 7), (1, 6)))


@pytest.mark.parametrize("classes", [1, 2, 3, 40, MOST_CLASSES + 20])
def test_any_number_of_classes(classes: int):
    draw = np.random.default_rng(0)
    matrix = 20 * np.eye(classes, dtype=np.int64) + draw.integers(0, 2, (classes, classes))
    names = [f"class $ {i}" for i in range(classes)]
    figure = draw_confusion(matrix, names, lettering(names), "title")
    shown = figure.axes[0].get_yticklabels()
    assert len(shown) == min(classes, MOST_CLASSES)
    with Image.open(io.BytesIO(png(figure))) as image:
        assert image.format == "PNG"


def test_colours_of_cells():
    """Green on the diagonal, red elsewhere, white where nothing was taken for it."""
    figure = draw_confusion(np.array([[8, 2], [0, 10]]), ["a", "b"], lettering(["ab"]), "title")
    with Image.open(io.BytesIO(png(figure))) as image:
        pixels = np.asarray(image)
    axes = figure.axes[0]
    height = len(pixels)
    order = [label.get_text() for label in axes.get_yticklabels()]
    colours = {}
    for i, true in enumerate(order):
        for j, named in enumerate(order):
            x, y = axes.transData.transform((j + 0.3, i + 0.3))
            colours[true + named] = pixels[height - 1 - int(y), int(x), :3].astype(int)
    for cell in ("aa", "bb"):
        assert colours[cell][1] > colours[cell][0] + 20
    assert colours["ab"][0] > colours["ab"][2] + 20
    assert colours["ba"].tolist() == [255, 255, 255]


def test_very_many_classes_take_little_memory():
    """A matrix that is enlarged to the picture's pixels as floats takes more than ten times its pixels."""
    draw = np.random.default_rng(0)
    names = [str(i) for i in range(MOST_CLASSES)]
    matrix = draw.integers(0, 3, (MOST_CLASSES, MOST_CLASSES))
    tracemalloc.start()
    figure = draw_confusion(matrix, names, lettering(names), "title")
    png(figure)
    _, largest = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    width, height = figure.get_size_inches() * figure.dpi
    assert largest < 2 * 4 * width * height


def test_classes_without_photos_and_answers_are_left_out():
    matrix = np.diag([5, 0, 5])
    figure = draw_confusion(matrix, ["a", "b", "c"], lettering(["abc"]), "title")
    assert sorted(label.get_text() for label in figure.axes[0].get_yticklabels()) == ["a", "c"]


def test_calibration_bins():
    confidence = np.array([0.05, 0.95, 0.95, 1.0])
    figure = draw_calibration(confidence, np.array([False, True, False, True]), "title", lettering([]))
    heights = [round(bar.get_height(), 1) for bar in figure.axes[0].patches]
    assert heights == [0.0, 66.7]


@pytest.mark.parametrize("classes", [10, 30])
def test_numbers_fit_their_cells_and_can_be_read(classes: int):
    matrix = np.full((classes, classes), 1) + np.diag([200] * classes)
    figure = draw_confusion(matrix, [str(i) for i in range(classes)], lettering([]), "title")
    renderer = FigureCanvasAgg(figure).get_renderer()
    axes = figure.axes[0]
    side = abs(axes.transData.transform((1, 1)) - axes.transData.transform((0, 0)))
    assert len(axes.texts) >= classes
    for text in [*axes.texts, *axes.get_yticklabels()]:
        box = text.get_window_extent(renderer)
        assert box.width < side[0]
        assert box.height < side[1]
        assert text.get_fontsize() >= 10
    if classes == 10:
        assert figure.get_figwidth() <= 6.5
