"""Write a checkpoint after every task, atomically: a kill at any moment leaves a complete one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO, Any, cast

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.store import read_checkpoint
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.text import first_line


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk and renames; reads tensors and plain containers only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint atomically."""
        write_atomic(Path(path), lambda file: _save(checkpoint, file))

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read a checkpoint without executing anything from it.

        Raises:
            CheckpointError: the file is missing, truncated, or holds more than tensors and plain containers.
        """
        return read_checkpoint(Path(path), map_location)


def _save(checkpoint: dict[str, Any], file: IO[bytes]) -> None:
    try:
        torch.save(checkpoint, file)
    except RuntimeError as error:  # torch hides what the file system said
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise cause or OSError(first_line(error)) from error


class TaskCheckpoint(Checkpoint):
    """Saves ``checkpoints/last.ckpt`` after each task's evaluation and, if wanted, inside tasks.

    A run goes on from there inside the task, with the same bits. A closed-form head does so in one process only; of
    several, it starts the task again.

    Args:
        every_task: keep ``task_<k>.ckpt`` of each task as well.
        every_steps: batches of a task after which it is saved too, or null.
        every_minutes: minutes after which it is saved too, or null.
    """

    def __init__(self, every_task: bool = False, every_steps: int | None = None, every_minutes: float | None = None):
        if (every_steps is not None and every_steps < 1) or (every_minutes is not None and not every_minutes > 0):
            raise UsageError(
                f"every_steps is {every_steps}, every_minutes {every_minutes}: expected at least 1, a positive number"
            )
        self.every_task, self.every_steps, self.every_minutes = every_task, every_steps, every_minutes
        self._saved = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a killed process left half-written."""
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            for leftover in (folder / "checkpoints").glob(".*.ckpt.*.tmp"):
                leftover.unlink(missing_ok=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save inside a task, if it is time."""
        due = self.every_steps is not None and (batch_idx + 1) % self.every_steps == 0
        if self.every_minutes is not None:
            # The first process's clock counts for all, as all save together.
            passed = time.monotonic() - self._saved > 60 * self.every_minutes
            due = bool(trainer.strategy.broadcast(passed)) or due
        folder = run_folder(trainer) if due else None
        if folder is not None:
            module = cast(TaskModule, pl_module)
            module.between_batches = True  # checkpoints come after all other callbacks
            trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt", weights_only=False)
            module.between_batches = False
            self._saved = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save; Lightning calls this after the module's own hook, because this is a Checkpoint."""
        folder = run_folder(trainer)
        if folder is None:
            return
        if self.every_task:
            name = f"task_{trainer.current_epoch + 1}.ckpt"
            trainer.save_checkpoint(folder / "checkpoints" / name, weights_only=False)
        # weights_only=False here means: with the loops and callbacks that a run needs to go on.
        trainer.save_checkpoint(folder / "checkpoints" / "last.ckpt", weights_only=False)
        self._saved = time.monotonic()
