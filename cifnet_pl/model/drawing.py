"""Figures of a model and of a run: confusion matrix, reliability diagram, accuracy over tasks."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from cifnet_pl.utilities.text import families, printable, shortened

MAX_CONFUSION_CLASSES = 150
"""Classes in one confusion matrix; of more classes, those with most errors are drawn."""

MAX_NUMBERED_CLASSES = 30
"""Up to this number of classes every cell with an image has its number; above it, only cells of
5 % or more.
"""

MAX_LABEL_LENGTH = 24

MAX_NUMBERED_TASKS = 16
"""Up to this number of tasks each has a tick, and every cell of the accuracy matrix a number."""


@dataclass(frozen=True)
class CellSize:
    """Sizes in a confusion matrix.

    Attributes:
        inches: side of a cell.
        label_points: font size of the class names.
        number_points: font size of the numbers in the cells.
        smallest_number: percentage from which on a number is written.
    """

    inches: float
    label_points: float
    number_points: float
    smallest_number: float


FEW_CLASSES = CellSize(0.42, 10.5, 10.5, 0.5)
MANY_CLASSES = CellSize(0.18, 9.0, 6.5, 5.0)


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
    totals = matrix.sum(axis=1)
    predicted = matrix.sum(axis=0)
    tested = np.flatnonzero(totals + predicted)
    images = np.maximum(totals, 1)
    shares = matrix / images[:, None]
    if len(tested) > MAX_CONFUSION_CLASSES:
        both = shares.sum(axis=0) + shares.sum(axis=1)
        errors = both - 2 * shares.diagonal()
        by_errors = np.argsort(-errors[tested], kind="stable")
        worst = by_errors[:MAX_CONFUSION_CLASSES]
        tested = tested[worst]
        title += f" (the {MAX_CONFUSION_CLASSES} classes with most confusions)"
    tested_shares = shares[np.ix_(tested, tested)]
    order = tested[clustered(tested_shares)]
    labels = [shortened(names[i], MAX_LABEL_LENGTH) for i in order]
    percent = 100 * shares[np.ix_(order, order)]
    fonts = families([title, *names])
    with matplotlib.rc_context({"font.family": fonts}):
        return _draw_matrix(percent, labels, printable(title))


def _draw_matrix(percent: np.ndarray, labels: Sequence[str], title: str) -> Figure:
    size = len(labels)
    cell = MANY_CLASSES
    if size <= MAX_NUMBERED_CLASSES:
        cell = FEW_CLASSES
    side = max(1.6, cell.inches * size)
    figure = Figure(figsize=(side, side), dpi=130)
    axes = figure.add_axes((0, 0, 1, 1))
    diagonal = np.eye(size, dtype=bool)
    correct = np.where(diagonal, percent, np.nan)
    hidden = diagonal | (percent == 0)
    wrong = np.where(hidden, np.nan, percent)
    # Not ``imshow``: it enlarges the matrix to the figure's pixels before it applies the colours,
    # which takes half a gigabyte.
    edges = np.arange(size + 1) - 0.5
    axes.pcolormesh(edges, edges, correct, cmap="Greens", vmin=0, vmax=130)
    colours = LogNorm(1, 100)
    mesh = axes.pcolormesh(edges, edges, wrong, cmap="OrRd", norm=colours)
    across = edges[[0, -1]]
    downwards = edges[[-1, 0]]
    axes.set(aspect="equal", xlim=across, ylim=downwards)
    points = cell.label_points
    axes.set_xticks(range(size), labels, rotation=90, fontsize=points, parse_math=False)
    axes.set_yticks(range(size), labels, fontsize=points, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class")
    axes.set_title(title, parse_math=False)
    axes.hlines(edges, *across, color="0.9", linewidth=0.4)
    axes.vlines(edges, *across, color="0.9", linewidth=0.4)
    for i, j in np.argwhere(percent >= cell.smallest_number):
        value = percent[i, j]
        # Black can be read on the darkest green, but not on the darkest red.
        colour = "black"
        if i != j and value > 40:
            colour = "white"
        _write_number(axes, j, i, value, colour, cell.number_points)
    left = 1 + 0.25 / side
    width = 0.14 / side
    height = min(1.0, 4 / side)
    bottom = (1 - height) / 2
    colour_axes = axes.inset_axes((left, bottom, width, height))
    figure.colorbar(
        mesh,
        cax=colour_axes,
        label="errors (% of the class's images)",
        ticks=[1, 3, 10, 30, 100],
        format="%d",
    )
    return figure


def _write_number(
    axes: Axes,
    x: float,
    y: float,
    value: float,
    colour: str,
    points: float | None = None,
) -> None:
    """Write a number without decimals in the middle of a cell."""
    text = f"{value:.0f}"
    # Not measured for the layout: there may be thousands, all within the axes.
    number = axes.text(x, y, text, ha="center", va="center", color=colour)
    number.set(fontsize=points, in_layout=False)


# ---------------------------------------------------------------------- calibration


def draw_calibration(confidence: np.ndarray, correct: np.ndarray, title: str) -> Figure:
    """Draw a reliability diagram: the accuracy at each confidence in ten bins, and their images.

    Args:
        confidence: (n,) largest probability of each image, in 0–1.
        correct: (n,) bool.
        title: title of the figure.
    """
    edges = np.linspace(0, 1, 11)
    counts, _ = np.histogram(confidence, edges)
    correct_counts, _ = np.histogram(confidence[correct], edges)
    images = np.maximum(counts, 1)
    accuracy = 100 * correct_counts / images
    starts = 100 * edges[:-1]
    centres = starts + 5
    figure = Figure(figsize=(5.2, 5.4), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    ends = [0, 100]
    upper.plot(ends, ends, color="0.6", linewidth=1, label="perfect calibration")
    upper.bar(centres, accuracy, width=9, color="#9ecae1", label="accuracy")
    upper.set(title=title, ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 100))
    upper.legend(frameon=False)
    lower.bar(centres, counts, width=9, color="0.75")
    lower.set(xlabel="confidence (%)", ylabel="images")
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
    style = "-"
    if len(classes_seen) <= 25:
        style = "o-"
    # As floats: None becomes NaN.
    measured = np.array(accuracy, dtype=float)
    averages = np.array(average, dtype=float)
    upper.plot(classes_seen, measured, style, color="black", label="$A_k$")
    label = r"$\bar A$ so far"
    upper.plot(classes_seen, averages, "--", color="tab:blue", label=label)
    # From a round number of 50 or less on, so that small changes look small.
    lowest = float(np.nanmin([*measured, 100.0]))
    start = max(0.0, min(50.0, 10.0 * math.floor((lowest - 2) / 10)))
    limits = (start, 101.0)
    upper.set(xlabel="classes seen", ylabel="accuracy (%)", title=title, ylim=limits)
    upper.grid(alpha=0.3)
    upper.legend()
    _draw_accuracy_matrix(lower, colour_axes, matrix)
    for axis in (upper.xaxis, lower.xaxis, lower.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if len(classes_seen) <= MAX_NUMBERED_TASKS:
        upper.set_xticks(classes_seen)
    return figure


def _draw_accuracy_matrix(
    axes: Axes, colour_axes: Axes, matrix: Sequence[Sequence[float | None]]
) -> None:
    size = len(matrix)
    grid = np.full((size, size), np.nan)
    for k, row in enumerate(matrix):
        grid[k, : len(row)] = row
    extent = (0.5, size + 0.5, size + 0.5, 0.5)
    image = axes.imshow(
        grid, cmap="viridis", vmin=0, vmax=100, aspect="auto", extent=extent
    )
    axes.set(
        xlabel="classes of task",
        ylabel="after task",
        title="Accuracy on each task's classes",
    )
    if size <= MAX_NUMBERED_TASKS:
        for k, j in np.argwhere(~np.isnan(grid)):
            # The colour map is light from about two thirds of its range.
            colour = "white"
            if grid[k, j] > 65:
                colour = "black"
            _write_number(axes, j + 1, k + 1, grid[k, j], colour)
    axes.figure.colorbar(image, cax=colour_axes, label="accuracy (%)")
