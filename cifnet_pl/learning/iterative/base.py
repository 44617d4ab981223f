"""What all trained methods share: the regime of a task, from its first step to its last, and its checkpoints."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.image_sets import ImageSet
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.learning.iterative.augmentation import Augmentation
from cifnet_pl.learning.iterative.descent import Descent, gathered
from cifnet_pl.learning.iterative.networks import parameters_of
from cifnet_pl.learning.iterative.schedule import Phase, Schedule, Step, first_and_later, plan_steps
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, unknown_name
from cifnet_pl.utilities.text import first_line

STATISTICS = ("learned", "fixed")

MEMORY = (
    "the GPU's memory is full: set a smaller --data.batch_size (now {batch_size}), or --trainer.precision 16-mixed; "
    "--ckpt_path last goes on from the last checkpoint"
)


@dataclass(frozen=True)
class Examples:
    """A step's images of one process, as they are kept.

    Attributes:
        images: (n, 3, s, s) uint8; labels, keys: (n,) int64.
        inputs: makes a normalised, augmented view; views are counted from 0.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    learner: IterativeModule

    def inputs(self, view: int = 0) -> Tensor:
        """(n, 3, s, s) float32: the images augmented and normalised, in one of several random views."""
        changed = self.learner.augmentation(self.images, self.keys, (*self.seed, view))
        return self.learner.normalised(changed)


class IterativeModule(TaskModule):
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
        schedule: str = "cosine",
        milestones: list[float] | list[list[float]] | None = None,
        decay: float = 0.2,
        batch_statistics: str = "fixed",
        flip: bool = True,
        crop_padding: int = 0,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        preset: str | None = None,
        seed: int = 0,
    ):
        super().__init__()
        given = locals()
        self._options: dict[str, Any] = {name: given[name] for name in IterativeModule.OPTIONS}
        self._epochs = first_and_later("epochs", epochs)
        self._rates = first_and_later("learning_rate", learning_rate)
        self._decays = first_and_later("weight_decay", weight_decay)
        self._check(momentum, batch_statistics, crop_padding, (brightness, contrast, saturation), seed)
        self.epochs, self.momentum, self.seed, self.preset = self._epochs[1], momentum, seed, preset
        self.batch_statistics = batch_statistics
        self.schedule = Schedule(schedule, _two_lists(milestones), decay)
        self.augmentation = Augmentation(flip, crop_padding, brightness, contrast, saturation)
        self._name, self._architecture, self._download = backbone, architecture, download
        with self.drawing(0):
            self.backbone = build_backbone(backbone, architecture, download, engine="torch")  # it is trained
        self._pretrained = self.backbone.sha256  # of the weights that learning starts from
        self.network = self.backbone.network.requires_grad_(True)
        self.backbone.network = nn.Identity()  # the learner holds the weights, the backbone says how images come in
        self.width = self.backbone.features
        self.old = self.classes = 0
        self._learning: list[nn.Module] = []
        self._before: dict[str, Tensor] = {}
        self._resume: dict[str, Any] | None = None
        self._offset = self._done = 0
        self._phase, self._learned = -1, False
        self._plan: tuple[Any, list[Step]] | None = None
        self._snapshot: dict[str, Any] | None = None
        self._descent: Descent | None = None
        self.share = 1.0

    def _check(
        self, momentum: float, statistics: str, padding: int, jitter: tuple[float, float, float], seed: int
    ) -> None:
        if min(self._epochs) < 1 or seed < 0:
            raise UsageError(f"epochs is {min(self._epochs)}, seed {seed}: expected at least 1 and 0")
        rates_fit = all(0 < rate < math.inf for rate in self._rates)
        if not rates_fit or not 0 <= momentum < 1 or not all(0 <= decay < math.inf for decay in self._decays):
            raise UsageError(
                f"learning_rate is {_plain(self._rates)}, momentum {momentum:g}, weight_decay {_plain(self._decays)}: "
                "expected a positive number, one in [0, 1), and one of at least 0"
            )
        if statistics not in STATISTICS:
            raise unknown_name("batch_statistics", statistics, STATISTICS)
        if padding < 0 or not all(0 <= value <= 1 for value in jitter):
            raise UsageError(
                f"crop_padding is {padding}, brightness, contrast and saturation {list(jitter)}: "
                "expected at least 0, and numbers between 0 and 1"
            )

    # ------------------------------------------------------------------ for methods

    @abstractmethod
    def expand(self, classes: int) -> None:
        """Add what a task with so many new classes needs; called with the seed of the task set."""

    @abstractmethod
    def loss(self, batch: Examples) -> Tensor:
        """The mean loss over a process's part of a step, a scalar."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """(n, d) embeddings of normalised images (n, 3, s, s)."""

    @abstractmethod
    def logits(self, z: Tensor) -> Tensor:
        """(n, C) scores of embeddings (n, d), column c for label c."""

    @abstractmethod
    def learning_parts(self) -> list[nn.Module]:
        """The modules that learn in the current phase of the current task."""

    def before_task(self) -> None:
        """Keep what the task needs of the network as it is; not called before the first task."""

    def phases(self) -> list[Phase]:
        """The phases of the current task."""
        return [self.phase("learn")]

    def begin_phase(self) -> None:
        """Prepare for the current phase, see ``current``."""

    def after_learning(self) -> None:
        """Correct the network once all phases are over."""

    def rebuild(self, sizes: list[int]) -> None:
        """Make room for the weights of a network that has finished tasks with so many classes each."""
        for size in sizes:
            self.old, self.classes = self.classes, self.classes + size
            self.expand(size)

    def extractors(self) -> list[nn.Module]:
        """The modules whose parameters reports count."""
        return [self.network]

    # ------------------------------------------------------------------ what methods use

    @property
    def first(self) -> bool:
        """Whether the current task is the first."""
        return not self.old

    @property
    def current(self) -> str:
        """Name of the current phase."""
        return self.phases()[self._phase].name

    def phase(self, name: str, share: float = 1.0, rate: float | None = None, decay: float | None = None) -> Phase:
        """A phase of the current task, with a share of its epochs and, unless given, its rate and weight decay."""
        later = not self.first
        epochs = max(1, round(share * self._epochs[later]))
        return Phase(
            name,
            epochs,
            self._rates[later] if rate is None else rate,
            self._decays[later] if decay is None else decay,
        )

    def fresh_network(self) -> nn.Module:
        """Another network as the first one was at the beginning; if at random, with other random weights."""
        network = build_backbone(self._name, self._architecture, self._download, engine="torch").network
        return network.requires_grad_(True).to(self.device)

    def normalised(self, images: Tensor) -> Tensor:
        """float32 images with the mean and scale that the network expects, of uint8 images (n, 3, s, s)."""
        images = images.contiguous(memory_format=torch.channels_last)
        return torch.addcmul(self.backbone.shift, images, self.backbone.scale)

    def gathered(self, own: Tensor) -> Tensor:
        """Rows (n, …) of all processes; a loss on them is divided by ``share``, as each process computes all of it."""
        return gathered(own, self.trainer.world_size, self.trainer.global_rank)

    def mean_where(self, values: Tensor, chosen: Tensor) -> Tensor:
        """Mean of values (n,) over the samples ``chosen``, (n,) bool, of all processes; 0 where there are none."""
        count = float(self._summed(chosen.sum().float()))
        scale = self.trainer.world_size / (self.share * max(count, 1.0))
        return (values * chosen).sum() * scale

    def over_processes(self, loss: Tensor) -> float:
        """A mean loss of each process as the mean over all samples."""
        return float(self._summed(loss.detach() * self.share)) / self.trainer.world_size

    @contextmanager
    def drawing(self, *purpose: int) -> Iterator[None]:
        """A block in which torch's random numbers depend on the seed and on ``purpose`` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(np.random.SeedSequence([self._options["seed"], *purpose]).generate_state(1)[0]))
            yield

    # ------------------------------------------------------------------ learning

    def train(self, mode: bool = True) -> IterativeModule:
        """Training mode for what learns in the current phase, if batch statistics learn; evaluation mode else."""
        super().train(False)
        self.training = mode
        if mode and self.batch_statistics == "learned":
            for part in self._learning:
                part.train()
        return self

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: data without images, an embedding cache, a limit on batches, which would cut off passes, or a
                Trainer whose processes would not learn together.
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

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """The task's new images in each of its steps; those that are already taken are left out."""
        return [step.rows for step in self.steps(rows, task)[self._offset :]]

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """All steps of a task on new images ``rows``."""
        key = (task, rows.tobytes(), self.replayed())
        if self._plan is None or self._plan[0] != key:
            self.old = sum(len(names) for names in self.learned_tasks[:task])
            random = np.random.default_rng([self.seed, task])
            world = self.trainer.world_size
            steps = plan_steps(rows, self.replayed(), self.phases(), self.data.batch_size * world, random)
            self._plan = (key, steps)
        return self._plan[1]

    def replayed(self) -> int:
        """Number of exemplars that are learned again in each pass."""
        return 0

    def exemplar_examples(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images, labels and keys of exemplars."""
        raise NotImplementedError

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes, and go on inside the task if that is where the run stopped."""
        # Weights are changed in place, all other tensors are replaced.
        self._before = {k: v.clone() for k, v in self.state_dict().items()}
        self.old, self.classes = labels[0], labels[-1] + 1
        if self.old:
            self.before_task()
        with self.drawing(1, len(self.learned_tasks)):
            self.expand(len(names))
        self.to(self.device)
        self._counts = torch.zeros(self.classes, dtype=torch.int64, device=self.device)
        self._phase, self._done, self._learned, self._snapshot = -1, 0, False, None
        if self._resume is not None:
            self._go_on(self._resume)
            self._resume = None

    def _enter(self, number: int) -> None:
        """Begin the phase ``number``, and those before it that were not begun."""
        while self._phase < number:
            self._phase += 1
            with self.drawing(2, len(self.learned_tasks), self._phase):
                self.begin_phase()
            self.to(self.device)
            self.descend_on(self.learning_parts(), self.phases()[self._phase])

    def descend_on(self, parts: list[nn.Module], phase: Phase) -> None:
        """Let ``parts`` learn from here on, and nothing else."""
        self._learning = parts
        self._descent = Descent(self, parts, phase.learning_rate, self.momentum, phase.weight_decay)
        self.train()

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take the next step of the task's plan."""
        try:
            self._next_step(cast(ImageBatch, batch))
        except torch.cuda.OutOfMemoryError as error:
            raise CifnetError(MEMORY.format(batch_size=self.data.batch_size)) from error
        self._done += 1

    def _next_step(self, batch: ImageBatch) -> None:
        assert self._plan is not None
        self._counts += torch.bincount(batch.label, minlength=len(self._counts))
        step = self._plan[1][self._done]
        self._enter(step.phase)
        phases = self.phases()
        length = len(self._plan[1]) // sum(phase.epochs for phase in phases)
        begun = length * sum(phase.epochs for phase in phases[: step.phase])
        progress = (self._done - begun) / (length * phases[step.phase].epochs)
        world, rank = self.trainer.world_size, self.trainer.global_rank
        images, labels, keys = batch.image, batch.label, batch.key
        mine = np.array_split(step.exemplars, world)[world - 1 - rank]
        if len(step.exemplars):
            kept = self.exemplar_examples(torch.from_numpy(mine))
            images, labels, keys = (torch.cat(pair) for pair in zip((images, labels, keys), kept, strict=True))
        seed = (self.seed, len(self.learned_tasks), step.phase, step.epoch)
        self.learn(Examples(images, labels, keys, seed, self), progress)

    def learn(self, batch: Examples, progress: float, loss_of: Callable[[Examples], Tensor] | None = None) -> None:
        """One step of SGD on a batch, after the share ``progress`` of the phase.

        Args:
            batch: this process's part of the step.
            progress: between 0 and 1; the schedule's rate depends on it.
            loss_of: what to descend on instead of ``loss``.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        assert self._descent is not None
        own = len(batch.labels)
        total = int(self._summed(torch.tensor(own, device=self.device)))
        if not total:
            return
        self.share = own * self.trainer.world_size / total
        if own:
            loss = (loss_of or self.loss)(batch) * self.share
        else:
            loss = sum((p.sum() * 0 for p in self._descent.weights), torch.zeros((), device=self.device))
        value = self._descent.step(loss, self.schedule.factor(progress, self.first))
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")

    def _summed(self, value: Tensor) -> Tensor:
        if self.trainer.world_size > 1:
            value = cast(Tensor, self.trainer.strategy.reduce(value, reduce_op="sum"))
        return value

    def _diverged(self, what: str) -> CifnetError:
        rate = self._rates[len(self.learned_tasks) > 1]
        return CifnetError(
            f"{what} in task {len(self.learned_tasks)}: the learning rate {rate:g} is too high, "
            "set a lower --model.learning_rate"
        )

    def end_learning(self) -> None:
        """Once all steps of the task are taken: correct the network, which now stays as it is."""
        if self._learned:
            return
        self._snapshot = self._position()
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
        self._descent, self._offset, self._plan, self._snapshot = None, 0, None, None

    def abort_task(self, labels: list[int]) -> None:
        """Go back to the weights before the task."""
        if self._before:
            self._restructure([len(task) for task in self.learned_tasks])
            super().load_state_dict(self._before)
            self._before, self._resume, self._offset, self._plan = {}, None, 0, None

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """(n, C) float64 probabilities of uint8 images (n, 3, s, s): softmax of the scores."""
        with torch.no_grad():
            return self.logits(self.embed(images)).double().softmax(dim=1)

    def embed(self, images: Tensor) -> Tensor:
        """(n, d) float32 embeddings of uint8 images (n, 3, s, s), without gradients."""
        with torch.no_grad():
            return self.features(self.normalised(images)).float()

    def probabilities(self, batch: Batch) -> Tensor:
        """Probabilities of an evaluation batch."""
        return cast(Tensor, self(cast(ImageBatch, batch).image))

    # ------------------------------------------------------------------ checkpoints

    def settings(self) -> dict[str, Any]:
        """Everything that the weights depend on."""
        return {**super().settings(), "backbone": self._pretrained, **self._options}

    def describe(self) -> dict[str, Any]:
        """What ``summary.json`` says of the method; the parameters are those of :meth:`extractors`."""
        about = {"head": type(self).__name__, "backbone": self.backbone.name, "preset": self.preset}
        return {
            **about,
            "backbone_params": parameters_of(self.extractors()),
            "precision": str(self.trainer.precision),
        }

    def _position(self) -> dict[str, Any]:
        """Where the task stands after ``_done`` steps: enough to go on with the same bits."""
        descent = self._descent.state_dict() if self._descent is not None else None
        weights = {k: v.clone() for k, v in self.state_dict().items()}
        return {"step": self._done, "weights": weights, "descent": descent, "counts": self._counts.clone()}

    def _go_on(self, position: dict[str, Any]) -> None:
        """Continue the task from a position, once its structure is there."""
        self._done = self._offset = position["step"]
        self._counts = position["counts"].to(self.device)
        steps = self._plan[1] if self._plan is not None else []
        if self._done:
            self._enter(steps[self._done - 1].phase)
            self.load_state_dict(position["weights"])
            assert self._descent is not None
            self._descent.load_state_dict(position["descent"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """While a task is under way, keep the weights of before and the position inside the task."""
        super().on_save_checkpoint(checkpoint)
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = dict(self._before)
            checkpoint["position"] = self._snapshot or self._position()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for the classes that the checkpoint's weights know."""
        super().on_load_checkpoint(checkpoint)
        self._before, self._plan = {}, None
        self._resume = checkpoint.get("position") if self._under_way else None
        self._offset = self._resume["step"] if self._resume else 0
        self._restructure([len(task) for task in self.learned_tasks[: self.tasks_finished]])

    def _restructure(self, sizes: list[int]) -> None:
        """Have the structure of a network that has finished tasks with so many classes each."""
        self.clear()
        with self.drawing(3):
            self.rebuild(sizes)
        self.to(self.device)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        self.classes = self.old = 0

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load all weights; CheckpointError if they do not fit the classes that the checkpoint names."""
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"the checkpoint does not fit the network: {first_line(error)}") from error


def _two_lists(given: list[float] | list[list[float]] | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Milestones of the first task and of later ones."""
    if given is None:
        given = [0.7, 0.9]
    if given and isinstance(given[0], list):
        first, later = first_and_later("milestones", cast(Any, given))
        return tuple(first), tuple(later)
    shares = tuple(cast("list[float]", given))
    return shares, shares


def _plain(values: tuple[float, float]) -> str:
    return f"{values[0]:g}" if values[0] == values[1] else f"[{values[0]:g}, {values[1]:g}]"
