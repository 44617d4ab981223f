"""The exact head: joint ridge regression over everything seen, from one shared Gram matrix."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, in_full_precision
from cifnet_pl.heads.calibration_pass import CalibrationPass
from cifnet_pl.heads.sums import SumsHead
from cifnet_pl.statistics import (
    ClassMoments,
    LearnedRows,
    Position,
    Ridge,
    RidgeChoice,
    RidgeFactor,
    RidgeSystem,
    Sums,
    augment,
    check_ridge,
    draw_product_directions,
    fit_temperature,
    target_limit,
    with_product_features,
    within_scatter,
)
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.growing_tensors import Sizes

Decision = Literal["ridge", "discriminant", "auto"]
"""Decision rule: ridge regression, the discriminant, or the one that left-out samples select."""

ProductFeatures = float | Literal["auto"]
"""Number of random product features for each feature of the embedding, or "auto"."""

SAMPLES_TO_SELECT = 15
"""Buffer samples a class from which on their likelihood selects between two decision rules.

Measured by ``python -m benchmarks.studies.few_images``.
"""

EVEN_RATIO = 1.25
"""Samples of the largest class over those of the smallest up to which classes are even."""

MANY_SAMPLES = 100
"""Samples a class from which on features are not scaled: it pays where samples are few."""

GROUPED_SHARE = 0.25
"""Share of samples that share a group from which on they are not taken for independent."""

UNEVEN_RATIO = 4
"""Samples of the largest class over those of the smallest from which on classes are uneven."""

SMALLEST_DEVIATION = 0.1
"""Smallest standard deviation of a feature for its scaling, as a share of the root mean square."""

AUTO_PRODUCT_FEATURES = {100: 1.5, 400: 3.0}
"""Median samples of a class in the first task → product features that "auto" takes from there on.

Three with fewer samples cost as much as with many, and gain less (``python -m
benchmarks.studies.few_images``)."""

ROWS_PER_BLOCK = 512
"""Samples whose features a calibration pass computes at a time."""

RIDGE_SCALES = (1.0, 0.3, 0.1)
"""Ridges that are tried with product features, as multiples of generalised cross-validation's."""

MANY_SAMPLES_PER_FEATURE = 6
"""Learned samples for each feature from which on the smallest of ``RIDGE_SCALES`` is tried first.

The λ of generalised cross-validation is that of the features without products. With up to two
samples for each feature it is right with products, too (Tiny-ImageNet, CIFAR-100: a tenth of it
costs 1 to 1.5 points); with eight or more it is ten times too large (CIFAR-100: 1 point). With less
than one sample for each feature no other is tried.
"""


class RuleWeights(NamedTuple):
    """Factors of the two rules whose sum is the decision rule; a factor of zero leaves one out."""

    regression: float
    discriminant: float


DISCRIMINANT = RuleWeights(regression=0.0, discriminant=1.0)


class RuleLosses(NamedTuple):
    """Losses of one decision rule.

    Attributes:
        losses: (n,) negative log likelihood of each left-out sample; NaN where it has no score.
        weights: of the two rules.
    """

    losses: Tensor
    weights: RuleWeights


class RidgeSolution(NamedTuple):
    """The ridge system and its factor at one λ."""

    system: RidgeSystem
    factor: RidgeFactor


class RidgePass(CalibrationPass):
    """Selects the decision rule of a :class:`RidgeHead`, the scaling of its features, and λ.

    The criterion is the negative log likelihood of left-out samples at the temperature that
    calibrates a rule.

    *Rule.* In the sum of ridge regression and the discriminant each is divided by its own
    temperature, so that both are log probabilities. The sum is taken of samples that are
    independent, the discriminant of those that come in groups, unless the other one's criterion is
    better by more than its standard deviation. With fewer than ``SAMPLES_TO_SELECT`` samples a
    class the criterion is not asked: a class without one of its few samples is another one. Of
    uneven classes (``UNEVEN_RATIO``) it is the discriminant: the criterion would be that of the
    frequent ones.

    *Scaling* is tried without product features and with fewer than ``MANY_SAMPLES`` samples a
    class, as it pays where samples are few. It is taken where the criterion is smaller.

    *λ* is tried with product features and enough samples: ``RIDGE_SCALES``, from the one that the
    number of samples suggests, as long as the criterion falls by more than its standard deviation.
    Without product features generalised cross-validation is as good.

    For p features, m samples and C classes each λ that is tried takes one Cholesky factorisation of
    width p and one triangular solve of m × p; the first factorisation is that of the solve. The
    degrees of freedom of the discriminant cost as much again, once for the λ that is taken. Scores
    of further groupings cost only what has the size of the groups
    (:mod:`cifnet_pl.statistics.ridge_system`).

    Args:
        head: solved.
        z: (n, d) embeddings of learned samples.
        columns: (n,) int64 their classes.
    """

    def __init__(self, head: RidgeHead, z: Tensor, columns: Tensor):
        self.head = head
        self.columns = columns
        # A block of rows and its products fit into memory that the last block has freed.
        blocks = torch.split(z, ROWS_PER_BLOCK)
        self.features = torch.cat([head._features(block)[:, 1:] for block in blocks])
        if head._solved is None:
            system = head._system()
            factor = RidgeFactor(system, head.ridge_used.item())
        else:
            system, factor = head._solved
        self.system = system
        self.rows = self._rows_of(factor)

    def _rows_of(self, factor: RidgeFactor) -> LearnedRows:
        features = self.features
        if self.head.scaled:
            features = self.head._factors()[1:] * features
        return LearnedRows.of_features(factor, features, self.columns)

    def at(self, rows: Tensor) -> RidgePass:
        """Return the pass over some of the samples, whose features are computed already."""
        part = copy.copy(self)
        part.columns = self.columns[rows]
        part.features = self.features[rows]
        part.rows = self.rows.at(rows)
        return part

    def _is_uneven(self) -> bool:
        """Return whether classes differ in their number of samples."""
        counts = self.head.sums.counts
        return bool(counts.max() > EVEN_RATIO * counts.min())

    def approximately_left_out(self, groups: Tensor | None) -> Tensor:
        """Return scores of the discriminant.

        They do not depend on what was selected before.
        """
        if not self.head.selects_rule:
            return self.left_out(groups)
        return self._comparable_discriminant(groups)

    def _comparable_discriminant(self, groups: Tensor | None) -> Tensor:
        """Return scores of the discriminant to compare rules and ridges by.

        With product features the degrees of freedom are expensive, and used only where classes are
        uneven, where they matter.
        """
        if len(self.head.directions) and not self._is_uneven():
            return self.rows.uncorrected_discriminant(groups)
        return self.rows.discriminant(groups)

    def left_out(self, groups: Tensor | None) -> Tensor:
        """Return the leave-one-group-out scores (m, C) float64 of the samples.

        Args:
            groups: (m,) int64, equal for samples that are left out together; None to leave out each
                alone.
        """
        rule = RuleWeights(*self.head.rule_weights.tolist())
        scores = self.features.new_zeros(1, dtype=torch.float64)
        if rule.regression:
            scores = scores + rule.regression * self.rows.regression(groups)
        if rule.discriminant:
            scores = scores + rule.discriminant * self.rows.discriminant(groups)
        return scores

    def select(self, groups: Tensor | None) -> None:
        """Select rule, scaling and λ (see :meth:`CalibrationPass.select`)."""
        if not self.head.selects_rule or not len(self.columns):
            return
        best = self._best_rule(groups)
        self.head._solved = None
        if best is None:
            return
        if not len(self.head.directions):
            if self.head.sums.counts.double().mean() < MANY_SAMPLES:
                best = self._select_scaling(best, groups)
        elif self._tries_ridges() and self._is_enough(best):
            best = self._select_ridge(best, groups)
        self.head._select(best.weights, self.rows.factor)

    def _select_scaling(self, best: RuleLosses, groups: Tensor | None) -> RuleLosses:
        """Select scaled or unscaled features by the smaller criterion."""
        head = self.head
        system = self.system
        rows = self.rows
        head.scaled.logical_not_()
        self.system = head._system()
        ridge = head._choose_ridge(self.system).ridge
        self.rows = self._rows_of(RidgeFactor(self.system, ridge))
        other = self._best_rule(groups)
        if other is not None and other.losses.nanmean() < best.losses.nanmean():
            return other
        head.scaled.logical_not_()
        self.system = system
        self.rows = rows
        return best

    def _tries_ridges(self) -> bool:
        """Return whether other ridges than the first may be better."""
        return self.head.ridge == "gcv" and self.head._samples_per_feature() >= 1

    def _select_ridge(self, best: RuleLosses, groups: Tensor | None) -> RuleLosses:
        """Take the next λ as long as the criterion falls by more than its standard deviation."""
        scales = self.head._ridge_scales()
        gcv = self.rows.factor.ridge / scales[0]
        for scale in scales[1:]:
            rows = self.rows
            self.rows = self._rows_of(RidgeFactor(self.system, gcv * scale))
            other = self._best_rule(groups)
            if other is None or not is_better(other.losses, best.losses):
                self.rows = rows
                break
            best = other
            self.head.ridge_scale.fill_(scale)
        return best

    def _is_enough(self, rule: RuleLosses) -> bool:
        """Return whether there are enough samples with scores to choose by their likelihood."""
        known = rule.losses.isfinite()
        classes = len(torch.unique(self.columns[known]))
        return int(known.sum()) >= SAMPLES_TO_SELECT * classes

    def _best_rule(self, groups: Tensor | None) -> RuleLosses | None:
        """Return the better rule at the current ridge and scaling; None without any scores."""
        counts = self.head.sums.counts
        discriminant = self._comparable_discriminant(groups)
        if counts.max() >= UNEVEN_RATIO * counts.min():
            known = discriminant.isfinite().all(dim=1)
            if not known.any():
                return None
            return self._losses(discriminant, known, DISCRIMINANT)
        regression = self.rows.regression(groups)
        known = (regression + discriminant).isfinite().all(dim=1)
        if not known.any():
            return None
        columns = self.columns[known]
        both = RuleWeights(
            1 / fit_temperature(regression[known], columns),
            1 / fit_temperature(discriminant[known], columns),
        )
        total = both.regression * regression + both.discriminant * discriminant
        preferred = self._losses(total, known, both)
        other = self._losses(discriminant, known, DISCRIMINANT)
        if groups is not None and share_in_groups(groups) > GROUPED_SHARE:
            preferred, other = other, preferred
        if self._is_enough(preferred) and is_better(other.losses, preferred.losses):
            return other
        return preferred

    def _losses(
        self, scores: Tensor, known: Tensor, weights: RuleWeights
    ) -> RuleLosses:
        """Return the negative log likelihood of the samples with known scores."""
        losses = torch.full_like(scores[:, 0], torch.nan)
        losses[known] = left_out_losses(scores[known], self.columns[known])
        return RuleLosses(losses, weights)


class RidgeHead(SumsHead):
    """Ridge regression on targets ±L over all data ever seen, or the discriminant of the same sums.

    Exact at any task, without a buffer: for a class never seen before all earlier samples are
    negatives, and their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``,
    ``b = t̄ − Wᵀμ`` with centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ
    x̃)``, ``L = logit(1 − ε)``.

    Linear discriminant analysis, ``zᵀΛμ_c − ½ (μ_cᵀΛμ_c − df/n_c)`` with ``Λ = ((S + λI)/n)⁻¹``, S
    the scatter within classes and ``df = tr (S + λI)⁻¹S``, is solved from the same sums with the
    same λ. Where images are independent, the sum of both rules is more accurate than either. Where
    they come in groups (bursts), or classes are uneven, the discriminant is: it ignores class
    frequencies. Where images are few, both gain from Pareto scaling: each feature is divided by the
    square root of its standard deviation within classes (van den Berg et al., 2006), which changes
    what λ is added to.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        dtype: of the sums, "float64" or "float32".
        decision: the decision rule: "ridge"; "discriminant"; or "auto", the discriminant or the sum
            of both rules, on features as they are or scaled, selected by the likelihood of left-out
            samples (:meth:`calibration_pass`).
        remember: whether the Gram matrix of each class is kept, too, (d+1)(d+2)/2 values each, so
            that classes can be forgotten exactly without their samples.
        product_features: how many random product features are appended to each embedding, as a
            multiple of d. They pay where there are many samples of a class. "auto" takes as many as
            ``AUTO_PRODUCT_FEATURES`` has for the median of the ``counts`` of the first
            ``begin_task``, none without counts; from then on :meth:`settings` has the number.

    Buffers, besides those of :class:`SumsHead`:
        ridge_used: () float64, λ of the last solve.
        ridge_scale: () float64, with "gcv" and product features λ as a multiple of what generalised
            cross-validation chooses without them.
        removed_sums: (R, d+1) sums of classes that were removed, for the discriminant: what is left
            of the scatter within classes is the scatter around their means.
        rule_weights: (2,) float64, :class:`RuleWeights`; a rule with weight zero is not computed.
        scaled: () bool, whether features are scaled at the solve. The sums are of features as they
            are.
        directions: (2m, d) of the m product features, drawn anew wherever a head is made and not
            part of the state.
    """

    title = "Exact ridge"
    leaves_one_out = True
    computed = (*SumsHead.computed, "_solved")

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = "gcv",
        epsilon: float = 0.05,
        dtype: Dtype = "float64",
        decision: Decision = "ridge",
        remember: bool = False,
        product_features: ProductFeatures = 0.0,
    ):
        check_choice("decision", decision, Decision)
        if product_features != "auto":
            check_product_features(product_features)
        elif remember:  # a Gram matrix of them for each class would be gigabytes
            product_features = 0.0
        super().__init__(in_features, in_features + 1, dtype, per_class=remember)
        self.ridge = check_ridge(ridge)
        self.epsilon = epsilon
        self.limit = target_limit(epsilon)
        self.decision = decision
        self.remember = remember
        self.selects_rule = decision == "auto"
        self.position: Position = "given"
        self._solved: RidgeSolution | None = None
        weights = DISCRIMINANT
        if decision == "ridge":
            weights = RuleWeights(regression=1.0, discriminant=0.0)
        self.rule_weights: Tensor = nn.Buffer(
            torch.tensor(weights, dtype=torch.float64)
        )
        self.ridge_used: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.removed_sums: Tensor = nn.Buffer(
            torch.zeros(0, in_features + 1, dtype=self.dtype)
        )
        self.ridge_scale: Tensor = nn.Buffer(torch.ones((), dtype=torch.float64))
        self.scaled: Tensor = nn.Buffer(torch.tensor(False))
        no_directions = torch.zeros(0, in_features, dtype=self.dtype)
        self.directions: Tensor = nn.Buffer(no_directions, persistent=False)
        self.product_features: ProductFeatures = product_features
        if product_features != "auto":
            self._settle(product_features)

    def _settle(self, product_features: float) -> None:
        """Make room for product features in the sums, which are empty."""
        self.product_features = float(product_features)
        count = round(product_features * self.in_features)
        if not count:
            return
        device = self.labels.device
        width = 1 + self.in_features + count
        directions = draw_product_directions(count, self.in_features)
        self.directions = directions.to(device, self.dtype)
        self.sums = Sums(width, per_class=self.remember, dtype=self.dtype).to(device)
        self.weights = self.weights.new_zeros(width, 0)
        self.removed_sums = self.removed_sums.new_zeros(0, width)

    # ------------------------------------------------------------------ sums

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        if self.product_features == "auto":
            self._settle(auto_product_features(counts))
        super()._begin(new, counts)

    def _features(self, z: Tensor) -> Tensor:
        if len(self.directions):
            z = with_product_features(z.to(self.dtype), self.directions)
        return augment(z, self.dtype)

    def _novelty_features(self, z: Tensor) -> Tensor:
        return z.to(self.dtype)  # product features do not help to tell novelty

    def _moments(self) -> ClassMoments:
        rows = 1 + self.in_features
        gram = self.sums.gram[:rows, :rows]
        sums = self.sums.class_sums[:, :rows]
        return ClassMoments.of(
            gram[1:, 1:], sums[:, 1:], sums[:, 0], gram[0], self.sums.mass
        )

    # ------------------------------------------------------------------ solve

    def _solve(self) -> None:
        self._commit_increment()
        if self.selects_rule:
            self._reset_rule()
        if len(self.directions):
            self.ridge_scale.fill_(self._ridge_scales()[0])
        system = self._system()
        if self.decision == "ridge" and not len(self.directions):
            self.weights, choice = system.regression().solve(self.ridge)
        else:
            choice = self._choose_ridge(system)
            factor = RidgeFactor(system, choice.ridge)
            self._set_weights(factor)
            if self.selects_rule:  # a calibration pass will begin with it
                self._solved = RidgeSolution(system, factor)
        self.ridge_used.fill_(choice.ridge)
        self.position = choice.position

    def _reset_rule(self) -> None:
        """Start from the same rule after every change, so that the one before has no effect."""
        self.rule_weights = self.rule_weights.new_tensor(DISCRIMINANT)
        self.scaled.fill_(False)

    def _samples_per_feature(self) -> float:
        """Return the number of learned samples for each feature, with product features."""
        return int(self.sums.seen) / len(self.sums.class_sums[0])

    def _ridge_scales(self) -> tuple[float, ...]:
        """Return the ``RIDGE_SCALES`` in the order in which they are tried."""
        if self._samples_per_feature() < MANY_SAMPLES_PER_FEATURE:
            return RIDGE_SCALES
        return RIDGE_SCALES[::-1]

    def _system(self) -> RidgeSystem:
        """Return the centred sums of the features, scaled or not."""
        factors = self._factors()
        gram = self.sums.gram
        if self.scaled:
            gram *= factors
            gram *= factors[:, None]
        class_sums = factors * self.sums.class_sums
        removed_sums = factors * self.removed_sums
        samples = int(self.sums.seen)
        return RidgeSystem(gram, class_sums, removed_sums, samples, self.limit)

    def _factors(self) -> Tensor:
        """Return the factors (d+1,) of the features ``[1; z]``: ones, or Pareto scaling.

        A feature that hardly varies is scaled as if its standard deviation were
        ``SMALLEST_DEVIATION`` of the root mean square of all.
        """
        factors = torch.ones_like(self.sums.class_sums[0])
        if not self.scaled:
            return factors
        sums = torch.cat([self.sums.class_sums, self.removed_sums])
        variance = within_scatter(self.sums.gram, sums).diagonal().clamp_min(0)
        mean = variance.mean()
        if mean > 0:
            relative = (variance / mean).clamp_min(SMALLEST_DEVIATION**2)
            factors[1:] = relative**-0.25
        return factors

    def _choose_ridge(self, system: RidgeSystem) -> RidgeChoice:
        """Return λ: as given, or by generalised cross-validation without product features."""
        if self.ridge != "gcv":
            return RidgeChoice(float(self.ridge), "given")
        choice = system.regression(self.in_features).choose_ridge()
        return RidgeChoice(choice.ridge * self.ridge_scale.item(), choice.position)

    def _set_weights(self, factor: RidgeFactor) -> None:
        """Set the weights by the decision rule."""
        rule = RuleWeights(*self.rule_weights.tolist())
        weights = torch.zeros(1, dtype=torch.float64, device=self.labels.device)
        if rule.regression:
            weights = weights + rule.regression * factor.regression_weights()
        if rule.discriminant:
            weights = weights + rule.discriminant * factor.discriminant_weights()
        self.weights = self._factors()[:, None] * weights.to(self.dtype)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        sums = state.get("sums.class_sums")
        if (
            self.product_features == "auto"
            and isinstance(sums, Tensor)
            and sums.numel()
        ):
            count = max(sums.shape[-1] - 1 - self.in_features, 0)
            self._settle(self._per_feature(count))
        super()._before_load(state)

    def _per_feature(self, count: int) -> float:
        """Return how many product features for each feature are ``count`` in all."""
        for per_feature in AUTO_PRODUCT_FEATURES.values():  # may be no whole multiples
            if count == round(per_feature * self.in_features):
                return per_feature
        return check_product_features(count / self.in_features)

    def ridge_choices(self) -> list[RidgeChoice]:
        """Return one ridge, which all classes share."""
        return [RidgeChoice(self.ridge_used.item(), self.position)]

    # ------------------------------------------------------------------ leave one out

    @in_full_precision
    def calibration_pass(self, z: Tensor, y: Tensor) -> CalibrationPass:
        """Return a pass that selects the decision rule and λ (see :class:`RidgePass`)."""
        self.check_learned(z, y)
        return RidgePass(self, z.to(self.dtype), self._columns(y))

    @in_full_precision
    def _select(self, rule: RuleWeights, factor: RidgeFactor) -> None:
        """Use a decision rule and a ridge from now on."""
        self.rule_weights = self.rule_weights.new_tensor(rule)
        self.ridge_used.fill_(factor.ridge)
        self._set_weights(factor)
        self.revision = object()

    # ------------------------------------------------------------------ the life of a model

    def _keep(self, columns: Tensor) -> None:
        self._commit_increment()
        # For ridge regression samples of removed classes are negatives, whatever they were.
        if self.decision != "ridge":
            gone = self.sums.counts > 0
            gone[columns] = False
            self.removed_sums = torch.cat(
                [self.removed_sums, self.sums.class_sums[gone]]
            )
        super()._keep(columns)

    def _merge(self, other: SumsHead) -> None:
        super()._merge(other)
        assert isinstance(other, RidgeHead)
        theirs = other.removed_sums.to(self.removed_sums.device)
        self.removed_sums = torch.cat([self.removed_sums, theirs])

    def _subtract(self, other: SumsHead) -> None:
        assert isinstance(other, RidgeHead)
        removed = rows_without(self.removed_sums, other.removed_sums)
        if removed is None:
            raise UsageError(
                "cannot subtract: a class was removed from the other head that was not removed from"
                " this"
            )
        super()._subtract(other)
        self.removed_sums = removed

    @in_full_precision
    def statistics_of_class(self, label: int) -> RidgeHead | None:
        """Return a head that has learned class ``label`` alone, if it is to ``remember``."""
        if not self.remember or self.increment is not None:
            return None
        head = self.fresh()
        head.begin_task([label])
        column = self.classes.index(label)
        head.sums = self.sums.of_class(column)
        return head

    def expected_shapes(self, task_sizes: Sequence[int]) -> dict[str, Sizes]:
        """Return the sizes of the stored tensors (see :meth:`Head.expected_shapes`).

        Any number of classes may have been removed.
        """
        shapes = super().expected_shapes(task_sizes)
        shapes["removed_sums"] = (None, *shapes["removed_sums"][1:])
        return shapes

    def state_elements(self) -> dict[str, int]:
        """Count the values kept between tasks: a triangle of width d+1 and twice C times d+1.

        With a discriminant d+1 more for each class that was removed; with ``remember`` a triangle
        more for each class.
        """
        elements = super().state_elements()
        elements["moments"] += self.removed_sums.numel()
        if self.remember:
            elements["remembered"] = self.sums.class_grams.numel()
        return elements


def check_product_features(product_features: float) -> float:
    """Check a number of product features for each feature, and return it."""
    fits = isinstance(product_features, int | float) and 0 <= product_features <= 10
    shown = str(product_features)[:20]
    check_that(
        fits,
        "product_features",
        shown,
        "a multiple of the features from 0 to 10, or auto",
    )
    return product_features


def auto_product_features(counts: Sequence[int] | None) -> float:
    """Return how many product features for each feature "auto" takes.

    Args:
        counts: samples of each class in the first task; None where they are not known.
    """
    if counts is None:
        return 0.0
    median = statistics.median(counts)
    chosen = 0.0
    for fewest, per_feature in AUTO_PRODUCT_FEATURES.items():
        if median >= fewest:
            chosen = per_feature
    return chosen


def left_out_losses(scores: Tensor, columns: Tensor) -> Tensor:
    """Return the negative log likelihood (n,) of columns (n,) by scores (n, C), calibrated."""
    logits = scores / fit_temperature(scores, columns)
    return torch.nn.functional.cross_entropy(logits, columns, reduction="none")


def is_better(losses: Tensor, others: Tensor) -> bool:
    """Return whether losses (n,) are smaller than others by more than the standard deviation."""
    gain = (others - losses).nan_to_num()
    return bool(gain.sum() > gain.square().sum().sqrt())


def share_in_groups(groups: Tensor) -> float:
    """Return the share of samples that have others in their group, for groups (n,) int64."""
    _, members, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    return float((sizes[members] > 1).double().mean())


def rows_without(rows: Tensor, gone: Tensor) -> Tensor | None:
    """Remove some rows, each once.

    Args:
        rows: (n, p).
        gone: (m, p) rows to remove.

    Returns:
        (n − m, p); None if one of them is not among ``rows``.
    """
    stays = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for row in gone.to(rows.device):
        matches = ((rows == row).all(dim=1) & stays).nonzero()
        if not len(matches):
            return None
        stays[matches[0]] = False
    return rows[stays]
