"""What the shared suite tests: every registered head, some with other arguments, and samples.

A head that is imported in ``cifnet_pl/heads/__init__.py`` is tested with its default arguments; add
a line to ``MAKERS`` for each other set of arguments that changes what it keeps or can do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead
from cifnet_pl.statistics import draw_projection
from cifnet_pl.testing import Case

QUICK = {
    name: {"width": 40} for name in ("ACILHead", "DSALHead", "RanPACHead", "KLDAHead")
}
"""Arguments without which a head would take too long here."""

FLOAT32: dict[str, Any] = {"ridge": 1.0, "dtype": "float32"}
MAKERS: dict[str, Callable[[int], Head]] = {
    name.removesuffix("Head").lower(): partial(kind, **QUICK.get(name, {}))
    for name, kind in REGISTERED.items()
} | {
    "cifnet-locked": partial(CIFNetHead, update_past=False),
    "cifnet-gcv": partial(CIFNetHead, ridge="gcv"),
    "cifnet-released": partial(CIFNetHead, weighting="released"),
    "cifnet-float32": partial(CIFNetHead, **FLOAT32),
    "ridge-auto": partial(RidgeHead, decision="auto"),
    "ridge-products": partial(RidgeHead, decision="auto", product_features=1.5),
    "ridge-remember": partial(RidgeHead, remember=True),
    "ridge-float32": partial(RidgeHead, **FLOAT32),
    "acil-given": lambda d: ACILHead(d, projection=draw_projection(40, d, seed=7)),
    "acil-float32": partial(ACILHead, width=40, **FLOAT32),
    "dsal-gcv": partial(DSALHead, width=40, ridge="gcv"),
}
HEADS = [
    pytest.param(Case(make, 1e-9 if make(1).dtype == torch.float64 else 1e-4), id=name)
    for name, make in MAKERS.items()
]


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64, the same for a seed."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def scans() -> tuple[Tensor, Tensor]:
    """(1797, 64) pixels of scikit-learn's digits, from 0 to 1, and the digits."""
    images, targets = load_digits(return_X_y=True)
    return torch.from_numpy(images / 16), torch.from_numpy(targets).long()


def teach(learner, z, y, weight=None, classes=None):
    """Learn one task of all these samples and return the head; labels rise unless given."""
    if classes is None:
        classes = torch.unique(y).tolist()
    learner.begin_task(classes, [int((y == label).sum()) for label in classes])
    learner.observe(z, y, weight)
    learner.solve()
    return learner


def teach_pairs(learner, z, y):
    """Learn ten classes, two a task, and return the head."""
    for k in range(5):
        rows = y // 2 == k
        teach(learner, z[rows], y[rows])
    return learner
