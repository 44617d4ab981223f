"""The one suite that every head passes: the public checks of ``cifnet_pl.testing``, and what the
base class refuses.
"""

import copy
from collections.abc import Callable

import pytest
import torch

from cifnet_pl.heads import Head
from cifnet_pl.testing import (
    HEAD_CHECKS,
    WIDTH,
    Case,
    CheckTask,
    assert_same_state,
    difference,
    halves,
    learn,
    memory,
    queries,
    show_past,
    snapshot,
    stream,
)
from cifnet_pl.utilities.errors import (
    CifnetError,
    UnsupportedError,
    UsageError,
)
from tests.heads.suite import HEADS

pytestmark = pytest.mark.parametrize("case", HEADS)

TASKS = stream()
QUERIES = queries(TASKS)


@pytest.fixture
def learned(case: Case) -> Head:
    return learn(case.make(WIDTH), TASKS)


# ---------------------------------------------------------------------- protocol


@pytest.mark.parametrize("check", HEAD_CHECKS, ids=lambda check: check.__name__)
def test_public_check(
    case: Case, check: Callable[[Case, list[CheckTask]], None]
) -> None:
    check(case, TASKS)


def test_probabilities_are_the_softmax_of_scores_over_temperature(
    learned: Head,
) -> None:
    plain = torch.softmax(learned(QUERIES), dim=1)
    assert torch.allclose(learned.probabilities(QUERIES), plain, rtol=0, atol=1e-14)
    learned.temperature.fill_(2.5)
    tempered = torch.softmax(learned(QUERIES) / 2.5, dim=1)
    assert torch.allclose(learned.probabilities(QUERIES), tempered)


# ---------------------------------------------------------------------- surroundings


def test_inference_mode_may_come_and_go(case: Case, learned: Head) -> None:
    head = case.make(WIDTH)
    for k, task in enumerate(TASKS):
        head.begin_task(task.classes, task.counts)
        with torch.inference_mode():
            z = task.z * 1
            head.observe(z[:2], task.y[:2])
        head.observe(z[2:3], task.y[2:3])
        with torch.inference_mode():
            head.observe(z[3:], task.y[3:])
            show_past(head, TASKS[:k])
            if k == 1:
                head.solve()
                head(QUERIES)
        head.solve()
    with torch.inference_mode():
        scores = head(QUERIES)
    assert difference(scores.clone(), learned(QUERIES)) <= case.tolerance


# ---------------------------------------------------------------------- state


def test_a_state_of_another_width_is_refused(case: Case, learned: Head) -> None:
    with pytest.raises(CifnetError):
        case.make(WIDTH + 1).load_state_dict(learned.state_dict())


# ---------------------------------------------------------------------- taking a task back


def test_counts_include_what_is_not_solved_yet(case: Case) -> None:
    head = learn(case.make(WIDTH), TASKS[:1])
    head.begin_task([5, 6], [2, 1])
    assert head.class_counts() == {7: TASKS[0].counts[0], 5: 0, 6: 0}
    head.observe(QUERIES[:3], torch.tensor([5, 6, 5]))
    assert head.class_counts() == {7: TASKS[0].counts[0], 5: 2, 6: 1}
    z, y, weight = memory(TASKS[:1])
    head.observe_past(z, y, weight)
    assert head.class_counts() == {7: TASKS[0].counts[0], 5: 2, 6: 1}


# ---------------------------------------------------------------------- bad input


def half_way(case: Case) -> Head:
    """A head in the middle of its second task."""
    head = learn(case.make(WIDTH), TASKS[:1])
    head.begin_task([-3, 2**62], TASKS[1].counts)
    head.observe(TASKS[1].z[:4], TASKS[1].y[:4])
    return head


def test_the_buffer_must_not_hold_the_current_task(case: Case) -> None:
    head = half_way(case)
    before = snapshot(head)
    with pytest.raises(UsageError, match="current task"):
        head.observe_past(QUERIES[:2], torch.tensor([7, -3]))
    with pytest.raises(UsageError, match="label 12"):
        head.observe_past(QUERIES[:1], torch.tensor([12]))
    assert_same_state(head, before)


def test_an_impossible_task_is_refused_and_changes_nothing(
    case: Case, learned: Head
) -> None:
    before = snapshot(learned)
    for classes, counts, arguments in (
        ([], [], "at least one class"),
        ([3, 4, 3], [1, 1, 1], "twice"),
        ([3, -3], [1, 1], "class -3 is already learned"),
        ([3, 4], [1], "counts"),
        ([3, 4], [1, 0], "counts"),
    ):
        with pytest.raises(UsageError, match=arguments):
            learned.begin_task(classes, counts)
        assert_same_state(learned, before)


def test_a_task_must_be_solved_before_the_next(case: Case) -> None:
    head = half_way(case)
    with pytest.raises(CifnetError, match=r"solve\(\)"):
        head.begin_task([100], [1])


def test_no_prediction_before_solve(case: Case) -> None:
    with pytest.raises(CifnetError, match="not solved"):
        case.make(WIDTH)(QUERIES)
    head = half_way(case)
    with pytest.raises(CifnetError, match="not solved"):
        head(QUERIES)


def test_a_class_without_samples_is_refused_and_can_be_mended(case: Case) -> None:
    head = case.make(WIDTH)
    head.begin_task([1, 2], [3, 2])
    head.observe(QUERIES[:3], torch.tensor([1, 1, 1]))
    with pytest.raises(CifnetError, match="class 2 has no samples"):
        head.solve()
    head.observe(QUERIES[20:22], torch.tensor([2, 2]))
    head.solve()
    assert head(QUERIES).shape[1] == 2


def test_a_ridge_that_is_not_positive_is_refused(case: Case) -> None:
    head = case.make(WIDTH)
    settings = head.settings()
    for ridge in (
        (0, -1.0, float("nan"), float("inf"), "auto") if "ridge" in settings else ()
    ):
        with pytest.raises(UsageError, match="ridge"):
            type(head).from_settings({**settings, "ridge": ridge})


# ---------------------------------------------------------------------- merge, subtract, reduce,
# remove


def test_shards_of_a_task_merge(case: Case, learned: Head) -> None:
    if not learned.merges:
        with pytest.raises(UnsupportedError):
            learned.merge_(copy.deepcopy(learned))
        return
    # Without buffer samples; a second merge would count the tasks before twice.
    task = TASKS[2]
    shards = [case.make(WIDTH) for _ in range(2)]
    for shard, part in zip(shards, halves(task), strict=True):
        shard.begin_task(task.classes, task.counts)
        shard.observe(part.z, part.y)
    head, other = shards
    head.merge_(other)
    head.solve()
    whole = learn(case.make(WIDTH), [task])
    assert difference(head(QUERIES), whole(QUERIES)) <= max(case.tolerance, 1e-8)


def test_merge_refuses_another_kind(case: Case, learned: Head) -> None:
    class Other(type(learned)):  # type: ignore[misc]
        pass

    before = snapshot(learned)
    stranger = case.make(WIDTH)
    stranger.__class__ = Other
    for other in (stranger, case.make(WIDTH + 1)):
        with pytest.raises(UnsupportedError if not learned.merges else UsageError):
            learned.merge_(other)
        with pytest.raises(UsageError if learned.subtracts else UnsupportedError):
            learned.subtract_(other)
    assert_same_state(learned, before)
