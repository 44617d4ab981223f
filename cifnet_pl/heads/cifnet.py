"""CIFNet's head: regularised recursive least squares with a calibration buffer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from cifnet_pl.heads.base import Dtype, Head
from cifnet_pl.statistics import (
    ClassDistances,
    LearnedRows,
    LeftOut,
    Ridge,
    Sums,
    Weighting,
    augment,
    check_ridge,
    factorise,
    gcv_ridge_of_free_bias,
    solve_ridge,
    squared_slopes,
    target_limit,
    whiten,
)
from cifnet_pl.utilities.growing_tensors import GrowingModule


class Cohort(GrowingModule):
    """All neurons that one task introduced: they share their samples and their Gram matrix.

    Buffers:
        sums: over ``x̃`` (not scaled by the slope).
        weights: (d+1, C_j), zero until solved.
        past: () number of buffer samples in the sums.
        past_weight: (classes before this cohort,) float64, mean weight that the buffer samples of
            each class had; 0 where none were shown.
        ridge_used: (C_j,) float64, λ of each class.
    """

    def __init__(self, sums: Sums, before: int):
        super().__init__()
        self.sums = sums
        classes = len(sums.counts)
        self.weights: Tensor = nn.Buffer(sums.mass.new_zeros(sums.width, classes))
        self.past: Tensor = nn.Buffer(torch.tensor(0))
        self.past_weight: Tensor = nn.Buffer(torch.zeros(before, dtype=torch.float64))
        self.ridge_used: Tensor = nn.Buffer(torch.zeros(classes, dtype=torch.float64))


class CIFNetHead(Head):
    """The paper's classifier (Section "Closed-Form Incremental Classifier"), solved per cohort.

    A cohort is all classes that one task introduced: they have seen the same samples. For every
    cohort j, ``A_j = f'²·Σ ω x̃x̃ᵀ`` over the buffer at task j, its own task and, with
    ``update_past``, all later tasks. ``m_c = f'²·L·(2·Σ_{y=c} ω x̃ − Σ ω x̃)`` and ``W_j = (A_j +
    λI)⁻¹M_j`` (eq:weights_rrls), with ``f'²`` the squared slope of the sigmoid at the targets ±L
    and ω the sample weight. The Gram matrix is ``U S² Uᵀ``, so no singular value decomposition is
    needed.
    With weighting "released" positives and negatives have different weights, and every class keeps
    a Gram matrix of its own positives.
    K(d+1)(d+2)/2 + 2C(d+1) values are kept between tasks; with weighting "released" C(d+1)(d+2)/2
    more.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to A with the bias penalised, as in the paper, which gives no value: 0.01 is
            that of the authors' released code. "gcv" chooses one for each cohort, with the bias
            free.
        epsilon: clip of the one-hot targets.
        update_past: whether neurons of earlier tasks see a new task's samples as negatives. True is
            our departure from the paper, whose text locks them (False); the authors' released code
            updates them too. Samples of the buffer are shown by ``observe_past`` instead.
        weighting: "derivative" (the paper's formula) or "released" (the authors' released code).
        dtype: of the sums, "float64" or "float32".

    Attributes:
        cohorts: one :class:`Cohort` for each task, in a ``ModuleList``.
        increment: sums over the samples of the current task, until it is solved.
        past_increment: sums over the buffer samples that the current task showed, likewise.
        penalised: (d+1,) share of λ that each feature bears: 1, and 0 for a free bias.
    """

    cohorts: list[Cohort]
    title = "CIFNet"
    reduces = True
    leaves_one_out = True
    uses_buffer = True
    tells_novelty = True
    reason = (
        "its oversampling and its negatives depend on which classes were learned when"
    )

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = 0.01,
        epsilon: float = 0.05,
        update_past: bool = True,
        weighting: Weighting = "derivative",
        dtype: Dtype = "float64",
    ):
        super().__init__(in_features, dtype)
        self.ridge = check_ridge(ridge)
        self.limit = target_limit(epsilon)
        self.slopes = squared_slopes(weighting, epsilon)
        self.epsilon = epsilon
        self.update_past = update_past
        self.weighting = weighting
        self.per_class = weighting == "released"
        self.tells_novelty = (
            update_past  # else no cohort has seen the samples of all classes
        )
        self.cohorts = cast(Any, nn.ModuleList())
        self.increment: Sums | None = None
        self.past_increment: Sums | None = None
        penalised = torch.ones(in_features + 1, dtype=self.dtype)
        penalised[0] = float(ridge != "gcv")
        self.penalised: Tensor = nn.Buffer(penalised, persistent=False)

    # ------------------------------------------------------------------ sums

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        width = self.in_features + 1
        sums = Sums(width, new, per_class=self.per_class, dtype=self.dtype)
        cohort = Cohort(sums, len(self.labels) - new)
        self.cohorts.append(cohort.to(self.labels.device))

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        increment = self._open_increment()
        first = len(self.labels) - len(increment.counts)
        increment.add(augment(z), columns - first, weight)

    def _count_duplicates(self, count: int) -> None:
        self._open_increment().seen -= count

    def _open_increment(self) -> Sums:
        if self.increment is None:
            sums = self.cohorts[-1].sums
            self.increment = sums.empty(len(sums.counts))
        return self.increment

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor) -> None:
        if self.past_increment is None:
            earlier = len(self.cohorts[-1].past_weight)
            sums = Sums(self.in_features + 1, earlier, dtype=self.dtype)
            self.past_increment = sums.to(self.labels.device)
        self.past_increment.add(augment(z), columns, weight)

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        # Buffer samples are common to all processes already.
        self._open_increment().reduce(sum_in_place)

    # ------------------------------------------------------------------ solve and score

    def _solve(self) -> None:
        """Solve ``(A_j + λI)⁻¹M_j``; a sample counts ω times the squared slope at its target."""
        self._commit()
        for cohort in self.cohorts:
            sums = cohort.sums
            positive = self.slopes.positive * sums.class_sums
            negative = self.slopes.negative * (sums.gram[0] - sums.class_sums)
            moment = self.limit * (positive - negative).T
            target_square = self.limit**2 * (positive + negative)[:, 0]
            for columns, gram in self._gram_per_columns(cohort):
                own = moment[:, columns]
                ridge = self.ridge
                if ridge == "gcv":
                    square = target_square[columns].sum()
                    ridge = gcv_ridge_of_free_bias(gram, own, square, int(sums.seen))
                cohort.ridge_used[columns] = ridge
                penalty = ridge * self.penalised
                cohort.weights[:, columns] = solve_ridge(gram, own, penalty)

    def _commit(self) -> None:
        """Add what the current task observed to the cohorts; it cannot be discarded then.

        eq:moment_update and, as sums of Gram matrices without truncation, eq:svd_update.
        """
        self.under_way.fill_(False)
        latest = self.cohorts[-1]
        if self.increment is not None:
            latest.sums.merge(self.increment)
            if self.update_past:
                for cohort in self.cohorts[:-1]:
                    cohort.sums.add_rows_of(self.increment)
        past = self.past_increment
        if past is not None:
            latest.sums.add_rows_of(past)
            latest.past += past.seen
            mean_weight = past.class_sums[:, 0].double() / past.counts
            shown = past.counts > 0
            latest.past_weight = torch.where(shown, mean_weight, latest.past_weight)
        self._discard()

    def weights(self) -> Tensor:
        """Return (d+1, C) weights of all classes in column order, row 0 the bias."""
        return torch.cat([cohort.weights for cohort in self.cohorts], dim=1)

    def _gram_per_columns(self, cohort: Cohort) -> Iterator[tuple[slice, Tensor]]:
        """Yield each slope-weighted Gram matrix (d+1, d+1) with the columns it serves."""
        sums = cohort.sums
        gram = self.slopes.negative * sums.gram
        if not self.per_class:
            yield slice(None), gram
            return
        difference = self.slopes.positive - self.slopes.negative
        for column in range(len(sums.counts)):
            yield slice(column, column + 1), gram + difference * sums.class_gram(column)

    def _scores(self, z: Tensor) -> Tensor:
        return (augment(z, self.dtype) @ self.weights()).double()

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        scores = self._scores(z)
        x = augment(z, torch.float64)
        is_own = one_hot(columns, len(self.labels)).double()
        targets = self.limit * (2 * is_own - 1)
        positive, negative = self.slopes
        parts = []
        start = 0
        for cohort in self.cohorts:
            stop = start + len(cohort.sums.counts)
            # Of each class: of earlier tasks, of this one, and of later ones.
            weights = scores.new_ones(len(self.labels))
            weights[:start] = cohort.past_weight
            weights[stop:] = float(self.update_past)
            for own, gram in self._gram_per_columns(cohort):
                ridge = cohort.ridge_used[own][0].item()
                penalty = ridge * self.penalised
                factor = factorise(gram.double(), penalty.double())
                whitened = whiten(factor, x)
                own_columns = torch.arange(start, stop)[own]
                own_scores = scores[:, own_columns]
                own_targets = targets[:, own_columns]
                # Both slopes are equal unless each class has a system of its own, of one column.
                is_positive = (own_targets[:, 0] > 0).double()
                slope = negative + (positive - negative) * is_positive
                learned = LearnedRows(whitened, weight=slope * weights[columns])
                parts.append(partial(learned.scores, own_scores, own_targets))
            start = stop
        return lambda groups: torch.cat([left_out(groups) for left_out in parts], dim=1)

    def _novelty_features(self, z: Tensor) -> Tensor:
        return z.to(self.dtype)

    def _class_distances(self) -> ClassDistances:
        # The first cohort has seen the samples of all classes, each once.
        first = self.cohorts[0].sums
        sums = torch.cat([cohort.sums.class_sums for cohort in self.cohorts])
        return ClassDistances(first.gram, sums, first.mass)

    # ------------------------------------------------------------------ the life of a model

    def _class_counts(self) -> Tensor:
        of_cohorts = [cohort.sums.counts for cohort in self.cohorts]
        counts = torch.cat([self.labels[:0], *of_cohorts])
        if self.increment is not None:
            new = self.increment.counts
            counts[-len(new) :] += new
        return counts

    def _discard(self) -> None:
        self.increment = None
        self.past_increment = None

    def _keep(self, columns: Tensor) -> None:
        self._commit()
        cohorts: Any = nn.ModuleList()
        start = 0
        for cohort in self.cohorts:
            stop = start + len(cohort.sums.counts)
            own = columns[(columns >= start) & (columns < stop)] - start
            earlier = columns[columns < start]
            start = stop
            if not len(own):
                continue
            cohort.weights = cohort.weights[:, own]
            cohort.ridge_used = cohort.ridge_used[own]
            cohort.past_weight = cohort.past_weight[earlier]
            cohort.sums.keep(own)
            cohorts.append(cohort)
        self.cohorts = cohorts

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        tasks = {key.split(".")[1] for key in state if key.startswith("cohorts.")}
        width = self.in_features + 1
        empty = Sums(width, per_class=self.per_class, dtype=self.dtype)
        cohorts = nn.ModuleList(Cohort(empty.empty(0), before=0) for _ in tasks)
        self.cohorts = cast(Any, cohorts)
        self._discard()
        if "increment.counts" in state:
            self.increment = empty
        if "past_increment.counts" in state:
            self.past_increment = Sums(width, dtype=self.dtype)
        self.to(self.labels.device)
