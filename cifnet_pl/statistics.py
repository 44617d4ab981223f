"""The sums that everything is learned from: accumulate, merge, subtract, reduce, and solve.

All sums are additive over samples, so any batch order, batch size or split over processes gives the same
statistics up to rounding. Nothing here knows about tasks, labels or Lightning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cifnet_pl.errors import CheckpointError, CifnetError
from cifnet_pl.spectral import spectrum
from cifnet_pl.state import GrowingModule
from cifnet_pl.symmetric import add_lower_, mirror_

GCV_GRID = torch.logspace(-7, 3, 101, dtype=torch.float64)
"""Candidate ridges of generalised cross-validation, as multiples of the mean eigenvalue."""

SMALLEST = 10
"""The smallest candidate, in units of the rounding of the largest eigenvalue: binds in float32 only."""


def augment(z: Tensor) -> Tensor:
    """Prepend the bias feature: (n, d) → (n, d+1), ``x̃ = [1; z]``."""
    return torch.cat([z.new_ones(len(z), 1), z], dim=1)


class Sums(GrowingModule):
    """Sufficient statistics of weighted rows ``x`` of width p, some of them belonging to one of C classes.

    Buffers (dtype as given, float64 unless told otherwise):
        products: (p, p), ``Σ ω x xᵀ`` over all rows, symmetric; after an addition only the blocks on and below its
            diagonal are up to date, see ``gram``.
        class_sums: (C, p), ``Σ_{y=c} ω x``. With a leading bias feature its first column is the class's weight.
        counts: (C,) int64, number of distinct rows of each class.
        seen: () int64, number of distinct rows in all, whether or not they belong to one of the classes.
        mass: () ``Σ ω`` over all rows.
        class_grams: (C, p, p), ``Σ_{y=c} ω x xᵀ``; empty (0, p, p) unless ``per_class``.
    """

    products: Tensor
    class_sums: Tensor
    counts: Tensor
    seen: Tensor
    mass: Tensor
    class_grams: Tensor

    def __init__(self, width: int, classes: int = 0, *, per_class: bool = False, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.per_class = per_class
        self._lower_only = False
        self.register_buffer("products", torch.zeros(width, width, dtype=dtype))
        self.register_buffer("class_sums", torch.zeros(classes, width, dtype=dtype))
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.int64))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mass", torch.zeros((), dtype=dtype))
        self.register_buffer("class_grams", torch.zeros(classes if per_class else 0, width, width, dtype=dtype))

    def _before_load(self, own: Mapping[str, Any]) -> None:
        gram, shape = own.get("products"), self.products.shape
        if isinstance(gram, Tensor) and gram.shape != shape:
            raise CheckpointError(
                f"stored sums have a Gram matrix of shape {tuple(gram.shape)}, expected {tuple(shape)}: "
                "they are of embeddings of another width"
            )
        self._lower_only = False

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        self._complete()  # so that what is stored does not depend on what was read before
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @property
    def gram(self) -> Tensor:
        """(p, p) ``Σ ω x xᵀ`` over all rows; the tensor itself, not a copy."""
        self._complete()
        return self.products

    def _complete(self) -> None:
        if self._lower_only:
            mirror_(self.products)
            self._lower_only = False

    @property
    def width(self) -> int:
        """Number of features p, the bias feature included where there is one."""
        return self.products.shape[0]

    def grow(self, classes: int) -> None:
        """Make room for ``classes`` more classes, at the end, with zero sums."""
        self.class_sums = torch.cat([self.class_sums, self.class_sums.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        if self.per_class:
            more = self.class_grams.new_zeros(classes, self.width, self.width)
            self.class_grams = torch.cat([self.class_grams, more])

    def add(self, x: Tensor, index: Tensor, weight: Tensor | None = None) -> None:
        """Add rows.

        Args:
            x: (n, p), any floating dtype; converted to the dtype of the sums before any product.
            index: (n,) int64, class column of each row, or -1 for a row that belongs to none of the classes.
            weight: (n,) non-negative, or None for all ones. A weight does not change the distinct counts.
        """
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.products.dtype)
            weighted = x if weight is None else x * weight.to(x)[:, None]
            add_lower_(self.products, weighted, x)
            self._lower_only = True
            self.seen += len(x)
            self.mass += len(x) if weight is None else weight.to(x).sum()
            own = index >= 0
            if not own.all():
                x, weighted, index = x[own], weighted[own], index[own]
            self.class_sums.index_add_(0, index, weighted)
            self.counts += torch.bincount(index, minlength=len(self.counts))
            if self.per_class:
                for c in torch.unique(index).tolist():
                    self.class_grams[c] += weighted[index == c].T @ x[index == c]

    @property
    def class_mass(self) -> Tensor:
        """(C,) total weight of each class's rows, were all weights alike; of one with a bias feature, its own sums."""
        return self.mass * self.counts / self.seen

    def add_gram_of(self, other: Sums) -> None:
        """Add the rows of ``other`` as rows that belong to none of these classes."""
        self._add_products(other, 1)
        self.seen += other.seen
        self.mass += other.mass

    def merge(self, other: Sums, columns: Tensor | None = None, sign: int = 1) -> None:
        """Add (``sign=1``) or subtract (``-1``) sums whose class c is this object's class ``columns[c]``."""
        device = self.products.device
        if columns is None:
            columns = torch.arange(len(other.counts), device=device)
        self._add_products(other, sign)
        self.class_sums.index_add_(0, columns, sign * other.class_sums.to(device))
        self.counts.index_add_(0, columns, sign * other.counts.to(device))
        self.seen += sign * other.seen.to(device)
        self.mass += sign * other.mass.to(device)
        if self.per_class:
            self.class_grams.index_add_(0, columns, sign * other.class_grams.to(device))

    def _add_products(self, other: Sums, sign: int) -> None:
        self.products.add_(other.products.to(self.products.device), alpha=sign)
        self._lower_only |= other._lower_only

    def keep(self, columns: Tensor) -> None:
        """Drop all classes but those in ``columns``; their rows stay in ``gram`` as rows of no class."""
        self.class_sums = self.class_sums[columns]
        self.counts = self.counts[columns]
        if self.per_class:
            self.class_grams = self.class_grams[columns]

    def reduce(self, sum_in_place: Callable[[Tensor], object]) -> None:
        """Sum over processes: call ``sum_in_place`` on every tensor, in a fixed order."""
        for tensor in (self.gram, self.class_sums, self.counts, self.seen, self.mass, self.class_grams):
            sum_in_place(tensor)


def solve_ridge(gram: Tensor, moment: Tensor, penalty: Tensor) -> Tensor:
    """``(gram + diag(penalty))⁻¹ moment`` by one Cholesky factorisation (eq:weights_rrls without the SVD).

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        penalty: (p,) or () ridge added to the diagonal.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    return torch.cholesky_solve(moment, factorise(gram, penalty))


def factorise(gram: Tensor, penalty: Tensor) -> Tensor:
    """Lower Cholesky factor (p, p) of ``gram + diag(penalty)``; arguments and error as for :func:`solve_ridge`."""
    system = gram.clone()
    system.diagonal().add_(penalty)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(system)
    # A number that is not finite anywhere in a row of the factor makes that row's diagonal element so too.
    if info.item() or not torch.isfinite(factor.diagonal()).all():
        smallest = penalty.min().item() if penalty.ndim else penalty.item()
        raise CifnetError(
            f"the Gram matrix plus ridge {smallest:g} is not positive definite: use a larger ridge, or ridge: gcv"
        )
    return factor


def leverages(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """``xᵀ(gram + diag(penalty))⁻¹x`` of every row of x (n, p): (n,); errors as for :func:`solve_ridge`.

    Times the weight of a sample that is in the sums, this is what its own target contributes to its own score.
    """
    factor = factorise(gram.double(), penalty.double())  # a ridge that eigh solves with may be small for float32
    half: Tensor = torch.linalg.solve_triangular(factor, x.T.double(), upper=False)
    return half.square().sum(dim=0)


def solve_gcv(gram: Tensor, moment: Tensor, target_energy: Tensor, samples: int, free: int = 0) -> tuple[Tensor, float]:
    """``(gram + λI)⁻¹ moment`` and the λ that :func:`gcv_ridge` chooses, from one eigendecomposition.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        target_energy: () sum of the squared targets.
        samples: number of distinct samples.
        free: parameters of each class that are fitted without penalty, and are already out of the sums.

    Raises:
        CifnetError: the sums overflowed.
    """
    found = spectrum(gram, samples - free, moment.shape[1])
    rotated = torch.where(found.values[:, None] > 0, found.rotate(moment), 0)
    ridge = gcv_ridge(found.values, rotated.square().sum(dim=1), target_energy, samples, free)
    return found.back(rotated / (found.values + ridge)[:, None]), ridge


@dataclass(frozen=True)
class Centred:
    """Weighted least squares with a free bias, after centring features and targets.

    gram: (d, d) ``Σ ω z zᵀ − n μ μᵀ``; moment: (d, C) ``Σ ω z tᵀ − n μ t̄ᵀ``; mean: (d,) μ; target_mean: (C,) t̄;
    target_energy: () ``tr(Y_cᵀ Y_c)``; samples: number of distinct samples.
    """

    gram: Tensor
    moment: Tensor
    mean: Tensor
    target_mean: Tensor
    target_energy: Tensor
    samples: int

    @classmethod
    def from_augmented(cls, gram: Tensor, moment: Tensor, target_square: Tensor, samples: int) -> Centred:
        """Centre sums over ``x̃ = [1; z]``.

        Args:
            gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
            moment: (d+1, C) ``Σ ω x̃ tᵀ``.
            target_square: () ``Σ ω t²`` over all samples and classes.
            samples: number of distinct samples.
        """
        total = gram[0, 0]
        mean, target_mean = gram[0, 1:] / total, moment[0] / total
        return cls(
            gram=gram[1:, 1:] - total * torch.outer(mean, mean),
            moment=moment[1:] - total * torch.outer(mean, target_mean),
            mean=mean,
            target_mean=target_mean,
            target_energy=target_square - total * target_mean.square().sum(),
            samples=samples,
        )

    def solve(self, ridge: float | str) -> tuple[Tensor, float]:
        """Weights (d+1, C) with the bias in row 0, and the ridge used.

        ``ridge`` is a number added to the centred Gram matrix, or "gcv" for generalised cross-validation.
        """
        if ridge == "gcv":
            weights, chosen = solve_gcv(self.gram, self.moment, self.target_energy, self.samples, free=1)
        else:
            chosen = float(ridge)
            weights = solve_ridge(self.gram, self.moment, self.gram.new_tensor(chosen))
        bias = self.target_mean - self.mean @ weights
        return torch.cat([bias[None], weights]), chosen

    def leverages(self, z: Tensor, ridge: float, mass: Tensor) -> Tensor:
        """:func:`leverages` (n,) of embeddings z (n, d) with a free bias; ``mass`` () is the total weight ``Σ ω``."""
        return 1 / mass + leverages(self.gram, self.gram.new_tensor(ridge), z - self.mean)


def gcv_ridge(eigenvalues: Tensor, energy: Tensor, target_energy: Tensor, samples: int, free: int = 1) -> float:
    """The ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − 2Σ a_i/(e_i+λ) + Σ e_i a_i/(e_i+λ)²`` and
    ``df = free + Σ e_i/(e_i+λ)``, over a log grid around the mean eigenvalue. Candidates with ``df ≥ n`` are out, and
    so are those that are lost in the rounding of the largest eigenvalue.
    RSS is what no λ can fit, ``tr(Y_cᵀY_c) − Σ a_i/e_i``, plus ``Σ (a_i/e_i)·(λ/(e_i+λ))²``: with no more samples than
    features both RSS and n − df fall to zero with λ, and the first form would leave only rounding of their ratio.

    Args:
        eigenvalues: (d,) e_i ≥ 0 of the Gram matrix, centred where the bias is free; exactly zero beyond its rank.
        energy: (d,) a_i, squared norms of the rotated moment, centred likewise.
        target_energy: () tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return 1.0
    used = eigenvalues > 0
    eigenvalues, explained = eigenvalues[used], energy[used] / eigenvalues[used]
    spare = samples - free - len(eigenvalues)
    unexplained = (target_energy - explained.sum()).clamp_min(0) if spare > 0 else torch.zeros_like(target_energy)
    grid = GCV_GRID.to(eigenvalues) * mean
    left = grid[:, None] / (eigenvalues + grid[:, None])
    rss = unexplained + (explained * left.square()).sum(1)
    freedom = spare + left.sum(1)  # n − df
    score = samples * rss / freedom.square()
    score[(freedom <= 0) | (grid < SMALLEST * torch.finfo(grid.dtype).eps * eigenvalues.max())] = torch.inf
    # Ties go to the largest ridge: with nothing to fit (one class so far) the simplest solution is right.
    return grid[len(grid) - 1 - score.flip(0).argmin()].item()
