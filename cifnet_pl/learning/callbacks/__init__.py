"""Lightning callbacks: activations, classes, copies, metrics, energy, trajectory, checkpoint, predictions, screen."""

from lightning.pytorch import Callback

from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint
from cifnet_pl.learning.callbacks.coverage_and_novelty import CoverageAndNoveltyMetrics
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.held_back import HeldBackPhotos
from cifnet_pl.learning.callbacks.pictures import ClassResults, TrajectoryPlot
from cifnet_pl.learning.callbacks.predictions import (
    ActivationTable,
    PredictionRecord,
    PredictionTable,
    PrequentialAccuracy,
)
from cifnet_pl.learning.callbacks.screen import CopiesReport, RunTable, TaskProgressBar, Words
from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics

__all__ = [
    "ActivationTable",
    "ClassResults",
    "CopiesReport",
    "CoverageAndNoveltyMetrics",
    "EnergyMonitor",
    "HeldBackPhotos",
    "PredictionRecord",
    "PredictionTable",
    "PrequentialAccuracy",
    "RunTable",
    "TaskCheckpoint",
    "TaskMetrics",
    "TaskProgressBar",
    "TrajectoryPlot",
    "standard_callbacks",
]


def standard_callbacks(bar: bool, words: Words = "research") -> list[Callback]:
    """Return the callbacks of every run of the command line, in their order.

    Args:
        bar: whether there is a progress bar.
        words: what the screen calls its numbers, see :class:`RunTable`.
    """
    shown = [CopiesReport(), *[TaskProgressBar()] * bar, RunTable(words)]
    measured = [PrequentialAccuracy(), ClassResults(), CoverageAndNoveltyMetrics(), TaskMetrics(), TrajectoryPlot()]
    return [*measured, HeldBackPhotos(), *shown]
