"""(a) One task of CIFNet's head: cohort sums and one Cholesky, against the paper's per-class
SVD.
"""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Row, ratio, seconds, side_by_side, spread
from cifnet_pl.heads import CIFNetHead

D = 512
CLASSES = 10
SAMPLES = 2000
BATCH = 256
RIDGE = 1.0
EPSILON = 0.05


def literal_svd(
    z: Tensor,
    y: Tensor,
    batch: int,
    dtype: torch.dtype,
    together: bool,
    classes: int = CLASSES,
) -> Tensor:
    """eq:svd_rrls, eq:moment_rrls, eq:moment_update, eq:svd_update and eq:weights_rrls, class by
    class.

    ``together`` hands all classes to one batched SVD call instead of one call a class.
    """
    limit = torch.tensor((1 - EPSILON) / EPSILON, dtype=dtype).log()
    slope = EPSILON * (1 - EPSILON)
    x = torch.cat([torch.ones(len(z), 1), z], dim=1).to(dtype).T
    factors: list[Tensor | None] = [None] * classes
    moments = torch.zeros(classes, D + 1, dtype=dtype)
    for start in range(0, len(z), batch):
        batch_rows = x[:, start : start + batch]
        labels = y[start : start + batch]
        targets = torch.where(
            labels[None] == torch.arange(classes)[:, None], limit, -limit
        )
        weighted = batch_rows * slope
        moments += targets @ (weighted * slope).T
        stack = [weighted for _ in range(classes)]
        fresh = _scaled_left_factors(stack, together)
        joined = [
            new if old is None else torch.cat([old, new], dim=1)
            for old, new in zip(factors, fresh, strict=True)
        ]
        if start:
            factors = list(_scaled_left_factors(joined, together))
        else:
            factors = list(fresh)
    weights = []
    for factor, moment in zip(factors, moments, strict=True):
        assert factor is not None
        scale = factor.norm(dim=0).clamp_min(1e-30)
        u = factor / scale
        weights.append(u @ ((u.T @ moment) / (scale.square() + RIDGE)))
    return torch.stack(weights, dim=1)


def _scaled_left_factors(matrices: list[Tensor], together: bool) -> list[Tensor]:
    """``U S`` of each matrix."""
    if together:
        u, s, _ = torch.linalg.svd(torch.stack(matrices), full_matrices=False)
        return list(u * s[:, None])
    factors = []
    for matrix in matrices:
        u, s, _ = torch.linalg.svd(matrix, full_matrices=False)
        factors.append(u * s)
    return factors


def ours(z: Tensor, y: Tensor) -> CIFNetHead:
    """The same task with the package's head, in its default float64 and the same batches."""
    head = CIFNetHead(D, ridge=RIDGE)
    head.begin_task(list(range(CLASSES)))
    for start in range(0, len(z), BATCH):
        head.observe(z[start : start + BATCH], y[start : start + BATCH])
    head.solve()
    return head


def rows() -> list[Row]:
    """Ours against the rival at its best threads, dtype and batching, and at its best batch size as
    well.
    """
    torch.manual_seed(0)
    z = torch.randn(SAMPLES, D).relu()
    y = torch.randint(CLASSES, (SAMPLES,))
    exact = ours(z, y).weights()
    threads = torch.get_num_threads()
    measured = []
    for batches, wanted in (
        ([BATCH], "≥ 150"),
        ([BATCH, 512, 1000, SAMPLES], "reported"),
    ):
        settings = list(
            itertools.product(
                sorted({1, threads}),
                (torch.float32, torch.float64),
                (False, True),
                batches,
            )
        )
        timed = []
        for n, dtype, together, batch in settings:
            torch.set_num_threads(n)
            # Two classes tell which setting is the fastest; all ten would take minutes a setting.
            timed.append(
                seconds(partial(literal_svd, z, y, batch, dtype, together, classes=2))
            )
        n, dtype, together, batch = settings[timed.index(min(timed))]
        difference = literal_svd(z, y, batch, torch.float64, together) - exact
        assert difference.norm() / exact.norm() < 1e-8, (
            "the rival computes something else"
        )

        def rival(
            n: int = n, d: torch.dtype = dtype, t: bool = together, b: int = batch
        ) -> None:
            torch.set_num_threads(n)
            literal_svd(z, y, b, d, t)

        def us() -> None:
            torch.set_num_threads(threads)
            ours(z, y)

        a, b = side_by_side(us, rival, 5)
        torch.set_num_threads(threads)
        name = "(a) head: update and solve" + (
            ", rival's best batch size" if len(batches) > 1 else ""
        )
        about = (
            f"rival: {n} threads, {str(dtype)[6:]}, batch {batch},"
            f" {'batched' if together else 'looped'} SVD"
        )
        about += f"; ours: {threads} threads, float64, batch {BATCH}"
        measured.append(
            Row(
                name,
                spread(a, 1e3, "ms"),
                spread(b, 1e3, "ms"),
                ratio(b, a),
                wanted,
                about,
            )
        )
    return measured
