"""What all trained methods share: their options, and how they predict and describe themselves."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.image_sets import ImageSet
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.learning.iterative.networks import parameters_of
from cifnet_pl.learning.iterative.resuming import ResumableModule
from cifnet_pl.learning.iterative.schedule import Course
from cifnet_pl.learning.iterative.training_batch import Examples
from cifnet_pl.learning.iterative.training_settings import BatchStatistics, Regime
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.utilities.errors import UsageError

__all__ = ["Examples", "IterativeModule"]


class IterativeModule(ResumableModule):
    """A network that learns each task by SGD, in one or more phases of several epochs over the task's images.

    A task is one epoch of Lightning: the data module feeds its images as often as the phases want them, each time in
    another order. Every phase has an optimizer and a schedule of its own. What is computed depends on the seed, the
    task and the images alone; a run that was stopped inside a task goes on at its last checkpoint with the same bits.
    In several processes each step's batch is dealt out and gradients are averaged.

    Where an option takes two values, they are for the first task and for all later ones.

    Args:
        backbone: name of the network, see :mod:`cifnet_pl.backbones`; random:resnet32_cifar begins at random weights.
        architecture: torchvision model name, resnet32_cifar or resnet18_cifar, for backbone ``file:…``.
        download: whether weights that are not on this machine may be fetched.
        epochs: passes over the images of a task, or two numbers.
        learning_rate: of SGD at the beginning of a task, or two. With fixed batch statistics it must be small: with
            EfficientNet-Lite0 at 128 pixels 0.001 learned best and 0.01 not at all (held-out training images).
        momentum: of SGD.
        weight_decay: of SGD, on all weights that learn, or two.
        schedule: "cosine" (to zero) or "step".
        milestones: for "step", shares of a phase after which the rate is multiplied by ``decay``; or two lists.
        decay: see ``milestones``.
        batch_statistics: "fixed" (batch normalisation stays as pretrained, its scale and shift learn) or "learned".
        flip: whether half of the images are mirrored left to right.
        crop_padding: pixels of zeros around an image, of which a random square of the old size is taken.
        brightness, contrast, saturation: colour jitter, see :class:`Augmentation`.
        preset: name of these settings, for reports.
        seed: of weights, orders and augmentation; on the command line, ``--seed_everything``.
    """

    averages_gradients = True
    OPTIONS: tuple[str, ...] = (
        *("epochs", "learning_rate", "momentum", "weight_decay", "schedule", "milestones", "decay"),
        *("batch_statistics", "flip", "crop_padding", "brightness", "contrast", "saturation", "seed"),
    )

    def __init__(
        self,
        backbone: str = "embedded:efficientnet_lite0",
        architecture: str | None = None,
        download: bool = False,
        epochs: int | list[int] = 10,
        learning_rate: float | list[float] = 0.001,
        momentum: float = 0.9,
        weight_decay: float | list[float] = 5e-4,
        schedule: Course = "cosine",
        milestones: list[float] | list[list[float]] | None = None,
        decay: float = 0.2,
        batch_statistics: BatchStatistics = "fixed",
        flip: bool = True,
        crop_padding: int = 0,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        preset: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        arguments = locals()
        self._options: dict[str, Any] = {name: arguments[name] for name in IterativeModule.OPTIONS}
        self.regime = Regime.from_options(self._options)
        self.epochs, self.seed, self.preset = self.regime.epochs[1], seed, preset
        self._source = (backbone, architecture, download)
        with self.drawing(0):
            self.backbone = build_backbone(*self._source, engine="torch")  # it is trained
        self._pretrained = self.backbone.sha256  # of the weights that learning starts from
        self.network = self.backbone.network.requires_grad_(True)
        self.backbone.network = nn.Identity()  # the learner holds the weights, the backbone says how images come in
        self.width = self.backbone.features

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: data without images, an embedding cache, a limit on batches, which would cut off passes, a
                Trainer whose processes would not learn together, or batches of one image, which have no statistics.
        """
        name = type(self).__name__
        if not isinstance(self.data.source.train, ImageSet):
            raise UsageError(f"{name} trains a network on images, but --data.source {self.data.source_name} has none")
        if self.data.cache_folder is not None:
            raise UsageError(f"--data.cache keeps what a frozen network computes, but {name} trains it: set it false")
        if stage == "fit":
            check_trainer(self.trainer)
            if self.trainer.limit_train_batches != 1.0:
                raise UsageError("a limit on training batches would cut off whole passes: use fewer --model.epochs")
            if self.regime.batch_statistics == "learned" and self.data.batch_size < 2:
                raise UsageError(
                    "batch statistics are learned from at least two images in each process: set --data.batch_size "
                    "to 2 or more (now 1), or --model.batch_statistics fixed"
                )

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, s, s): softmax of the scores."""
        with torch.no_grad():
            return self.logits(self.embed(images)).double().softmax(dim=1)

    def embed(self, images: Tensor) -> Tensor:
        """Return (n, d) float32 embeddings of uint8 images (n, 3, s, s), without gradients."""
        with torch.no_grad():
            return self.features(self.normalised(images)).float()

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch."""
        return cast(Tensor, self(cast(ImageBatch, batch).image))

    def settings(self) -> dict[str, Any]:
        """Return everything that the weights depend on."""
        return {**super().settings(), "backbone": self._pretrained, **self._options}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the method; the parameters are those of :meth:`extractors`."""
        about = {"head": type(self).__name__, "backbone": self.backbone.name, "preset": self.preset}
        return {
            **about,
            "backbone_params": parameters_of(self.extractors()),
            "precision": str(self.trainer.precision),
        }
