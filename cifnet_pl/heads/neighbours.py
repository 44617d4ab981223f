"""Classify by the k nearest neighbours among all embeddings ever seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cifnet_pl.heads.base import Dtype, Head, Metric, Samples
from cifnet_pl.utilities.errors import UsageError, check_choice

QUERIES = 1024
"""Queries compared with all stored embeddings at a time; bounds the memory of a prediction."""


class KNNHead(Head):
    """k nearest neighbours, each voting with its sample weight divided by its distance.

    Keeps every embedding: N·d numbers that grow with the data and not with the classes (``state_elements`` says how
    many), and N·d products for every prediction. Distances are ``1 − cos`` or Euclidean. With V_c the votes for class
    c, V their sum and k neighbours, ``score_c = log((k·V_c/V + 1/C)/(k + 1))``: one vote more is spread over all
    classes, so that the softmax of the scores is the share of votes and never zero.

    Args:
        in_features: width d of the embeddings.
        neighbours: k; all stored embeddings where they are fewer.
        metric: "cosine" or "euclidean".
        dtype: in which embeddings are kept and compared, "float32" (as a backbone gives them) or "float64".
    """

    title = "kNN"
    merges = pools = True
    counterexamples = False

    def __init__(self, in_features: int, neighbours: int = 5, metric: Metric = "cosine", dtype: Dtype = "float32"):
        super().__init__(in_features, dtype)
        if neighbours < 1:
            raise UsageError(f"neighbours is {neighbours}, expected at least 1")
        check_choice("metric", metric, Metric)
        self.neighbours, self.metric = neighbours, metric
        self.samples = Samples(in_features, self.dtype)
        self.pending = Samples(in_features, self.dtype)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        """Do nothing: samples need no room in advance."""

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        self.pending.add(z, self.labels[columns], weight)

    def _solve(self) -> None:
        if len(self.pending):
            self.samples.take(self.pending)
            self.pending.clear()
            self.samples.sort()

    def _scores(self, z: Tensor) -> Tensor:
        vote = self.scoring()
        return torch.cat([vote(queries) for queries in torch.split(z, QUERIES)])

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores as a function (see :meth:`Head.scoring`), of all queries at once."""
        stored, column = self.samples.z, self._columns(self.samples.y)
        if self.metric == "cosine":
            stored = torch.nn.functional.normalize(stored, dim=1)
        return lambda z: self._vote(z.to(self.dtype), stored, column)

    def _vote(self, z: Tensor, stored: Tensor, column: Tensor) -> Tensor:
        """Return the scores (n, C) of queries z (n, d); for the cosine, ``stored`` is normalised already."""
        # Distances that are nothing but rounding are set to the largest that rounding gives.
        rounding = 16 * torch.finfo(self.dtype).eps
        if self.metric == "cosine":
            distance = (1 - torch.nn.functional.normalize(z, dim=1) @ stored.T).clamp_min(rounding)
        else:
            squares = z.square().sum(dim=1)[:, None] + stored.square().sum(dim=1)
            distance = torch.maximum(squares - 2 * z @ stored.T, rounding * squares)
            distance = distance.clamp_min(torch.finfo(self.dtype).tiny).sqrt()  # both may be all zero
        k = min(self.neighbours, len(stored))
        nearest = distance.topk(k, dim=1, largest=False)
        vote = self.samples.weight[nearest.indices] / nearest.values.double()
        votes = vote.new_zeros(len(z), len(self.labels)).scatter_add_(1, column[nearest.indices], vote)
        share = votes / votes.sum(dim=1, keepdim=True)
        return torch.log((k * share + 1 / len(self.labels)) / (k + 1))

    # ------------------------------------------------------------------ the life of a model

    def _merge(self, other: KNNHead) -> None:
        self._begin_tasks_of(other)
        for samples in (other.samples, other.pending):
            self.pending.take(samples)
        self._solve()
        self.solved.fill_(False)
        self.under_way.fill_(False)

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        for samples in (self.samples, self.pending):
            samples.rename(new)

    def class_counts(self) -> dict[int, int]:
        """Return the number of samples kept of each class, by label."""
        counts = self.samples.counts(self.labels) + self.pending.counts(self.labels)
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def _discard(self) -> None:
        self.pending.clear()

    def _keep(self, columns: Tensor) -> None:
        for samples in (self.samples, self.pending):
            samples.keep_labels(self.labels[columns])

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: N·d, with N the number of all samples seen."""
        return {"embeddings": self.samples.z.numel()}
