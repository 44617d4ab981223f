"""Refit on all images: learn the held-out images too, once the last task is evaluated."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.buffer import BufferSamples, concatenate, given_groups, ungrouped
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.run_folders import COMPLETE


class HeldOutImages(Callback):
    """Let a copy of the model learn the held-out images, and store it as a bundle in the run.

    Only where the run has split the user's own images, and the head can add images of known
    classes. The run's model, checkpoints and figures stay those without these images: a run that
    goes on gives the same bits as one that never stopped. A run that goes on begins by removing the
    bundle (:class:`TaskMetrics`). Images are learned in the order of their rows, whatever the
    batches were.
    """

    def __init__(self) -> None:
        # Held-out images of this process; the key of each is its row in the test set.
        self._batches: list[BufferSamples] = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Store the embeddings of the last evaluation."""
        module = pl_module
        if outputs is None or not isinstance(module, CIFNetModule):
            return
        if trainer.state.fn != "fit" or not module.data.learns_held_out:
            return
        if module.is_complete and module.head.merges:
            z = module.evaluated_embeddings.float().cpu()
            self._batches.append(ungrouped(z, batch.label.cpu(), batch.row.cpu()))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Learn the held-out images after the last task."""
        module = pl_module
        if trainer.state.fn != "fit" or not isinstance(module, CIFNetModule):
            return
        assert module.evaluation is not None
        tested = module.evaluation.images
        if not tested or not module.data.learns_held_out or not module.is_complete:
            return
        if not module.head.merges:
            return
        folder = run_folder(trainer)
        model = self._refit(module)
        if folder is not None:
            model.save(folder / COMPLETE, overwrite=True)

    def _refit(self, module: CIFNetModule) -> Classifier:
        """Return a copy of the model that has learned the held-out images of all processes."""
        start = time.perf_counter()
        data = module.data
        model = module.model.clone()
        assert module.evaluation is not None
        images = module.evaluation.class_counts[1]
        tested = np.flatnonzero(images)
        names = [model.class_names[label] for label in tested]
        # Some process may get no image.
        none = torch.zeros(0, dtype=torch.int64)
        nothing = ungrouped(torch.zeros(0, model.head.in_features), none, none)
        held_out = concatenate([nothing, *self._batches])
        self._batches = []
        held_out = held_out.at(held_out.key.argsort())
        rows = held_out.key.numpy()
        classes = torch.from_numpy(np.searchsorted(tested, held_out.y.numpy()))
        hashes = torch.from_numpy(data.source.test.hashes(rows))
        samples = ungrouped(held_out.z, classes, hashes)
        groups_of_rows = data.source.test.groups
        if groups_of_rows is not None:
            groups = torch.from_numpy(groups_of_rows[rows])
            samples = samples._replace(group=given_groups(groups))
        model.learn_embeddings(names, samples, reduce=module.sum_over_processes)
        model.record_event(
            "extend",
            sum(model.counts.values()) - sum(module.model.counts.values()),
            seconds=time.perf_counter() - start,
            class_names=names,
            parents=[module.model.identity],
        )
        return model
