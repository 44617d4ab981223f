"""iCaRL: replay of exemplars, distillation, nearest mean of exemplars (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cifnet_pl.buffer import select_herding
from cifnet_pl.data.image_sets import ImageSet
from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.iterative.base import IterativeModule
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.growing import GrowingModule


class ExemplarSet(GrowingModule):
    """Images of past classes, best first within each class, and the mean embedding of each class.

    Buffers:
        image: (n, 3, s, s) uint8; label: (n,) int64; mean: (C, d) float32, each row of length 1.
    """

    image: Tensor
    label: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("image", torch.zeros(0, 3, 0, 0, dtype=torch.uint8))
        self.register_buffer("label", torch.zeros(0, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(0, 0))

    def __len__(self) -> int:
        return len(self.label)

    def shrink(self, quota: int) -> None:
        """Keep the first ``quota`` exemplars of each class (the paper's algorithm 5)."""
        rows = [(self.label == label).nonzero().flatten()[:quota] for label in torch.unique(self.label)]
        if rows:
            kept = torch.cat(rows)
            self.image, self.label = self.image[kept], self.label[kept]

    def add(self, image: Tensor, label: int) -> None:
        """Take in the exemplars (n, 3, s, s) of a new class, best first."""
        image = image.to(self.label.device)
        self.image = torch.cat([self.image, image]) if len(self) else image
        self.label = torch.cat([self.label, self.label.new_full((len(image),), label)])

    def average(self, z: Tensor) -> None:
        """Set the means from the exemplars' embeddings (n, d): ``μ_y = Σ φ(p)`` over y's, scaled to length 1."""
        z = functional.normalize(z.float(), dim=1)
        sums = z.new_zeros(int(self.label.max()) + 1, z.shape[1]).index_add_(0, self.label, z)
        self.mean = functional.normalize(sums, dim=1)


class ICaRLModule(IterativeModule):
    """iCaRL; numbers of algorithms are the paper's.

    * Loss (algorithm 3): binary cross-entropy of ``g_y = sigmoid(score_y)``, summed over classes, averaged over images;
      the targets of old classes are the outputs ``q_y`` that the network gave before the task, those of new classes
      are one-hot. In each pass every new image and every exemplar is seen once, both in the same proportion in each
      step. As in the paper, q is computed once for each image, of the image as it is.
    * Exemplars (algorithms 4 and 5): ``⌊exemplars / classes seen⌋`` images of each class by herding, on the embeddings
      of the network that has learned the class.
    * Prediction (algorithm 1): the class whose mean of exemplars μ_y is nearest to φ(x), all of length 1.
      Probabilities are the softmax of ``−‖φ(x) − μ_y‖²``.

    A task is read twice more than ``epochs`` says: once before for q (not for the first task), once after for herding.

    Args:
        exemplars: number of images that are kept in all.
        options: of :class:`IterativeModule`.
    """

    def __init__(self, exemplars: int = 2000, **options: Any):
        super().__init__(**options)
        if exemplars < 1:
            raise UsageError(f"exemplars is {exemplars}, expected at least 1")
        self.capacity = exemplars
        self.exemplars = ExemplarSet()
        self._features: list[tuple[Tensor, ...]] = []

    def on_fit_start(self) -> None:
        """Refuse a run whose classes the exemplars cannot cover before anything is learned."""
        super().on_fit_start()
        classes = len(self.data.stream(self.learned_tasks).classes())
        if self.capacity < classes:
            raise UsageError(
                f"{self.capacity} exemplars cannot cover {classes} classes: set --model.exemplars to at least {classes}"
            )

    # ------------------------------------------------------------------ learning

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """One pass for the old network's outputs where there is one, ``epochs`` to learn, one for herding."""
        return [*([rows] if task else []), *super().passes(rows, task), rows]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Compute what the network says of the exemplars before it changes."""
        super().begin_task(names, labels)
        self.old, self._features = labels[0], []
        self._outputs = torch.zeros(len(self.data.source.train) if self.old else 0, self.old, device=self.device)
        count = len(self.exemplars)
        if count:
            self._exemplar_outputs = self._old_outputs(self.exemplars.image)
        order = [self.random.permutation(count) for _ in range(self.epochs)]
        self._replay = torch.from_numpy(np.concatenate(order)).to(self.device)

    def _old_outputs(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return self.scores(self.embed(images)).float()[:, : self.old].sigmoid()

    def learn(self, batch: Batch, batch_idx: int) -> None:
        """Do what the pass that the batch belongs to is for."""
        image = cast(Any, batch).image
        step = batch_idx - (self.steps_per_pass if self.old else 0)
        steps = self.epochs * self.steps_per_pass
        if step < 0:
            self._outputs[batch.row] = self._old_outputs(image)
        elif step < steps:
            replayed = self._replay[len(self._replay) * step // steps : len(self._replay) * (step + 1) // steps]
            self._descend(image, batch.label, batch.row, replayed)
        else:
            self._features.append((self.embed(image), batch.label, batch.key, batch.row))

    def _descend(self, image: Tensor, label: Tensor, row: Tensor, replayed: Tensor) -> None:
        """A step on new images (n, 3, s, s) and the exemplars at the positions ``replayed``."""
        targets = self._outputs[row] if self.old else self._outputs.new_zeros(len(row), 0)
        if len(replayed):
            image = torch.cat([image, self.exemplars.image[replayed]])
            label = torch.cat([label, self.exemplars.label[replayed]])
            targets = torch.cat([targets, self._exemplar_outputs[replayed]])
        new = functional.one_hot(label, len(self.class_names))[:, self.old :]
        scores = self.scores(self.backbone.embed(self.augment(image)))
        loss = functional.binary_cross_entropy_with_logits(
            scores.float(), torch.cat([targets, new.to(targets)], dim=1), reduction="sum"
        )
        self.descend(loss / len(label))

    def finish_task(self) -> None:
        """Choose the exemplars of the new classes, shrink the others, and average all of them."""
        super().finish_task()
        quota = self.capacity // len(self.class_names)
        self.exemplars.shrink(quota)
        z, y, key, row = (torch.cat(parts) for parts in zip(*self._features, strict=True))
        for label in range(self.old, len(self.class_names)):
            own = (y == label).nonzero().flatten()
            own = own[key[own].argsort()]
            best = select_herding(z[own], key[own], self.seed, quota)
            self.exemplars.add(self._squares(row[own[best]]), label)
        self.exemplars.average(self.embed(self.exemplars.image))
        self._features, self._outputs, self._replay = [], self._outputs[:0], self._replay[:0]

    def _squares(self, rows: Tensor) -> Tensor:
        """(n, 3, s, s) uint8 training images; decoded again, as a task's images need not fit into memory."""
        size, crop_ratio = self.data.image_shape(self.backbone.preprocessing)
        images = self.data.source.train
        assert isinstance(images, ImageSet)
        squares = np.stack([images.square(row, size, crop_ratio) for row in rows.tolist()])
        return torch.from_numpy(squares).permute(0, 3, 1, 2)

    # ------------------------------------------------------------------ prediction

    def forward(self, images: Tensor) -> Tensor:
        """(n, C) float64 probabilities of uint8 images (n, 3, s, s) by the nearest mean of exemplars."""
        with torch.no_grad():
            z = functional.normalize(self.backbone.embed(images), dim=1)
            # Between vectors of length 1, −‖φ − μ‖² is 2φ·μ − 2.
            return (2 * z.double() @ self.exemplars.mean.double().T).softmax(dim=1)

    def state_elements(self) -> dict[str, int]:
        """Numbers kept between tasks: weights, pixels of exemplars ("buffer"), and their means."""
        kept = {"buffer": self.exemplars.image.numel(), "means": self.exemplars.mean.numel()}
        return {**super().state_elements(), **kept}

    @property
    def bytes_per_buffer_element(self) -> int:
        """Bytes of a pixel's channel."""
        return 1

    def settings(self) -> dict[str, Any]:
        """Everything that the weights and the exemplars depend on."""
        return {**super().settings(), "exemplars": self.capacity}
