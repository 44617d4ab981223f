"""Callbacks of a run: measurements, energy, figures, predictions, checkpoints, the screen."""

from cifnet_pl.learning.callbacks.checkpoint import HeldOutImages as HeldOutImages
from cifnet_pl.learning.callbacks.checkpoint import TaskCheckpoint as TaskCheckpoint
from cifnet_pl.learning.callbacks.coverage_and_novelty import (
    CoverageAndNoveltyMetrics as CoverageAndNoveltyMetrics,
)
from cifnet_pl.learning.callbacks.energy import EnergyMonitor as EnergyMonitor
from cifnet_pl.learning.callbacks.predictions import ActivationTable as ActivationTable
from cifnet_pl.learning.callbacks.predictions import PredictionTable as PredictionTable
from cifnet_pl.learning.callbacks.screen import DuplicatesReport as DuplicatesReport
from cifnet_pl.learning.callbacks.screen import RunTable as RunTable
from cifnet_pl.learning.callbacks.screen import TaskProgressBar as TaskProgressBar
from cifnet_pl.learning.callbacks.task_metrics import (
    PredictionRecord as PredictionRecord,
)
from cifnet_pl.learning.callbacks.task_metrics import TaskMetrics as TaskMetrics
from cifnet_pl.learning.callbacks.task_metrics import TrajectoryPlot as TrajectoryPlot
from cifnet_pl.learning.callbacks.task_metrics import run_callbacks as run_callbacks
