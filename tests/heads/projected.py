"""What the tests of the projected heads share: golden vectors on digits, and a count of large matrices alive."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from cifnet_pl.heads import Head

GOLDEN: dict[str, Any] = dict(np.load(Path(__file__).parents[1] / "data" / "acil_dsal_digits.npz"))
PROJECTION = torch.from_numpy(GOLDEN["projection"])
_images, _targets = load_digits(return_X_y=True)
X, Y = torch.from_numpy(_images / 16), torch.from_numpy(_targets).long()


def golden_steps(head: Head, batch: int, name: str) -> Iterator[tuple[Tensor, Tensor, float, float]]:
    """After each task: our scores, the golden ones, our accuracy and the golden one in percent."""
    train, test = (torch.from_numpy(GOLDEN[f"{split}_rows"]) for split in ("train", "test"))
    order = torch.from_numpy(GOLDEN["class_order"])
    for k in range(5):
        classes = order[2 * k : 2 * k + 2]
        head.begin_task(classes.tolist())
        rows = train[torch.isin(Y[train], classes)]
        for split in torch.split(rows, batch):
            head.observe(X[split], Y[split])
        head.solve()
        seen = test[torch.isin(Y[test], order[: 2 * k + 2])]
        accuracy = 100 * (head.predict(X[seen]) == Y[seen]).double().mean().item()
        yield head(X[seen]), torch.from_numpy(GOLDEN[f"{name}_test_scores{k + 1}"]), accuracy, GOLDEN[f"{name}_acc"][k]


def learn_random(head: Head, tasks: int = 3, per_task: int = 40, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Learn ``tasks`` tasks of three classes of normal embeddings; returns what was learned."""
    generator = torch.Generator().manual_seed(seed)
    seen = []
    for k in range(tasks):
        z = torch.randn(per_task, head.in_features, generator=generator, dtype=torch.float64)
        y = 3 * k + torch.arange(per_task) % 3
        head.begin_task([3 * k, 3 * k + 1, 3 * k + 2])
        head.observe(z, y)
        head.solve()
        seen.append((z, y))
    return seen


def matrices_alive(run: Callable[[], object], width: int) -> float:
    """The most memory that is in use at a time, in matrices of ``width²`` float64; blocks of half that count."""
    block = 8 * width**2
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    alive = most = 0
    assert recorded.profiler is not None
    for event in recorded.profiler.kineto_results.events():  # allocations inside of operations are here only
        change = event.nbytes() if event.name() == "[memory]" else 0
        if abs(change) >= block // 2:
            alive += change
            most = max(most, alive)
    return most / block
