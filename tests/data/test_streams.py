"""Streams: every kind divides the samples as it says, the same way each time, and no sample comes
twice.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.plan import Plan
from cifnet_pl.data.sets import ArraySet, Grouping, Source
from cifnet_pl.data.streams import (
    Blurry,
    Disjoint,
    Domains,
    Listed,
    LongTailed,
    Returning,
    Stream,
    TaskFree,
)
from cifnet_pl.utilities.errors import DataError, UsageError

CLASSES = [f"c{i}" for i in range(8)]


def source(sizes: list[int] | None = None, groups: int = 0) -> Source:
    """Samples in memory: ``sizes`` of each class for training, 5 for testing; groups in turn within
    a class.
    """
    counts = sizes or [40] * len(CLASSES)
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    tests = [label for label in range(len(counts)) for _ in range(5)]
    made = Source(
        CLASSES[: len(counts)], *(ArraySet(lambda i: None, y) for y in (labels, tests))
    )  # type: ignore[arg-type, return-value, misc]
    if groups:
        parts = [np.arange(len(y)) % groups for y in (labels, tests)]
        made.domains = made.tasks = Grouping([f"g{i}" for i in range(groups)], *parts)
    return made


def plan(stream: Stream | None, data: Source | None = None, per_task: int = 2) -> Plan:
    return Plan(data or source(), stream, 3, per_task, None, None)


def rows(made: Plan) -> list[np.ndarray]:
    return [made.rows(k, ()) for k in range(len(made.tasks(())))]


KINDS = [
    Disjoint(),
    Returning(),
    Returning(0.9),
    Blurry(),
    Blurry(0, 100),
    Blurry(every=33),
]
KINDS += [TaskFree(33), TaskFree(1000), Domains(), Listed()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_every_sample_is_in_one_task_and_every_class_is_introduced_once(
    kind: Stream,
) -> None:
    made = plan(kind, source(groups=4))
    result = rows(made)
    assert sorted(np.concatenate(result).tolist()) == list(range(8 * 40))
    assert sorted(made.tasks(()).classes()) == CLASSES
    seen: set[str] = set()
    for part, new in zip(result, made.tasks(()).tasks, strict=True):
        present = {CLASSES[label] for label in made.source.train.labels[part]}
        assert set(new) == present - seen
        seen |= present
    again = rows(plan(kind, source(groups=4)))
    assert all((one == two).all() for one, two in zip(result, again, strict=True))


@pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: type(kind).__name__)
def test_going_on_is_the_same_plan(kind: Stream) -> None:
    made = plan(kind, source(groups=4))
    whole = made.tasks(())
    for k in range(len(whole) + 1):
        assert made.tasks(whole.tasks[:k]) == whole
    with pytest.raises(DataError, match="not those of this stream"):
        made.tasks([["c0", "c7", "c1"]])


def test_disjoint_is_the_order_of_classes_and_then_of_samples() -> None:
    made = plan(None)
    for part, task in zip(rows(made), made.tasks(()).tasks, strict=True):
        assert part.tolist() == [
            i for name in task for i in range(40 * int(name[1]), 40 * int(name[1]) + 40)
        ]


def test_returning_classes_come_in_every_later_task() -> None:
    made = plan(Returning(0.6))
    counts = [
        np.bincount(made.source.train.labels[split], minlength=8)
        for split in rows(made)
    ]
    for k, task in enumerate(made.tasks(()).tasks):
        for label in (int(name[1]) for name in task):
            assert counts[k][label] == (16 if k < 3 else 40)
            assert [counts[j][label] for j in range(k)] == [0] * k
            if k < 3:
                assert {counts[j][label] for j in range(k + 1, 4)} <= {
                    24 // (3 - k),
                    -(-24 // (3 - k)),
                }


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 5))
def test_blurry_has_its_two_percentages(disjoint: int, blurry: int, seed: int) -> None:
    made = plan(Blurry(disjoint, blurry, seed))
    labels = made.source.train.labels
    given_tasks = Plan(made.source, None, 3, 2, None, None).tasks(()).tasks
    elsewhere = []
    for k, task in enumerate(given_tasks):
        counts_of_task = np.bincount(labels[rows(made)[k]], minlength=8)
        elsewhere += [40 - int(counts_of_task[int(name[1])]) for name in task]
    moved = round(blurry / 100 * 40)
    if moved:
        assert sum(count > 0 for count in elsewhere) == 8 - round(disjoint / 100 * 8)
    assert set(elsewhere) <= {0, moved}


def test_task_free_solves_every_so_many_samples() -> None:
    result = rows(plan(TaskFree(33)))
    assert [len(part) for part in result] == [33] * 9 + [23]
    labels = source().train.labels
    firsts = [
        labels[np.concatenate(result)[start : start + 80]]
        for start in range(0, 320, 80)
    ]
    assert all(
        len(set(part.tolist())) == 2 for part in firsts
    )  # mixed within a task, not between tasks


@pytest.mark.parametrize("order", ["shuffled", "descending"])
def test_long_tailed_sizes_fall_exponentially(order: str) -> None:
    made = plan(LongTailed(20, order), source([100] * 8))  # type: ignore[arg-type]
    counts = np.bincount(
        made.source.train.labels[np.concatenate(rows(made))], minlength=8
    )
    expected = [round(100 * 20 ** (-r / 7)) for r in range(8)]
    assert sorted(counts.tolist(), reverse=True) == expected
    in_order = [int(counts[int(name[1])]) for name in made.tasks(()).classes()]
    assert (in_order == expected) == (order == "descending")
    assert len(made.tasks(())) == 4


def test_domains_bring_all_classes_and_are_tested_one_by_one() -> None:
    made = plan(Domains(["g2", "g0", "g1"]), source(groups=3))
    assert [len(task) for task in made.tasks(()).tasks] == [8, 0, 0]
    for part, group in zip(rows(made), (2, 0, 1), strict=True):
        assert set((part % 3).tolist()) <= set(range(3))
        assert set(made.source.domains.train[part].tolist()) == {group}
    assert made.evaluated.names == ["g2", "g0", "g1"]
    tested = [np.concatenate(made.test_rows(CLASSES, k)) for k in (1, 2, 3)]
    assert [len(part) for part in tested] == [13, 27, 40]
    assert set(made.evaluated.val[tested[0]].tolist()) == {0}


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Returning(1.0), "share is 1, expected a number between 0 and 1"),
        (lambda: Blurry(101), "disjoint is 101, expected a percentage"),
        (lambda: Blurry(50, -1), "blurry is -1, expected a percentage"),
        (lambda: TaskFree(0), "every is 0, expected at least 1 sample"),
        (lambda: LongTailed(0.5), "ratio is 0.5, expected at least 1"),
        (lambda: LongTailed(10, "up"), "unknown order of a long-tailed stream 'up'"),
        (
            lambda: plan(Domains()).tasks(()),
            "this data source knows no domains: use a manifest with a column domain",
        ),
        (
            lambda: plan(Listed()).tasks(()),
            "this data source knows no tasks: use a manifest with a column task",
        ),
        (
            lambda: plan(Domains(["g0"]), source(groups=2)).tasks(()),
            "expected each of g0, g1 once",
        ),
    ],
)
def test_impossible_streams(make, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=sentence):
        make()
