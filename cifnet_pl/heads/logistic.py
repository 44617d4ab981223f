"""Linear softmax classifiers fitted iteratively on the current task and the buffer, to compare closed forms with."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.heads.base import Dtype, Head, Samples
from cifnet_pl.heads.sums import kept_weights
from cifnet_pl.statistics import augment
from cifnet_pl.utilities.errors import CheckpointError, UsageError

ABSENT = -1e30
"""Score of a class that was not among the samples of a fit: finite, and below every score that a fit gives."""


class ReplayHead(Head):
    """A linear classifier that is fitted anew after each task, on that task's samples and those of the buffer.

    Samples are sorted before the fit, so that batch order and size do not matter, and are forgotten after it. Between
    tasks only the weights (d+1, C) are kept; the buffer counts for itself.
    """

    uses_buffer = True

    weights: Tensor
    counts: Tensor

    def __init__(self, in_features: int, dtype: Dtype = "float64"):
        super().__init__(in_features, dtype)
        self.register_buffer("weights", torch.zeros(in_features + 1, 0, dtype=self.dtype))
        self.register_buffer("counts", torch.zeros(0, dtype=torch.int64))
        self.pending = Samples(in_features, self.dtype)
        self.past = Samples(in_features, self.dtype)

    @abstractmethod
    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        """Return weights (d+1, C), row 0 the bias, fitted on sorted samples whose classes are at ``columns`` (n,)."""

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
                f"stored weights have shape {tuple(stored.shape)}, expected ({len(self.weights)}, classes): "
                "they are for embeddings of another width"
            )


class LogisticHead(ReplayHead):
    """Multinomial logistic regression (scikit-learn, L-BFGS) on the current task and the buffer.

    Every fit starts from zero. A class of which the buffer holds no sample is unknown from then on: its score is
    −10³⁰. A single class scores 0.

    Args:
        in_features: width d of the embeddings.
        inverse_penalty: scikit-learn's C, the weight of the data against ``½‖W‖²`` (the bias is free).
        max_iter: bound on L-BFGS iterations; scikit-learn warns where it is too low.
        dtype: "float64" or "float32".
    """

    title = "Logistic regression"

    def __init__(self, in_features: int, inverse_penalty: float = 1.0, max_iter: int = 1000, dtype: Dtype = "float64"):
        super().__init__(in_features, dtype)
        if not 0 < inverse_penalty < float("inf") or max_iter < 1:
            raise UsageError(f"inverse_penalty is {inverse_penalty:g}, max_iter {max_iter}: expected positive numbers")
        self.inverse_penalty, self.max_iter = inverse_penalty, max_iter

    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        from sklearn.linear_model import LogisticRegression

        present = torch.unique(columns)
        weights = samples.z.new_zeros(self.in_features + 1, len(self.labels))
        weights[0] = ABSENT
        weights[0, present] = 0.0
        if len(present) > 1:
            model = LogisticRegression(C=self.inverse_penalty, max_iter=self.max_iter)
            model.fit(samples.z.cpu().numpy(), columns.cpu().numpy(), samples.weight.cpu().numpy())
            solution = torch.cat([torch.from_numpy(model.intercept_)[None], torch.from_numpy(model.coef_).T])
            if len(present) == 2:  # scikit-learn gives the log odds of the second class
                solution = torch.cat([-solution / 2, solution / 2], dim=1)
            weights[:, present] = solution.to(weights)
        return weights


class SGDHead(ReplayHead):
    """A linear layer trained by stochastic gradient descent on the cross-entropy, from the weights it had before.

    Classes without a sample in the buffer stay among the outputs, and are pushed down as wrong answers: forgetting
    as in any network that is trained on. New classes start at zero. Gradients exist inside ``solve`` only.

    Args:
        in_features: width d of the embeddings.
        learning_rate: step size times the mean of ``‖[1; z]‖²``, so that one value suits every backbone.
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
        if not 0 < learning_rate < float("inf") or not 0 <= momentum < 1:
            raise UsageError(f"learning_rate is {learning_rate:g}, momentum {momentum:g}: expected > 0 and in [0, 1)")
        if epochs < 1 or batch_size < 1:
            raise UsageError(f"epochs is {epochs}, batch_size {batch_size}: expected at least 1")
        self.learning_rate, self.momentum = learning_rate, momentum
        self.epochs, self.batch_size, self.seed = epochs, batch_size, seed

    def _fit(self, samples: Samples, columns: Tensor) -> Tensor:
        x, omega = augment(samples.z), samples.weight.to(samples.z)
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
                    loss = torch.nn.functional.cross_entropy(x[rows] @ weights, columns[rows], reduction="none")
                    mean = (loss * omega[rows]).sum() / omega[rows].sum()
                    (weights.grad,) = torch.autograd.grad(mean, [weights])
                    optimizer.step()
        return weights.detach()
