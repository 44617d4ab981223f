"""Figures of a model and of a run: confusion matrix, reliability diagram, accuracy over tasks."""

import io
from collections.abc import Sequence
from itertools import zip_longest

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from cifnet_pl.utilities.text import families, printable, shortened

MAX_CONFUSION_CLASSES = 150
"""Classes in one confusion matrix; of more classes, those with most errors are drawn."""

MAX_NUMBERED_CLASSES = 30
"""Up to this number of classes the cells are large, and have numbers."""

MAX_LABEL_LENGTH = 24

MAX_NUMBERED_TASKS = 16
"""Up to this number of tasks every cell of the accuracy matrix has a number."""


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight", metadata={"Software": None})
    return file.getvalue()


# ---------------------------------------------------------------------- confusion matrix


def clustered(shares: np.ndarray) -> np.ndarray:
    """Order classes so that classes that are confused with each other are neighbours.

    Average linkage of the distances ``1 − (s_ij + s_ji)/2`` with the optimal order of leaves
    (Bar-Joseph et al., 2001).

    Args:
        shares: (C, C) share of the images of class i that are predicted as class j.

    Returns:
        (C,) int64 positions of the classes in this order.
    """
    if len(shares) < 3:
        return np.arange(len(shares))
    symmetric = (shares + shares.T) / 2
    distance = 1 - symmetric
    np.fill_diagonal(distance, 0)
    condensed = squareform(distance, checks=False)
    tree = linkage(condensed, "average", optimal_ordering=True)
    return np.asarray(leaves_list(tree))


def draw_confusion(matrix: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Draw a confusion matrix in percent of each true class, with similar classes together.

    Args:
        matrix: (C, C) numbers of images, true classes in rows.
        names: class names.
        title: title of the figure.
    """
    images = matrix.sum(axis=1)
    confusions = images + matrix.sum(axis=0) - 2 * matrix.diagonal()
    drawn = np.flatnonzero(images + confusions)
    if len(drawn) > MAX_CONFUSION_CLASSES:
        most_confused = np.argsort(-confusions[drawn], kind="stable")
        drawn = drawn[most_confused[:MAX_CONFUSION_CLASSES]]
        title += f" (the {MAX_CONFUSION_CLASSES} classes with most confusions)"
    shares = matrix / np.maximum(images, 1)[:, None]
    order = drawn[clustered(shares[np.ix_(drawn, drawn)])]
    labels = [shortened(names[i], MAX_LABEL_LENGTH) for i in order]
    percent = 100 * shares[np.ix_(order, order)]
    fonts = families([title, *names])
    with matplotlib.rc_context({"font.family": fonts}):
        return _draw_matrix(percent, labels, printable(title))


def _draw_matrix(percent: np.ndarray, labels: Sequence[str], title: str) -> Figure:
    size = len(labels)
    is_numbered = size <= MAX_NUMBERED_CLASSES
    inches = 0.18
    points = 9.0
    if is_numbered:
        inches = 0.42
        points = 10.5
    side = max(1.6, inches * size)
    figure = Figure(figsize=(side, side), dpi=130)
    axes = figure.add_axes((0, 0, 1, 1))
    cells = np.where(percent == 0, np.nan, percent)
    mesh = _draw_cells(axes, cells, LogNorm(1, 100), is_numbered)
    places = range(1, size + 1)
    axes.set_xticks(places, labels, rotation=90, fontsize=points, parse_math=False)
    axes.set_yticks(places, labels, fontsize=points, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class", aspect="equal")
    axes.set_title(title, parse_math=False)
    left = 1 + 0.25 / side
    width = 0.14 / side
    height = min(1.0, 4 / side)
    bottom = (1 - height) / 2
    figure.colorbar(
        mesh,
        cax=axes.inset_axes((left, bottom, width, height)),
        label="% of the class's images",
        ticks=[1, 3, 10, 30, 100],
        format="%d",
    )
    return figure


def _draw_cells(
    axes: Axes,
    cells: np.ndarray,
    shades: Normalize,
    is_numbered: bool,
) -> QuadMesh:
    """Draw percentages as cells in shades of blue, the first row on top.

    Args:
        axes: where to draw; rows and columns are numbered from 1.
        cells: (n, n) percentages, NaN where a cell is left white.
        shades: percentage → shade.
        is_numbered: whether each cell has its number.
    """
    # Not ``imshow``: it enlarges the matrix to the figure's pixels before it applies the colours,
    # which takes half a gigabyte.
    edges = np.arange(len(cells) + 1) + 0.5
    mesh = axes.pcolormesh(
        edges,
        edges,
        cells,
        cmap="Blues",
        norm=shades,
        edgecolors="0.9",
        linewidth=0.4,
    )
    axes.invert_yaxis()
    if is_numbered:
        for i, j in np.argwhere(~np.isnan(cells)):
            value = cells[i, j]
            colour = "black"
            if shades(value) > 0.65:
                colour = "white"
            text = f"{value:.0f}"
            number = axes.text(j + 1, i + 1, text, ha="center", va="center")
            # Not measured for the layout: there may be hundreds, all within the axes.
            number.set(color=colour, in_layout=False)
    return mesh


# ---------------------------------------------------------------------- calibration


def draw_calibration(confidence: np.ndarray, correct: np.ndarray, title: str) -> Figure:
    """Draw a reliability diagram: the accuracy at each confidence in ten bins, and their images.

    Args:
        confidence: (n,) largest probability of each image, in 0–1.
        correct: (n,) bool.
        title: title of the figure.
    """
    # Scikit-learn loads for seconds, and few ask for this figure.
    from sklearn.calibration import CalibrationDisplay

    figure = Figure(figsize=(5.2, 5.4), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    CalibrationDisplay.from_predictions(
        correct, confidence, n_bins=10, name="accuracy", ax=upper
    )
    upper.set(title=title, xlabel="", ylabel="accuracy")
    lower.hist(confidence, bins=10, range=(0, 1), rwidth=0.9, color="0.75")
    lower.set(xlabel="confidence", ylabel="images")
    for axis in (upper.yaxis, lower.xaxis):
        axis.set_major_formatter(PercentFormatter(1))
    return figure


# ---------------------------------------------------------------------- accuracy over tasks


def draw_trajectory(
    classes_seen: Sequence[int],
    accuracy: Sequence[float | None],
    average: Sequence[float | None],
    matrix: Sequence[Sequence[float | None]],
    title: str,
) -> Figure:
    """Draw A_k and Ā over the number of classes seen, and the accuracy matrix below.

    Args:
        classes_seen: number of classes after each task.
        accuracy: A_k after each task in percent; None where it was not measured.
        average: Ā after each task in percent.
        matrix: row k holds the accuracies on tasks 0 to k after task k, in percent.
        title: title of the figure.
    """
    figure = Figure(figsize=(6.4, 7.4), dpi=120)
    # Fixed places with room for all labels: matplotlib's own layout takes longer than the drawing.
    upper = figure.add_axes((0.1, 0.57, 0.76, 0.38))
    lower = figure.add_axes((0.1, 0.07, 0.76, 0.39))
    colour_axes = figure.add_axes((0.88, 0.07, 0.025, 0.39))
    # As floats: None becomes NaN, as where a row of the matrix is short.
    measured = np.array(accuracy, dtype=float)
    averages = np.array(average, dtype=float)
    upper.plot(classes_seen, measured, "o-", color="black", label="$A_k$")
    label = r"$\bar A$ so far"
    upper.plot(classes_seen, averages, "--", color="tab:blue", label=label)
    upper.set(xlabel="classes seen", ylabel="accuracy (%)", title=title, ylim=(0, 101))
    upper.grid(alpha=0.3)
    upper.legend(loc="lower left")
    by_column = list(zip_longest(*matrix))
    cells = np.array(by_column, dtype=float).T
    is_numbered = len(matrix) <= MAX_NUMBERED_TASKS
    mesh = _draw_cells(lower, cells, Normalize(0, 100), is_numbered)
    figure.colorbar(mesh, cax=colour_axes, label="accuracy (%)")
    lower.set(
        xlabel="classes of task",
        ylabel="after task",
        title="Accuracy on each task's classes",
    )
    for axis in (upper.xaxis, lower.xaxis, lower.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return figure
