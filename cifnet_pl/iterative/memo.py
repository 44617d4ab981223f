"""MEMO: the first stages are shared, and a new last stage is added for each task (Zhou et al., ICLR 2023)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.iterative.der import DERModule
from cifnet_pl.iterative.networks import stages_of


class MEMOModule(DERModule):
    """A model or 603 exemplars; equations are the paper's.

    * Embedding (eq. 7): ``[φ_s1(φ_g(x)) … φ_sk(φ_g(x))]``; φ_g, all stages but the last, is shared by all tasks; a
      specialised last stage is added for each, from the weights of the one before.
    * Loss: that of :class:`DERModule`, and the same alignment of weights.

    Args:
        shared_learns: whether the shared stages go on learning after the first task, as in the reference code's
            published configuration.
        options: of :class:`IterativeModule`.
    """

    def __init__(self, shared_learns: bool = True, **options: Any):
        super().__init__(**options)
        self.options["shared_learns"] = shared_learns
        stages, pool = stages_of(self._start[0], "MEMO")
        self.shared = nn.Sequential(*stages[:-1])
        self._start = (nn.Sequential(stages[-1], pool),)

    def new_branch(self) -> nn.Module:
        """Return a last stage with the weights of the newest one."""
        source = self.branches[-1] if len(self.branches) else self._start[0]
        return copy.deepcopy(source).requires_grad_(True)

    def learning_parts(self) -> list[nn.Module]:
        """Return the newest last stage, both classifiers, and the shared stages if they go on."""
        shared = [self.shared] if self.first or self.options["shared_learns"] else []
        return [*shared, *super().learning_parts()]

    def features(self, x: Tensor) -> Tensor:
        """Return (n, d · tasks) embeddings."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and (self.first or self.options["shared_learns"])):
            shared = self.shared(x)
        z: Tensor = self.branches(shared)
        return z

    def extractors(self) -> list[nn.Module]:
        """Return the shared stages and all last ones."""
        return [self.shared, self.branches]
