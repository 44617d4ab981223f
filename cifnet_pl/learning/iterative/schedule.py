"""Schedule a task: its phases, the learning rate at each step, and the images of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from cifnet_pl.utilities.errors import UsageError, check_choice

Course = Literal["cosine", "step"]

T = TypeVar("T", int, float)


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


@dataclass(frozen=True)
class Step:
    """One step over all processes.

    Attributes:
        phase: number of its phase, from 0.
        epoch: number of its pass, from 0.
        rows: positions of new images.
        exemplars: positions of exemplars.
    """

    phase: int
    epoch: int
    rows: np.ndarray
    exemplars: np.ndarray


@dataclass(frozen=True)
class Schedule:
    """The learning rate as a share of the one at the beginning.

    Attributes:
        name: "cosine", to zero; or "step".
        milestones: shares of a phase after each of which "step" multiplies by ``decay``; for the first task and for
            the others.
        decay: factor at each milestone.
    """

    name: Course
    milestones: tuple[tuple[float, ...], tuple[float, ...]]
    decay: float

    def __post_init__(self) -> None:
        check_choice("schedule", self.name, Course)
        for shares in self.milestones:
            if any(not 0 < share < 1 for share in shares) or list(shares) != sorted(set(shares)):
                raise UsageError(
                    f"milestones is {list(shares)}: expected rising shares of the epochs between 0 and 1, "
                    "such as 0.3, 0.6 and 0.85 for epochs 60, 120 and 170 of 200"
                )
        if not 0 < self.decay < 1:
            raise UsageError(f"decay is {self.decay:g}, expected a factor between 0 and 1")

    def factor(self, progress: float, first: bool) -> float:
        """Return the factor of the learning rate.

        Args:
            progress: share of the phase that is over.
            first: whether this is the first task.
        """
        if self.name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        return float(self.decay ** sum(progress >= share for share in self.milestones[not first]))


def first_and_later(name: str, value: T | list[T]) -> tuple[T, T]:
    """Return an option that may differ between the first task and the later ones: one value, or a list of two.

    Raises:
        UsageError: a list of another length.
    """
    if not isinstance(value, list):
        return value, value
    if len(value) != 2:
        raise UsageError(f"{name} is {value}: expected one value, or two, for the first task and for the later ones")
    return value[0], value[1]


def plan_steps(
    rows: np.ndarray, exemplars: int, phases: Sequence[Phase], batch_size: int, random: np.random.Generator
) -> list[Step]:
    """Divide new images and exemplars among the steps of all phases, each once per pass, in shuffled order.

    Every step has the same share of both, so that the sizes of steps differ by one at most. With fewer new images than
    steps, the last steps of each pass have exemplars alone.

    Args:
        rows: positions of the task's new images.
        exemplars: number of exemplars of earlier tasks.
        phases: phases of the task.
        batch_size: images in a step over all processes, at most.
        random: draws the orders.
    """
    count = max(1, math.ceil((len(rows) + exemplars) / batch_size))
    steps = []
    for number, phase in enumerate(phases):
        for epoch in range(phase.epochs):
            new = np.array_split(random.permutation(rows), count)
            old = np.array_split(random.permutation(exemplars), count)[::-1]  # larger parts meet smaller ones
            steps += [Step(number, epoch, *parts) for parts in zip(new, old, strict=True)]
    return steps
