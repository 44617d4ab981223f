"""Check heads, networks and data sources of your own by what runs, bundles and reports rely on;
needs no test runner.

Each function raises an ``AssertionError`` that says what is not as it should be; whether a part
computes the right thing, they cannot know.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.sets import ImageSet, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import Head
from cifnet_pl.utilities.errors import CifnetError, NonFiniteError, UsageError

WIDTH = 6
"""Width of the embeddings that heads are checked with."""

LABELS = [[7], [-3, 2**62], [1_000_003, 0, -(2**62)]]
"""Classes of the tasks: one first, then uneven numbers; negative, huge and not contiguous."""


def _must(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def _must_refuse(
    error: type[Exception], what: str, call: Callable[..., object], *arguments: Any
) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{what} is not refused with {error.__name__}")


# ---------------------------------------------------------------------- streams


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
        """Return the same task with some of its samples, in the order of ``rows``."""
        return Task(self.classes, self.z[rows], self.y[rows])


def stream(
    labels: Sequence[Sequence[int]] = LABELS, seed: int = 0, width: int = WIDTH
) -> list[Task]:
    """Return tasks of well separated classes with 5 to 16 samples each, all of a task shuffled
    together.
    """
    generator = torch.Generator().manual_seed(seed)
    tasks = []
    for classes in labels:
        z = []
        y = []
        for label in classes:
            count = int(torch.randint(5, 17, (), generator=generator))
            centre = 4 * torch.randn(width, generator=generator, dtype=torch.float64)
            z.append(
                centre + 0.5 * torch.randn(count, width, generator=generator, dtype=torch.float64)
            )
            y.append(torch.full((count,), label))
        order = torch.randperm(sum(map(len, y)), generator=generator)
        tasks.append(Task(list(classes), torch.cat(z)[order], torch.cat(y)[order]))
    return tasks


def queries(tasks: Sequence[Task]) -> Tensor:
    """Return all embeddings of a stream, and a few that are like none of them."""
    far = torch.randn(
        5, tasks[0].z.shape[1], generator=torch.Generator().manual_seed(99), dtype=torch.float64
    )
    return torch.cat([*(task.z for task in tasks), 3 * far])


def memory(tasks: Sequence[Task]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a calibration buffer: the first three samples of every class, and a weight for
    each.
    """
    kept = [
        task.part(task.y == label).part(torch.arange(3)) for task in tasks for label in task.classes
    ]
    z = torch.cat([part.z for part in kept])
    y = torch.cat([part.y for part in kept])
    return z, y, torch.full((len(y),), 2.0, dtype=torch.float64, device=y.device)


def show_past(learner: Head, earlier: Sequence[Task]) -> None:
    """Show the buffer of earlier tasks to the current task's neurons."""
    if earlier:
        learner.observe_past(*memory(earlier))


def learn(
    learner: Head, tasks: Sequence[Task], batch: int | None = None, earlier: Sequence[Task] = ()
) -> Head:
    """Learn ``tasks`` after ``earlier`` ones, in batches of ``batch`` samples (None: a task at
    once).
    """
    for k, task in enumerate(tasks):
        learner.begin_task(task.classes, task.counts)
        for rows in torch.split(torch.arange(len(task.y)), batch or len(task.y)):
            learner.observe(task.z[rows], task.y[rows])
        show_past(learner, [*earlier, *tasks[:k]])
        learner.solve()
    return learner


def halves(task: Task) -> tuple[Task, Task]:
    """Return even and odd samples of each class, so that both parts hold every class."""
    order = torch.argsort(task.y, stable=True)
    return task.part(order[::2]), task.part(order[1::2])


def snapshot(learner: Head) -> dict[str, Tensor]:
    """Return a copy of everything that a head stores."""
    return copy.deepcopy(learner.state_dict())


def assert_same_state(learner: Head, before: dict[str, Tensor]) -> None:
    """Check that every stored tensor is bitwise what it was."""
    after = learner.state_dict()
    _must(
        after.keys() == before.keys(),
        f"the state has {sorted(after)}, before it had {sorted(before)}",
    )
    for key, value in before.items():
        _must(torch.equal(after[key], value), f"'{key}' has changed")


def difference(scores: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest score."""
    _must(
        scores.shape == expected.shape,
        f"scores have shape {tuple(scores.shape)}, not {tuple(expected.shape)}",
    )
    return ((scores - expected).abs().max() / expected.abs().max()).item()


# ---------------------------------------------------------------------- heads


@dataclass(frozen=True)
class Case:
    """A head that is checked; what it must do and what it must refuse follows from the capabilities
    that it declares.

    Attributes:
        make: builds the head from the width of the embeddings.
        locked: whether neurons of earlier tasks never see later samples; then only classes of the
            same task are told apart.
        tolerance: relative difference of scores that another order of the same additions may cause.
    """

    make: Callable[[int], Head]
    locked: bool = False
    tolerance: float = 1e-9

    def learned(self, tasks: Sequence[Task]) -> Head:
        """Return a head that has learned a stream."""
        return learn(self.make(tasks[0].z.shape[1]), tasks)

    def reloaded(self, learner: Head) -> Head:
        """Return a fresh head of the same arguments with the state of ``learner``, through a
        file.
        """
        file = io.BytesIO()
        torch.save(learner.state_dict(), file)
        file.seek(0)
        fresh = self.make(learner.in_features)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        return fresh

    def must_agree(
        self, learner: Head, expected: Head, tasks: Sequence[Task], what: str, least: float = 0.0
    ) -> None:
        """Check that two heads score alike, up to the tolerance or ``least``."""
        off = difference(learner(queries(tasks)), expected(queries(tasks)))
        _must(
            off <= max(self.tolerance, least), f"{what} changes scores by {off:.1g} of the largest"
        )


def built_from_the_width_alone(case: Case, tasks: Sequence[Task]) -> None:
    """Every argument but ``in_features`` has a default, is an attribute, and makes the same head
    again.
    """
    width = tasks[0].z.shape[1]
    kind = type(case.make(width))
    settings = case.make(width).settings()
    _must(kind(in_features=width).in_features == width, "in_features alone does not build it")
    _must(
        kind.from_settings(settings).settings() == settings,
        "its settings() do not build the same head",
    )


def learns_any_labels(case: Case, tasks: Sequence[Task]) -> None:
    """Any integers, uneven tasks, a first task of one class; what it stores loads into a fresh
    head.
    """
    head = case.learned(tasks)
    _must(head.tasks == [task.classes for task in tasks], f"it has learned {head.tasks}")
    counts = {
        label: count
        for task in tasks
        for label, count in zip(task.classes, task.counts, strict=True)
    }
    _must(
        head.class_counts() == counts, f"class_counts() gives {head.class_counts()}, not {counts}"
    )
    assert_same_state(case.reloaded(head), snapshot(head))


def tells_classes_apart(case: Case, tasks: Sequence[Task]) -> None:
    """Well separated classes of each task are told apart, and those of all tasks unless old neurons
    are locked.
    """
    head = case.learned(tasks)
    for task in tasks:
        columns = [head.classes.index(label) for label in task.classes]
        right = torch.tensor(task.classes)[head(task.z)[:, columns].argmax(dim=1)] == task.y
        _must(
            bool(right.double().mean() > 0.9),
            f"it names {int(right.sum())} of {len(right)} samples of a task right",
        )
    y = torch.cat([task.y for task in tasks])
    right = head.predict(torch.cat([task.z for task in tasks])) == y
    _must(
        case.locked or bool(right.double().mean() > 0.9),
        f"it names {int(right.sum())} of {len(y)} samples right",
    )


def scores_are_float64(case: Case, tasks: Sequence[Task]) -> None:
    """Whatever comes in: another dtype, no sample, one at a time."""
    head = case.learned(tasks)
    z = queries(tasks)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores = head(z.to(dtype))
        _must(scores.dtype == torch.float64, f"scores are {scores.dtype}, expected float64")
        _must(
            scores.shape == (len(z), len(head.classes)), f"scores have shape {tuple(scores.shape)}"
        )
        _must(bool(scores.isfinite().all()), "scores are not finite")
    _must(head(z[:0]).shape == (0, len(head.classes)), "scores of no embedding have another shape")
    alone = difference(torch.cat([head(row[None]) for row in z]), head(z))
    _must(alone <= case.tolerance, f"the scores of an embedding alone differ by {alone:.1g}")


def order_does_not_matter(case: Case, tasks: Sequence[Task]) -> None:
    """Samples in another order, in batches of other sizes, and empty ones."""
    expected = case.learned(tasks)
    for batch in (1, 3):
        head = case.make(expected.in_features)
        for k, task in enumerate(tasks):
            order = torch.randperm(len(task.y), generator=torch.Generator().manual_seed(batch))
            head.begin_task(task.classes, task.counts)
            for rows in [order[:0], *torch.split(order, batch), order[:0]]:
                head.observe(task.z[rows], task.y[rows])
            show_past(head, tasks[:k])
            head.solve()
        case.must_agree(head, expected, tasks, f"another order in batches of {batch}")


def surroundings_do_not_matter(case: Case, tasks: Sequence[Task]) -> None:
    """Autocast does not round sums, and a cast of the module does not change their types."""
    expected = case.learned(tasks)(queries(tasks))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head = case.learned(tasks)
        _must(torch.equal(head(queries(tasks)), expected), "autocast changes scores")
    _must(not head(queries(tasks)).requires_grad, "scores have gradients")
    types = {key: value.dtype for key, value in head.state_dict().items()}
    now = {key: value.dtype for key, value in head.half().state_dict().items()}
    _must(now == types, "half() changes the type of what is stored")


def state_survives_a_file(case: Case, tasks: Sequence[Task]) -> None:
    """At any moment, in the middle of a task too, a reloaded head goes on with the same bits."""
    head = case.make(tasks[0].z.shape[1])
    z = queries(tasks)
    for k, task in enumerate(tasks):
        steps: list[Callable[[Head], object]] = [
            methodcaller("begin_task", task.classes, task.counts),
            *(methodcaller("observe", part.z, part.y) for part in halves(task)),
            partial(show_past, earlier=tasks[:k]),
            methodcaller("solve"),
        ]
        for done, step in enumerate(steps):
            step(head)
            again = case.reloaded(head)
            assert_same_state(again, snapshot(head))
            goes_on = copy.deepcopy(head)
            for left in steps[done + 1 :]:
                left(again)
                left(goes_on)
            _must(
                torch.equal(again(z), goes_on(z)),
                f"after a reload in task {k + 1} scores have other bits",
            )


def memory_is_counted(case: Case, tasks: Sequence[Task]) -> None:
    """``state_elements`` are the numbers of the stored matrices."""
    head = case.learned(tasks)
    head.refresh()
    stored = sum(
        v.numel() for v in head.state_dict().values() if v.is_floating_point() and v.ndim >= 2
    )
    counted = sum(head.state_elements().values())
    _must(counted == stored, f"state_elements() counts {counted} numbers, but {stored} are stored")


def aborted_task_leaves_no_trace(case: Case, tasks: Sequence[Task]) -> None:
    """What was observed of it is forgotten bit for bit, and learning goes on as if it had not
    begun.
    """
    for k in range(len(tasks)):
        head = learn(case.make(tasks[0].z.shape[1]), tasks[:k])
        head.refresh()
        before = snapshot(head)
        other = stream([[50, 51]], 8, head.in_features)[0]
        for reloads in (False, True):
            head.begin_task(other.classes, other.counts)
            head.observe(other.z, other.y)
            show_past(head, tasks[:k])
            head = case.reloaded(head) if reloads else head
            head.abort_task()
            assert_same_state(head, before)
        learn(head, tasks[k:], earlier=tasks[:k])
        same = torch.equal(head(queries(tasks)), case.learned(tasks)(queries(tasks)))
        _must(same, "scores after an aborted task have other bits")


def bad_samples_are_refused(case: Case, tasks: Sequence[Task]) -> None:
    """NaN, another width and unknown labels change nothing."""
    head = learn(case.make(tasks[0].z.shape[1]), tasks[:1])
    head.begin_task(tasks[1].classes, tasks[1].counts)
    before, (z, y) = snapshot(head), (tasks[1].z, tasks[1].y)
    _must_refuse(NonFiniteError, "NaN", head.observe, z * torch.nan, y)
    _must_refuse(CifnetError, "another width", head.observe, z[:, 1:], y)
    _must_refuse(UsageError, "an unknown label", head.observe, z, y + 1)
    assert_same_state(head, before)


def merging_is_as_declared(case: Case, tasks: Sequence[Task]) -> None:
    """Two sites are one (``pools``), and can be taken apart again (``subtracts``), or the head
    refuses.
    """
    first, second = ([half[i] for half in map(halves, tasks)] for i in (0, 1))
    here = case.learned(first)
    there = case.learned(second)
    whole = case.learned(tasks)
    before = copy.deepcopy(here)
    if not here.pools:
        _must_refuse(CifnetError, "merging", here.merge_, there)
        assert_same_state(here, snapshot(before))
    else:
        here.merge_(there)
        here.solve()
        _must(here.class_counts() == whole.class_counts(), "merged heads have other counts")
        case.must_agree(here, whole, tasks, "merging instead of learning together", 1e-8)
    if not here.subtracts:
        _must_refuse(CifnetError, "subtracting", here.subtract_, there)
    else:
        here.subtract_(there)
        here.solve()
        case.must_agree(here, before, tasks, "subtracting what was merged", 1e-8)


def reducing_is_as_declared(case: Case, tasks: Sequence[Task]) -> None:
    """Sums over three processes, one without samples, are those of one process (``reduces``), or it
    refuses.
    """
    heads = [case.make(tasks[0].z.shape[1]) for _ in range(3)]
    if not heads[0].reduces:
        _must_refuse(CifnetError, "reducing", case.learned(tasks).reduce_, lambda tensor: None)
        return
    for k, task in enumerate(tasks):
        tensors: list[list[Tensor]] = []
        for head, part in zip(heads, [*halves(task), task.part(torch.arange(0))], strict=True):
            head.begin_task(task.classes, task.counts)
            head.observe(part.z, part.y)
            tensors.append([])
            head.reduce_(tensors[-1].append)
        for same in zip(*tensors, strict=True):
            total = torch.stack(list(same)).sum(dim=0)
            for tensor in same:
                tensor.copy_(total)
        for head in heads:
            show_past(head, tasks[:k])
            head.solve()
    expected = case.learned(tasks)
    for head in heads:
        _must(
            head.class_counts() == expected.class_counts(),
            "processes have other counts than one process",
        )
        case.must_agree(head, expected, tasks, "several processes", 1e-8)


def classes_can_go_and_come_back(case: Case, tasks: Sequence[Task]) -> None:
    """Removed classes have no column, and may be learned again; renamed ones differ by their names
    alone.
    """
    head = case.learned(tasks)
    names = {label: 100 - k for k, label in enumerate(head.classes)}
    before = head(queries(tasks))
    head.relabel(names)
    _must(head.classes == list(names.values()), f"renamed classes are {head.classes}")
    _must(torch.equal(head(queries(tasks)), before), "renaming changes scores")
    head = case.learned(tasks)
    gone = tasks[0].classes
    left = [label for task in tasks[1:] for label in task.classes]
    head.remove_classes(gone)
    _must(head.classes == left, f"without {gone} its classes are {head.classes}")
    _must(head(queries(tasks)).shape[1] == len(left), "a removed class has a column")
    learn(head, tasks[:1], earlier=tasks[1:2])
    right = head.predict(tasks[0].z) == tasks[0].y
    _must(bool(right.double().mean() > 0.9), "a class that comes back is not told from the others")


HEAD_CHECKS = (
    built_from_the_width_alone,
    learns_any_labels,
    scores_are_float64,
    tells_classes_apart,
    state_survives_a_file,
    order_does_not_matter,
    surroundings_do_not_matter,
    memory_is_counted,
    aborted_task_leaves_no_trace,
    bad_samples_are_refused,
    merging_is_as_declared,
    reducing_is_as_declared,
    classes_can_go_and_come_back,
)
"""What every head must pass; the first three are what a run tries of a head from outside before its
first task.
"""


def check_head(make: Callable[[int], Head], locked: bool = False, tolerance: float = 1e-9) -> None:
    """Check that a head keeps the protocol: labels, order, state, memory, and the capabilities that
    it declares.

    Args:
        make: the head's class, or a function that builds it from the width of the embeddings.
        locked, tolerance: as for :class:`Case`; a head that computes in float32 needs 1e-4.

    Raises:
        AssertionError: the first check that fails, with what it found.

    Example:
        >>> from cifnet_pl.heads import RidgeHead
        >>> check_head(lambda width: RidgeHead(width, ridge=1.0))
    """
    for check in HEAD_CHECKS:
        try:
            check(Case(make, locked, tolerance), stream())
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from None


def try_head(head: Head) -> None:
    """Try whether a head builds, learns, scores and stores, with its own settings and width; it is
    left as it is.

    Raises:
        AssertionError: it does not; or whatever the head's own code raises.
    """
    for check in HEAD_CHECKS[:3]:
        check(Case(lambda width: head.fresh(), tolerance=1e-3), stream(width=head.in_features))


# ---------------------------------------------------------------------- networks and sources


def check_backbone(name: str, architecture: str | None = None) -> None:
    """Check a network: shape and dtype of its embeddings, and that an image's does not depend on
    the others.

    Args:
        name, architecture: as for :func:`cifnet_pl.backbones.build_backbone`, such as
            "import:my_parts.MyNet".

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    backbone = build_backbone(name, architecture, engine="torch")
    side = backbone.preprocessing.image_size
    images = torch.from_numpy(
        np.random.default_rng(0).integers(0, 256, (3, 3, side, side), dtype=np.uint8)
    )
    z = backbone(images)
    _must(z.shape == (3, backbone.features), f"embeddings have shape {tuple(z.shape)}")
    _must(bool(z.isfinite().all()), "embeddings are not finite")
    _must(torch.equal(backbone(images), z), "the same images have other embeddings the second time")
    _must(
        difference(torch.cat([backbone(image[None]) for image in images]), z) < 1e-4,
        "images influence each other",
    )
    _must(difference(z[:1].expand(3, -1), z) > 0, "all images have the same embedding")


def check_source(name: str, options: SourceOptions | None = None) -> None:
    """Check a data source: every class can be learned, images are read alike twice, and workers can
    receive it.

    Args:
        name: as on the command line, such as "my_parts.shades".
        options: those of ``--data``.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    source = build_source(name, options or SourceOptions())
    again = build_source(name, options or SourceOptions())
    for ours, theirs in ((source.train, again.train), (source.val, again.val)):
        _must(
            ours.names == theirs.names,
            "the samples have other names or another order the second time",
        )
        rows = np.linspace(0, len(ours) - 1, min(len(ours), 8)).astype(np.int64)
        _must(
            bool((ours.hashes(rows) == theirs.hashes(rows)).all()),
            "the samples differ the second time",
        )
        if isinstance(ours, ImageSet):
            for row in rows.tolist():
                ours.image(row).square(8, 1.0)
    learned = set(np.unique(source.train.labels).tolist())
    _must(learned == set(range(len(source.class_names))), "a class has no training sample")
