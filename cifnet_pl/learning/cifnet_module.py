"""The training-free LightningModule: a model learns the task stream, and checkpoints store it."""

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cifnet_pl.backbones import DEFAULT_BACKBONE, Backbone, build_backbone
from cifnet_pl.backbones.engines import EngineChoice
from cifnet_pl.buffer import CalibrationBuffer, given_groups
from cifnet_pl.data.loading import EMBEDDED_BATCH, Batch, EmbeddingBatch, ImageBatch
from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.probabilities import check_buffer
from cifnet_pl.heads.trial import try_head
from cifnet_pl.learning.run_record import PrequentialRow
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.bundle import Description, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import (
    CheckpointError,
    UsageError,
    check_embeddings,
    explained,
    explaining_full_memory,
    prefixed,
)
from cifnet_pl.utilities.growing_tensors import state_of
from cifnet_pl.utilities.plugins import failure, import_name, names_import
from cifnet_pl.utilities.processes import of_all_processes

BACKBONE_IMAGES = 5000
"""Largest number of images that a learned backbone is fitted to."""


class EmbeddedBatch(NamedTuple):
    """A batch whose embeddings were not looked at yet.

    Attributes:
        z: (n, d) float32 embeddings.
        batch: its images, or the embeddings themselves.
        learned: whether the model observes it.
    """

    z: Tensor
    batch: Batch
    learned: bool


class CIFNetModule(TaskModule):
    """A frozen backbone and any closed-form head: Lightning's side of ``Classifier``.

    ``training_step`` embeds a batch and lets the model observe it. At the end of the epoch the
    statistics are added over processes, new classes observe the buffer, the head is solved, and the
    task's samples enter the buffer. Nothing has a gradient.

    Args:
        backbone: name of the frozen backbone, see :mod:`cifnet_pl.backbones`.
        head: a class of ``cifnet_pl.heads``, in Python also a head of the backbone's width; null
            for the recommended one, calibrated by the given buffer or by one of the default size.
        buffer: the calibration buffer, or null for none; it stays empty for heads that do not use
            it.
        architecture: of backbone ``file:…``: a torchvision model, resnet32_cifar, resnet18_cifar or
            ``timm:<model>``.
        download: whether missing weights may be downloaded.
        calibrate: whether to set the head's temperature after each task, from the leave-one-out
            scores of the buffer's samples (:mod:`cifnet_pl.heads.probabilities`); needs a buffer.
        engine: what runs the backbone: torch, onnxruntime, or auto
            for ONNX Runtime on a CPU where the backbone can be exported, and torch elsewhere
            (:mod:`cifnet_pl.backbones.engines`).

    Attributes:
        model: the classifier that learns. Its parts are submodules, so that Lightning moves and
            stores them.
        evaluated_embeddings: (n, d), those of the last evaluation batch.
    """

    any_batch_size = True
    evaluated_embeddings: Tensor
    _predicted_before: PrequentialRow

    def __init__(
        self,
        backbone: str = DEFAULT_BACKBONE,
        head: Callable[[int], Head] | None = None,
        buffer: CalibrationBuffer | None = None,
        architecture: str | None = None,
        download: bool = False,
        calibrate: bool = False,
        engine: EngineChoice = "auto",
    ):
        super().__init__()
        self.backbone = build_backbone(backbone, architecture, download, engine)
        # Of the weights as given: a learned backbone changes them.
        self._given_weights = self.backbone.sha256
        if head is None:
            head = partial(RidgeHead, decision="auto", product_features="auto")
            buffer = buffer or CalibrationBuffer()
            calibrate = True
        self.head = _head_of(head, self.backbone)
        self.method = type(self.head)
        self.element_bytes = self.head.dtype.itemsize
        check_buffer(self.head, buffer, calibrate)
        self.buffer: CalibrationBuffer | None = None
        if self.head.uses_buffer or self.head.selects_rule or calibrate:
            self.buffer = buffer
        self.model = Classifier(
            self.backbone,
            self.head,
            self.buffer,
            calibrated=calibrate,
        )
        # The parts of the model are also modules of this one, so that Lightning moves and stores
        # them; the model itself is no module.
        self.images = self.model.images
        self.calibration = self.model.calibration
        # The engine of the backbone, once a Trainer is known; to prepare it takes seconds.
        self.engine = ""
        self._unchecked: list[EmbeddedBatch] = []
        # Where classes return: the head as it was before the task, and what it predicts.
        self._earlier_head: Head | None = None

    def settings(self) -> dict[str, Any]:
        """Return everything that the tensors of backbone, head and buffer depend on."""
        about = self.model.describe()
        return {
            "module": type(self).__name__,
            "backbone": self._given_weights,
            "head": about["head"],
            "buffer": about["buffer"] or {"capacity": 0},
        }

    # ------------------------------------------------------------------ learning

    def setup(self, stage: str) -> None:
        """Pass the options of images to the model, and refuse processes that cannot learn together.

        Raises:
            UsageError: the Trainer's options do not fit the head.
        """
        super().setup(stage)
        # Of a run that ended by an error, a GPU may have embedded batches that nobody looked at.
        self._unchecked.clear()
        images = self.data.describe_images()
        self.model.prepare(images, str(self.trainer.precision))
        processes = self.trainer.world_size
        if stage == "fit" and processes > 1 and not self.head.reduces:
            name = type(self.head).__name__
            raise UsageError(
                f"{name} learns in one process, not in {processes}: --trainer.devices 1"
            )
        device = self.trainer.strategy.root_device.type
        self.engine = self.backbone.engine(device, self.model.precision)

    def on_fit_start(self) -> None:
        """Fit a backbone that learns, and refuse a run with more classes than buffer samples."""
        for patches in self.backbone.learnable_patches:
            if patches.is_learned:
                continue
            start = time.perf_counter()
            images = self.data.first_images(BACKBONE_IMAGES)
            patches.learn_from(images, torch.initial_seed())
            # All processes get the first one's.
            state = self.trainer.strategy.broadcast(patches.state_dict())
            patches.load_state_dict(state)
            self.preparation_seconds = time.perf_counter() - start
        super().on_fit_start()
        if self.buffer is not None:
            self.buffer.quota(len(self.data.plan.classes))

    def check_returning(self) -> None:
        """Check that the head can add samples of a class that it has learned.

        Raises:
            UnsupportedError: it cannot.
        """
        stream = type(self.data.kind).__name__
        name = type(self.head).__name__
        with prefixed(
            f"with --data.stream {stream} classes return with new samples, which {name} cannot add"
        ):
            self.head.require("merges")

    def begin_task(self) -> None:
        """Begin the task in the model: its new classes, and those that return."""
        self.model.record_engines([self.engine])
        self._earlier_head = None
        task = len(self.learned_tasks)
        if task > 1 and self.data.kind.samples_return:
            self._earlier_head = copy.deepcopy(self.head)
            known = len(self.class_names) - len(self.task.new)
            self._predicted_before = PrequentialRow(task, 0, 0, known)
        counts = self.task.counts
        self.model.begin_task(list(counts), list(counts.values()))

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Embed a batch; the model observes it now, or on a GPU in ``complete_batches``."""
        with explaining_full_memory(self.data.batch_size):
            self._embed(batch, learned=True)

    def finish_task(self) -> None:
        """Add the statistics of all processes, and let the model solve its head.

        Raises:
            DataError: a class of which no image could be learned.
        """
        if self._earlier_head is not None:
            self._earlier_head = None
            row = self._predicted_before
            parts = of_all_processes(row)
            row.samples = sum(part.samples for part in parts)
            row.correct = sum(part.correct for part in parts)
            self.record.prequential.append(row)
        self.model.finish_task(self.sum_over_processes)

    def abort_task(self) -> None:
        """Remove the unfinished task from the model."""
        self.model.abort_task()

    def _embed(self, batch: Batch, learned: bool) -> Tensor:
        """Return (n, d) float32 embeddings of a batch, which may still be computed by a GPU.

        They are checked, cached and learned at once on a CPU, and together with those of other
        batches on a GPU: to look at values means to wait for all that the GPU was told to do.

        Args:
            batch: images or embeddings.
            learned: whether the model observes the batch.
        """
        if isinstance(batch, EmbeddingBatch):
            z = batch.embedding.to(batch.label.device)
            self.cached_embeddings += learned * len(z)
        else:
            z = self.model.embed_unchecked(batch.image)
        self._unchecked.append(EmbeddedBatch(z, batch, learned))
        waiting = sum(len(embedded.z) for embedded in self._unchecked)
        if z.device.type != "cuda" or waiting >= EMBEDDED_BATCH:
            self.complete_batches()
        return z

    def complete_batches(self) -> None:
        """Check, cache and learn the embeddings of all batches so far.

        Raises:
            NonFiniteError: an embedding holds NaN or Inf; names the image.
        """
        unchecked = self._unchecked
        self._unchecked = []
        for z, batch, learned in unchecked:
            if isinstance(batch, ImageBatch):
                source = self.data.source
                table = source.train if learned else source.test
                rows = batch.row.cpu().numpy()
                names = [f"image {name}" for name in table.names_of(rows)]
                check_embeddings(z, z.shape[1], names.__getitem__)
                self.data.remember(batch, z)
            if learned and self._earlier_head is not None:
                # Prequential: the samples are predicted before they are learned.
                correct = self._earlier_head.predict(z) == batch.label
                self._predicted_before.correct += int(correct.sum())
                self._predicted_before.samples += len(z)
            if learned:
                groups = given_groups(self.data.source.train.groups, batch.row)
                self.model.observe(z, batch.label, batch.key, groups)

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, h, w)."""
        return self.model.probabilities(images)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch."""
        self.evaluated_embeddings = self._embed(batch, learned=False)
        return self.head.probabilities(self.evaluated_embeddings)

    def state_elements(self) -> dict[str, int]:
        """Count the values of head and buffer that are kept between tasks, by component."""
        return self.model.state_elements()

    def describe(self) -> dict[str, Any]:
        """Return the head, the backbone and their settings, for ``summary.json``."""
        return {
            "engine": self.engine,
            "head_settings": self.head.settings(),
            "learned_images": sum(self.head.class_counts().values()),
            "buffer_settings": self.buffer and self.buffer.settings(),
            "decision_rule": self.head.decision_rule,
            "groups": self.calibration.estimate_kind,
            **self.calibration.describe(),
        }

    # ------------------------------------------------------------------ checkpoints

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the model's description, as a bundle has it.

        A fixed backbone is left out: its hash stands in the description.
        """
        super().on_save_checkpoint(checkpoint)
        checkpoint["cifnet"]["model"] = self.model.describe()
        if not self.backbone.weights_in_model:
            for name in self.backbone.state_dict(prefix="backbone."):
                del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint belongs to this module, and take over the model's description.

        Engines may change, as their embeddings agree.
        """
        with explained(CheckpointError, "the checkpoint does not fit the head"):
            # Sizes alone: Lightning loads the tensors, and the projection is checked again then.
            self.head._before_load(state_of(checkpoint["state_dict"], "head."))
        super().on_load_checkpoint(checkpoint)
        about = parse(Description, checkpoint["cifnet"].get("model"), "the checkpoint")
        if not self.backbone.weights_in_model:
            fixed = self.backbone.state_dict(prefix="backbone.")
            checkpoint["state_dict"].update(fixed)
        self.model.class_names = self.class_names
        self.model.engines = list(about.engines)
        self.model.history = list(about.history)


def _head_of(head: Callable[[int], Head] | Head, backbone: Backbone) -> Head:
    """Return a head for a backbone.

    Args:
        head: makes a head from the width of the embeddings, or is one.
        backbone: gives the embeddings.

    Raises:
        UsageError: a head of another width, or one that has learned already.
    """
    made = head
    if not isinstance(made, Head):
        made = made(backbone.features)
    if made.in_features != backbone.features or made.classes:
        name = type(made).__name__
        raise UsageError(
            f"{name} is for embeddings of width {made.in_features} and knows"
            f" {len(made.classes)} classes: give a new one of the backbone's width"
            f" {backbone.features}, head={name}({backbone.features}), or head={name} alone"
        )
    part = import_name(type(made))
    if names_import(part):
        with explained(UsageError, f"{part} fails", reason=failure):
            try_head(made)
    return made
