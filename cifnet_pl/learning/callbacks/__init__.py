"""Lightning callbacks: activations, task metrics, energy, trajectory, checkpoint, predictions, screen."""

from cifnet_pl.learning.callbacks.activations import ActivationTable
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint
from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import PredictionTable
from cifnet_pl.learning.callbacks.screen import RunTable, TaskProgressBar
from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics
from cifnet_pl.learning.callbacks.trajectory import TrajectoryPlot

__all__ = [
    "ActivationTable",
    "EnergyMonitor",
    "PredictionTable",
    "RunTable",
    "TaskCheckpoint",
    "TaskMetrics",
    "TaskProgressBar",
    "TrajectoryPlot",
]
