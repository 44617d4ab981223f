"""(i) The head's sums from embeddings, as a share of the peak rate of matrix products.

Whole Gram matrices are counted; the sums leave out most of what is above the diagonal, so the share
can exceed one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Row, ratio, seconds, side_by_side
from cifnet_pl.heads import CIFNetHead, Head, RidgeHead

SAMPLES = 20_000
CLASSES = 10
BATCH = 512
SQUARE = 2048
REPEATS = 5


def observe(make: Callable[[], Head], z: Tensor, y: Tensor) -> None:
    """All samples of one task in batches, as ``fit`` feeds them; nothing is solved."""
    head = make()
    head.begin_task(list(range(CLASSES)))
    for start in range(0, len(z), BATCH):
        head.observe(z[start : start + BATCH], y[start : start + BATCH])


def rows() -> list[Row]:
    """Both heads at two widths: samples a second, against 2(d+1)² operations a sample at the peak
    rate.
    """
    measured = []
    for d in (512, 1280):
        z = torch.randn(SAMPLES, d)
        y = torch.randint(CLASSES, (SAMPLES,))
        # As many operations as the sums need, in square products: the fastest that this machine
        # multiplies.
        a, b = torch.randn(2, SQUARE, SQUARE, dtype=torch.float64)
        products = max(1, round(SAMPLES * (d + 1) ** 2 / SQUARE**3))
        operations = 2 * products * SQUARE**3

        def peak(products: int = products, a: Tensor = a, b: Tensor = b) -> None:
            for _ in range(products):
                torch.mm(a, b)

        makes: dict[str, Callable[[], Head]] = {
            "RidgeHead": partial(RidgeHead, d),
            "CIFNetHead": partial(CIFNetHead, d, ridge=1.0),
        }
        for name, make in makes.items():
            seconds(peak)
            ours, rival = side_by_side(partial(observe, make, z, y), peak, REPEATS)
            allowed = [t * 2 * SAMPLES * (d + 1) ** 2 / operations for t in rival]
            rates = [
                f"{SAMPLES / sorted(t)[len(t) // 2]:,.0f} samples/s"
                for t in (ours, allowed)
            ]
            about = (
                f"d={d}, {SAMPLES:,} samples in batches of {BATCH}, float64; peak: products of"
                f" {SQUARE}² matrices"
            )
            about += (
                f", {operations / sorted(rival)[len(rival) // 2] / 1e9:.0f} GFLOP/s; both with all"
                " threads"
            )
            title = f"(i) sums of {name}, d={d} / peak product rate"
            measured.append(
                Row(title, rates[0], rates[1], ratio(allowed, ours), "near 1", about)
            )
    return measured
