"""Check custom heads, backbones and data sources; no test runner is needed.

Each function raises an ``AssertionError`` that says what is wrong. The checks cover what runs,
bundles and reports rely on. They cannot know whether a head computes the right scores.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import build_backbone
from cifnet_pl.data.samples import SampleTable, SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import Head
from cifnet_pl.heads.trial import WIDTH, TrialTask, learn, queries, stream, try_head
from cifnet_pl.utilities.errors import CifnetError, NonFiniteError, UsageError

TASKS = stream()
QUERIES = queries(TASKS)


def _must_refuse(
    error: type[Exception], request: str, call: Callable[..., object], *arguments: Any
) -> None:
    try:
        call(*arguments)
    except error:
        return
    raise AssertionError(f"{request} is not refused with {error.__name__}")


def halves(task: TrialTask) -> tuple[TrialTask, TrialTask]:
    """Return even and odd samples of each class, so that both parts hold every class."""
    order = torch.argsort(task.y, stable=True)
    return task.part(order[::2]), task.part(order[1::2])


def snapshot(head: Head) -> dict[str, Tensor]:
    """Return a copy of everything that a head stores."""
    return {name: value.clone() for name, value in head.state_dict().items()}


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

    def learned(self, tasks: Sequence[TrialTask] = TASKS) -> Head:
        """Return a head that has learned a stream."""
        return learn(self.make(WIDTH), tasks)

    def reloaded(self, head: Head) -> Head:
        """Return a fresh head of the same arguments with the state of ``head``, through a file."""
        file = io.BytesIO()
        torch.save(head.state_dict(), file)
        file.seek(0)
        fresh = self.make(WIDTH)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        return fresh

    def must_agree(
        self, head: Head, expected: Head, change: str, tolerance: float = 0.0
    ) -> None:
        """Check that two heads score alike.

        Args:
            head: that is checked.
            expected: the head with the right scores.
            change: what differs between both, for the error.
            tolerance: used where it is larger than that of the case.
        """
        error = difference(head(QUERIES), expected(QUERIES))
        limit = max(self.tolerance, tolerance)
        assert error <= limit, f"{change} changes scores by {error:.1g} of the largest"


def builds_learns_and_stores(case: Case) -> None:
    """The width alone builds it, its settings build the same head, and a run can try it."""
    head = case.make(WIDTH)
    kind = type(head)
    settings = head.settings()
    narrow = kind(in_features=WIDTH)
    assert narrow.in_features == WIDTH, "in_features alone does not build it"
    again = kind.from_settings(settings).settings()
    assert again == settings, "its settings() do not build the same head"
    try_head(head)


def scores_any_embeddings(case: Case) -> None:
    """Scores are float64 for any dtype, for no sample, and for one sample at a time."""
    head = case.learned()
    expected = head(QUERIES)
    for dtype in (torch.float32, torch.bfloat16):
        scores = head(QUERIES.to(dtype))
        assert scores.dtype == torch.float64, f"scores are {scores.dtype}, not float64"
        assert scores.isfinite().all(), f"scores of {dtype} are not finite"
    no_scores = head(QUERIES[:0])
    same = no_scores.shape == expected[:0].shape
    assert same, "scores of no embedding have another shape"
    some = QUERIES[::4]
    alone = torch.cat([head(z[None]) for z in some])
    error = difference(alone, head(some))
    assert error <= case.tolerance, f"an embedding alone has scores {error:.1g} apart"


def tells_classes_apart(case: Case) -> None:
    """It tells apart well separated classes of each task, and of all tasks unless it is locked."""
    head = case.learned()
    for task in TASKS:
        columns = [head.classes.index(label) for label in task.classes]
        best = head(task.z)[:, columns].argmax(dim=1)
        predicted = torch.tensor(task.classes)[best]
        _must_be_accurate(predicted, task.y, "its task")
    if not case.locked:
        z = torch.cat([task.z for task in TASKS])
        y = torch.cat([task.y for task in TASKS])
        _must_be_accurate(head.predict(z), y, "all tasks")


def _must_be_accurate(predicted: Tensor, y: Tensor, others: str) -> None:
    correct = int((predicted == y).sum())
    problem = f"it predicts {correct} of {len(y)} samples correctly among {others}"
    assert correct > 0.9 * len(y), problem


def order_does_not_matter(case: Case) -> None:
    """Scores do not depend on the order of samples, or on the sizes of batches."""
    expected = case.learned()
    generator = torch.Generator().manual_seed(1)
    shuffled = []
    for task in TASKS:
        order = torch.randperm(len(task.y), generator=generator)
        shuffled.append(task.part(order))
    head = learn(case.make(WIDTH), shuffled, batch=1)
    case.must_agree(head, expected, "another order in batches of 1")


def surroundings_do_not_matter(case: Case) -> None:
    """Autocast does not round sums, and a cast of the module does not change what is stored."""
    expected = case.learned()(QUERIES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head = case.learned()
        assert torch.equal(head(QUERIES), expected), "autocast changes scores"
    assert not head(QUERIES).requires_grad, "scores have gradients"
    before = snapshot(head)
    assert_same_state(head.half(), before)


def state_survives_a_file(case: Case) -> None:
    """A head that is reloaded at any moment, within a task too, goes on with the same bits."""
    head = case.make(WIDTH)
    reloaded = case.make(WIDTH)
    for k, task in enumerate(TASKS):
        first, second = halves(task)
        steps: list[Callable[[Head], object]] = [
            methodcaller("begin_task", task.classes, task.counts),
            methodcaller("observe", first.z, first.y),
            methodcaller("observe", second.z, second.y),
            task.show_past,
            methodcaller("solve"),
        ]
        for step in steps:
            step(head)
            step(reloaded)
            state = snapshot(reloaded)
            reloaded = case.make(WIDTH)
            reloaded.load_state_dict(state)
            assert_same_state(reloaded, head.state_dict())
        reloaded = case.reloaded(reloaded)
        same = torch.equal(reloaded(QUERIES), head(QUERIES))
        assert same, f"after reloads in task {k + 1} scores have other bits"


def aborted_task_leaves_no_trace(case: Case) -> None:
    """An aborted task leaves the state as it was, bit for bit, and learning goes on from there."""
    expected = case.learned()(QUERIES)
    (other,) = stream([[50, 51]], 8)
    head = case.make(WIDTH)
    # The head itself, a copy, and one with its state.
    same_heads: list[Callable[[Head], Head]] = [Head.eval, copy.deepcopy, case.reloaded]
    for task in TASKS:
        before = snapshot(head)
        for same_head in same_heads:
            head.begin_task(other.classes, other.counts)
            head.observe(other.z, other.y)
            task.show_past(head)
            head = same_head(head)
            head.abort_task()
            assert_same_state(head, before)
        learn(head, [task])
    same = torch.equal(head(QUERIES), expected)
    assert same, "scores after an aborted task have other bits"


def bad_samples_are_refused(case: Case) -> None:
    """NaN, another width, unknown labels and empty batches change nothing."""
    head = case.learned(TASKS[:1])
    task = TASKS[1]
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


def merging_is_as_declared(case: Case) -> None:
    """Two sites merge (``merges``) and separate again (``subtracts``), or it refuses."""
    parts = [halves(task) for task in TASKS]
    first = case.learned([even for even, _ in parts])
    second = case.learned([odd for _, odd in parts])
    before = copy.deepcopy(first)
    if first.merges:
        whole = case.learned()
        first.merge_(second)
        first.solve()
        same = first.class_counts() == whole.class_counts()
        assert same, "merged heads have other counts"
        case.must_agree(first, whole, "merging", 1e-8)
    else:
        _must_refuse(CifnetError, "merging", first.merge_, second)
        assert_same_state(first, snapshot(before))
    if first.subtracts:
        first.subtract_(second)
        first.solve()
        case.must_agree(first, before, "subtracting what was merged", 1e-8)
    else:
        _must_refuse(CifnetError, "subtracting", first.subtract_, second)


def reducing_is_as_declared(case: Case) -> None:
    """Sums over three processes, one without samples, equal those of one (``reduces``).

    A head that does not declare it refuses.
    """
    heads = [case.make(WIDTH) for _ in range(3)]
    expected = case.learned()
    if not expected.reduces:
        _must_refuse(CifnetError, "reducing", expected.reduce_, print)
        return
    for task in TASKS:
        no_samples = task.part(torch.arange(0))
        parts = [*halves(task), no_samples]
        for head, part in zip(heads, parts, strict=True):
            head.begin_task(task.classes, task.counts)
            head.observe(part.z, part.y)
        reduce_over(heads)
        for head in heads:
            task.show_past(head)
            head.solve()
    for head in heads:
        same = head.class_counts() == expected.class_counts()
        assert same, "processes have other counts than one process"
        case.must_agree(head, expected, "several processes", 1e-8)


def reduce_over(heads: Sequence[Head]) -> None:
    """Replace the tensors that each head reduces by their sums over all heads."""
    tensors: list[list[Tensor]] = [[] for _ in heads]
    for head, own in zip(heads, tensors, strict=True):
        head.reduce_(own.append)
    for same in zip(*tensors, strict=True):
        total = torch.stack(same).sum(dim=0)
        for tensor in same:
            tensor.copy_(total)


def classes_can_go_and_come_back(case: Case) -> None:
    """Removed classes have no column and can be learned again; renaming changes no score."""
    head = case.learned()
    before = head(QUERIES)
    names = {label: 100 - k for k, label in enumerate(head.classes)}
    head.relabel(names)
    renamed = list(names.values())
    assert head.classes == renamed, f"renamed classes are {head.classes}"
    assert torch.equal(head(QUERIES), before), "renaming changes scores"
    first = TASKS[0]
    head.remove_classes([names[label] for label in first.classes])
    left = renamed[len(first.classes) :]
    assert head.classes == left, f"classes after a removal are {head.classes}"
    columns = head(QUERIES).shape[1]
    assert columns == len(left), "a removed class has a column"
    learn(head, [first])
    predicted = head.predict(first.z)
    _must_be_accurate(predicted, first.y, "others, once it has come back")


HEAD_CHECKS = (
    builds_learns_and_stores,
    scores_any_embeddings,
    tells_classes_apart,
    state_survives_a_file,
    order_does_not_matter,
    surroundings_do_not_matter,
    aborted_task_leaves_no_trace,
    bad_samples_are_refused,
    merging_is_as_declared,
    reducing_is_as_declared,
    classes_can_go_and_come_back,
)
"""Checks that every head must pass."""


def check_head(
    make: Callable[[int], Head], locked: bool = False, tolerance: float = 1e-9
) -> None:
    """Check that a head keeps its contract: labels, order, state, declared capabilities.

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
            check(Case(make, locked, tolerance))
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from None


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
    same = torch.equal(backbone(images), z)
    assert same, "the same images have other embeddings the second time"
    alone = torch.cat([backbone(image[None]) for image in images])
    assert difference(alone, z) < 1e-4, "images influence each other"
    assert not torch.equal(z[0], z[1]), "all images have the same embedding"


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
    assert np.array_equal(learned, every_class), "a class has no training sample"


def _check_same_samples(first: SampleTable, second: SampleTable) -> None:
    same_names = first.names == second.names
    assert same_names, "the samples have other names or another order the second time"
    rows = np.linspace(0, len(first) - 1, min(len(first), 8)).astype(np.int64)
    same = np.array_equal(first.hashes(rows), second.hashes(rows))
    assert same, "the samples differ the second time"
    if first.are_images:
        for row in rows.tolist():
            first.image(row).square(8, 1.0)
