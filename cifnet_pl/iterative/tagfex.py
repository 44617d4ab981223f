"""TagFex: task-agnostic features guide the branch of each task (Zheng et al., CVPR 2025)."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones.structures import grown, stages_of, with_maps
from cifnet_pl.iterative.der import DERModule
from cifnet_pl.iterative.descent import StepBatch
from cifnet_pl.iterative.losses import info_nce, transfer
from cifnet_pl.utilities.errors import check_that

AUXILIARY = 2.0
"""Weight of the auxiliary loss, as in the reference code."""

CONTRAST_DISTILLATION = 2.0
"""Weight of the distillation among the contrastive losses."""

INTERPOLATION = 0.95
"""Share of the last branch in a new one."""


class MergeAttention(nn.Module):
    """Attention from task-specific positions to all positions, averaged (TagFex, eq. 7).

    Args:
        width: channels of both maps.
        heads: number of heads, which divides the width.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_specific = nn.LayerNorm(width)
        self.norm_agnostic = nn.LayerNorm(width)
        for name in (
            "query",
            "key_specific",
            "key_agnostic",
            "value_specific",
            "value_agnostic",
        ):
            weight = nn.Parameter(torch.empty(width, width))
            nn.init.xavier_normal_(weight)
            setattr(self, name, weight)

    def forward(self, specific: Tensor, agnostic: Tensor) -> Tensor:
        """Return (n, d) merged embeddings of maps (n, positions, d)."""
        s = self.norm_specific(specific)
        a = self.norm_agnostic(agnostic)
        w = cast(Any, self)
        keys = torch.cat([s @ w.key_specific, a @ w.key_agnostic], dim=1)
        values = torch.cat([s @ w.value_specific, a @ w.value_agnostic], dim=1)
        query, key, value = map(self._by_head, (s @ w.query, keys, values))
        merged = functional.scaled_dot_product_attention(query, key, value)
        positions = merged.transpose(1, 2).flatten(2)
        return positions.mean(dim=1)

    def _by_head(self, x: Tensor) -> Tensor:
        """Return (n, heads, positions, d / heads) parts of (n, positions, d)."""
        n, positions, width = x.shape
        return x.view(n, positions, self.heads, width // self.heads).transpose(1, 2)


class TagFexModule(DERModule):
    """TagFex: task-agnostic guided feature expansion.

    Every image is learned in two augmented views; y is its label.

    * A task-agnostic network A learns in all tasks by :func:`info_nce` of the two views'
      projections. From the second task on a linear predictor keeps it near the A from before the
      task, also by InfoNCE.
    * A branch for each task as in :class:`DERModule`; its weights start at 0.95 of the last branch
      and the rest of A.
    * From the second task on, attention from the branch's map to both maps gives merged features,
      which learn to separate the new classes. Where they do so better than the whole network, their
      softened probabilities are transferred to the branch.
    * Loss: ``CE + 2 CE_aux + (1 − a) InfoNCE + 2a InfoNCE_old + CE_merged + KL`` with ``a = old
      classes / all classes``; then weights are aligned.

    Args:
        projection: widths of the projector, hidden and output.
        attention_heads: heads of the attention; they divide the width of the embeddings.
        options: of :class:`IterativeModule`.
    """

    compares_processes = True
    # From the second task on.
    attention: nn.Module
    predictor: nn.Linear
    merged_classifier: nn.Linear

    def __init__(
        self,
        projection: list[int] | None = None,
        attention_heads: int = 8,
        **options: Any,
    ):
        super().__init__(**options)
        if projection is None:
            projection = [2048, 1024]
        two_widths = len(projection) == 2 and min(projection) >= 1
        check_that(two_widths, "projection", projection, "two widths")
        divides = attention_heads >= 1 and self.width % attention_heads == 0
        expected = f"a number that divides the width of the embeddings, {self.width}"
        check_that(divides, "attention_heads", attention_heads, expected)
        self.options |= {"projection": projection, "attention_heads": attention_heads}
        stages_of(self._start[0], "TagFex")
        with self.seeded(7):
            self.agnostic = self.fresh_network()
            hidden, output = projection
            first = grown(None, self.width, hidden)
            second = grown(None, hidden, output)
            self.projector = nn.Sequential(first, nn.ReLU(), second)

    # ------------------------------------------------------------------ structure

    def expand(self, classes: int) -> None:
        """Add a branch and, from the second task on, the modules that guide it."""
        super().expand(classes)
        if len(self.branches) == 1:
            return
        assert self.classifier is not None
        with torch.no_grad():
            self.classifier.weight[: self.old_classes, -self.width :] = 0
        # Drawn anew in each task, but for the predictor.
        self.attention = MergeAttention(self.width, self.options["attention_heads"])
        if len(self.branches) == 2:
            self.predictor = grown(None, self.width, self.width)
        self.merged_classifier = grown(None, self.width, classes)

    def new_branch(self) -> nn.Module:
        """Return a network between the last branch and the task-agnostic one."""
        if not len(self.branches):
            return super().new_branch()
        # Its batch statistics are those of a network that has learned nothing.
        branch = self.fresh_network()
        last = self.branches[-1].parameters()
        agnostic = self.agnostic.parameters()
        with torch.no_grad():
            for new, a, b in zip(branch.parameters(), last, agnostic, strict=True):
                new.copy_(INTERPOLATION * a + (1 - INTERPOLATION) * b)
        return branch

    def teachers(self) -> list[nn.Module]:
        """Return the task-agnostic network and its projector."""
        return [self.agnostic, self.projector]

    def learning_parts(self) -> list[nn.Module | None]:
        """Return the newest branch, the task-agnostic network, and the guiding modules."""
        parts = [*super().learning_parts(), self.agnostic, self.projector]
        if self.is_first_task:
            return parts
        return [*parts, self.attention, self.predictor, self.merged_classifier]

    def counted_module(self) -> nn.Module:
        """Return the whole module, as the published number of parameters does."""
        return self

    # ------------------------------------------------------------------ losses

    def loss(self, batch: StepBatch) -> Tensor:
        """Compute all losses of the task, on two views."""
        x = torch.cat([batch.inputs(0), batch.inputs(1)])
        labels = torch.cat([batch.labels, batch.labels])
        maps, newest = with_maps(self.branches[-1], x)
        with torch.no_grad():
            older = [branch(x) for branch in list(self.branches)[:-1]]
        z = torch.cat([*older, newest], dim=1)
        scores = self.logits(z)
        classification = functional.cross_entropy(scores, labels)
        agnostic_maps, agnostic = with_maps(self.agnostic, x)
        projected = self.projector(agnostic)
        contrast = self._contrast(projected, projected)
        if self.is_first_task:
            return classification + contrast
        share = self.old_classes / self.n_classes
        # Between predicted and old features, both by the old projector.
        old_projector = self.teacher[1]
        predicted = old_projector(self.predictor(agnostic))
        distilled = self._contrast(predicted, self.old_scores(x))
        from_teacher = CONTRAST_DISTILLATION * share * distilled
        contrast = (1 - share) * contrast + from_teacher
        auxiliary = AUXILIARY * self.auxiliary_loss(z, labels)
        loss = classification + auxiliary + contrast
        agnostic_map = agnostic_maps[-1].detach()
        guided = self._guidance(maps[-1], agnostic_map, scores, labels, classification)
        return loss + guided

    def _contrast(self, a: Tensor, b: Tensor) -> Tensor:
        """Compute InfoNCE over the views of all processes."""
        gathered = []
        for rows in (a.float(), b.float()):
            views = [self.processes.gather(view) for view in rows.chunk(2)]
            gathered.append(torch.cat(views))
        with torch.autocast(a.device.type, enabled=False):
            return info_nce(*gathered) / self.processes.share

    def _guidance(
        self,
        specific: Tensor,
        agnostic: Tensor,
        scores: Tensor,
        labels: Tensor,
        classification: Tensor,
    ) -> Tensor:
        """Compute the cross-entropy of the merged features, and the transfer where it helps.

        Args:
            specific, agnostic: (n, d, h, w) maps of the newest branch and the agnostic network.
            scores: (n, C) scores of the whole network.
            labels: (n,) int64.
            classification: cross-entropy of the whole network.
        """
        specific = specific.flatten(2).transpose(1, 2)
        agnostic = agnostic.flatten(2).transpose(1, 2)
        features = self.attention(specific, agnostic)
        merged = self.merged_classifier(features).float()
        new = labels >= self.old_classes
        errors = functional.cross_entropy(
            merged, (labels - self.old_classes).clamp_min(0), reduction="none"
        )
        merged_error = self.processes.mean_where(errors, new)
        own = self.processes.mean_loss(classification)
        if self.processes.mean_loss(merged_error) >= own:
            return merged_error
        divergence = transfer(scores[:, self.old_classes :], merged)
        return merged_error + self.processes.mean_where(divergence, new)
