"""The trainer of all trained methods: a task in phases of several epochs, with exemplars and exact
resuming.

A method overrides what stands under "what a method does in its own way"; all else is the same for
all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.structures import frozen, grown
from cifnet_pl.buffer import select_herding
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.iterative.augmentation import Policy
from cifnet_pl.iterative.descent import (
    BatchStatistics,
    Course,
    Descent,
    Phase,
    Regime,
    Step,
    gathered,
    plan_steps,
)
from cifnet_pl.iterative.exemplars import ExemplarSet, Prediction, quota
from cifnet_pl.iterative.learned import frozen_backbone, learned_model
from cifnet_pl.iterative.losses import aligned
from cifnet_pl.learning.strategy import check_trainer
from cifnet_pl.learning.task_callback import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    check_choice,
    check_that,
    explained,
)
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.run_folders import COMPLETE

OPTIONS = (
    *(
        "epochs",
        "learning_rate",
        "momentum",
        "weight_decay",
        "schedule",
        "milestones",
        "decay",
        "batch_statistics",
    ),
    *(
        "resized_crop",
        "flip",
        "crop_padding",
        "brightness",
        "contrast",
        "saturation",
        "autoaugment",
        "cutout",
    ),
    *("seed", "exemplars", "exemplars_per_class"),
)
"""Arguments of every method that the weights and the exemplars depend on, besides the backbone."""


@dataclass(frozen=True)
class Examples:
    """The images of one step in one process.

    Attributes:
        images: (n, 3, s, s) uint8.
        labels, keys: (n,) int64.
        seed: numbers that the random changes of the images depend on, besides their keys.
        prepare: function from images, their keys and a seed to the network's inputs (n, 3, s, s)
            float32.
    """

    images: Tensor
    labels: Tensor
    keys: Tensor
    seed: tuple[int, ...]
    prepare: Callable[[Tensor, Tensor, Sequence[int]], Tensor]

    def inputs(self, view: int = 0) -> Tensor:
        """Return (n, 3, s, s) float32: the images augmented and normalised, in one of several
        random views.

        Args:
            view: which one, counted from 0; the same view has the same bits again.
        """
        return self.prepare(self.images, self.keys, (*self.seed, view))


class IterativeModule(TaskModule):
    """A network that learns each task by SGD, in one or more phases of several epochs over the
    task's images.

    A task is one epoch of Lightning: the data module feeds its images as often as the phases want
        them, each time in
    another order. Every phase has an optimizer and a schedule of its own. What is computed depends
    on the seed, the task and the images alone; a run that was stopped inside a task goes on at its
    last checkpoint with the same bits. In several processes each step's batch is dealt out and
    gradients are averaged.

    Exemplars are uint8 images as the data module prepares them. Each class's are chosen once, after
    its task, best first, and fewer of them are kept as classes come (iCaRL, algorithms 4 and 5). A
    task is read once more than its epochs say, for the embeddings that they are chosen by.
    Prediction is the classifier's, or that of the nearest mean of exemplars (algorithm 1), whose
    probabilities are the softmax of ``−‖φ(x) − μ_y‖²`` at length 1. Both are evaluated;
    ``prediction`` says which of them counts.

    Where an option takes two values, they are for the first task and for all later ones.

    Args:
        backbone: name of the network, see :mod:`cifnet_pl.backbones`; random:resnet32_cifar begins
            at random weights.
        architecture: torchvision model name, resnet32_cifar or resnet18_cifar, for backbone
            ``file:…``.
        download: whether weights that are not on this machine may be fetched.
        epochs: passes over the images of a task, or two numbers.
        learning_rate: of SGD at the beginning of a task, or two. With fixed batch statistics it
            must be small: with EfficientNet-Lite0 at 128 pixels 0.001 learned best and 0.01 not at
                all (held-out training images).
        momentum: of SGD.
        weight_decay: of SGD, on all weights that learn, or two.
        schedule: "cosine" (to zero) or "step".
        milestones: for "step", shares of a phase after which the rate is multiplied by ``decay``;
            or two lists.
        decay: see ``milestones``.
        batch_statistics: "fixed" (batch normalisation stays as pretrained, its scale and shift
            learn) or "learned".
        resized_crop: whether a random part of an image is scaled to its size, as usual for
            ImageNet.
        flip: whether half of the images are mirrored left to right.
        crop_padding: pixels of zeros around an image, of which a random square of the old size is
            taken.
        brightness, contrast, saturation: colour jitter, see :class:`Augmentation`.
        autoaugment: "cifar10" or "imagenet", the learned policy of AutoAugment for these sets, or
            null.
        cutout: side of a black square at a random place, as a share of the image's side; 0 for
            none.
        preset: name of these settings, for reports.
        seed: of weights, orders and augmentation; on the command line, ``--seed_everything``.
        exemplars: number of images that are kept in all; 0 for none.
        exemplars_per_class: number that is kept of each class instead, or null.
        prediction: "classifier" or "nearest_mean"; a checkpoint can be validated with either.

    Attributes:
        network: the network, without its classifier.
        width: width d of its embeddings.
        classes: number of classes, those of the current task included.
        old: number of classes of earlier tasks.
        regime: how long and how fast the network learns.
        options: what the weights and the exemplars depend on, by name; a method adds its own.
        teacher: frozen copies of ``teachers()`` from before the task; no modules of this one, as
            they follow from the weights before the task.
        share: weight of this process's mean loss in that of all processes, times their number; 1
            for one process.
    """

    averages_gradients = True
    classifiers: tuple[str, ...] = ("classifier", "nearest_mean")

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
        resized_crop: bool = False,
        flip: bool = True,
        crop_padding: int = 0,
        brightness: float = 0.0,
        contrast: float = 0.0,
        saturation: float = 0.0,
        autoaugment: Policy | None = None,
        cutout: float = 0.0,
        preset: str | None = None,
        seed: int = 0,
        exemplars: int = 2000,
        exemplars_per_class: int | None = None,
        prediction: Prediction = "classifier",
    ):
        given = dict(locals())
        super().__init__()
        self.options: dict[str, Any] = {name: given[name] for name in OPTIONS}
        self.regime = Regime(self.options)
        check_that(
            exemplars >= 1 or not self.classifiers, "exemplars", exemplars, "at least 1"
        )
        if exemplars_per_class is not None:
            check_that(
                exemplars_per_class >= 1,
                "exemplars_per_class",
                exemplars_per_class,
                "at least 1",
            )
        check_choice("prediction", prediction, Prediction)
        self.epochs = self.regime.epochs[1]
        self.seed = seed
        self.preset = preset
        self.capacity = exemplars
        self.per_class = exemplars_per_class
        self.prediction = prediction
        self._source = (backbone, architecture, download)
        with self.drawing(0):
            self.backbone = build_backbone(
                *self._source, engine="torch"
            )  # it is trained
        check_that(
            self.backbone.learning is None,
            "backbone",
            backbone,
            "a network with gradients",
        )
        self._pretrained = (
            self.backbone.sha256
        )  # of the weights that learning starts from
        self._network_params = self.backbone.parameters_count
        self.network = self.backbone.network.requires_grad_(True)
        self.backbone.network = (
            nn.Identity()
        )  # the learner holds the weights, the backbone says how images come in
        self.width = self.backbone.features
        self.classifier: nn.Linear | None = None
        self.exemplars = ExemplarSet()
        self.old = self.classes = 0
        self.teacher: tuple[nn.Module, ...] = ()
        self.share = 1.0
        self._candidates: list[
            tuple[Tensor, ...]
        ] = []  # embedding, label, key and row of the task's images
        self._learning: list[nn.Module] = []
        self._phase = -1
        self._offset = self._done = (
            0  # steps of the task that were taken before this run, and up to now
        )
        self._plan: tuple[Any, list[Step]] | None = None
        self._descent: Descent | None = None
        self._descended: Phase | None = (
            None  # the last phase that began, for what is said of its rate
        )
        self._before: dict[str, Tensor] = {}  # weights before the task
        self._resume: dict[str, Any] | None = None
        self._snapshot: dict[str, Any] | None = (
            None  # position after the last step, while the task is being finished
        )

    # ------------------------------------------------------------------ what a method does in its
    # own way

    def expand(self, classes: int) -> None:
        """Add what a task with ``classes`` new classes needs, by default outputs; torch's seed is
        set before.
        """
        self.classifier = grown(self.classifier, self.width, self.classes)

    @property
    def output_layer(self) -> nn.Module:
        """Classifier, once there are classes."""
        assert self.classifier is not None
        return self.classifier

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) embeddings of normalised images (n, 3, s, s)."""
        z: Tensor = self.network(x)
        return z

    def logits(self, z: Tensor) -> Tensor:
        """Return (n, C) float32 scores of embeddings (n, d), column c for label c."""
        scores: Tensor = self.output_layer(z)
        return scores.float()

    def loss(self, batch: Examples) -> Tensor:
        """Return the mean loss over a process's part of a step, by default of ``−log
        softmax(scores)[y]``.
        """
        return functional.cross_entropy(
            self.logits(self.features(batch.inputs())), batch.labels
        )

    def learning_parts(self) -> list[nn.Module]:
        """Return the modules that learn in the current phase of the current task, by default
        all.
        """
        return [self.network, self.output_layer]

    def teachers(self) -> list[nn.Module]:
        """Return the parts of which a task needs a copy from before it (``teacher``), by default
        none.
        """
        return []

    def phases(self) -> list[Phase]:
        """Return the phases of the current task."""
        return [self.phase("learn")]

    def begin_phase(self) -> None:
        """Prepare for the current phase (``current``)."""

    def after_learning(self) -> None:
        """Correct the network once all phases are over; called without gradients."""

    def after_choosing(self) -> None:
        """Fine-tune the network on the same number of images of each class; called from the second
        task on.
        """

    def kept_rows(self, rows: np.ndarray, task: int) -> np.ndarray:
        """Return the images of a task that are learned: all of them."""
        return rows

    def room(self) -> int:
        """Return the number of exemplars to keep in all for the task that follows."""
        return self.capacity

    def rebuild(self, sizes: list[int]) -> None:
        """Make room for the weights of a network that has finished some tasks.

        Args:
            sizes: number of classes of each task.
        """
        for size in sizes:
            self.old = self.classes
            self.classes = self.classes + size
            self.expand(size)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        self.classes = self.old = 0
        self.classifier = None
        self.exemplars = ExemplarSet()

    def extractors(self) -> list[nn.Module]:
        """Return the modules whose parameters reports count."""
        return [self.network]

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the structure of what embeds after the last task
        (:mod:`cifnet_pl.backbones.structures`), and it.
        """
        return "plain", self.network

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
        self,
        name: str,
        share: float = 1.0,
        tuning_rate: float | None = None,
        decay: float | None = None,
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
        if decay is None:
            decay = self.regime.weight_decays[later]
        else:
            decay = decay
        if tuning_rate is not None:
            return Phase(name, epochs, tuning_rate, decay, "tuning_rate")
        return Phase(name, epochs, self.regime.learning_rates[later], decay)

    def tune(self, share: float, rate: float, parts: list[nn.Module]) -> None:
        """Learn from the exemplars alone (balanced fine-tuning), and choose those of the new
        classes again.

        Args:
            share: of the task's epochs; 0 for none.
            rate: learning rate.
            parts: modules that learn.
        """
        if not share:
            return
        phase = self.phase("tune", share, rate)
        world = self.trainer.world_size
        rank = self.trainer.global_rank
        random = np.random.default_rng([self.seed, len(self.learned_tasks), 4])
        steps = plan_steps(
            np.arange(len(self.exemplars)), 0, [phase], self.images_per_step, random
        )
        self._refuse_empty_processes(steps, len(self.learned_tasks) - 1)
        self._descend_on(parts, phase)
        for step in steps:
            mine = torch.from_numpy(np.array_split(step.rows, world)[rank])
            seed = (self.seed, len(self.learned_tasks), 1000, step.epoch)
            self.learn(
                Examples(*self.exemplars.at(mine), seed, self.prepared), step.progress
            )
        self._learning = []
        self.train()
        self._candidates = [
            (self.embed(self._squares(row).to(self.device)), label, key, row)
            for _, label, key, row in self._candidates
        ]
        self._choose_exemplars()

    def old_scores(self, x: Tensor) -> Tensor:
        """Return (n, C_old) float32 scores of normalised images from before the task, without
        gradients.

        The ``teachers`` are a network and its classifier.
        """
        network, head = self.teacher
        with torch.no_grad():
            scores: Tensor = head(network(x))
            return scores.float()

    def align(self) -> None:
        """Scale the weights of new classes to the mean norm of the old ones (WA, eq. 10)."""
        if self.old and self.classifier is not None:
            self.classifier.weight.copy_(
                aligned(self.classifier.weight, self.classes - self.old)
            )

    def fresh_network(self) -> nn.Module:
        """Return a network like the first one was at the beginning; random weights are drawn
        anew.
        """
        network = build_backbone(*self._source, engine="torch").network
        return network.requires_grad_(True).to(self.device)

    def normalised(self, images: Tensor) -> Tensor:
        """Return float32 images with the mean and scale that the network expects, of uint8 images
        (n, 3, s, s).
        """
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
        return gathered(local, self.trainer.world_size)

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
        """Within the block, make torch's random numbers depend on the seed and on ``purpose``
        alone.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(
                int(np.random.SeedSequence([self.seed, *purpose]).generate_state(1)[0])
            )
            yield

    def _summed(self, value: Tensor) -> Tensor:
        if self.trainer.world_size > 1:
            value = cast(Tensor, self.trainer.strategy.reduce(value, reduce_op="sum"))
        return value

    # ------------------------------------------------------------------ what a run is refused for

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: data without images, an embedding cache, a limit on batches, which would cut
                off passes, a Trainer whose processes would not learn together, or batches of one
                image, which have no statistics.
        """
        name = type(self).__name__
        if not isinstance(self.data.source.train, ImageSet):
            raise UsageError(
                f"{name} trains a network on images, but --data.source {self.data.source_name} has"
                " none"
            )
        if self.data.cache_folder is not None:
            raise UsageError(
                f"--data.cache keeps what a frozen network computes, but {name} trains it: set it"
                " false"
            )
        if stage == "fit":
            check_trainer(self.trainer)
            if self.trainer.limit_train_batches != 1.0:
                raise UsageError(
                    "a limit on training batches would cut off whole passes: use fewer"
                    " --model.epochs"
                )
            if (
                self.options["batch_statistics"] == "learned"
                and self.data.batch_size < 2
            ):
                raise UsageError(
                    "learned batch statistics need two images in each process: set"
                    " --data.batch_size to 2 or more, or --model.batch_statistics fixed"
                )

    def on_fit_start(self) -> None:
        """Refuse a run whose classes the exemplars cannot cover before anything is learned."""
        super().on_fit_start()
        if self.capacity:
            quota(
                self.capacity,
                self.per_class,
                len(self.data.stream(self.learned_tasks).classes()),
            )

    # ------------------------------------------------------------------ the steps of a task

    @property
    def images_per_step(self) -> int:
        """Number of images in a step over all processes, at most."""
        return int(self.data.batch_size * self.trainer.world_size)

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the task's new images in each of its steps, without the steps that are already
        taken.

        No batch comes of a step without new images: it is taken with the one before it. With
            exemplars there is one
        pass more, to embed the images that may become some.
        """
        rows = self.kept_rows(rows, task)
        steps = [step.rows for step in self.steps(rows, task)[self._offset :]]
        if self.capacity:
            return [*steps, rows]
        return steps

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """Return all steps of a task on new images ``rows``.

        Raises:
            CheckpointError: the run goes on inside the task, and its steps were others before.
        """
        key = (task, rows.tobytes(), len(self.exemplars))
        if self._plan is None or self._plan[0] != key:
            self.old = sum(len(names) for names in self.learned_tasks[:task])
            random = np.random.default_rng([self.seed, task])
            steps = plan_steps(
                rows, len(self.exemplars), self.phases(), self.images_per_step, random
            )
            self._refuse_empty_processes(steps, task)
            self._plan = (key, steps)
        stored = (self._resume or {}).get("steps")
        ours = len(self.planned())
        if stored not in (
            None,
            ours,
        ):  # as many steps divide the images in the same way
            raise CheckpointError(
                f"the checkpoint was written inside a task with {stored} steps, this run has"
                f" {ours}: use the same --data.batch_size, number of processes and images, or start"
                " a new experiment"
            )
        return self.planned()

    def planned(self) -> list[Step]:
        """Return the steps of the current task, in the order in which they are taken."""
        assert self._plan is not None
        return self._plan[1]

    def _refuse_empty_processes(self, steps: list[Step], task: int) -> None:
        """Refuse steps with fewer images than processes: losses over all processes would wait for
        the empty ones.

        Args:
            steps: that are planned.
            task: number of the task, from 0.

        Raises:
            UsageError: there is one.
        """
        world = self.trainer.world_size
        smallest = min(len(step.rows) + len(step.exemplars) for step in steps)
        if (
            0 < smallest < world
        ):  # no images at all are those after the last task, which Lightning asks for
            raise UsageError(
                f"task {task + 1} has a step of {smallest} images for {world} processes: "
                f"set --trainer.devices to at most {smallest}"
            )

    def train(self, mode: bool = True) -> IterativeModule:
        """Set training mode for what learns in the current phase if batch statistics learn, else
        evaluation mode.
        """
        super().train(False)
        self.training = mode
        if mode and self.options["batch_statistics"] == "learned":
            for module in self._learning:
                module.train()
        return self

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes; if the run was stopped inside this task, go on from
        there.
        """
        # Weights are changed in place, all other tensors are replaced.
        self._before = {k: v.clone() for k, v in self.state_dict().items()}
        self._snapshot = None
        self._candidates = []
        self.old = labels[0]
        self.classes = labels[-1] + 1
        if self.old:
            self.teacher = tuple(map(frozen, self.teachers()))
        else:
            self.teacher = ()
        with self.drawing(1, len(self.learned_tasks)):
            self.expand(len(names))
        self.to(self.device)
        self._counts = torch.zeros(self.classes, dtype=torch.int64, device=self.device)
        self._phase = -1
        self._done = 0
        if self._resume is not None:
            self._go_on(self._resume)
            self._resume = None

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take the next step of the task's plan, and those after it that have no new images."""
        images = cast(ImageBatch, batch)
        with self._advising_on_memory():
            if self._done >= len(self.planned()):
                self._end_learning()
                if len(images.label):
                    self._candidates.append(
                        (self.embed(images.image), images.label, images.key, images.row)
                    )
                self._done += 1
                return
            self._next_step(images)
            none = ImageBatch._make(part[:0] for part in images)
            while self._done < len(self.planned()) and not len(
                self.planned()[self._done].rows
            ):
                self._next_step(none)

    def _next_step(self, batch: ImageBatch) -> None:
        self._counts += torch.bincount(batch.label, minlength=len(self._counts))
        step = self.planned()[self._done]
        self._enter(step.phase)
        world = self.trainer.world_size
        rank = self.trainer.global_rank
        images = batch.image
        labels = batch.label
        keys = batch.key
        if len(step.exemplars):
            mine = np.array_split(step.exemplars, world)[world - 1 - rank]
            kept = self.exemplars.at(torch.from_numpy(mine))
            images, labels, keys = (
                torch.cat(pair)
                for pair in zip((images, labels, keys), kept, strict=True)
            )
        seed = (self.seed, len(self.learned_tasks), step.phase, step.epoch)
        self.learn(Examples(images, labels, keys, seed, self.prepared), step.progress)
        self._done += 1

    def _enter(self, number: int) -> None:
        """Begin phase ``number``, and all earlier ones that were not begun."""
        while self._phase < number:
            self._phase += 1
            with self.drawing(2, len(self.learned_tasks), self._phase):
                self.begin_phase()
            self.to(self.device)
            self._descend_on(self.learning_parts(), self.phases()[self._phase])

    def _descend_on(self, parts: list[nn.Module], phase: Phase) -> None:
        """Let only ``parts`` learn from here on."""
        self._learning = parts
        self._descended = phase
        self._descent = Descent(
            self, parts, phase.learning_rate, self.regime.momentum, phase.weight_decay
        )
        self.train()

    def learn(self, batch: Examples, progress: float) -> None:
        """Take one step of SGD on a batch.

        Args:
            batch: this process's part of the step.
            progress: share of the phase that is over; the schedule's rate depends on it.

        Raises:
            CifnetError: the loss is NaN or infinite.
        """
        assert self._descent is not None
        samples = len(batch.labels)
        total = int(self._summed(torch.tensor(samples, device=self.device)))
        if not total:
            return
        self.share = samples * self.trainer.world_size / total
        if samples:
            with self._statistics_for(samples):
                loss = self.loss(batch) * self.share
        else:
            loss = sum(
                (p.sum() * 0 for p in self._descent.weights),
                torch.zeros((), device=self.device),
            )
        value = self._descent.step(loss, self.regime.factor(progress, self.first))
        if not math.isfinite(value):
            raise self._diverged(f"the loss is {value}")

    @contextmanager
    def _statistics_for(self, samples: int) -> Iterator[None]:
        """Within the block, let a single image be normalised by the running statistics: it has none
        of its own.
        """
        if samples > 1:
            yield
            return
        for module in self._learning:
            module.eval()
        yield
        self.train()

    @contextmanager
    def _advising_on_memory(self) -> Iterator[None]:
        """Within the block, say what to do when the GPU's memory is full.

        Raises:
            CifnetError: it is.
        """
        try:
            yield
        except torch.cuda.OutOfMemoryError as error:
            size = self.data.batch_size
            raise CifnetError(
                f"the GPU's memory is full: set a smaller --data.batch_size (now {size})"
            ) from error

    def _diverged(self, quantity: str) -> CifnetError:
        assert self._descended is not None
        return CifnetError(
            f"{quantity} in task {len(self.learned_tasks)}: the learning rate"
            f" {self._descended.learning_rate:g} is too high, set a lower"
            f" --model.{self._descended.rate_option}"
        )

    def _refuse_divergence(self) -> None:
        """Check the weights; CifnetError if they are not finite, which names the rate of the last
        phase.
        """
        if not all(torch.isfinite(weights).all() for weights in self.parameters()):
            raise self._diverged("weights are not finite")

    def _end_learning(self) -> None:
        """Correct the network after all steps of the task; it does not change afterwards but by
        ``tune``.
        """
        if self._snapshot is not None:
            return
        self._snapshot = (
            self._position()
        )  # from which the rest of the task is computed again
        self._learning = []
        self.train()
        with torch.no_grad():
            self.after_learning()
        self._refuse_divergence()

    def finish_task(self) -> None:
        """Check what was learned; choose the new exemplars, shrink the others, tune on all of them,
        and average them.

        Raises:
            DataError: a class of which no image could be learned.
            CifnetError: the last step led to weights that are NaN or infinite.
        """
        self._end_learning()
        counts = self._summed(self._counts.clone()).tolist()
        new = self.learned_tasks[-1]
        self.require_images(
            [
                name
                for name, count in zip(new, counts[self.old :], strict=True)
                if not count
            ]
        )
        self._descent = None
        self._offset = 0
        self._plan = None
        if self.capacity:
            self._choose_exemplars()
            with (
                self._advising_on_memory(),
                self.trainer.precision_plugin.train_step_context(),
            ):
                if self.old:
                    self.after_choosing()
                    self._refuse_divergence()
                parts = torch.split(self.exemplars.image, self.data.batch_size)
                self.exemplars.average(
                    torch.cat([self.embed(images) for images in parts])
                )
            self._descent = None
            self._candidates = []
        self._snapshot = None

    # ------------------------------------------------------------------ exemplars

    def _choose_exemplars(self) -> None:
        """Choose the exemplars of the new classes, the same in all processes."""
        per_class = quota(self.room(), self.per_class, self.classes)
        self.exemplars.shrink(per_class, self.old)
        local = [tuple(batch.cpu() for batch in parts) for parts in self._candidates]
        everything = [batch for process in of_all_processes(local) for batch in process]
        z, y, key, row = (torch.cat(parts) for parts in zip(*everything, strict=True))
        for label in range(self.old, self.classes):
            mine = (y == label).nonzero().flatten()
            mine = mine[key[mine].argsort()]
            chosen = mine[
                select_herding(
                    functional.normalize(z[mine], dim=1), key[mine], 0, per_class
                )
            ]
            self.exemplars.add(self._squares(row[chosen]), label, key[chosen])

    def _squares(self, rows: Tensor) -> Tensor:
        """Decode training images again: (n, 3, s, s) uint8; all images of a task need not fit into
        memory.
        """
        size, crop_ratio = self.data.image_shape(self.backbone.preprocessing)
        images = self.data.source.train
        assert isinstance(images, ImageSet)
        squares = np.stack(
            [images.image(row).square(size, crop_ratio) for row in rows.tolist()]
        )
        return torch.from_numpy(squares).permute(0, 3, 1, 2)

    # ------------------------------------------------------------------ prediction

    def embed(self, images: Tensor) -> Tensor:
        """Return (n, d) float32 embeddings of uint8 images (n, 3, s, s), without gradients."""
        with torch.no_grad():
            return self.features(self.normalised(images)).float()

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, s, s)."""
        return self._answers(self.embed(images), self.prediction)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch."""
        return cast(Tensor, self(cast(ImageBatch, batch).image))

    def probabilities_by_classifier(
        self, batch: Batch
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the probabilities of ``prediction``, and those of each of ``classifiers``."""
        if not self.classifiers:
            return super().probabilities_by_classifier(batch)
        z = self.embed(cast(ImageBatch, batch).image)
        found = {name: self._answers(z, name) for name in self.classifiers}
        return found[self.prediction], found

    def _answers(self, z: Tensor, way: str) -> Tensor:
        """Return (n, C) float64 probabilities of embeddings (n, d)."""
        if way == "classifier":
            with torch.no_grad():
                return self.logits(z).double().softmax(dim=1)
        return self.exemplars.answers(z)

    def validation_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        """Count a batch.

        Returns:
            Its probabilities (n, C); None if it is empty.

        Raises:
            CifnetError: they are not finite, or the GPU's memory is full.
        """
        with self._advising_on_memory():
            probabilities = super().validation_step(batch, batch_idx)
        if (
            self.trainer.state.fn == "fit"
            and probabilities is not None
            and not probabilities.isfinite().all()
        ):
            raise self._diverged("the scores are not finite")
        return probabilities

    test_step = validation_step

    # ------------------------------------------------------------------ what is written of the
    # module

    def learned_model(self) -> Classifier:
        """Return what was learned as a model: the network, frozen, and what answers as
        ``prediction`` says.

        A classifier that is not linear (PODNet, CREATE) is replaced by the nearest mean of
        exemplars.
        """
        held = self.exemplars
        images = torch.split(held.image, self.data.batch_size)
        if len(held):
            z = torch.cat([self.embed(part) for part in images])
        else:
            z = held.mean
        linear = self.output_layer if self.prediction == "classifier" else None
        linear = linear if isinstance(linear, nn.Linear) else None
        backbone = frozen_backbone(*self.learned_network(), self.backbone, self.embed)
        return learned_model(self, backbone, linear, (z, held.label, held.key))

    def on_train_end(self) -> None:
        """Store the model of a run that has learned all its tasks beside the checkpoints."""
        folder = run_folder(self.trainer)
        if folder is None or self.tasks_finished < (self.trainer.max_epochs or 0):
            return
        try:
            model = self.learned_model()
        except (
            CifnetError
        ) as error:  # of a method from outside: its figures count all the same
            rank_zero_warn(f"what was learned is not stored as a model: {error}")
            return
        if self.trainer.is_global_zero:
            model.save(folder / COMPLETE, overwrite=True)

    def settings(self) -> dict[str, Any]:
        """Return everything that the weights and the exemplars depend on."""
        return {**super().settings(), "backbone": self._pretrained, **self.options}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the method; the parameters are those of
        :meth:`extractors`.
        """
        parameters = sum(
            p.numel() for part in self.extractors() for p in part.parameters()
        )
        counts = {"backbone_params": parameters, "network_params": self._network_params}
        return {**super().describe(), "preset": self.preset, **counts}

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: weights, pixels of exemplars ("buffer"), and their
        means.
        """
        elements = super().state_elements()
        if self.capacity:
            elements |= {
                "buffer": self.exemplars.image.numel(),
                "means": self.exemplars.mean.numel(),
            }
        return elements

    def bytes_per_element(self, component: str) -> int:
        """Return the bytes of a weight, or of a pixel's channel."""
        if component == "buffer":
            return 1
        return 4

    # ------------------------------------------------------------------ resuming

    @property
    def resumes_inside_task(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on
        there.
        """
        return self._resume is not None

    @property
    def can_resume_inside_task(self) -> bool:
        """Whether a run can go on inside the task from a checkpoint that is written after this
        batch.
        """
        return True

    def abort_task(self, labels: list[int]) -> None:
        """Go back to the weights before the task."""
        if self._before:
            self._restructure([len(task) for task in self.learned_tasks])
            super().load_state_dict(self._before)
            self._before = {}
            self._resume = None
            self._offset = 0
            self._plan = None

    def _position(self) -> dict[str, Any]:
        """Return the state of the task after ``_done`` steps: enough to go on with the same
        bits.
        """
        return {
            "step": self._done,
            "weights": {k: v.clone() for k, v in self.state_dict().items()},
            "descent": self._descent.state_dict()
            if self._descent is not None
            else None,
            "counts": self._counts.clone(),
            "steps": len(self.planned()),
        }

    def _go_on(self, position: dict[str, Any]) -> None:
        """Continue the task from a position; the network must have its structure already."""
        self._done = self._offset = position["step"]
        self._counts = position["counts"].to(self.device)
        if self._done:
            self._enter(self.planned()[self._done - 1].phase)
            self.load_state_dict(position["weights"])
            assert self._descent is not None
            self._descent.load_state_dict(position["descent"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the weights from before the task and the position inside it, while a task is under
        way.
        """
        super().on_save_checkpoint(checkpoint)
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = dict(self._before)
            checkpoint["position"] = self._snapshot or self._position()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for the classes that the checkpoint's weights know.

        Raises:
            CheckpointError: see :class:`cifnet_pl.learning.task_module.TaskModule`.
        """
        super().on_load_checkpoint(checkpoint)
        self._before = {}
        self._plan = None
        self._resume = checkpoint.get("position") if self._under_way else None
        self._offset = self._resume["step"] if self._resume else 0
        self._restructure(
            [len(task) for task in self.learned_tasks[: self.tasks_finished]]
        )

    def _restructure(self, sizes: list[int]) -> None:
        """Build the structure of a network that has finished some tasks.

        Args:
            sizes: number of classes of each task.
        """
        self.clear()
        with self.drawing(3):
            self.rebuild(sizes)
        self.to(self.device)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load all weights.

        Raises:
            CheckpointError: they do not fit the classes that the checkpoint names.
        """
        with explained(CheckpointError, "the checkpoint does not fit the network"):
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
