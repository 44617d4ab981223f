"""Answers side by side, jobs one after another: order, refusals, faults of ours, and queues that are full."""

import threading

import numpy as np
import pytest
import torch
from PIL import Image

from cifnet_pl.serving.learner import Learner, Served
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import DataError
from tests.serving.services import SIDE, model, pixels

PHOTOS = [
    np.asarray(Image.fromarray(pixels(name, i)).resize((SIDE, SIDE))) for i in range(6) for name in ("red", "green")
]


@pytest.fixture
def learner():
    made = Learner(Served(model(), 1), waiting=3, photos=20)
    yield made
    made.close()


def fails(error):
    def work(job):
        raise error

    return work


def test_a_refusal_or_a_fault_stops_nothing(learner):
    refused, failed = learner.submit("a", fails(DataError("no photo"))), learner.submit("b", fails(ZeroDivisionError()))
    done = learner.submit("c", lambda job: (None, {"c": 1}))
    error = refused.result.exception(10)
    assert isinstance(error, RequestError)
    assert (error.status, str(error)) == (422, "no photo")
    fault = failed.result.exception(10)
    assert isinstance(fault, RequestError)
    assert (fault.status, str(fault)) == (500, "the server failed; its log says why")
    assert done.result.result(10) == {"c": 1}


def test_a_full_queue_is_refused_and_empties(learner):
    go_on = threading.Event()
    jobs = [learner.submit("wait", lambda job: (None, {"waited": go_on.wait(10)})) for _ in range(3)]
    with pytest.raises(RequestError, match="3 changes are waiting already") as refusal:
        learner.submit("more", lambda job: (None, {}))
    assert refusal.value.status == 503
    go_on.set()
    assert all(job.result.result(10)["waited"] for job in jobs)
    assert learner.submit("more", lambda job: (None, {})).result.result(10) == {}


def test_served_is_replaced_as_a_whole(learner):
    new = Served(model(("a", "b", "c")), 2)
    learner.submit("change", lambda job: (new, {})).result.result(10)
    assert learner.served is new


def test_only_jobs_that_were_asked_for_are_known(learner):
    job = learner.submit("a", lambda job: (None, {}))
    assert learner.job(job.key) is job
    with pytest.raises(RequestError, match="no such job"):
        learner.job("x")


def test_each_photo_gets_the_models_answer(learner):
    scored = [learner.score(lambda photo=photo: photo).result(30) for photo in PHOTOS]
    expected = model().probabilities(torch.from_numpy(np.stack(PHOTOS)).permute(0, 3, 1, 2))
    assert torch.allclose(torch.stack([one.probabilities for one in scored]), expected.cpu(), atol=1e-6)
    assert {one.served.version for one in scored} == {1}


def test_an_error_meets_only_its_photo(learner):
    def broken():
        raise ValueError("no photo")

    bad, good = learner.score(broken), learner.score(lambda: PHOTOS[0])
    assert good.result(30).probabilities.argmax() == 0
    with pytest.raises(ValueError, match="no photo"):
        bad.result(30)


def test_cores_answer_side_by_side(learner, monkeypatch):
    """Two photos are embedded at the same time, and each gets its own answer."""
    monkeypatch.setattr("cifnet_pl.serving.learner.cores", lambda: 2)
    made, together = model(), threading.Barrier(2)
    embed = made.embed
    made.embed = lambda images: (together.wait(30), embed(images))[1]
    both = Learner(Served(made, 1))
    answers = [both.score(lambda photo=photo: photo) for photo in PHOTOS[:2]]
    assert [int(answer.result(30).probabilities.argmax()) for answer in answers] == [0, 1]
    both.close()


def test_too_many_are_refused_and_those_taken_in_are_answered(learner):
    start = threading.Event()
    answers = [learner.score(lambda: (start.wait(30), PHOTOS[1])[1]) for _ in range(20)]
    with pytest.raises(RequestError, match="too many photos are waiting") as refusal:
        learner.score(lambda: PHOTOS[1])
    assert refusal.value.status == 503
    start.set()
    assert [int(answer.result(30).probabilities.argmax()) for answer in answers] == [1] * 20
    assert learner.under_way <= 1
