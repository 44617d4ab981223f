"""Heads that learn from samples, not from sums: nearest neighbours and fitted classifiers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from cifnet_pl.heads.base import Dtype, Head, Metric
from cifnet_pl.heads.sums import kept_weights
from cifnet_pl.statistics import augment
from cifnet_pl.statistics.leaving_out import ROWS_PER_STEP
from cifnet_pl.utilities.errors import (
    check_choice,
    check_count,
    check_positive,
    check_that,
)
from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows


class Samples(GrowingModule):
    """Embeddings in the order in which they came, until ``sort`` orders them by their values.

    Buffers:
        z: (n, d) embeddings, in the dtype given.
        y: (n,) int64 labels.
        weight: (n,) float64 sample weights.
    """

    def __init__(self, width: int, dtype: torch.dtype):
        super().__init__()
        self.z = no_rows(dtype, width)
        self.y = no_rows(torch.int64)
        self.weight = no_rows(torch.float64)
        cast(Any, self).register_state_dict_pre_hook(Samples.gather)
        # Columns z, y and weight of what was added and is not in the buffers yet.
        self._added: list[tuple[Tensor, Tensor, Tensor]] = []

    def __len__(self) -> int:
        self.gather()
        return len(self.y)

    def add(self, z: Tensor, y: Tensor, weight: Tensor) -> None:
        """Append copies of rows.

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.
            weight: (n,) sample weights.
        """
        embeddings = z.detach().to(self.z, copy=True)
        weights = weight.to(self.weight, copy=True)
        self._added.append((embeddings, y.to(self.y, copy=True), weights))

    def gather(self, *_: Any) -> None:
        """Copy what was added since the last call into the buffers: one copy for many batches.

        Torch calls it before it reads the state, too, and passes arguments that do not matter.
        """
        if self._added:
            parts = [(self.z, self.y, self.weight), *self._added]
            self.z, self.y, self.weight = map(torch.cat, zip(*parts, strict=True))
            self._added = []

    def extend(self, other: Samples) -> None:
        """Append all rows of ``other``."""
        other.gather()
        self.add(other.z, other.y, other.weight)

    def keep(self, rows: Tensor) -> None:
        """Drop all gathered rows but those at ``rows``, a mask over them or their positions."""
        self.z = self.z[rows]
        self.y = self.y[rows]
        self.weight = self.weight[rows]

    def clear(self) -> None:
        """Drop all rows."""
        self._added = []
        self.keep(self.y.new_zeros(0))

    def sort(self) -> None:
        """Order rows by their bytes: embedding first, then weight, then label.

        What is computed from them afterwards does not depend on batch order or size. The label
        comes last, so that it matters between equal embeddings only: renaming classes changes
        nothing else.
        """
        self.gather()
        label_bits = self.y.view(torch.float64)
        content = torch.column_stack([self.z.double(), self.weight, label_bits])
        values = content.cpu().numpy()
        row_bytes = np.dtype((np.void, values.shape[1] * values.itemsize))
        keys = values.view(row_bytes).ravel()
        order = np.argsort(keys, kind="stable")
        self.keep(torch.from_numpy(order).to(self.y.device))

    def counts(self, labels: Tensor) -> Tensor:
        """Return (C,) int64 number of rows of each of ``labels`` (C,)."""
        self.gather()
        return (self.y[:, None] == labels).sum(dim=0)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.gather()
        return super()._apply(fn, recurse)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        self._added = []


class SamplesHead(Head):
    """A head that observes a task into samples, which it has until the task is solved.

    Attributes:
        pending: samples of the current task.
    """

    def __init__(self, in_features: int, dtype: Dtype):
        super().__init__(in_features, dtype)
        self.pending = Samples(in_features, self.dtype)

    def _samples(self) -> list[Samples]:
        return [child for child in self.children() if isinstance(child, Samples)]

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        self.pending.add(z, self.labels[columns], weight)

    def _discard(self) -> None:
        self.pending.clear()

    def _rename(self, new: Callable[[Tensor], Tensor]) -> None:
        for samples in self._samples():
            samples.gather()
            samples.y = new(samples.y)

    def _keep(self, columns: Tensor) -> None:
        labels = self.labels[columns]
        for samples in self._samples():
            samples.gather()
            samples.keep(torch.isin(samples.y, labels))


class KNNHead(SamplesHead):
    """k nearest neighbours, each voting with its sample weight divided by its distance.

    Keeps every embedding: N·d values, which grow with the data and not with the classes. A
    prediction takes N·d products. Distances are ``1 − cos`` or Euclidean. With V_c the votes for
    class c, V their sum and k neighbours, ``score_c = log((k·V_c/V + 1/C)/(k + 1))``: one further
    vote is spread over all classes, so that the softmax of the scores is the share of votes and
    never zero.

    Args:
        in_features: width d of the embeddings.
        neighbours: k; all stored embeddings where they are fewer.
        metric: "cosine" or "euclidean".
        dtype: in which embeddings are kept and compared, "float32" (as a backbone gives them) or
            "float64".
    """

    title = "kNN"
    components: ClassVar[dict[str, str]] = {"z": "embeddings"}
    merges = True
    counterexamples = False

    def __init__(
        self,
        in_features: int,
        neighbours: int = 5,
        metric: Metric = "cosine",
        dtype: Dtype = "float32",
    ):
        super().__init__(in_features, dtype)
        check_count("neighbours", neighbours)
        check_choice("metric", metric, Metric)
        self.neighbours = neighbours
        self.metric = metric
        self.samples = Samples(in_features, self.dtype)

    def _solve(self) -> None:
        if len(self.pending):
            self.samples.extend(self.pending)
            self.pending.clear()
            self.samples.sort()

    def _scores(self, z: Tensor) -> Tensor:
        score = self.scoring()
        return torch.cat([score(queries) for queries in torch.split(z, ROWS_PER_STEP)])

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores as a function (see :meth:`Head.scoring`), of all queries at once."""
        stored = self.samples.z
        weight = self.samples.weight
        column = self._columns(self.samples.y)
        if self.metric == "cosine":
            stored = normalize(stored, dim=1)
        k = min(self.neighbours, len(stored))
        classes = len(self.labels)

        def score(z: Tensor) -> Tensor:
            distance = self._distance(z.to(self.dtype), stored)
            nearest = distance.topk(k, dim=1, largest=False)
            neighbours = nearest.indices
            vote = weight[neighbours] / nearest.values.double()
            votes = vote.new_zeros(len(z), classes)
            votes = votes.scatter_add_(1, column[neighbours], vote)
            share = votes / votes.sum(dim=1, keepdim=True)
            with_prior = k * share + 1 / classes
            return torch.log(with_prior / (k + 1))

        return score

    def _distance(self, z: Tensor, stored: Tensor) -> Tensor:
        """Return the distances (n, N), at least as large as rounding.

        Args:
            z: (n, d) queries.
            stored: (N, d) embeddings; for the cosine they are normalised already.
        """
        precision = torch.finfo(self.dtype)
        rounding = 16 * precision.eps
        if self.metric == "cosine":
            unit = normalize(z, dim=1)
            return (1 - unit @ stored.T).clamp_min(rounding)
        lengths = z.square().sum(dim=1, keepdim=True)
        squares = lengths + stored.square().sum(dim=1)
        distance = squares - 2 * z @ stored.T
        at_least = torch.maximum(distance, rounding * squares)
        # Both embeddings may be all zero.
        return at_least.clamp_min(precision.tiny).sqrt()

    # ------------------------------------------------------------------ the life of a model

    def _merge(self, other: Self) -> None:
        self.pending.extend(other.samples)
        self.pending.extend(other.pending)
        self._solve()

    def _class_counts(self) -> Tensor:
        return self.samples.counts(self.labels) + self.pending.counts(self.labels)


class ReplayHead(SamplesHead):
    """A linear classifier that is fitted anew after each task, on its samples and the buffer's.

    Samples are sorted before the fit, so that batch order and size do not matter, and are discarded
    after it. Between tasks only the weights (d+1, C) are kept, besides the calibration buffer.
    """

    uses_buffer = True

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__(in_features, dtype)
        self.weights: Tensor = nn.Buffer(
            torch.zeros(in_features + 1, 0, dtype=self.dtype)
        )
        self.counts = no_rows(torch.int64)
        self.past = Samples(in_features, self.dtype)

    @abstractmethod
    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        """Return weights (d+1, C), row 0 the bias.

        Args:
            samples: sorted.
            columns: (n,) column of each one's class.
        """

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        self.past.add(z, self.labels[columns], weight)

    def _solve(self) -> None:
        if len(self.pending):
            self.counts += self.pending.counts(self.labels)
            self.past.extend(self.pending)
            self.past.sort()
            self.weights = self._fit(self.past, self._columns(self.past.y))
        self._discard()

    def _scores(self, z: Tensor) -> Tensor:
        return (augment(z, self.dtype) @ self.weights).double()

    def _class_counts(self) -> Tensor:
        return self.counts + self.pending.counts(self.labels)

    def _discard(self) -> None:
        super()._discard()
        self.past.clear()

    def _keep(self, columns: Tensor) -> None:
        super()._keep(columns)
        self.counts = self.counts[columns]
        self.weights = kept_weights(self.weights, columns)


class LogisticHead(ReplayHead):
    """Multinomial logistic regression (scikit-learn, L-BFGS) on the current task and the buffer.

    Every fit starts from zero. A class without samples in the buffer is unknown from then on: its
    score is the lowest number of float32. A single class scores 0.

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
        check_positive("inverse_penalty", inverse_penalty)
        check_count("max_iter", max_iter)
        self.inverse_penalty = inverse_penalty
        self.max_iter = max_iter

    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        from sklearn.linear_model import LogisticRegression

        present = torch.unique(columns)
        weights = samples.z.new_zeros(self.in_features + 1, len(self.labels))
        # A class without samples: finite, and below every fitted score.
        weights[0] = torch.finfo(torch.float32).min
        weights[0, present] = 0.0
        if len(present) > 1:
            model = LogisticRegression(C=self.inverse_penalty, max_iter=self.max_iter)
            z = samples.z.cpu().numpy()
            model.fit(z, columns.cpu().numpy(), samples.weight.cpu().numpy())
            bias = torch.from_numpy(model.intercept_)[None]
            solution = torch.cat([bias, torch.from_numpy(model.coef_).T])
            if len(present) == 2:  # scikit-learn gives the log odds of the second class
                solution = torch.cat([-solution / 2, solution / 2], dim=1)
            weights[:, present] = solution.to(weights)
        return weights


class SGDHead(ReplayHead):
    """A linear layer trained by stochastic gradient descent on the cross-entropy.

    It starts from the weights it had before. Classes without a sample in the buffer stay among the
    outputs, and their scores fall: forgetting as in any network that is trained on. New classes
    start at zero. Gradients exist inside ``solve`` only.

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
        check_positive("learning_rate", learning_rate)
        check_that(0 <= momentum < 1, "momentum", momentum, "at least 0 and below 1")
        check_count("epochs", epochs)
        check_count("batch_size", batch_size)
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
        mean_square = x.square().sum(dim=1).mean().item()
        step = self.learning_rate / mean_square
        optimizer = torch.optim.SGD([weights], lr=step, momentum=self.momentum)
        task = int(self.task_of.max())
        generator = torch.Generator().manual_seed(self.seed + task)
        with torch.enable_grad():
            for _ in range(self.epochs):
                order = torch.randperm(len(x), generator=generator).to(x.device)
                for rows in torch.split(order, self.batch_size):
                    scores = x[rows] @ weights
                    loss = cross_entropy(scores, columns[rows], reduction="none")
                    mean = (loss * omega[rows]).sum() / omega[rows].sum()
                    (weights.grad,) = torch.autograd.grad(mean, [weights])
                    optimizer.step()
        return weights.detach()
