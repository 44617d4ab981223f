"""The base class of callbacks that act on tasks, and what callbacks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import to_csv, write_text

C = TypeVar("C", bound=Callback)


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger.

    All processes must call it, as it asks the first one.
    """
    if trainer.loggers and trainer.log_dir:
        return Path(trainer.log_dir)
    return None


def write_table(
    trainer: Trainer, name: str, header: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Write a CSV file into the run's folder, if there is one.

    All processes must call it; the first one writes.

    Args:
        trainer: of the run.
        name: file name.
        header: names of the columns.
        rows: the cells of each row.
    """
    folder = run_folder(trainer)
    if trainer.is_global_zero and folder is not None:
        write_text(folder / name, to_csv(header, rows))


def callback_of(trainer: Trainer, kind: type[C]) -> C | None:
    """Return the first callback of a class among a Trainer's callbacks; None if there is none."""
    for callback in cast(Any, trainer).callbacks:
        if isinstance(callback, kind):
            return callback
    return None


class TaskCallback(Callback):
    """A callback of a learning run: its hooks get a :class:`TaskModule`, during ``fit`` only."""

    def begin_evaluation(self, trainer: Trainer, module: TaskModule) -> None:
        """Prepare for the evaluation after a task."""

    def observe_predictions(
        self, module: TaskModule, probabilities: Tensor, batch: Batch
    ) -> None:
        """Process the predictions of a batch of test images.

        Args:
            module: the module that predicts.
            probabilities: (n, C) float64 class probabilities, column c for label c.
            batch: its n images or embeddings, n at least 1.
        """

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Act on a task that is learned and evaluated; all processes call it."""

    def on_validation_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Call :meth:`begin_evaluation`."""
        if trainer.state.fn == "fit":
            self.begin_evaluation(trainer, cast(TaskModule, pl_module))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Call :meth:`observe_predictions`, except for an empty batch."""
        if trainer.state.fn == "fit" and outputs is not None:
            self.observe_predictions(cast(TaskModule, pl_module), outputs, batch)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Call :meth:`end_task`."""
        if trainer.state.fn == "fit":
            self.end_task(trainer, cast(TaskModule, pl_module))
