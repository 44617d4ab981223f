"""A new branch for each task beside the frozen ones: DER, and MEMO with branched last stages."""

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones.structures import Branches, grown, last_stages, stages_of
from cifnet_pl.iterative.descent import StepBatch
from cifnet_pl.iterative.losses import auxiliary_targets
from cifnet_pl.iterative.trainer import IterativeModule


class DERModule(IterativeModule):
    """DER: dynamically expandable representation (Yan et al., CVPR 2021).

    * Embedding: all branches' outputs concatenated, ``u = [Φ_1(x) … Φ_k(x)]``; only Φ_k learns,
      from Φ_(k−1)'s weights.
    * Loss (eq. 6): ``CE(scores, y) + CE(auxiliary scores of Φ_k, y')`` with y' = 0 for every old
      class.
    * After each task the new classes' weights are aligned as in WA; the paper tunes a new
      classifier instead.
    * There is no pruning as in the paper: the reference code has none.

    The paper of CIFNet cites Dark Experience Replay beside this name, but its 9.27 M parameters are
    those of this method: 20 ResNet-32 of 0.46 M, one for each of 20 tasks.

    Args:
        options: of :class:`IterativeModule`.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.branches = Branches()
        self.auxiliary_classifier: nn.Linear | None = None
        # In a tuple, so that it is no submodule: the branches hold the weights that learn.
        self._start = (self.network,)
        self.network = nn.Identity()

    def expand(self, classes: int) -> None:
        """Add a branch, which starts from the newest one; the older branches do not change."""
        self.branches.requires_grad_(False)
        self.branches.append(self.new_branch())
        inputs = self.width * len(self.branches)
        self.classifier = grown(self.classifier, inputs, self.n_classes)
        if len(self.branches) > 1:
            self.auxiliary_classifier = grown(None, self.width, classes + 1)

    def new_branch(self) -> nn.Module:
        """Return a new branch with the newest one's weights; the first has those of the start."""
        branch = self.fresh_network()
        newest = [*self._start, *self.branches][-1]
        branch.load_state_dict(newest.state_dict())
        return branch

    def learning_parts(self) -> list[nn.Module | None]:
        """Return the newest branch and both classifiers."""
        return [self.branches[-1], self.output_layer, self.auxiliary_classifier]

    def auxiliary_loss(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return ``CE(auxiliary scores of the newest branch, y')``.

        It separates each new class from all old ones together.

        Args:
            z: (n, d · tasks) embeddings.
            labels: (n,) int64.
        """
        assert self.auxiliary_classifier is not None
        scores = self.auxiliary_classifier(z[:, -self.width :]).float()
        targets = auxiliary_targets(labels, self.old_classes)
        return functional.cross_entropy(scores, targets)

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropy, and the auxiliary loss from the second task on."""
        z = self.features(batch.inputs())
        loss = functional.cross_entropy(self.logits(z), batch.labels)
        if self.old_classes:
            loss = loss + self.auxiliary_loss(z, batch.labels)
        return loss

    def after_learning(self) -> None:
        """Scale the new classes' weights to the norm of the old ones."""
        self.align()

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the structure, and all branches."""
        return f"branches.{len(self.branches)}", self.branches


class MEMOModule(DERModule):
    """MEMO: a model or 603 exemplars (Zhou et al., ICLR 2023); equations are the paper's.

    * Embedding (eq. 7): ``[φ_s1(φ_g(x)) … φ_sk(φ_g(x))]``. All tasks share φ_g, all stages but the
      last; a specialised last stage is added for each task, from the weights of the one before.
    * Loss and alignment of weights: those of :class:`DERModule`.
    * The shared stages go on learning after the first task, as in the published configuration of
      the reference code.

    Args:
        options: of :class:`DERModule`.
    """

    def __init__(self, **options: Any):
        super().__init__(**options)
        stages, pool = stages_of(self._start[0], "MEMO")
        self.shared = nn.Sequential(*stages[:-1])
        self._start = (nn.Sequential(stages[-1], pool),)

    def new_branch(self) -> nn.Module:
        """Return a last stage with the weights of the newest one."""
        newest: nn.Module = [*self._start, *self.branches][-1]
        return copy.deepcopy(newest).requires_grad_(True)

    def learning_parts(self) -> list[nn.Module | None]:
        """Return the newest last stage, both classifiers, and the shared stages."""
        return [self.shared, *super().learning_parts()]

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the structure, and the shared stages with all last ones."""
        network = last_stages(self.shared, self.branches)
        return f"last_stages.{len(self.branches)}", network
