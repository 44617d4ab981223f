"""Check custom heads, backbones and data sources; no test runner is needed.

Each function raises an ``AssertionError`` that says what is wrong. The checks cover what runs,
bundles and reports rely on. They cannot know whether a head computes the right scores.
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
from cifnet_pl.data.samples import SampleTable, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import Head
from cifnet_pl.utilities.errors import CifnetError, NonFiniteError, UsageError

WIDTH = 6
"""Width of the embeddings that heads are checked with."""

LABELS = [[7], [-3, 2**62], [1_000_003, 0, -(2**62)]]
"""Classes of the tasks: one first, then uneven numbers; negative, huge and not contiguous."""


def _must_refuse(
    error: type[Exception], request: str, call: Callable[..., object], *arguments: Any
) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{request} is not refused with {error.__name__}")


# ---------------------------------------------------------------------- task streams


@dataclass(frozen=True)
class CheckTask:
    """Samples of one task: classes, (n, d) float64 embeddings, (n,) int64 labels."""

    classes: list[int]
    z: Tensor
    y: Tensor

    @property
    def counts(self) -> list[int]:
        """Number of samples of each class."""
        return [int((self.y == label).sum()) for label in self.classes]

    def part(self, rows: Tensor) -> CheckTask:
        """Return the same task with some of its samples, in the order of ``rows``."""
        z = self.z[rows]
        y = self.y[rows]
        return CheckTask(self.classes, z, y)


Tasks = Sequence[CheckTask]


def stream(
    labels: Sequence[Sequence[int]] = LABELS, seed: int = 0, width: int = WIDTH
) -> list[CheckTask]:
    """Return tasks of well separated classes with 5 to 16 samples each, shuffled within a task.

    Args:
        labels: classes of each task.
        seed: of the samples.
        width: of the embeddings.
    """
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"generator": generator, "dtype": torch.float64}
    tasks = []
    for classes in labels:
        z = []
        y = []
        for label in classes:
            drawn = torch.randint(5, 17, (), generator=generator)
            count = int(drawn)
            centre = 4 * torch.randn(width, **options)
            noise = torch.randn(count, width, **options)
            z.append(centre + 0.5 * noise)
            labels_of_class = torch.full((count,), label)
            y.append(labels_of_class)
        task = CheckTask(list(classes), torch.cat(z), torch.cat(y))
        order = torch.randperm(len(task.y), generator=generator)
        tasks.append(task.part(order))
    return tasks


def queries(tasks: Tasks) -> Tensor:
    """Return all embeddings of a stream, and five that are unlike all of them."""
    generator = torch.Generator().manual_seed(99)
    width = tasks[0].z.shape[1]
    far = torch.randn(5, width, generator=generator, dtype=torch.float64)
    learned = [task.z for task in tasks]
    return torch.cat([*learned, 3 * far])


def memory(tasks: Tasks) -> tuple[Tensor, Tensor, Tensor]:
    """Return a calibration buffer: the first three samples of each class, with weights.

    Args:
        tasks: of a stream.

    Returns:
        (n, d) embeddings, (n,) labels and (n,) weights.
    """
    z = []
    y = []
    for task in tasks:
        for label in task.classes:
            of_class = task.y == label
            z.append(task.z[of_class][:3])
            y.append(task.y[of_class][:3])
    labels = torch.cat(y)
    weights = torch.full_like(labels, 2, dtype=torch.float64)
    return torch.cat(z), labels, weights


def show_past(head: Head, earlier: Tasks) -> None:
    """Show the buffer of earlier tasks to the current task's neurons."""
    if earlier:
        head.observe_past(*memory(earlier))


def learn(
    head: Head,
    tasks: Tasks,
    batch: int | None = None,
    earlier: Tasks = (),
) -> Head:
    """Learn tasks, one after the other, and return the head.

    Args:
        head: it is changed.
        tasks: to learn.
        batch: samples of a batch; None for all samples of a task in one batch.
        earlier: tasks that it has learned already.
    """
    for k, task in enumerate(tasks):
        head.begin_task(task.classes, task.counts)
        size = batch or len(task.y)
        z_batches = torch.split(task.z, size)
        y_batches = torch.split(task.y, size)
        for z, y in zip(z_batches, y_batches, strict=True):
            head.observe(z, y)
        show_past(head, [*earlier, *tasks[:k]])
        head.solve()
    return head


def halves(task: CheckTask) -> tuple[CheckTask, CheckTask]:
    """Return even and odd samples of each class, so that both parts hold every class."""
    order = torch.argsort(task.y, stable=True)
    return task.part(order[::2]), task.part(order[1::2])


def snapshot(head: Head) -> dict[str, Tensor]:
    """Return a copy of everything that a head stores."""
    return copy.deepcopy(head.state_dict())


def assert_same_state(head: Head, before: dict[str, Tensor]) -> None:
    """Check that every stored tensor is bitwise what it was.

    Args:
        head: that is checked.
        before: an earlier :func:`snapshot`.
    """
    torch.testing.assert_close(head.state_dict(), before, rtol=0, atol=0)


def difference(scores: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest score."""
    largest = (scores - expected).abs().max()
    return (largest / expected.abs().max()).item()


# ---------------------------------------------------------------------- heads


@dataclass(frozen=True)
class Case:
    """A head that is checked; the capabilities that it declares say what it must do or refuse.

    Attributes:
        make: builds the head from the width of the embeddings.
        locked: whether neurons of earlier tasks never see later samples; then only classes of the
            same task are told apart.
        tolerance: relative difference of scores that another order of the same additions may cause.
    """

    make: Callable[[int], Head]
    locked: bool = False
    tolerance: float = 1e-9

    def fresh(self, tasks: Tasks) -> Head:
        """Return a head that has learned nothing, of the width of a stream."""
        return self.make(tasks[0].z.shape[1])

    def learned(self, tasks: Tasks) -> Head:
        """Return a head that has learned a stream."""
        return learn(self.fresh(tasks), tasks)

    def reloaded(self, head: Head) -> Head:
        """Return a fresh head of the same arguments with the state of ``head``, through a file."""
        file = io.BytesIO()
        torch.save(head.state_dict(), file)
        file.seek(0)
        fresh = self.make(head.in_features)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        return fresh

    def must_agree(
        self,
        head: Head,
        expected: Head,
        tasks: Tasks,
        change: str,
        tolerance: float = 0.0,
    ) -> None:
        """Check that two heads score alike.

        Args:
            head: that is checked.
            expected: the head with the right scores.
            tasks: whose samples are scored.
            change: what differs between both, for the error.
            tolerance: used where it is larger than that of the case.
        """
        z = queries(tasks)
        error = difference(head(z), expected(z))
        limit = max(self.tolerance, tolerance)
        assert error <= limit, f"{change} changes scores by {error:.1g} of the largest"


def built_from_the_width_alone(case: Case, tasks: Tasks) -> None:
    """All arguments but ``in_features`` have defaults, are attributes, and make the same head."""
    head = case.fresh(tasks)
    kind = type(head)
    settings = head.settings()
    narrow = kind(in_features=WIDTH)
    assert narrow.in_features == WIDTH, "in_features alone does not build it"
    again = kind.from_settings(settings).settings()
    assert again == settings, "its settings() do not build the same head"


def learns_any_labels(case: Case, tasks: Tasks) -> None:
    """It learns any integers, uneven tasks, a first task of one class, and reloads their state."""
    head = case.learned(tasks)
    learned_tasks = [task.classes for task in tasks]
    assert head.tasks == learned_tasks, f"it has learned {head.tasks}"
    expected: dict[int, int] = {}
    for task in tasks:
        expected.update(zip(task.classes, task.counts, strict=True))
    counts = head.class_counts()
    assert counts == expected, f"class_counts() gives {counts}, not {expected}"
    assert_same_state(case.reloaded(head), snapshot(head))


def tells_classes_apart(case: Case, tasks: Tasks) -> None:
    """It tells apart well separated classes of each task, and of all tasks unless it is locked."""
    head = case.learned(tasks)
    for task in tasks:
        columns = [head.classes.index(label) for label in task.classes]
        scores = head(task.z)[:, columns]
        best = scores.argmax(dim=1)
        labels = torch.tensor(task.classes)
        _must_be_accurate(labels[best], task, "its task")
    if not case.locked:
        z = torch.cat([task.z for task in tasks])
        y = torch.cat([task.y for task in tasks])
        every_task = CheckTask(head.classes, z, y)
        predicted = head.predict(z)
        _must_be_accurate(predicted, every_task, "all tasks")


def _must_be_accurate(predicted: Tensor, task: CheckTask, others: str) -> None:
    is_correct = predicted == task.y
    correct = int(is_correct.sum())
    count = len(task.y)
    problem = f"it predicts {correct} of {count} samples correctly among {others}"
    assert correct > 0.9 * count, problem


def scores_are_float64(case: Case, tasks: Tasks) -> None:
    """Scores are finite float64 for any dtype, for no sample, and for one sample at a time."""
    head = case.learned(tasks)
    z = queries(tasks)
    columns = len(head.classes)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores = head(z.to(dtype))
        assert scores.dtype == torch.float64, f"scores are {scores.dtype}, not float64"
        shape = tuple(scores.shape)
        assert shape == (len(z), columns), f"scores have shape {shape}"
        assert scores.isfinite().all(), "scores are not finite"
    no_scores = head(z[:0])
    assert no_scores.shape == (0, columns), "scores of no embedding have another shape"
    each = [head(row[None]) for row in z]
    alone = torch.cat(each)
    error = difference(alone, head(z))
    assert error <= case.tolerance, f"an embedding alone has scores {error:.1g} apart"


def order_does_not_matter(case: Case, tasks: Tasks) -> None:
    """Scores do not depend on the order of samples, or on the sizes of batches."""
    expected = case.learned(tasks)
    for batch in (1, 3):
        head = case.fresh(tasks)
        for k, task in enumerate(tasks):
            generator = torch.Generator().manual_seed(batch)
            order = torch.randperm(len(task.y), generator=generator)
            shuffled = task.part(order)
            head.begin_task(task.classes, task.counts)
            z_batches = torch.split(shuffled.z, batch)
            y_batches = torch.split(shuffled.y, batch)
            for z, y in zip(z_batches, y_batches, strict=True):
                head.observe(z, y)
            show_past(head, tasks[:k])
            head.solve()
        change = f"another order in batches of {batch}"
        case.must_agree(head, expected, tasks, change)


def surroundings_do_not_matter(case: Case, tasks: Tasks) -> None:
    """Autocast does not round sums, and a cast of the module does not change their types."""
    z = queries(tasks)
    expected = case.learned(tasks)(z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head = case.learned(tasks)
        assert torch.equal(head(z), expected), "autocast changes scores"
    assert not head(z).requires_grad, "scores have gradients"
    types = _types(head)
    assert _types(head.half()) == types, "half() changes the type of what is stored"


def _types(head: Head) -> list[torch.dtype]:
    return [value.dtype for value in head.state_dict().values()]


def state_survives_a_file(case: Case, tasks: Tasks) -> None:
    """A head that is reloaded at any moment, within a task too, goes on with the same bits."""
    head = case.fresh(tasks)
    z = queries(tasks)
    for k, task in enumerate(tasks):
        steps = _steps_of_task(task, tasks[:k])
        for done, step in enumerate(steps, 1):
            step(head)
            reloaded = case.reloaded(head)
            assert_same_state(reloaded, snapshot(head))
            copied = copy.deepcopy(head)
            for following in steps[done:]:
                following(reloaded)
                following(copied)
            scores = copied(z)
            same = torch.equal(reloaded(z), scores)
            assert same, f"after a reload in task {k + 1} scores have other bits"


def _steps_of_task(task: CheckTask, earlier: Tasks) -> list[Callable[[Head], object]]:
    first, second = halves(task)
    return [
        methodcaller("begin_task", task.classes, task.counts),
        methodcaller("observe", first.z, first.y),
        methodcaller("observe", second.z, second.y),
        partial(show_past, earlier=earlier),
        methodcaller("solve"),
    ]


def memory_is_counted(case: Case, tasks: Tasks) -> None:
    """``state_elements`` counts the elements of the stored matrices."""
    head = case.learned(tasks)
    head.refresh()
    stored = 0
    for value in head.state_dict().values():
        if value.is_floating_point() and value.ndim >= 2:
            stored += value.numel()
    counted = sum(head.state_elements().values())
    assert counted == stored, f"state_elements() is {counted}, {stored} are stored"


def aborted_task_leaves_no_trace(case: Case, tasks: Tasks) -> None:
    """An aborted task leaves the state as it was, bit for bit, and learning goes on from there."""
    z = queries(tasks)
    expected = case.learned(tasks)(z)
    for k in range(len(tasks)):
        earlier = tasks[:k]
        head = learn(case.fresh(tasks), earlier)
        head.refresh()
        before = snapshot(head)
        (other,) = stream([[50, 51]], 8, head.in_features)
        for reloads in (False, True):
            head.begin_task(other.classes, other.counts)
            head.observe(other.z, other.y)
            show_past(head, earlier)
            if reloads:
                head = case.reloaded(head)
            head.abort_task()
            assert_same_state(head, before)
        learn(head, tasks[k:], earlier=earlier)
        same = torch.equal(head(z), expected)
        assert same, "scores after an aborted task have other bits"


def bad_samples_are_refused(case: Case, tasks: Tasks) -> None:
    """NaN, another width, unknown labels and empty batches change nothing."""
    head = learn(case.fresh(tasks), tasks[:1])
    task = tasks[1]
    head.begin_task(task.classes, task.counts)
    before = snapshot(head)
    head.observe(task.z[:0], task.y[:0])
    not_a_number = task.z * torch.nan
    _must_refuse(NonFiniteError, "NaN", head.observe, not_a_number, task.y)
    narrower = task.z[:, 1:]
    _must_refuse(CifnetError, "another width", head.observe, narrower, task.y)
    unknown = task.y + 1
    _must_refuse(UsageError, "an unknown label", head.observe, task.z, unknown)
    assert_same_state(head, before)


def merging_is_as_declared(case: Case, tasks: Tasks) -> None:
    """Two sites merge (``merges_sites``) and separate again (``subtracts``), or it refuses."""
    parts = [halves(task) for task in tasks]
    first = case.learned([even for even, _ in parts])
    second = case.learned([odd for _, odd in parts])
    before = copy.deepcopy(first)
    if first.merges_sites:
        whole = case.learned(tasks)
        first.merge_(second)
        first.solve()
        same = first.class_counts() == whole.class_counts()
        assert same, "merged heads have other counts"
        case.must_agree(first, whole, tasks, "merging", 1e-8)
    else:
        _must_refuse(CifnetError, "merging", first.merge_, second)
        assert_same_state(first, snapshot(before))
    if first.subtracts:
        first.subtract_(second)
        first.solve()
        case.must_agree(first, before, tasks, "subtracting what was merged", 1e-8)
    else:
        _must_refuse(CifnetError, "subtracting", first.subtract_, second)


def reducing_is_as_declared(case: Case, tasks: Tasks) -> None:
    """Sums over three processes, one without samples, equal those of one (``reduces``).

    A head that does not declare it refuses.
    """
    heads = [case.fresh(tasks) for _ in range(3)]
    expected = case.learned(tasks)
    if not expected.reduces:
        _must_refuse(CifnetError, "reducing", expected.reduce_, print)
        return
    for k, task in enumerate(tasks):
        no_samples = task.part(torch.arange(0))
        parts = [*halves(task), no_samples]
        for head, part in zip(heads, parts, strict=True):
            head.begin_task(task.classes, task.counts)
            head.observe(part.z, part.y)
        _reduce(heads)
        for head in heads:
            show_past(head, tasks[:k])
            head.solve()
    for head in heads:
        same = head.class_counts() == expected.class_counts()
        assert same, "processes have other counts than one process"
        case.must_agree(head, expected, tasks, "several processes", 1e-8)


def _reduce(heads: Sequence[Head]) -> None:
    """Replace the tensors that each head reduces by their sums over all heads."""
    tensors: list[list[Tensor]] = [[] for _ in heads]
    for head, own in zip(heads, tensors, strict=True):
        head.reduce_(own.append)
    for same in zip(*tensors, strict=True):
        total = torch.stack(same).sum(dim=0)
        for tensor in same:
            tensor.copy_(total)


def classes_can_go_and_come_back(case: Case, tasks: Tasks) -> None:
    """Removed classes have no column and can be learned again; renaming changes no score."""
    head = case.learned(tasks)
    z = queries(tasks)
    before = head(z)
    renamed = [100 - k for k in range(len(head.classes))]
    names = zip(head.classes, renamed, strict=True)
    head.relabel(dict(names))
    assert head.classes == renamed, f"renamed classes are {head.classes}"
    after = head(z)
    assert torch.equal(after, before), "renaming changes scores"
    head = case.learned(tasks)
    first = tasks[0]
    left = head.classes[len(first.classes) :]
    head.remove_classes(first.classes)
    assert head.classes == left, f"classes after a removal are {head.classes}"
    columns = head(z).shape[1]
    assert columns == len(left), "a removed class has a column"
    learn(head, [first], earlier=tasks[1:2])
    predicted = head.predict(first.z)
    _must_be_accurate(predicted, first, "others, once it has come back")


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
"""Checks that every head must pass; a run tries the first three on a custom head first."""


def check_head(
    make: Callable[[int], Head], locked: bool = False, tolerance: float = 1e-9
) -> None:
    """Check that a head keeps its contract: labels, order, state, memory, declared capabilities.

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
    """Check that a head builds, learns, scores and stores, with its own settings and width.

    Args:
        head: it is not changed.

    Raises:
        AssertionError: it does not; or whatever the head's own code raises.
    """
    case = Case(lambda width: head.fresh(), tolerance=1e-3)
    tasks = stream(width=head.in_features)
    for check in HEAD_CHECKS[:3]:
        check(case, tasks)


# ---------------------------------------------------------------------- backbones and sources


def check_backbone(name: str, architecture: str | None = None) -> None:
    """Check a backbone: shape and dtype of embeddings, each independent of the other images.

    Args:
        name: as for :func:`cifnet_pl.backbones.build_backbone`, such as "import:my_parts.MyNet".
        architecture: as for the same function.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    backbone = build_backbone(name, architecture, engine="torch")
    side = backbone.preprocessing.image_size
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (3, 3, side, side), generator=generator).byte()
    z = backbone(images)
    shape = tuple(z.shape)
    assert shape == (3, backbone.features), f"embeddings have shape {shape}"
    assert z.isfinite().all(), "embeddings are not finite"
    again = backbone(images)
    same = torch.equal(again, z)
    assert same, "the same images have other embeddings the second time"
    each = [backbone(image[None]) for image in images]
    alone = torch.cat(each)
    assert difference(alone, z) < 1e-4, "images influence each other"
    same = torch.equal(z[0], z[1])
    assert not same, "all images have the same embedding"


def check_source(name: str, options: SourceOptions | None = None) -> None:
    """Check a data source: classes have samples, names and images are alike the second time.

    Args:
        name: as on the command line, such as "my_parts.shades".
        options: those of ``--data``, such as ``SourceOptions(root=Path("images"))``.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    options = options or SourceOptions()
    source = build_source(name, options)
    again = build_source(name, options)
    _check_same_samples(source.train, again.train)
    _check_same_samples(source.test, again.test)
    learned = np.unique(source.train.labels)
    every_class = np.arange(len(source.class_names))
    same = np.array_equal(learned, every_class)
    assert same, "a class has no training sample"


def _check_same_samples(first: SampleTable, second: SampleTable) -> None:
    same_names = first.names == second.names
    assert same_names, "the samples have other names or another order the second time"
    count = min(len(first), 8)
    spread = np.linspace(0, len(first) - 1, count)
    rows = spread.astype(np.int64)
    hashes = first.hashes(rows)
    same = np.array_equal(hashes, second.hashes(rows))
    assert same, "the samples differ the second time"
    if first.are_images:
        for row in rows.tolist():
            first.image(row).square(8, 1.0)
