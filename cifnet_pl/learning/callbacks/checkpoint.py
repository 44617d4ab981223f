"""A checkpoint after every task, written so that a kill at any moment leaves a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from cifnet_pl.learning.callbacks.task_metrics import run_folder
from cifnet_pl.model.loading import read_checkpoint
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
        said: BaseException | None = error
        while said is not None and not isinstance(said, OSError):
            said = said.__context__
        raise said or OSError(first_line(error)) from error


class TaskCheckpoint(Checkpoint):
    """Saves ``checkpoints/last.ckpt`` after each task's evaluation.

    Args:
        every_task: keep ``task_<k>.ckpt`` of each task as well.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what a killed process left half-written."""
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            for leftover in (folder / "checkpoints").glob(".*.ckpt.*.tmp"):
                leftover.unlink(missing_ok=True)

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
