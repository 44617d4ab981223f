"""What a run stores of its model: checkpoints, and at its end the refit on all images.

A kill at any moment leaves a complete checkpoint.
"""

import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from cifnet_pl.buffer import BufferSamples, buffer_samples, concatenate, given_groups
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import read_checkpoint
from cifnet_pl.utilities.errors import check_that
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.run_folders import COMPLETE


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, and read tensors and plain containers only."""

    def save_checkpoint(
        self,
        checkpoint: dict[str, Any],
        path: Any,
        storage_options: Any = None,
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
        pl_module: TaskModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Save inside a task, if it is time; Lightning calls this after all other callbacks."""
        if self.every_minutes is None or not pl_module.can_resume_inside_task:
            return
        due = time.monotonic() - self._saved >= 60 * self.every_minutes
        # All processes save together, by the clock of the first one.
        if trainer.strategy.broadcast(due):
            self._save(trainer, "last.ckpt")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Save; Lightning calls this after the module's own hook, because this is a Checkpoint."""
        is_finished = pl_module.tasks_finished > trainer.current_epoch
        if not is_finished and not pl_module.can_resume_inside_task:
            return
        if self.every_task and is_finished:
            self._save(trainer, f"task_{trainer.current_epoch + 1}.ckpt")
        self._save(trainer, "last.ckpt")

    def _save(self, trainer: Trainer, name: str) -> None:
        if trainer.loggers and trainer.log_dir:
            path = Path(trainer.log_dir, "checkpoints", name)
            # weights_only=False: with the state of loops and callbacks, which a run needs to go on.
            trainer.save_checkpoint(path, weights_only=False)
            self._saved = time.monotonic()


class HeldOutImages(Callback):
    """Let a copy of the model learn the held-out images, and store it as a bundle in the run.

    Only where the run has split the user's own images, and the head can add images of known
    classes. The run's model, checkpoints and figures stay those without these images: a run that
    goes on gives the same bits as one that never stopped. A run that goes on begins by removing the
    bundle (:class:`TaskMetrics`). Images are learned in the order of their rows, whatever the
    batches were.
    """

    def on_validation_epoch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
    ) -> None:
        """Decide whether the images of this evaluation are to be learned."""
        self._is_due = (
            trainer.state.fn == "fit"
            and isinstance(pl_module, CIFNetModule)
            and pl_module.data.learns_held_out
            and pl_module.is_complete
            and pl_module.head.merges
        )
        # Held-out images of this process; the key of each is its row in the test set.
        self._batches: list[BufferSamples] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: TaskModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Store the embeddings of the last evaluation."""
        if outputs is None or not self._is_due:
            return
        module = cast(CIFNetModule, pl_module)
        z = module.evaluated_embeddings.float().cpu()
        self._batches.append(buffer_samples(z, batch.label.cpu(), batch.row.cpu()))

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Learn the held-out images after the last task."""
        evaluation = pl_module.evaluation
        if not self._is_due or not evaluation.images:
            return
        folder = run_folder(trainer)
        module = cast(CIFNetModule, pl_module)
        model = self._refit(module, evaluation.samples["target"].to_numpy())
        if folder is not None:
            model.save(folder / COMPLETE, overwrite=True)

    def _refit(self, module: CIFNetModule, images: np.ndarray) -> Classifier:
        """Return a copy of the model that has learned the held-out images of all processes.

        Args:
            module: of the run.
            images: (n,) label of each held-out image.
        """
        start = time.perf_counter()
        data = module.data
        model = module.model.clone()
        tested = np.unique(images)
        names = [model.class_names[label] for label in tested]
        # Some process may get no image.
        none = torch.zeros(0, dtype=torch.int64)
        nothing = buffer_samples(torch.zeros(0, model.head.in_features), none, none)
        held_out = concatenate([nothing, *self._batches])
        self._batches = []
        held_out = held_out.at(held_out.key.argsort())
        rows = held_out.key.numpy()
        classes = torch.from_numpy(np.searchsorted(tested, held_out.y.numpy()))
        hashes = torch.from_numpy(data.source.test.hashes(rows))
        groups = given_groups(data.source.test.groups, held_out.key)
        samples = buffer_samples(held_out.z, classes, hashes, groups)
        model.learn_embeddings(names, samples, reduce=module.sum_over_processes)
        model.record_event(
            "extend",
            len(images),
            seconds=time.perf_counter() - start,
            class_names=names,
            parents=[module.model.identity],
        )
        return model
