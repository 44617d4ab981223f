"""How a network descends: the steps of a task, the learning rate, SGD, and sums over processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather
from torch.optim import SGD

from cifnet_pl.iterative.augmentation import Augmentation, Policy
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.files import of_all_processes


class Descent:
    """SGD on the parts of a network that learn, with loss scaling if the precision is float16.

    Gradients and the running statistics of batch normalisation are averaged over processes after
    each step's backward pass, in one message. DistributedDataParallel could not do this: the
    network grows from task to task, with parts that are frozen or unused.

    Args:
        module: whose Trainer computes the gradients.
        parts: modules that learn; their parameters with ``requires_grad`` are descended on.
        learning_rate, momentum, weight_decay: of SGD.
    """

    def __init__(
        self,
        module: LightningModule,
        parts: Iterable[nn.Module],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ):
        self._module = module
        parts = list(parts)
        self.weights = [
            p for learned in parts for p in learned.parameters() if p.requires_grad
        ]
        self._running = [
            b for learned in parts for b in learned.buffers() if b.is_floating_point()
        ]
        self._optimizer = SGD(
            self.weights, learning_rate, momentum=momentum, weight_decay=weight_decay
        )
        self.learning_rate = learning_rate
        self._scaler = getattr(module.trainer.precision_plugin, "scaler", None)
        if (
            self._scaler is not None
        ):  # a task begins with the scale of a fresh run, so that it can be repeated
            fresh = torch.amp.GradScaler(module.device.type)
            self._scaler.load_state_dict(fresh.state_dict())

    def step(self, loss: Tensor, factor: float) -> float:
        """Take one step; a loss that is not finite changes nothing.

        Args:
            loss: () of this process.
            factor: of the learning rate.

        Returns:
            The loss over all processes.
        """
        for group in self._optimizer.param_groups:
            group["lr"] = self.learning_rate * factor
        self._optimizer.zero_grad()
        self._module.manual_backward(loss)
        value = self._average(loss)
        if not torch.isfinite(torch.tensor(value)):
            return value
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()
        return value

    def _average(self, loss: Tensor) -> float:
        """Average loss, gradients and running statistics over processes; return the loss."""
        if self._module.trainer.world_size == 1:
            return float(loss.detach())
        for p in self.weights:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        shared = [cast(Tensor, p.grad) for p in self.weights] + self._running
        flat = torch.cat(
            [loss.detach().reshape(1).float(), *(t.reshape(-1).float() for t in shared)]
        )
        torch.distributed.all_reduce(flat)
        flat /= self._module.trainer.world_size
        parts = torch.split(flat[1:], [t.numel() for t in shared])
        for tensor, mean in zip(shared, parts, strict=True):
            tensor.copy_(mean.view_as(tensor))
        return float(flat[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta and loss scale."""
        if self._scaler is not None:
            scale = self._scaler.state_dict()
        else:
            scale = {}
        return {"optimizer": self._optimizer.state_dict(), "scaler": scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with stored momenta and a stored loss scale."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


def gathered(local: Tensor, world: int) -> Tensor:
    """Return the rows of all processes, in the order of their ranks; gradients flow back to each.

    Args:
        local: (n, …) rows of this process.
        world: number of processes.
    """
    if world == 1:
        return local
    sizes = of_all_processes(len(local))
    padded = torch.cat(
        [local, local.new_zeros(max(sizes) - len(local), *local.shape[1:])]
    )
    parts = cast(Any, all_gather)(padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


Course = Literal["cosine", "step"]


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
        progress: share of the phase that is over before it.
        rows: positions of new images.
        exemplars: positions of exemplars.
    """

    phase: int
    epoch: int
    progress: float
    rows: np.ndarray
    exemplars: np.ndarray


def first_and_later(name: str, value: Any) -> tuple[Any, Any]:
    """Return an option that may differ between the first task and the later ones: one value, or a
    list of two.

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


def plan_steps(
    rows: np.ndarray,
    exemplars: int,
    phases: Sequence[Phase],
    batch_size: int,
    random: np.random.Generator,
) -> list[Step]:
    """Divide new images and exemplars among the steps of all phases, each once per pass, in
    shuffled order.

    Every step has the same share of both, so that the sizes of steps differ by one at most. With
    fewer new images than steps, the last steps of each pass have exemplars alone.

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
            old = np.array_split(random.permutation(exemplars), count)[
                ::-1
            ]  # larger parts meet smaller ones
            for i, parts in enumerate(zip(new, old, strict=True)):
                steps.append(
                    Step(
                        number,
                        epoch,
                        (epoch * count + i) / (phase.epochs * count),
                        *parts,
                    )
                )
    return steps


BatchStatistics = Literal["learned", "fixed"]


class Regime:
    """How long and how fast a network learns, and on which changes of its images.

    Args:
        options: of :class:`cifnet_pl.iterative.trainer.IterativeModule`, by name.

    Attributes:
        epochs, learning_rates, weight_decays: each for the first and for later tasks.
        momentum: of SGD.
        course: of the learning rate: "cosine", to zero; or "step".
        milestones: shares of a phase after each of which "step" multiplies by ``decay``; for the
            first task and for the others.
        decay: factor at each milestone.
        augmentation: random changes of images.

    Raises:
        UsageError: a value that makes no sense; says what is expected.
    """

    def __init__(self, options: Mapping[str, Any]):
        self.epochs: tuple[int, int] = first_and_later("epochs", options["epochs"])
        self.learning_rates: tuple[float, float] = first_and_later(
            "learning_rate", options["learning_rate"]
        )
        self.weight_decays: tuple[float, float] = first_and_later(
            "weight_decay", options["weight_decay"]
        )
        self.momentum: float = options["momentum"]
        check_that(min(self.epochs) >= 1, "epochs", min(self.epochs), "at least 1")
        check_that(options["seed"] >= 0, "seed", options["seed"], "at least 0")
        for rate in self.learning_rates:
            check_that(0 < rate < math.inf, "learning_rate", rate, "a positive number")
        for weight_decay in self.weight_decays:
            check_that(
                0 <= weight_decay < math.inf, "weight_decay", weight_decay, "at least 0"
            )
        check_that(
            0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1"
        )
        check_choice("batch_statistics", options["batch_statistics"], BatchStatistics)
        check_choice("schedule", options["schedule"], Course)
        self.course: Course = options["schedule"]
        if options["milestones"] is None:
            shares = [0.7, 0.9]
        else:
            shares = options["milestones"]
        two = shares and isinstance(shares[0], list)
        if two:
            self.milestones: tuple[list[float], list[float]] = first_and_later(
                "milestones", shares
            )
        else:
            self.milestones = (shares, shares)
        for some in self.milestones:
            rising = some == sorted(set(some)) and all(0 < share < 1 for share in some)
            check_that(
                rising,
                "milestones",
                some,
                "rising shares of the epochs between 0 and 1, such as 0.3 and 0.6",
            )
        self.decay: float = options["decay"]
        check_that(0 < self.decay < 1, "decay", self.decay, "a factor between 0 and 1")
        check_that(
            options["crop_padding"] >= 0,
            "crop_padding",
            options["crop_padding"],
            "at least 0",
        )
        for name in ("brightness", "contrast", "saturation", "cutout"):
            check_that(
                0 <= options[name] <= 1, name, options[name], "a number between 0 and 1"
            )
        if options["autoaugment"] is not None:
            check_choice("autoaugment", options["autoaugment"], Policy)
        self.augmentation = Augmentation(
            **{change.name: options[change.name] for change in fields(Augmentation)}
        )

    def factor(self, progress: float, first: bool) -> float:
        """Return the learning rate as a share of the one at the beginning.

        Args:
            progress: share of the phase that is over.
            first: whether this is the first task.
        """
        if self.course == "cosine":
            return 0.5 * (1 + math.cos(math.pi * progress))
        return float(
            self.decay ** sum(progress >= share for share in self.milestones[not first])
        )


def check_tuning(tuning: float, rate: float) -> None:
    """Check the share of epochs and the learning rate of balanced fine-tuning; UsageError where
    they make no sense.
    """
    check_that(tuning >= 0, "tuning", tuning, "at least 0")
    check_that(rate > 0, "tuning_rate", rate, "a positive number")
