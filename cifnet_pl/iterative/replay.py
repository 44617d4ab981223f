"""Methods with one network of fixed size: fine-tuning, replay, and distillation (iCaRL, WA)."""

from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.iterative.descent import StepBatch
from cifnet_pl.iterative.exemplars import Prediction
from cifnet_pl.iterative.losses import binary_distillation, distillation
from cifnet_pl.iterative.trainer import IterativeModule

Loss = Literal["softmax", "binary"]


class FinetuneModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the current task alone.

    The lower bound of the field. PyCIL's code of this name leaves the scores of old classes out of
    the softmax, so that it forgets a little less.
    """

    title = "Fine-tuning"
    classifiers = ()

    def __init__(self, **options: Any):
        super().__init__(exemplars=0, **options)


class ReplayModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the task and on exemplars."""


class DistillationModule(IterativeModule):
    """A method that distils the scores of the network from before the task, ``old_scores``."""

    def teachers(self) -> list[nn.Module]:
        """Return the network and the classifier."""
        return [self.network, self.output_layer]


class ICaRLModule(DistillationModule):
    """iCaRL (Rebuffi et al., CVPR 2017); algorithms are numbered as in the paper.

    * Loss "softmax", that of the reference code, which made the published figures:
      ``CE(scores, y) + distillation`` of the old classes' scores at temperature 2.
    * Loss "binary", the paper's algorithm 3: binary cross-entropy of ``g_y = sigmoid(score_y)``,
      summed over classes, averaged over images. Targets of old classes are the old network's
      outputs on the same augmented images, those of new classes are one-hot.
    * Exemplars (algorithms 4 and 5): ``⌊exemplars / classes seen⌋`` images of each class by
      herding.
    * Prediction (algorithm 1): the class whose mean of exemplars μ_y is nearest to φ(x), all of
      length 1.

    Args:
        loss: "softmax" or "binary".
        prediction: "nearest_mean" or "classifier".
        options: of :class:`IterativeModule`.
    """

    title = "iCaRL"

    def __init__(
        self,
        loss: Loss = "softmax",
        prediction: Prediction = "nearest_mean",
        **options: Any,
    ):
        super().__init__(prediction=prediction, **options)
        self.options["loss"] = loss

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the loss: classification, and distillation from the second task on."""
        x = batch.inputs()
        scores = self.logits(self.features(x))
        if self.options["loss"] == "binary":
            targets = functional.one_hot(batch.labels, self.n_classes).to(scores)
            if self.old_classes:
                targets[:, : self.old_classes] = self.old_scores(x).sigmoid()
            return binary_distillation(scores, targets)
        loss = functional.cross_entropy(scores, batch.labels)
        if self.old_classes:
            return loss + distillation(scores, self.old_scores(x))
        return loss


class WAModule(DistillationModule):
    """WA: maintaining discrimination and fairness (Zhao et al., CVPR 2020).

    * Loss (eq. 3): ``(1 − λ) CE(scores, y) + λ distillation(scores of old classes)`` at temperature
      2, with ``λ = old classes / all classes``. As in the reference code there is no factor T².
    * After each task the new classes' weights are scaled by ``mean ‖w_old‖ / mean ‖w_new‖``
      (eq. 10).
    """

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute eq. 3; cross-entropy alone in the first task."""
        x = batch.inputs()
        scores = self.logits(self.features(x))
        classification = functional.cross_entropy(scores, batch.labels)
        if not self.old_classes:
            return classification
        share = self.old_classes / self.n_classes
        distilled = distillation(scores, self.old_scores(x))
        return (1 - share) * classification + share * distilled

    def after_learning(self) -> None:
        """Align the weights of new classes with those of old ones."""
        self.align()
