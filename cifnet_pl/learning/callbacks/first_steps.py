"""Say what the first steps of a run took, so that a sweep can estimate the rest long before a task is learned."""

from __future__ import annotations

import time
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from rich.console import Console

from cifnet_pl.learning.callbacks.energy import EnergyMonitor
from cifnet_pl.learning.task_module import TaskModule

SECONDS = 30.0
"""Of the first task, after which it is said how many of its steps were taken."""


class FirstSteps(Callback):
    """Prints one line about the first task if it takes long; on a terminal the progress bar shows as much."""

    def __init__(self) -> None:
        self._console = Console(soft_wrap=True)
        self._began: float | None = None  # when the first task began; None once its first steps were said

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember when the first task begins."""
        first = trainer.current_epoch == 0 and not cast(TaskModule, pl_module).goes_on_inside
        self._began = time.monotonic() if first and not self._console.is_terminal else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print once how many steps were taken, in which time, and with which energy if one node measures it."""
        if self._began is None or not trainer.is_global_zero:
            return
        seconds = time.monotonic() - self._began
        if seconds < SECONDS:
            return
        self._began = None
        monitors = [c for c in cast(Any, trainer).callbacks if isinstance(c, EnergyMonitor)]
        energy = monitors[0].so_far() if monitors and trainer.num_nodes == 1 else None
        steps = f"{batch_idx + 1} of {trainer.num_training_batches} steps took {seconds:.1f} s"
        used = f", {energy.total:.1e} kWh" if energy else ""
        self._console.print(f"task 1/{trainer.max_epochs}: {steps}{used}", highlight=False, markup=False)
