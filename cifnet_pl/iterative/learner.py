"""Steps of SGD in the phases of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.iterative.descent import Descent, Phase
from cifnet_pl.utilities.errors import CifnetError

Augment = Callable[[Tensor, Tensor, tuple[int, ...]], Tensor]
"""Augments and normalises images by their keys and a seed."""


@dataclass(frozen=True)
class StepBatch:
    """The images of one step in one process.

    Attributes:
        images: (n, 3, s, s) uint8.
        labels, keys: (n,) int64.
        seed: integers that the augmentation depends on, besides the keys.
        augmented: augments and normalises.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    augmented: Augment

    def inputs(self, view: int = 0) -> Tensor:
        """Return (n, 3, s, s) float32 images, augmented and normalised.

        Args:
            view: number of the random view, from 0; the same view has the same bits again.
        """
        view_seed = (*self.seed, view)
        return self.augmented(self.images, self.keys, view_seed)


class PhaseLearner:
    """Learns in one phase of a task after the other.

    Args:
        module: the :class:`~cifnet_pl.iterative.trainer.IterativeModule` whose loss is minimised.

    Attributes:
        phase_number: number of the current phase in the task, from 0; −1 before the first.
        parts: modules that learn now.
        descent: SGD of the current phase; None between tasks.
    """

    def __init__(self, module: Any):
        self._module = module
        self.phase_number = -1
        self.parts: list[nn.Module] = []
        self.descent: Descent | None = None
        self._last_phase: Phase | None = None

    def begin_task(self) -> None:
        """Prepare for the first phase of a task."""
        self.phase_number = -1

    def begin_phase(self, parts: list[nn.Module], phase: Phase) -> None:
        """Let only ``parts`` learn from here on."""
        self._last_phase = phase
        self.descent = Descent(self._module, parts, phase, self._module.regime.momentum)
        self.parts = parts
        self._module.train()

    def pause(self) -> None:
        """Let nothing learn from here on."""
        self.parts = []
        self._module.train()

    def step(self, batch: StepBatch, progress: float) -> None:
        """Take one step of SGD.

        Args:
            batch: this process's part of the step.
            progress: share of the phase that is over; the schedule's rate depends on it.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        module = self._module
        descent = self.descent
        assert descent is not None
        samples = len(batch.labels)
        if not module.processes.set_share(samples):
            return
        if samples:
            with self._statistics_for(samples):
                loss = module.loss(batch) * module.processes.share
        else:
            # Zero, but with gradients: the other processes wait for this one's.
            loss = torch.zeros((), device=module.device)
            for weights in descent.weights:
                loss = loss + weights.sum() * 0
        factor = module.regime.factor(progress, module.is_first_task)
        value = descent.step(loss, factor)
        if not math.isfinite(value):
            raise self.divergence(f"the loss is {value}")

    @contextmanager
    def _statistics_for(self, samples: int) -> Iterator[None]:
        """Within the block, normalise a single image by the running statistics, as it has none."""
        if samples > 1:
            yield
            return
        for part in self.parts:
            part.eval()
        yield
        self._module.train()

    def divergence(self, quantity: str) -> CifnetError:
        """Return the error of weights that diverge.

        Args:
            quantity: what is not finite, such as "the loss is nan".
        """
        phase = self._last_phase
        assert phase is not None
        return CifnetError(
            f"{quantity} in task {len(self._module.learned_tasks)}: the learning rate"
            f" {phase.learning_rate:g} is too high, set a lower --model.{phase.rate_option}"
        )

    def check_weights(self) -> None:
        """Check the weights after the last step.

        Raises:
            CifnetError: one is NaN or infinite.
        """
        for weights in self._module.parameters():
            if not torch.isfinite(weights).all():
                raise self.divergence("weights are not finite")
