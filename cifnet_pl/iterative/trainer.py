"""What all trained methods share: their options, and how they predict and describe themselves."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
import torch.distributed
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import SGD

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.iterative.augmentation import Augmentation
from cifnet_pl.iterative.networks import parameters_of
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, check_choice, check_that
from cifnet_pl.utilities.text import first_line


class Descent:
    """SGD on the parts of a network that learn, with loss scaling if the precision is float16.

    Gradients and the running statistics of batch normalisation are averaged over processes after each step's backward
    pass, in one message. DistributedDataParallel could not do this: the network grows from task to task, with parts
    that are frozen or unused.

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
        self._module, parts = module, list(parts)
        self.weights = [p for learned in parts for p in learned.parameters() if p.requires_grad]
        self._running = [b for learned in parts for b in learned.buffers() if b.is_floating_point()]
        self._optimizer = SGD(self.weights, learning_rate, momentum=momentum, weight_decay=weight_decay)
        self.learning_rate = learning_rate
        self._scaler = getattr(module.trainer.precision_plugin, "scaler", None)
        if self._scaler is not None:  # a task begins with the scale of a fresh run, so that it can be repeated
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
        flat = torch.cat([loss.detach().reshape(1).float(), *(t.reshape(-1).float() for t in shared)])
        torch.distributed.all_reduce(flat)
        flat /= self._module.trainer.world_size
        parts = torch.split(flat[1:], [t.numel() for t in shared])
        for tensor, mean in zip(shared, parts, strict=True):
            tensor.copy_(mean.view_as(tensor))
        return float(flat[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the momenta and loss scale."""
        scale = self._scaler.state_dict() if self._scaler is not None else {}
        return {"optimizer": self._optimizer.state_dict(), "scaler": scale}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with stored momenta and a stored loss scale."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])


class _Gather(torch.autograd.Function):
    """Rows of all processes, (n_0 + n_1 + …, …); the gradient of a process's rows is summed over all of them."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, sizes: Sequence[int], rank: int) -> Tensor:
        ctx.sizes, ctx.rank = sizes, rank
        padded = local.new_zeros(max(sizes), *local.shape[1:])
        padded[: len(local)] = local
        parts = [torch.empty_like(padded) for _ in sizes]
        torch.distributed.all_gather(parts, padded)
        return torch.cat([gathered[:size] for gathered, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        grad = grad.contiguous()
        torch.distributed.all_reduce(grad)
        return torch.split(grad, list(ctx.sizes))[ctx.rank], None, None


def gathered(local: Tensor, world: int, rank: int) -> Tensor:
    """Return the rows of all processes, in the order of their ranks; gradients flow back to each.

    Args:
        local: (n, …) rows of this process.
        world: number of processes.
        rank: number of this process.
    """
    if world == 1:
        return local
    size = torch.tensor([len(local)], device=local.device)
    sizes = [torch.zeros_like(size) for _ in range(world)]
    torch.distributed.all_gather(sizes, size)
    return cast(Tensor, cast(Any, _Gather).apply(local, [int(s) for s in sizes], rank))


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


BatchStatistics = Literal["learned", "fixed"]


@dataclass(frozen=True)
class Regime:
    """Options of :class:`cifnet_pl.iterative.trainer.IterativeModule`; pairs are for the first and later tasks.

    Attributes:
        epochs: passes over a task's images.
        learning_rates: of SGD at the beginning of a phase.
        weight_decays: of SGD.
        momentum: of SGD.
        batch_statistics: whether those of batch normalisation are learned or fixed.
        schedule: course of the learning rate.
        augmentation: random changes of images.
        seed: of everything that is drawn.
    """

    epochs: tuple[int, int]
    learning_rates: tuple[float, float]
    weight_decays: tuple[float, float]
    momentum: float
    batch_statistics: BatchStatistics
    schedule: Schedule
    augmentation: Augmentation
    seed: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Regime:
        """Read the options of an ``IterativeModule``, by their names.

        Raises:
            UsageError: a value that makes no sense; says what is expected.
        """
        padding, jitter = options["crop_padding"], [options[name] for name in ("brightness", "contrast", "saturation")]
        check_that(padding >= 0, "crop_padding", padding, "at least 0")
        for name in ("brightness", "contrast", "saturation"):
            check_that(0 <= options[name] <= 1, name, options[name], "a number between 0 and 1")
        return cls(
            first_and_later("epochs", options["epochs"]),
            first_and_later("learning_rate", options["learning_rate"]),
            first_and_later("weight_decay", options["weight_decay"]),
            options["momentum"],
            options["batch_statistics"],
            Schedule(options["schedule"], _milestones(options["milestones"]), options["decay"]),
            Augmentation(options["flip"], padding, *jitter),
            options["seed"],
        )

    def __post_init__(self) -> None:
        check_that(min(self.epochs) >= 1, "epochs", min(self.epochs), "at least 1")
        check_that(self.seed >= 0, "seed", self.seed, "at least 0")
        for rate in self.learning_rates:
            check_that(0 < rate < math.inf, "learning_rate", rate, "a positive number")
        for weight_decay in self.weight_decays:
            check_that(0 <= weight_decay < math.inf, "weight_decay", weight_decay, "at least 0")
        check_that(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        check_choice("batch_statistics", self.batch_statistics, BatchStatistics)


def _milestones(fractions: list[float] | list[list[float]] | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the milestones of the first task and of later ones."""
    if fractions is None:
        fractions = [0.7, 0.9]
    if fractions and isinstance(fractions[0], list):
        first, later = first_and_later("milestones", cast(Any, fractions))
        return tuple(first), tuple(later)
    shares = tuple(cast("list[float]", fractions))
    return shares, shares


def check_tuning(tuning: float, rate: float) -> None:
    """Check the share of epochs and the learning rate of balanced fine-tuning; UsageError where they make no sense."""
    check_that(tuning >= 0, "tuning", tuning, "at least 0")
    check_that(rate > 0, "tuning_rate", rate, "a positive number")


@dataclass(frozen=True)
class Examples:
    """The images of one step in one process.

    Attributes:
        images: (n, 3, s, s) uint8.
        labels, keys: (n,) int64.
        seed: numbers that the random changes of the images depend on, besides their keys.
        prepare: function from images, their keys and a seed to the network's inputs (n, 3, s, s) float32.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    prepare: Callable[[Tensor, Tensor, Sequence[int]], Tensor]

    def inputs(self, view: int = 0) -> Tensor:
        """Return (n, 3, s, s) float32: the images augmented and normalised, in one of several random views.

        Args:
            view: which one, counted from 0; the same view has the same bits again.
        """
        return self.prepare(self.images, self.keys, (*self.seed, view))


class Method(TaskModule):
    """The part of :class:`cifnet_pl.iterative.trainer.IterativeModule` that is specific to a method.

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


class ResumableModule(StepwiseModule):
    """Keeps the weights from before a task, and the position inside it, in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Tensor] = {}
        self._resume: dict[str, Any] | None = None
        self._snapshot: dict[str, Any] | None = None

    @property
    def goes_on_inside(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on there."""
        return self._resume is not None

    @property
    def resumable_now(self) -> bool:
        """Whether a run can go on inside the task from a checkpoint that is written after this batch."""
        return True

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """Return all steps of a task on new images ``rows``.

        Raises:
            CheckpointError: the run goes on inside the task, and its steps were others before.
        """
        steps = super().steps(rows, task)
        if self._resume is not None:
            _require_same("steps in the task", self._resume.get("steps"), len(steps))
        return steps

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes; if the run was stopped inside this task, go on from there."""
        # Weights are changed in place, all other tensors are replaced.
        self._before = {k: v.clone() for k, v in self.state_dict().items()}
        self._snapshot = None
        super().begin_task(names, labels)
        if self._resume is not None:
            self._go_on(self._resume)
            self._resume = None

    def end_learning(self) -> None:
        """Keep the position after the last step, from which the rest of the task is computed again."""
        if not self._learned:
            self._snapshot = self._position()
        super().end_learning()

    def finish_task(self) -> None:
        """Forget the position once the task is learned."""
        super().finish_task()
        self._snapshot = None

    def abort_task(self, labels: list[int]) -> None:
        """Go back to the weights before the task."""
        if self._before:
            self._restructure([len(task) for task in self.learned_tasks])
            super().load_state_dict(self._before)
            self._before, self._resume, self._offset, self._plan = {}, None, 0, None

    def _position(self) -> dict[str, Any]:
        """Return the state of the task after ``_done`` steps: enough to go on with the same bits."""
        descent = self._descent.state_dict() if self._descent is not None else None
        weights = {k: v.clone() for k, v in self.state_dict().items()}
        position = {"step": self._done, "weights": weights, "descent": descent, "counts": self._counts.clone()}
        steps = len(self._plan[1]) if self._plan is not None else None
        return {**position, "images_per_step": self.images_per_step, "steps": steps}

    def _go_on(self, position: dict[str, Any]) -> None:
        """Continue the task from a position; the network must have its structure already."""
        self._done = self._offset = position["step"]
        self._counts = position["counts"].to(self.device)
        steps = self._plan[1] if self._plan is not None else []
        if self._done:
            self._enter(steps[self._done - 1].phase)
            self.load_state_dict(position["weights"])
            assert self._descent is not None
            self._descent.load_state_dict(position["descent"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the weights from before the task and the position inside it, while a task is under way."""
        super().on_save_checkpoint(checkpoint)
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = dict(self._before)
            checkpoint["position"] = self._snapshot or self._position()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for the classes that the checkpoint's weights know.

        Raises:
            CheckpointError: see :class:`cifnet_pl.learning.task_module.TaskModule`; or the run would go on inside a
                task in steps of another size, in which its remaining steps are others.
        """
        super().on_load_checkpoint(checkpoint)
        self._before, self._plan = {}, None
        self._resume = checkpoint.get("position") if self._under_way else None
        if self._resume is not None:
            _require_same("images in a step", self._resume.get("images_per_step"), self.images_per_step)
        self._offset = self._resume["step"] if self._resume else 0
        self._restructure([len(task) for task in self.learned_tasks[: self.tasks_finished]])

    def _restructure(self, sizes: list[int]) -> None:
        """Build the structure of a network that has finished some tasks.

        Args:
            sizes: number of classes of each task.
        """
        self.clear()
        with self.drawing(3):
            self.rebuild(sizes)
        self.to(self.device)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        self.classes = self.old = 0

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load all weights.

        Raises:
            CheckpointError: they do not fit the classes that the checkpoint names.
        """
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"the checkpoint does not fit the network: {first_line(error)}") from error


def _require_same(quantity: str, stored: int | None, ours: int) -> None:
    """Compare the steps of the task that goes on with those of the run that began it.

    Args:
        quantity: what is counted.
        stored: the number in the checkpoint; None in those of older versions, and nothing is compared.
        ours: the number in this run.

    Raises:
        CheckpointError: they differ.
    """
    if stored is not None and stored != ours:
        raise CheckpointError(
            f"the checkpoint was written inside a task with {stored} {quantity}, this run has {ours}: use the same "
            "--data.batch_size, number of processes and images, or start a new experiment"
        )


__all__ = ["Examples", "IterativeModule"]


class IterativeModule(ResumableModule):
    """A network that learns each task by SGD, in one or more phases of several epochs over the task's images.

    A task is one epoch of Lightning: the data module feeds its images as often as the phases want them, each time in
    another order. Every phase has an optimizer and a schedule of its own. What is computed depends on the seed, the
    task and the images alone; a run that was stopped inside a task goes on at its last checkpoint with the same bits.
    In several processes each step's batch is dealt out and gradients are averaged.

    Where an option takes two values, they are for the first task and for all later ones.

    Args:
        backbone: name of the network, see :mod:`cifnet_pl.backbones`; random:resnet32_cifar begins at random weights.
        architecture: torchvision model name, resnet32_cifar or resnet18_cifar, for backbone ``file:…``.
        download: whether weights that are not on this machine may be fetched.
        epochs: passes over the images of a task, or two numbers.
        learning_rate: of SGD at the beginning of a task, or two. With fixed batch statistics it must be small: with
            EfficientNet-Lite0 at 128 pixels 0.001 learned best and 0.01 not at all (held-out training images).
        momentum: of SGD.
        weight_decay: of SGD, on all weights that learn, or two.
        schedule: "cosine" (to zero) or "step".
        milestones: for "step", shares of a phase after which the rate is multiplied by ``decay``; or two lists.
        decay: see ``milestones``.
        batch_statistics: "fixed" (batch normalisation stays as pretrained, its scale and shift learn) or "learned".
        flip: whether half of the images are mirrored left to right.
        crop_padding: pixels of zeros around an image, of which a random square of the old size is taken.
        brightness, contrast, saturation: colour jitter, see :class:`Augmentation`.
        preset: name of these settings, for reports.
        seed: of weights, orders and augmentation; on the command line, ``--seed_everything``.
    """

    averages_gradients = True
    OPTIONS: tuple[str, ...] = (
        *("epochs", "learning_rate", "momentum", "weight_decay", "schedule", "milestones", "decay"),
        *("batch_statistics", "flip", "crop_padding", "brightness", "contrast", "saturation", "seed"),
    )

    def __init__(
        self,
        backbone: str = "embedded:efficientnet_lite0",
        architecture: str | None = None,
        download: bool = False,
        epochs: int | list[int] = 10,
        learning_rate: float | list[float] = 0.001,
        momentum: float = 0.9,
        weight_decay: float | list[float] = 5e-4,
        schedule: Course = "cosine",
        milestones: list[float] | list[list[float]] | None = None,
        decay: float = 0.2,
        batch_statistics: BatchStatistics = "fixed",
        flip: bool = True,
        crop_padding: int = 0,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        preset: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        arguments = locals()
        self._options: dict[str, Any] = {name: arguments[name] for name in IterativeModule.OPTIONS}
        self.regime = Regime.from_options(self._options)
        self.epochs, self.seed, self.preset = self.regime.epochs[1], seed, preset
        self._source = (backbone, architecture, download)
        with self.drawing(0):
            self.backbone = build_backbone(*self._source, engine="torch")  # it is trained
        self._pretrained = self.backbone.sha256  # of the weights that learning starts from
        self.network = self.backbone.network.requires_grad_(True)
        self.backbone.network = nn.Identity()  # the learner holds the weights, the backbone says how images come in
        self.width = self.backbone.features

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: data without images, an embedding cache, a limit on batches, which would cut off passes, a
                Trainer whose processes would not learn together, or batches of one image, which have no statistics.
        """
        name = type(self).__name__
        if not isinstance(self.data.source.train, ImageSet):
            raise UsageError(f"{name} trains a network on images, but --data.source {self.data.source_name} has none")
        if self.data.cache_folder is not None:
            raise UsageError(f"--data.cache keeps what a frozen network computes, but {name} trains it: set it false")
        if stage == "fit":
            check_trainer(self.trainer)
            if self.trainer.limit_train_batches != 1.0:
                raise UsageError("a limit on training batches would cut off whole passes: use fewer --model.epochs")
            if self.regime.batch_statistics == "learned" and self.data.batch_size < 2:
                raise UsageError(
                    "batch statistics are learned from at least two images in each process: set --data.batch_size "
                    "to 2 or more (now 1), or --model.batch_statistics fixed"
                )

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, s, s): softmax of the scores."""
        with torch.no_grad():
            return self.logits(self.embed(images)).double().softmax(dim=1)

    def embed(self, images: Tensor) -> Tensor:
        """Return (n, d) float32 embeddings of uint8 images (n, 3, s, s), without gradients."""
        with torch.no_grad():
            return self.features(self.normalised(images)).float()

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch."""
        return cast(Tensor, self(cast(ImageBatch, batch).image))

    def settings(self) -> dict[str, Any]:
        """Return everything that the weights depend on."""
        return {**super().settings(), "backbone": self._pretrained, **self._options}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the method; the parameters are those of :meth:`extractors`."""
        about = {"head": type(self).__name__, "backbone": self.backbone.name, "preset": self.preset}
        return {
            **about,
            "backbone_params": parameters_of(self.extractors()),
            "precision": str(self.trainer.precision),
        }
