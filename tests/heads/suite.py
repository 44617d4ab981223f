"""What the shared head suite tests: every registered head, some with other arguments, and the
streams that they learn.

A head that is imported in ``cifnet_pl/heads/__init__.py`` is tested with its default arguments; add
a line to ``VARIANTS`` for each other set of arguments that changes what it keeps or can do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.heads import (
    ACILHead,
    CIFNetHead,
    DSALHead,
    Head,
    RidgeHead,
)
from cifnet_pl.statistics import draw_projection
from cifnet_pl.testing import Case


def head(name: str, make: Callable[[int], Head], **promises: Any) -> Any:
    """One case of the suite."""
    return pytest.param(Case(make, **promises), id=name)


QUICK = {
    name: {"width": 40} for name in ("ACILHead", "DSALHead", "RanPACHead", "KLDAHead")
}
"""Arguments without which a head would take too long here."""

TOLERANCES = {"KNNHead": 1e-4}
"""Of heads that compute in float32 unless told otherwise."""

DEFAULTS = [
    head(
        name.removesuffix("Head").lower(),
        partial(kind, **QUICK.get(name, {})),
        tolerance=TOLERANCES.get(name, Case.tolerance),
    )
    for name, kind in REGISTERED.items()
]
VARIANTS = [
    head("cifnet-locked", lambda d: CIFNetHead(d, update_past=False), locked=True),
    head("cifnet-gcv", lambda d: CIFNetHead(d, ridge="gcv")),
    head("cifnet-released", lambda d: CIFNetHead(d, weighting="released")),
    head(
        "cifnet-float32",
        lambda d: CIFNetHead(d, ridge=1.0, dtype="float32"),
        tolerance=1e-4,
    ),
    head("ridge-auto", lambda d: RidgeHead(d, decision="auto")),
    head(
        "ridge-products", lambda d: RidgeHead(d, decision="auto", product_features=1.5)
    ),
    head("ridge-remember", lambda d: RidgeHead(d, remember=True)),
    head(
        "ridge-float32",
        lambda d: RidgeHead(d, ridge=1.0, dtype="float32"),
        tolerance=1e-4,
    ),
    head(
        "acil-given", lambda d: ACILHead(d, projection=draw_projection(40, d, seed=7))
    ),
    head(
        "acil-float32",
        lambda d: ACILHead(d, width=40, ridge=1.0, dtype="float32"),
        tolerance=1e-4,
    ),
    head("dsal-gcv", lambda d: DSALHead(d, width=40, ridge="gcv")),
]
HEADS = [*DEFAULTS, *VARIANTS]


def scans() -> tuple[Tensor, Tensor]:
    """(1797, 64) pixels of scikit-learn's digits, from 0 to 1, and the digits."""
    images, targets = load_digits(return_X_y=True)
    return torch.from_numpy(images / 16), torch.from_numpy(targets).long()


def teach(learner, z, y, weight=None, classes=None):
    """Learn one task of all these samples and return the head; the labels rise unless ``classes``
    are given.
    """
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
