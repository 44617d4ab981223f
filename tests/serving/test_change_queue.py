"""Jobs one after another: order, refusals, faults of ours, and a queue that is full."""

import threading
from unittest.mock import Mock

import pytest

from cifnet_pl.serving.answering import CurrentModel, ServedModel
from cifnet_pl.serving.change_queue import ChangeQueue
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import DataError
from tests.serving.services import model


@pytest.fixture
def learner():
    made = ChangeQueue(CurrentModel(ServedModel(model(), 1)), 3)
    yield made
    made.close()


def test_a_refusal_or_a_fault_stops_nothing(learner):
    refused = learner.submit("a", Mock(side_effect=DataError("no photo")))
    failed = learner.submit("b", Mock(side_effect=ZeroDivisionError))
    done = learner.submit("c", lambda job: (None, {"c": 1}))
    error, fault = (job.result.exception(60) for job in (refused, failed))
    assert (error.status, str(error)) == (422, "no photo")
    assert fault.status == 500
    assert "log" in str(fault)
    assert done.result.result(60) == {"c": 1}


def test_a_full_queue_is_refused_and_empties(learner):
    go_on = threading.Event()
    jobs = [
        learner.submit("wait", lambda job: (None, {"waited": go_on.wait(60)}))
        for _ in range(3)
    ]
    with pytest.raises(RequestError, match="3 changes are waiting already") as refusal:
        learner.submit("more", lambda job: (None, {}))
    assert refusal.value.status == 503
    go_on.set()
    assert all(job.result.result(60)["waited"] for job in jobs)
    assert learner.submit("more", lambda job: (None, {})).result.result(60) == {}
