"""Try a head of one's own on a small stream before a run begins, and the samples of that stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cifnet_pl.heads.base import Head

WIDTH = 6
"""Width of the embeddings of a stream unless another is given."""

LABELS = [[7], [-3, 2**62], [1_000_003, 0, -(2**62)]]
"""Classes of the tasks: one first, then uneven numbers; negative, huge and not contiguous."""


@dataclass(frozen=True)
class TrialTask:
    """Samples of one task.

    Attributes:
        classes: their labels.
        z: (n, d) float64 embeddings.
        y: (n,) int64 labels.
        past_z: (m, d) calibration buffer: three samples of each class of the tasks before.
        past_y: (m,) their labels.
    """

    classes: list[int]
    z: Tensor
    y: Tensor
    past_z: Tensor
    past_y: Tensor

    @property
    def counts(self) -> list[int]:
        """Number of samples of each class."""
        return [int((self.y == label).sum()) for label in self.classes]

    def part(self, rows: Tensor) -> TrialTask:
        """Return the same task with some of its samples, in the order of ``rows``."""
        return replace(self, z=self.z[rows], y=self.y[rows])

    def show_past(self, head: Head) -> None:
        """Show the calibration buffer to a head that has begun this task.

        Each sample has weight 2. Those of classes that the head does not know are left out.
        """
        known = torch.isin(self.past_y, head.labels)
        y = self.past_y[known]
        head.observe_past(self.past_z[known], y, torch.full_like(y, 2))


def stream(
    labels: Sequence[Sequence[int]] = LABELS,
    seed: int = 0,
    width: int = WIDTH,
) -> list[TrialTask]:
    """Return tasks of well separated classes with 5 to 16 samples each, class after class.

    The embeddings are numbers of float32, so that they can be given in either precision.

    Args:
        labels: classes of each task.
        seed: of the samples.
        width: of the embeddings.
    """
    generator = torch.Generator().manual_seed(seed)
    past_z = torch.zeros(0, width, dtype=torch.float64)
    past_y = torch.zeros(0, dtype=torch.int64)
    tasks = []
    for classes in labels:
        counts = torch.randint(5, 17, (len(classes),), generator=generator)
        y = torch.tensor(classes).repeat_interleave(counts)
        centres = 4 * torch.randn(len(classes), width, generator=generator)
        noise = torch.randn(len(y), width, generator=generator)
        z = centres.repeat_interleave(counts, dim=0) + noise / 2
        z = z.double()
        tasks.append(TrialTask(list(classes), z, y, past_z, past_y))
        starts = counts.cumsum(dim=0) - counts
        first = starts[:, None] + torch.arange(3)
        past_z = torch.cat([past_z, z[first.flatten()]])
        past_y = torch.cat([past_y, y[first.flatten()]])
    return tasks


def queries(tasks: Sequence[TrialTask]) -> Tensor:
    """Return all embeddings of a stream, and five that are unlike all of them."""
    generator = torch.Generator().manual_seed(99)
    far = 3 * torch.randn(5, tasks[0].z.shape[1], generator=generator)
    return torch.cat([*(task.z for task in tasks), far.double()])


def learn(head: Head, tasks: Sequence[TrialTask], batch: int = 1000) -> Head:
    """Learn tasks, one after the other, and return the head.

    Args:
        head: it is changed.
        tasks: to learn.
        batch: samples of a batch.
    """
    for task in tasks:
        head.begin_task(task.classes, task.counts)
        batches = [torch.split(rows, batch) for rows in (task.z, task.y)]
        for z, y in zip(*batches, strict=True):
            head.observe(z, y)
        task.show_past(head)
        head.solve()
    return head


def try_head(head: Head) -> None:
    """Check that a head builds, learns, scores and stores, with its own settings and width.

    Args:
        head: it is not changed.

    Raises:
        AssertionError: it does not; or whatever the head's own code raises.
    """
    tasks = stream(width=head.in_features)
    trial = learn(head.fresh(), tasks)
    expected: dict[int, int] = {}
    for task in tasks:
        expected.update(zip(task.classes, task.counts, strict=True))
    counts = trial.class_counts()
    assert counts == expected, f"class_counts() gives {counts}, not {expected}"
    z = queries(tasks).float()
    scores = trial(z)
    shape = tuple(scores.shape)
    assert shape == (len(z), len(expected)), f"scores have shape {shape}"
    assert scores.dtype == torch.float64, f"scores are {scores.dtype}, not float64"
    assert scores.isfinite().all(), "scores are not finite"
    again = head.fresh()
    again.load_state_dict(trial.state_dict())
    torch.testing.assert_close(again.state_dict(), trial.state_dict(), rtol=0, atol=0)
