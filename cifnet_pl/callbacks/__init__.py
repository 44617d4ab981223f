"""Lightning callbacks: activations, buffer, task metrics, energy, trajectory, checkpoint, predictions, screen."""

from cifnet_pl.callbacks.activations import ActivationTable
from cifnet_pl.callbacks.buffer import BufferUpdate
from cifnet_pl.callbacks.checkpoint import TaskCheckpoint
from cifnet_pl.callbacks.energy import EnergyMonitor
from cifnet_pl.callbacks.predictions import PredictionTable
from cifnet_pl.callbacks.screen import RunTable, TaskProgressBar
from cifnet_pl.callbacks.task_metrics import TaskMetrics
from cifnet_pl.callbacks.trajectory import TrajectoryPlot

__all__ = [
    "ActivationTable",
    "BufferUpdate",
    "EnergyMonitor",
    "PredictionTable",
    "RunTable",
    "TaskCheckpoint",
    "TaskMetrics",
    "TaskProgressBar",
    "TrajectoryPlot",
]
