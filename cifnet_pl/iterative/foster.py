"""FOSTER: feature boosting and compression (Wang et al., ECCV 2022)."""

import copy
from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones.structures import Branches, grown
from cifnet_pl.iterative.descent import Phase, StepBatch
from cifnet_pl.iterative.losses import (
    balanced_distillation,
    boosting,
    effective_weights,
)
from cifnet_pl.iterative.trainer import IterativeModule
from cifnet_pl.utilities.errors import check_positive, check_that

Evaluated = Literal["student", "branches"]

COMPRESSION_BETA = 0.97
"""β of the compression phase."""


class FOSTERModule(IterativeModule):
    """FOSTER: boosting of features and compression; equations are the paper's.

    * Boosting: the old branch does not change; a new one learns, from the old one's weights as in
      the reference code. Loss (eqs. 7, 10): ``CE(scores/w, y) + CE(scores of the new branch's own
      classifier, y) + distillation of old classes`` at temperature 2, with class weights w of the
      effective numbers of images at β = ``boosting_beta``.
    * Compression: a single branch, from the old one's weights, learns ``balanced_distillation``
      (eq. 12) of both at β = 0.97, for ``compression`` of the epochs, without weight decay.
    * ``memory_rate``: RMM (Liu et al., NeurIPS 2021) without the policy that it learns. Exemplars
      of earlier classes replace this share of a task's images, which are left out at random.

    Args:
        boosting_beta: β of the boosting phase.
        compression: share of the epochs that compression takes.
        new_on_old: whether the new classes' weights on the old branch learn, as in every published
            configuration (``oofc: ft``); else they are zero.
        evaluated: network that predicts and selects exemplars after a task: "student", the
            compressed one, or "branches", both of them before the compression, as in the reference
            code.
        memory_rate: share of a task's images that exemplars replace, or a list with one value for
            each task from the second on (the last one for all further tasks), or null.
        options: of :class:`IterativeModule`.
    """

    def __init__(
        self,
        boosting_beta: float = 0.96,
        compression: float = 130 / 170,
        new_on_old: bool = True,
        evaluated: Evaluated = "student",
        memory_rate: float | list[float] | None = None,
        **options: Any,
    ):
        super().__init__(**options)
        fits = 0 <= boosting_beta < 1
        check_that(fits, "boosting_beta", boosting_beta, "at least 0 and below 1")
        check_positive("compression", compression)
        rates = memory_rate or []
        if isinstance(rates, float):
            rates = [rates]
        fits = all(0 <= rate < 1 for rate in rates)
        if rates and self.per_class is not None:
            fits = False
        expected = "shares from 0 to below 1, or null as with exemplars_per_class"
        check_that(fits, "memory_rate", memory_rate, expected)
        self.options |= {
            "boosting_beta": boosting_beta,
            "compression": compression,
            "memory_rate": memory_rate,
            "new_on_old": new_on_old,
            "evaluated": evaluated,
        }
        self._rates = rates
        self.branches = Branches([self.network])
        self.network = nn.Identity()
        self.expansion: nn.Linear | None = None
        self.student: nn.Sequential | None = None

    # ------------------------------------------------------------------ memory

    def exemplar_capacity(self) -> int:
        """Return the number of exemplars to keep for the task that follows."""
        if not self._rates:
            return self.capacity
        finished = len(self.learned_tasks)
        rate = self._rates[min(finished, len(self._rates)) - 1]
        last = len(self.data.plan.tasks) - 1
        images = len(self.data.task(min(finished, last)).rows)
        return max(self.capacity + round(rate * images), self.n_classes)

    def select_rows(self, rows: np.ndarray, task: int) -> np.ndarray:
        """Return the images of a task that fit into memory beside the exemplars."""
        places = max(self.capacity + len(rows) - len(self.exemplars), 1)
        if not self._rates or places >= len(rows):
            return rows
        generator = np.random.default_rng([self.seed, task, 6])
        order = generator.permutation(rows)
        labels = pd.Series(self.data.source.train.labels[order])
        # One of each class in turn, so that each class keeps as many.
        turns = np.lexsort([labels, labels.groupby(labels).cumcount()])
        return np.sort(order[turns[:places]])

    # ------------------------------------------------------------------ structure

    def expand(self, classes: int) -> None:
        """Add a branch, which starts from the old one's weights, and outputs."""
        if self.old_classes:
            self._compress()
            self.branches.requires_grad_(False)
            branch = copy.deepcopy(self.branches[0])
            self.branches.append(branch.requires_grad_(True))
            self.expansion = grown(None, self.width, self.n_classes)
        inputs = self.width * len(self.branches)
        self.classifier = grown(self.classifier, inputs, self.n_classes)
        if self.old_classes and not self.options["new_on_old"]:
            with torch.no_grad():
                self.classifier.weight[self.old_classes :, : self.width] = 0

    def _compress(self) -> None:
        """Keep only the student, where there is one."""
        if self.student is not None:
            network, layer = self.student
            self.branches = Branches([network])
            self.classifier = cast(nn.Linear, layer)
            self.student = None

    def teachers(self) -> list[nn.Module]:
        """Return the classifier of the branch that stays."""
        if self.student is not None:
            return [self.student[1]]
        return [self.output_layer]

    def rebuild(self, sizes: list[int]) -> None:
        """Build one branch; both and the student, if both are evaluated."""
        self.n_classes = sum(sizes)
        if len(sizes) > 1 and self.options["evaluated"] == "branches":
            self.branches.append(self.fresh_network())
            layer = grown(None, self.width, self.n_classes)
            self.student = nn.Sequential(self.fresh_network(), layer)
        if sizes:
            inputs = self.width * len(self.branches)
            self.classifier = grown(None, inputs, self.n_classes)

    def learned_network(self) -> tuple[str, nn.Module]:
        """Return the structure, and the branches that predict: one, or both before compression."""
        return f"branches.{len(self.branches)}", self.branches

    def counted_module(self) -> nn.Module:
        """Return a single branch, as is left after compression, or will be."""
        return self.branches[0]

    # ------------------------------------------------------------------ learning

    def phases(self) -> list[Phase]:
        """Return the phases: boosting, then compression without weight decay."""
        if self.is_first_task:
            return super().phases()
        compress = self.phase("compress", self.options["compression"])
        return [self.phase("boost"), replace(compress, weight_decay=0.0)]

    def begin_phase(self) -> None:
        """Set the class weights of the phase; add a student for compression."""
        if self.is_first_task:
            return
        if self.current_phase == "boost":
            beta = self.options["boosting_beta"]
        else:
            beta = COMPRESSION_BETA
            student = self.fresh_network()
            student.load_state_dict(self.branches[0].state_dict())
            old = cast(nn.Linear, self.teacher[0])
            layer = grown(old, self.width, self.n_classes)
            self.student = nn.Sequential(student, layer)
        # The task learns from each image once in every pass, and from all exemplars.
        in_steps = np.concatenate([step.rows for step in self.steps])
        new = self.labels_of(np.unique(in_steps))
        labels = torch.cat([self.exemplars.label.cpu(), new])
        counts = labels.bincount(minlength=self.n_classes).clamp_min(1)
        weights = effective_weights(counts, beta)
        self._class_weights = weights.to(self.device, torch.float32)

    def learning_parts(self) -> list[nn.Module | None]:
        """Return the new branch and its classifiers; then the student."""
        if self.student is not None:
            return [self.student]
        return [self.branches[-1], self.output_layer, self.expansion]

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute the cross-entropy in the first task, then the loss of the phase."""
        if self.is_first_task:
            return super().loss(batch)
        x = batch.inputs()
        if self.student is not None:
            with torch.no_grad():
                teacher = self.logits(self.features(x))
            scores = self.student(x).float()
            return balanced_distillation(scores, teacher, self._class_weights)
        z = self.features(x)
        with torch.no_grad():
            old = self.teacher[0](z[:, : self.width]).float()
        assert self.expansion is not None
        new = self.expansion(z[:, self.width :]).float()
        layer = cast(nn.Linear, self.output_layer)
        weight = layer.weight
        if not self.options["new_on_old"]:
            weight = weight.clone()
            weight[self.old_classes :, : self.width] = 0  # does not learn
        scores = functional.linear(z, weight, layer.bias).float()
        return boosting(scores, new, old, batch.labels, self._class_weights)

    def after_learning(self) -> None:
        """Remove what does not predict from here on."""
        self.expansion = None
        if self.options["evaluated"] == "student":
            self._compress()
