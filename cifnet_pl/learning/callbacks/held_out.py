"""Learn the images that were held out for the score, once the last task is scored."""

from __future__ import annotations

import shutil
import time

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, Batch, ImageBatch, pieces
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, run_folder
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.run_folders import COMPLETE
from cifnet_pl.utilities.text import number_of


class HeldOutImages(TaskCallback):
    """Teaches a copy of the model the images that the run held out, and stores it as a bundle in
    the run's folder.

    Only where the run has split the user's own images, and the head can take in more images of
    known classes. The run's model, its checkpoints and figures stay those without these images, so
    that a run that goes on gives the same bits as one that never stopped; a run that goes on begins
    by removing the bundle. Images are learned in the order of their rows, whatever the batches
    were.

    Attributes:
        model: the copy, after the last task; None where there is none.
    """

    def __init__(self) -> None:
        self.model: Classifier | None = None
        self._parts: list[
            tuple[np.ndarray, Tensor]
        ] = []  # rows and embeddings of the last evaluation
        self._sentences: list[str] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove what an earlier end of the run has left."""
        folder = run_folder(trainer)
        self.model = None
        if folder is not None and trainer.is_global_zero:
            shutil.rmtree(folder / COMPLETE, ignore_errors=True)

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Keep the embeddings of the last evaluation, and the content hashes of all that are
        decoded.
        """
        if not module.data.learns_held_out or not isinstance(module, CIFNetModule):
            return
        rows = batch.row.cpu().numpy()
        if isinstance(batch, ImageBatch):
            module.data.source.val.note_hashes(rows, batch.key.cpu().numpy())
        if _is_last(module) and module.head.pools:
            self._parts.append((rows, module.evaluated.float().cpu()))

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Learn them after the last task."""
        tested = sum(module.data.test_counts(module.class_names).values())
        if not module.data.learns_held_out or not _is_last(module) or not tested:
            return
        if not isinstance(module, CIFNetModule) or not module.head.pools:
            name = type(module.head if isinstance(module, CIFNetModule) else module).__name__
            images = number_of(tested, "held-out image was", "held-out images were")
            self._sentences = [
                f"The {images} tested, not learned: {name} cannot add images of known classes."
            ]
            return
        folder = run_folder(trainer)
        self.model = self._learned(module)
        self._parts = []
        count = sum(self.model.counts.values())
        images = number_of(
            count - sum(module.model.counts.values()), "held-out image was", "held-out images were"
        )
        if folder is not None:
            if trainer.is_global_zero:
                self.model.save(folder / COMPLETE, overwrite=True)
            self._sentences = [
                f"After the score {images} learned, too: the model of the run folder knows all"
                f" {count}. The figures are of the one without them, checkpoints/last.ckpt."
            ]

    def _learned(self, module: CIFNetModule) -> Classifier:
        """Return a copy of the module's model that has learned all tested images, in all processes
        together.
        """
        start = time.perf_counter()
        data = module.data
        model = module.model.clone()
        names = [name for name, count in data.test_counts(model.class_names).items() if count]
        rows = np.concatenate([np.zeros(0, dtype=np.int64), *(rows for rows, _ in self._parts)])
        z = torch.cat([torch.zeros(0, model.head.in_features), *(part for _, part in self._parts)])
        model.begin_task(names)
        for part in pieces(np.argsort(rows), EMBEDDED_BATCH):
            y = torch.from_numpy(data.learner_labels(rows[part]))
            hashes = torch.from_numpy(data.source.val.hashes(rows[part]))
            model.observe(z[torch.from_numpy(part)], y, hashes)
        if data.source.val_groups is not None:
            pair = (
                torch.from_numpy(data.source.val.hashes(rows)),
                torch.from_numpy(data.source.val_groups[rows]),
            )
            for key, given in of_all_processes(pair):
                model.calibration.add_given_groups(key, given)
        module.add_up(model)
        model.finish_task()
        model.record_event(
            "extend",
            sum(model.counts.values()) - sum(module.model.counts.values()),
            seconds=time.perf_counter() - start,
            class_names=names,
            parents=[module.model.identity],
        )
        return model

    def sentences(self) -> list[str]:
        """Return what is said of these images beside the score."""
        return self._sentences


def _is_last(module: TaskModule) -> bool:
    """Return whether the task that is being evaluated is the run's last one."""
    return module.trainer.current_epoch + 1 == module.trainer.max_epochs
