"""What the shared head suite tests: every registered head, some with other arguments, and the streams that they learn.

A head that is imported in ``cifnet_pl/heads/__init__.py`` is tested with its default arguments; add a line to
``VARIANTS`` for each other set of arguments that changes what it keeps or can do.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import HEADS as REGISTERED
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, KNNHead, NCMHead, RidgeHead, SLDAHead
from cifnet_pl.heads.acil import draw_projection

WIDTH = 6
"""Width of the embeddings in the suite."""


@dataclass(frozen=True)
class Case:
    """A head under test; what it must do and what it must refuse follows from the abilities that it declares.

    Attributes:
        make: builds the head from the width of the embeddings.
        locked: whether neurons of earlier tasks never see later samples; then only classes of the same task are
            told apart.
        tolerance: relative difference of scores that another order of the same additions may cause.
    """

    make: Callable[[int], Head]
    locked: bool = False
    tolerance: float = 1e-9

    @property
    def merge(self) -> str | None:
        """Return "pooled" if ``merge_`` equals one head that saw all samples of both; "shards" if it merges parts of
        the same task only; None if it must refuse.
        """
        head = self.make(WIDTH)
        return "pooled" if head.pools else "shards" if head.merges else None

    @property
    def subtract(self) -> bool:
        """Whether ``subtract_`` undoes ``merge_``; else it must refuse."""
        return self.make(WIDTH).subtracts

    @property
    def reduce(self) -> bool:
        """Whether ``reduce_`` sums what several processes observed; else it must refuse."""
        return self.make(WIDTH).reduces


def head(name: str, make: Callable[[int], Head], **promises: Any) -> Any:
    """One case of the suite."""
    return pytest.param(Case(make, **promises), id=name)


QUICK: dict[str, dict[str, Any]] = {
    "ACILHead": {"width": 40},
    "DSALHead": {"width": 40},
    "RanPACHead": {"width": 40},
    "KLDAHead": {"width": 40},
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
    head("cifnet-gcv-locked", lambda d: CIFNetHead(d, ridge="gcv", update_past=False), locked=True),
    head("cifnet-released", lambda d: CIFNetHead(d, weighting="released")),
    head("cifnet-released-gcv", lambda d: CIFNetHead(d, weighting="released", ridge="gcv")),
    head("cifnet-released-locked", lambda d: CIFNetHead(d, weighting="released", update_past=False), locked=True),
    head("cifnet-float32", lambda d: CIFNetHead(d, ridge=1.0, dtype="float32"), tolerance=1e-4),
    head("ridge-fixed", lambda d: RidgeHead(d, ridge=1.0)),
    head("ridge-joined", lambda d: RidgeHead(d, transform="joined")),
    head("ridge-products", lambda d: RidgeHead(d, transform="products")),
    head("ridge-discriminant", lambda d: RidgeHead(d, decision="discriminant")),
    head("ridge-discriminant-balanced", lambda d: RidgeHead(d, decision="discriminant", balanced=True)),
    head(
        "ridge-discriminant-float32",
        lambda d: RidgeHead(d, ridge=1.0, decision="discriminant", dtype="float32"),
        tolerance=1e-4,
    ),
    head("ridge-auto", lambda d: RidgeHead(d, decision="auto")),
    head("ridge-l2", lambda d: RidgeHead(d, transform="l2")),
    head("ridge-sqrt-l2", lambda d: RidgeHead(d, ridge=0.1, transform="sqrt_l2")),
    head("ridge-balanced", lambda d: RidgeHead(d, balanced=True)),
    head("ridge-float32", lambda d: RidgeHead(d, ridge=1.0, dtype="float32"), tolerance=1e-4),
    head("acil-gcv", lambda d: ACILHead(d, width=40, ridge="gcv")),
    head("acil-given", lambda d: ACILHead(d, projection=draw_projection(40, d, seed=7))),
    head("acil-float32", lambda d: ACILHead(d, width=40, ridge=1.0, dtype="float32"), tolerance=1e-4),
    head("dsal-gcv", lambda d: DSALHead(d, width=40, ridge="gcv")),
    head("ncm-euclidean", lambda d: NCMHead(d, metric="euclidean")),
    head("slda-oas", lambda d: SLDAHead(d, shrinkage="oas")),
    head("slda-fixed", lambda d: SLDAHead(d, shrinkage=0.1)),
    head("knn-euclidean", lambda d: KNNHead(d, metric="euclidean", dtype="float64")),
]
HEADS = [*DEFAULTS, *VARIANTS]


@dataclass(frozen=True)
class Task:
    """Samples of one task: classes, (n, d) float64 embeddings, (n,) int64 labels."""

    classes: list[int]
    z: Tensor
    y: Tensor

    @property
    def counts(self) -> list[int]:
        """Number of samples of each class."""
        return [int((self.y == label).sum()) for label in self.classes]

    def part(self, rows: Tensor) -> Task:
        """The same task with some of its samples, in the order of ``rows``."""
        return Task(self.classes, self.z[rows], self.y[rows])


LABELS = [[7], [-3, 2**62], [1_000_003, 0, -(2**62)]]
"""One class first, then uneven tasks; negative, huge and not contiguous."""


def stream(labels: Sequence[Sequence[int]] = LABELS, seed: int = 0, width: int = WIDTH) -> list[Task]:
    """Tasks of well separated classes with 5 to 16 samples each, all of a task shuffled together."""
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for classes in labels:
        z, y = [], []
        for label in classes:
            count = int(torch.randint(5, 17, (), generator=generator))
            centre = 4 * torch.randn(width, generator=generator, dtype=torch.float64)
            z.append(centre + 0.5 * torch.randn(count, width, generator=generator, dtype=torch.float64))
            y.append(torch.full((count,), label))
        order = torch.randperm(sum(map(len, y)), generator=generator)
        tasks.append(Task(list(classes), torch.cat(z)[order], torch.cat(y)[order]))
    return tasks


def queries(tasks: Sequence[Task]) -> Tensor:
    """All embeddings of a stream, and a few that are like none of them."""
    far = torch.randn(5, tasks[0].z.shape[1], generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return torch.cat([*(task.z for task in tasks), 3 * far])


def memory(tasks: Sequence[Task]) -> tuple[Tensor, Tensor, Tensor]:
    """A calibration buffer: the first three samples of every class, and a weight for each."""
    z, y = [], []
    for task in tasks:
        for label in task.classes:
            z.append(task.z[task.y == label][:3])
            y.append(task.y[task.y == label][:3])
    labels = torch.cat(y)
    return torch.cat(z), labels, torch.full((len(labels),), 2.0, dtype=torch.float64, device=labels.device)


def show_past(learner: Head, earlier: Sequence[Task]) -> None:
    """Show the buffer of earlier tasks to the current task's neurons."""
    if earlier:
        learner.observe_past(*memory(earlier))


def learn(learner: Head, tasks: Sequence[Task], batch: int | None = None, earlier: Sequence[Task] = ()) -> Head:
    """Learn ``tasks`` after ``earlier`` ones, in batches of ``batch`` samples (None: a task at once)."""
    for k, task in enumerate(tasks):
        learner.begin_task(task.classes, task.counts)
        for rows in torch.arange(len(task.y)).split(batch or len(task.y)):
            learner.observe(task.z[rows], task.y[rows])
        show_past(learner, [*earlier, *tasks[:k]])
        learner.solve()
    return learner


def teach(
    learner: Head, z: Tensor, y: Tensor, weight: Tensor | None = None, classes: Sequence[int] | None = None
) -> Any:
    """Learn one task of all these samples and return the head; the labels rise unless ``classes`` are given."""
    classes = torch.unique(y).tolist() if classes is None else classes
    learner.begin_task(classes, [int((y == label).sum()) for label in classes])
    learner.observe(z, y, weight)
    learner.solve()
    return learner


def shuffled(tasks: Sequence[Task], seed: int) -> list[Task]:
    """The same tasks with their samples in another order."""
    generator = torch.Generator().manual_seed(seed)
    return [task.part(torch.randperm(len(task.y), generator=generator)) for task in tasks]


def halves(task: Task) -> tuple[Task, Task]:
    """Even and odd samples of each class, so that both parts hold every class."""
    order = torch.argsort(task.y, stable=True)
    return task.part(order[::2]), task.part(order[1::2])


def snapshot(learner: Head) -> dict[str, Tensor]:
    """A copy of everything that the head persists."""
    return copy.deepcopy(learner.state_dict())


def assert_same_state(learner: Head, before: dict[str, Tensor]) -> None:
    """Every stored tensor is bitwise what it was."""
    after = learner.state_dict()
    assert after.keys() == before.keys()
    for key, value in before.items():
        assert torch.equal(after[key], value), key


def reloaded(learner: Head, case: Case) -> Head:
    """A fresh head of the same arguments with the state of ``learner``, through a file."""
    file = io.BytesIO()
    torch.save(learner.state_dict(), file)
    file.seek(0)
    fresh = case.make(WIDTH)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


def difference(scores: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest score."""
    assert scores.shape == expected.shape
    return ((scores - expected).abs().max() / expected.abs().max()).item()
