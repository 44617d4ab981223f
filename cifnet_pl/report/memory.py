"""Compute by formula how many numbers are kept between tasks: the paper's (appendix on memory) and this package's.

The paper's totals add rounded or truncated components; the formulas here give 72.1, 140.1 and 27.5 million for
CIFAR-100 and 278.5 and 548.5 million for ImageNet-100, where it prints 72.1, 140.0, 27.5, 278.4 and 548.6.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Elements = dict[str, int]
"""Numbers by component: projection, factors, moments, weights, buffer."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the formulas depend on.

    Attributes:
        features: d, width of the embeddings.
        classes: C.
        tasks: K.
        width: B, random features of ACIL and DS-AL.
        buffer: embeddings in the calibration buffer.
    """

    features: int
    classes: int
    tasks: int
    width: int = 8192
    buffer: int = 2000


def paper_acil(sizes: Sizes) -> Elements:
    """Return ``M = Bd + B² + CB``."""
    d, c, b = sizes.features, sizes.classes, sizes.width
    return {"projection": b * d, "factors": b**2, "weights": c * b}


def paper_dsal(sizes: Sizes) -> Elements:
    """Return ``M = Bd + 2B² + 2CB``."""
    d, c, b = sizes.features, sizes.classes, sizes.width
    return {"projection": b * d, "factors": 2 * b**2, "weights": 2 * c * b}


def paper_cifnet(sizes: Sizes) -> Elements:
    """Return ``M = B_cal·d + C(2(d+1) + (d+1)r + r)`` at full rank ``r = d+1``: U and S of every class."""
    d, c = sizes.features, sizes.classes
    rank = d + 1
    return {
        "factors": c * ((d + 1) * rank + rank),
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": sizes.buffer * d,
    }


def triangle(width: int) -> int:
    """Return how many different numbers a symmetric matrix of some width has.

    Example:
        >>> triangle(3)
        6
    """
    return width * (width + 1) // 2


def own_acil(sizes: Sizes) -> Elements:
    """Return ``B(B+1)/2 + 2CB``: the projection is drawn from its seed, and half of a symmetric matrix is stored."""
    c, b = sizes.classes, sizes.width
    return {"projection": 0, "factors": triangle(b), "moments": c * b, "weights": c * b}


def own_dsal(sizes: Sizes) -> Elements:
    """Return ``B(B+1) + 4CB``."""
    c, b = sizes.classes, sizes.width
    return {"projection": 0, "factors": 2 * triangle(b), "moments": 2 * c * b, "weights": 2 * c * b}


def own_cifnet(sizes: Sizes) -> Elements:
    """Return ``B_cal·d + K(d+1)(d+2)/2 + 2C(d+1)``: one Gram matrix for all classes of a task."""
    d, c = sizes.features, sizes.classes
    return {
        "factors": sizes.tasks * triangle(d + 1),
        "moments": c * (d + 1),
        "weights": c * (d + 1),
        "buffer": sizes.buffer * d,
    }


def own_ridge(sizes: Sizes) -> Elements:
    """Return ``(d+1)(d+2)/2 + 2C(d+1)`` for any number of tasks; a buffer for calibration is not included."""
    d, c = sizes.features, sizes.classes
    return {"factors": triangle(d + 1), "moments": c * (d + 1), "weights": c * (d + 1)}


Formula = Callable[[Sizes], Elements]
FORMULAS: dict[str, tuple[Formula | None, Formula]] = {
    "ACIL": (paper_acil, own_acil),
    "DS-AL": (paper_dsal, own_dsal),
    "CIFNet": (paper_cifnet, own_cifnet),
    "Exact ridge": (None, own_ridge),
}
"""Method → the paper's formula, where it has one, and this package's."""
