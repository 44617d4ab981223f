"""Run the training steps of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.learning.iterative.descent import Descent
from cifnet_pl.learning.iterative.method import Method
from cifnet_pl.learning.iterative.schedule import Phase, Step, plan_steps
from cifnet_pl.learning.iterative.training_batch import Examples
from cifnet_pl.utilities.errors import CifnetError, UsageError

MEMORY = (
    "the GPU's memory is full: start a new experiment with a smaller --data.batch_size (now {batch_size}), "
    "or with --trainer.precision 16-mixed"
)
MEMORY_OF_EVALUATION = "the GPU's memory is full: set a smaller --data.batch_size (now {batch_size})"


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
        self._descended: Phase | None = None  # the last phase that began, for what is said of its rate

    @property
    def images_per_step(self) -> int:
        """Number of images in a step over all processes, at most."""
        return int(self.data.batch_size * self.trainer.world_size)

    def train(self, mode: bool = True) -> StepwiseModule:
        """Set training mode for what learns in the current phase if batch statistics learn, else evaluation mode."""
        super().train(False)
        self.training = mode
        if mode and self.regime.batch_statistics == "learned":
            for module in self._learning:
                module.train()
        return self

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the task's new images in each of its steps, without the steps that are already taken.

        No batch comes of a step without new images: it is taken with the one before it.
        """
        return [step.rows for step in self.steps(rows, task)[self._offset :]]

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """Return all steps of a task on new images ``rows``."""
        key = (task, rows.tobytes(), self.replayed())
        if self._plan is None or self._plan[0] != key:
            self.old = sum(len(names) for names in self.learned_tasks[:task])
            random = np.random.default_rng([self.seed, task])
            steps = plan_steps(rows, self.replayed(), self.phases(), self.images_per_step, random)
            self.refuse_empty_processes(steps, task)
            self._plan = (key, steps)
        return self._plan[1]

    def refuse_empty_processes(self, steps: list[Step], task: int) -> None:
        """Refuse steps with fewer images than processes: losses over all processes would wait for the empty ones.

        Args:
            steps: that are planned.
            task: number of the task, from 0.

        Raises:
            UsageError: there is one.
        """
        world = self.trainer.world_size
        smallest = min(len(step.rows) + len(step.exemplars) for step in steps)
        if 0 < smallest < world:  # no images at all are those after the last task, which Lightning asks for
            raise UsageError(
                f"task {task + 1} has a step of {smallest} images for {world} processes: "
                f"set --trainer.devices to at most {smallest}"
            )

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
        self._learning, self._descended = parts, phase
        self._descent = Descent(self, parts, phase.learning_rate, self.regime.momentum, phase.weight_decay)
        self.train()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take the next step of the task's plan, and those after it that have no new images."""
        with self.advising_on_memory():
            self._next_step(cast(ImageBatch, batch))
            self._done += 1
            none = ImageBatch._make(part[:0] for part in cast(ImageBatch, batch))
            while self._done < len(self.planned()) and not len(self.planned()[self._done].rows):
                self._next_step(none)
                self._done += 1

    @contextmanager
    def advising_on_memory(self) -> Iterator[None]:
        """Within the block, say what to do when the GPU's memory is full.

        Raises:
            CifnetError: it is.
        """
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            # A run cannot go on inside a task with other batches, nor anywhere in another precision.
            advice = MEMORY if self.trainer.state.fn == "fit" else MEMORY_OF_EVALUATION
            raise CifnetError(advice.format(batch_size=self.data.batch_size)) from error

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count a batch.

        Returns:
            Its probabilities (n, C); None if it is empty.

        Raises:
            CifnetError: they are not finite, or the GPU's memory is full.
        """
        with self.advising_on_memory():
            probabilities = super().validation_step(batch, batch_idx)
        if self.trainer.state.fn == "fit" and probabilities is not None and not probabilities.isfinite().all():
            raise self._diverged("the scores are not finite")
        return probabilities

    test_step = validation_step

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
            with self._statistics_for(new_samples):
                loss = (loss_of or self.loss)(batch) * self.share
        else:
            loss = sum((p.sum() * 0 for p in self._descent.weights), torch.zeros((), device=self.device))
        value = self._descent.step(loss, self.regime.schedule.factor(progress, self.first))
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")

    @contextmanager
    def _statistics_for(self, samples: int) -> Iterator[None]:
        """Within the block, let a single image be normalised by the running statistics: it has none of its own."""
        if samples > 1:
            yield
            return
        for module in self._learning:
            module.eval()
        yield
        self.train()

    def _diverged(self, quantity: str) -> CifnetError:
        assert self._descended is not None
        return CifnetError(
            f"{quantity} in task {len(self.learned_tasks)}: the learning rate {self._descended.learning_rate:g} "
            f"is too high, set a lower --model.{self._descended.rate_option}"
        )

    def refuse_divergence(self) -> None:
        """Check the weights; CifnetError if they are not finite, which names the rate of the last phase."""
        if not all(torch.isfinite(weights).all() for weights in self.parameters()):
            raise self._diverged("weights are not finite")

    def end_learning(self) -> None:
        """Correct the network after all steps of the task; it does not change afterwards."""
        if self._learned:
            return
        self._learned, self._learning = True, []
        self.train()
        with torch.no_grad():
            self.after_learning()
        self.refuse_divergence()

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
