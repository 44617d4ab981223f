"""(d) ``ACILHead`` against the recursion of its authors: one Woodbury update of the inverse a
batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Row, ratio, side_by_side, spread
from cifnet_pl.heads import ACILHead
from cifnet_pl.statistics import draw_projection

FEATURES = 512
CLASSES = 20
TASKS = 2
PER_TASK = 5120
BATCH = 512
RIDGE = 100.0
REPEATS = 3

Stream = list[tuple[list[int], Tensor, Tensor]]
"""Classes, embeddings (n, d) float32 and labels (n,) of every task."""


def stream() -> Stream:
    """Tasks of well separated classes."""
    draw = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, FEATURES, generator=draw)
    size = CLASSES // TASKS
    tasks = []
    for k in range(TASKS):
        y = torch.randint(k * size, (k + 1) * size, (PER_TASK,), generator=draw)
        y[:size] = torch.arange(k * size, (k + 1) * size)
        z = (centres[y] + 2 * torch.randn(PER_TASK, FEATURES, generator=draw)).relu()
        tasks.append((list(range(k * size, (k + 1) * size)), z, y))
    return tasks


def ours(tasks: Stream, projection: Tensor) -> ACILHead:
    """Sums for every batch, one Cholesky factorisation a task."""
    head = ACILHead(FEATURES, ridge=RIDGE, projection=projection)
    for classes, z, y in tasks:
        head.begin_task(classes)
        for start in range(0, PER_TASK, BATCH):
            head.observe(z[start : start + BATCH], y[start : start + BATCH])
        head.solve()
    return head


def literal(inverse: Tensor, x: Tensor, target: Tensor, weights: Tensor) -> None:
    """R ← R − RXᵀ(I + XRXᵀ)⁻¹XR, W ← W + RXᵀ(Y − XW): as written, products from left to right."""
    small = torch.inverse(torch.eye(len(x), dtype=x.dtype) + x @ inverse @ x.T)
    inverse -= inverse @ x.T @ small @ x @ inverse
    weights += inverse @ x.T @ (target - x @ weights)


def rewritten(inverse: Tensor, x: Tensor, target: Tensor, weights: Tensor) -> None:
    """The same for speed: RXᵀ computed once, the new one had from it, a Cholesky factor for the
    small inverse.
    """
    rx = inverse @ x.T
    small = x @ rx
    small.diagonal().add_(1)
    gain = torch.cholesky_solve(rx.T, torch.linalg.cholesky(small)).T
    inverse.addmm_(gain, rx.T, alpha=-1)
    weights.addmm_(gain, target - x @ weights)


def recursion(tasks: Stream, projection: Tensor, update: Callable[..., None]) -> Tensor:
    """Weights (B, C) by one ``update`` of the inverse Gram matrix a batch."""
    projection = projection.double()
    inverse = torch.eye(len(projection), dtype=torch.float64) / RIDGE
    weights = torch.zeros(len(projection), 0, dtype=torch.float64)
    for classes, z, y in tasks:
        weights = torch.cat(
            [weights, weights.new_zeros(len(weights), len(classes))], dim=1
        )
        for start in range(0, PER_TASK, BATCH):
            x = (z[start : start + BATCH].double() @ projection.T).relu_()
            target = torch.nn.functional.one_hot(
                y[start : start + BATCH], weights.shape[1]
            ).double()
            update(inverse, x, target, weights)
    return weights


def rows() -> list[Row]:
    """At two widths, in float64, against two ways to write the recursion."""
    tasks = stream()
    measured = []
    queries = tasks[0][1][:200]
    for width in (2048, 4096):
        projection = draw_projection(width, FEATURES, seed=0)
        scores = ours(tasks, projection)(queries)
        h = (queries.double() @ projection.double().T).relu()
        for name, update in (
            ("as written", literal),
            ("rewritten for speed", rewritten),
        ):
            expected = h @ recursion(tasks, projection, update)
            off = float((scores - expected).norm() / expected.norm())
            assert off < 1e-7, off
            mine, rival = side_by_side(
                partial(ours, tasks, projection),
                partial(recursion, tasks, projection, update),
                REPEATS,
            )
            about = (
                f"d={FEATURES}, {TASKS} tasks of {CLASSES // TASKS} classes and {PER_TASK} samples,"
                " float64, "
            )
            about += (
                f"batches of {BATCH}, {torch.get_num_threads()} threads in both; scores differ by"
                f" {off:.0e}"
            )
            title = f"(d) recursion {name} / ACILHead, width {width}"
            measured.append(
                Row(
                    title, spread(mine), spread(rival), ratio(rival, mine), "≥ 4", about
                )
            )
    return measured
