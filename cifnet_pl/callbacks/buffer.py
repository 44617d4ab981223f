"""Keeps the calibration buffer: shows it to the new neurons, then takes in the new classes."""

from __future__ import annotations

from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.distributed import of_all_processes
from cifnet_pl.module import CIFNetModule


class BufferUpdate(Callback):
    """UpdateBuffer and OversampleBuffer of the paper's Algorithm 1, around each task's solve."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a run whose classes the capacity cannot hold before any image is embedded."""
        module = cast(CIFNetModule, pl_module)
        _buffer(module).quota(len(module.data.stream(module.learned_tasks).classes()))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the task with no candidates."""
        _buffer(pl_module).discard_pending()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Offer the batch's embeddings to the buffer."""
        _buffer(pl_module).add(outputs["z"], outputs["label"], outputs["key"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the samples of past classes to the new neurons; then select among the new ones.

        Lightning calls this before the module's own hook, which solves the head.
        """
        module, buffer = cast(CIFNetModule, pl_module), _buffer(pl_module)
        module.close_task()
        module.reduce_statistics()
        buffer.show_to(module.head)
        _gather_pending(trainer, buffer)
        buffer.commit()


def _buffer(pl_module: LightningModule) -> CalibrationBuffer:
    buffer = cast(CIFNetModule, pl_module).buffer
    assert buffer is not None
    return buffer


def _gather_pending(trainer: Trainer, buffer: CalibrationBuffer) -> None:
    """Give every process the candidates of all, so that all select the same."""
    if trainer.world_size == 1:
        return
    pending = of_all_processes([part.cpu() for part in buffer.pending()])
    device = buffer.y.device
    parts = [part for part in pending if len(part[1])]
    if parts:
        z, y, key = (torch.cat(group).to(device) for group in zip(*parts, strict=True))
        buffer.replace_pending(z, y, key)
