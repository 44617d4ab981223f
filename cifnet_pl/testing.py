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


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


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
    unknown = 3 * far
    return torch.cat([*(task.z for task in tasks), unknown])


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
            y.append(task.y[task.y == label][:3])
    labels = torch.cat(y)
    count = len(labels)
    weights = torch.full((count,), 2.0, dtype=torch.float64, device=labels.device)
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
        rows = torch.arange(len(task.y))
        size = batch or len(rows)
        for part in torch.split(rows, size):
            z = task.z[part]
            y = task.y[part]
            head.observe(z, y)
        seen = [*earlier, *tasks[:k]]
        show_past(head, seen)
        head.solve()
    return head


def halves(task: CheckTask) -> tuple[CheckTask, CheckTask]:
    """Return even and odd samples of each class, so that both parts hold every class."""
    order = torch.argsort(task.y, stable=True)
    even = order[::2]
    odd = order[1::2]
    first = task.part(even)
    second = task.part(odd)
    return first, second


def snapshot(head: Head) -> dict[str, Tensor]:
    """Return a copy of everything that a head stores."""
    return copy.deepcopy(head.state_dict())


def assert_same_state(head: Head, before: dict[str, Tensor]) -> None:
    """Check that every stored tensor is bitwise what it was.

    Args:
        head: that is checked.
        before: an earlier :func:`snapshot`.
    """
    after = head.state_dict()
    keys = sorted(after)
    keys_before = sorted(before)
    names = f"the state has {keys}, before it had {keys_before}"
    same_keys = after.keys() == before.keys()
    _must(same_keys, names)
    for key, value in before.items():
        same = torch.equal(after[key], value)
        _must(same, f"'{key}' has changed")


def difference(scores: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest score."""
    shape = tuple(scores.shape)
    expected_shape = tuple(expected.shape)
    shapes = f"scores have shape {shape}, not {expected_shape}"
    _must(scores.shape == expected.shape, shapes)
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

    def learned(self, tasks: Tasks) -> Head:
        """Return a head that has learned a stream."""
        width = tasks[0].z.shape[1]
        return learn(self.make(width), tasks)

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
        problem = f"{change} changes scores by {error:.1g} of the largest"
        limit = max(self.tolerance, tolerance)
        _must(error <= limit, problem)


def built_from_the_width_alone(case: Case, tasks: Tasks) -> None:
    """All arguments but ``in_features`` have defaults, are attributes, and make the same head."""
    width = tasks[0].z.shape[1]
    kind = type(case.make(width))
    settings = case.make(width).settings()
    again = kind.from_settings(settings).settings()
    _must(
        kind(in_features=width).in_features == width,
        "in_features alone does not build it",
    )
    _must(again == settings, "its settings() do not build the same head")


def learns_any_labels(case: Case, tasks: Tasks) -> None:
    """It learns any integers, uneven tasks, a first task of one class, and reloads their state."""
    head = case.learned(tasks)
    learned_tasks = [task.classes for task in tasks]
    _must(head.tasks == learned_tasks, f"it has learned {head.tasks}")
    expected: dict[int, int] = {}
    for task in tasks:
        counts_of_task = zip(task.classes, task.counts, strict=True)
        expected.update(counts_of_task)
    counts = head.class_counts()
    _must(counts == expected, f"class_counts() gives {counts}, not {expected}")
    assert_same_state(case.reloaded(head), snapshot(head))


def tells_classes_apart(case: Case, tasks: Tasks) -> None:
    """It tells apart well separated classes of each task, and of all tasks unless it is locked."""
    head = case.learned(tasks)
    for task in tasks:
        columns = [head.classes.index(label) for label in task.classes]
        scores = head(task.z)[:, columns]
        best = scores.argmax(dim=1)
        labels = torch.tensor(task.classes)
        predicted = labels[best]
        _must_be_accurate(predicted, task.y, "a task")
    if not case.locked:
        all_z = [task.z for task in tasks]
        z = torch.cat(all_z)
        all_y = [task.y for task in tasks]
        y = torch.cat(all_y)
        _must_be_accurate(head.predict(z), y, "all tasks")


def _must_be_accurate(predicted: Tensor, y: Tensor, origin: str) -> None:
    correct = int((predicted == y).sum())
    is_accurate = correct > 0.9 * len(y)
    _must(
        is_accurate,
        f"it predicts {correct} of {len(y)} samples of {origin} correctly",
    )


def scores_are_float64(case: Case, tasks: Tasks) -> None:
    """Scores are finite float64 for any dtype, for no sample, and for one sample at a time."""
    head = case.learned(tasks)
    z = queries(tasks)
    columns = len(head.classes)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        scores = head(z.to(dtype))
        shape = tuple(scores.shape)
        _must(
            scores.dtype == torch.float64,
            f"scores are {scores.dtype}, expected float64",
        )
        expected_shape = (len(z), columns)
        _must(shape == expected_shape, f"scores have shape {shape}")
        _must(bool(scores.isfinite().all()), "scores are not finite")
    no_scores = head(z[:0])
    _must(no_scores.shape == (0, columns), "scores of no embedding have another shape")
    alone = [head(row[None]) for row in z]
    single = torch.cat(alone)
    error = difference(single, head(z))
    _must(
        error <= case.tolerance,
        f"the scores of an embedding alone differ by {error:.1g}",
    )


def order_does_not_matter(case: Case, tasks: Tasks) -> None:
    """Scores do not depend on the order of samples, the sizes of batches, or empty batches."""
    expected = case.learned(tasks)
    for batch in (1, 3):
        head = case.make(expected.in_features)
        for k, task in enumerate(tasks):
            generator = torch.Generator().manual_seed(batch)
            order = torch.randperm(len(task.y), generator=generator)
            head.begin_task(task.classes, task.counts)
            empty = order[:0]
            batches = [empty, *torch.split(order, batch), empty]
            for rows in batches:
                z_of_rows = task.z[rows]
                y_of_rows = task.y[rows]
                head.observe(z_of_rows, y_of_rows)
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
        same = torch.equal(head(z), expected)
        _must(same, "autocast changes scores")
    _must(not head(z).requires_grad, "scores have gradients")
    state = head.state_dict()
    types = {key: value.dtype for key, value in state.items()}
    half_state = head.half().state_dict()
    half = {key: value.dtype for key, value in half_state.items()}
    _must(half == types, "half() changes the type of what is stored")


def state_survives_a_file(case: Case, tasks: Tasks) -> None:
    """A head that is reloaded at any moment, within a task too, goes on with the same bits."""
    width = tasks[0].z.shape[1]
    head = case.make(width)
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
            reloaded_scores = reloaded(z)
            copied_scores = copied(z)
            same = torch.equal(reloaded_scores, copied_scores)
            _must(same, f"after a reload in task {k + 1} scores have other bits")


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
    _must(
        counted == stored,
        f"state_elements() counts {counted} elements, {stored} are stored",
    )


def aborted_task_leaves_no_trace(case: Case, tasks: Tasks) -> None:
    """An aborted task leaves the state as it was, bit for bit, and learning goes on from there."""
    z = queries(tasks)
    expected = case.learned(tasks)(z)
    for k in range(len(tasks)):
        width = tasks[0].z.shape[1]
        earlier = tasks[:k]
        head = learn(case.make(width), earlier)
        head.refresh()
        before = snapshot(head)
        others = stream([[50, 51]], 8, head.in_features)
        other = others[0]
        for reloads in (False, True):
            head.begin_task(other.classes, other.counts)
            head.observe(other.z, other.y)
            show_past(head, tasks[:k])
            if reloads:
                head = case.reloaded(head)
            head.abort_task()
            assert_same_state(head, before)
        remaining = tasks[k:]
        learn(head, remaining, earlier=tasks[:k])
        _must(
            torch.equal(head(z), expected),
            "scores after an aborted task have other bits",
        )


def bad_samples_are_refused(case: Case, tasks: Tasks) -> None:
    """NaN, another width and unknown labels change nothing."""
    width = tasks[0].z.shape[1]
    fresh = case.make(width)
    head = learn(fresh, tasks[:1])
    task = tasks[1]
    head.begin_task(task.classes, task.counts)
    before = snapshot(head)
    not_a_number = task.z * torch.nan
    _must_refuse(NonFiniteError, "NaN", head.observe, not_a_number, task.y)
    narrower = task.z[:, 1:]
    _must_refuse(CifnetError, "another width", head.observe, narrower, task.y)
    unknown_labels = task.y + 1
    _must_refuse(UsageError, "an unknown label", head.observe, task.z, unknown_labels)
    assert_same_state(head, before)


def merging_is_as_declared(case: Case, tasks: Tasks) -> None:
    """Two sites merge (``merges_sites``) and separate again (``subtracts``), or it refuses."""
    even_samples = [halves(task)[0] for task in tasks]
    first = case.learned(even_samples)
    odd_samples = [halves(task)[1] for task in tasks]
    second = case.learned(odd_samples)
    whole = case.learned(tasks)
    before = copy.deepcopy(first)
    if not first.merges_sites:
        _must_refuse(CifnetError, "merging", first.merge_, second)
        assert_same_state(first, snapshot(before))
    else:
        first.merge_(second)
        first.solve()
        _must(
            first.class_counts() == whole.class_counts(),
            "merged heads have other counts",
        )
        case.must_agree(
            first, whole, tasks, "merging instead of learning together", 1e-8
        )
    if not first.subtracts:
        _must_refuse(CifnetError, "subtracting", first.subtract_, second)
    else:
        first.subtract_(second)
        first.solve()
        case.must_agree(first, before, tasks, "subtracting what was merged", 1e-8)


def reducing_is_as_declared(case: Case, tasks: Tasks) -> None:
    """Sums over three processes, one without samples, equal those of one (``reduces``).

    A head that does not declare it refuses.
    """
    width = tasks[0].z.shape[1]
    heads = [case.make(width) for _ in range(3)]
    expected = case.learned(tasks)
    if not expected.reduces:
        _must_refuse(CifnetError, "reducing", expected.reduce_, lambda tensor: None)
        return
    for k, task in enumerate(tasks):
        no_rows = torch.arange(0)
        even, odd = halves(task)
        parts = [even, odd, task.part(no_rows)]
        for head, part in zip(heads, parts, strict=True):
            head.begin_task(task.classes, task.counts)
            head.observe(part.z, part.y)
        _reduce(heads)
        for head in heads:
            show_past(head, tasks[:k])
            head.solve()
    for head in heads:
        same = head.class_counts() == expected.class_counts()
        _must(same, "processes have other counts than one process")
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
    names = {}
    for k, label in enumerate(head.classes):
        names[label] = 100 - k
    before = head(z)
    head.relabel(names)
    renamed = list(names.values())
    _must(head.classes == renamed, f"renamed classes are {head.classes}")
    same = torch.equal(head(z), before)
    _must(same, "renaming changes scores")
    head = case.learned(tasks)
    removed = tasks[0].classes
    head.remove_classes(removed)
    left: list[int] = []
    for task in tasks[1:]:
        left += task.classes
    _must(head.classes == left, f"without {removed} its classes are {head.classes}")
    columns = head(z).shape[1]
    _must(columns == len(left), "a removed class has a column")
    learned_again = tasks[:1]
    learn(head, learned_again, earlier=tasks[1:2])
    first = tasks[0]
    predicted = head.predict(first.z)
    _must_be_accurate(predicted, first.y, "a class that comes back")


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
    for check in HEAD_CHECKS[:3]:
        check(
            Case(lambda width: head.fresh(), tolerance=1e-3),
            stream(width=head.in_features),
        )


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
    pixels = np.random.default_rng(0).integers(
        0, 256, (3, 3, side, side), dtype=np.uint8
    )
    images = torch.from_numpy(pixels)
    z = backbone(images)
    shape = tuple(z.shape)
    _must(z.shape == (3, backbone.features), f"embeddings have shape {shape}")
    _must(bool(z.isfinite().all()), "embeddings are not finite")
    _must(
        torch.equal(backbone(images), z),
        "the same images have other embeddings the second time",
    )
    alone = [backbone(image[None]) for image in images]
    single = torch.cat(alone)
    _must(difference(single, z) < 1e-4, "images influence each other")
    repeated = z[:1].expand(3, -1)
    _must(difference(repeated, z) > 0, "all images have the same embedding")


def check_source(name: str, options: SourceOptions | None = None) -> None:
    """Check a data source: classes have samples, names and images are alike the second time.

    Args:
        name: as on the command line, such as "my_parts.shades".
        options: those of ``--data``, such as ``SourceOptions(root=Path("images"))``.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    source = build_source(name, options or SourceOptions())
    again = build_source(name, options or SourceOptions())
    _check_same_samples(source.train, again.train)
    _check_same_samples(source.val, again.val)
    labels = np.unique(source.train.labels)
    learned = set(labels.tolist())
    every_class = set(range(len(source.class_names)))
    _must(learned == every_class, "a class has no training sample")


def _check_same_samples(first: SampleTable, second: SampleTable) -> None:
    same_names = first.names == second.names
    _must(same_names, "the samples have other names or another order the second time")
    count = min(len(first), 8)
    last = len(first) - 1
    spread = np.linspace(0, last, count)
    rows = spread.astype(np.int64)
    first_hashes = first.hashes(rows)
    second_hashes = second.hashes(rows)
    same = bool((first_hashes == second_hashes).all())
    _must(same, "the samples differ the second time")
    if first.are_images:
        for row in rows.tolist():
            first.image(row).square(8, 1.0)
