"""Images that are asked about at the same time are embedded together; each gets its own answer."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from cifnet_pl.serving.answering import Answering, ServiceOptions
from tests.serving.services import image, model

IMAGES = [image(name, number) for number in range(6) for name in ("red", "green")]


@pytest.fixture
def answering(monkeypatch) -> Iterator[Answering]:
    """Two threads that decode and two that embed."""
    monkeypatch.setattr("cifnet_pl.serving.answering.decoding_cores", lambda: 2)
    made = Answering(model(), 3, ServiceOptions())
    yield made
    made.close()


def test_two_batches_at_a_time_and_what_comes_meanwhile_is_one(answering):
    """Both threads embed an image when eight more come; these are embedded together."""
    sizes: list[int] = []
    started = threading.Semaphore(0)
    go_on = threading.Event()
    embed = answering.served.model.embed

    def slow(images: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        started.release()
        assert go_on.wait(120)
        return embed(images)

    answering.served.model.embed = slow
    first = []
    for content in IMAGES[:2]:
        first.append(answering.submit(content))
        assert started.acquire(timeout=60)
    later = [answering.submit(content) for content in IMAGES[2:10]]
    while answering._asked.qsize() < len(later):
        time.sleep(0.01)
    go_on.set()
    results = [answer.result(60) for answer in first + later]
    assert [int(one.probabilities.argmax()) for one in results] == [0, 1] * 5
    assert {one.served.version for one in results} == {3}
    assert sizes[:2] == [1, 1]
    assert len(sizes) < 10
