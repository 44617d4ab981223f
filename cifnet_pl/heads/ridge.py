"""The exact head: joint ridge regression over everything seen, from one shared Gram matrix."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, LeftOut, in_full_precision
from cifnet_pl.heads.sums import SumsHead
from cifnet_pl.statistics import (
    Centred,
    Choice,
    ClassMoments,
    Discriminant,
    Position,
    Ridge,
    Sums,
    augment,
    check_ridge,
    draw_product_directions,
    fit_temperature,
    left_out_together,
    signed_targets,
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


class RuleWeights(NamedTuple):
    """Factors of the two rules whose sum is the decision rule; a factor of zero leaves one out."""

    regression: float
    discriminant: float


class RuleCandidate(NamedTuple):
    """A decision rule that could be selected.

    Attributes:
        loss: negative log likelihood of left-out samples.
        weights: of the two rules.
        scaled: whether features are scaled.
    """

    loss: float
    weights: RuleWeights
    scaled: bool


class RuleLosses(NamedTuple):
    """Losses of one decision rule.

    Attributes:
        losses: (n,) negative log likelihood of each left-out sample.
        weights: of the two rules.
    """

    losses: Tensor
    weights: RuleWeights


@dataclass
class Solved:
    """What was computed of the sums for one scaling of the features; None until it is needed."""

    factors: Tensor | None = None
    regression: tuple[Tensor, Choice] | None = None
    discriminant: Discriminant | None = None


class KeptLeftOut(NamedTuple):
    """Leave-one-out scores that were prepared for some samples."""

    z: Tensor
    columns: Tensor
    left_out: LeftOut


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
            samples (:meth:`select_rule`).
        remember: whether the Gram matrix of each class is kept, too, (d+1)(d+2)/2 values each, so
            that classes can be forgotten exactly without their samples.
        product_features: how many random product features are appended to each embedding, as a
            multiple of d. They pay where there are many samples of a class. "auto" takes as many as
            ``AUTO_PRODUCT_FEATURES`` has for the median of the ``counts`` of the first
            ``begin_task``, none without counts; from then on :meth:`settings` has the number.

    Buffers, besides those of :class:`SumsHead`:
        ridge_used: () float64, λ of the last solve.
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
        self._solved: Solved | None = None
        self._kept: dict[tuple[str, bool], KeptLeftOut] | None = None
        if decision == "ridge":
            weights = RuleWeights(regression=1.0, discriminant=0.0)
        else:
            weights = RuleWeights(regression=0.0, discriminant=1.0)
        self.rule_weights: Tensor = nn.Buffer(
            torch.tensor(weights, dtype=torch.float64)
        )
        self.ridge_used: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.removed_sums: Tensor = nn.Buffer(
            torch.zeros(0, in_features + 1, dtype=self.dtype)
        )
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

    def _rows(self, z: Tensor) -> Tensor:
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
        self._fold()
        solved = self._known()
        if solved.regression is None:
            solved.regression = self._regression().solve(self.ridge)
        regression, choice = solved.regression
        self.ridge_used.fill_(choice.ridge)
        self.position = choice.position
        rule = RuleWeights(*self.rule_weights.tolist())
        weights = rule.regression * regression
        if rule.discriminant:
            discriminant = self._discriminant().weights().to(self.dtype)
            weights = weights + rule.discriminant * discriminant
        self.weights = self._factors()[:, None] * weights

    def _known(self) -> Solved:
        """Return what was computed of the sums with features scaled as now."""
        if self._solved is None:
            self._solved = Solved()
        return self._solved

    def _factors(self) -> Tensor:
        """Return the factors (d+1,) of the features ``[1; z]``: ones, or Pareto scaling.

        A feature that hardly varies is scaled as if its standard deviation were
        ``SMALLEST_DEVIATION`` of the root mean square of all.
        """
        solved = self._known()
        if solved.factors is not None:
            return solved.factors
        factors = torch.ones_like(self.sums.class_sums[0])
        if self.scaled:
            variance = self._within().diagonal().clamp_min(0)
            mean = variance.mean()
            if mean > 0:
                relative = (variance / mean).clamp_min(SMALLEST_DEVIATION**2)
                factors[1:] = relative**-0.25
        solved.factors = factors
        return factors

    def _within(self) -> Tensor:
        """Return the scatter within classes (d, d) of the features as they are."""
        return within_scatter(
            self.sums.gram, torch.cat([self.sums.class_sums, self.removed_sums])
        )

    def _regression(self) -> Centred:
        """Return G_c, Q_c, μ and t̄ of the features, scaled or not."""
        factors = self._factors()
        gram = self.sums.gram
        gram *= factors
        gram *= factors[:, None]
        positives = 2 * factors * self.sums.class_sums
        moment = self.limit * (positives - gram[0]).T
        target_square = self.limit**2 * gram[0, 0] * len(self.labels)
        return Centred.from_augmented(gram, moment, target_square, int(self.sums.seen))

    def _discriminant(self) -> Discriminant:
        """Return the discriminant of the features, with the ridge of the last solve."""
        solved = self._known()
        if solved.discriminant is not None:
            return solved.discriminant
        factors = self._factors()
        within = self._within()
        within *= factors[1:]
        within *= factors[1:, None]
        sums = factors * self.sums.class_sums
        ridge = self.ridge_used.item()
        discriminant = Discriminant.from_sums(
            within, sums, self.sums.mass, ridge, unbiased=True
        )
        solved.discriminant = discriminant
        return discriminant

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

    def choices(self) -> list[Choice]:
        """Return the ridge of all classes."""
        return [Choice(self.ridge_used.item(), self.position)]

    # ------------------------------------------------------------------ leave one out

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        rule = RuleWeights(*self.rule_weights.tolist())
        if not rule.discriminant:
            return self._weighted(
                rule.regression, self._regression_leaving_out(z, columns)
            )
        discriminant = self._discriminant_leaving_out(z, columns)
        second = self._weighted(rule.discriminant, discriminant)
        if not rule.regression:
            return second
        first = self._weighted(
            rule.regression, self._regression_leaving_out(z, columns)
        )
        return lambda groups: first(groups) + second(groups)

    def _weighted(self, weight: float, left_out: LeftOut) -> LeftOut:
        return lambda groups: weight * left_out(groups)

    def _discriminant_leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        def prepare() -> LeftOut:
            features = self._factors() * self._features(z)
            return self._discriminant().leaving_out(features[:, 1:], columns)

        return self._once("discriminant", z, columns, prepare)

    def _regression_leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        def prepare() -> LeftOut:
            features = self._factors() * self._features(z)
            regression = self._regression()
            ridge = self.ridge_used.item()
            solution = self._known().regression
            if solution is None:
                solution = regression.solve(ridge)
            weights = solution[0]
            half = regression.half_products(features[:, 1:], ridge, self.sums.mass)
            targets = signed_targets(columns, len(self.labels), self.limit)
            weight = torch.ones_like(half[:, 0])
            return partial(left_out_together, features @ weights, half, weight, targets)

        return self._once("regression", z, columns, prepare)

    def _once(
        self, rule: str, z: Tensor, columns: Tensor, prepare: Callable[[], LeftOut]
    ) -> LeftOut:
        """Return what ``prepare`` gives for these samples; from before where it is kept."""
        if self._kept is None:
            return prepare()
        kept = self._kept.get((rule, bool(self.scaled)))
        if (
            kept is not None
            and torch.equal(kept.z, z)
            and torch.equal(kept.columns, columns)
        ):
            return kept.left_out
        left_out = prepare()
        self._kept[rule, bool(self.scaled)] = KeptLeftOut(z, columns, left_out)
        return left_out

    @contextmanager
    def keeping_left_out(self) -> Iterator[None]:
        """Within the block, keep what was prepared to leave samples out.

        A calibration asks for the same several times. It is as large as the samples' features,
        several times.
        """
        self._kept = {}
        try:
            yield
        finally:
            self._kept = None

    @in_full_precision
    def select_rule(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> None:
        """Select the decision rule, and whether features are scaled (see :meth:`Head.select_rule`).

        The criterion is the negative log likelihood of left-out samples at the temperature that
        calibrates a rule. Features are scaled where it is smaller so. This is not tried with
        product features, as scaling pays where samples are few.

        In the sum each rule is divided by its own temperature, so that both are log probabilities.
        The sum is taken of samples that are independent, the discriminant of those that come in
        groups, unless the other one's criterion is better by more than its standard deviation. With
        fewer than ``SAMPLES_TO_SELECT`` samples a class the criterion is not asked: a class without
        one of its few samples is another one. Of uneven classes (``UNEVEN_RATIO``) it is the
        discriminant: the criterion would be that of the frequent ones.
        """
        if not self.selects_rule or not len(y):
            return
        if groups is None:
            groups = torch.arange(len(y), device=y.device)
        z = z.to(self.dtype)
        columns = self._columns(y)
        before = bool(self.scaled)
        solved = {before: self._known(), not before: Solved()}
        scalings = [before]
        if not len(self.directions):
            scalings.append(not before)
        candidates = list[RuleCandidate]()
        for scaled in scalings:
            self._use(scaled, self.rule_weights, solved[scaled])
            candidate = self._best_rule(z, columns, groups)
            if candidate is None:
                return
            candidates.append(candidate)
        best = min(candidates, key=lambda candidate: candidate.loss)
        self._use(
            best.scaled, self.rule_weights.new_tensor(best.weights), solved[best.scaled]
        )

    def _use(
        self, scaled: bool, rule_weights: Tensor, solved: Solved | None = None
    ) -> None:
        """Solve with features scaled or not and with these weights of the rules, unless it is so.

        Args:
            scaled: whether features are scaled.
            rule_weights: the buffer of this name.
            solved: what was computed so far with features scaled so, if anything.
        """
        if scaled == bool(self.scaled) and torch.equal(rule_weights, self.rule_weights):
            return
        self.scaled.fill_(scaled)
        self.rule_weights = rule_weights
        self._solved = solved or Solved()
        self.revision = object()
        self._solve()

    def _best_rule(
        self, z: Tensor, columns: Tensor, groups: Tensor
    ) -> RuleCandidate | None:
        """Return the better rule with features scaled as now; None without left-out scores."""
        scaled = bool(self.scaled)
        discriminant = self._discriminant_leaving_out(z, columns)(groups).double()
        known = discriminant.isfinite().all(dim=1)
        if self.sums.counts.max() >= UNEVEN_RATIO * self.sums.counts.min():
            if not known.any():
                return None
            loss = left_out_losses(discriminant[known], columns[known]).mean().item()
            return RuleCandidate(loss, RuleWeights(0.0, 1.0), scaled)
        regression = self._regression_leaving_out(z, columns)(groups).double()
        known &= regression.isfinite().all(dim=1)
        if not known.any():
            return None
        preferred, other = self._compare(
            regression[known], discriminant[known], columns[known]
        )
        if share_in_groups(groups) > GROUPED_SHARE:
            preferred, other = other, preferred
        gain = preferred.losses - other.losses
        enough = int(known.sum()) >= SAMPLES_TO_SELECT * len(
            torch.unique(columns[known])
        )
        if enough and gain.sum() > gain.square().sum().sqrt():
            preferred = other
        return RuleCandidate(preferred.losses.mean().item(), preferred.weights, scaled)

    def _compare(
        self, regression: Tensor, discriminant: Tensor, columns: Tensor
    ) -> tuple[RuleLosses, RuleLosses]:
        """Return the losses of the sum of both rules, and of the discriminant, on (n, C) scores."""
        both = RuleWeights(
            1 / fit_temperature(regression, columns),
            1 / fit_temperature(discriminant, columns),
        )
        total = both.regression * regression + both.discriminant * discriminant
        return (
            RuleLosses(left_out_losses(total, columns), both),
            RuleLosses(left_out_losses(discriminant, columns), RuleWeights(0.0, 1.0)),
        )

    # ------------------------------------------------------------------ the life of a model

    def _keep(self, columns: Tensor) -> None:
        self._fold()
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
