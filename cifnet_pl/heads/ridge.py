"""The exact head: joint ridge regression over everything seen, from one shared Gram matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from cifnet_pl.heads.base import Dtype, in_full_precision, scalar
from cifnet_pl.heads.sums import SumsHead
from cifnet_pl.statistics import (
    ClassDistances,
    LeftOut,
    Ridge,
    RidgeFactor,
    RidgeSystem,
    Sums,
    augment,
    check_ridge,
    draw_product_directions,
    target_limit,
    with_product_features,
)
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.growing_tensors import no_rows

Decision = Literal["ridge", "discriminant", "auto"]
"""Decision rule: ridge regression, the discriminant, or their sum, weighed by left-out samples."""

ProductFeatures = float | Literal["auto"]
"""Number of random product features for each feature of the embedding, or "auto"."""

IMAGES_PER_PRODUCT = 100
"""Images of a class for each random product feature of each feature that "auto" takes.

Accuracy gained by 1.5 of them: −0.8 to 0.2 points with 25 images a class, 0.5 to 1.4 with 100, 1.2
to 2.1 with 200, 2.6 with 500 (``docs/studies/which_head.md``).
"""

MOST_PRODUCTS = 3
"""Most product features for each feature that "auto" takes: with 500 images a class 3.9 points, and
2.6 times the time of 1.5."""


class RidgeHead(SumsHead):
    """Ridge regression on targets ±L over all data ever seen, or the discriminant of the same sums.

    Exact at any task, without a buffer: for a class never seen before all earlier samples are
    negatives, and their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``,
    ``b = t̄ − Wᵀμ`` with centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ
    x̃)``, ``L = logit(1 − ε)``.

    Linear discriminant analysis, ``zᵀΛμ_c − ½ (μ_cᵀΛμ_c − df/n_c)`` with ``Λ = ((S + λI)/n)⁻¹``, S
    the scatter within classes and ``df = tr (S + λI)⁻¹S``, is solved from the same sums with the
    same λ. The sum of both, each weighed by the likelihood of left-out samples, is as accurate as
    the better one (stacking, Wolpert, 1992). In it λ is added to each feature in proportion to the
    mean of 1 and its relative variance within classes (:class:`~cifnet_pl.statistics.RidgeSystem`),
    and the targets of regression are larger for rare classes (Ye, 2007).

    (d+1)(d+2)/2 + 2C(d+1) values are kept between tasks; with a discriminant d+1 more for each
    class that was removed, with ``remember`` (d+1)(d+2)/2 more for each class.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        dtype: of the sums, "float64" or "float32".
        decision: the decision rule: "ridge"; "discriminant"; or "auto", the sum of both, whose
            weights :meth:`calibrate` sets. Until then it is the discriminant.
        remember: whether the Gram matrix of each class is kept, too, (d+1)(d+2)/2 values each, so
            that classes can be forgotten exactly without their samples.
        product_features: how many random product features are appended to each embedding, as a
            multiple of d. They pay where there are many samples of a class. "auto" takes one for
            every ``IMAGES_PER_PRODUCT`` samples of a class, at most ``MOST_PRODUCTS``, by the
            median of the ``counts`` of the first ``begin_task``, and none without counts; from then
            on :meth:`settings` has the number.

    Buffers, besides those of :class:`SumsHead`:
        ridge_used: () float64, λ of the last solve.
        removed_sums: (R, d+1) sums of classes that were removed, for the discriminant: what is left
            of the scatter within classes is the scatter around their means.
        rule_weights: (2,) float64, factors of the discriminant and of ridge regression in the
            decision rule; a rule with weight zero is not computed.
        directions: (2m, d) of the m product features, drawn anew wherever a head is made and not
            part of the state.
    """

    title = "Exact ridge"
    leaves_one_out = True
    computed = (*SumsHead.computed, "_solved")
    components = SumsHead.components | {"class_grams": "remembered"}

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
        if product_features == "auto" and remember:
            product_features = (
                0.0  # a Gram matrix of them for each class would be gigabytes
            )
        super().__init__(in_features, in_features + 1, dtype, per_class=remember)
        self.ridge = check_ridge(ridge)
        self.epsilon = epsilon
        self.limit = target_limit(epsilon)
        self.decision = decision
        self.remember = remember
        self.selects_rule = decision == "auto"
        self._solved: RidgeFactor | None = None
        rule = [1.0, 0.0]
        if decision == "ridge":
            rule = [0.0, 1.0]
        self.rule_weights: Tensor = nn.Buffer(torch.tensor(rule, dtype=torch.float64))
        self.ridge_used = scalar(0.0)
        self.removed_sums = no_rows(self.dtype, in_features + 1)
        no_directions = torch.zeros(0, in_features, dtype=self.dtype)
        self.directions: Tensor = nn.Buffer(no_directions, persistent=False)
        self.product_features: ProductFeatures = product_features
        if product_features != "auto":
            self._settle(product_features)

    def _settle(self, product_features: float) -> None:
        """Make room for product features in the sums, which are empty.

        Raises:
            UsageError: fewer than none, or far too many.
        """
        fits = 0 <= product_features <= 10
        expected = "a multiple of the features from 0 to 10, or auto"
        check_that(fits, "product_features", product_features, expected)
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
            products = 0.0
            if counts is not None:
                images = median(counts)
                products = min(MOST_PRODUCTS, images // IMAGES_PER_PRODUCT)
            self._settle(products)
        super()._begin(new, counts)

    def _features(self, z: Tensor) -> Tensor:
        if len(self.directions):
            z = with_product_features(z.to(self.dtype), self.directions)
        return augment(z, self.dtype)

    def _novelty_features(self, z: Tensor) -> Tensor:
        return z.to(self.dtype)  # product features do not help to tell novelty

    def _class_distances(self) -> ClassDistances:
        rows = 1 + self.in_features
        gram = self.sums.gram[:rows, :rows]
        sums = self.sums.class_sums[:, :rows]
        return ClassDistances(gram, sums, self.sums.mass)

    # ------------------------------------------------------------------ solve

    def _solve(self) -> None:
        """Solve at λ as given, or by generalised cross-validation without product features.

        With product features λ is that divided by the number of samples for each feature, where
        that is above 1.
        """
        self._commit_increment()
        system = self._system()
        ridge = self.ridge
        if ridge == "gcv":
            ridge = system.choose_ridge(self.in_features)
            if len(self.directions):
                ridge /= max(1.0, system.samples / len(system.mean))
        self.ridge_used.fill_(ridge)
        factor = RidgeFactor(system, ridge)
        if self.selects_rule:
            self.rule_weights = self.rule_weights.new_tensor([1.0, 0.0])
            self._solved = factor  # calibration will begin with it
        self._set_weights(factor)

    def _system(self) -> RidgeSystem:
        """Return the centred sums of the features."""
        limit = None
        if not self.selects_rule:
            limit = self.limit
        sums = self.sums
        samples = int(sums.seen)
        return RidgeSystem(
            sums.gram, sums.class_sums, self.removed_sums, samples, limit
        )

    def _set_weights(self, factor: RidgeFactor) -> None:
        """Set the weights by the decision rule."""
        discriminant, regression = self.rule_weights.tolist()
        weights = torch.zeros((), dtype=torch.float64, device=self.labels.device)
        if discriminant:
            weights = weights + discriminant * factor.discriminant_weights()
        if regression:
            weights = weights + regression * factor.regression_weights()
        self.weights = weights.to(self.dtype)

    def _before_load(self, state: Mapping[str, Any]) -> None:
        sums = state.get("sums.class_sums", ())
        if self.product_features == "auto" and len(sums):
            count = sums.shape[1] - 1 - self.in_features
            self._settle(count / self.in_features)
        super()._before_load(state)

    # ------------------------------------------------------------------ leave one out

    def _factor(self) -> RidgeFactor:
        """Return the factor of the last solve; computed again where it is not kept."""
        if self._solved is not None:
            return self._solved
        return RidgeFactor(self._system(), self.ridge_used.item())

    def _rules_left_out(self, z: Tensor, columns: Tensor) -> tuple[LeftOut, ...]:
        """Return the scores of the discriminant and of ridge regression, or of the one in use."""
        factor = self._factor()
        rows = factor.whitened(self._features(z)[:, 1:])
        rules = []
        if self.decision != "ridge":
            rules.append(factor.discriminant_left_out(rows, columns))
        if self.decision != "discriminant":
            rules.append(factor.regression_left_out(rows, columns))
        return tuple(rules)

    def sum_of_rules(self, scores: Tensor) -> Tensor:
        """Return the scores (n, C): the sum of those of each rule, each times its weight."""
        if not self.selects_rule:
            return super().sum_of_rules(scores)
        discriminant, regression = scores.unbind()
        weights = self.rule_weights
        return weights[0] * discriminant + weights[1] * regression

    @in_full_precision
    def weigh_rules(self, weights: Sequence[float]) -> None:
        """Weigh the rules (see :meth:`Head.weigh_rules`)."""
        if not self.selects_rule:
            super().weigh_rules(weights)
            return
        self.rule_weights = self.rule_weights.new_tensor(weights)
        self.temperature.fill_(1.0)
        self._set_weights(self._factor())
        self._solved = None
        self.revision = object()

    @property
    def decision_rule(self) -> str | None:
        """The decision rule in words, where it was calibrated."""
        if not self.selects_rule:
            return None
        discriminant, regression = self.rule_weights.tolist()
        return f"{discriminant:.3g} × discriminant + {regression:.3g} × regression"

    # ------------------------------------------------------------------ the life of a model

    def _keep(self, columns: Tensor) -> None:
        self._commit_increment()
        # For ridge regression samples of removed classes are negatives, whatever they were.
        if self.decision != "ridge":
            gone = self.sums.counts > 0
            gone[columns] = False
            removed = self.sums.class_sums[gone]
            self.removed_sums = torch.cat([self.removed_sums, removed])
        super()._keep(columns)

    def _merge(self, other: Self) -> None:
        super()._merge(other)
        theirs = other.removed_sums.to(self.removed_sums.device)
        self.removed_sums = torch.cat([self.removed_sums, theirs])

    def _subtract(self, other: Self) -> None:
        # What a head learned first, it has in front.
        theirs = other.removed_sums.to(self.removed_sums.device)
        if not torch.equal(self.removed_sums[: len(theirs)], theirs):
            raise UsageError(
                "cannot subtract: the classes that were removed from the other head are not those"
                " that were removed from this one first"
            )
        super()._subtract(other)
        self.removed_sums = self.removed_sums[len(theirs) :]

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
