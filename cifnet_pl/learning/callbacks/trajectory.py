"""Draw the accuracy trajectory, in the run's folder and in TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from cifnet_pl.learning.callbacks.pictures import keep_picture
from cifnet_pl.learning.callbacks.run_folder import run_folder
from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics
from cifnet_pl.learning.confusion_figure import png
from cifnet_pl.learning.run_record import RunRecord

NUMBERED = 16
"""Tasks up to which every cell of the matrix has its number."""

LETTERS = 10.5
"""Points of these numbers: legible where the picture is half a page wide."""


def draw_trajectory(record: RunRecord, title: str) -> Figure:
    """Draw A_k and Ā over the number of classes seen, and below it each task's own accuracy over time.

    Args:
        record: what was measured.
        title: of the figure.
    """
    figure = Figure(figsize=(6.4, 7.4), dpi=120)
    # Axes at places that have room for all numbers: matplotlib's own layout takes longer than the drawing.
    places = ((0.1, 0.57, 0.76, 0.38), (0.1, 0.07, 0.76, 0.41), (0.88, 0.07, 0.025, 0.41))
    upper, lower, beside = map(figure.add_axes, places)
    seen = [row.classes_seen for row in record.rows]
    marker = "o" if len(seen) <= 25 else ""
    upper.plot(seen, [_nan(row.A_k) for row in record.rows], marker + "-", color="black", label="$A_k$")
    upper.plot(seen, [_nan(row.average) for row in record.rows], "--", color="tab:blue", label=r"$\bar A$ so far")
    upper.set(xlabel="classes seen", ylabel="accuracy (%)", title=title, ylim=limits([row.A_k for row in record.rows]))
    upper.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    upper.grid(alpha=0.3)
    upper.legend()
    size = len(record.matrix)
    grid = [[_nan(row[j]) if j < len(row) else float("nan") for j in range(size)] for row in record.matrix]
    image = lower.imshow(
        grid, cmap="viridis", vmin=0, vmax=100, aspect="auto", extent=(0.5, size + 0.5, size + 0.5, 0.5)
    )
    lower.set(xlabel="classes of task", ylabel="after task")
    for axis in (lower.xaxis, lower.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if size <= NUMBERED:
        _write_numbers(lower, record.matrix)
    figure.colorbar(image, cax=beside, label="accuracy (%)")
    return figure


def limits(accuracies: Sequence[float | None]) -> tuple[float, float]:
    """Return the ends of an axis in percent; it reaches from 50 or less to 100, so that small changes look small.

    Args:
        accuracies: in percent; None is ignored.
    """
    lowest = min((a for a in accuracies if a is not None), default=100.0)
    return min(50.0, 10.0 * math.floor((lowest - 2) / 10)) if lowest >= 2 else 0.0, 101.0


def _write_numbers(axes: Axes, matrix: Sequence[Sequence[float | None]]) -> None:
    for k, row in enumerate(matrix):
        for j, value in enumerate(row):
            if value is not None:
                # Light cells of the colour map begin at about two thirds of it.
                colour = "black" if value > 65 else "white"
                axes.text(j + 1, k + 1, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=LETTERS)


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


class TrajectoryPlot(Callback):
    """Draws the trajectory once, when the run ends."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write ``trajectory.png`` and add the figure to TensorBoard."""
        folder = run_folder(trainer)
        metrics = [c for c in cast(Any, trainer).callbacks if isinstance(c, TaskMetrics)]
        if not trainer.is_global_zero or folder is None or not metrics or not (folder / "tasks.csv").is_file():
            return
        record = metrics[0].record
        figure = draw_trajectory(record, f"{folder.parent.name}, {folder.name.replace('_', ' ')}")
        keep_picture(trainer, folder / "trajectory.png", png(figure), len(record.rows))
