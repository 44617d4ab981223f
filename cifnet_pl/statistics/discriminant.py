"""Linear discriminant analysis from sums, with one scatter for all classes and exact leave-one-out scores."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cifnet_pl.statistics.leave_one_out import fewest_rows
from cifnet_pl.statistics.solve import factorise


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

    def left_out(self, z: Tensor, columns: Tensor, weight: Tensor) -> Tensor:
        """Return the scores (n, C) of learned rows, each as if that one had not been learned, at the same λ.

        Without a row of class c and weight ω, with ``v = z − μ_c``, the scatter is ``S − β vvᵀ`` with
        ``β = ωn_c/(n_c − ω)``, and the mean ``μ_c − ω/(n_c − ω) v``. So every product ``aᵀ(S + λI)⁻¹b`` grows by
        ``γ aᵀ(S + λI)⁻¹v vᵀ(S + λI)⁻¹b`` with ``γ = β/(1 − β vᵀ(S + λI)⁻¹v)`` (Sherman and Morrison).

        Args:
            z: (n, d) rows that are in the sums.
            columns: (n,) int64 class of each.
            weight: (n,) ω of each.

        Returns:
            NaN for a class that had no other row.
        """
        mass, remaining = self.class_mass[columns], self.class_mass[columns] - weight
        only = remaining <= 1e-9 * mass  # the difference is rounding
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
        return score.index_put((n[only], columns[only]), score.new_tensor(torch.nan))

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
        gone = remaining <= 1e-9 * self.class_mass
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
