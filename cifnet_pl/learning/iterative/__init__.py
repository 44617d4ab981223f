"""Networks trained by gradient descent, task after task: what learning without training is measured against."""

from cifnet_pl.learning.iterative.base import IterativeModule
from cifnet_pl.learning.iterative.finetune import FinetuneModule
from cifnet_pl.learning.iterative.icarl import ExemplarSet, ICaRLModule

__all__ = ["ExemplarSet", "FinetuneModule", "ICaRLModule", "IterativeModule"]
