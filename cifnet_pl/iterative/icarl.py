"""iCaRL: replay of exemplars, distillation, nearest mean of exemplars (Rebuffi et al., CVPR 2017)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from cifnet_pl.iterative.exemplars import Prediction
from cifnet_pl.iterative.losses import binary_distillation, distillation
from cifnet_pl.iterative.networks import Teacher
from cifnet_pl.iterative.trainer import Examples, IterativeModule
from cifnet_pl.utilities.errors import check_choice

Loss = Literal["softmax", "binary"]


class ICaRLModule(IterativeModule):
    """iCaRL; numbers of algorithms are the paper's.

    * Loss "softmax", that of the reference code which made the published numbers: ``CE(scores, y) + distillation`` of
      the old classes' scores at temperature 2. Loss "binary", the paper's algorithm 3: binary cross-entropy of
      ``g_y = sigmoid(score_y)``, summed over classes, averaged over images; the targets of old classes are the old
      network's outputs, those of new classes are one-hot. The old network sees the same augmented images.
    * Exemplars (algorithms 4 and 5): ``⌊exemplars / classes seen⌋`` images of each class by herding.
    * Prediction (algorithm 1): the class whose mean of exemplars μ_y is nearest to φ(x), all of length 1.

    Args:
        loss: "softmax" or "binary".
        prediction: "nearest_mean" or "classifier".
        options: of :class:`IterativeModule`.
    """

    def __init__(self, loss: Loss = "softmax", prediction: Prediction = "nearest_mean", **options: Any):
        super().__init__(prediction=prediction, **options)
        check_choice("loss", loss, Loss)
        self.options["loss"] = loss

    def before_task(self) -> None:
        """Keep a copy of the network from before the task."""
        self._teacher = Teacher(self.network, self.output_layer)

    def loss(self, batch: Examples) -> Tensor:
        """Compute the loss: classification, and distillation from the second task on."""
        x = batch.inputs()
        scores = self.logits(self.features(x))
        if self.options["loss"] == "binary":
            targets = functional.one_hot(batch.labels, self.classes).to(scores)
            if self.old:
                targets = torch.cat([self._teacher.scores(x).sigmoid(), targets[:, self.old :]], dim=1)
            return binary_distillation(scores, targets)
        classification = functional.cross_entropy(scores, batch.labels)
        return (
            classification + distillation(scores[:, : self.old], self._teacher.scores(x))
            if self.old
            else classification
        )
