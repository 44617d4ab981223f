"""Heads that learn from samples as they are, not from sums: nearest neighbours, and classifiers
that are fitted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, Head, Metric
from cifnet_pl.heads.sums import kept_weights
from cifnet_pl.statistics import augment
from cifnet_pl.utilities.errors import CheckpointError, check_choice, check_that
from cifnet_pl.utilities.growing_tensors import GrowingModule


class Samples(GrowingModule):
    """Embeddings in the order in which they came, until ``sort`` orders them by their values.

    Buffers:
        z: (n, d) embeddings, in the dtype given.
        y: (n,) int64 labels.
        weight: (n,) float64 sample weights.
    """

    any_rows = True

    def __init__(self, width: int, dtype: torch.dtype):
        super().__init__()
        self.width = width
        self.z: Tensor = nn.Buffer(torch.zeros(0, width, dtype=dtype))
        self.y: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.weight: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.float64))
        self._chunks: list[tuple[Tensor, Tensor, Tensor]] = []

    def __len__(self) -> int:
        return len(self.y) + sum(len(chunk[1]) for chunk in self._chunks)

    def add(self, z: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Append copies of rows.

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.
            weight: (n,) weights, or None for ones.
        """
        ones = torch.ones(len(y), dtype=torch.float64, device=y.device)
        chunk = (
            z.detach().to(self.z.dtype, copy=True),
            y.clone(),
            ones if weight is None else weight.double(),
        )
        self._chunks.append(chunk)

    def gather(self) -> None:
        """Copy what was added since the last call into the buffers: one copy for many batches."""
        if self._chunks:
            parts = [(self.z, self.y, self.weight), *self._chunks]
            self.z, self.y, self.weight = (torch.cat(group) for group in zip(*parts, strict=True))
            self._chunks = []

    def take(self, other: Samples) -> None:
        """Append all rows of ``other``."""
        other.gather()
        device = self.y.device
        self.add(other.z.to(device), other.y.to(device), other.weight.to(device))
        self.gather()

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but those at ``rows``, a mask over gathered rows or positions of them."""
        self.z = self.z[rows]
        self.y = self.y[rows]
        self.weight = self.weight[rows]

    def keep_labels(self, labels: Tensor) -> None:
        """Drop all rows but those with one of ``labels``."""
        self.gather()
        self.keep(torch.isin(self.y, labels))

    def rename(self, new: Callable[[Tensor], Tensor]) -> None:
        """Rename all labels; ``new`` maps (n,) old ones to (n,) new ones."""
        self.gather()
        self.y = new(self.y)

    def clear(self) -> None:
        """Drop all rows."""
        self._chunks = []
        self.keep(self.y.new_zeros(0))

    def sort(self) -> None:
        """Order rows by their bytes: embedding first, then weight, then label.

        What is computed from them afterwards does not depend on batch order or size. The label
        comes last, so that it only decides between equal embeddings: renaming classes changes
            nothing else.
        """
        self.gather()
        columns = [self.z.double(), self.weight[:, None], self.y.view(torch.float64)[:, None]]
        content = torch.cat(columns, dim=1).cpu().contiguous().numpy()
        keys = content.view(np.dtype((np.void, content.shape[1] * content.itemsize))).ravel()
        self.keep(torch.from_numpy(np.argsort(keys, kind="stable")).to(self.y.device))

    def counts(self, labels: Tensor) -> Tensor:
        """Return (C,) int64 number of rows of each of ``labels`` (C,)."""
        self.gather()
        return (self.y[:, None] == labels).sum(dim=0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.gather()
        return super()._apply(fn, recurse)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self.gather()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        self._chunks = []
        stored = state.get("z")
        if isinstance(stored, Tensor) and stored.shape[1:] != (self.width,):
            raise CheckpointError(
                f"stored embeddings have shape {tuple(stored.shape)}, expected (n, {self.width}): "
                "they are of another backbone"
            )


QUERIES = 1024
"""Queries compared with all stored embeddings at a time; bounds the memory of a prediction."""


class KNNHead(Head):
    """k nearest neighbours, each voting with its sample weight divided by its distance.

    Keeps every embedding: N·d numbers that grow with the data and not with the classes
        (``state_elements`` says how
    many), and N·d products for every prediction. Distances are ``1 − cos`` or Euclidean. With V_c
    the votes for class c, V their sum and k neighbours, ``score_c = log((k·V_c/V + 1/C)/(k + 1))``:
    one vote more is spread over all classes, so that the softmax of the scores is the share of
    votes and never zero.

    Args:
        in_features: width d of the embeddings.
        neighbours: k; all stored embeddings where they are fewer.
        metric: "cosine" or "euclidean".
        dtype: in which embeddings are kept and compared, "float32" (as a backbone gives them) or
            "float64".
    """

    title = "kNN"
    merges = pools = True
    counterexamples = False

    def __init__(
        self,
        in_features: int,
        neighbours: int = 5,
        metric: Metric = "cosine",
        dtype: Dtype = "float32",
    ):
        super().__init__(in_features, dtype)
        check_that(neighbours >= 1, "neighbours", neighbours, "at least 1")
        check_choice("metric", metric, Metric)
        self.neighbours = neighbours
        self.metric = metric
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
        stored = self.samples.z
        column = self._columns(self.samples.y)
        if self.metric == "cosine":
            stored = torch.nn.functional.normalize(stored, dim=1)
        return lambda z: self._vote(z.to(self.dtype), stored, column)

    def _vote(self, z: Tensor, stored: Tensor, column: Tensor) -> Tensor:
        """Return the scores (n, C) of queries z (n, d); for the cosine, ``stored`` is normalised
        already.
        """
        # Distances that are nothing but rounding are set to the largest that rounding gives.
        rounding = 16 * torch.finfo(self.dtype).eps
        if self.metric == "cosine":
            distance = (1 - torch.nn.functional.normalize(z, dim=1) @ stored.T).clamp_min(rounding)
        else:
            squares = z.square().sum(dim=1)[:, None] + stored.square().sum(dim=1)
            distance = torch.maximum(squares - 2 * z @ stored.T, rounding * squares)
            distance = distance.clamp_min(
                torch.finfo(self.dtype).tiny
            ).sqrt()  # both may be all zero
        k = min(self.neighbours, len(stored))
        nearest = distance.topk(k, dim=1, largest=False)
        vote = self.samples.weight[nearest.indices] / nearest.values.double()
        votes = vote.new_zeros(len(z), len(self.labels)).scatter_add_(
            1, column[nearest.indices], vote
        )
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


ABSENT = -1e30
"""Score of a class that was not among the samples of a fit: finite, and below every score that a
fit gives.
"""


class ReplayHead(Head):
    """A linear classifier that is fitted anew after each task, on that task's samples and those of
    the buffer.

    Samples are sorted before the fit, so that batch order and size do not matter, and are forgotten
    after it. Between tasks only the weights (d+1, C) are kept; the buffer counts for itself.
    """

    uses_buffer = True

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__(in_features, dtype)
        self.weights: Tensor = nn.Buffer(torch.zeros(in_features + 1, 0, dtype=self.dtype))
        self.counts: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.pending = Samples(in_features, self.dtype)
        self.past = Samples(in_features, self.dtype)

    @abstractmethod
    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        """Return weights (d+1, C), row 0 the bias, fitted on sorted samples whose classes are at
        ``columns`` (n,).
        """

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        self.pending.add(z, self.labels[columns], weight)

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        self.past.add(z, self.labels[columns], weight)

    def _solve(self) -> None:
        if len(self.pending):
            self.counts += self.pending.counts(self.labels)
            self.past.take(self.pending)
            self.past.sort()
            self.weights = self._fit(self.past, self._columns(self.past.y))
        self._discard()

    def _scores(self, z: Tensor) -> Tensor:
        return (augment(z.to(self.dtype)) @ self.weights).double()

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        for samples in (self.pending, self.past):
            samples.rename(new)

    def class_counts(self) -> dict[int, int]:
        """Return the number of distinct samples seen of each class in its task, by label."""
        counts = self.counts + self.pending.counts(self.labels)
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def _discard(self) -> None:
        self.pending.clear()
        self.past.clear()

    def _keep(self, columns: Tensor) -> None:
        for samples in (self.pending, self.past):
            samples.keep_labels(self.labels[columns])
        self.counts = self.counts[columns]
        self.weights = kept_weights(self.weights, columns)

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: C(d+1)."""
        return {"weights": self.weights.numel()}

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        stored = state.get("weights")
        if isinstance(stored, Tensor) and len(stored) != len(self.weights):
            raise CheckpointError(
                f"stored weights have shape {tuple(stored.shape)}, expected ({len(self.weights)},"
                " classes): they are for embeddings of another width"
            )


class LogisticHead(ReplayHead):
    """Multinomial logistic regression (scikit-learn, L-BFGS) on the current task and the buffer.

    Every fit starts from zero. A class of which the buffer holds no sample is unknown from then on:
    its score is −10³⁰. A single class scores 0.

    Args:
        in_features: width d of the embeddings.
        inverse_penalty: scikit-learn's C, the weight of the data against ``½‖W‖²`` (the bias is
            free).
        max_iter: bound on L-BFGS iterations; scikit-learn warns where it is too low.
        dtype: "float64" or "float32".
    """

    title = "Logistic regression"

    def __init__(
        self,
        in_features: int,
        inverse_penalty: float = 1.0,
        max_iter: int = 1000,
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, dtype)
        check_that(
            0 < inverse_penalty < float("inf"),
            "inverse_penalty",
            inverse_penalty,
            "a positive number",
        )
        check_that(max_iter >= 1, "max_iter", max_iter, "at least 1")
        self.inverse_penalty = inverse_penalty
        self.max_iter = max_iter

    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        from sklearn.linear_model import LogisticRegression

        present = torch.unique(columns)
        weights = samples.z.new_zeros(self.in_features + 1, len(self.labels))
        weights[0] = ABSENT
        weights[0, present] = 0.0
        if len(present) > 1:
            model = LogisticRegression(C=self.inverse_penalty, max_iter=self.max_iter)
            model.fit(samples.z.cpu().numpy(), columns.cpu().numpy(), samples.weight.cpu().numpy())
            solution = torch.cat(
                [torch.from_numpy(model.intercept_)[None], torch.from_numpy(model.coef_).T]
            )
            if len(present) == 2:  # scikit-learn gives the log odds of the second class
                solution = torch.cat([-solution / 2, solution / 2], dim=1)
            weights[:, present] = solution.to(weights)
        return weights


class SGDHead(ReplayHead):
    """A linear layer trained by stochastic gradient descent on the cross-entropy, from the weights
    it had before.

    Classes without a sample in the buffer stay among the outputs, and are pushed down as wrong
    answers: forgetting as in any network that is trained on. New classes start at zero. Gradients
        exist inside ``solve`` only.

    Args:
        in_features: width d of the embeddings.
        learning_rate: step size times the mean of ``‖[1; z]‖²``, so that one value suits every
            backbone.
        momentum: of torch.optim.SGD.
        epochs: passes over the task and the buffer.
        batch_size: samples a step.
        seed: of the order of the samples.
        dtype: "float64" or "float32".
    """

    title = "Linear (SGD)"

    def __init__(
        self,
        in_features: int,
        learning_rate: float = 0.5,
        momentum: float = 0.9,
        epochs: int = 20,
        batch_size: int = 64,
        seed: int = 0,
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, dtype)
        check_that(
            0 < learning_rate < float("inf"), "learning_rate", learning_rate, "a positive number"
        )
        check_that(0 <= momentum < 1, "momentum", momentum, "at least 0 and below 1")
        check_that(epochs >= 1, "epochs", epochs, "at least 1")
        check_that(batch_size >= 1, "batch_size", batch_size, "at least 1")
        self.learning_rate = learning_rate
        self.momentum = momentum
        self.epochs = epochs
        self.batch_size = batch_size
        self.seed = seed

    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        x = augment(samples.z)
        omega = samples.weight.to(samples.z)
        weights = x.new_zeros(x.shape[1], len(self.labels))
        weights[:, : self.weights.shape[1]] = self.weights
        weights.requires_grad_()
        step = self.learning_rate / x.square().sum(dim=1).mean().item()
        optimizer = torch.optim.SGD([weights], lr=step, momentum=self.momentum)
        generator = torch.Generator().manual_seed(self.seed + int(self.task_of.max()))
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(x), generator=generator).to(x.device)
                for rows in torch.split(order, self.batch_size):
                    loss = torch.nn.functional.cross_entropy(
                        x[rows] @ weights, columns[rows], reduction="none"
                    )
                    mean = (loss * omega[rows]).sum() / omega[rows].sum()
                    (weights.grad,) = torch.autograd.grad(mean, [weights])
                    optimizer.step()
        return weights.detach()
