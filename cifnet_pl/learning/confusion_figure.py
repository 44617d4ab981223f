"""Draw how a model does on labelled photos: which classes it confuses, and whether its confidences are right."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from cifnet_pl.utilities.fonts import Lettering

MOST_CLASSES = 150
"""Classes in one picture of confusions: of more, those that are confused most."""

NUMBERED = 30
"""Classes up to which every cell with a photo has its number; past that only those of 5 % and more."""

LONGEST = 24

FEW, MANY = (0.42, 10.5, 10.5), (0.18, 9.0, 6.5)
"""Inches of a cell, points of names and of numbers: of few classes, legible half a page wide, and of many, in parts."""

LARGE = 15.0
"""Inches from which a picture has fewer dots per inch: drawing one of 30 inches at 130 takes 60 MB."""


def clustered(shares: np.ndarray) -> np.ndarray:
    """Order classes so that those that are confused with each other are neighbours.

    Average linkage of the distances ``1 − (s_ij + s_ji)/2`` with the optimal order of leaves (Bar-Joseph et al., 2001).

    Args:
        shares: (C, C) share of the photos of class i that were taken for class j.

    Returns:
        (C,) int64 classes in this order.
    """
    if len(shares) < 3:
        return np.arange(len(shares))
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return np.asarray(leaves_list(tree))


def shares_of(matrix: np.ndarray) -> np.ndarray:
    """Return (C, C) counts as shares of each row; zeros in a row without photos."""
    return np.asarray(matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1))


def draw_confusion(matrix: np.ndarray, names: Sequence[str], letters: Lettering, title: str) -> Figure:
    """Draw counts as percent of each row, with similar classes together.

    Args:
        matrix: (C, C) numbers of photos, true classes in rows.
        names: of the classes.
        letters: fonts for the names.
        title: of the figure.
    """
    tested = np.flatnonzero(matrix.sum(axis=1) + matrix.sum(axis=0))
    shares = shares_of(matrix)
    if len(tested) > MOST_CLASSES:
        wrong = shares.sum(axis=0) + shares.sum(axis=1) - 2 * shares.diagonal()
        tested = tested[np.argsort(-wrong[tested], kind="stable")[:MOST_CLASSES]]
        title += f" (the {MOST_CLASSES} classes that are confused most)"
    order = tested[clustered(shares[np.ix_(tested, tested)])]
    percent = 100 * shares[np.ix_(order, order)]
    labels = [letters.of(names[i], LONGEST) for i in order]
    with matplotlib.rc_context({"font.family": list(letters.families)}):
        cell, points, numbers = FEW if len(order) <= NUMBERED else MANY
        figure, axes, beside = _canvas(labels, cell, points)
        right = np.where(np.eye(len(order), dtype=bool), percent, np.nan)
        wrong_share = np.where(np.eye(len(order), dtype=bool) | (percent == 0), np.nan, percent)
        # As squares: ``imshow`` enlarges the matrix to the picture's pixels before it is coloured, in half a gigabyte.
        edges = np.arange(len(order) + 1) - 0.5
        axes.pcolormesh(edges, edges, right, cmap="Greens", vmin=0, vmax=130)
        squares = axes.pcolormesh(edges, edges, wrong_share, cmap="OrRd", norm=LogNorm(1, 100))
        axes.set(aspect="equal", xlim=edges[[0, -1]], ylim=edges[[-1, 0]])
        axes.set_xticks(range(len(order)), labels, rotation=90, fontsize=points, parse_math=False)
        axes.set_yticks(range(len(order)), labels, fontsize=points, parse_math=False)
        axes.set_xlabel("named by the model", fontsize=12)
        axes.set_ylabel("what it is", fontsize=12)
        axes.set_title(letters.of(title), parse_math=False, fontsize=12)
        axes.hlines(edges[:-1], -0.5, len(order) - 0.5, color="0.9", linewidth=0.4)
        axes.vlines(edges[:-1], -0.5, len(order) - 0.5, color="0.9", linewidth=0.4)
        _write_numbers(axes, percent, numbers)
        bar = figure.colorbar(squares, cax=beside, label="wrong (% of the class's photos)")
        bar.set_ticks([1, 3, 10, 30, 100], labels=["1", "3", "10", "30", "100"])
    return figure


def _canvas(labels: Sequence[str], cell: float, points: float) -> tuple[Figure, Axes, Axes]:
    """Return a figure with axes for a square matrix of cells of ``cell`` inches, and axes for a colour bar beside it.

    The margins follow from the length of the labels: matplotlib's own layout takes seconds for a hundred of them.
    """
    ems = max(sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in label) for label in labels)
    margin, side = 0.65 + ems * points / 72, max(1.6, cell * len(labels))
    width, height = margin + side + 1.2, margin + side + 0.5
    figure = Figure(figsize=(width, height), dpi=130 if side < LARGE else 100)
    axes = figure.add_axes((margin / width, margin / height, side / width, side / height))
    tall = min(side, 4.0)
    beside = figure.add_axes(
        ((margin + side + 0.25) / width, (margin + (side - tall) / 2) / height, 0.14 / width, tall / height)
    )
    return figure, axes, beside


def _write_numbers(axes: Axes, percent: np.ndarray, points: float) -> None:
    least = 0.5 if len(percent) <= NUMBERED else 5.0
    for i, j in zip(*np.nonzero(percent >= least), strict=True):
        colour = "white" if i != j and percent[i, j] > 40 else "black"  # the darkest green is light enough
        axes.text(j, i, f"{percent[i, j]:.0f}", ha="center", va="center", fontsize=points, color=colour)


def draw_calibration(confidence: np.ndarray, right: np.ndarray, title: str, letters: Lettering) -> Figure:
    """Draw how often the model is right at each confidence, in ten bins.

    Args:
        confidence: (n,) in 0–1.
        right: (n,) bool.
        title: of the figure.
        letters: fonts for the title.
    """
    edges = np.linspace(0, 1, 11)
    bins = np.clip(np.digitize(confidence, edges) - 1, 0, 9)
    counts = np.bincount(bins, minlength=10)
    known = counts > 0
    accuracy = np.bincount(bins, weights=right, minlength=10)[known] / counts[known]
    with matplotlib.rc_context({"font.family": list(letters.families)}):
        figure = Figure(figsize=(5.2, 5.4), dpi=130, layout="constrained")
        upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
        upper.plot([0, 100], [0, 100], color="0.6", linewidth=1, label="as it should be")
        upper.bar(100 * edges[:-1][known] + 5, 100 * accuracy, width=9, color="#9ecae1", label="right")
        upper.set(ylabel="named right (%)", xlim=(0, 100), ylim=(0, 100))
        upper.set_title(letters.of(title), parse_math=False)
        upper.legend(frameon=False)
        lower.bar(100 * edges[:-1] + 5, counts, width=9, color="0.75")
        lower.set(xlabel="confidence of the model (%)", ylabel="photos")
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()
