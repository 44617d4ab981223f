"""A checkpoint after every task, written so that a kill at any moment leaves a whole one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from cifnet_pl.callbacks.task_metrics import run_folder
from cifnet_pl.data.images import first_line
from cifnet_pl.errors import CheckpointError
from cifnet_pl.storage import write_atomic


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk and renames; reads tensors and plain containers only."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint atomically."""
        write_atomic(Path(path), lambda file: torch.save(checkpoint, file))

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = True
    ) -> dict[str, Any]:
        """Read a checkpoint without executing anything from it.

        Raises:
            CheckpointError: the file is missing, truncated, or holds more than tensors and plain containers.
        """
        return read_checkpoint(Path(path), map_location)


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint file with ``weights_only``; raises CheckpointError for anything but a whole one."""
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}: look in a run's folder for checkpoints/last.ckpt")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:  # the unpickler fails in many ways on damaged or hostile files
        raise CheckpointError(
            f"cannot read checkpoint {path}, it is damaged or not a checkpoint: {first_line(error)[:200]}"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a checkpoint")
    return content


class TaskCheckpoint(Checkpoint):
    """Saves ``checkpoints/last.ckpt`` after each task's evaluation.

    Args:
        every_task: keep ``task_<k>.ckpt`` of each task as well.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task

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
