"""The steps of a task: which new images and which exemplars each of them learns from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cifnet_pl.iterative.descent import Phase
from cifnet_pl.utilities.errors import UsageError


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


class TaskPlan:
    """The steps of a module's current task, and the position in them.

    Attributes:
        steps: in the order in which they are taken.
        done: number of steps taken, in this run and before it.
        skipped: number of steps that were taken before this run.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.done = 0
        self.skipped = 0
        self._key: tuple[int, bytes, int] | None = None

    def clear(self) -> None:
        """Forget the steps of a task."""
        self._key = None
        self.steps = []
        self.skipped = 0

    def make(
        self,
        task: int,
        rows: np.ndarray,
        exemplars: int,
        phases: Sequence[Phase],
        batch_size: int,
        random: np.random.Generator,
    ) -> None:
        """Plan a task, unless it is planned already; see :func:`plan_steps`.

        Args:
            task: number of the task, from 0.
        """
        key = (task, rows.tobytes(), exemplars)
        if self._key != key:
            self.steps = plan_steps(rows, exemplars, phases, batch_size, random)
            self._key = key

    @property
    def finished(self) -> bool:
        """Whether all steps are taken."""
        return self.done >= len(self.steps)

    @property
    def next_has_no_new_images(self) -> bool:
        """Whether the next step learns from exemplars alone, so that no batch comes for it."""
        return not self.finished and not len(self.steps[self.done].rows)
