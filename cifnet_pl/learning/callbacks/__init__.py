"""Lightning callbacks: activations, task metrics, energy, trajectory, checkpoint, predictions, screen."""

from lightning.pytorch import Callback

from cifnet_pl.learning.callbacks.activations import ActivationTable
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import PredictionTable
from cifnet_pl.learning.callbacks.prequential import PrequentialAccuracy
from cifnet_pl.learning.callbacks.screen import RunTable, TaskProgressBar
from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics
from cifnet_pl.learning.callbacks.trajectory import TrajectoryPlot

__all__ = [
    "ActivationTable",
    "EnergyMonitor",
    "PredictionTable",
    "PrequentialAccuracy",
    "RunTable",
    "TaskCheckpoint",
    "TaskMetrics",
    "TaskProgressBar",
    "TrajectoryPlot",
    "standard_callbacks",
]


def standard_callbacks(bar: bool) -> list[Callback]:
    """Return the callbacks of every run of the command line, in their order; with a progress bar if ``bar``."""
    return [PrequentialAccuracy(), TaskMetrics(), TrajectoryPlot(), *[TaskProgressBar()] * bar, RunTable()]
