"""The steps of a task: which new images and which exemplars each of them learns from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from cifnet_pl.utilities.errors import UsageError


@dataclass(frozen=True)
class Phase:
    """A part of a task with an optimizer of its own.

    Attributes:
        name: "learn", or what the method calls its further phases.
        epochs: passes over the phase's images.
        learning_rate: at its beginning.
        weight_decay: on all weights that learn.
        rate_option: name of the option that the learning rate comes from.
    """

    name: str
    epochs: int
    learning_rate: float
    weight_decay: float
    rate_option: str = "learning_rate"


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
        return self.augmented(self.images, self.keys, (*self.seed, view))


@dataclass(frozen=True)
class Step:
    """One step over all processes.

    Attributes:
        phase: number of its phase, from 0.
        epoch: number of its pass, from 0.
        progress: share of the phase that is over before it.
        rows: positions of new images.
        exemplars: positions of exemplars.
    """

    phase: int
    epoch: int
    progress: float
    rows: np.ndarray
    exemplars: np.ndarray


def plan_steps(
    rows: np.ndarray,
    exemplars: int,
    phases: Sequence[Phase],
    batch_size: int,
    random: np.random.Generator,
) -> list[Step]:
    """Divide new images and exemplars among the steps of all phases, in shuffled order.

    Each image is in one step of each pass. Every step has the same share of new images and of
    exemplars, so that the sizes of steps differ by one at most. With fewer new images than steps,
    the last steps of each pass have exemplars alone.

    Args:
        rows: (n,) positions of the task's new images.
        exemplars: number of exemplars of earlier tasks.
        phases: phases of the task.
        batch_size: images in a step over all processes, at most.
        random: draws the orders.
    """
    images = len(rows) + exemplars
    count = max(1, math.ceil(images / batch_size))
    steps = []
    for number, phase in enumerate(phases):
        for epoch in range(phase.epochs):
            shuffled = random.permutation(rows)
            new = np.array_split(shuffled, count)
            # Reversed, so that the larger parts of one meet the smaller parts of the other.
            shuffled_exemplars = random.permutation(exemplars)
            old = np.array_split(shuffled_exemplars, count)[::-1]
            for i in range(count):
                progress = (epoch * count + i) / (phase.epochs * count)
                step = Step(number, epoch, progress, new[i], old[i])
                steps.append(step)
    return steps


def check_processes(steps: Sequence[Step], processes: int, task: int) -> None:
    """Check that every step has an image for each process, as losses over all processes need.

    Steps without any images are those after the last task, which Lightning asks for.

    Args:
        steps: of the task.
        processes: number of processes.
        task: number of the task, from 0.

    Raises:
        UsageError: a step has fewer images.
    """
    sizes = [len(step.rows) + len(step.exemplars) for step in steps]
    smallest = min(sizes)
    if 0 < smallest < processes:
        raise UsageError(
            f"task {task + 1} has a step of {smallest} images for {processes} processes: "
            f"set --trainer.devices to at most {smallest}"
        )
