"""Run the training steps of a task."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.learning.iterative.descent import Descent
from cifnet_pl.learning.iterative.examples import Examples
from cifnet_pl.learning.iterative.method import Method
from cifnet_pl.learning.iterative.schedule import Phase, Step, plan_steps
from cifnet_pl.utilities.errors import CifnetError

MEMORY = (
    "the GPU's memory is full: set a smaller --data.batch_size (now {batch_size}), or --trainer.precision 16-mixed; "
    "--ckpt_path last goes on from the last checkpoint"
)


class StepwiseModule(Method):
    """Takes the steps of a task's plan; every phase has its own optimizer and schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.old = self.classes = 0
        self.share = 1.0
        self._learning: list[nn.Module] = []
        self._phase, self._learned = -1, False
        self._offset = self._done = 0  # steps of the task that were taken before this run, and up to now
        self._plan: tuple[Any, list[Step]] | None = None
        self._descent: Descent | None = None

    def train(self, mode: bool = True) -> StepwiseModule:
        """Set training mode for what learns in the current phase if batch statistics learn, else evaluation mode."""
        super().train(False)
        self.training = mode
        if mode and self.regime.batch_statistics == "learned":
            for module in self._learning:
                module.train()
        return self

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the task's new images in each of its steps, without the steps that are already taken."""
        return [step.rows for step in self.steps(rows, task)[self._offset :]]

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """Return all steps of a task on new images ``rows``."""
        key = (task, rows.tobytes(), self.replayed())
        if self._plan is None or self._plan[0] != key:
            self.old = sum(len(names) for names in self.learned_tasks[:task])
            random = np.random.default_rng([self.seed, task])
            world = self.trainer.world_size
            steps = plan_steps(rows, self.replayed(), self.phases(), self.data.batch_size * world, random)
            self._plan = (key, steps)
        return self._plan[1]

    def planned(self) -> list[Step]:
        """Return the steps of the current task, in the order in which they are taken."""
        assert self._plan is not None
        return self._plan[1]

    def replayed(self) -> int:
        """Return the number of exemplars that are learned again in each pass."""
        return 0

    def exemplar_examples(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images, labels and keys of exemplars."""
        raise NotImplementedError

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes."""
        self.old, self.classes = labels[0], labels[-1] + 1
        if self.old:
            self.before_task()
        with self.drawing(1, len(self.learned_tasks)):
            self.expand(len(names))
        self.to(self.device)
        self._counts = torch.zeros(self.classes, dtype=torch.int64, device=self.device)
        self._phase, self._done, self._learned = -1, 0, False

    def _enter(self, number: int) -> None:
        """Begin phase ``number``, and all earlier ones that were not begun."""
        while self._phase < number:
            self._phase += 1
            with self.drawing(2, len(self.learned_tasks), self._phase):
                self.begin_phase()
            self.to(self.device)
            self.descend_on(self.learning_parts(), self.phases()[self._phase])

    def descend_on(self, parts: list[nn.Module], phase: Phase) -> None:
        """Let only ``parts`` learn from here on."""
        self._learning = parts
        self._descent = Descent(self, parts, phase.learning_rate, self.regime.momentum, phase.weight_decay)
        self.train()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take the next step of the task's plan."""
        try:
            self._next_step(cast(ImageBatch, batch))
        except torch.cuda.OutOfMemoryError as error:
            raise CifnetError(MEMORY.format(batch_size=self.data.batch_size)) from error
        self._done += 1

    def _next_step(self, batch: ImageBatch) -> None:
        planned = self.planned()
        self._counts += torch.bincount(batch.label, minlength=len(self._counts))
        step = planned[self._done]
        self._enter(step.phase)
        phases = self.phases()
        length = len(planned) // sum(phase.epochs for phase in phases)
        begun = length * sum(phase.epochs for phase in phases[: step.phase])
        progress = (self._done - begun) / (length * phases[step.phase].epochs)
        world, rank = self.trainer.world_size, self.trainer.global_rank
        images, labels, keys = batch.image, batch.label, batch.key
        mine = np.array_split(step.exemplars, world)[world - 1 - rank]
        if len(step.exemplars):
            kept = self.exemplar_examples(torch.from_numpy(mine))
            images, labels, keys = (torch.cat(pair) for pair in zip((images, labels, keys), kept, strict=True))
        seed = (self.seed, len(self.learned_tasks), step.phase, step.epoch)
        self.learn(Examples(images, labels, keys, seed, self.prepared), progress)

    def learn(self, batch: Examples, progress: float, loss_of: Callable[[Examples], Tensor] | None = None) -> None:
        """Take one step of SGD on a batch.

        Args:
            batch: this process's part of the step.
            progress: share of the phase that is over; the schedule's rate depends on it.
            loss_of: function to minimise instead of ``loss``.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        assert self._descent is not None
        new_samples = len(batch.labels)
        total = int(self._summed(torch.tensor(new_samples, device=self.device)))
        if not total:
            return
        self.share = new_samples * self.trainer.world_size / total
        if new_samples:
            loss = (loss_of or self.loss)(batch) * self.share
        else:
            loss = sum((p.sum() * 0 for p in self._descent.weights), torch.zeros((), device=self.device))
        value = self._descent.step(loss, self.regime.schedule.factor(progress, self.first))
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")

    def _diverged(self, quantity: str) -> CifnetError:
        rate = self.regime.learning_rates[len(self.learned_tasks) > 1]
        return CifnetError(
            f"{quantity} in task {len(self.learned_tasks)}: the learning rate {rate:g} is too high, "
            "set a lower --model.learning_rate"
        )

    def end_learning(self) -> None:
        """Correct the network after all steps of the task; it does not change afterwards."""
        if self._learned:
            return
        self._learned, self._learning = True, []
        self.train()
        with torch.no_grad():
            self.after_learning()
        if not all(torch.isfinite(weights).all() for weights in self.parameters()):
            raise self._diverged("weights are not finite")

    def finish_task(self) -> None:
        """Check what was learned.

        Raises:
            DataError: a class of which no image could be learned.
            CifnetError: the last step led to weights that are NaN or infinite.
        """
        self.end_learning()
        counts = self._summed(self._counts.clone()).tolist()
        new = self.learned_tasks[-1]
        self.refuse_empty([name for name, count in zip(new, counts[self.old :], strict=True) if not count])
        self._descent, self._offset, self._plan = None, 0, None
