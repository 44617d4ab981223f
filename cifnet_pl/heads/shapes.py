"""Compute the shapes of a head's stored tensors, so that a file can be checked before anything in it is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from cifnet_pl.statistics.packed_triangle import packed_shape

GRAMS = ("products", "class_grams")
"""How the names of Gram matrices end."""

Sizes = tuple[frozenset[int] | None, ...]
"""Allowed sizes of each dimension of a tensor; None for any size."""


def grown_sizes(one: tuple[int, ...], two: tuple[int, ...], classes: int, any_rows: bool) -> Sizes:
    """Infer the sizes of a tensor from its shapes with one class and with two classes.

    A dimension that is empty both times is filled by ``solve``: it may be empty or have one entry for each class.

    Args:
        one: shape with one class.
        two: shape with two classes.
        classes: number of classes.
        any_rows: whether empty dimensions may have any size, as those of stored samples.
    """
    sizes: list[frozenset[int] | None] = []
    for small, large in zip(one, two, strict=True):
        if any_rows and small == 0:
            sizes.append(None)
        elif small == large == 0:
            sizes.append(frozenset({0, classes}))
        else:
            sizes.append(frozenset({small + (classes - 1) * (large - small)}))
    return tuple(sizes)


def as_stored_now(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Replace the shapes of square Gram matrices, as files of formats 1 and 2 hold them, by those of triangles."""
    return {name: _triangular(shape) if name.endswith(GRAMS) else shape for name, shape in shapes.items()}


def _triangular(shape: tuple[int, ...]) -> tuple[int, ...]:
    square = len(shape) > 1 and shape[-1] == shape[-2] > 0
    return (*shape[:-2], *packed_shape(shape[-1])) if square else shape


def fits(shape: tuple[int, ...], sizes: Sizes) -> bool:
    """Return whether a tensor of ``shape`` is one of those that ``sizes`` allow."""
    pairs = zip(shape, sizes, strict=False)
    return len(shape) == len(sizes) and all(allowed is None or size in allowed for size, allowed in pairs)


def renamed(shapes: Mapping[str, Sizes], prefix: str, to: str) -> dict[str, Sizes]:
    """Select names by their prefix, and give them another one.

    Args:
        shapes: name → sizes.
        prefix: that the names to select begin with.
        to: what stands in its place.

    Example:
        >>> renamed({"sums.counts": (2,), "weights": (3, 2)}, "sums.", "old.")
        {'old.counts': (2,)}
    """
    return {to + name.removeprefix(prefix): sizes for name, sizes in shapes.items() if name.startswith(prefix)}
