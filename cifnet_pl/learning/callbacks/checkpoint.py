"""Write a checkpoint after every task, atomically: a kill at any moment leaves a complete one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.store import read_checkpoint
from cifnet_pl.utilities.errors import check_that
from cifnet_pl.utilities.files import write_atomic


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, and read tensors and plain containers only."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint atomically."""
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(
        self,
        path: Any,
        map_location: Any = lambda storage, loc: storage,
        weights_only: bool | None = True,
    ) -> dict[str, Any]:
        """Read a checkpoint without executing anything from it.

        Raises:
            CheckpointError: the file is missing, truncated, or holds more than tensors and plain
                containers.
        """
        return read_checkpoint(Path(path), map_location)


class TaskCheckpoint(Checkpoint):
    """Save ``checkpoints/last.ckpt`` after each task's evaluation.

    Trained methods can be saved inside tasks too, and go on there with the same bits. A task of a
    closed-form head is learned again: it takes seconds.

    Args:
        every_task: whether to save ``task_<k>.ckpt`` of each task as well.
        every_minutes: shortest time between two checkpoints inside a task, 0 for one after each
            batch; null for none.
    """

    def __init__(self, every_task: bool = False, every_minutes: float | None = None):
        if every_minutes is not None:
            check_that(every_minutes >= 0, "every_minutes", every_minutes, "at least 0")
        self.every_task = every_task
        self.every_minutes = every_minutes
        self._saved = time.monotonic()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read and write all checkpoints of the Trainer by :class:`AtomicCheckpointIO`."""
        trainer.strategy.checkpoint_io = AtomicCheckpointIO()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save inside a task, if it is time; Lightning calls this after all other callbacks."""
        if (
            self.every_minutes is None
            or not cast(TaskModule, pl_module).can_resume_inside_task
        ):
            return
        due = time.monotonic() - self._saved >= 60 * self.every_minutes
        # All processes save together, by the clock of the first one.
        if trainer.strategy.broadcast(due):
            self._save(trainer, "last.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save; Lightning calls this after the module's own hook, because this is a Checkpoint."""
        if self.every_task:
            self._save(trainer, f"task_{trainer.current_epoch + 1}.ckpt")
        self._save(trainer, "last.ckpt")

    def _save(self, trainer: Trainer, name: str) -> None:
        if trainer.loggers and trainer.log_dir:
            path = Path(trainer.log_dir, "checkpoints", name)
            # weights_only=False: with the state of loops and callbacks, which a run needs to go on.
            trainer.save_checkpoint(path, weights_only=False)
            self._saved = time.monotonic()
