"""Every head lives on another device, simulated and where there is one real, as on the CPU."""

import copy
from dataclasses import replace

import pytest
import torch

from cifnet_pl.heads import Head
from cifnet_pl.heads.trial import WIDTH, TrialTask, learn, stream
from cifnet_pl.testing import QUERIES, TASKS, Case, difference
from tests.heads.suite import HEADS
from tests.simulated_device import simulated_device

REAL = torch.accelerator.current_accelerator(check_available=True)
SAME = {"cifnet", "cifnet-locked", "cifnet-gcv", "ridge-auto", "ridge", "slda"}
SAME |= {"ranpac", "dsal", "acil"}
"""Heads that take no other way on a device than others do; nor do those of float32."""

CASES = [c for c in HEADS if c.id not in SAME and not c.id.endswith("-float32")]


@pytest.fixture(params=filter(None, ["simulated", REAL]), ids=str)
def device(request: pytest.FixtureRequest):
    if request.param != "simulated":
        yield torch.device(request.param)
        return
    if "sgd" in request.node.name:
        pytest.skip("a backward pass needs the streams of a real device")
    with simulated_device() as there:
        yield there


def sent(tasks: list[TrialTask], device: torch.device) -> list[TrialTask]:
    tensors = ("z", "y", "past_z", "past_y")
    there = []
    for task in tasks:
        moved = {name: getattr(task, name).to(device) for name in tensors}
        there.append(replace(task, **moved))
    return there


def assert_same_scores(there: Head, here: Head, case: Case) -> None:
    scores = there(QUERIES.to(there.labels.device))
    assert scores.device == there.labels.device
    assert difference(scores.cpu(), here(QUERIES)) <= max(case.tolerance, 1e-7)
    devices = {value.device for value in there.state_dict().values()}
    assert devices == {there.labels.device}


@pytest.mark.parametrize("case", CASES)
def test_lives_where_it_was_moved_to_as_on_the_cpu(case, device):
    """Tasks, a file, an aborted task, sums, names, a removed class, and a merge from the CPU."""
    here = case.learned()
    tasks = sent(TASKS, device)
    there = learn(case.make(WIDTH), TASKS[:1]).to(device)
    learn(there, tasks[1:2])
    there = case.reloaded(there).to(device)
    learn(there, tasks[2:])
    z = QUERIES.to(device)
    assert torch.equal(there.predict(z).cpu(), here.predict(QUERIES))
    probabilities = there.probabilities(z).cpu()
    assert torch.allclose(probabilities, here.probabilities(QUERIES), atol=1e-4)
    assert torch.equal(there.scoring()(z).cpu(), there(z).cpu())
    if here.leaves_one_out:
        last = TASKS[2]  # of it no sample was shown a second time
        expected = here.leave_one_out(last.z, last.y)
        result = there.leave_one_out(tasks[2].z, tasks[2].y).cpu()
        assert torch.allclose(result, expected, rtol=1e-3, atol=1e-3, equal_nan=True)

    more = stream([[50, 51]], seed=8)
    (other,) = sent(more, device)
    there.begin_task(other.classes, other.counts)
    there.observe(other.z, other.y)
    tasks[2].show_past(there)
    if here.reduces:
        summed: list[torch.Tensor] = []
        there.reduce_(summed.append)
        assert {tensor.device for tensor in summed} == {device}
    there.abort_task()
    for head in (here, there):
        head.relabel({label: 10 + k for k, label in enumerate(head.classes)})
        head.remove_classes([11, 14])
    assert there.class_counts() == here.class_counts()
    assert_same_scores(there, here, case)
    if here.merges:
        site = case.learned(more)
        for head in (here, there):
            head.merge_(copy.deepcopy(site))
            if here.subtracts:
                head.solve()
                head.subtract_(copy.deepcopy(site))
                head.remove_classes([50, 51])
            head.solve()
    assert_same_scores(there, here, case)
    assert_same_scores(there.cpu(), here, case)
