"""What all iterative methods share: the whole network, stochastic gradient descent, several passes in one epoch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, MultiStepLR

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.image_sets import ImageSet
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, unknown_name
from cifnet_pl.utilities.text import first_line

SCHEDULES: dict[str, Callable[[SGD, int], LRScheduler]] = {
    "cosine": CosineAnnealingLR,
    "step": lambda optimizer, steps: MultiStepLR(optimizer, [steps * 7 // 10, steps * 9 // 10], gamma=0.2),
}
"""Name → schedule of the learning rate over the steps of a task. "step" is iCaRL's: a fifth after 49 and 63 of 70."""


class IterativeModule(TaskModule):
    """A backbone that goes on learning and a linear classifier, by SGD on ``epochs`` passes over each task.

    A task is one epoch of Lightning here too: the data module feeds its images ``epochs`` times, each time in another
    order. Every task has an optimizer and a schedule of its own. The network stays in evaluation mode: running
    statistics of batch normalisation are those of the pretraining, as batches of a few classes would spoil them for
    all others; its scale and shift learn like any weight; there is no dropout. New classes start at zero.

    What is computed depends on the seed, the task and the images alone, so that a run that goes on from a checkpoint
    learns what it would have learned. One process only.

    Args:
        backbone: name of the pretrained network, see :mod:`cifnet_pl.backbones`.
        architecture: torchvision model name or resnet32_cifar, for backbone ``file:…``.
        download: whether weights that are not on this machine may be fetched.
        epochs: passes over the images of a task.
        learning_rate: of SGD, at the beginning of a task. Batch statistics that stay leave less room than usual: with
            EfficientNet-Lite0 at 128 pixels 0.001 learned best and 0.01 not at all (held-out training images).
        momentum: of SGD.
        weight_decay: of SGD, on all weights.
        schedule: "cosine" (to zero) or "step" (÷5 after 70 % and 90 % of a task's steps).
        flip: whether half of the images are mirrored left to right, drawn anew in each pass.
        seed: of the order of the images and of the mirroring; on the command line, ``--seed_everything``.
    """

    def __init__(
        self,
        backbone: str = "embedded:efficientnet_lite0",
        architecture: str | None = None,
        download: bool = False,
        epochs: int = 10,
        learning_rate: float = 0.001,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        schedule: str = "cosine",
        flip: bool = True,
        seed: int = 0,
    ):
        super().__init__()
        if epochs < 1 or seed < 0:
            raise UsageError(f"epochs is {epochs}, seed {seed}: expected at least 1 and 0")
        if not 0 < learning_rate < math.inf or not 0 <= momentum < 1 or not 0 <= weight_decay < math.inf:
            raise UsageError(
                f"learning_rate is {learning_rate:g}, momentum {momentum:g}, weight_decay {weight_decay:g}: "
                "expected a positive number, one in [0, 1), and one of at least 0"
            )
        if schedule not in SCHEDULES:
            raise unknown_name("schedule", schedule, SCHEDULES)
        self.epochs, self.learning_rate, self.momentum = epochs, learning_rate, momentum
        self.weight_decay, self.schedule, self.flip, self.seed = weight_decay, schedule, flip, seed
        self.backbone = build_backbone(backbone, architecture, download, engine="torch")  # it is trained
        self._pretrained = self.backbone.sha256  # of the weights that learning starts from
        self.backbone.network.requires_grad_(True)
        self.classifier = nn.ModuleList()
        self._before: dict[str, Tensor] = {}

    # ------------------------------------------------------------------ for subclasses

    @abstractmethod
    def learn(self, batch: Batch, batch_idx: int) -> None:
        """Take a step of a task on a batch that is not empty."""

    def embed(self, images: Tensor) -> Tensor:
        """(n, d) float32 embeddings of uint8 images (n, 3, s, s) by the network as it is now, without gradients."""
        with torch.no_grad():
            return torch.cat([self.backbone.embed(part) for part in torch.split(images, self.data.batch_size)])

    def scores(self, z: Tensor) -> Tensor:
        """(n, C) scores of embeddings (n, d), column c for label c."""
        return torch.cat([layer(z) for layer in self.classifier], dim=1)

    def augment(self, images: Tensor) -> Tensor:
        """The images (n, 3, s, s), some of them mirrored."""
        if not self.flip:
            return images
        mirrored = torch.from_numpy(self.random.random(len(images)) < 0.5).to(images.device)
        return torch.where(mirrored[:, None, None, None], images.flip(3), images)

    def descend(self, loss: Tensor) -> None:
        """One step of SGD on a scalar loss.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        if not torch.isfinite(loss):
            raise self._diverged(f"the loss is {loss.item()}")
        self._optimizer.zero_grad()
        self.manual_backward(loss)
        self._optimizer.step()
        self._scheduler.step()

    def _diverged(self, what: str) -> CifnetError:
        return CifnetError(
            f"{what} in task {len(self.learned_tasks)}: the learning rate {self.learning_rate:g} is too high, "
            "set a lower --model.learning_rate"
        )

    # ------------------------------------------------------------------ learning

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: several processes, an embedding cache, float16 (its gradients need scaling), or a limit on
                batches, which would cut off passes.
        """
        name = type(self).__name__
        self.refuse_several_processes(name)
        if not isinstance(self.data.source.train, ImageSet):
            raise UsageError(f"{name} trains a network on images, but --data.source {self.data.source_name} has none")
        if self.data.cache_folder is not None:
            raise UsageError(f"--data.cache keeps what a frozen network computes, but {name} trains it: set it false")
        if str(self.trainer.precision) in ("16-mixed", "16"):
            raise UsageError(f"precision {self.trainer.precision} is not for {name}: use bf16-mixed or 32-true")
        if stage == "fit" and self.trainer.limit_train_batches != 1.0:
            raise UsageError("a limit on training batches would cut off whole passes: use fewer --model.epochs")

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """The task's images ``epochs`` times, each time in another order."""
        random = np.random.default_rng([self.seed, task])
        return [random.permutation(rows) for _ in range(self.epochs)]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Add outputs for the new classes, and prepare to descend."""
        # Weights are changed in place, all other tensors are replaced.
        self._before = {k: v.clone() if v.is_floating_point() else v for k, v in self.state_dict().items()}
        self.classifier.append(self._layer(len(names)))
        self._counts = torch.zeros(labels[-1] + 1, dtype=torch.int64, device=self.device)
        self.random = np.random.default_rng([self.seed, len(self.learned_tasks), 1])
        images = sum(self.data.class_counts(names))
        self.steps_per_pass = max(1, math.ceil(images / self.data.batch_size))
        # Not one of Lightning's optimizers: it would count each of their steps as a task.
        self._optimizer = SGD(
            self.parameters(), self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )
        self._scheduler = SCHEDULES[self.schedule](self._optimizer, self.epochs * self.steps_per_pass)

    def _layer(self, classes: int) -> nn.Linear:
        layer = nn.Linear(self.backbone.features, classes, device=self.device)
        for weights in layer.parameters():
            nn.init.zeros_(weights)
        return layer

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Learn from a batch, unless none of its images could be read."""
        if len(batch.label):
            self._counts += torch.bincount(batch.label, minlength=len(self._counts))
            self.learn(batch, batch_idx)

    def finish_task(self) -> None:
        """Check what was learned.

        Raises:
            DataError: a class of which no image could be learned.
            CifnetError: the last step led to weights that are NaN or infinite.
        """
        new = self.learned_tasks[-1]
        empty = [name for name, count in zip(new, self._counts[-len(new) :].tolist(), strict=True) if not count]
        self.refuse_empty(empty)
        if not all(torch.isfinite(weights).all() for weights in self.parameters()):
            raise self._diverged("weights are not finite")
        del self._optimizer, self._scheduler  # with one momentum for each weight

    def abort_task(self, labels: list[int]) -> None:
        """Go back to the weights before the task; a checkpoint written during it holds those alone."""
        if self._before:
            del self.classifier[-1]
            super().load_state_dict(self._before)

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """(n, C) float64 probabilities of uint8 images (n, 3, s, s): softmax of the scores."""
        with torch.no_grad():
            return self.scores(self.backbone.embed(images)).double().softmax(dim=1)

    def probabilities(self, batch: Batch) -> Tensor:
        """Probabilities of an evaluation batch."""
        return cast(Tensor, self(cast(Any, batch).image))

    # ------------------------------------------------------------------ checkpoints

    def settings(self) -> dict[str, Any]:
        """Everything that the weights depend on."""
        names = ("epochs", "learning_rate", "momentum", "weight_decay", "schedule", "flip", "seed")
        own = {name: getattr(self, name) for name in names}
        return {**super().settings(), "backbone": self._pretrained, **own}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """While a task is under way, keep the weights of before."""
        super().on_save_checkpoint(checkpoint)
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = dict(self._before)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for the classes that the checkpoint's weights know."""
        super().on_load_checkpoint(checkpoint)
        self._before = {}
        self.classifier = nn.ModuleList(self._layer(len(task)) for task in self.learned_tasks[: self.tasks_finished])

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load all weights; CheckpointError if they do not fit the classes that the checkpoint names."""
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, TypeError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint does not fit the network: {first_line(error)}") from error
