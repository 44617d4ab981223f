"""WA: distillation, and new classes' weights scaled to the norm of the old ones (Zhao et al., CVPR 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.iterative.losses import aligned, distillation
from cifnet_pl.iterative.networks import Teacher
from cifnet_pl.iterative.trainer import Examples, IterativeModule


def align(classifier: nn.Linear, new: int, value: float = 1.0) -> None:
    """Scale the rows of a classifier's new classes, in place, see :func:`aligned`.

    Args:
        classifier: a row for each class, new classes last.
        new: number of new classes.
        value: as for :func:`aligned`.
    """
    with torch.no_grad():
        classifier.weight.copy_(aligned(classifier.weight, new, value))


class WAModule(IterativeModule):
    """Maintaining discrimination and fairness; equations are the paper's.

    * Loss (eq. 3): ``(1 − λ) CE(scores, y) + λ distillation(scores of old classes)`` at temperature 2, with
      ``λ = old classes / all classes``. As in the reference code there is no factor T².
    * After each task the new classes' weights are scaled by ``mean ‖w_old‖ / mean ‖w_new‖`` (eq. 10).
    """

    def before_task(self) -> None:
        """Keep a copy of the network from before the task."""
        self._teacher = Teacher(self.network, self.output_layer)

    def loss(self, batch: Examples) -> Tensor:
        """Compute eq. 3; cross-entropy alone in the first task."""
        x = batch.inputs()
        scores = self.logits(self.features(x))
        classification = functional.cross_entropy(scores, batch.labels)
        if not self.old:
            return classification
        share = self.old / self.classes
        return (1 - share) * classification + share * distillation(scores[:, : self.old], self._teacher.scores(x))

    def after_learning(self) -> None:
        """Align the weights of new classes with those of old ones (WA, eq. 10)."""
        if self.old and self.classifier is not None:
            align(self.classifier, self.classes - self.old)
