"""PODNet: pooled outputs distilled at every stage, a classifier of proxies (Douillard et al., ECCV 2020)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.iterative.descent import check_tuning
from cifnet_pl.iterative.losses import cosine_distance, nca, pod_factor, pooled_maps_distance
from cifnet_pl.iterative.networks import CosineClassifier, frozen, stages_of, with_maps
from cifnet_pl.iterative.trainer import Examples, IterativeModule
from cifnet_pl.utilities.errors import check_choice, check_that

Loss = Literal["nca", "softmax"]


class PODNetModule(IterativeModule):
    """PODNet; equations are the paper's.

    * Classifier (eq. 7): ``proxies`` vectors for each class, cosines weighted by their own softmax, a learned scale.
      Those of old classes stay as they are.
    * Loss: :func:`nca` (eq. 8; in the reference code the margin cancels), or cross-entropy, and from the second task
      on ``f·(spatial · POD-spatial + flat · POD-flat)`` (eqs. 5, 6) with ``f = √(all classes / new classes)``.
    * After each task but the first all of it is tuned on as many images of each class, by the same loss, for
      ``tuning`` of the epochs. That is the reference code's way; the paper tunes the classifier alone.

    Args:
        loss: "nca" or "softmax".
        proxies: number of proxies of each class.
        spatial: weight of the distance between pooled maps.
        flat: weight of the distance between embeddings.
        tuning: share of the epochs that balanced fine-tuning takes, or 0.
        tuning_rate: its learning rate.
        options: of :class:`IterativeModule`.
    """

    def __init__(
        self,
        loss: Loss = "nca",
        proxies: int = 10,
        spatial: float = 5.0,
        flat: float = 1.0,
        tuning: float = 0.125,
        tuning_rate: float = 0.005,
        **options: Any,
    ):
        super().__init__(**options)
        check_choice("loss", loss, Loss)
        check_that(proxies >= 1, "proxies", proxies, "at least 1")
        check_tuning(tuning, tuning_rate)
        stages_of(self.network, "PODNet")
        self.options |= {"loss": loss, "proxies": proxies, "spatial": spatial, "flat": flat}
        self.options |= {"tuning": tuning, "tuning_rate": tuning_rate}
        self.cosine = CosineClassifier(self.width, proxies)
        self._teacher: tuple[nn.Module, ...] = ()

    def expand(self, classes: int) -> None:
        """Add proxies of new classes; those of old classes do not change."""
        self.cosine.proxies.requires_grad_(False)
        self.cosine.grow(classes)

    @property
    def output_layer(self) -> nn.Module:
        """Classifier of proxies."""
        return self.cosine

    def before_task(self) -> None:
        """Keep a copy of the network from before the task."""
        self._teacher = (frozen(self.network),)

    def loss(self, batch: Examples) -> Tensor:
        """Compute the loss: classification, and POD from the second task on."""
        x = batch.inputs()
        maps, z = with_maps(*stages_of(self.network, "PODNet"), x)
        loss = self._classification(z, batch.labels)
        if not self.old:
            return loss
        with torch.no_grad():
            old_maps, old = with_maps(*stages_of(self._teacher[0], "PODNet"), x)
        spatial = pooled_maps_distance([m.float() for m in maps], [m.float() for m in old_maps])
        flat = cosine_distance(z.float(), old.float())
        factor = pod_factor(self.classes, self.classes - self.old)
        distilled: Tensor = factor * (self.options["spatial"] * spatial + self.options["flat"] * flat)
        return loss + distilled

    def _classification(self, z: Tensor, labels: Tensor) -> Tensor:
        scores = self.logits(z)
        return nca(scores, labels) if self.options["loss"] == "nca" else functional.cross_entropy(scores, labels)

    def after_choosing(self) -> None:
        """Fine-tune on balanced classes."""
        self.tune(self.options["tuning"], self.options["tuning_rate"], self.learning_parts(), self.loss)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        super().clear()
        self.cosine = CosineClassifier(self.width, self.options["proxies"])
