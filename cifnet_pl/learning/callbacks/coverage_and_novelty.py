"""Measure after each task the coverage of prediction sets and the detection of unknown images."""

from dataclasses import replace
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from cifnet_pl.data.loading import Batch, unreadable_images
from cifnet_pl.images.files import read_names_as
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import Table
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.calibration import COVERAGE, UNKNOWN_SHARE, OpenSetPredictor
from cifnet_pl.model.embedding import embed
from cifnet_pl.model.metrics import detection
from cifnet_pl.utilities.errors import DataError, UsageError, prefixed
from cifnet_pl.utilities.text import printable

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

    # Where prediction sets or novelty are measured.
    _predictor: OpenSetPredictor | None = None
    # (m, d) embeddings.
    _unknown: Tensor | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Find and embed the unknown images before anything is learned.

        Raises:
            UsageError: a method that is not closed-form, or a model of embeddings.
            UnsupportedError: a head without novelty scores.
            DataError: there are no images, or one cannot be read (``on_corrupt: skip`` leaves it
                out).
        """
        data = pl_module.data
        folder = data.unknown
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
        read_names_as(data.given["zip_encoding"], folder)
        with prefixed("--data.unknown"):
            z, _, unreadable = embed(
                folder,
                pl_module.backbone,
                image_size=data.image_size,
                device=str(pl_module.device),
            )
            if unreadable and data.on_corrupt == "error":
                reasons = [f"{image}: {reason}" for image, reason in unreadable.items()]
                raise unreadable_images(reasons)
            if not len(z):
                raise DataError(
                    f"none of the images of {printable(folder)} can be read"
                )
        self._unknown = z

    def on_validation_epoch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
    ) -> None:
        """Compute the thresholds that are to be measured."""
        self._predictor = None
        if trainer.state.fn != "fit" or not isinstance(pl_module, CIFNetModule):
            return
        model = pl_module.model
        unknown, coverage = model.available_shares(UNKNOWN_SHARE, COVERAGE)
        if self._unknown is None:
            unknown = None
        if not model.calibrated:
            coverage = None
        self._predictor = model.open_set_predictor(unknown, coverage)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add the columns of prediction sets and novelty to the samples of the evaluation."""
        if outputs is None or self._predictor is None:
            return
        module = cast(CIFNetModule, pl_module)
        novelty = None
        judged = module.judged[-1]
        if self._unknown is not None:
            novelty = module.head.novelty(module.evaluated_embeddings)
            judged["novelty"] = novelty
        judged |= self._predictor.judge(outputs, batch.label, novelty)

    def on_validation_end(self, trainer: Trainer, pl_module: TaskModule) -> None:
        """Put the coverage of each class, and the detection of unknown images, into the record."""
        predictor = self._predictor
        evaluation = pl_module.evaluation
        if predictor is None or not evaluation.images:
            return
        module = cast(CIFNetModule, pl_module)
        row = module.record.rows[-1]
        if predictor.sets is not None:
            rows = []
            for label, name in enumerate(evaluation.class_names):
                is_own = evaluation.samples["target"] == label
                own = replace(evaluation, samples=evaluation.samples[is_own])
                figures = own.figures()
                covered = figures["set_coverage"]
                rows.append([name, own.images, covered, figures["set_size"]])
            module.record.tables["prediction_sets.csv"] = Table(SET_COLUMNS, rows)
        if self._unknown is None:
            return
        known = torch.tensor(evaluation.samples["novelty"].to_numpy())
        unknown = module.head.novelty(self._unknown.to(module.model.device)).cpu()
        row.unknown_auroc, row.unknown_fpr95 = detection(known, unknown)
