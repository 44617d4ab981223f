"""Gradient descent of a network: SGD over processes, phases of a task, learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import SGD

from cifnet_pl.iterative.augmentation import augmentation_of
from cifnet_pl.iterative.steps import Phase, StepBatch
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that

Schedule = Literal["cosine", "step"]


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
        self._parts = parts
        self.phase = phase
        self.weights: list[Tensor] = []
        self._running: list[Tensor] = []
        for part in parts:
            self.weights += [p for p in part.parameters() if p.requires_grad]
            self._running += [b for b in part.buffers() if b.is_floating_point()]
        self._optimizer = SGD(
            self.weights,
            phase.learning_rate,
            module.regime.momentum,
            weight_decay=phase.weight_decay,
        )
        self._scaler = getattr(module.trainer.precision_plugin, "scaler", None)
        if self._scaler is not None:
            # A task begins with the scale of a new run, so that it can be repeated.
            fresh = torch.amp.GradScaler(module.device.type)
            self._scaler.load_state_dict(fresh.state_dict())

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
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()

    def _loss(self, batch: StepBatch) -> Tensor:
        """Return this process's part of the loss."""
        module = self._module
        samples = len(batch.labels)
        if not samples:
            # Zero, but with gradients: the other processes wait for this one's.
            nothing = torch.zeros((), device=module.device)
            for weights in self.weights:
                nothing = nothing + weights.sum() * 0
            return nothing
        if samples == 1:
            # A single image has no statistics of its own: the running ones serve.
            for part in self._parts:
                part.eval()
        loss: Tensor = module.loss(batch) * module.processes.share
        if samples == 1:
            module.train()
        return loss

    def _average(self, loss: Tensor) -> float:
        """Average loss, gradients and running statistics over processes; return the loss."""
        if self._module.trainer.world_size == 1:
            return float(loss.detach())
        for p in self.weights:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        gradients = [cast(Tensor, p.grad) for p in self.weights]
        shared = gradients + self._running
        flattened = [t.reshape(-1) for t in shared]
        flat = torch.cat([loss.detach().reshape(1), *flattened])
        flat = flat.float()
        torch.distributed.all_reduce(flat)
        flat /= self._module.trainer.world_size
        sizes = [t.numel() for t in shared]
        means = torch.split(flat[1:], sizes)
        for tensor, mean in zip(shared, means, strict=True):
            tensor.copy_(mean.view_as(tensor))
        return float(flat[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta and the loss scale."""
        scaler: dict[str, Any] = {}
        if self._scaler is not None:
            scaler = self._scaler.state_dict()
        return {"optimizer": self._optimizer.state_dict(), "scaler": scaler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with stored momenta and a stored loss scale."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


def first_and_later(name: str, value: Any) -> tuple[Any, Any]:
    """Return an option for the first task and for later ones.

    Args:
        name: name of the option.
        value: one value, or a list of two.

    Raises:
        UsageError: a list of another length.
    """
    if not isinstance(value, list):
        return value, value
    if len(value) != 2:
        raise UsageError(
            f"{name} is {value}: expected one value, or two, for the first task and for the later"
            " ones"
        )
    return value[0], value[1]


BatchStatistics = Literal["learned", "fixed"]


class Regime:
    """Schedule of training: epochs, learning rates, and augmentation of images.

    Args:
        options: of :class:`cifnet_pl.iterative.trainer.IterativeModule`, by name.

    Attributes:
        epochs, learning_rates, weight_decays: each for the first task and for later ones.
        momentum: of SGD.
        schedule: of the learning rate: "cosine" (to zero) or "step".
        milestones: shares of a phase after each of which "step" multiplies by ``decay``; for the
            first task and for later ones.
        decay: factor at each milestone.
        augmentation: random changes of images.

    Raises:
        UsageError: a value that does not fit.
    """

    def __init__(self, options: Mapping[str, Any]):
        given = options["epochs"]
        self.epochs: tuple[int, int] = first_and_later("epochs", given)
        given = options["learning_rate"]
        self.learning_rates: tuple[float, float] = first_and_later(
            "learning_rate", given
        )
        given = options["weight_decay"]
        self.weight_decays: tuple[float, float] = first_and_later("weight_decay", given)
        self.momentum: float = options["momentum"]
        self.schedule: Schedule = options["schedule"]
        self.milestones = _milestones(options["milestones"])
        self.decay: float = options["decay"]
        self._check()
        seed = options["seed"]
        check_that(seed >= 0, "seed", seed, "at least 0")
        check_choice("batch_statistics", options["batch_statistics"], BatchStatistics)
        self.augmentation = augmentation_of(options)

    def _check(self) -> None:
        for epochs in self.epochs:
            check_that(epochs >= 1, "epochs", epochs, "at least 1")
        for rate in self.learning_rates:
            check_that(0 < rate < math.inf, "learning_rate", rate, "a positive number")
        for weight_decay in self.weight_decays:
            check_that(
                0 <= weight_decay < math.inf, "weight_decay", weight_decay, "at least 0"
            )
        check_that(
            0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1"
        )
        check_choice("schedule", self.schedule, Schedule)
        expected = "rising shares of the epochs between 0 and 1, such as 0.3 and 0.6"
        for shares in self.milestones:
            inside_each = [0 < share < 1 for share in shares]
            inside = all(inside_each)
            rising = shares == sorted(set(shares))
            check_that(inside and rising, "milestones", shares, expected)
        check_that(0 < self.decay < 1, "decay", self.decay, "a factor between 0 and 1")

    def factor(self, progress: float, first: bool) -> float:
        """Return the learning rate as a share of the one at the beginning.

        Args:
            progress: share of the phase that is over.
            first: whether this is the first task.
        """
        if self.schedule == "cosine":
            cosine = math.cos(math.pi * progress)
            return 0.5 * (1 + cosine)
        which = 1
        if first:
            which = 0
        milestones = self.milestones[which]
        passed_shares = [progress >= share for share in milestones]
        passed = sum(passed_shares)
        return float(self.decay**passed)


def _milestones(given: list[Any] | None) -> tuple[list[float], list[float]]:
    """Return the milestones for the first task and for later ones."""
    if given is None:
        given = [0.7, 0.9]
    if given and isinstance(given[0], list):
        first, later = first_and_later("milestones", given)
        return first, later
    return given, given


def check_tuning(tuning: float, rate: float) -> None:
    """Check the options of balanced fine-tuning.

    Args:
        tuning: share of the task's epochs.
        rate: learning rate.

    Raises:
        UsageError: one is out of range.
    """
    check_that(tuning >= 0, "tuning", tuning, "at least 0")
    check_that(rate > 0, "tuning_rate", rate, "a positive number")
