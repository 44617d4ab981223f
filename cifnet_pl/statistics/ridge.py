"""Solve ridge systems by one Cholesky factorisation."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import cython_lapack
from torch import Tensor

from cifnet_pl.utilities.errors import CifnetError, UsageError, check_that
from cifnet_pl.utilities.memory import one_thread

Ridge = float | Literal["gcv"]
"""A positive number, or "gcv": chosen by generalised cross-validation at every solve."""


def number_or_gcv(
    name: str, value: float | str, expected: str, largest: float = sys.float_info.max
) -> Ridge:
    """Check an argument that is a positive number, or "gcv".

    Args:
        name: of the argument, for the error.
        value: the argument.
        expected: what the error says was expected.
        largest: the largest number allowed.

    Returns:
        The number as a float, or "gcv".

    Raises:
        UsageError: neither.
    """
    if value == "gcv":
        return "gcv"
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UsageError(f"{name} is '{value}', expected {expected}") from None
    check_that(0 < number <= largest, name, number, expected)
    return number


def check_ridge(ridge: Ridge) -> Ridge:
    """Check a ridge as :func:`number_or_gcv`."""
    return number_or_gcv("ridge", ridge, "a positive number or gcv")


def solve_ridge(
    gram: Tensor, moment: Tensor, penalty: Tensor, overwrite: bool = False
) -> Tensor:
    """Return ``(gram + diag(penalty))⁻¹ moment`` by one Cholesky factorisation (eq:weights_rrls
    without the SVD).

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        penalty: (p,) or () ridge added to the diagonal.
        overwrite: whether ``gram`` may be changed, which saves a copy.

    Returns:
        (p, C) weights, in the dtype of ``gram``.

    Raises:
        CifnetError: the sum is not positive definite.

    Example:
        >>> gram, moment = torch.diag(torch.tensor([1.0, 3.0])), torch.tensor([[4.0], [8.0]])
        >>> solve_ridge(gram, moment, torch.tensor(1.0)).flatten().tolist()
        [2.0, 2.0]
    """
    return torch.cholesky_solve(moment, factorise(gram, penalty, overwrite))


def factorise(gram: Tensor, penalty: Tensor, overwrite: bool = False) -> Tensor:
    """Compute the lower Cholesky factor (p, p) of ``gram + diag(penalty)``.

    Args:
        gram: (p, p) symmetric positive semi-definite.
        penalty: (p,) or () ridge added to the diagonal.
        overwrite: whether ``gram`` may be changed, which saves a copy.

    Raises:
        CifnetError: the sum is not positive definite.
    """
    system = gram if overwrite else gram.clone()
    system.diagonal().add_(penalty)
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(system)
    # A number that is not finite anywhere in a row of the factor makes that row's diagonal element
    # so too.
    if info.item() or not torch.isfinite(factor.diagonal()).all():
        if penalty.ndim:
            smallest = penalty.min().item()
        else:
            smallest = penalty.item()
        raise CifnetError(
            f"the Gram matrix plus ridge {smallest:g} is not positive definite: use a larger ridge,"
            " or ridge: gcv"
        )
    return factor


FEWEST = 32
"""With fewer directions nothing is concluded from their energies."""

WINDOW = 0.02
LEAST = 8
"""Energies are averaged over this share of the directions, at least so many."""

EMPTY = 0.1
"""A direction with a smaller share of the median energy has none."""

EMPTY_BEYOND = 0.4
"""The same for the directions that no feature reaches, as a share of the energy of the last that
one does.

On images this ratio is 0.73 to 1 where all are distinct, and at most 0.39 where each has a copy.
"""

REACH = 8
"""With more directions beyond the features than this many times their number, copies hardly change
the choice.
"""


def shares_of_independent_error(
    energy: Tensor, spare: int, unexplained: Tensor
) -> tuple[Tensor, float]:
    """Return how much independent error each direction of the samples' space carries, from 0 to 1.

    n distinct samples span n directions, and the targets' error has about the same energy in each.
    A copy, or an image that differs little from another, adds a direction, the difference of the
    two, along which the targets do not differ: its energy is zero, and so it is no evidence that
        what is not fitted is small. Directions with small
    eigenvalues hold hardly anything but error, so their energies show how many of them are such
    differences.

    Args:
        energy: (m,) squared norm of the targets along each direction of the features, by falling
            eigenvalue.
        spare: number of directions that no feature reaches.
        unexplained: () squared norm of the targets in all of those.

    Returns:
        (m,) shares of the directions, and the share of each of the others; all 1 where the samples
        look distinct.
    """
    ones = torch.ones_like(energy)
    if len(energy) < FEWEST:
        return ones, 1.0
    local = _moving_mean(energy, max(LEAST, round(WINDOW * len(energy))))
    level, live = _level(local)
    tail = energy[live][-max(1, int(live.sum()) // 20) :].mean()
    if 0 < spare <= REACH * len(energy):
        beyond = (unexplained / spare / tail).item()
    else:
        beyond = 1.0
    if live.all() and beyond >= EMPTY_BEYOND:
        return ones, 1.0
    return (local / level).clamp_max(1), beyond if beyond < EMPTY_BEYOND else 1.0


def _moving_mean(values: Tensor, width: int) -> Tensor:
    """Return (m,) mean of the ``width`` values around each; at the ends, of the first and the last
    ones.
    """
    means = values.unfold(0, width, 1).mean(dim=1)
    first = (torch.arange(len(values), device=values.device) - width // 2).clamp(
        0, len(means) - 1
    )
    return means[first]


def _level(local: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median energy of the directions that have some, and which these are: (m,) bool."""
    level = local.mean()
    while True:
        live = local > EMPTY * level
        median = local[live].median() if live.any() else level
        if median >= level:
            return level, live
        level = median


ONE_THREAD = 2048
"""Width of a matrix up to which one thread computes: 1280 takes it 0.2 s."""

PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


def _few_threads(width: int) -> AbstractContextManager[None]:
    """Have one thread compute within the block, if matrices are narrow."""
    if width <= ONE_THREAD:
        return one_thread
    return nullcontext()


@cache
def _routine(name: str, arguments: int) -> Callable[..., None]:
    """Return a LAPACK routine, all of whose arguments are pointers.

    ctypes lets go of Python's lock while it runs. scipy's own wrappers hold it: a service would
    answer nobody for 0.12 s (p = 1281) or 16 s (4096).
    """
    capsule = cython_lapack.__pyx_capi__[name]
    interface = ctypes.pythonapi
    interface.PyCapsule_GetName.restype = ctypes.c_char_p
    interface.PyCapsule_GetName.argtypes = [ctypes.py_object]
    interface.PyCapsule_GetPointer.restype = ctypes.c_void_p
    interface.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    address = interface.PyCapsule_GetPointer(
        capsule, interface.PyCapsule_GetName(capsule)
    )
    routine: Callable[..., None] = ctypes.CFUNCTYPE(
        None, *[ctypes.c_void_p] * arguments
    )(address)
    return routine


def _call(name: str, dtype: np.dtype[Any], *arguments: bytes | int | np.ndarray) -> int:
    """Call a routine with its arguments but the last, ``info``, which is returned."""
    info = ctypes.c_int()
    held = [ctypes.c_int(one) if isinstance(one, int) else one for one in arguments]
    pointers = [
        (
            one.ctypes.data
            if isinstance(one, np.ndarray)
            else (
                ctypes.addressof(one)
                if isinstance(one, ctypes.c_int)
                else ctypes.cast(ctypes.c_char_p(one), ctypes.c_void_p)
            )
        )
        for one in held
    ]
    _routine(PREFIX[dtype] + name, len(pointers) + 1)(*pointers, ctypes.addressof(info))
    return info.value


def sytrd(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reduce a symmetric matrix to tridiagonal form, ``G = Q T Qᵀ``.

    Args:
        matrix: (p, p) float64 or float32, of which the lower triangle is read.

    Returns:
        (p, p) Q as Householder reflectors below the first subdiagonal, in Fortran's order; (p,)
        diagonal and (p−1,) subdiagonal of T; (p−1,) scales of the reflectors.
    """
    count = len(matrix)
    dtype = matrix.dtype
    packed = np.array(matrix, order="F")
    diagonal, below, scales = (
        np.empty(max(1, count - less), dtype) for less in (0, 1, 1)
    )
    size = np.empty(1, dtype)
    _call("sytrd", dtype, b"L", count, packed, count, diagonal, below, scales, size, -1)
    work = np.empty(max(1, int(size[0])), dtype)
    with _few_threads(count):
        _call(
            "sytrd",
            dtype,
            b"L",
            count,
            packed,
            count,
            diagonal,
            below,
            scales,
            work,
            len(work),
        )
    return packed, diagonal, below[: count - 1], scales[: count - 1]


def stevd(diagonal: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the eigendecomposition of a tridiagonal matrix by divide and conquer.

    Args:
        diagonal, below: (p,) and (p−1,), float64 or float32.

    Returns:
        (p,) eigenvalues, ascending; (p, p) eigenvectors in columns.
    """
    count = len(diagonal)
    dtype = diagonal.dtype
    values = diagonal.copy()
    rest = np.append(below, np.zeros(1, dtype))
    vectors = np.empty((count, count), dtype, order="F")
    # Sizes as LAPACK's documentation gives them for jobz = "V".
    work = np.empty(1 + 4 * count + count**2, dtype)
    whole = np.empty(3 + 5 * count, np.intc)
    with _few_threads(count):
        failed = _call(
            "stevd",
            dtype,
            b"V",
            count,
            values,
            rest,
            vectors,
            count,
            work,
            len(work),
            whole,
            len(whole),
        )
    if failed:
        raise np.linalg.LinAlgError(
            "the eigenvalues of the Gram matrix did not converge"
        )
    return values, vectors


FACTORED_FROM = 64
"""Smallest width for which the eigenvectors are left as factors; below, any way takes no time."""


@dataclass(frozen=True)
class Spectrum:
    """The eigendecomposition ``V diag(values) Vᵀ``.

    Attributes:
        values: (p,) eigenvalues, ascending; exactly zero beyond the rank.
        rotate: function (p, C) → ``Vᵀx``.
        back: function (p, C) → ``Vx``.
    """

    values: Tensor
    rotate: Callable[[Tensor], Tensor]
    back: Callable[[Tensor], Tensor]


def spectrum(gram: Tensor, rank: int, columns: int) -> Spectrum:
    """Compute the eigendecomposition of a Gram matrix.

    Eigenvalues beyond the rank, and those below the precision, hold only rounding: they are zero
    here.

    Args:
        gram: (p, p) float64 or float32.
        rank: an upper bound of its rank.
        columns: how many columns will be rotated, which decides in which form the eigenvectors are
            kept.

    Raises:
        CifnetError: the sums overflowed.
    """
    if not torch.isfinite(gram.trace()):
        raise CifnetError(
            f"the Gram matrix overflowed {gram.dtype}: scale the embeddings down, or use dtype:"
            " float64"
        )
    # Few samples leave many eigenvalues that are zero but for rounding, over which divide and
    # conquer can fail to converge. Moved away from zero they are equal to working precision, and
    # deflate. In place, and put back exactly: a Gram matrix may be most of the memory.
    diagonal = gram.diagonal().clone()
    shift = diagonal.mean()
    # Factors rotate there and back in 8p²C operations instead of 4p²C, and save the 2p³ of their
    # product.
    factored = gram.device.type == "cpu" and len(gram) >= max(
        FACTORED_FROM, 2 * columns
    )
    try:
        gram.diagonal().add_(shift)
        if factored:
            result = _factored(gram)
        else:
            values, vectors = torch.linalg.eigh(gram)
            result = Spectrum(values, lambda x: vectors.T @ x, lambda x: vectors @ x)
    finally:
        gram.diagonal().copy_(diagonal)
    result.values.sub_(shift)
    result.values[: len(gram) - min(len(gram), rank)] = 0
    result.values[result.values <= torch.finfo(gram.dtype).eps * result.values[-1]] = 0
    return result


def _factored(gram: Tensor) -> Spectrum:
    """Return ``G = Q T Qᵀ`` with T tridiagonal, ``T = U diag(values) Uᵀ``: V = QU is never formed.

    Without the product QU it takes half as long (p = 1280, few columns). LAPACK's sytrd leaves Q as
    Householder reflectors of all rows but the first, in the form that ormqr applies, as LAPACK's
    own ormtr does.
    """
    packed, diagonal, below, scales = sytrd(gram.numpy().T)
    values, vectors = stevd(diagonal, below)
    reflectors = torch.from_numpy(packed)[1:, :-1]
    scale = torch.from_numpy(scales)
    inner = torch.from_numpy(vectors)

    def reflected(x: Tensor, transpose: bool) -> Tensor:
        return torch.cat(
            [x[:1], torch.ormqr(reflectors, scale, x[1:], transpose=transpose)]
        )

    return Spectrum(
        torch.from_numpy(values),
        lambda x: inner.T @ reflected(x, True),
        lambda x: reflected(inner @ x, False),
    )


GCV_GRID = torch.logspace(-7, 3, 101, dtype=torch.float64)
"""Candidate ridges of generalised cross-validation, as multiples of the mean eigenvalue."""

SMALLEST = 10
"""The smallest candidate, in units of the rounding of the largest eigenvalue: binds in float32
only.
"""


MOST_FREEDOM = 0.5
"""The largest share of degrees of freedom among samples: a fit with more has been chosen by copies,
not by error.
"""


NOTHING = 1000
"""Energy of the targets per sample, in units of rounding, up to which there is nothing to fit, as
with one class.
"""


Position = Literal["inside", "cap", "smallest", "largest", "given"]
"""Where a ridge lies among the candidates: "smallest" and "largest" at an edge of the grid, else
"inside"; "cap" if generalised cross-validation asks for more freedom than is allowed; "given" if it
was not chosen now."""


class Choice(NamedTuple):
    """A ridge, and where it lies among the candidates."""

    ridge: float
    position: Position


def solve(
    gram: Tensor,
    moment: Tensor,
    ridge: Ridge,
    target_energy: Tensor,
    samples: int,
    free: int = 0,
    spare: bool = False,
) -> tuple[Tensor, Choice]:
    """Return ``(gram + λI)⁻¹ moment`` and λ: one Cholesky factorisation, or one eigendecomposition
    with "gcv".

    Args:
        gram: (p, p) symmetric positive semi-definite.
        moment: (p, C).
        ridge: λ, or "gcv": the one that :func:`gcv_ridge` chooses.
        target_energy: () sum of the squared targets.
        samples: number of distinct samples.
        free: parameters of each class that are fitted without penalty, and are already out of the
            sums.
        spare: whether ``gram`` is needed no more, so that it can be changed.

    Raises:
        CifnetError: the sums overflowed, or with this ridge they are not positive definite.
    """
    if ridge != "gcv":
        return solve_ridge(
            gram, moment, gram.new_tensor(ridge), overwrite=spare
        ), Choice(float(ridge), "given")
    eigen = spectrum(gram, samples - free, moment.shape[1])
    rotated = torch.where(eigen.values[:, None] > 0, eigen.rotate(moment), 0)
    choice = gcv_ridge(
        eigen.values, rotated.square().sum(dim=1), target_energy, samples, free
    )
    return eigen.back(rotated / (eigen.values + choice.ridge)[:, None]), choice


def gcv_ridge(
    eigenvalues: Tensor,
    energy: Tensor,
    target_energy: Tensor,
    samples: int,
    free: int = 1,
) -> Choice:
    """Return the ridge that minimises generalised cross-validation (Golub, Heath and Wahba, 1979).

    ``GCV(λ) = n·RSS/(n−df)²`` with ``RSS = tr(Y_cᵀY_c) − 2Σ a_i/(e_i+λ) + Σ e_i a_i/(e_i+λ)²`` and
    ``df = free + Σ e_i/(e_i+λ)``, over a log grid around the mean eigenvalue. Candidates with ``df
    > n/2`` are out, and so are those that are lost in the rounding of the largest eigenvalue.
    RSS is what no λ can fit, ``tr(Y_cᵀY_c) − Σ a_i/e_i``, plus ``Σ (a_i/e_i)·(λ/(e_i+λ))²``: with
    no more samples than features both RSS and n − df fall to zero with λ, and the first form would
    leave only rounding of their ratio.

    Copies of samples, and samples that differ little from others, add directions without error, in
    which ``n − df`` stays positive while RSS is zero, so that GCV would be won by λ → 0. Each
    direction counts in n and in df by its share of independent error, which is 1 where samples are
    distinct (:func:`~cifnet_pl.statistics.ridge.shares_of_independent_error`).

    Args:
        eigenvalues: (d,) e_i ≥ 0 of the Gram matrix, centred where the bias is free; exactly zero
            beyond its rank.
        energy: (d,) a_i, squared norms of the rotated moment, centred likewise.
        target_energy: () tr(Y_cᵀY_c), likewise.
        samples: n, the number of distinct samples.
        free: parameters of each class that are fitted without penalty: 1 for a free bias.
    """
    mean = eigenvalues.mean().item()
    if mean == 0.0:  # all embeddings alike: any ridge gives zero weights
        return Choice(1.0, "inside")
    order = eigenvalues.argsort(descending=True)[: int((eigenvalues > 0).sum())]
    eigenvalues, explained = eigenvalues[order], energy[order] / eigenvalues[order]
    spare = max(samples - free - len(eigenvalues), 0)
    if spare:
        unexplained = (target_energy - explained.sum()).clamp_min(0)
    else:
        unexplained = torch.zeros_like(target_energy)
    share, beyond = shares_of_independent_error(explained, spare, unexplained)
    grid = GCV_GRID.to(eigenvalues) * mean
    left = grid[:, None] / (eigenvalues + grid[:, None])
    rss = unexplained + (explained * left.square()).sum(1)
    freedom = beyond * spare + (share * left).sum(1)  # n − df
    score = rss / freedom.square()
    score[
        (freedom <= 0)
        | (grid < SMALLEST * torch.finfo(grid.dtype).eps * eigenvalues.max())
    ] = torch.inf
    allowed = torch.where(
        freedom < (1 - MOST_FREEDOM) * (free + share.sum() + beyond * spare),
        torch.inf,
        score,
    )
    best = _last_smallest(allowed)
    unbounded = _last_smallest(score)
    position: Position = "inside"
    if target_energy > NOTHING * torch.finfo(grid.dtype).eps * samples:
        if unbounded < best:
            position = "cap"
        elif best == len(grid) - 1:
            position = "largest"
        elif best == int(score.isfinite().int().argmax()):
            position = "smallest"
    return Choice(grid[best].item(), position)


def _last_smallest(score: Tensor) -> int:
    """Return the position of the smallest score; of several, the one with the largest ridge.

    With nothing to fit (one class so far) all are equal, and the simplest solution is right.
    """
    return len(score) - 1 - int(score.flip(0).argmin())


ROUNDING = 1e-9
"""A share of 1 less than this is 1: the difference is lost in the rounding of float64 sums."""


def half_products(gram: Tensor, penalty: Tensor, x: Tensor) -> Tensor:
    """Compute the rows B with ``B Bᵀ = X(gram + diag(penalty))⁻¹Xᵀ``.

    Args:
        gram: (p, p) Gram matrix of all learned samples.
        penalty: (p,) ridge of each feature, 0 for one that is free.
        x: (n, p) rows.

    Returns:
        (n, p) float64.

    Raises:
        CifnetError: ``gram + diag(penalty)`` is not positive definite.
    """
    factor = factorise(
        gram.double(), penalty.double()
    )  # a ridge that eigh solves with may be small for float32
    half: Tensor = torch.linalg.solve_triangular(factor, x.T.double(), upper=False)
    return half.T


AT_ONCE = 1024
"""Rows whose groups are left out in one go."""


def equal_groups(groups: Tensor | None, count: int) -> Iterator[Tensor]:
    """Yield the rows of all groups: (g, k) int64 of g groups of k rows each, about ``AT_ONCE`` rows
    at a time.

    Args:
        groups: (count,) int64 number of each row's group; None where each stands alone.
        count: number of rows.
    """
    groups = torch.arange(count) if groups is None else groups
    order = torch.argsort(groups, stable=True)
    sizes = torch.unique_consecutive(groups[order], return_counts=True)[1]
    starts = sizes.cumsum(0) - sizes
    for size in torch.unique(sizes).tolist():
        first = starts[sizes == size]
        rows = order[first[:, None] + torch.arange(size, device=first.device)]
        yield from torch.split(rows, max(1, AT_ONCE // size))


def left_out_together(
    scores: Tensor, half: Tensor, weight: Tensor, targets: Tensor, groups: Tensor | None
) -> Tensor:
    """Return the scores (n, C) of samples without all samples of their group, at the same ridge.

    For one alone it is ``(score − h·y)/(1 − h)`` with h its weight times its leverage. In general,
    with S the scores of a group, H its block of the hat matrix, Ω its weights, Y its targets and
    ``V = Ω^½B``, it is ``(I − HΩ)⁻¹R = R + B(I − VᵀV)⁻¹VᵀΩ^½R`` with ``R = S − HΩY``: a system of
    as many equations as the group has rows, or of p, whichever is smaller, so that no matrix grows
    with the square of a group.

    Args:
        scores: (n, C) of samples that were learned.
        half: (n, p) from :func:`half_products`.
        weight: (n,) of each sample in the sums; 0 where it was never seen.
        targets: (n, C) targets that the solve used.
        groups: (n,) int64 number of each sample's group; None where each stands alone.

    Returns:
        (n, C) float64; NaN where without the group nothing is known of a sample's score.

    Example:
        >>> half = torch.tensor([[0.5**0.5]])  # leverage 0.5
        >>> left_out_together(torch.tensor([[2.0]]), half, torch.ones(1), torch.tensor([[3.0]]), None).round().item()
        1.0
    """
    result = torch.empty_like(scores, dtype=torch.float64)
    for rows in equal_groups(groups, len(scores)):
        b = half[rows].double()
        root = weight[rows].double().sqrt()[..., None]
        targeted = root * targets[rows].double()
        v = root * b
        if v.shape[1] <= v.shape[2]:
            products = v @ v.mT
            hat = b @ v.mT
            rest = scores[rows].double() - hat @ targeted
            without, gap = _solved(products, root * rest)
            without = rest + hat @ without
        else:
            rest = scores[rows].double() - b @ (v.mT @ targeted)
            without, gap = _solved(v.mT @ v, v.mT @ (root * rest))
            without = rest + b @ without
        result[rows] = without.masked_fill(gap < ROUNDING, torch.nan)
    return result


def _solved(products: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(I − P)⁻¹R`` (g, k, C), and the smallest eigenvalue (g, 1, 1) of I − P."""
    values, vectors = torch.linalg.eigh(products)
    gaps = 1 - values[..., None]
    return vectors @ ((vectors.mT @ right) / gaps.clamp_min(ROUNDING)), gaps[:, -1:]


@dataclass(frozen=True)
class Centred:
    """Weighted least squares with a free bias, after centring features and targets.

    Attributes:
        gram: (d, d) ``Σ ω z zᵀ − n μ μᵀ``.
        moment: (d, C) ``Σ ω z tᵀ − n μ t̄ᵀ``.
        mean: (d,) μ.
        target_mean: (C,) t̄.
        target_energy: () ``tr(Y_cᵀ Y_c)``.
        samples: number of distinct samples.
    """

    gram: Tensor
    moment: Tensor
    mean: Tensor
    target_mean: Tensor
    target_energy: Tensor
    samples: int

    @classmethod
    def from_augmented(
        cls, gram: Tensor, moment: Tensor, target_square: Tensor, samples: int
    ) -> Centred:
        """Centre sums over ``x̃ = [1; z]``.

        Args:
            gram: (d+1, d+1) ``Σ ω x̃x̃ᵀ``.
            moment: (d+1, C) ``Σ ω x̃ tᵀ``.
            target_square: () ``Σ ω t²`` over all samples and classes.
            samples: number of distinct samples.
        """
        total = gram[0, 0]
        mean = gram[0, 1:] / total
        target_mean = moment[0] / total
        return cls(
            gram=gram[1:, 1:] - total * torch.outer(mean, mean),
            moment=moment[1:] - total * torch.outer(mean, target_mean),
            mean=mean,
            target_mean=target_mean,
            target_energy=target_square - total * target_mean.square().sum(),
            samples=samples,
        )

    def solve(self, ridge: Ridge) -> tuple[Tensor, Choice]:
        """Solve for the weights.

        Args:
            ridge: a number to add to the diagonal of the centred Gram matrix, or "gcv" (generalised
                cross-validation).

        Returns:
            The weights (d+1, C) with the bias in row 0, and the ridge used.
        """
        weights, chosen = solve(
            self.gram, self.moment, ridge, self.target_energy, self.samples, free=1
        )
        bias = self.target_mean - self.mean @ weights
        return torch.cat([bias[None], weights]), chosen

    def half_products(self, z: Tensor, ridge: float, mass: Tensor) -> Tensor:
        """Return :func:`~cifnet_pl.statistics.ridge.half_products` of embeddings, with a free bias.

        Args:
            z: (n, d) embeddings.
            ridge: λ of the solve.
            mass: () ``Σ ω``, the total weight.

        Returns:
            (n, d+1) float64.
        """
        half = half_products(self.gram, self.gram.new_tensor(ridge), z - self.mean)
        return torch.cat(
            [half.new_full((len(half), 1), 1) / mass.double().sqrt(), half], dim=1
        )
