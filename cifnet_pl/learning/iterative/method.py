"""The base class of trained methods: the methods that each implements, and helpers that it may use."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones import build_backbone
from cifnet_pl.learning.iterative.descent import gathered
from cifnet_pl.learning.iterative.schedule import Phase
from cifnet_pl.learning.iterative.training_batch import Examples
from cifnet_pl.learning.iterative.training_settings import Regime
from cifnet_pl.learning.task_module import TaskModule


class Method(TaskModule):
    """The part of :class:`cifnet_pl.learning.iterative.base.IterativeModule` that is specific to a method.

    Attributes:
        network: the network, without its classifier.
        width: width d of its embeddings.
        classes: number of classes, those of the current task included.
        old: number of classes of earlier tasks.
        regime: how long and how fast the network learns.
        seed: of everything that is drawn.
        share: weight of this process's mean loss in that of all processes, times their number; 1 for one process.
    """

    network: nn.Module
    width: int
    classes: int
    old: int
    regime: Regime
    seed: int
    share: float
    _phase: int
    _source: tuple[str, str | None, bool]

    # ------------------------------------------------------------------ for methods to write

    @abstractmethod
    def expand(self, classes: int) -> None:
        """Add what a task with ``classes`` new classes needs; torch's seed is set before."""

    @abstractmethod
    def loss(self, batch: Examples) -> Tensor:
        """Return the mean loss over a process's part of a step, a scalar."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) embeddings of normalised images (n, 3, s, s)."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """Return (n, C) scores of embeddings (n, d), column c for label c."""

    @abstractmethod
    def learning_parts(self) -> list[nn.Module]:
        """Return the modules that learn in the current phase of the current task."""

    def before_task(self) -> None:
        """Keep what the task needs of the network from before it; not called before the first task."""

    def phases(self) -> list[Phase]:
        """Return the phases of the current task."""
        return [self.phase("learn")]

    def begin_phase(self) -> None:
        """Prepare for the current phase (``current``)."""

    def after_learning(self) -> None:
        """Correct the network once all phases are over."""

    def rebuild(self, sizes: list[int]) -> None:
        """Make room for the weights of a network that has finished some tasks.

        Args:
            sizes: number of classes of each task.
        """
        for size in sizes:
            self.old, self.classes = self.classes, self.classes + size
            self.expand(size)

    def extractors(self) -> list[nn.Module]:
        """Return the modules whose parameters reports count."""
        return [self.network]

    # ------------------------------------------------------------------ for methods to use

    @property
    def first(self) -> bool:
        """Whether the current task is the first."""
        return not self.old

    @property
    def current(self) -> str:
        """Name of the current phase."""
        return self.phases()[self._phase].name

    def phase(
        self, name: str, share: float = 1.0, tuning_rate: float | None = None, decay: float | None = None
    ) -> Phase:
        """Plan a phase of the current task.

        Args:
            name: of the phase.
            share: of the task's epochs.
            tuning_rate: learning rate of balanced fine-tuning; None for that of the task.
            decay: weight decay; None for that of the task.
        """
        later = not self.first
        epochs = max(1, round(share * self.regime.epochs[later]))
        decay = self.regime.weight_decays[later] if decay is None else decay
        if tuning_rate is not None:
            return Phase(name, epochs, tuning_rate, decay, "tuning_rate")
        return Phase(name, epochs, self.regime.learning_rates[later], decay)

    def fresh_network(self) -> nn.Module:
        """Return a network like the first one was at the beginning; random weights are drawn anew."""
        network = build_backbone(*self._source, engine="torch").network
        return network.requires_grad_(True).to(self.device)

    def normalised(self, images: Tensor) -> Tensor:
        """Return float32 images with the mean and scale that the network expects, of uint8 images (n, 3, s, s)."""
        images = images.contiguous(memory_format=torch.channels_last)
        return torch.addcmul(self.backbone.shift, images, self.backbone.scale)

    def prepared(self, images: Tensor, keys: Tensor, seed: Sequence[int]) -> Tensor:
        """Augment and normalise images.

        Args:
            images: (n, 3, s, s) uint8.
            keys: (n,) int64 identity of each; with the seed it decides how the image is augmented.
            seed: numbers that stand for the run and the epoch.

        Returns:
            (n, 3, s, s) float32.
        """
        return self.normalised(self.regime.augmentation(images, keys, seed))

    def gathered(self, local: Tensor) -> Tensor:
        """Return the rows (n, …) of all processes.

        Divide a loss on them by ``share``, as each process computes all of it.
        """
        return gathered(local, self.trainer.world_size, self.trainer.global_rank)

    def mean_where(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Return the mean of some values over all processes, 0 if there are none.

        Args:
            values: (n,).
            chosen: (n,) bool, which values count.
        """
        count = float(self._summed(chosen.sum().float()))
        scale = self.trainer.world_size / (self.share * max(count, 1.0))
        return (values * chosen).sum() * scale

    def over_processes(self, loss: Tensor) -> float:
        """Return the mean loss over all samples, from the mean loss of each process."""
        return float(self._summed(loss.detach() * self.share)) / self.trainer.world_size

    @contextmanager
    def drawing(self, *purpose: int) -> Iterator[None]:
        """Within the block, make torch's random numbers depend on the seed and on ``purpose`` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(np.random.SeedSequence([self.seed, *purpose]).generate_state(1)[0]))
            yield

    def _summed(self, value: Tensor) -> Tensor:
        if self.trainer.world_size > 1:
            value = cast(Tensor, self.trainer.strategy.reduce(value, reduce_op="sum"))
        return value
