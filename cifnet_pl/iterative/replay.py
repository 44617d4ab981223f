"""The two plain methods: with exemplars of earlier classes (replay), and without (fine-tuning)."""

from __future__ import annotations

from typing import Any

from cifnet_pl.iterative.trainer import IterativeModule


class FinetuneModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the current task alone: the lower bound of the field.

    PyCIL's code of this name leaves the old classes' scores out of the softmax, so that it forgets a little less.
    """

    ways = ()

    def __init__(self, **options: Any):
        super().__init__(exemplars=0, **options)


class ReplayModule(IterativeModule):
    """Cross-entropy over all classes seen, on the images of the task and on exemplars of all earlier classes."""
