"""Fine-tuning: the network learns each task as if there had been no other, and forgets."""

from __future__ import annotations

from typing import Any, cast

from torch.nn import functional

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.iterative.base import IterativeModule


class FinetuneModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the current task alone: the lower bound of the field."""

    def learn(self, batch: Batch, batch_idx: int) -> None:
        """A step on the mean of ``−log softmax(scores)[y]``."""
        images = self.augment(cast(Any, batch).image)
        self.descend(functional.cross_entropy(self.scores(self.backbone.embed(images)), batch.label))
