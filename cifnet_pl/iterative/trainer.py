"""The trainer of all trained methods: phases of epochs, exemplars and exact resuming.

A method overrides the methods under "for subclasses to override"; the rest is the same for all.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from pydantic import ValidationError
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones import DEFAULT_BACKBONE, build_backbone
from cifnet_pl.backbones.structures import grown
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.iterative.augmentation import Augmentation, Policy
from cifnet_pl.iterative.descent import (
    BatchStatistics,
    Descent,
    Phase,
    Processes,
    Regime,
    Schedule,
    Step,
    StepBatch,
    plan_steps,
)
from cifnet_pl.iterative.exemplars import (
    Candidates,
    ExemplarSet,
    Prediction,
    quota,
)
from cifnet_pl.iterative.learned import learned_model
from cifnet_pl.iterative.losses import align_weights
from cifnet_pl.learning.run_record import run_folder
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    check_count,
    check_that,
    explained,
    explaining_full_memory,
    first_mistake,
    no_images,
)
from cifnet_pl.utilities.growing_tensors import float64_device
from cifnet_pl.utilities.processes import of_all_processes
from cifnet_pl.utilities.run_folders import COMPLETE

TUNING_EPOCH = 1000
"""Number that stands for balanced fine-tuning in the seed of its augmentation."""


class IterativeModule(TaskModule):
    """A network that learns each task by SGD, in one or more phases of several epochs.

    A task is one epoch of Lightning: the data module delivers its images as often as the phases
    need them, each time in another order. Every phase has an optimizer and a schedule of its own.
    Results depend on the seed, the task and the images alone; a run that was stopped inside a task
    goes on at its last checkpoint with the same bits. With several processes each step's batch is
    divided among them and gradients are averaged.

    Exemplars are uint8 images as the data module prepares them. Those of a class are selected once,
    after its task, best first, and their number falls as classes come (iCaRL, algorithms 4 and 5).
    A task is read once more than its epochs say, for the embeddings that exemplars are selected by.
    There are two classifiers, both evaluated: the network's own, and the nearest mean of exemplars
    (algorithm 1), whose probabilities are the softmax of ``−‖φ(x) − μ_y‖²`` at length 1.
    ``prediction`` says which one counts.

    Options with two values are for the first task and for all later ones.

    Args:
        backbone: name of the network, see :mod:`cifnet_pl.backbones`; random:resnet32_cifar begins
            at random weights.
        architecture: torchvision model name, resnet32_cifar or resnet18_cifar, for backbone
            ``file:…``.
        download: whether missing weights may be downloaded.
        epochs: passes over the images of a task, or two numbers.
        learning_rate: of SGD at the beginning of a task, or two. With fixed batch statistics it
            must be small: for EfficientNet-Lite0 at 128 pixels 0.001 was best on held-out images,
            and 0.01 did not converge.
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
        crop_padding: pixels of zeros around an image, from which a random square of the old size is
            cropped.
        brightness, contrast, saturation: colour jitter, see :class:`Augmentation`.
        autoaugment: "cifar10" or "imagenet", the learned policy of AutoAugment for these sets, or
            null.
        cutout: side of a black square at a random place, as a share of the image's side; 0 for
            none.
        preset: name of these settings, for reports.
        seed: of weights, orders and augmentation; on the command line, ``--seed_everything``.
        exemplars: number of exemplars in all; 0 for none.
        exemplars_per_class: number of exemplars of each class instead, or null.
        prediction: "classifier" or "nearest_mean"; a checkpoint can be validated with either.

    Attributes:
        network: the network, without its classifier.
        width: width d of its embeddings.
        n_classes: number of classes, those of the current task included.
        old_classes: number of classes of earlier tasks.
        regime: how long and how fast the network learns.
        augmentation: random changes of images.
        options: what weights and exemplars depend on, by name; a method adds its own.
        teacher: frozen copies of ``teachers()`` from before the task; no submodules, as they follow
            from the weights before the task.
        processes: sums over all processes.
        steps: of the current task, in the order in which they are taken.
        steps_done: number of steps taken, in this run and before it.
        parts: modules that learn now.
        phase_number: number of the current phase in the task, from 0; −1 before the first.
        current_phase: its name.
        descent: SGD of the current or the last phase.
        before: weights from before the open task, which a checkpoint stores; empty before the
            first.
        position: weights, optimizer state and step at which the next task goes on, and those after
            the last step while a task is being finished, as the rest is computed again from there;
            None otherwise.
        learned_rows: (N,) bool, which training images this process, or one before, has learned.
        compares_processes: whether the loss compares the images of all processes, so that a step
            is left out if one of them has none.
    """

    averages_gradients = True
    compares_processes = False
    can_resume_inside_task = True
    classifiers: tuple[str, ...] = ("classifier", "nearest_mean")
    # Each task sets these anew.
    teacher: tuple[nn.Module, ...]
    steps: list[Step]
    steps_done: int
    phase_number: int
    current_phase: str
    descent: Descent
    _candidates: list[Candidates]

    def __init__(
        self,
        backbone: str = DEFAULT_BACKBONE,
        architecture: str | None = None,
        download: bool = False,
        epochs: int | list[int] = 10,
        learning_rate: float | list[float] = 0.001,
        momentum: float = 0.9,
        weight_decay: float | list[float] = 5e-4,
        schedule: Schedule = "cosine",
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
        self.parts: list[nn.Module] = []
        if milestones is None:
            given["milestones"] = [0.7, 0.9]
        names = (*Regime.model_fields, *Augmentation.model_fields)
        self.options: dict[str, Any] = {name: given[name] for name in names}
        with explained(UsageError, "", ValidationError, reason=first_mistake):
            self.regime = Regime(**self.options)
            self.augmentation = Augmentation(**self.options)
        if self.classifiers or prediction == "nearest_mean":
            check_count("exemplars", exemplars)
        self.epochs = self.regime.epochs[1]
        self.buffer_bytes = 1  # pixels
        self.seed = seed
        self.preset = preset
        self.capacity = exemplars
        self.per_class = exemplars_per_class
        self.prediction = prediction
        self._build = partial(
            build_backbone, backbone, architecture, download, engine="torch"
        )
        with self.seeded(0):
            self.backbone = self._build()
        trainable = not self.backbone.learnable_patches
        check_that(trainable, "backbone", backbone, "a network with gradients")
        self._pretrained_sha256 = self.backbone.sha256
        self._network_params = self.backbone.parameters_count
        self.network = self.backbone.network.requires_grad_(True)
        # The learner holds the weights, the backbone only says how images come in.
        self.backbone.network = nn.Identity()
        self.width = self.backbone.features
        self.classifier: nn.Linear | None = None
        self.exemplars = ExemplarSet()
        self.old_classes = 0
        self.n_classes = 0
        self.processes = Processes(self)
        self.before: dict[str, Tensor] = {}
        self.learned_rows = torch.zeros(0, dtype=torch.bool)

    # ------------------------------------------------------------------ for subclasses to override

    def expand(self, classes: int) -> None:
        """Add what a task needs, by default outputs; torch's seed is set before.

        Args:
            classes: number of new classes.
        """
        self.classifier = grown(self.classifier, self.width, self.n_classes)

    @property
    def output_layer(self) -> nn.Module:
        """The network's classifier, once there are classes."""
        assert self.classifier is not None
        return self.classifier

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) embeddings of normalised images, by default of ``learned_network()``."""
        _, network = self.learned_network()
        z: Tensor = network(x)
        return z

    def logits(self, z: Tensor) -> Tensor:
        """Return (n, C) float32 scores of embeddings (n, d), column c for label c."""
        scores: Tensor = self.output_layer(z)
        return scores.float()

    def loss(self, batch: StepBatch) -> Tensor:
        """Return the mean loss over a process's part of a step, by default the cross-entropy."""
        scores = self.logits(self.features(batch.inputs()))
        return functional.cross_entropy(scores, batch.labels)

    def learning_parts(self) -> list[nn.Module | None]:
        """Return the modules that learn in the current phase, by default all; None is none."""
        return [self.network, self.output_layer]

    def teachers(self) -> list[nn.Module]:
        """Return the modules that a task needs as they were before it, by default none.

        ``teacher`` holds frozen copies of them during the task.
        """
        return []

    def phases(self) -> list[Phase]:
        """Return the phases of the current task."""
        return [self.phase("learn")]

    def begin_phase(self) -> None:
        """Prepare for the current phase (``current_phase``)."""

    def after_learning(self) -> None:
        """Correct the network once all phases are over; called without gradients."""

    def after_exemplar_selection(self) -> None:
        """Tune the network on balanced classes; called from the second task on."""

    def select_rows(self, rows: np.ndarray, task: int) -> np.ndarray:
        """Return the images of a task that are learned, by default all.

        Args:
            rows: (n,) positions of the task's training images.
            task: number of the task, from 0.
        """
        return rows

    def exemplar_capacity(self) -> int:
        """Return the number of exemplars in all for the task that follows."""
        return self.capacity

    def rebuild(self, sizes: list[int]) -> None:
        """Build the structure of a network that has finished some tasks, for weights to be loaded.

        Args:
            sizes: number of classes of each task.
        """
        for size in sizes:
            self.old_classes = self.n_classes
            self.n_classes += size
            self.expand(size)

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the network that embeds, after the name of its structure.

        See :mod:`cifnet_pl.backbones.structures`.
        """
        return "plain", self.network

    def counted_module(self) -> nn.Module:
        """Return the module whose parameters reports count."""
        return self.learned_network()[1]

    # ------------------------------------------------------------------ for subclasses to use

    @property
    def is_first_task(self) -> bool:
        """Whether the current task is the first."""
        return not self.old_classes

    def phase(self, name: str, share: float = 1.0) -> Phase:
        """Return a phase of the current task, with the task's learning rate and weight decay.

        Args:
            name: of the phase.
            share: share of the task's epochs.
        """
        later = not self.is_first_task
        epochs = max(1, round(share * self.regime.epochs[later]))
        rate = self.regime.learning_rate[later]
        return Phase(name, epochs, rate, self.regime.weight_decay[later])

    def tune(self, share: float, rate: float) -> None:
        """Learn from exemplars alone (balanced fine-tuning), with the parts that learn.

        The candidates are embedded again then, and the exemplars of new classes selected anew.

        Args:
            share: share of the task's epochs; 0 for none.
            rate: learning rate.
        """
        if not share:
            return
        task = len(self.learned_tasks)
        phase = replace(self.phase("tune", share), learning_rate=rate)
        positions = np.arange(len(self.exemplars))
        steps = self._planned(positions, 0, [phase], task - 1, [self.seed, task, 4])
        self.begin_descent(phase)
        for step in steps:
            own = np.array_split(step.rows, self.processes.count)[self.global_rank]
            samples = self.exemplars.at(torch.from_numpy(own))
            self._learn_from(samples, TUNING_EPOCH, step)
        self.pause()
        for i, candidates in enumerate(self._candidates):
            images = self.decode(candidates.row)
            z = self.embed(images.to(self.device))
            self._candidates[i] = candidates._replace(z=z.cpu())
        self._select_exemplars()

    def old_scores(self, x: Tensor) -> Tensor:
        """Return (n, C_old) float32 scores from before the task, without gradients.

        The ``teachers`` must be a network and its classifier, or what else follows it.

        Args:
            x: (n, 3, s, s) normalised images.
        """
        network, classifier = self.teacher
        with torch.no_grad():
            scores: Tensor = classifier(network(x)).float()
        return scores

    def align(self) -> None:
        """Scale the weights of new classes to the mean norm of the old ones (WA, eq. 10)."""
        if self.old_classes and self.classifier is not None:
            new = self.n_classes - self.old_classes
            weight = self.classifier.weight
            weight.copy_(align_weights(weight, new))

    def fresh_network(self) -> nn.Module:
        """Return a network as it was before the first task; random weights are drawn anew."""
        return self._build().network.requires_grad_(True)

    def decode(self, rows: Tensor) -> Tensor:
        """Return (n, 3, s, s) uint8 training images at positions (n,).

        They are decoded again, as all images of a task need not fit into memory.
        """
        shape = self.data.image_shape
        images = self.data.source.train
        squares = [images.image(row).square(*shape) for row in rows.tolist()]
        pixels = torch.from_numpy(np.stack(squares))
        return pixels.permute(0, 3, 1, 2)

    def labels_of(self, rows: np.ndarray) -> Tensor:
        """Return (n,) int64 labels of the training images at positions (n,)."""
        labels = self.data.labels(self.class_names)
        return labels[self.data.source.train.labels[rows]]

    @contextmanager
    def seeded(self, *purpose: int) -> Iterator[None]:
        """Within the block, torch's random numbers depend on the seed and on ``purpose`` alone."""
        (seed,) = np.random.SeedSequence([self.seed, *purpose]).generate_state(1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(seed))
            yield

    # ------------------------------------------------------------------ checks before a run

    def setup(self, stage: str) -> None:
        """Refuse what only a frozen network allows.

        Raises:
            UsageError: data without images, an embedding cache, a limit on batches, which would cut
                off passes, a Trainer whose processes would not learn together, a device without
                float64, or batches of one image, which have no statistics.
        """
        super().setup(stage)
        name = type(self).__name__
        if not self.data.source.train.are_images:
            raise UsageError(
                f"{name} trains a network on images, but --data.source {self.data.source_name} has"
                " none"
            )
        if not len(self.learned_rows):
            self.learned_rows = torch.zeros(
                len(self.data.source.train), dtype=torch.bool
            )
        if self.data.cache_folder is not None:
            raise UsageError(
                f"--data.cache stores embeddings of a frozen network, but {name} trains it: set it"
                " false"
            )
        if stage != "fit":
            return
        device = self.trainer.strategy.root_device
        if float64_device(device) != device:
            raise UsageError(
                f"{name} needs float64, which {device.type} has not: --trainer.accelerator cpu"
            )
        if self.trainer.limit_train_batches != 1.0:
            raise UsageError(
                "a limit on training batches would cut off whole passes: use fewer --model.epochs"
            )
        if self.options["batch_statistics"] == "learned" and self.data.batch_size < 2:
            raise UsageError(
                "learned batch statistics need two images in each process: set"
                " --data.batch_size to 2 or more, or --model.batch_statistics fixed"
            )

    def on_fit_start(self) -> None:
        """Refuse a run with more classes than exemplars, and store what a killed run has not."""
        super().on_fit_start()
        if self.capacity:
            classes = self.data.plan.classes
            quota(self.capacity, self.per_class, len(classes))
        folder = run_folder(self.trainer)
        if self.is_complete and folder and not (folder / COMPLETE).is_dir():
            # Without a task left, Lightning ends no training.
            self.on_train_end()

    # ------------------------------------------------------------------ a task

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the new images of each step that is left.

        No batch comes of a step without new images: it is taken with the one before it. With
        exemplars there is one pass more, which embeds the candidates.
        """
        rows = self.select_rows(rows, task)
        # The phases of a task depend on it.
        self.old_classes = sum(self.task_sizes[:task])
        self.steps = self._planned(
            rows, len(self.exemplars), self.phases(), task, [self.seed, task]
        )
        steps_taken = 0
        if self.position is not None:
            steps_taken = self.position["step"]
            before = self.position["steps"]
            if before != len(self.steps):
                raise CheckpointError(
                    f"the checkpoint was written inside a task with {before} steps, this run has"
                    f" {len(self.steps)}: use the same --data.batch_size, number of processes and"
                    " images, or start a new experiment"
                )
        passes = [step.rows for step in self.steps[steps_taken:]]
        if self.capacity:
            passes.append(rows)
        # Without a batch, Lightning would end no task: after the last step one that is not learned.
        return passes or [rows[:1]]

    def _planned(
        self,
        rows: np.ndarray,
        exemplars: int,
        phases: Sequence[Phase],
        task: int,
        seed: list[int],
    ) -> list[Step]:
        """Return steps over all processes; see :func:`~cifnet_pl.iterative.descent.plan_steps`.

        Raises:
            UsageError: a step has too few images for a loss over all processes. A task without any
                is the one after the last, which Lightning asks for.
        """
        count = self.processes.count
        size = self.data.batch_size * count
        steps = plan_steps(rows, exemplars, phases, size, seed)
        smallest = min(len(step.rows) + len(step.exemplars) for step in steps)
        if 0 < smallest < count:
            raise UsageError(
                f"task {task + 1} has a step of {smallest} images for {count} processes: set"
                f" --trainer.devices to at most {smallest}"
            )
        return steps

    def begin_task(self) -> None:
        """Add the new classes; resume inside the task if the run was stopped there."""
        self.before = copy.deepcopy(self.state_dict())
        self._candidates = []
        new_classes = len(self.task.new)
        self.n_classes = len(self.class_names)
        self.old_classes = self.n_classes - new_classes
        if self.old_classes:
            copies = copy.deepcopy(self.teachers())
            self.teacher = tuple(part.requires_grad_(False).eval() for part in copies)
        with self.seeded(1, len(self.learned_tasks)):
            self.expand(new_classes)
        self.to(self.device)
        self.phase_number = -1
        self.steps_done = 0
        position = self.position
        if position is not None and position["step"]:
            self.steps_done = position["step"]
            self.enter_phase(self.steps[self.steps_done - 1].phase)
            self.load_state_dict(position["weights"])
            self.descent.load_state_dict(position["descent"])
        self.position = None

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """Take the next step of the plan, and those after it that have no new images.

        In the pass after all steps, embed images that may become exemplars.
        """
        images = cast(ImageBatch, batch)
        with explaining_full_memory(self.data.batch_size):
            if self.steps_done >= len(self.steps):
                self._end_learning()
                if len(images.label):
                    z = self.embed(images.image).cpu()
                    own = Candidates(z, images.label.cpu(), images.key, images.row)
                    self._candidates.append(own)
                return
            self._take_step(images)
            # No batch comes for a step that learns from exemplars alone.
            empty = ImageBatch._make([*(part[:0] for part in images[:4]), {}])
            for step in self.steps[self.steps_done :]:
                if len(step.rows):
                    return
                self._take_step(empty)

    def _take_step(self, batch: ImageBatch) -> None:
        """Learn from new images and from the exemplars of the next step."""
        self.learned_rows[batch.row] = True
        step = self.steps[self.steps_done]
        self.enter_phase(step.phase)
        key = batch.key.to(batch.label.device)  # content hashes come on the CPU
        samples = [batch.image, batch.label, key]
        if len(step.exemplars):
            parts = np.array_split(step.exemplars, self.processes.count)
            # Processes with fewer new images get more exemplars.
            own = parts[::-1][self.global_rank]
            exemplars = self.exemplars.at(torch.from_numpy(own))
            samples = [torch.cat(pair) for pair in zip(samples, exemplars, strict=True)]
        self._learn_from(samples, step.phase, step)
        self.steps_done += 1

    def _learn_from(self, samples: Iterable[Tensor], phase: int, step: Step) -> None:
        """Take a step of SGD on images of this process.

        Args:
            samples: the images, their labels and keys.
            phase: number of the phase in the seed of the augmentation.
            step: gives the epoch, and the share of the phase that is over.
        """
        task = len(self.learned_tasks)
        seed = (self.seed, task, phase, step.epoch)
        images, labels, keys = samples
        batch = StepBatch(images, labels, keys, seed, self)
        self.descent.step(batch, step.progress)

    def enter_phase(self, number: int) -> None:
        """Begin phase ``number``, and all earlier ones that were not begun."""
        while self.phase_number < number:
            self.phase_number += 1
            phase = self.phases()[self.phase_number]
            self.current_phase = phase.name
            with self.seeded(2, len(self.learned_tasks), self.phase_number):
                self.begin_phase()
            self.to(self.device)
            self.begin_descent(phase)

    def begin_descent(self, phase: Phase) -> None:
        """Let only ``learning_parts()`` learn from here on."""
        parts = [part for part in self.learning_parts() if part is not None]
        self.descent = Descent(self, parts, phase)
        self.parts = parts
        self.train()

    def pause(self) -> None:
        """Let nothing learn from here on."""
        self.parts = []
        self.train()

    def divergence(self, quantity: str) -> CifnetError:
        """Return the error of weights that diverge.

        Args:
            quantity: what is not finite, such as "the loss is nan".
        """
        rate = self.descent.phase.learning_rate
        return CifnetError(
            f"{quantity} in task {len(self.learned_tasks)}: the learning rate {rate:g} is too high,"
            " set a lower one"
        )

    def train(self, mode: bool = True) -> IterativeModule:
        """Set training mode for parts that learn, if batch statistics do; else evaluation mode."""
        super().train(False)
        self.training = mode
        if mode and self.options["batch_statistics"] == "learned":
            for module in self.parts:
                module.train()
        return self

    def _end_learning(self) -> None:
        """Correct the network after all steps of the task; afterwards only ``tune`` changes it."""
        if self.position is not None:  # it was stored already
            return
        self.position = self._current_position()
        self.pause()
        with torch.no_grad():
            self.after_learning()

    def finish_task(self) -> None:
        """Check what was learned; select exemplars, tune on them, and compute their means.

        Raises:
            DataError: a class of which no image could be learned.
        """
        self._end_learning()
        labels = self.labels_of(np.arange(len(self.learned_rows)))
        # A checkpoint of before names images of all classes, also of those that are to come.
        self.learned_rows = self._learned_by_all() & (labels >= 0)
        learned = labels[self.learned_rows]
        counts = learned.bincount(minlength=self.n_classes)[self.old_classes :]
        for name, count in zip(self.learned_tasks[-1], counts, strict=True):
            if not count:
                raise no_images(name)
        if self.capacity:
            self._select_exemplars()
            precision = self.trainer.precision_plugin.train_step_context()
            with explaining_full_memory(self.data.batch_size), precision:
                if self.old_classes:
                    self.after_exemplar_selection()
                self.exemplars.set_means(self.embed_exemplars())
            self._candidates = []
        self.position = None

    def _select_exemplars(self) -> None:
        """Select the exemplars of the new classes, the same in all processes."""
        per_class = quota(self.exemplar_capacity(), self.per_class, self.n_classes)
        self.exemplars.shrink(per_class, self.old_classes)
        batches = chain.from_iterable(of_all_processes(self._candidates))
        candidates = Candidates(*map(torch.cat, zip(*batches, strict=True)))
        chosen = candidates.select(per_class)
        self.exemplars.add(self.decode(chosen.row), chosen.label, chosen.key)

    # ------------------------------------------------------------------ prediction

    def embed(self, images: Tensor) -> Tensor:
        """Return (n, d) float32 embeddings of uint8 images (n, 3, s, s), without gradients."""
        with torch.no_grad():
            return self.features(self.backbone.normalised(images)).float()

    def embed_exemplars(self) -> Tensor:
        """Return (n, d) float32 embeddings of all exemplars."""
        if not len(self.exemplars):
            return self.exemplars.mean
        batches = torch.split(self.exemplars.image, self.data.batch_size)
        return torch.cat([self.embed(images) for images in batches])

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, s, s)."""
        return self.probabilities_of(self.embed(images), self.prediction)

    def probabilities(self, batch: Batch) -> Tensor:
        """Return the probabilities of an evaluation batch by ``prediction``.

        Raises:
            CifnetError: after a task of a run they are not finite.
        """
        z = self.embed(cast(ImageBatch, batch).image)
        names = self.classifiers or (self.prediction,)
        self.by_classifier = {name: self.probabilities_of(z, name) for name in names}
        probabilities = self.by_classifier[self.prediction]
        if self.trainer.state.fn == "fit" and not probabilities.isfinite().all():
            raise self.divergence("the scores are not finite")
        return probabilities

    def probabilities_of(self, z: Tensor, classifier: str) -> Tensor:
        """Return (n, C) float64 probabilities of embeddings.

        Args:
            z: (n, d) embeddings.
            classifier: "classifier" or "nearest_mean".
        """
        if classifier == "classifier":
            with torch.no_grad():
                return self.logits(z).double().softmax(dim=1)
        return self.exemplars.probabilities(z)

    # ------------------------------------------------------------------ what is stored

    def on_train_end(self) -> None:
        """Store the model of a run that has learned all its tasks beside the checkpoints."""
        folder = run_folder(self.trainer)
        if folder is None or not self.is_complete:
            return
        try:
            model = learned_model(self)
        except CifnetError as error:
            # A custom method whose network cannot be stored; its figures count all the same.
            rank_zero_warn(f"what was learned is not stored as a model: {error}")
            return
        model.save(folder / COMPLETE, overwrite=True)

    def settings(self) -> dict[str, Any]:
        """Return everything that weights and exemplars depend on."""
        return {
            **super().settings(),
            "backbone": self._pretrained_sha256,
            **self.options,
        }

    def describe(self) -> dict[str, Any]:
        """Return the method's part of ``summary.json``, with its number of parameters."""
        counted = self.counted_module().parameters()
        return {
            "preset": self.preset,
            "backbone_params": sum(p.numel() for p in counted),
            "network_params": self._network_params,
        }

    def state_elements(self) -> dict[str, int]:
        """Count the values that are kept between tasks: weights, pixels ("buffer"), means."""
        elements = super().state_elements()
        if self.capacity:
            elements["buffer"] = self.exemplars.image.numel()
            elements["means"] = self.exemplars.mean.numel()
        return elements

    # ------------------------------------------------------------------ checkpoints

    def abort_task(self) -> None:
        """Refuse to go on in a module that was interrupted.

        Raises:
            UsageError: it has learned a part of the task itself; that of a checkpoint has not.
        """
        if self.before:
            raise UsageError(
                "this module was interrupted inside a task: make a new one, and go on with it from"
                " a checkpoint (ckpt_path)"
            )

    def _learned_by_all(self) -> Tensor:
        """Return ``learned_rows`` of all processes."""
        counts = self.learned_rows.int().to(self.device)
        return self.processes.sum(counts).cpu() > 0

    def _current_position(self) -> dict[str, Any]:
        """Return the state from which training resumes after the present step."""
        descent = None
        if self.steps_done:
            descent = self.descent.state_dict()
        return {
            "step": self.steps_done,
            # Copies, as the optimizer changes them in place.
            "weights": copy.deepcopy(self.state_dict()),
            "descent": descent,
            "steps": len(self.steps),
        }

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the weights from before an open task, and the position inside it."""
        super().on_save_checkpoint(checkpoint)
        checkpoint["learned_rows"] = self._learned_by_all()
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = self.before
            checkpoint["position"] = self.position or self._current_position()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Build the structure for the checkpoint's weights, and take over its position.

        Raises:
            CheckpointError: see :class:`cifnet_pl.learning.task_module.TaskModule`.
        """
        super().on_load_checkpoint(checkpoint)
        every_row = torch.ones_like(self.learned_rows)
        self.learned_rows = checkpoint.get("learned_rows", every_row)
        if len(every_row) not in (0, len(self.learned_rows)):
            # Images came or went since: it is not known which were left out.
            self.learned_rows = every_row
        self.position = checkpoint.get("position")  # of an open task
        # The weights fit a module that has learned already only if it has the same structure.
        if not self.n_classes:
            with self.seeded(3):
                self.rebuild(self.task_sizes[: self.tasks_finished])
        self.to(self.device)
