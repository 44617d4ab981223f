"""Gradient descent in a task: its steps, the learning rate at each, and SGD over processes."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
import torch.distributed
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from torch import Tensor, nn
from torch.optim import SGD

from cifnet_pl.utilities.errors import check_positive, check_that
from cifnet_pl.utilities.processes import of_all_processes

Schedule = Literal["cosine", "step"]
BatchStatistics = Literal["learned", "fixed"]


# ---------------------------------------------------------------------- steps


@dataclass(frozen=True)
class Phase:
    """A part of a task with an optimizer of its own.

    Attributes:
        name: "learn", "tune" for balanced fine-tuning, or what the method calls further ones.
        epochs: passes over the phase's images.
        learning_rate: at its beginning.
        weight_decay: on all weights that learn.
    """

    name: str
    epochs: int
    learning_rate: float
    weight_decay: float


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


@dataclass(frozen=True)
class StepBatch:
    """The images of one step in one process.

    Attributes:
        images: (n, 3, s, s) uint8.
        labels, keys: (n,) int64.
        seed: integers that the augmentation depends on, besides the keys: they stand for the run
            and the epoch.
        module: the :class:`~cifnet_pl.iterative.trainer.IterativeModule` that learns.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    module: Any

    def inputs(self, view: int = 0) -> Tensor:
        """Return (n, 3, s, s) float32 images, augmented and normalised.

        Args:
            view: number of the random view, from 0; the same view has the same bits again.
        """
        seed = (*self.seed, view)
        images = self.module.augmentation(self.images, self.keys, seed)
        x: Tensor = self.module.backbone.normalised(images)
        return x


def plan_steps(
    rows: np.ndarray,
    exemplars: int,
    phases: Sequence[Phase],
    batch_size: int,
    seed: Sequence[int],
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
        seed: of the orders.
    """
    random = np.random.default_rng(seed)
    images = len(rows) + exemplars
    count = max(1, math.ceil(images / batch_size))
    steps = []
    for number, phase in enumerate(phases):
        for epoch in range(phase.epochs):
            new = np.array_split(random.permutation(rows), count)
            # Reversed, so that the larger parts of one meet the smaller parts of the other.
            old = np.array_split(random.permutation(exemplars), count)[::-1]
            for i in range(count):
                progress = (epoch * count + i) / (phase.epochs * count)
                steps.append(Step(number, epoch, progress, new[i], old[i]))
    return steps


# ---------------------------------------------------------------------- options


def _twice(value: Any) -> Any:
    """Return a list of two, for the first task and for later ones, of a single value."""
    if isinstance(value, list):
        return value
    return [value, value]


def _milestones_twice(milestones: Any) -> Any:
    """Return two lists of milestones, for the first task and for later ones, of a single list."""
    if any(isinstance(shares, list) for shares in milestones):
        return milestones
    return [milestones, milestones]


def _rising(shares: list[float]) -> list[float]:
    """Return milestones, of which each is larger than the one before."""
    if shares != sorted(set(shares)):
        raise ValueError("expected rising shares of the epochs, such as 0.3 and 0.6")
    return shares


T = TypeVar("T")
Both = Annotated[tuple[T, T], BeforeValidator(_twice)]
"""A value for the first task, and one for later ones."""

Between0And1 = Annotated[float, Field(gt=0, lt=1)]
Milestones = Annotated[list[Between0And1], AfterValidator(_rising)]


class Regime(BaseModel, allow_inf_nan=False):
    """How all methods train; options of :class:`~cifnet_pl.iterative.trainer.IterativeModule`."""

    epochs: Both[PositiveInt]
    learning_rate: Both[PositiveFloat]
    momentum: Annotated[float, Field(ge=0, lt=1)]
    weight_decay: Both[NonNegativeFloat]
    schedule: Schedule
    milestones: Annotated[
        tuple[Milestones, Milestones], BeforeValidator(_milestones_twice)
    ]
    decay: Between0And1
    batch_statistics: BatchStatistics
    seed: NonNegativeInt
    exemplars: NonNegativeInt
    exemplars_per_class: PositiveInt | None

    def factor(self, progress: float, first: bool) -> float:
        """Return the learning rate as a share of the one at the beginning.

        Args:
            progress: share of the phase that is over.
            first: whether this is the first task.
        """
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        passed = bisect_right(self.milestones[not first], progress)
        return float(self.decay**passed)


def check_tuning(tuning: float, rate: float) -> None:
    """Check the options of balanced fine-tuning.

    Args:
        tuning: share of the task's epochs.
        rate: learning rate.

    Raises:
        UsageError: one is out of range.
    """
    check_that(tuning >= 0, "tuning", tuning, "at least 0")
    check_positive("tuning_rate", rate)


# ---------------------------------------------------------------------- processes


class Processes:
    """Sums, means and rows over all processes of a module's Trainer.

    Args:
        module: attached to a Trainer before anything is reduced.

    Attributes:
        share: weight of this process's mean loss in that of all processes, times their number; 1
            for one process.
    """

    def __init__(self, module: Any):
        self._module = module
        self.share = 1.0

    @property
    def count(self) -> int:
        """Number of processes."""
        return int(self._module.trainer.world_size)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; it may be changed in place."""
        total: Tensor = self._module.trainer.strategy.reduce(value, reduce_op="sum")
        return total

    def set_share(self, samples: int) -> bool:
        """Set ``share`` for the next step.

        Args:
            samples: number of this process's samples in the step.

        Returns:
            Whether the step is taken: any process has samples, or all of them for a loss over the
            samples of all.
        """
        own = torch.tensor([samples, samples > 0], device=self._module.device)
        total, present = self.sum(own).tolist()
        if total:
            self.share = samples * self.count / total
        if self._module.compares_processes:
            return bool(present == self.count)
        return bool(total)

    def gather(self, local: Tensor) -> Tensor:
        """Return the rows (n, …) of all processes, in the order of their ranks.

        Gradients flow back to each process. Divide a loss on these rows by ``share``, as each
        process computes all of it.
        """
        if self.count == 1:
            return local
        sizes = of_all_processes(len(local))
        missing = max(sizes) - len(local)
        padding = local.new_zeros(missing, *local.shape[1:])
        padded = torch.cat([local, padding])
        gathered = self._module.all_gather(padded, sync_grads=True)
        own = [part[:size] for part, size in zip(gathered, sizes, strict=True)]
        return torch.cat(own)

    def mean_where(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Return the mean of some values over all processes, 0 if there are none.

        Args:
            values: (n,).
            chosen: (n,) bool, which values count.
        """
        count = max(float(self.sum(chosen.sum().float())), 1.0)
        scale = self.count / (self.share * count)
        return (values * chosen).sum() * scale

    def mean_loss(self, loss: Tensor) -> float:
        """Return the mean loss over all samples, from the mean loss of each process."""
        return float(self.sum(loss.detach() * self.share)) / self.count


class Descent:
    """SGD in one phase of a task, with loss scaling if the precision is float16.

    Gradients and the running statistics of batch normalisation are averaged over processes after
    each step's backward pass, in one message. DistributedDataParallel cannot do this: the network
    grows from task to task, with parts that are frozen or unused.

    Args:
        module: the :class:`~cifnet_pl.iterative.trainer.IterativeModule` whose loss is minimised.
        parts: modules that learn, in parameters with ``requires_grad``.
        phase: gives learning rate and weight decay.
    """

    def __init__(self, module: Any, parts: Sequence[nn.Module], phase: Phase):
        self._module = module
        self._parts = nn.ModuleList(parts)
        self.phase = phase
        parameters = self._parts.parameters()
        self.parameters: list[Tensor] = [p for p in parameters if p.requires_grad]
        self._running = [b for b in self._parts.buffers() if b.is_floating_point()]
        self._optimizer = SGD(
            self.parameters,
            phase.learning_rate,
            module.options["momentum"],
            weight_decay=phase.weight_decay,
        )
        self._precision = module.trainer.precision_plugin
        # A task begins with the loss scale of a new run, so that it can be repeated.
        if self._precision.state_dict():
            fresh = torch.amp.GradScaler(module.device.type)
            self._precision.load_state_dict(fresh.state_dict())

    def step(self, batch: StepBatch, progress: float) -> None:
        """Take one step.

        Args:
            batch: this process's part of the step.
            progress: share of the phase that is over; the schedule's rate depends on it.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        module = self._module
        if not module.processes.set_share(len(batch.labels)):
            return
        factor = module.regime.factor(progress, module.is_first_task)
        for group in self._optimizer.param_groups:
            group["lr"] = self.phase.learning_rate * factor
        self._optimizer.zero_grad()
        loss = self._loss(batch)
        module.manual_backward(loss)
        value = self._average(loss)
        if not math.isfinite(value):
            raise module.divergence(f"the loss is {value}")
        # Without a closure, as the gradients are there.
        self._precision.optimizer_step(self._optimizer, module, lambda: None)

    def _loss(self, batch: StepBatch) -> Tensor:
        """Return this process's part of the loss."""
        module = self._module
        samples = len(batch.labels)
        if not samples:
            # Zero, but with a gradient; ``_average`` makes those that are missing.
            return self.parameters[0].sum() * 0
        if samples == 1:
            # A single image has no statistics of its own: the running ones serve.
            self._parts.eval()
        loss: Tensor = module.loss(batch) * module.processes.share
        if samples == 1:
            module.train()
        return loss

    def _average(self, loss: Tensor) -> float:
        """Average loss, gradients and running statistics over processes; return the loss."""
        value = loss.detach()
        count = self._module.processes.count
        if count == 1:
            return float(value)
        shared = [value, *self._running]
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            shared.append(parameter.grad)
        flat = torch.cat([tensor.reshape(-1) for tensor in shared]).float()
        torch.distributed.all_reduce(flat)
        means = torch.split(flat / count, [tensor.numel() for tensor in shared])
        for tensor, mean in zip(shared, means, strict=True):
            tensor.copy_(mean.view_as(tensor))
        return float(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta and the loss scale."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "scaler": self._precision.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with stored momenta and a stored loss scale."""
        self._optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self._precision.load_state_dict(state["scaler"])
