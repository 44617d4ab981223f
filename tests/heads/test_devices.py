"""Every head lives on another device as it does on the CPU: a simulated one, and a real one where
there is one.
"""

import copy
from collections.abc import Iterator
from functools import cache

import pytest
import torch

from cifnet_pl.heads import Head, SGDHead
from cifnet_pl.testing import (
    WIDTH,
    Case,
    CheckTask,
    difference,
    learn,
    memory,
    queries,
    stream,
)
from cifnet_pl.utilities.errors import CifnetError
from tests.heads.suite import HEADS
from tests.simulated_device import simulated_device

TASKS = stream()
QUERIES = queries(TASKS)
REAL = (
    [str(torch.accelerator.current_accelerator())]
    if torch.accelerator.is_available()
    else []
)

pytestmark = pytest.mark.parametrize("case", HEADS)


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
    return learn(case.make(WIDTH), TASKS)


@pytest.fixture
def here(case: Case) -> Head:
    """A head that learned on the CPU."""
    return copy.deepcopy(learned(case))


@pytest.fixture
def there(case: Case, device: torch.device) -> Head:
    """The same head, moved to the device when it had learned."""
    return copy.deepcopy(learned(case)).to(device)


def sent(tasks: list[CheckTask], device: torch.device) -> list[CheckTask]:
    return [
        CheckTask(task.classes, task.z.to(device), task.y.to(device)) for task in tasks
    ]


def assert_same_scores(there: Head, here: Head, case: Case) -> None:
    scores = there(QUERIES.to(there.labels.device))
    assert scores.device == there.labels.device
    assert difference(scores.cpu(), here(QUERIES)) <= max(case.tolerance, 1e-7)
    assert {value.device for value in there.state_dict().values()} == {
        there.labels.device
    }


def test_moves_between_devices(case: Case, here: Head, device: torch.device) -> None:
    tasks = sent(TASKS, device)
    head = learn(case.make(WIDTH), TASKS[:1]).to(device)
    learn(head, tasks[1:2], batch=4, earlier=tasks[:1])
    head = case.reloaded(head).to(device)
    learn(head, tasks[2:], batch=4, earlier=tasks[:2])
    assert_same_scores(head, here, case)
    assert_same_scores(head.cpu(), here, case)


def test_learns_predicts_and_leaves_one_out(
    case: Case, here: Head, device: torch.device
) -> None:
    there = learn(case.make(WIDTH).to(device), sent(TASKS, device))
    z = QUERIES.to(device)
    assert_same_scores(there, here, case)
    assert torch.equal(there.predict(z).cpu(), here.predict(QUERIES))
    assert torch.allclose(
        there.probabilities(z).cpu(), here.probabilities(QUERIES), atol=1e-4
    )
    assert torch.equal(there.scoring()(z).cpu(), there(z).cpu())
    if not here.leaves_one_out:
        return
    z, y = memory(TASKS[2:])[:2]  # of the last task, so never shown a second time
    expected = here.leave_one_out(z, y)
    result = there.leave_one_out(z.to(device), y.to(device))
    assert torch.allclose(result.cpu(), expected, rtol=1e-3, atol=1e-3, equal_nan=True)


def test_takes_a_task_back_renames_and_removes(
    case: Case, here: Head, there: Head
) -> None:
    (other,) = sent(stream([[50, 51]], seed=8), there.labels.device)
    there.begin_task(other.classes, other.counts)
    there.observe(other.z, other.y)
    there.observe_past(*memory(sent(TASKS, there.labels.device)))
    there.abort_task()
    assert_same_scores(there, here, case)
    for head in (here, there):
        head.relabel({label: 10 + k for k, label in enumerate(head.classes)})
        head.remove_classes([11, 14])
    assert there.class_counts() == here.class_counts()
    assert_same_scores(there, here, case)


def test_merges_and_subtracts_what_comes_from_the_cpu(
    case: Case, here: Head, there: Head
) -> None:
    if not case.make(WIDTH).merges_sites:
        return
    more = learn(case.make(WIDTH), stream([[50, 7]], seed=8))
    for head in (here, there):
        head.merge_(copy.deepcopy(more))
        head.solve()
    assert_same_scores(there, here, case)
    if case.make(WIDTH).subtracts:
        for head in (here, there):
            head.subtract_(copy.deepcopy(more))
            head.remove_classes([50])
            head.solve()
        assert_same_scores(there, here, case)


def test_reduces_what_is_on_the_device(case: Case, there: Head) -> None:
    if not case.make(WIDTH).reduces:
        with pytest.raises(CifnetError):
            there.reduce_(lambda tensor: None)
        return
    (other,) = sent(stream([[50, 51]], seed=8), there.labels.device)
    there.begin_task(other.classes, other.counts)
    there.observe(other.z, other.y)
    summed: list[torch.Tensor] = []
    there.reduce_(summed.append)
    assert {tensor.device for tensor in summed} == {there.labels.device}
