"""CIFNet's head: regularised recursive least squares with a calibration buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import ACTIONS, Dtype, Head, in_full_precision
from cifnet_pl.statistics import (
    Centred,
    ClassMoments,
    LeftOut,
    Ridge,
    RidgeChoice,
    Sums,
    Weighting,
    augment,
    check_ridge,
    left_out_together,
    signed_targets,
    solve_ridge,
    squared_slopes,
    target_limit,
    whitened_rows,
)
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.growing_tensors import GrowingModule


class Cohort(GrowingModule):
    """All neurons that one task introduced: they share their samples and their Gram matrix.

    Buffers:
        sums: over ``x̃`` (not scaled by the slope).
        weights: (d+1, C_j).
        stale: () bool, whether the sums have changed since the weights were solved.
        past: () number of buffer samples in the sums.
        past_weight: (classes before this cohort,) weight that the buffer samples of each class
            had; 0: none were shown; −1: they had different weights.
        ridge_used: (C_j,) float64, λ of each class.

    Attributes:
        at_limit: whether a λ of the last solve is the largest candidate
            (:class:`~cifnet_pl.statistics.RidgeChoice`); not stored.
    """

    def __init__(self, sums: Sums, before: int = 0):
        super().__init__()
        self.sums = sums
        self.weights: Tensor = nn.Buffer(sums.packed_gram.new_zeros(sums.width, 0))
        self.stale: Tensor = nn.Buffer(torch.tensor(True))
        self.past: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.past_weight: Tensor = nn.Buffer(torch.zeros(before, dtype=torch.float64))
        self.ridge_used: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.float64))
        self.at_limit = False
        self.to(sums.packed_gram.device)


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
        cohorts: one :class:`Cohort` for each task.
        increment: sums over the samples of the current task, until it is solved.
        past_increment: sums over the buffer samples that the current task showed, likewise.

    Buffers:
        past_shown: (past classes,) float64 weight that the buffer samples of a class, shown in the
            current task, have in common; 0 without any, -1 where their weights differ.
    """

    title = "CIFNet"
    merges = True
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
        self.tells_novelty = (
            update_past  # else no cohort has seen the samples of all classes
        )
        self.cohorts = nn.ModuleList()
        self.increment: Sums | None = None
        self.past_increment: Sums | None = None
        self.past_shown: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.float64))

    # ------------------------------------------------------------------ sums

    def _new_sums(self, classes: int) -> Sums:
        per_class = self.weighting == "released"
        sums = Sums(
            self.in_features + 1, classes, per_class=per_class, dtype=self.dtype
        )
        return sums.to(self.labels.device)

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        self.cohorts.append(Cohort(self._new_sums(new), len(self.labels) - new))

    def _observe(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        first = len(self.labels) - len(self._latest.sums.counts)
        self._open_increment().add(augment(z), columns - first, weight)

    def _count_duplicates(self, count: int) -> None:
        self._open_increment().count_duplicates(count)

    def _open_increment(self) -> Sums:
        if self.increment is None:
            self.increment = self._new_sums(len(self._latest.sums.counts))
        return self.increment

    def _observe_past(self, z: Tensor, columns: Tensor, weight: Tensor | None) -> None:
        if self.past_increment is None:
            self.past_increment = self._new_sums(0)
        no_class = torch.full_like(columns, -1)
        self.past_increment.add(augment(z), no_class, weight)
        if not len(self.past_shown):
            self.past_shown = self._latest.past_weight.clone()
        if weight is None:
            weight = torch.ones_like(z[:, 0])
        weight = weight.to(self.past_shown)
        before = self.past_shown[columns]
        self.past_shown[columns] = weight
        same = (self.past_shown[columns] == weight) & (
            (before == 0) | (before == weight)
        )
        self.past_shown[columns[~same]] = -1

    @property
    def _cohorts(self) -> list[Cohort]:
        return cast("list[Cohort]", list(self.cohorts))

    @property
    def _latest(self) -> Cohort:
        return self._cohorts[-1]

    def _reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        # Buffer samples are common to all processes already.
        self._open_increment().reduce(sum_in_place)

    def _commit_increment(self) -> None:
        """Add what the current task observed to the cohorts; it cannot be discarded then.

        eq:moment_update and, as sums of Gram matrices without truncation, eq:svd_update.
        """
        self.under_way.fill_(False)
        if self.increment is not None:
            self._latest.sums.merge(self.increment)
            self._latest.stale.fill_(True)
            if self.update_past:
                for cohort in self._cohorts[:-1]:
                    cohort.sums.add_gram_of(self.increment)
                    cohort.stale.fill_(True)
            self.increment = None
        if self.past_increment is not None:
            self._latest.sums.add_gram_of(self.past_increment)
            self._latest.past += self.past_increment.seen
            self._latest.stale.fill_(True)
            self.past_increment = None
        if len(self.past_shown):
            self._latest.past_weight = self.past_shown
            self.past_shown = self.past_shown[:0]

    # ------------------------------------------------------------------ solve and score

    def _solve(self) -> None:
        """Commit the current task; the weights are computed lazily, in :meth:`weights`.

        A cohort is solved when a prediction first needs its weights, or by :meth:`refresh`.
        """
        self._commit_increment()

    def refresh(self) -> None:
        """Solve the cohorts that are out of date."""
        self.weights()

    @in_full_precision
    def weights(self) -> Tensor:
        """Return (d+1, C) weights of all classes in column order, row 0 the bias.

        Cohorts that are out of date are solved first.
        """
        for cohort in self._cohorts:
            if cohort.stale:
                self._solve_cohort(cohort)
        none = torch.zeros(
            self.in_features + 1, 0, dtype=self.dtype, device=self.labels.device
        )
        return torch.cat([none, *(cohort.weights for cohort in self._cohorts)], dim=1)

    def _solve_cohort(self, cohort: Cohort) -> None:
        """Solve ``(A_j + λI)⁻¹M_j``; a sample counts ω times the squared slope at its target."""
        sums = cohort.sums
        positive = self.slopes.positive * sums.class_sums
        negative = self.slopes.negative * (sums.gram[0] - sums.class_sums)
        moment = self.limit * (positive - negative).T
        target_square = self.limit**2 * (positive + negative)[:, 0]
        samples = int(sums.seen)
        weights = list[Tensor]()
        choices = list[RidgeChoice]()
        for columns, gram in self._gram_per_columns(cohort):
            if self.ridge == "gcv":
                regression = Centred.from_augmented(
                    gram,
                    moment[:, columns],
                    target_square[columns].sum(),
                    samples,
                )
                solved, choice = regression.solve("gcv")
            else:
                solved = solve_ridge(
                    gram, moment[:, columns], gram.new_tensor(self.ridge)
                )
                choice = RidgeChoice(self.ridge)
            weights.append(solved)
            choices += [choice] * solved.shape[1]
        cohort.weights = torch.cat(weights, dim=1)
        cohort.ridge_used = cohort.ridge_used.new_tensor(
            [choice.ridge for choice in choices]
        )
        cohort.at_limit = any(choice.at_limit for choice in choices)
        cohort.stale.fill_(False)

    def _gram_per_columns(self, cohort: Cohort) -> Iterator[tuple[slice, Tensor]]:
        """Yield each slope-weighted Gram matrix (d+1, d+1) with the columns it serves."""
        sums = cohort.sums
        gram = self.slopes.negative * sums.gram
        if self.weighting == "derivative":
            yield slice(None), gram
            return
        difference = self.slopes.positive - self.slopes.negative
        for column in range(len(sums.counts)):
            yield slice(column, column + 1), gram + difference * sums.class_gram(column)

    def _scores(self, z: Tensor) -> Tensor:
        return self.scoring()(z)

    def scoring(self) -> Callable[[Tensor], Tensor]:
        """Return the scores as a function (see :meth:`Head.scoring`).

        Cohorts that are out of date are solved first.
        """
        weights = self.weights()
        return lambda z: (augment(z.to(self.dtype)) @ weights).double()

    def ridge_choices(self) -> list[RidgeChoice]:
        """Return the ridge of each class, in column order; solves cohorts that are out of date."""
        self.weights()
        choices = list[RidgeChoice]()
        for cohort in self._cohorts:
            for ridge in cohort.ridge_used.tolist():
                choices.append(RidgeChoice(ridge, cohort.at_limit))
        return choices

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        scores = self._scores(z)
        x = augment(z)
        targets = signed_targets(columns, len(self.labels), self.limit)
        parts = list[LeftOut]()
        start = 0
        for cohort in self._cohorts:
            own = slice(start, start + len(cohort.sums.counts))
            weight = self._weights_in(cohort, columns, own)
            parts += self._leaving_out_of(
                cohort, x, scores[:, own], targets[:, own], weight
            )
            start = own.stop
        return lambda groups: torch.cat([left_out(groups) for left_out in parts], dim=1)

    def _leaving_out_of(
        self, cohort: Cohort, x: Tensor, scores: Tensor, targets: Tensor, weight: Tensor
    ) -> Iterator[LeftOut]:
        """Yield the leave-one-group-out scores of learned samples, for each Gram matrix.

        Args:
            cohort: solved.
            x: (n, d+1) ``[1; z]`` of the samples.
            scores: (n, C_j) of the cohort's classes.
            targets: (n, C_j), ±L.
            weight: (n,) of each sample in the cohort's sums; 0 where it was never seen.
        """
        positive, negative = self.slopes
        for columns, gram in self._gram_per_columns(cohort):
            ridge = cohort.ridge_used[columns][0].item()
            if self.ridge == "gcv":
                regression = Centred.from_augmented(
                    gram, gram[:, :0], gram.new_zeros(()), 0
                )
                whitened = regression.whitened_rows(x[:, 1:], ridge, gram[0, 0])
            else:
                whitened = whitened_rows(gram, gram.new_tensor(ridge), x)
            own_targets = targets[:, columns]
            # Both slopes are equal unless each class has a system of its own, of one column.
            is_positive = (own_targets[:, 0] > 0).double()
            slope = negative + (positive - negative) * is_positive
            yield partial(
                left_out_together,
                whitened,
                scores[:, columns],
                own_targets,
                weight=slope * weight,
            )

    def _weights_in(self, cohort: Cohort, columns: Tensor, own: slice) -> Tensor:
        """Return the weight (n,) float64 of samples in the sums of a cohort.

        Args:
            cohort: solved.
            columns: (n,) column of each sample's class.
            own: columns of the cohort.
        """
        weight = torch.ones(len(columns), dtype=torch.float64, device=columns.device)
        earlier = columns < own.start
        weight[earlier] = cohort.past_weight[columns[earlier]]
        weight[columns >= own.stop] = float(self.update_past)
        unknown = columns[weight < 0]
        if len(unknown):
            label = int(self.labels[unknown[0]])
            reason = f"buffer samples of class {label} had different weights"
            raise self._unsupported(ACTIONS["leaves_one_out"], reason)
        return weight

    def _novelty_features(self, z: Tensor) -> Tensor:
        return z.to(self.dtype)

    def _moments(self) -> ClassMoments:
        # The first cohort has seen the samples of all classes, each once.
        first = self._cohorts[0].sums
        sums = torch.cat([cohort.sums.class_sums for cohort in self._cohorts])
        return ClassMoments.of_augmented(first.gram, sums, first.mass)

    # ------------------------------------------------------------------ the life of a model

    def class_counts(self) -> dict[int, int]:
        """Return the number of samples observed of each class, duplicates included."""
        of_cohorts = [cohort.sums.counts for cohort in self._cohorts]
        counts = torch.cat([self.labels[:0], *of_cohorts])
        if self.increment is not None:
            counts[-len(self.increment.counts) :] += self.increment.counts
        return dict(zip(self.classes, counts.tolist(), strict=True))

    def _merge(self, other: CIFNetHead) -> None:
        # Shards of the current task merge before ``solve`` if all earlier tasks are common, and so
        # do whole sequences that were learned without buffer samples.
        if self.tasks != other.tasks:
            raise UsageError(
                "CIFNetHead merges shards of the same task sequence only: its oversampling and its"
                " negatives depend on which classes were learned when"
            )
        if not self._history_equal(other):
            self._merge_sequences(other)
        elif self._past_differs(other):
            raise UsageError(
                "cannot merge CIFNet shards that saw different buffer samples"
            )
        elif other.increment is not None:
            self._open_increment().merge(other.increment)
        self.solved.fill_(False)

    def _history_equal(self, other: CIFNetHead) -> bool:
        """Return whether both are within the same task, after the same earlier tasks."""
        if self.increment is None and other.increment is None:
            return False
        for mine, yours in zip(self._cohorts, other._cohorts, strict=True):
            gram = mine.sums.gram
            if not torch.equal(gram, yours.sums.gram.to(gram.device)):
                return False
        return True

    def _past_differs(self, other: CIFNetHead) -> bool:
        ours = self.past_increment
        theirs = other.past_increment
        if ours is None or theirs is None:
            return ours is not theirs
        return not torch.equal(ours.gram, theirs.gram.to(ours.gram.device))

    def _merge_sequences(self, other: CIFNetHead) -> None:
        self._commit_increment()
        other._commit_increment()
        if any(int(cohort.past) for cohort in [*self._cohorts, *other._cohorts]):
            raise UsageError(
                "cannot merge CIFNet runs after calibration: the buffer's samples would count"
                " twice. Merge before solve(), or use RidgeHead, whose statistics are exact sums"
            )
        for mine, yours in zip(self._cohorts, other._cohorts, strict=True):
            mine.sums.merge(yours.sums)
            mine.stale.fill_(True)

    def _discard(self) -> None:
        self.increment = None
        self.past_increment = None
        self.past_shown = self.past_shown[:0]

    def _keep(self, columns: Tensor) -> None:
        self._commit_increment()
        cohorts = nn.ModuleList()
        start = 0
        for cohort in self._cohorts:
            stop = start + len(cohort.sums.counts)
            own = columns[(columns >= start) & (columns < stop)] - start
            earlier = columns[columns < start]
            start = stop
            if not len(own):
                continue
            if not cohort.stale:
                cohort.weights = cohort.weights[:, own]
                cohort.ridge_used = cohort.ridge_used[own]
            cohort.past_weight = cohort.past_weight[earlier]
            cohort.sums.keep(own)
            cohorts.append(cohort)
        self.cohorts = cohorts

    def state_elements(self) -> dict[str, int]:
        """Count the values kept between tasks: K(d+1)(d+2)/2 + 2C(d+1).

        With weighting "released" there are C(d+1)(d+2)/2 more.
        """
        width = self.in_features + 1
        classes = len(self.labels)
        grams = len(self.cohorts)
        if self.weighting == "released":
            grams += classes
        per_class = classes * width
        factors = grams * width * (width + 1) // 2
        return {"factors": factors, "moments": per_class, "weights": per_class}

    def _before_load(self, state: Mapping[str, Any]) -> None:
        super()._before_load(state)
        tasks = {key.split(".")[1] for key in state if key.startswith("cohorts.")}
        self.cohorts = nn.ModuleList(Cohort(self._new_sums(0)) for _ in tasks)
        self.increment = None
        self.past_increment = None
        children = {key.split(".")[0] for key in state}
        if "increment" in children:
            self.increment = self._new_sums(0)
        if "past_increment" in children:
            self.past_increment = self._new_sums(0)
