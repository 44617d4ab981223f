"""Measure after each task the coverage of prediction sets and the detection of unknown images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from cifnet_pl.data.loading import Batch, name_unreadable
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import write_table
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.embedding import embed
from cifnet_pl.model.metrics import percent
from cifnet_pl.model.unknowns import OpenSetPredictor, detection
from cifnet_pl.utilities.errors import DataError, UsageError, prefixed
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.text import number_of, printable

COVERAGE = 0.95
"""Probability with which a prediction set holds the true class."""

UNKNOWN_SHARE = 0.05
"""Share of images of known classes that may be called unknown."""

SET_COLUMNS = ["class", "test_images", "coverage", "set_size"]
"""Columns of ``prediction_sets.csv``."""


class CoverageAndNoveltyMetrics(Callback):
    """Measure prediction sets and unknown images; comes before :class:`TaskMetrics`.

    Prediction sets are measured where the model is calibrated, unknown images where
    ``--data.unknown`` gives some. ``prediction_sets.csv`` has a row for each class: its test
    images, the coverage of their prediction sets in percent, and the mean size of these sets.

    It fills columns of ``tasks.csv``, on the test images of all classes seen. ``set_size`` is the
    mean number of classes in a prediction set, ``set_coverage`` the percentage of sets that hold
    the true class, where 95 % was asked for. ``known_rejected`` is the percentage of images that
    are called unknown, where 5 % was asked for. ``unknown_auroc`` and ``unknown_fpr95`` are of the
    unknown images against these images, in percent.
    """

    def __init__(self) -> None:
        self._predictor: OpenSetPredictor | None = None
        self._unknown: Tensor | None = None  # (m, d) embeddings
        self._novelty: list[Tensor] = []  # of the test images, by batch
        self._rejected = torch.zeros((), dtype=torch.int64)
        # Of each class: test images, images in their prediction set, classes in these sets.
        self._set_counts = torch.zeros(0, 3, dtype=torch.int64)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find and embed the unknown images before anything is learned.

        Raises:
            UsageError: a method that is not closed-form, or a model of embeddings.
            UnsupportedError: a head without novelty scores.
            DataError: there are no images, or one cannot be read (``on_corrupt: skip`` leaves it
                out).
        """
        folder = cast(TaskModule, pl_module).data.unknown
        if folder is None:
            return
        if not isinstance(pl_module, CIFNetModule):
            raise UsageError(
                "--data.unknown needs a closed-form head: trained methods have no novelty score"
            )
        pl_module.head.require("tells_novelty")
        if not pl_module.backbone.takes_images:
            raise UsageError(
                "--data.unknown takes images, but this run learns embeddings: leave it out"
            )
        self._unknown = _embed_unknown(pl_module, folder)

    def on_validation_epoch_start(
        self, trainer: Trainer, pl_module: LightningModule
    ) -> None:
        """Compute the thresholds that are to be measured."""
        module = pl_module
        self._predictor = None
        if trainer.state.fn != "fit" or not isinstance(module, CIFNetModule):
            return
        self._novelty = []
        self._rejected = torch.zeros_like(self._rejected)
        self._set_counts = torch.zeros(
            len(module.class_names), 3, dtype=torch.int64, device=module.device
        )
        self._rejected = self._rejected.to(module.device)
        unknown, coverage = module.model.available_shares(UNKNOWN_SHARE, COVERAGE)
        if self._unknown is None:
            unknown = None
        if not module.model.calibrated:
            coverage = None
        if unknown is not None or coverage is not None:
            self._predictor = module.model.open_set_predictor(unknown, coverage)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Count a batch of test images."""
        module = pl_module
        if outputs is None or not isinstance(module, CIFNetModule):
            return
        predictor = self._predictor
        counts = torch.zeros_like(batch.label)[:, None].repeat(1, 3)
        counts[:, 0] = 1
        if predictor is not None and predictor.sets is not None:
            members = predictor.sets.of_probabilities(outputs)
            counts[:, 1] = members.gather(1, batch.label[:, None]).flatten()
            counts[:, 2] = members.sum(dim=1)
        self._set_counts.index_add_(0, batch.label, counts)
        if self._unknown is not None:
            novelty = module.head.novelty(module.evaluated)
            self._novelty.append(novelty)
            if predictor is not None and predictor.reference is not None:
                rejected = predictor.reference.p_values(novelty) <= UNKNOWN_SHARE
                self._rejected += rejected.sum()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the counts of all processes, and write ``prediction_sets.csv``."""
        module = pl_module
        predictor = self._predictor
        if trainer.state.fn != "fit" or not isinstance(module, CIFNetModule):
            return
        if predictor is None and self._unknown is None:
            return
        row = module.record.rows[-1]
        counts = torch.stack(of_all_processes(self._set_counts.cpu())).sum(dim=0)
        local = torch.cat([torch.zeros(0), *[part.cpu() for part in self._novelty]])
        novelty = torch.cat(of_all_processes(local))
        rejected = sum(of_all_processes(int(self._rejected)))
        images, covered, members = counts.sum(dim=0).tolist()
        if not images:
            return
        if predictor is not None and predictor.sets is not None:
            row.set_size = members / images
            row.set_coverage = 100 * covered / images
            rows = prediction_set_rows(module.class_names, counts)
            write_table(trainer, "prediction_sets.csv", SET_COLUMNS, rows)
        if predictor is not None and predictor.reference is not None:
            row.known_rejected = 100 * rejected / images
        if self._unknown is not None:
            unknown = module.head.novelty(
                self._unknown.to(module.head.labels.device)
            ).cpu()
            row.unknown_auroc, row.unknown_fpr95 = detection(novelty, unknown)
            remark = (
                f"Unknown images: AUROC {row.unknown_auroc:.1f} %, FPR95"
                f" {row.unknown_fpr95:.1f} % ({number_of(len(unknown), 'image')})"
            )
            if row.known_rejected is not None:
                share = f"{row.known_rejected:.1f} %"
                remark += f"; {share} of the test images rejected (5 % asked for)"
            module.record.remarks["unknown"] = remark


def _embed_unknown(module: CIFNetModule, folder: str) -> Tensor:
    """Return the (m, d) embeddings of the images in a folder."""
    data = module.data
    with prefixed("--data.unknown"):
        z, _, unreadable = embed(
            folder,
            module.backbone,
            image_size=data.image_size,
            device=str(module.device),
        )
        if unreadable and data.on_corrupt == "error":
            reasons = [f"{image}: {reason}" for image, reason in unreadable.items()]
            raise DataError(name_unreadable(reasons, ()))
        if not len(z):
            raise DataError(f"none of the images of {printable(folder)} can be read")
    return z


def prediction_set_rows(names: Sequence[str], counts: Tensor) -> list[list[Any]]:
    """Return the rows of ``prediction_sets.csv``.

    Args:
        names: class names.
        counts: (C, 3) int64 test images of each class, images in their prediction set, and classes
            in the sets of all its images.

    Returns:
        For each class: name, test images, coverage in percent, mean size of a set.

    Example:
        >>> prediction_set_rows(["ant", "bee"], torch.tensor([[4, 3, 10], [0, 0, 0]]))
        [['ant', 4, 75.0, 2.5], ['bee', 0, None, None]]
    """
    rows: list[list[Any]] = []
    for name, (images, covered, members) in zip(names, counts.tolist(), strict=True):
        size = None
        if images:
            size = members / images
        rows.append([name, images, percent(covered, images), size])
    return rows
