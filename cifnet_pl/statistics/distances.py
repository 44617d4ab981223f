"""Compute Mahalanobis distances of rows to class means from sums, also as if a row had not been learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cifnet_pl.statistics.ridge import ROUNDING, factorise, fewest_rows, shared_groups


@dataclass(frozen=True)
class ClassMoments:
    """First and second moments of weighted rows x of p features, without a bias feature; float64.

    Attributes:
        gram: (p, p) ``Σ ω x xᵀ`` over all rows.
        sums: (G, p) ``Σ ω x`` of each group of rows; the first C groups are the classes.
        weights: (G,) ``Σ ω`` of each group.
        classes: C; a further group holds the rows of classes that were removed.
        mass: () ``Σ ω`` over the rows that the scatter within groups is made of.
        rounding: relative, of the sums.
    """

    gram: Tensor
    sums: Tensor
    weights: Tensor
    classes: int
    mass: Tensor
    rounding: float

    @classmethod
    def of(cls, gram: Tensor, sums: Tensor, weights: Tensor, total: Tensor | None, mass: Tensor) -> ClassMoments:
        """Put the rows that belong to none of the classes into a group of their own.

        Args:
            gram: as above, any floating dtype.
            sums: (C, p) of the classes.
            weights: (C,) of the classes.
            total: (p+1,) ``Σ ω [1; x]`` over all rows of the Gram matrix; None where that is not known, and the removed
                rows are taken to have mean zero.
            mass: () total weight.
        """
        rounding = torch.finfo(gram.dtype).eps
        gram, sums, weights, mass = gram.double(), sums.double(), weights.double(), mass.double()
        if total is None:
            rest_weight = mass - weights.sum()
            rest = torch.zeros_like(sums[0])
        else:
            rest_weight, rest = total[0].double() - weights.sum(), total[1:].double() - sums.sum(dim=0)
        # What is left of sums that were subtracted again is rounding, and no group.
        if rest_weight > max(rounding, ROUNDING) * 10 * mass:
            groups, group_weights = torch.cat([sums, rest[None]]), torch.cat([weights, rest_weight[None]])
        else:
            groups, group_weights = sums, weights
        return cls(gram, groups, group_weights, len(weights), mass, rounding)

    @property
    def group_means(self) -> Tensor:
        """(G, p) mean of each group."""
        return self.sums / self.weights[:, None]

    @property
    def mean(self) -> Tensor:
        """(p,) mean of all rows."""
        return self.sums.sum(dim=0) / self.weights.sum()

    @property
    def square(self) -> Tensor:
        """() ``Σ ω ‖x‖²``."""
        return self.gram.trace()

    def within(self) -> Tensor:
        """Return (p, p) scatter of the rows around the means of their groups."""
        return self.gram - self.sums.T @ self.group_means

    def total(self) -> Tensor:
        """Return (p, p) scatter of the rows around the mean of all."""
        return self.gram - self.weights.sum() * torch.outer(self.mean, self.mean)


class ClassDistances:
    """Squared Mahalanobis distances to the nearest class mean, and to the mean of all rows.

    With the scatters ``S_w`` within classes and ``S_t`` around the mean μ of all N rows, and λ a share of the mean
    eigenvalue of ``S_w``,

        near(x) = min_c N·(q − μ_c)ᵀ(S_w + λI)⁻¹(q − μ_c)      overall(x) = N·(q − μ)ᵀ(S_t + λI)⁻¹(q − μ),

    where q is x stretched to the root mean square length of the rows: the length of an embedding says more about a
    photo's contrast than about what is on it (Mahalanobis++, Mueller and Hein, 2025, normalise rows, too). The
    difference of the two is the relative distance of Ren et al. (2021).

    Args:
        moments: of the rows that were learned.
        share: λ as a share of the mean eigenvalue of ``S_w``.
    """

    def __init__(self, moments: ClassMoments, share: float):
        self.moments = moments
        within, total = moments.within(), moments.total()
        scale = within.diagonal().mean()
        smallest = (10 * moments.rounding * moments.square).clamp_min(torch.finfo(torch.float64).tiny)
        if share * scale <= smallest:  # every class is a single point
            scale = total.diagonal().mean()
        self.ridge = torch.maximum(share * scale, smallest)
        self.length = (moments.square / moments.mass).sqrt()
        self.centre = moments.mean
        self.means = moments.group_means[: moments.classes] - self.centre
        self.within_inverse = torch.cholesky_inverse(factorise(within, self.ridge))
        self.total_inverse = torch.cholesky_inverse(factorise(total, self.ridge))

    def stretched(self, x: Tensor, length: Tensor | None = None) -> Tensor:
        """Scale rows to the root mean square length of those learned.

        Args:
            x: (n, p).
            length: (n,) another length for each row.

        Returns:
            (n, p) float64.
        """
        unit = torch.nn.functional.normalize(x.double(), dim=1)
        return unit * (self.length if length is None else length[:, None])

    def relative(self, share: float) -> Callable[[Tensor], Tensor]:
        """Return a function that computes relative distances by one product with a (p, p) matrix.

        Args:
            share: of the overall distance that is subtracted; 0 for the distance to the nearest class mean alone.

        Returns:
            Function from rows (n, p) to (n,) ``near(x) − share·overall(x)``.
        """
        inverse, (towards, offset) = self.within_inverse - share * self.total_inverse, self._from_means

        def measure(x: Tensor) -> Tensor:
            q = self.stretched(x) - self.centre
            return self.moments.mass * (_quadratic(q, inverse) + (offset - 2 * q @ towards).min(dim=1).values)

        return measure

    @cached_property
    def _from_means(self) -> tuple[Tensor, Tensor]:
        """Return (p, C) ``(S_w + λI)⁻¹μ_c`` and (C,) ``μ_cᵀ(S_w + λI)⁻¹μ_c`` of the centred means."""
        towards = self.within_inverse @ self.means.T
        return towards, (self.means.T * towards).sum(dim=0)

    # ------------------------------------------------------------------ leave one out

    def left_out(
        self, x: Tensor, columns: Tensor, weight: Tensor, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the distances near and overall of learned rows, each as if it, or its group, had not been learned.

        Taking a row of weight ω out of its class c changes every scatter by a matrix of rank one,
        ``S_w − ω n_c/(n_c − ω)·(x − μ_c)(x − μ_c)ᵀ``, whose inverse is that of Sherman and Morrison. λ stays the same.

        Args:
            x: (n, p).
            columns: (n,) class of each.
            weight: (n,) ω of each in the sums.
            groups: (n,) int64 number of each row's group; None where each stands alone.

        Returns:
            (n,) twice, float64. The only row of a class gets its distance to the other classes; NaN where there is no
            other.
        """
        x, moments, weight = x.double(), self.moments, weight.double()
        left = moments.mass - weight
        q = self.stretched(x, ((moments.square - weight * x.square().sum(dim=1)).clamp_min(0) / left).sqrt())
        q, away = q - self.centre, x - self.centre
        near = left * self._near_left_out(q, away, columns, weight)
        near = near.masked_fill(near.isinf(), torch.nan)
        overall = left * self._overall_left_out(q, away, weight)
        for rows in shared_groups(groups):
            near[rows], overall[rows] = self.left_out_together(x[rows], columns[rows], weight[rows])
        return near, overall

    def left_out_together(self, x: Tensor, columns: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the distances near and overall of rows that were learned, as if none of them had been learned.

        λ stays the same. Each class loses ``Σ ω vvᵀ + ssᵀ/(n_c − W)`` of its scatter and ``s/(n_c − W)`` of its mean,
        with ``v = x − μ_c`` and s, W the sums of ωv and ω over its rows here: a change of few directions (Woodbury).
        Arguments and result are those of :meth:`left_out`.
        """
        x, moments, weight = x.double(), self.moments, weight.double()
        left = moments.mass - weight.sum()
        square = (moments.square - (weight * x.square().sum(dim=1)).sum()).clamp_min(0)
        if left <= ROUNDING * moments.mass:
            return (x.new_full((len(x),), torch.nan),) * 2
        q = self.stretched(x, (square / left).sqrt().expand(len(x))) - self.centre
        x = x - self.centre
        near = left * self._near_together(q, x, columns, weight)
        mass, moved = moments.weights.sum(), weight @ x
        changed = _Changed(self.total_inverse, x, weight, (moved / (mass - weight.sum()).sqrt())[None])
        overall = left * changed.quadratic(q, -moved[None] / (mass - weight.sum())).flatten()
        return near.masked_fill(near.isinf(), torch.nan), overall

    def _near_together(self, q: Tensor, x: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        mass = self.moments.weights[: self.moments.classes]
        away = x - self.means[columns]
        lost = torch.zeros_like(mass).index_add(0, columns, weight)
        moved = torch.zeros_like(self.means).index_add(0, columns, weight[:, None] * away)
        gone = mass - lost <= ROUNDING * mass
        others = torch.where(gone, torch.ones_like(mass), mass - lost)[:, None]
        moved = moved.masked_fill(gone[:, None], 0.0)
        changed = _Changed(self.within_inverse, away, weight, (moved / others.sqrt())[torch.unique(columns)])
        distance = changed.quadratic(q, self.means - moved / others)
        return distance.masked_fill(gone, torch.inf).min(dim=1).values

    def _near_left_out(self, q: Tensor, x: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        mass = self.moments.weights[columns]
        alone = mass - weight <= ROUNDING * mass
        others = torch.where(alone, torch.ones_like(mass), mass - weight)
        class_means = self.means[columns]
        away = x - class_means
        factor = torch.where(alone, torch.zeros_like(mass), weight * mass / others)
        pull = away @ self.within_inverse
        spread = factor / (1 - factor * (pull * away).sum(dim=1)).clamp_min(ROUNDING)
        towards, offset = self._from_means
        inner = _quadratic(q, self.within_inverse)[:, None] + offset - 2 * q @ towards
        cross = (q * pull).sum(dim=1)[:, None] - pull @ self.means.T
        distance = inner + spread[:, None] * cross.square()
        rest = q - (
            class_means - (weight / others)[:, None] * away
        )  # the mean of the others is μ_c − ω/(n_c − ω)·(x − μ_c)
        own_distance = _quadratic(rest, self.within_inverse) + spread * (rest * pull).sum(dim=1).square()
        own_distance = own_distance.masked_fill(alone, torch.inf)
        return distance.scatter(1, columns[:, None], own_distance[:, None]).min(dim=1).values

    def _overall_left_out(self, q: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        mass = self.moments.weights.sum()
        factor = weight * mass / (mass - weight)
        pull = x @ self.total_inverse
        spread = factor / (1 - factor * (pull * x).sum(dim=1)).clamp_min(ROUNDING)
        rest = q + (weight / (mass - weight))[:, None] * x
        return _quadratic(rest, self.total_inverse) + spread * (rest * pull).sum(dim=1).square()


class _Changed:
    """The inverse of a scatter from which rows were taken.

    Args:
        inverse: (p, p) of the scatter with them.
        rows: (m, p) that are taken out, as differences to their mean, and weight: (m,) of each.
        shifts: (k, p) further directions that go with the means that move.
    """

    def __init__(self, inverse: Tensor, rows: Tensor, weight: Tensor, shifts: Tensor):
        directions = fewest_rows(torch.cat([weight.sqrt()[:, None] * rows, shifts]))
        self.inverse, self.pull = inverse, directions @ inverse
        values, vectors = torch.linalg.eigh(self.pull @ directions.T)
        self.pull = vectors.T @ self.pull / (1 - values).clamp_min(ROUNDING).sqrt()[:, None]

    def quadratic(self, q: Tensor, means: Tensor) -> Tensor:
        """Return (n, C) squared distances of rows q (n, p) to means (C, p)."""
        towards = self.inverse @ means.T
        plain = _quadratic(q, self.inverse)[:, None] + (means.T * towards).sum(dim=0) - 2 * q @ towards
        further = torch.cdist(q @ self.pull.T, means @ self.pull.T, compute_mode="donot_use_mm_for_euclid_dist")
        distance: Tensor = plain + further.square()
        return distance


def _quadratic(x: Tensor, matrix: Tensor) -> Tensor:
    """Return (n,) ``xᵀ·matrix·x`` of rows (n, p)."""
    return (x * (x @ matrix)).sum(dim=1)


def within_scatter(gram: Tensor, class_sums: Tensor) -> Tensor:
    """Return ``Σ ω zzᵀ − Σ_c n_c μ_c μ_cᵀ`` (d, d), from sums over ``x̃ = [1; z]``.

    Args:
        gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
        class_sums: (C, d+1) ``Σ_{y=c} ω x̃`` of every class that has rows in ``gram``.
    """
    weight, sums = class_sums[:, :1], class_sums[:, 1:]
    return gram[1:, 1:] - sums.T @ (sums / weight)


@dataclass(frozen=True)
class Discriminant:
    """``score_c(z) = zᵀΛμ_c − ½ μ_cᵀΛμ_c`` with ``Λ = ((S + λI)/n)⁻¹``, S the scatter within classes; equal priors.

    Attributes:
        factor: (d, d) lower Cholesky factor of S + λI, float64 as all others.
        means: (C, d) μ.
        class_mass: (C,) n_c, the weight of each class's rows.
        mass: () n, the weight of all rows.
    """

    factor: Tensor
    means: Tensor
    class_mass: Tensor
    mass: Tensor

    @classmethod
    def from_sums(cls, within: Tensor, class_sums: Tensor, mass: Tensor, ridge: float) -> Discriminant:
        """Factorise, in float64.

        Args:
            within: (d, d) scatter within classes, see :func:`within_scatter`.
            class_sums: (C, d+1) ``Σ_{y=c} ω [1; z]`` of the classes to tell apart.
            mass: () total weight of all rows.
            ridge: λ, added to the scatter.

        Raises:
            CifnetError: the sum is not positive definite.
        """
        sums = class_sums.double()
        factor = factorise(within.double(), torch.tensor(ridge, dtype=torch.float64, device=within.device))
        return cls(factor, sums[:, 1:] / sums[:, :1], sums[:, 0], mass.double())

    def weights(self) -> Tensor:
        """Return (d+1, C) weights of ``[1; z]``, the bias in row 0."""
        direction = self.mass * torch.cholesky_solve(self.means.T, self.factor)
        bias = -0.5 * (self.means.T * direction).sum(dim=0)
        return torch.cat([bias[None], direction])

    def left_out(self, z: Tensor, columns: Tensor, weight: Tensor, groups: Tensor | None = None) -> Tensor:
        """Return the scores (n, C) of learned rows, each as if it, or its group, had not been learned, at the same λ.

        Without a row of class c and weight ω, with ``v = z − μ_c``, the scatter is ``S − β vvᵀ`` with
        ``β = ωn_c/(n_c − ω)``, and the mean ``μ_c − ω/(n_c − ω) v``. So every product ``aᵀ(S + λI)⁻¹b`` grows by
        ``γ aᵀ(S + λI)⁻¹v vᵀ(S + λI)⁻¹b`` with ``γ = β/(1 − β vᵀ(S + λI)⁻¹v)`` (Sherman and Morrison).

        Args:
            z: (n, d) rows that are in the sums.
            columns: (n,) int64 class of each.
            weight: (n,) ω of each.
            groups: (n,) int64 number of each row's group; None where each stands alone.

        Returns:
            NaN for a class that had no other row.
        """
        mass, remaining = self.class_mass[columns], self.class_mass[columns] - weight
        only = remaining <= ROUNDING * mass
        remaining = torch.where(only, torch.ones_like(remaining), remaining)
        means, centred = self._half(self.means), self._half(z.double() - self.means[columns])
        row = centred + means[columns]  # half products: aᵀ(S + λI)⁻¹b is their inner product
        spread = centred.square().sum(dim=1)  # vᵀ(S + λI)⁻¹v
        beta = torch.where(only, 0, weight * mass / remaining)
        gamma = beta / (1 - beta * spread)
        along_row, along_means = (row * centred).sum(dim=1), centred @ means.T
        cross, square = row @ means.T, means.square().sum(dim=1).expand(len(z), -1)

        n = torch.arange(len(z), device=z.device)
        shift = weight / remaining
        onto_own = along_means[n, columns]
        cross = cross.index_put((n, columns), cross[n, columns] - shift * along_row)
        square = square.index_put((n, columns), square[n, columns] - 2 * shift * onto_own + shift.square() * spread)
        along_means = along_means.index_put((n, columns), onto_own - shift * spread)
        score = cross - square / 2 + gamma[:, None] * (along_row[:, None] - along_means / 2) * along_means
        score = (self.mass - weight)[:, None] * score
        score = score.index_put((n[only], columns[only]), score.new_tensor(torch.nan))
        for rows in shared_groups(groups):
            score[rows] = self.left_out_together(z[rows], columns[rows], weight[rows])
        return score

    def left_out_together(self, z: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        """Return the scores (m, C) of learned rows as if none of them had been learned, at the same λ.

        Each class loses ``Σ ω vvᵀ + ssᵀ/(n_c − W)`` of its scatter and ``s/(n_c − W)`` of its mean, with
        ``v = z − μ_c`` and s, W the sums of ωv and ω over its rows here: a change of few directions (Woodbury).

        Args:
            z: (m, d) rows that are in the sums.
            columns: (m,) int64 class of each.
            weight: (m,) ω of each.

        Returns:
            NaN for a class that had no other row.
        """
        v = z.double() - self.means[columns]
        lost = torch.zeros_like(self.class_mass).index_add(0, columns, weight.double())
        moved = torch.zeros_like(self.means).index_add(0, columns, weight.double()[:, None] * v)
        remaining = self.class_mass - lost
        gone = remaining <= ROUNDING * self.class_mass
        remaining = torch.where(gone, torch.ones_like(remaining), remaining)[:, None]
        moved = moved.masked_fill(gone[:, None], 0.0)
        touched = torch.unique(columns)
        directions = torch.cat([weight.double().sqrt()[:, None] * v, (moved / remaining.sqrt())[touched]])
        means, rows, u = (self._half(x) for x in (self.means - moved / remaining, z.double(), fewest_rows(directions)))
        inner = torch.eye(len(u), dtype=u.dtype, device=u.device) - u @ u.T
        to_means, to_rows = means @ u.T, rows @ u.T
        changed = torch.linalg.solve(inner, to_means.T)  # (k, C)
        square = means.square().sum(dim=1) + (to_means * changed.T).sum(dim=1)
        score: Tensor = (self.mass - weight.sum()) * (rows @ means.T + to_rows @ changed - square / 2)
        return score.masked_fill(gone, torch.nan)

    def _half(self, x: Tensor) -> Tensor:
        """Return ``L⁻¹x`` for rows x (n, d), with L the Cholesky factor."""
        half: Tensor = torch.linalg.solve_triangular(self.factor, x.T, upper=False)
        return half.T
