"""Save the pictures of a run, in its folder and in TensorBoard."""

from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor

from cifnet_pl.learning.callbacks.task_metrics import RunRecord, TaskMetrics
from cifnet_pl.learning.task_module import (
    TaskCallback,
    TaskModule,
    callback_of,
    run_folder,
    write_table,
)
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import write_bytes
from cifnet_pl.utilities.text import families, printable, shortened

RGBA = 4
"""TensorBoard's number for the colours of a PNG file with transparency, which matplotlib writes."""


def keep_picture(trainer: Trainer, path: Path, picture: bytes, step: int) -> None:
    """Write a PNG file, and show its pixels in TensorBoard under the file's name.

    Args:
        trainer: whose loggers show it.
        path: the file.
        picture: its content.
        step: position on TensorBoard's axis.
    """
    write_bytes(path, picture)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            # As it is: ``add_image`` would unpack it into floats, three times over, and pack it
            # again.
            width, height = Image.open(io.BytesIO(picture)).size
            image = Summary.Image(
                height=height, width=width, colorspace=RGBA, encoded_image_string=picture
            )
            summary = Summary(value=[Summary.Value(tag=path.stem, image=image)])
            logger.experiment.file_writer.add_summary(summary, step)


MOST_CLASSES = 150
"""Classes in one picture of confusions: of more, those that are confused most."""

NUMBERED_CLASSES = 30
"""Classes up to which every cell with an image has its number; past that only those of 5 % and
more.
"""

LONGEST = 24

FEW = (0.42, 10.5, 10.5)
MANY = (0.18, 9.0, 6.5)
"""Inches of a cell, points of names and of numbers: of few classes, legible half a page wide, and
of many, in parts.
"""

LARGE = 15.0
"""Inches from which a picture has fewer dots per inch: drawing one of 30 inches at 130 takes 60
MB.
"""


def clustered(shares: np.ndarray) -> np.ndarray:
    """Order classes so that those that are confused with each other are neighbours.

    Average linkage of the distances ``1 − (s_ij + s_ji)/2`` with the optimal order of leaves
    (Bar-Joseph et al., 2001).

    Args:
        shares: (C, C) share of the images of class i that were taken for class j.

    Returns:
        (C,) int64 classes in this order.
    """
    if len(shares) < 3:
        return np.arange(len(shares))
    distance = 1 - (shares + shares.T) / 2
    np.fill_diagonal(distance, 0)
    tree = linkage(squareform(distance, checks=False), "average", optimal_ordering=True)
    return np.asarray(leaves_list(tree))


def draw_confusion(matrix: np.ndarray, names: Sequence[str], title: str) -> Figure:
    """Draw counts as percent of each row, with similar classes together.

    Args:
        matrix: (C, C) numbers of images, true classes in rows.
        names: of the classes.
        title: of the figure.
    """
    tested = np.flatnonzero(matrix.sum(axis=1) + matrix.sum(axis=0))
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    if len(tested) > MOST_CLASSES:
        wrong = shares.sum(axis=0) + shares.sum(axis=1) - 2 * shares.diagonal()
        tested = tested[np.argsort(-wrong[tested], kind="stable")[:MOST_CLASSES]]
        title += f" (the {MOST_CLASSES} classes that are confused most)"
    order = tested[clustered(shares[np.ix_(tested, tested)])]
    percent = 100 * shares[np.ix_(order, order)]
    labels = [shortened(names[i], LONGEST) for i in order]
    with matplotlib.rc_context({"font.family": families([title, *names])}):
        cell, points, numbers = FEW if len(order) <= NUMBERED_CLASSES else MANY
        figure, axes, beside = _canvas(labels, cell, points)
        right = np.where(np.eye(len(order), dtype=bool), percent, np.nan)
        wrong_share = np.where(np.eye(len(order), dtype=bool) | (percent == 0), np.nan, percent)
        # As squares: ``imshow`` enlarges the matrix to the picture's pixels before it is coloured,
        # in half a gigabyte.
        edges = np.arange(len(order) + 1) - 0.5
        axes.pcolormesh(edges, edges, right, cmap="Greens", vmin=0, vmax=130)
        squares = axes.pcolormesh(edges, edges, wrong_share, cmap="OrRd", norm=LogNorm(1, 100))
        axes.set(aspect="equal", xlim=edges[[0, -1]], ylim=edges[[-1, 0]])
        axes.set_xticks(range(len(order)), labels, rotation=90, fontsize=points, parse_math=False)
        axes.set_yticks(range(len(order)), labels, fontsize=points, parse_math=False)
        axes.set_xlabel("named by the model", fontsize=12)
        axes.set_ylabel("what it is", fontsize=12)
        axes.set_title(printable(title), parse_math=False, fontsize=12)
        axes.hlines(edges[:-1], -0.5, len(order) - 0.5, color="0.9", linewidth=0.4)
        axes.vlines(edges[:-1], -0.5, len(order) - 0.5, color="0.9", linewidth=0.4)
        _write_confusions(axes, percent, numbers)
        bar = figure.colorbar(squares, cax=beside, label="wrong (% of the class's images)")
        bar.set_ticks([1, 3, 10, 30, 100], labels=["1", "3", "10", "30", "100"])
    return figure


def _canvas(labels: Sequence[str], cell: float, points: float) -> tuple[Figure, Axes, Axes]:
    """Return a figure with axes for a square matrix of cells of ``cell`` inches, and axes for a
    colour bar beside it.

    The margins follow from the length of the labels: matplotlib's own layout takes seconds for a
        hundred of them.
    """
    ems = max(
        sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in label)
        for label in labels
    )
    margin = 0.65 + ems * points / 72
    side = max(1.6, cell * len(labels))
    width = margin + side + 1.2
    height = margin + side + 0.5
    figure = Figure(figsize=(width, height), dpi=130 if side < LARGE else 100)
    axes = figure.add_axes((margin / width, margin / height, side / width, side / height))
    tall = min(side, 4.0)
    beside = figure.add_axes(
        (
            (margin + side + 0.25) / width,
            (margin + (side - tall) / 2) / height,
            0.14 / width,
            tall / height,
        )
    )
    return figure, axes, beside


def _write_confusions(axes: Axes, percent: np.ndarray, points: float) -> None:
    least = 0.5 if len(percent) <= NUMBERED_CLASSES else 5.0
    for i, j in zip(*np.nonzero(percent >= least), strict=True):
        # the darkest green is light enough
        if i != j and percent[i, j] > 40:
            colour = "white"
        else:
            colour = "black"
        axes.text(
            j, i, f"{percent[i, j]:.0f}", ha="center", va="center", fontsize=points, color=colour
        )


def draw_calibration(confidence: np.ndarray, right: np.ndarray, title: str) -> Figure:
    """Draw how often the model is right at each confidence, in ten bins.

    Args:
        confidence: (n,) in 0–1.
        right: (n,) bool.
        title: of the figure.
    """
    edges = np.linspace(0, 1, 11)
    bins = np.clip(np.digitize(confidence, edges) - 1, 0, 9)
    counts = np.bincount(bins, minlength=10)
    known = counts > 0
    accuracy = np.bincount(bins, weights=right, minlength=10)[known] / counts[known]
    figure = Figure(figsize=(5.2, 5.4), dpi=130, layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=[3, 1], sharex=True)
    upper.plot([0, 100], [0, 100], color="0.6", linewidth=1, label="as it should be")
    upper.bar(100 * edges[:-1][known] + 5, 100 * accuracy, width=9, color="#9ecae1", label="right")
    upper.set(title=title, ylabel="named right (%)", xlim=(0, 100), ylim=(0, 100))
    upper.legend(frameon=False)
    lower.bar(100 * edges[:-1] + 5, counts, width=9, color="0.75")
    lower.set(xlabel="confidence of the model (%)", ylabel="images")
    return figure


def png(figure: Figure) -> bytes:
    """Return a figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


NUMBERED = 16
"""Tasks up to which every cell of the matrix has its number."""

LETTERS = 10.5
"""Points of these numbers: legible where the picture is half a page wide."""


def draw_trajectory(record: RunRecord, title: str) -> Figure:
    """Draw A_k and Ā over the number of classes seen, and below it each task's own accuracy over
    time.

    Args:
        record: what was measured.
        title: of the figure.
    """
    figure = Figure(figsize=(6.4, 7.4), dpi=120)
    # Axes at places that have room for all numbers: matplotlib's own layout takes longer than the
    # drawing.
    places = ((0.1, 0.57, 0.76, 0.38), (0.1, 0.07, 0.76, 0.41), (0.88, 0.07, 0.025, 0.41))
    upper, lower, beside = map(figure.add_axes, places)
    seen = [row.classes_seen for row in record.rows]
    marker = "o" if len(record.rows) <= 25 else ""
    # As floats, in which what was not measured is NaN.
    upper.plot(
        seen, np.array(record.trajectory, dtype=float), marker + "-", color="black", label="$A_k$"
    )
    average = np.array([row.average for row in record.rows], dtype=float)
    upper.plot(seen, average, "--", color="tab:blue", label=r"$\bar A$ so far")
    upper.set(
        xlabel="classes seen", ylabel="accuracy (%)", title=title, ylim=limits(record.trajectory)
    )
    upper.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    upper.grid(alpha=0.3)
    upper.legend()
    size = len(record.matrix)
    grid = np.full((size, size), np.nan)
    for k, row in enumerate(record.matrix):
        grid[k, : len(row)] = row
    extent = (0.5, size + 0.5, size + 0.5, 0.5)
    image = lower.imshow(grid, cmap="viridis", vmin=0, vmax=100, aspect="auto", extent=extent)
    lower.set(xlabel="classes of task", ylabel="after task")
    for axis in (lower.xaxis, lower.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if size <= NUMBERED:
        for k, j in np.argwhere(~np.isnan(grid)):
            # Light cells of the colour map begin at about two thirds of it.
            colour = "black" if grid[k, j] > 65 else "white"
            lower.text(
                j + 1,
                k + 1,
                f"{grid[k, j]:.0f}",
                ha="center",
                va="center",
                color=colour,
                fontsize=LETTERS,
            )
    figure.colorbar(image, cax=beside, label="accuracy (%)")
    return figure


def limits(accuracies: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of an axis in percent; it reaches from 50 or less to 100, so that small
    changes look small.

    Args:
        accuracies: in percent; None is ignored.
    """
    lowest = min((a for a in accuracies if a is not None), default=100.0)
    return min(50.0, 10.0 * math.floor((lowest - 2) / 10)) if lowest >= 2 else 0.0, 101.0


class TrajectoryPlot(Callback):
    """Draws the trajectory once, when the run ends."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``trajectory.png`` and add the figure to TensorBoard."""
        folder = run_folder(trainer)
        metrics = callback_of(trainer, TaskMetrics)
        if (
            not trainer.is_global_zero
            or folder is None
            or metrics is None
            or not (folder / "tasks.csv").is_file()
        ):
            return
        figure = draw_trajectory(metrics.record, _title(folder))
        keep_picture(trainer, folder / "trajectory.png", png(figure), len(metrics.record.rows))


class ClassResults(TaskCallback):
    """Writes ``class_accuracy.csv`` after each task, ``confusion.csv`` and ``confusion.png`` at the
    end of a run.

    The first has a row per class, in the order of learning: its task, its number of test images at
        the end, and its
    accuracy in percent after each task. The second has numbers of test images, rows the true
    classes, columns the answers.

    Attributes:
        history: for each task, (2, C) int64: correct answers and test images of each class.
    """

    def __init__(self) -> None:
        self.history: list[Tensor] = []

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the confusion matrix of a finished run that goes on with more tasks."""
        folder = run_folder(trainer)  # asks all processes
        if trainer.is_global_zero and folder is not None:
            for name in ("confusion.csv", "confusion.png"):
                (folder / name).unlink(missing_ok=True)

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Write the table, and after the last task the matrix."""
        assert module.evaluation is not None
        confusion = module.evaluation.confusion
        names = module.class_names
        self.history.append(
            torch.from_numpy(np.stack([confusion.diagonal(), confusion.sum(axis=1)]))
        )
        task_of = [k for k, task in enumerate(module.learned_tasks, 1) for _ in task]
        body: list[list[Any]] = []
        for column, (name, task) in enumerate(zip(names, task_of, strict=True)):
            counts = [
                after[:, column].tolist() if column < after.shape[1] else (0, 0)
                for after in self.history
            ]
            body.append(
                [name, task, counts[-1][1], *(percent(right, tested) for right, tested in counts)]
            )
        last = module.tasks_finished
        recorded = range(last - len(self.history) + 1, last + 1)
        header = ["class", "task", "test_images", *(f"after_task_{k}" for k in recorded)]
        write_table(trainer, "class_accuracy.csv", header, body)
        if last == trainer.max_epochs:
            body = [[name, *row] for name, row in zip(names, confusion.tolist(), strict=True)]
            write_table(trainer, "confusion.csv", ["true_class", *names], body)
            folder = run_folder(trainer)  # asks all processes
            if trainer.is_global_zero and folder is not None and confusion.any():
                picture = png(draw_confusion(confusion, names, _title(folder)))
                keep_picture(trainer, folder / "confusion.png", picture, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all tasks, for the checkpoint."""
        return {"counts": list(self.history)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the counts of the checkpoint; CheckpointError if they are damaged."""
        with explained(
            CheckpointError, "the checkpoint is damaged, its class accuracies cannot be read"
        ):
            self.history = list(state_dict["counts"])


def _title(folder: Path) -> str:
    """Return what pictures call the run of a folder."""
    return f"{folder.parent.name}, {folder.name.replace('_', ' ')}"
