"""Check custom heads, backbones and data sources; no test runner is needed.

Each function raises an ``AssertionError`` that says what is wrong. The checks cover what runs,
bundles and reports rely on. They cannot know whether a head computes the right scores.
"""

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import natural_images
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.heads import Head
from cifnet_pl.heads.trial import WIDTH, TrialTask, learn, queries, stream, try_head

TASKS = stream()
QUERIES = queries(TASKS)


def halves(task: TrialTask) -> tuple[TrialTask, TrialTask]:
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
    """A head that is checked; the capabilities that it declares say what it must do.

    Attributes:
        make: builds the head from the width of the embeddings.
        tolerance: relative difference of scores that another order of the same additions may cause.
    """

    make: Callable[[int], Head]
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
        self,
        scores: Tensor,
        expected: Tensor,
        change: str,
        tolerance: float = 0.0,
    ) -> None:
        """Check that scores are alike.

        Args:
            scores: that are checked.
            expected: the right ones.
            change: what differs between both, for the error.
            tolerance: used where it is larger than that of the case.
        """
        error = difference(scores, expected)
        limit = max(self.tolerance, tolerance)
        assert error <= limit, f"{change} changes scores by {error:.1g} of the largest"


def builds_learns_and_stores(case: Case) -> None:
    """The width alone builds it, its settings build the same head, and a run can try it."""
    head = case.make(WIDTH)
    kind = type(head)
    kind(in_features=WIDTH)
    settings = head.settings()
    again = kind.from_settings(settings).settings()
    assert again == settings, "its settings() do not build the same head"
    try_head(head)


def scores_each_embedding_alone(case: Case) -> None:
    """Embeddings have the same scores one at a time, and in float32; no embedding has none."""
    head = case.learned()
    one_by_one = torch.split(QUERIES.float(), 1)
    alone = torch.cat([head(z) for z in (QUERIES[:0], *one_by_one)])
    case.must_agree(alone, head(QUERIES), "one at a time, in float32,")


def tells_classes_apart(case: Case) -> None:
    """It tells apart well separated classes of each task."""
    head = case.learned()
    for task in TASKS:
        columns = [head.classes.index(label) for label in task.classes]
        best = head(task.z)[:, columns].argmax(dim=1)
        predicted = torch.tensor(task.classes)[best]
        correct = int((predicted == task.y).sum())
        problem = f"it predicts {correct} of {len(best)} samples of a task correctly"
        assert correct > 0.9 * len(best), problem


def state_survives_a_file(case: Case) -> None:
    """A head that is reloaded after every step, within a task too, goes on with the same bits."""
    expected = _learned_in_steps(case, Head.eval)
    reloaded = _learned_in_steps(case, case.reloaded)
    assert_same_state(reloaded, expected.state_dict())
    assert torch.equal(reloaded(QUERIES), expected(QUERIES)), (
        "after reloads scores have other bits"
    )


def _learned_in_steps(case: Case, after_each: Callable[[Head], Head]) -> Head:
    """Return a head that has learned a stream, and was replaced after each step."""
    head = case.make(WIDTH)
    for task in TASKS:
        head.begin_task(task.classes, task.counts)
        head = after_each(head)
        for part in halves(task):
            head.observe(part.z, part.y)
            head = after_each(head)
        task.show_past(head)
        head = after_each(head)
        head.solve()
        head = after_each(head)
    return head


def order_does_not_matter(case: Case) -> None:
    """Scores do not depend on the order of samples, or on the sizes of batches."""
    expected = case.learned()
    generator = torch.Generator().manual_seed(1)
    shuffled = []
    for task in TASKS:
        order = torch.randperm(len(task.y), generator=generator)
        shuffled.append(task.part(order))
    head = learn(case.make(WIDTH), shuffled, batch=1)
    scores = head(QUERIES)
    case.must_agree(scores, expected(QUERIES), "another order in batches of 1")


def aborted_task_leaves_no_trace(case: Case) -> None:
    """An aborted task leaves the state as it was, bit for bit, and learning goes on from there."""
    expected = case.learned()(QUERIES)
    (other,) = stream([[50, 51]], 8)
    head = case.make(WIDTH)
    # The head itself, a copy, and one with its state.
    same_heads: list[Callable[[Head], Head]] = [Head.eval, copy.deepcopy, case.reloaded]
    for task, same_head in zip(TASKS, same_heads, strict=True):
        before = snapshot(head)
        head.begin_task(other.classes, other.counts)
        head.observe(other.z, other.y)
        task.show_past(head)
        head = same_head(head)
        head.abort_task()
        assert_same_state(head, before)
        learn(head, [task])
    assert torch.equal(head(QUERIES), expected), (
        "scores after an aborted task have other bits"
    )


def merging_is_as_declared(case: Case) -> None:
    """Two sites merge, if it ``merges``, and separate again, if it ``subtracts``."""
    whole = case.learned()
    if not whole.merges:
        return
    parts = [halves(task) for task in TASKS]
    head = case.learned([even for even, _ in parts])
    other = case.learned([odd for _, odd in reversed(parts)])
    alone = head(QUERIES)
    head.merge_(other)
    head.solve()
    assert head.class_counts() == whole.class_counts(), "merged heads have other counts"
    case.must_agree(head(QUERIES), whole(QUERIES), "merging", 1e-8)
    if head.subtracts:
        head.subtract_(other)
        head.solve()
        case.must_agree(head(QUERIES), alone, "subtracting what was merged", 1e-8)


def reducing_is_as_declared(case: Case) -> None:
    """Sums over three processes, one without samples, equal those of one, if it ``reduces``."""
    expected = case.learned()
    if not expected.reduces:
        return
    heads = [case.make(WIDTH) for _ in range(3)]
    for task in TASKS:
        parts = [*halves(task), task.part(torch.arange(0))]
        reduced = []
        for head, part in zip(heads, parts, strict=True):
            head.begin_task(task.classes, task.counts)
            head.observe(part.z, part.y)
            tensors: list[Tensor] = []
            head.reduce_(tensors.append)
            reduced.append(tensors)
        for same_tensors in zip(*reduced, strict=True):
            total = torch.stack(same_tensors).sum(dim=0)
            for tensor in same_tensors:
                tensor.copy_(total)
        for head in heads:
            task.show_past(head)
            head.solve()
    for head in heads:
        assert head.class_counts() == expected.class_counts(), (
            "processes have other counts than one process"
        )
        change = "learning in several processes"
        case.must_agree(head(QUERIES), expected(QUERIES), change, 1e-8)


def classes_can_go_and_come_back(case: Case) -> None:
    """Renaming changes no score; a removed class has no column, and can be learned again."""
    head = case.learned()
    before = head(QUERIES)
    head.relabel({label: 100 - k for k, label in enumerate(head.classes)})
    assert torch.equal(head(QUERIES), before), "renaming changes scores"
    head.remove_classes(head.classes[:1])
    columns = head(QUERIES).shape[1]
    assert columns == len(head.classes), "a removed class has a column"
    first = TASKS[0]
    learn(head, [first])
    correct = int((head.predict(first.z) == first.y).sum())
    problem = (
        f"it predicts {correct} of {len(first.y)} correctly of a class that came back"
    )
    assert correct > 0.9 * len(first.y), problem


HEAD_CHECKS = (
    builds_learns_and_stores,
    scores_each_embedding_alone,
    tells_classes_apart,
    state_survives_a_file,
    order_does_not_matter,
    aborted_task_leaves_no_trace,
    merging_is_as_declared,
    reducing_is_as_declared,
    classes_can_go_and_come_back,
)
"""Checks that every head must pass."""


def check_head(make: Callable[[int], Head], tolerance: float = 1e-9) -> None:
    """Check that a head keeps its contract: labels, order, state, declared capabilities.

    Args:
        make: the head's class, or a function that builds it from the width of the embeddings.
        tolerance: as for :class:`Case`; a head that computes in float32 needs 1e-4.

    Raises:
        AssertionError: the first check that fails, with what it found.

    Example:
        >>> from cifnet_pl.heads import RidgeHead
        >>> check_head(lambda width: RidgeHead(width, ridge=1.0))
    """
    for check in HEAD_CHECKS:
        try:
            check(Case(make, tolerance))
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {error}") from None


# ---------------------------------------------------------------------- backbones and sources


def check_backbone(name: str, architecture: str | None = None) -> None:
    """Check a backbone: each image has its own embedding, always the same.

    Args:
        name: as for :func:`cifnet_pl.backbones.build_backbone`, such as "import:my_parts.MyNet".
        architecture: as for the same function.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    backbone = build_backbone(name, architecture, engine="torch")
    images = natural_images(backbone.preprocessing.image_size)
    z = backbone(images)
    assert torch.equal(backbone(images), z), (
        "the same images have other embeddings the second time"
    )
    alone = torch.cat([backbone(image[None]) for image in images])
    assert difference(alone, z) < 1e-4, "images influence each other"
    assert not torch.equal(z[0], z[1]), "all images have the same embedding"


def check_source(name: str, options: SourceOptions | None = None) -> None:
    """Check a data source: it can be built, and names and samples are alike the second time.

    Args:
        name: as on the command line, such as "my_parts.shades".
        options: those of ``--data``, such as ``SourceOptions(root=Path("images"))``.

    Raises:
        AssertionError: the first thing that is not as it should be.
    """
    options = options or SourceOptions()
    source = build_source(name, options)
    again = build_source(name, options)
    for samples, second in ((source.train, again.train), (source.test, again.test)):
        assert samples.names == second.names, (
            "the samples have other names or another order next time"
        )
        rows = np.arange(0, len(samples), 1 + len(samples) // 8)
        assert np.array_equal(samples.hashes(rows), second.hashes(rows)), (
            "the samples differ the second time"
        )
        if samples.are_images:
            for row in rows.tolist():
                samples.image(row).square(8, 1.0)
