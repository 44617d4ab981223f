"""What every head passes: the checks of ``cifnet_pl.testing``, and what our own heads promise."""

import pytest
import torch

from cifnet_pl.heads.trial import WIDTH, learn
from cifnet_pl.testing import (
    HEAD_CHECKS,
    QUERIES,
    TASKS,
    Case,
    assert_same_state,
    difference,
    halves,
    snapshot,
)
from cifnet_pl.utilities.errors import (
    CifnetError,
    NonFiniteError,
    UnsupportedError,
    UsageError,
)
from tests.heads.suite import HEADS

pytestmark = pytest.mark.parametrize("case", HEADS)


@pytest.mark.parametrize("check", HEAD_CHECKS, ids=lambda check: check.__name__)
def test_public_check(case: Case, check) -> None:
    check(case)


def test_autocast_rounds_no_sum_and_a_cast_changes_no_state(case: Case) -> None:
    expected = case.learned()(QUERIES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head = case.learned()
        assert torch.equal(head(QUERIES), expected)
    assert not head(QUERIES).requires_grad
    before = snapshot(head)
    assert_same_state(head.half(), before)


def test_inference_mode_may_come_and_go(case: Case) -> None:
    head = case.make(WIDTH)
    for k, task in enumerate(TASKS):
        head.begin_task(task.classes, task.counts)
        with torch.inference_mode():
            z = task.z * 1
            head.observe(z[:2], task.y[:2])
        head.observe(z[2:3], task.y[2:3])
        with torch.inference_mode():
            head.observe(z[3:], task.y[3:])
            task.show_past(head)
            if k == 1:
                head.solve()
                head(QUERIES)
        head.solve()
    with torch.inference_mode():
        scores = head(QUERIES)
    assert difference(scores.clone(), case.learned()(QUERIES)) <= case.tolerance


def test_a_task_under_way(case: Case) -> None:
    """It is counted, it must be solved first, and a class without samples can be mended."""
    head = case.learned(TASKS[:1])
    with pytest.raises(CifnetError):
        case.make(WIDTH + 1).load_state_dict(head.state_dict())
    first = TASKS[0].counts[0]
    head.begin_task([5, 6], [2, 1])
    head.observe(QUERIES[20:22], torch.tensor([5, 5]))
    head.observe_past(QUERIES[:3], torch.full((3,), 7))
    assert head.class_counts() == {7: first, 5: 2, 6: 0}
    before = snapshot(head)
    fives = torch.tensor([5, 5])
    head.observe(QUERIES[:0], fives[:0])
    with pytest.raises(NonFiniteError):
        head.observe(QUERIES[:2] * torch.nan, fives)
    for call, words in (
        (lambda: head.observe(QUERIES[:2, 1:], fives), "expected"),
        (lambda: head.observe(QUERIES[:2], fives - 1), "label 4"),
        (lambda: head.begin_task([100], [1]), r"solve\(\)"),
        (lambda: head(QUERIES), "not solved"),
        (lambda: case.make(WIDTH)(QUERIES), "not solved"),
        (head.solve, "class 6 has no samples"),
        (lambda: head.observe_past(QUERIES[:1], torch.tensor([5])), "current task"),
        (lambda: head.observe_past(QUERIES[:1], torch.tensor([12])), "label 12"),
    ):
        with pytest.raises(CifnetError, match=words):
            call()
        assert_same_state(head, before)
    head.observe(QUERIES[22:23], torch.tensor([6]))
    head.solve()
    assert head.class_counts() == {7: first, 5: 2, 6: 1}
    assert head(QUERIES).shape[1] == 3


def test_shards_of_a_task_merge_and_other_kinds_do_not(case: Case) -> None:
    """Before they are solved, too: so the sums of parts of a set are added up."""
    task = TASKS[2]
    shards = [case.make(WIDTH) for _ in range(2)]
    for shard, part in zip(shards, halves(task), strict=True):
        shard.begin_task(task.classes, task.counts)
        shard.observe(part.z, part.y)
    head, other = shards
    before = snapshot(head)
    stranger = case.make(WIDTH + 1)
    with pytest.raises(UsageError if head.merges else UnsupportedError):
        head.merge_(stranger)
    with pytest.raises(UsageError if head.subtracts else UnsupportedError):
        head.subtract_(stranger)
    if not head.reduces:
        with pytest.raises(UnsupportedError):
            head.reduce_(print)
    assert_same_state(head, before)
    if head.merges:
        head.merge_(other)
        head.solve()
        whole = learn(case.make(WIDTH), [task])
        case.must_agree(head(QUERIES), whole(QUERIES), "merging shards", 1e-8)


def test_where_gcv_chooses_every_sample_twice_is_every_sample_once(case: Case) -> None:
    once, twice = (case.make(WIDTH) for _ in range(2))
    if "gcv" not in once.settings().values() or once.selects_rule:
        return  # the discriminant counts images of a class
    for task in TASKS:
        for head in (once, twice):
            head.begin_task(task.classes)
            head.observe(task.z, task.y)
        twice.observe(task.z, task.y)
        twice.count_duplicates(len(task.y))
        for head in (once, twice):
            head.solve()
    assert difference(twice(QUERIES), once(QUERIES)) <= max(case.tolerance, 1e-7)
    counts = once.class_counts()
    assert twice.class_counts() == {label: 2 * counts[label] for label in counts}
