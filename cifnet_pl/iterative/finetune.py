"""Fine-tuning: the network learns each task without any regard to earlier ones, and forgets."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.iterative.networks import grown
from cifnet_pl.iterative.trainer import Examples, IterativeModule


class FinetuneModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the current task alone: the lower bound of the field.

    PyCIL's code of this name leaves the old classes' scores out of the softmax, so that it forgets a little less.
    """

    classifier: nn.Linear | None

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.classifier = None

    def expand(self, classes: int) -> None:
        """Add outputs of new classes."""
        self.classifier = grown(self.classifier, self.width, self.classes)

    def learning_parts(self) -> list[nn.Module]:
        """Return the whole network."""
        return [self.network, self.output_layer]

    @property
    def output_layer(self) -> nn.Module:
        """Classifier, once there are classes."""
        assert self.classifier is not None
        return self.classifier

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d) embeddings of normalised images."""
        z: Tensor = self.network(x)
        return z

    def logits(self, z: Tensor) -> Tensor:
        """Return (n, C) scores of embeddings."""
        scores: Tensor = self.output_layer(z)
        return scores.float()

    def loss(self, batch: Examples) -> Tensor:
        """Compute the mean of ``−log softmax(scores)[y]``."""
        return functional.cross_entropy(self.logits(self.features(batch.inputs())), batch.labels)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        super().clear()
        self.classifier = None
