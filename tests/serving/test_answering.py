"""Photos that are asked about at the same time are embedded together, and each gets its own
answer.
"""

import threading
import time

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.serving.answering import Answering, Served
from cifnet_pl.serving.refusals import RequestError
from tests.serving.services import SIDE, model, pixels

SQUARES = [
    Image.fromarray(pixels(name, i)).resize((SIDE, SIDE))
    for i in range(6)
    for name in ("red", "green")
]
IMAGES = [np.asarray(square) for square in SQUARES]


@pytest.fixture
def sizes():
    return []


@pytest.fixture
def answering(sizes, monkeypatch):
    """Two threads that decode and two that embed; the sizes of their batches are noted."""
    monkeypatch.setattr("cifnet_pl.serving.answering.cores", lambda: 2)
    served = Served(model(), 3)
    embed = served.model.embed
    served.model.embed = lambda images: (sizes.append(len(images)), embed(images))[1]
    made = Answering(lambda: served, 12)
    yield made
    made.close()


def test_two_batches_at_a_time_and_what_comes_meanwhile_is_one(answering, sizes):
    """Both threads embed a photo when eight more come: these wait for them, and are embedded
    together.
    """
    own = answering.served().model
    together = threading.Barrier(3)
    go_on = threading.Event()

    def slow(images):
        sizes.append(len(images))
        if len(images) == 1 and not go_on.is_set():
            together.wait(30)
            go_on.wait(30)
        return type(own).embed(own, images)

    own.embed = slow
    first = answering.submit(lambda: IMAGES[0])
    while not sizes:
        time.sleep(0.01)
    second = answering.submit(lambda: IMAGES[1])
    together.wait(30)
    later = []
    decoded = threading.Semaphore(0)
    for image in IMAGES[2:10]:
        later.append(answering.submit(lambda image=image: (decoded.release(), image)[1]))
    for _ in later:
        decoded.acquire(timeout=30)
    go_on.set()
    labels = [int(answer.result(30).probabilities.argmax()) for answer in (first, second, *later)]
    assert labels == [0, 1] * 5
    assert sizes[:2] == [1, 1]
    assert len(sizes) < 10


def test_too_many_are_refused_and_those_taken_in_are_answered(answering):
    start = threading.Event()
    answers = [answering.submit(lambda: (start.wait(30), IMAGES[1])[1]) for _ in range(12)]
    with pytest.raises(RequestError) as refusal:
        answering.submit(lambda: IMAGES[1])
    assert refusal.value.status == 503
    start.set()
    scored = [answer.result(30) for answer in answers]
    assert {(int(one.probabilities.argmax()), one.served.version) for one in scored} == {(1, 3)}
    answering.close()
    assert answering.under_way == 0
