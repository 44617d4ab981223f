"""The one suite that every head passes: the public checks of ``cifnet_pl.testing``, and what the
base class refuses.
"""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cifnet_pl.heads import Head
from cifnet_pl.testing import (
    HEAD_CHECKS,
    LABELS,
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
    CheckpointError,
    CifnetError,
    NonFiniteError,
    UnsupportedError,
    UsageError,
)
from tests.heads.suite import HEADS, teach

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


def test_every_class_of_the_first_task_of_one_class_is_that_class(case: Case) -> None:
    head = learn(case.make(WIDTH), TASKS[:1])
    assert head(QUERIES).shape == (len(QUERIES), 1)
    assert (head.predict(QUERIES) == 7).all()
    assert torch.allclose(
        head.probabilities(QUERIES), torch.ones(1, dtype=torch.float64)
    )


def test_columns_follow_the_classes_and_not_the_labels(
    case: Case, learned: Head
) -> None:
    other = stream([[2], [5, 0], [-1, 3, 4]])
    head = learn(case.make(WIDTH), other)
    assert head.classes == [2, 5, 0, -1, 3, 4]
    assert difference(head(QUERIES), learned(QUERIES)) <= case.tolerance


def test_probabilities_are_the_softmax_of_scores_over_temperature(
    learned: Head,
) -> None:
    total = learned.probabilities(QUERIES).sum(dim=1)
    assert torch.allclose(total, torch.ones_like(total), rtol=0, atol=1e-12)
    plain = torch.softmax(learned(QUERIES), dim=1)
    assert torch.allclose(learned.probabilities(QUERIES), plain, rtol=0, atol=1e-14)
    learned.temperature.fill_(2.5)
    exponential = torch.exp(
        learned(QUERIES) / 2.5
        - (learned(QUERIES) / 2.5).max(dim=1, keepdim=True).values
    )
    assert torch.allclose(
        learned.probabilities(QUERIES),
        exponential / exponential.sum(dim=1, keepdim=True),
    )


def test_predicts_the_label_of_the_largest_score(learned: Head) -> None:
    expected = [learned.classes[i] for i in learned(QUERIES).argmax(dim=1).tolist()]
    assert learned.predict(QUERIES).tolist() == expected


def test_weights_of_one_are_no_weights(case: Case) -> None:
    task = stream([[1, 2, 3]])[0]
    weighted = case.make(WIDTH)
    plain = case.make(WIDTH)
    for head, weight in ((weighted, torch.ones(len(task.y))), (plain, None)):
        teach(head, task.z, task.y, weight)
    assert difference(weighted(QUERIES), plain(QUERIES)) <= case.tolerance


def test_batches_may_mix_dtypes(case: Case) -> None:
    exact = [CheckTask(t.classes, t.z.bfloat16().double(), t.y) for t in TASKS]
    reference = learn(case.make(WIDTH), exact)
    head = case.make(WIDTH)
    for k, task in enumerate(exact):
        head.begin_task(task.classes, task.counts)
        for i, rows in enumerate(torch.arange(len(task.y)).split(3)):
            dtype = (torch.float64, torch.float32, torch.bfloat16)[i % 3]
            head.observe(task.z[rows].to(dtype), task.y[rows])
        if k:
            z, y, weight = memory(exact[:k])
            head.observe_past(z.float(), y, weight.float())
        head.solve()
    assert difference(head(QUERIES), reference(QUERIES)) <= case.tolerance


def test_a_solve_without_news_changes_nothing(case: Case, learned: Head) -> None:
    scores = learned(QUERIES)
    learned.solve()
    learned.refresh()
    assert torch.equal(learned(QUERIES), scores)


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


def test_a_cast_does_not_round_the_statistics(case: Case, learned: Head) -> None:
    before = snapshot(learned)
    scores = learned(QUERIES)
    for cast in (
        lambda h: h.half(),
        lambda h: h.to(torch.bfloat16),
        lambda h: h.float(),
        lambda h: h.double(),
    ):
        cast(learned)
    learned.refresh()
    assert torch.equal(learned(QUERIES), scores)
    for key, value in before.items():
        assert learned.state_dict()[key].dtype == value.dtype


# ---------------------------------------------------------------------- state


def test_state_may_be_loaded_over_another_one(case: Case, learned: Head) -> None:
    other = learn(case.make(WIDTH), stream([[4, 9], [8]], seed=5))
    other.begin_task([70, 71], [2, 2])
    other.observe(QUERIES[:4], torch.tensor([70, 71, 70, 71]))
    other.load_state_dict(learned.state_dict())
    assert torch.equal(other(QUERIES), learned(QUERIES))
    assert other.tasks == LABELS


def test_a_state_of_another_width_is_refused(case: Case, learned: Head) -> None:
    with pytest.raises(CifnetError):
        case.make(WIDTH + 1).load_state_dict(learned.state_dict())


def test_a_damaged_state_is_refused(case: Case, learned: Head) -> None:
    state = learned.state_dict()
    with pytest.raises(CheckpointError, match="damaged"):
        case.make(WIDTH).load_state_dict({**state, "task_of": state["task_of"][:-1]})
    with pytest.raises(CheckpointError, match="damaged"):
        case.make(WIDTH).load_state_dict({**state, "labels": state["labels"].double()})


def test_a_copy_goes_its_own_way(case: Case) -> None:
    head = learn(case.make(WIDTH), TASKS[:2])
    head.begin_task(TASKS[2].classes, TASKS[2].counts)
    head.observe(TASKS[2].z[:5], TASKS[2].y[:5])
    before = snapshot(head)
    twin = copy.deepcopy(head)
    assert_same_state(twin, before)
    for each in (twin, head):
        each.observe(TASKS[2].z[5:], TASKS[2].y[5:])
        if each is twin:
            twin.solve()
            assert_same_state(head, before)
    head.solve()
    assert torch.equal(twin(QUERIES), head(QUERIES))


# ---------------------------------------------------------------------- taking a task back


def test_aborting_a_solved_task_does_nothing(learned: Head) -> None:
    before = snapshot(learned)
    learned.abort_task()
    assert_same_state(learned, before)


def test_abort_keeps_a_task_that_was_solved_before(case: Case) -> None:
    head = learn(case.make(WIDTH), TASKS[:2])
    scores = head(QUERIES)
    counts = head.class_counts()
    head.observe(QUERIES[:2], torch.tensor([-3, -3]))
    head.abort_task()
    assert head.class_counts() == counts
    assert difference(head(QUERIES), scores) <= case.tolerance


def test_classes_are_renamed_and_nothing_else(case: Case, learned: Head) -> None:
    """In the middle of a task too, and learning goes on under the new names."""
    new = {label: 100 - k for k, label in enumerate(learned.classes)}
    head = case.make(WIDTH)
    for k, task in enumerate(TASKS):
        renamed = CheckTask(
            [new[label] for label in task.classes],
            task.z,
            torch.tensor([new[int(y)] for y in task.y]),
        )
        head.begin_task(task.classes, task.counts)
        head.observe(task.z[::2], task.y[::2])
        show_past(head, TASKS[:k])
        head.relabel({label: new[label] for label in head.classes})
        head.observe(renamed.z[1::2], renamed.y[1::2])
        head.solve()
        head.relabel({now: old for old, now in new.items() if now in head.classes})
    assert head.classes == learned.classes
    assert difference(head(QUERIES), learned(QUERIES)) <= case.tolerance
    head.relabel(new)
    assert head.classes == list(new.values())
    assert head.predict(QUERIES).tolist() == [
        new[label] for label in learned.predict(QUERIES).tolist()
    ]
    assert head.tasks == [[new[label] for label in task.classes] for task in TASKS]


def test_two_classes_cannot_have_one_name(learned: Head) -> None:
    for wrong in (dict.fromkeys(learned.classes, 1), {learned.classes[0]: 1}, {}):
        before = learned.classes
        with pytest.raises(UsageError, match="one new label for each"):
            learned.relabel(wrong)
        assert learned.classes == before


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


BAD_BATCHES = {
    "unknown label": (
        QUERIES[:2],
        torch.tensor([-3, 12]),
        None,
        UsageError,
        "label 12",
    ),
    "earlier label": (QUERIES[:2], torch.tensor([-3, 7]), None, UsageError, "label 7"),
    "width": (QUERIES[:2, :-1], torch.tensor([-3, -3]), None, CifnetError, r"\(2, 5\)"),
    "one dimension": (QUERIES[0], torch.tensor([-3]), None, CifnetError, "shape"),
    "integers": (
        QUERIES[:2].long(),
        torch.tensor([-3, -3]),
        None,
        CifnetError,
        "int64",
    ),
    "too few labels": (QUERIES[:2], torch.tensor([-3]), None, UsageError, "labels"),
    "float labels": (QUERIES[:1], torch.tensor([-3.0]), None, UsageError, "int64"),
    "too few weights": (
        QUERIES[:2],
        torch.tensor([-3, -3]),
        torch.ones(1),
        UsageError,
        "weights",
    ),
    "weight of zero": (
        QUERIES[:2],
        torch.tensor([-3, -3]),
        torch.tensor([1.0, 0.0]),
        UsageError,
        "positive",
    ),
    "weight not a number": (
        QUERIES[:1],
        torch.tensor([-3]),
        torch.tensor([torch.nan]),
        UsageError,
        "finite",
    ),
}


def test_a_bad_batch_is_refused_and_changes_nothing(case: Case) -> None:
    head = half_way(case)
    before = snapshot(head)
    for z, y, weight, error, arguments in BAD_BATCHES.values():
        with pytest.raises(error, match=arguments):
            head.observe(z, y, weight)
        assert_same_state(head, before)


def test_nan_and_inf_are_refused_and_change_nothing(case: Case) -> None:
    head = half_way(case)
    before = snapshot(head)
    for value in (torch.nan, torch.inf, -torch.inf):
        for observe, label in ((head.observe, -3), (head.observe_past, 7)):
            z = QUERIES[:4].clone()
            z[2, 1] = value
            with pytest.raises(NonFiniteError, match="NaN or Inf") as caught:
                observe(z, torch.full((4,), label))
            assert caught.value.rows == [2]
            assert_same_state(head, before)


def test_nan_is_refused_in_prediction(learned: Head) -> None:
    with pytest.raises(NonFiniteError):
        learned(torch.full((1, WIDTH), torch.nan))
    with pytest.raises(CifnetError, match="shape"):
        learned(QUERIES[:, 1:])


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
        ([2**63], [1], "64 bits"),
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


def test_nothing_to_solve_or_observe(case: Case) -> None:
    head = case.make(WIDTH)
    with pytest.raises(CifnetError, match="begin_task"):
        head.solve()
    with pytest.raises(UsageError, match="begin_task"):
        head.observe(QUERIES[:1], torch.tensor([1]))


def test_a_class_without_samples_is_refused_and_can_be_mended(case: Case) -> None:
    head = case.make(WIDTH)
    head.begin_task([1, 2], [3, 2])
    head.observe(QUERIES[:3], torch.tensor([1, 1, 1]))
    with pytest.raises(CifnetError, match="class 2 has no samples"):
        head.solve()
    head.observe(QUERIES[20:22], torch.tensor([2, 2]))
    head.solve()
    assert head(QUERIES).shape[1] == 2


def test_a_width_below_one_is_refused(case: Case) -> None:
    for width in (0, -1):
        with pytest.raises(UsageError, match="in_features"):
            type(case.make(WIDTH))(in_features=width)


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


def test_merge_of_sites_with_other_classes(case: Case, learned: Head) -> None:
    if not learned.merges_sites:
        if learned.merges:
            return_code = UsageError
        else:
            return_code = UnsupportedError
        with pytest.raises(return_code):
            learned.merge_(learn(case.make(WIDTH), stream([[100]])))
        return
    here = learn(case.make(WIDTH), TASKS[:2])
    there = learn(case.make(WIDTH), TASKS[2:])
    here.merge_(there)
    here.solve()
    assert here.classes == learned.classes
    assert difference(here(QUERIES), learned(QUERIES)) <= max(case.tolerance, 1e-8)
    # The merged head goes on learning.
    more = stream([[200, 201]], seed=3)
    learn(here, more, earlier=TASKS)
    learn(learned, more, earlier=TASKS)
    assert difference(here(QUERIES), learned(QUERIES)) <= max(case.tolerance, 1e-8)


def test_merge_of_shards_of_the_current_task(case: Case, learned: Head) -> None:
    if not learned.merges:
        with pytest.raises(UnsupportedError):
            learned.merge_(copy.deepcopy(learned))
        return
    # Heads that add whole sites would count a common history twice: for them, shards of a first
    # task.
    tasks = TASKS if not learned.merges_sites else TASKS[2:]
    head = case.make(WIDTH)
    for k, task in enumerate(tasks):
        head.begin_task(task.classes, task.counts)
        shards = [copy.deepcopy(head) for _ in range(2)]
        for shard, part in zip(shards, halves(task), strict=True):
            shard.observe(part.z, part.y)
            show_past(shard, tasks[:k])
        head = shards[0]
        head.merge_(shards[1])
        head.solve()
    whole = learn(case.make(WIDTH), tasks)
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


def test_subtract_then_remove_equals_never_having_learned(
    case: Case, learned: Head
) -> None:
    if not learned.subtracts:
        return
    gone = TASKS[1]
    learned.subtract_(learn(case.make(WIDTH), [gone]))
    with pytest.raises(CifnetError, match="no samples"):
        learned.solve()
    learned.remove_classes(gone.classes)
    learned.solve()
    never = learn(case.make(WIDTH), [TASKS[0], TASKS[2]])
    assert learned.tasks == never.tasks
    assert learned.class_counts() == never.class_counts()
    assert difference(learned(QUERIES), never(QUERIES)) <= max(case.tolerance, 1e-8)


def test_removed_classes_are_gone(case: Case, learned: Head) -> None:
    before = snapshot(learned)
    for impossible in ([12], [7, 12], learned.classes):
        with pytest.raises(UsageError):
            learned.remove_classes(impossible)
        assert_same_state(learned, before)
    learned.remove_classes([7, 0])
    assert learned.tasks == [[-3, 2**62], [1_000_003, -(2**62)]]
    assert learned.task_of.tolist() == [0, 0, 1, 1]
    assert learned(QUERIES).shape == (len(QUERIES), 4)
    assert torch.equal(case.reloaded(learned)(QUERIES), learned(QUERIES))


def test_classes_are_removed_before_solve_too(case: Case) -> None:
    head = half_way(case)
    head.observe(TASKS[1].z[4:], TASKS[1].y[4:])
    head.remove_classes([7])
    head.solve()
    assert head.classes == [-3, 2**62]
    assert (head.predict(TASKS[1].z) == TASKS[1].y).double().mean() > 0.9


def test_labels_may_be_numpy_or_tensor_scalars(case: Case) -> None:
    head = case.make(WIDTH)
    head.begin_task(np.array([4, -9]), [1, 1])  # type: ignore[arg-type]
    assert head.classes == [4, -9]
    with pytest.raises(TypeError):
        case.make(WIDTH).begin_task([1.5], [1])  # type: ignore[list-item]
