"""The exact head: one shared Gram matrix, joint ridge regression over everything ever seen, no buffer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from cifnet_pl.heads.arguments import Dtype, Ridge, check_ridge
from cifnet_pl.heads.shared import LinearSumsHead
from cifnet_pl.heads.targets import signed_targets, target_limit
from cifnet_pl.statistics import Centred, augment, left_out
from cifnet_pl.utilities.errors import UsageError, unknown_name


def sqrt_l2(z: Tensor) -> Tensor:
    """Signed square root of (n, d) embeddings, L2-normalised."""
    return torch.nn.functional.normalize(z.sign() * z.abs().sqrt(), dim=1)


def joined(z: Tensor) -> Tensor:
    """L2-normalised (n, d) embeddings beside their :func:`sqrt_l2`: (n, 2d)."""
    return torch.cat([torch.nn.functional.normalize(z, dim=1), sqrt_l2(z)], dim=1)


Transform = Literal["none", "sqrt_l2", "joined"]
TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda z: z, "sqrt_l2": sqrt_l2, "joined": joined}
"""Feature maps applied to an embedding before the sums."""


class RidgeHead(LinearSumsHead):
    """Ridge regression on targets ±L over all data ever seen; exact, whatever the number of tasks.

    The joint optimum needs no buffer: for a class never seen before all earlier samples are negatives, and
    their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``, ``b = t̄ − Wᵀμ`` with
    centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ x̃)``, ``L = logit(1 − ε)``.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        transform: "none"; "sqrt_l2", the signed square root followed by L2 normalisation; or "joined", both the
            normalised embedding and that, at twice the width.
        balanced: weigh each sample by (mean class count) / (count of its class). Needs ``counts`` in
            ``begin_task``, and refuses ``merge_`` and ``subtract_``: a class's count must be final.
        dtype: of the sums, "float64" or "float32".
    """

    title = "Exact ridge"
    leaves_one_out = True

    class_weight: Tensor
    ridge_used: Tensor
    scale_used: Tensor

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = "gcv",
        epsilon: float = 0.05,
        transform: Transform = "none",
        balanced: bool = False,
        dtype: Dtype = "float64",
    ):
        if transform not in TRANSFORMS:
            raise unknown_name("transform", transform, TRANSFORMS)
        width = 1 + TRANSFORMS[transform](torch.zeros(1, max(in_features, 1))).shape[1]
        super().__init__(in_features, width, dtype)
        self.ridge = check_ridge(ridge)
        self.limit = target_limit(epsilon)
        self.epsilon, self.transform, self.balanced = epsilon, transform, balanced
        if balanced:
            self.merges = self.pools = self.subtracts = False
            self.reason = "balanced=True weighs samples by final class counts"
        self.register_buffer("class_weight", torch.zeros(0, dtype=self.dtype))
        self.register_buffer("ridge_used", torch.zeros((), dtype=torch.float64))
        self.register_buffer("scale_used", torch.ones((), dtype=self.dtype))

    def begin_task(self, classes: Sequence[int], counts: Sequence[int] | None = None) -> None:
        """Open a task (see :meth:`Head.begin_task`); with ``balanced``, ``counts`` must be given."""
        if self.balanced and counts is None:
            raise UsageError("balanced=True needs the class counts before the samples: begin_task(classes, counts)")
        super().begin_task(classes, counts)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        super()._begin(new, counts)
        if self.balanced:
            weight = 1 / self.class_weight.new_tensor(counts)
            self.class_weight = torch.cat([self.class_weight, weight])

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        if self.balanced:
            balance = self.class_weight[columns]
            weight = balance if weight is None else balance * weight.to(balance)
        super()._observe(z, columns, weight)

    def _features(self, z: Tensor) -> Tensor:
        return augment(TRANSFORMS[self.transform](z.to(self.dtype)))

    @property
    def _scale(self) -> Tensor:
        # Balanced weights average to one, so that a numeric ridge means the same with and without them.
        return (1 / self.class_weight).mean() if self.balanced else self.class_weight.new_ones(())

    def _centred(self) -> Centred:
        scale = self.scale_used
        gram = scale * self.sums.gram
        moment = self.limit * (2 * scale * self.sums.class_sums - gram[0]).T
        square = self.limit**2 * gram[0, 0] * len(self.labels)
        return Centred.from_augmented(gram, moment, square, int(self.sums.seen))

    def _solve(self) -> None:
        self._fold()
        self.scale_used = self._scale  # of all classes of this solve; one of them may be removed before the next
        self.weights, ridge = self._centred().solve(self.ridge)
        self.ridge_used.fill_(ridge)

    def _leave_one_out(self, z: Tensor, columns: Tensor) -> Tensor:
        weight = self.scale_used * (self.class_weight[columns] if self.balanced else 1.0)
        mass = self.scale_used * self.sums.mass
        share = weight * self._centred().leverages(self._features(z)[:, 1:], self.ridge_used.item(), mass)
        return left_out(self._scores(z), share, signed_targets(columns, len(self.labels), self.limit))

    def _keep(self, columns: Tensor) -> None:
        super()._keep(columns)
        if self.balanced:
            self.class_weight = self.class_weight[columns]
