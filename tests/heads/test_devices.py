"""Every head lives on another device as it does on the CPU: a simulated one, and a real one where
there is one.
"""

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch

from cifnet_pl.heads import Head, SGDHead
from cifnet_pl.heads.trial import WIDTH, TrialTask, learn, stream
from cifnet_pl.testing import QUERIES, TASKS, Case, difference
from tests.heads.suite import HEADS
from tests.simulated_device import simulated_device

REAL = (
    [str(torch.accelerator.current_accelerator())]
    if torch.accelerator.is_available()
    else []
)

# Whatever the device, float32 and a given ridge take no other way than the rest.
CASES = [case for case in HEADS if not case.id.endswith(("-float32", "-fixed"))]

pytestmark = pytest.mark.parametrize("case", CASES)


@pytest.fixture(params=["simulated", *REAL])
def device(request: pytest.FixtureRequest, case: Case) -> Iterator[torch.device]:
    if request.param != "simulated":
        yield torch.device(request.param)
        return
    if isinstance(case.make(WIDTH), SGDHead):
        pytest.skip("a backward pass needs the streams of a real device")
    with simulated_device() as there:
        yield there


@cache
def learned(case: Case) -> Head:
    return case.learned()


@pytest.fixture
def here(case: Case) -> Head:
    """A head that learned on the CPU."""
    return copy.deepcopy(learned(case))


def sent(tasks: list[TrialTask], device: torch.device) -> list[TrialTask]:
    tensors = ("z", "y", "past_z", "past_y")
    return [
        replace(task, **{name: getattr(task, name).to(device) for name in tensors})
        for task in tasks
    ]


def assert_same_scores(there: Head, here: Head, case: Case) -> None:
    scores = there(QUERIES.to(there.labels.device))
    assert scores.device == there.labels.device
    assert difference(scores.cpu(), here(QUERIES)) <= max(case.tolerance, 1e-7)
    assert {value.device for value in there.state_dict().values()} == {
        there.labels.device
    }


def test_learns_predicts_and_leaves_one_out_where_it_was_moved_to(
    case: Case, here: Head, device: torch.device
) -> None:
    tasks = sent(TASKS, device)
    there = learn(case.make(WIDTH), TASKS[:1]).to(device)
    learn(there, tasks[1:2])
    there = case.reloaded(there).to(device)
    learn(there, tasks[2:])
    assert_same_scores(there, here, case)
    z = QUERIES.to(device)
    assert torch.equal(there.predict(z).cpu(), here.predict(QUERIES))
    assert torch.allclose(
        there.probabilities(z).cpu(), here.probabilities(QUERIES), atol=1e-4
    )
    assert torch.equal(there.scoring()(z).cpu(), there(z).cpu())
    if here.leaves_one_out:
        last = TASKS[2]  # of it no sample was shown a second time
        expected = here.leave_one_out(last.z, last.y)
        result = there.leave_one_out(tasks[2].z, tasks[2].y).cpu()
        assert torch.allclose(result, expected, rtol=1e-3, atol=1e-3, equal_nan=True)
    assert_same_scores(there.cpu(), here, case)


def test_changes_on_the_device_as_on_the_cpu(
    case: Case, here: Head, device: torch.device
) -> None:
    """An aborted task, what is reduced, other names, a removed class, and a merge of sums that come
    from the CPU.
    """
    there = copy.deepcopy(here).to(device)
    more = stream([[50, 51]], seed=8)
    (other,) = sent(more, device)
    there.begin_task(other.classes, other.counts)
    there.observe(other.z, other.y)
    sent(TASKS, device)[2].show_past(there)
    if here.reduces:
        summed: list[torch.Tensor] = []
        there.reduce_(summed.append)
        assert {tensor.device for tensor in summed} == {device}
    there.abort_task()
    assert_same_scores(there, here, case)
    for head in (here, there):
        head.relabel({label: 10 + k for k, label in enumerate(head.classes)})
        head.remove_classes([11, 14])
    assert there.class_counts() == here.class_counts()
    assert_same_scores(there, here, case)
    if not here.merges:
        return
    site = case.learned(more)
    for head in (here, there):
        head.merge_(copy.deepcopy(site))
        head.solve()
    assert_same_scores(there, here, case)
    if here.subtracts:
        for head in (here, there):
            head.subtract_(copy.deepcopy(site))
            head.remove_classes([50, 51])
            head.solve()
        assert_same_scores(there, here, case)
