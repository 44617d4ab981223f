"""The exact head: joint ridge regression over everything seen, from one shared Gram matrix, without
a buffer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cifnet_pl.heads.acil import draw_projection
from cifnet_pl.heads.base import Derived, Dtype, LeftOut, Sizes, check_ridge, in_full_precision
from cifnet_pl.heads.cifnet import signed_targets, target_limit
from cifnet_pl.heads.confidence import fit_temperature
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
    left_out_together,
    within_scatter,
)
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that

Decision = Literal["ridge", "discriminant", "auto"]
"""Ridge regression, linear discriminant analysis, or what stored samples that are left out say."""

FEW = 15
"""Stored samples a class from which they choose between two rules (``python -m
benchmarks.studies.few_images``).
"""

GROUPED = 0.25
"""Share of the samples that are in a group with others, from which on they are not taken for
independent.
"""

UNEVEN = 4
"""Images of the largest class over those of the smallest, from which on classes are uneven."""

LEAST = 0.1
"""Least standard deviation of a feature for its scaling, as a share of the root mean square of
all.
"""

PRODUCTS = {100: 1.5, 400: 3.0}
"""Products for each feature that "auto" takes, by the samples of a class in the first task from
which on it does.

Three with fewer samples cost as much as with many, and are worth less (``python -m
benchmarks.studies.few_images``)."""

PRODUCTS_NORM = 0.5
"""Norm of the products of an embedding, as a share of the embedding's (``python -m
benchmarks.studies.bound``).
"""


class RidgeHead(SumsHead):
    """Ridge regression on targets ±L over all data ever seen, or the discriminant of the same sums;
    exact at any task.

    The joint optimum needs no buffer: for a class never seen before all earlier samples are
        negatives, and
    their sum is the first row of the common Gram matrix. ``W = (G_c + λI)⁻¹ Q_c``, ``b = t̄ − Wᵀμ``
    with centred features and targets, the bias free; ``m_c = L(2·Σ_{y=c} x̃ − Σ x̃)``, ``L =
    logit(1 − ε)``. Linear discriminant analysis, ``zᵀΛμ_c − ½ (μ_cᵀΛμ_c − df/n_c)`` with ``Λ = ((S
    + λI)/n)⁻¹``, S the scatter within classes and ``df = tr (S + λI)⁻¹S``, is solved from the same
    sums with the same λ. Where images are independent, the sum of both rules is more accurate than
    either; where they come in bursts, or classes are uneven, the discriminant is, which knows no
    frequencies. Where images are few, both gain from Pareto scaling, each feature divided by the
    square root of its standard deviation within classes (van den Berg et al., 2006): it changes
    what λ is added to.

    Args:
        in_features: width d of the embeddings.
        ridge: λ added to the unweighted centred Gram matrix, or "gcv" (chosen anew at every solve).
        epsilon: clip of the one-hot targets; scales all scores alike.
        products: how many random products of features stand beside each embedding, as a multiple of
            d; they pay where there are many samples of a class. "auto" takes as many as
            ``PRODUCTS`` has for the median of the ``counts`` that the first ``begin_task`` gets,
            none without counts; from then on that is what :meth:`settings` have.
        dtype: of the sums, "float64" or "float32".
        decision: "ridge"; "discriminant"; or "auto", the discriminant or the sum of both rules, on
            features as they are or scaled, whatever says most of stored samples that are left out
            (:meth:`decide`).
        remember: whether the Gram matrix of each class is kept, too, (d+1)(d+2)/2 numbers each, so
            that classes can be forgotten exactly without their samples.

    Buffers, besides those of :class:`SumsHead`:
        ridge_used: () float64, λ of the last solve.
        removed_sums: (R, d+1) sums of classes that were removed, for the discriminant: what is left
            of the scatter within classes is the scatter around their means.
        shares: (2,) float64, factors of ridge regression and of the discriminant in the weights; a
            rule whose factor is zero is not computed.
        scaled: () bool, whether features are scaled at the solve. The sums are of features as they
            are.
        directions: (2m, d) of the m products, drawn anew wherever a head is made and not part of
            the state.
    """

    title = "Exact ridge"
    leaves_one_out = True

    def __init__(
        self,
        in_features: int,
        ridge: Ridge = "gcv",
        epsilon: float = 0.05,
        dtype: Dtype = "float64",
        decision: Decision = "ridge",
        remember: bool = False,
        products: float | Literal["auto"] = 0.0,
    ):
        check_choice("decision", decision, Decision)
        if products == "auto":
            products = (
                0.0 if remember else products
            )  # a Gram matrix of them for each class would be gigabytes
        else:
            check_products(products)
        super().__init__(in_features, in_features + 1, dtype, per_class=remember)
        self.ridge = check_ridge(ridge)
        self.epsilon = epsilon
        self.limit = target_limit(epsilon)
        self.decision = decision
        self.remember = remember
        self.decides = decision == "auto"
        self.position: Position = "given"
        self.ridge_used: Tensor = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self.removed_sums: Tensor = nn.Buffer(torch.zeros(0, in_features + 1, dtype=self.dtype))
        self.shares: Tensor = nn.Buffer(
            torch.tensor([1.0, 0.0] if decision == "ridge" else [0.0, 1.0]).double()
        )
        self.scaled: Tensor = nn.Buffer(torch.tensor(False))
        self.directions: Tensor = nn.Buffer(
            torch.zeros(0, in_features, dtype=self.dtype), persistent=False
        )
        self.products: float | Literal["auto"] = products
        if products != "auto":
            self._settle(products)

    def _settle(self, products: float) -> None:
        """Make room for so many products for each feature in the sums, which are empty."""
        self.products = float(products)
        count = round(products * self.in_features)
        device = self.labels.device
        if not count:
            return
        width = 1 + self.in_features + count
        directions = math.sqrt(3 * self.in_features) * draw_projection(
            2 * count, self.in_features, seed=0
        )
        self.directions = directions.to(device, self.dtype)
        self.sums = Sums(width, per_class=self.remember, dtype=self.dtype).to(device)
        self.weights = self.weights.new_zeros(width, 0)
        self.removed_sums = self.removed_sums.new_zeros(0, width)

    # ------------------------------------------------------------------ sums

    def _begin(self, new: int, counts: Sequence[int] | None) -> None:
        if self.products == "auto":
            samples = 0 if counts is None else statistics.median(counts)
            self._settle(
                max((each for least, each in PRODUCTS.items() if samples >= least), default=0.0)
            )
        super()._begin(new, counts)

    def _features(self, z: Tensor) -> Tensor:
        if len(self.directions):
            z = with_products(z.to(self.dtype), self.directions)
        return augment(z, self.dtype)

    def _rows(self, z: Tensor) -> Tensor:
        return z.to(self.dtype)  # how foreign a sample is, its products need not say

    def _moments(self) -> ClassMoments:
        rows = 1 + self.in_features
        gram = self.sums.gram[:rows, :rows]
        sums = self.sums.class_sums[:, :rows]
        return ClassMoments.of(gram[1:, 1:], sums[:, 1:], sums[:, 0], gram[0], self.sums.mass)

    # ------------------------------------------------------------------ solve

    def _solve(self) -> None:
        self._fold()
        if self.derived.regression is None:
            self.derived.regression = self._regression().solve(self.ridge)
        regression, choice = self.derived.regression
        self.ridge_used.fill_(choice.ridge)
        self.position = choice.position
        of_regression, of_discriminant = self.shares.tolist()
        weights = of_regression * regression
        if of_discriminant:
            weights = weights + of_discriminant * self._discriminant().weights().to(self.dtype)
        self.weights = self._factors()[:, None] * weights

    def _factors(self) -> Tensor:
        """Return what each feature of ``[1; z]`` is multiplied by (d+1,): ones, or those of Pareto
        scaling.

        A feature that hardly varies counts as if it had ``LEAST`` of the root mean square of the
        standard deviations.
        """
        if self.derived.factors is not None:
            return self.derived.factors
        factors = torch.ones_like(self.sums.class_sums[0])
        if self.scaled:
            variance = self._within().diagonal().clamp_min(0)
            if (mean := variance.mean()) > 0:
                factors[1:] = (variance / mean).clamp_min(LEAST**2) ** -0.25
        self.derived.factors = factors
        return factors

    def _within(self) -> Tensor:
        """Return the scatter within classes (d, d) of the features as they are."""
        return within_scatter(self.sums.gram, torch.cat([self.sums.class_sums, self.removed_sums]))

    def _regression(self) -> Centred:
        """Return G_c, Q_c, μ and t̄ of the features, scaled or not."""
        factors = self._factors()
        gram = self.sums.gram
        gram *= factors
        gram *= factors[:, None]
        moment = self.limit * (2 * factors * self.sums.class_sums - gram[0]).T
        target_square = self.limit**2 * gram[0, 0] * len(self.labels)
        return Centred.from_augmented(gram, moment, target_square, int(self.sums.seen))

    def _discriminant(self) -> Discriminant:
        """Return μ_c and the factors of S + λI of the features, scaled or not, with the ridge of
        the last solve.
        """
        if self.derived.discriminant is not None:
            return self.derived.discriminant
        factors = self._factors()
        within = self._within()
        within *= factors[1:]
        within *= factors[1:, None]
        sums = factors * self.sums.class_sums
        found = Discriminant.from_sums(within, sums, self.sums.mass, self.ridge_used.item(), True)
        self.derived.discriminant = found
        return found

    def _before_load(self, state: Mapping[str, Any]) -> None:
        sums = state.get("sums.class_sums")
        if self.products == "auto" and isinstance(sums, Tensor) and sums.ndim == 2 and len(sums):
            count = max(sums.shape[1] - 1 - self.in_features, 0)
            usual = {
                round(each * self.in_features): each for each in PRODUCTS.values()
            }  # may not be whole multiples
            self._settle(check_products(usual.get(count, count / self.in_features)))
        super()._before_load(state)

    def choices(self) -> list[Choice]:
        """Return the ridge of all classes."""
        return [Choice(self.ridge_used.item(), self.position)]

    # ------------------------------------------------------------------ leave one out

    def _leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        rules = (self._regression_leaving_out, self._discriminant_leaving_out)
        parts = [
            (share, rule(z, columns))
            for share, rule in zip(self.shares.tolist(), rules, strict=True)
            if share
        ]
        return lambda groups: torch.stack(
            [share * left_out(groups) for share, left_out in parts]
        ).sum(dim=0)

    def _discriminant_leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        def prepare() -> LeftOut:
            return self._discriminant().leaving_out(
                (self._factors() * self._features(z))[:, 1:], columns
            )

        return self._kept("discriminant", z, columns, prepare)

    def _regression_leaving_out(self, z: Tensor, columns: Tensor) -> LeftOut:
        def prepare() -> LeftOut:
            features = self._factors() * self._features(z)
            regression = self._regression()
            ridge = self.ridge_used.item()
            if self.shares[1]:
                weights = regression.solve(ridge)[0]
            else:
                weights = self.weights
            half = regression.half_products(features[:, 1:], ridge, self.sums.mass)
            targets = signed_targets(columns, len(self.labels), self.limit)
            return partial(
                left_out_together, features @ weights, half, torch.ones_like(half[:, 0]), targets
            )

        return self._kept("regression", z, columns, prepare)

    def _kept(
        self, rule: str, z: Tensor, columns: Tensor, prepare: Callable[[], LeftOut]
    ) -> LeftOut:
        """Return what ``prepare`` gives for these samples, from before where it is kept."""
        held = (self.kept or {}).get((rule, bool(self.scaled)))
        if held is not None and torch.equal(held[0], z) and torch.equal(held[1], columns):
            return held[2]
        left_out = prepare()
        if self.kept is not None:
            self.kept[rule, bool(self.scaled)] = z, columns, left_out
        return left_out

    @in_full_precision
    def decide(self, z: Tensor, y: Tensor, groups: Tensor | None = None) -> None:
        """Choose between both rules, on features as they are and scaled (see :meth:`Head.decide`).

        The score is the negative log likelihood of the samples that are left out, at the
        temperature that calibrates a way; features are scaled where it is smaller so, which is not
        tried beside products, as it pays where samples are few. In the sum each rule is divided by
        its own temperature, so that both are log probabilities. The sum is taken of samples that
        are independent, the discriminant of those that come in groups, unless the other one's score
        is better by more than its standard deviation. With fewer than ``FEW`` samples a class it is
        not asked: a class without one of its few samples is another one. Of uneven classes
            (``UNEVEN``) it is the discriminant: the score would be that of the frequent ones.
        """
        if not self.decides or not len(y):
            return
        if groups is None:
            groups = torch.arange(len(y), device=y.device)
        else:
            groups = groups
        z = z.to(self.dtype)
        columns = self._columns(y)
        before = bool(self.scaled)
        ways = []
        derived = {before: self.derived, not before: Derived()}
        for scaled in (before,) if len(self.directions) else (before, not before):
            self._use(scaled, self.shares, derived[scaled])
            way = self._way(z, columns, groups)
            if way is None:
                return
            ways.append((*way, scaled))
        _, shares, scaled = min(ways, key=lambda each: each[0])
        self._use(scaled, self.shares.new_tensor(shares), derived[scaled])

    def _use(self, scaled: bool, shares: Tensor, derived: Derived | None = None) -> None:
        """Solve with features scaled or not and with these factors of both rules, unless it is
        solved so.

        Args:
            scaled, shares: the buffers of these names.
            derived: what was computed so far with features scaled so; None for nothing.
        """
        if scaled == bool(self.scaled) and torch.equal(shares, self.shares):
            return
        self.scaled.fill_(scaled)
        self.shares = shares
        self.derived = derived or Derived()
        self._solve()

    def _way(self, z: Tensor, columns: Tensor, groups: Tensor) -> tuple[float, list[float]] | None:
        """Return the left-out loss and the shares of the better rule, with features scaled as they
        are now.
        """
        uneven = self.sums.counts.max() >= UNEVEN * self.sums.counts.min()
        ways = [self._regression_leaving_out, self._discriminant_leaving_out]
        rules = [
            left_out(z, columns)(groups).double() for left_out in (ways[1:] if uneven else ways)
        ]
        known = torch.stack(rules).isfinite().all(dim=2).all(dim=0)
        if not known.any():
            return None
        rules = [scores[known] for scores in rules]
        columns = columns[known]
        if uneven:
            return left_out_losses(rules[0], columns).mean().item(), [0.0, 1.0]
        factors = [1 / fit_temperature(scores, columns) for scores in rules]
        found = [
            (left_out_losses(a * rules[0] + b * rules[1], columns), [a, b])
            for a, b in (factors, [0.0, 1.0])
        ]
        numbers, sizes = torch.unique(groups, return_inverse=True, return_counts=True)[1:]
        in_groups = (sizes[numbers] > 1).double().mean() > GROUPED
        (losses, shares), (others, other_shares) = reversed(found) if in_groups else found
        gain = losses - others
        enough = len(columns) >= FEW * len(torch.unique(columns))
        if enough and gain.sum() > gain.square().sum().sqrt():
            losses = others
            shares = other_shares
        return losses.mean().item(), shares

    # ------------------------------------------------------------------ the life of a model

    def _keep(self, columns: Tensor) -> None:
        self._fold()
        if (
            self.decision != "ridge"
        ):  # for which samples of no class are negatives, whatever they were
            gone = self.sums.counts > 0
            gone[columns] = False
            self.removed_sums = torch.cat([self.removed_sums, self.sums.class_sums[gone]])
        super()._keep(columns)

    def _merge(self, other: SumsHead) -> None:
        super()._merge(other)
        assert isinstance(other, RidgeHead)
        self.removed_sums = torch.cat(
            [self.removed_sums, other.removed_sums.to(self.removed_sums.device)]
        )

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
    def share_of(self, label: int) -> RidgeHead | None:
        """Return a head that has learned class ``label`` alone, with ``remember`` (see
        :meth:`Head.share_of`).
        """
        if not self.remember or self.increment is not None:
            return None
        head = self.fresh()
        head.begin_task([label])
        head.sums = self.sums.of_class(int(self._columns(self.labels.new_tensor([label]))))
        return head

    def expected_shapes(self, task_sizes: Sequence[int]) -> dict[str, Sizes]:
        """Return sizes of the stored tensors (see :meth:`Head.expected_shapes`): any number of
        classes was removed.
        """
        shapes = super().expected_shapes(task_sizes)
        return shapes | {"removed_sums": (None, *shapes["removed_sums"][1:])}

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks: a triangle of width d+1 and twice C times d+1.

        With a discriminant d+1 more for each class that was removed; with ``remember`` a triangle
        more for each class.
        """
        elements = super().state_elements()
        elements["moments"] += self.removed_sums.numel()
        return elements | ({"remembered": self.sums.class_grams.numel()} if self.remember else {})


def check_products(products: float) -> float:
    """Return a number of products for each feature, once it is checked; UsageError for what is
    none.
    """
    number = isinstance(products, int | float) and 0 <= products <= 10
    check_that(
        number, "products", str(products)[:20], "a multiple of the features from 0 to 10, or auto"
    )
    return products


def left_out_losses(scores: Tensor, columns: Tensor) -> Tensor:
    """Return (n,) negative log likelihood of the columns (n,) by scores (n, C), at their best
    temperature.
    """
    return torch.nn.functional.cross_entropy(
        scores / fit_temperature(scores, columns), columns, reduction="none"
    )


def rows_without(rows: Tensor, gone: Tensor) -> Tensor | None:
    """Remove one copy of each of some rows.

    Args:
        rows: (n, p).
        gone: (m, p) rows to remove.

    Returns:
        (n − m, p); None if one of them is not among ``rows``.
    """
    kept = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
    for row in gone.to(rows.device):
        matches = ((rows == row).all(dim=1) & kept).nonzero()
        if not len(matches):
            return None
        kept[matches[0]] = False
    return rows[kept]


def with_products(z: Tensor, directions: Tensor) -> Tensor:
    """Return embeddings (n, d) beside m random products of their features: (n, d + m).

    Each is ``(p·z)(q·z)/‖z‖`` for two random directions p and q, scaled so that inner products of
    the result are about ``x·y + PRODUCTS_NORM² (x·y)²/(‖x‖ ‖y‖)``: those of a polynomial kernel
    (Kar and Karnick, AISTATS 2012).

    Args:
        z: (n, d).
        directions: (2m, d), p in the first half of the rows and q in the second, of variance 1.
    """
    first, second = directions.chunk(2)
    lengths = torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
    return torch.cat(
        [z, PRODUCTS_NORM * len(first) ** -0.5 * (z @ first.T) * (z @ second.T) / lengths], dim=1
    )


JUMP = 100.0
"""Factor between the ridges before and after a lesson from which a note is written."""

REMARKS = {
    "smallest": (
        "note: the classes are told apart without any error, as happens where images are copies of"
        " each other: look for those (the ridge is at the lower edge of its grid, {})"
    ),
    "largest": (
        "note: the images are too few, or nothing in them tells their classes apart: add more, and"
        " look whether they are in the right folders (the ridge is at the upper edge of its"
        " grid, {})"
    ),
}
"""What is said of a ridge at an edge of the grid. One at its cap is usual where images are few,
distinct and easy.
"""


def about_choices(choices: Sequence[Choice]) -> dict[str, str]:
    """Return notes on ridges that lie at the edge of what generalised cross-validation may choose.

    Args:
        choices: ridges, and where they lie.

    Returns:
        Where → sentence, for each edge that occurs.
    """
    ridges_of: dict[str, list[float]] = {}
    for choice in choices:
        if choice.position in REMARKS:
            ridges_of.setdefault(choice.position, []).append(choice.ridge)
    return {remark: REMARKS[remark].format(_shown(ridges)) for remark, ridges in ridges_of.items()}


def about_lesson(before: Sequence[Choice], after: Sequence[Choice]) -> list[str]:
    """Return notes on the ridges after a lesson, and on how much it changed them.

    Args:
        before: the choices before the lesson.
        after: the choices after it, in the same order.
    """
    jump = about_jump(before, after)
    return [*about_choices(after).values(), *([jump] if jump else [])]


def about_jump(before: Sequence[Choice], after: Sequence[Choice]) -> str | None:
    """Return a note if a ridge grew or shrank by more than a factor of ``JUMP``; else None.

    Args:
        before: the choices before a lesson.
        after: the choices after it, in the same order.
    """
    pairs = [
        (old.ridge, new.ridge)
        for old, new in zip(before, after, strict=False)
        if old.ridge > 0 < new.ridge
    ]
    old, new = max(
        pairs, key=lambda pair: max(pair[1] / pair[0], pair[0] / pair[1]), default=(1.0, 1.0)
    )
    if max(new / old, old / new) <= JUMP:
        return None
    return (
        "note: these images change the model as much as if they were unlike all those before, or"
        f" copies of each other: look at them (the ridge went from {old:.3g} to {new:.3g})"
    )


def _shown(ridges: list[float]) -> str:
    low = min(ridges)
    high = max(ridges)
    if low == high:
        return f"{low:.3g}"
    return f"{low:.3g} to {high:.3g}"
