"""Update the calibration buffer during a run: offer samples, show stored ones to the head, select what is kept."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.processes import of_all_processes


class BufferedLearner(Protocol):
    """A module with a buffer, as :class:`cifnet_pl.learning.cifnet_module.CIFNetModule` is."""

    model: Classifier
    buffer: CalibrationBuffer | None
    learned_tasks: list[list[str]]

    @property
    def data(self) -> CIFNetDataModule:
        """The data module that feeds it."""

    def close_task(self) -> None:
        """Mark the task as being finished: no run can go on from a checkpoint that is written now."""

    def reduce_statistics(self) -> None:
        """Add the sums over all processes."""


class BufferUpdate(Callback):
    """UpdateBuffer and OversampleBuffer of the paper's Algorithm 1, around each task's solve."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Refuse a run whose classes the capacity cannot hold before any image is embedded."""
        module = cast(BufferedLearner, pl_module)
        cast(CalibrationBuffer, module.buffer).quota(len(module.data.stream(module.learned_tasks).classes()))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Offer the batch's embeddings to the buffer."""
        cast(BufferedLearner, pl_module).model.offer(outputs["z"], outputs["label"], outputs["key"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the samples of past classes to the new neurons; then select among the new ones.

        Lightning calls this before the module's own hook, which solves the head.
        """
        module = cast(BufferedLearner, pl_module)
        module.close_task()
        module.reduce_statistics()
        module.model.update_buffer(bool(module.learned_tasks[-1]), gather_pending if trainer.world_size > 1 else None)


def gather_pending(buffer: CalibrationBuffer) -> None:
    """Collect the candidates of all processes in every process, so that all select the same.

    Args:
        buffer: it is changed in place.
    """
    pending = of_all_processes([tensors.cpu() for tensors in buffer.pending()])
    device = buffer.y.device
    parts = [tensors for tensors in pending if len(tensors[1])]
    if parts:
        z, y, key = (torch.cat(group).to(device) for group in zip(*parts, strict=True))
        buffer.replace_pending(z, y, key)
