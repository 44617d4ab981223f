"""Replay: exemplars of past classes are learned again with the images of each task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.buffer import select_herding
from cifnet_pl.data.loading import Batch, ImageBatch
from cifnet_pl.data.sets import ImageSet
from cifnet_pl.iterative.finetune import FinetuneModule
from cifnet_pl.iterative.trainer import Examples, Phase, plan_steps
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.growing_tensors import GrowingModule


class ExemplarSet(GrowingModule):
    """Images of past classes, best first within each class, and the mean embedding of each class.

    Buffers:
        image: (n, 3, s, s) uint8.
        label, key: (n,) int64.
        mean: (C, d) float32, each row of length 1.
    """

    image: Tensor
    label: Tensor
    key: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("image", torch.zeros(0, 3, 0, 0, dtype=torch.uint8))
        self.register_buffer("label", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("key", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(0, 0))

    def __len__(self) -> int:
        return len(self.label)

    def shrink(self, quota: int) -> None:
        """Keep the first ``quota`` exemplars of each class (iCaRL, algorithm 5)."""
        rows = [(self.label == label).nonzero().flatten()[:quota] for label in torch.unique(self.label)]
        if rows:
            kept = torch.cat(rows)
            self.image, self.label, self.key = self.image[kept], self.label[kept], self.key[kept]

    def add(self, image: Tensor, label: int, key: Tensor) -> None:
        """Append the exemplars of a new class.

        Args:
            image: (n, 3, s, s) uint8, best first.
            label: of the class.
            key: (n,) int64 identity of each image.
        """
        image, key = image.to(self.label.device), key.to(self.label.device)
        self.image = torch.cat([self.image, image]) if len(self) else image
        self.label = torch.cat([self.label, self.label.new_full((len(image),), label)])
        self.key = torch.cat([self.key, key])

    def average(self, z: Tensor) -> None:
        """Set the means from the exemplars' embeddings (n, d): ``μ_y = Σ φ(p)`` over y's, scaled to length 1."""
        z = functional.normalize(z.float(), dim=1)
        sums = z.new_zeros(int(self.label.max()) + 1, z.shape[1]).index_add_(0, self.label, z)
        self.mean = functional.normalize(sums, dim=1)


def quota(capacity: int, per_class: int | None, classes: int) -> int:
    """Return the number of exemplars of each class.

    Args:
        capacity: number of exemplars in all.
        per_class: number of each class instead, or None.
        classes: number of classes.

    Raises:
        UsageError: the capacity is smaller than the number of classes.
    """
    if per_class is not None:
        return per_class
    if capacity < classes:
        raise UsageError(
            f"{capacity} exemplars cannot cover {classes} classes: set --model.exemplars to at least {classes}"
        )
    return capacity // classes


Selection = Literal["herding", "random"]
Prediction = Literal["classifier", "nearest_mean"]


class ReplayModule(FinetuneModule):
    """Cross-entropy over all classes seen, on the images of the task and on exemplars of all earlier classes.

    Exemplars are uint8 images as the data module prepares them. Each class's are chosen once, after its task, best
    first, and fewer of them are kept as classes come (iCaRL, algorithms 4 and 5). A task is read once more than its
    epochs say, for the embeddings that they are chosen by. Prediction is the classifier's, or that of the nearest mean
    of exemplars (algorithm 1), whose probabilities are the softmax of ``−‖φ(x) − μ_y‖²`` at length 1. Both are
    evaluated; ``prediction`` says which of them counts.

    Args:
        exemplars: number of images that are kept in all.
        exemplars_per_class: number that is kept of each class instead, or null.
        selection: "herding" (the mean of the first m comes nearest to the class's mean) or "random".
        prediction: "classifier" or "nearest_mean"; a checkpoint can be validated with either.
        options: of :class:`IterativeModule`.
    """

    ways = ("classifier", "nearest_mean")

    def __init__(
        self,
        exemplars: int = 2000,
        exemplars_per_class: int | None = None,
        selection: Selection = "herding",
        prediction: Prediction = "classifier",
        **options: Any,
    ):
        super().__init__(**options)
        check_that(exemplars >= 1, "exemplars", exemplars, "at least 1")
        if exemplars_per_class is not None:
            check_that(exemplars_per_class >= 1, "exemplars_per_class", exemplars_per_class, "at least 1")
        check_choice("selection", selection, Selection)
        check_choice("prediction", prediction, Prediction)
        self.capacity, self.per_class = exemplars, exemplars_per_class
        self.selection, self.prediction = selection, prediction
        self.exemplars = ExemplarSet()
        self._features: list[tuple[Tensor, ...]] = []

    def on_fit_start(self) -> None:
        """Refuse a run whose classes the exemplars cannot cover before anything is learned."""
        super().on_fit_start()
        quota(self.capacity, self.per_class, len(self.data.stream(self.learned_tasks).classes()))

    # ------------------------------------------------------------------ learning

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order of the task's images, and one pass more to embed those that may become exemplars."""
        rows = self.kept_rows(rows, task)
        return [*super().passes(rows, task), rows]

    def kept_rows(self, rows: np.ndarray, task: int) -> np.ndarray:
        """Return the images of a task that are learned: all of them."""
        return rows

    def room(self) -> int:
        """Return the number of exemplars to keep in all for the task that follows."""
        return self.capacity

    def replayed(self) -> int:
        """Return the number of exemplars that are learned again in each pass."""
        return len(self.exemplars)

    def exemplar_examples(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images, labels and keys of the exemplars at ``positions``."""
        held = self.exemplars
        positions = positions.to(held.label.device)
        return held.image[positions], held.label[positions], held.key[positions]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes, without candidates for exemplars yet."""
        self._features = []
        super().begin_task(names, labels)

    def _next_step(self, batch: ImageBatch) -> None:
        if self._done < len(self.planned()):
            super()._next_step(batch)
        else:
            self.end_learning()
            if len(batch.label):
                self._features.append((self.embed(batch.image), batch.label, batch.key, batch.row))

    def finish_task(self) -> None:
        """Choose the exemplars of the new classes, shrink the others, tune on all of them, and average them."""
        super().finish_task()
        self._choose()
        with self.advising_on_memory(), self.trainer.precision_plugin.train_step_context():
            if self.old:
                self.after_choosing()
                self.refuse_divergence()
            self.exemplars.average(self._embedded())
        self._descent, self._learning = None, []
        self.train()

    def after_choosing(self) -> None:
        """Fine-tune the network on the same number of images of each class; called from the second task on."""

    def fixed_features(self, x: Tensor) -> Tensor:
        """Return (n, d) float32 embeddings of normalised images, without gradients."""
        with torch.no_grad():
            return self.features(x).float()

    def tune(self, phase: Phase, parts: list[nn.Module], loss: Callable[[Examples], Tensor]) -> None:
        """Learn from the exemplars alone (balanced fine-tuning).

        Args:
            phase: number of epochs, learning rate and weight decay.
            parts: modules that learn.
            loss: of a batch of exemplars.
        """
        world, rank = self.trainer.world_size, self.trainer.global_rank
        random = np.random.default_rng([self.seed, len(self.learned_tasks), 4])
        everything = np.arange(len(self.exemplars))
        steps = plan_steps(everything, 0, [phase], self.data.batch_size * world, random)
        self.refuse_empty_processes(steps, len(self.learned_tasks) - 1)
        self.descend_on(parts, phase)
        for number, step in enumerate(steps):
            mine = torch.from_numpy(np.array_split(step.rows, world)[rank])
            seed = (self.seed, len(self.learned_tasks), 1000, step.epoch)
            examples = Examples(*self.exemplar_examples(mine), seed, self.prepared)
            self.learn(examples, number / len(steps), loss)

    def _embedded(self) -> Tensor:
        parts = torch.split(self.exemplars.image, self.data.batch_size)
        return torch.cat([self.embed(images) for images in parts])

    def _choose(self) -> None:
        """Choose the exemplars of the new classes, the same in all processes."""
        per_class = quota(self.room(), self.per_class, self.classes)
        self.exemplars.shrink(per_class)
        local = [tuple(batch.cpu() for batch in parts) for parts in self._features]
        everything = [batch for process in of_all_processes(local) for batch in process]
        z, y, key, row = (torch.cat(parts) for parts in zip(*everything, strict=True))
        self._features = []
        for label in range(self.old, self.classes):
            mine = (y == label).nonzero().flatten()
            mine = mine[key[mine].argsort()]
            if self.selection == "herding":
                best = select_herding(functional.normalize(z[mine], dim=1), key[mine], self.seed, per_class)
            else:
                order = np.random.default_rng([self.seed, label, 5]).permutation(len(mine))
                best = torch.from_numpy(order[:per_class])
            chosen = mine[best]
            self.exemplars.add(self._squares(row[chosen]), label, key[chosen])

    def _squares(self, rows: Tensor) -> Tensor:
        """Decode training images again: (n, 3, s, s) uint8; all images of a task need not fit into memory."""
        size, crop_ratio = self.data.image_shape(self.backbone.preprocessing)
        images = self.data.source.train
        assert isinstance(images, ImageSet)
        squares = np.stack([images.photo(row).square(size, crop_ratio) for row in rows.tolist()])
        return torch.from_numpy(squares).permute(0, 3, 1, 2)

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of uint8 images (n, 3, s, s)."""
        return self._answers(self.embed(images), self.prediction)

    def probabilities_by_way(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the probabilities of ``prediction``, and those of the classifier and of the nearest mean."""
        z = self.embed(cast(ImageBatch, batch).image)
        found = {way: self._answers(z, way) for way in self.ways}
        return found[self.prediction], found

    def _answers(self, z: Tensor, way: str) -> Tensor:
        """Return (n, C) float64 probabilities of embeddings (n, d)."""
        if way == "classifier":
            with torch.no_grad():
                return self.logits(z).double().softmax(dim=1)
        z = functional.normalize(z, dim=1)
        # Between vectors of length 1, −‖φ − μ‖² is 2φ·μ − 2.
        return (2 * z.double() @ self.exemplars.mean.double().T).softmax(dim=1)

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: weights, pixels of exemplars ("buffer"), and their means."""
        kept = {"buffer": self.exemplars.image.numel(), "means": self.exemplars.mean.numel()}
        return {**super().state_elements(), **kept}

    @property
    def bytes_per_buffer_element(self) -> int:
        """Bytes of a pixel's channel."""
        return 1

    def settings(self) -> dict[str, Any]:
        """Return everything that the weights and the exemplars depend on."""
        settings = {"exemplars": self.capacity, "exemplars_per_class": self.per_class, "selection": self.selection}
        return {**super().settings(), **settings}

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        super().clear()
        self.exemplars = ExemplarSet()
