"""Figures of a model and of a run: confusion matrix, reliability diagram, accuracy over tasks."""

from __future__ import annotations

import io
import math
import unicodedata
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
    """

    inches: float
    label_points: float
    number_points: float


FEW_CLASSES = CellSize(0.42, 10.5, 10.5)
MANY_CLASSES = CellSize(0.18, 9.0, 6.5)


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
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
    in_use = totals + matrix.sum(axis=0)
    tested = np.flatnonzero(in_use)
    images = np.maximum(totals, 1)
    shares = matrix / images[:, None]
    if len(tested) > MAX_CONFUSION_CLASSES:
        rows = shares.sum(axis=1)
        columns = shares.sum(axis=0)
        both = columns + rows
        errors = both - 2 * shares.diagonal()
        tested_errors = errors[tested]
        by_errors = np.argsort(-tested_errors, kind="stable")
        worst = by_errors[:MAX_CONFUSION_CLASSES]
        tested = tested[worst]
        title += f" (the {MAX_CONFUSION_CLASSES} classes with most confusions)"
    tested_shares = shares[np.ix_(tested, tested)]
    order = tested[clustered(tested_shares)]
    labels = []
    for i in order:
        labels.append(shortened(names[i], MAX_LABEL_LENGTH))
    ordered = shares[np.ix_(order, order)]
    percent = 100 * ordered
    fonts = families([title, *names])
    with matplotlib.rc_context({"font.family": fonts}):
        return _draw_matrix(percent, labels, printable(title))


def _draw_matrix(percent: np.ndarray, labels: Sequence[str], title: str) -> Figure:
    size = len(labels)
    if size <= MAX_NUMBERED_CLASSES:
        cell = FEW_CLASSES
    else:
        cell = MANY_CLASSES
    figure, axes, colour_axes = _matrix_axes(labels, cell)
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
    axes.set_xlabel("predicted class", fontsize=12)
    axes.set_ylabel("true class", fontsize=12)
    axes.set_title(title, parse_math=False, fontsize=12)
    starts = edges[:-1]
    axes.hlines(starts, -0.5, size - 0.5, color="0.9", linewidth=0.4)
    axes.vlines(starts, -0.5, size - 0.5, color="0.9", linewidth=0.4)
    _write_percentages(axes, percent, cell.number_points)
    bar = figure.colorbar(
        mesh, cax=colour_axes, label="errors (% of the class's images)"
    )
    ticks = [1, 3, 10, 30, 100]
    bar.set_ticks(ticks, labels=["1", "3", "10", "30", "100"])
    return figure


def _label_ems(label: str) -> float:
    """Return the estimated width of a label in units of its font size."""
    characters = [
        unicodedata.east_asian_width(character) in "WF" for character in label
    ]
    wide = sum(characters)
    narrow = len(label) - wide
    return 1.05 * wide + 0.62 * narrow


def _matrix_axes(labels: Sequence[str], cell: CellSize) -> tuple[Figure, Axes, Axes]:
    """Return a figure, axes for a square matrix, and axes for its colour bar.

    The margins follow from the length of the labels, because matplotlib's own layout takes seconds
    for a hundred labels.
    """
    lengths = [_label_ems(label) for label in labels]
    longest = max(lengths)
    label_inches = longest * cell.label_points / 72
    margin = 0.65 + label_inches
    cells = cell.inches * len(labels)
    side = max(1.6, cells)
    width = margin + side + 1.2
    height = margin + side + 0.5
    figure = Figure(figsize=(width, height), dpi=130)
    place = (margin / width, margin / height, side / width, side / height)
    axes = figure.add_axes(place)
    bar_height = min(side, 4.0)
    left = (margin + side + 0.25) / width
    below = (side - bar_height) / 2
    bottom = (margin + below) / height
    place = (left, bottom, 0.14 / width, bar_height / height)
    colour_axes = figure.add_axes(place)
    return figure, axes, colour_axes


def _write_percentages(axes: Axes, percent: np.ndarray, points: float) -> None:
    """Write the numbers into the cells of a confusion matrix."""
    smallest = 5.0
    if len(percent) <= MAX_NUMBERED_CLASSES:
        smallest = 0.5
    shown = np.argwhere(percent >= smallest)
    for i, j in shown:
        value = percent[i, j]
        # Black can be read on the darkest green, but not on the darkest red.
        if i != j and value > 40:
            colour = "white"
        else:
            colour = "black"
        _write_number(axes, j, i, value, colour, points)


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
    axes.text(x, y, text, ha="center", va="center", fontsize=points, color=colour)


# ---------------------------------------------------------------------- calibration


def draw_calibration(confidence: np.ndarray, correct: np.ndarray, title: str) -> Figure:
    """Draw a reliability diagram: the accuracy at each confidence in ten bins, and their images.

    Args:
        confidence: (n,) largest probability of each image, in 0–1.
        correct: (n,) bool.
        title: title of the figure.
    """
    edges = np.linspace(0, 1, 11)
    positions = np.digitize(confidence, edges)
    bins = np.clip(positions - 1, 0, 9)
    counts = np.bincount(bins, minlength=10)
    occupied = counts > 0
    correct_counts = np.bincount(bins, weights=correct, minlength=10)
    images = counts[occupied]
    accuracy = correct_counts[occupied] / images
    left = 100 * edges[:-1]
    centres = left + 5
    figure = Figure(figsize=(5.2, 5.4), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    upper.plot(
        [0, 100], [0, 100], color="0.6", linewidth=1, label="perfect calibration"
    )
    occupied_centres = centres[occupied]
    upper.bar(
        occupied_centres, 100 * accuracy, width=9, color="#9ecae1", label="accuracy"
    )
    upper.set(title=title, ylabel="accuracy (%)", xlim=(0, 100), ylim=(0, 100))
    upper.legend(frameon=False)
    lower.bar(centres, counts, width=9, color="0.75")
    lower.set(xlabel="confidence (%)", ylabel="images")
    return figure


# ---------------------------------------------------------------------- accuracy over tasks


def axis_limits(accuracies: Sequence[float | None]) -> tuple[float, float]:
    """Return the limits of an accuracy axis, so that small changes look small.

    Args:
        accuracies: in percent; None is ignored.

    Returns:
        50 or less, and just above 100.

    Example:
        >>> axis_limits([93.0, 38.0])
        (30.0, 101.0)
    """
    known = [a for a in accuracies if a is not None]
    lowest = min(known, default=100.0)
    start = 0.0
    if lowest >= 2:
        tens = math.floor((lowest - 2) / 10)
        start = min(50.0, 10.0 * tens)
    return start, 101.0


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
    limits = axis_limits(accuracy)
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
        is_measured = ~np.isnan(grid)
        measured = np.argwhere(is_measured)
        for k, j in measured:
            # The colour map is light from about two thirds of its range.
            if grid[k, j] > 65:
                colour = "black"
            else:
                colour = "white"
            accuracy = grid[k, j]
            _write_number(axes, j + 1, k + 1, accuracy, colour)
    axes.figure.colorbar(image, cax=colour_axes, label="accuracy (%)")
