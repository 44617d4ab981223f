"""Streams: every kind divides the samples as it says, the same way each time, and none twice."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.samples import SampleTable, Source
from cifnet_pl.data.streams import (
    Blurry,
    Disjoint,
    Domains,
    Listed,
    LongTailed,
    Returning,
    TaskFree,
    make_plan,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.data.entrances import built

CLASSES = [f"c{i}" for i in range(8)]


def source(sizes: list[int] | None = None, groups: int = 0) -> Source:
    """Samples in memory: ``sizes`` of each class, and 5 to test with; groups in turn."""
    counts = sizes or [40] * len(CLASSES)
    parts = []
    for split, of_split in (("train", counts), ("test", [5] * len(counts))):
        labels = np.repeat(np.arange(len(counts)), of_split)
        part = pd.DataFrame({"label": labels, "split": split})
        if groups:
            part["domain"] = [f"g{i % groups}" for i in range(len(part))]
            part["task"] = part["domain"]
        parts.append(part)
    table = pd.concat(parts, ignore_index=True)
    vectors = table[["label"]].to_numpy(np.float32)
    samples = SampleTable(table, embeddings=vectors, class_names=CLASSES)
    return built(samples)


def plan(stream, data: Source | None = None, learned=()):
    return make_plan(data or source(), stream, 3, 2, learned=learned)


LABELS = source().train.labels
"""Of the training samples where all classes have 40."""


KINDS = [Returning(), Blurry(0, 100), Blurry(every=33)]
KINDS += [TaskFree(33), TaskFree(1000), Domains(), Listed()]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
def test_every_sample_is_in_one_task_and_every_class_is_introduced_once(kind):
    """And a run that goes on has the same plan."""
    data = source(groups=4)
    made = plan(kind, data)
    assert sorted(np.concatenate(made.rows).tolist()) == list(range(8 * 40))
    assert sorted(made.classes) == CLASSES
    seen: set[str] = set()
    for part, new in zip(made.rows, made.tasks, strict=True):
        present = {CLASSES[label] for label in LABELS[part]}
        assert set(new) == present - seen
        seen |= present
    for k in range(len(made.tasks) + 1):
        again = plan(kind, data, made.tasks[:k])
        assert again.tasks == made.tasks
        for one, two in zip(again.rows, made.rows, strict=True):
            assert (one == two).all()
    with pytest.raises(DataError, match="not those of this stream"):
        plan(kind, data, (("c0", "c7", "c1"),))


def test_disjoint_is_the_order_of_classes_and_then_of_samples() -> None:
    made = plan(Disjoint())
    for part, task in zip(made.rows, made.tasks, strict=True):
        starts = np.array([40 * int(name[1]) for name in task])
        assert part.tolist() == (starts[:, None] + np.arange(40)).ravel().tolist()


def test_returning_classes_come_in_every_later_task() -> None:
    made = plan(Returning(0.6))
    counts = [np.bincount(LABELS[split], minlength=8) for split in made.rows]
    for k, task in enumerate(made.tasks):
        later = [24 // (3 - k)] * (3 - k) if k < 3 else []
        for label in (int(name[1]) for name in task):
            own = [0] * k + [40 - sum(later)] + later
            assert [count[label] for count in counts] == own


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 5))
def test_blurry_has_its_two_percentages(disjoint: int, blurry: int, seed: int) -> None:
    made = plan(Blurry(disjoint, blurry, seed))
    given_tasks = plan(Disjoint()).tasks
    elsewhere = []
    for k, task in enumerate(given_tasks):
        counts_of_task = np.bincount(LABELS[made.rows[k]], minlength=8)
        elsewhere += [40 - int(counts_of_task[int(name[1])]) for name in task]
    moved = round(blurry / 100 * 40)
    if moved:
        assert sum(count > 0 for count in elsewhere) == 8 - round(disjoint / 100 * 8)
    assert set(elsewhere) <= {0, moved}


def test_task_free_solves_every_so_many_samples() -> None:
    result = plan(TaskFree(33)).rows
    assert [len(part) for part in result] == [33] * 9 + [23]
    for task in np.split(LABELS[np.concatenate(result)], 4):
        assert len(set(task.tolist())) == 2  # mixed within a task, not between tasks


@pytest.mark.parametrize("order", ["shuffled", "descending"])
def test_long_tailed_sizes_fall_exponentially(order: str) -> None:
    data = source([100] * 8)
    made = plan(LongTailed(20, order), data)  # type: ignore[arg-type]
    counts = np.bincount(data.train.labels[np.concatenate(made.rows)], minlength=8)
    expected = [round(100 * 20 ** (-r / 7)) for r in range(8)]
    assert sorted(counts.tolist(), reverse=True) == expected
    in_order = [int(counts[int(name[1])]) for name in made.classes]
    assert (in_order == expected) == (order == "descending")
    assert len(made.tasks) == 4


def test_domains_bring_all_classes_and_are_tested_one_by_one() -> None:
    data = source(groups=3)
    order = ["g2", "g0", "g1"]
    made = plan(Domains(order), data)
    assert [len(task) for task in made.tasks] == [8, 0, 0]
    for part, group in zip(made.rows, order, strict=True):
        assert set(data.train.table["domain"].iloc[part]) == {group}
    module = CIFNetDataModule(data, stream=Domains(order), classes_per_task=2)
    assert module.evaluated is not None
    assert module.evaluated.categories.tolist() == order
    tested = [np.concatenate(module.test_rows(CLASSES, k)) for k in (1, 2, 3)]
    assert [len(part) for part in tested] == [13, 27, 40]
    assert set(module.evaluated.codes[tested[0]].tolist()) == {0}


def test_a_domain_that_repeats_others_is_refused_before_anything_is_learned() -> None:
    data = source(groups=3)  # in which all samples of a class are the same
    module = CIFNetDataModule(data, stream=Domains(), duplicates="leave_out")
    with pytest.raises(DataError, match="all images of task 2"):
        next(iter(module))


def test_impossible_streams():
    for make, sentence in (
        (lambda: Returning(1.0), "share is 1, expected a number between 0 and 1"),
        (lambda: Blurry(101), "disjoint is 101, expected a percentage"),
        (lambda: Blurry(50, -1), "blurry is -1, expected a percentage"),
        (lambda: TaskFree(0), "every is 0, expected at least 1 sample"),
        (lambda: LongTailed(0.5), "ratio is 0.5, expected at least 1"),
        (lambda: LongTailed(10, "up"), "unknown order of a long-tailed stream 'up'"),
        (lambda: plan(Domains()), "no domains: use a manifest with a column domain"),
        (lambda: plan(Listed()), "no tasks: use a manifest with a column task"),
        (lambda: plan(Domains(["g0"]), source(groups=2)), "order of domains must list"),
    ):
        with pytest.raises(UsageError, match=sentence):
            make()
