"""Images that are asked about at the same time are embedded together; each gets its own answer."""

import threading
import time
from collections.abc import Iterator

import pytest
import torch

from cifnet_pl.serving.answering import Answering, CurrentModel, ServedModel
from cifnet_pl.serving.gate import Limits
from cifnet_pl.serving.refusals import RequestError
from tests.serving.services import image, model

IMAGES = [image(name, number) for number in range(6) for name in ("red", "green")]


class Recorder:
    """Records the sizes of embedded batches; batches of one image wait for ``go_on`` if it is set.

    Attributes:
        sizes: of the batches.
        started: released whenever a batch of one image waits.
        go_on: lets them go on; None where none waits.
    """

    def __init__(self, served: ServedModel):
        self.sizes: list[int] = []
        self.started = threading.Semaphore(0)
        self.go_on: threading.Event | None = None
        self._embed = served.model.embed
        served.model.embed = self.embed

    def embed(self, images: torch.Tensor) -> torch.Tensor:
        """Embed, and record it."""
        self.sizes.append(len(images))
        if self.go_on is not None and not self.go_on.is_set():
            self.started.release()
            self.go_on.wait(120)
        return self._embed(images)


@pytest.fixture
def answering(monkeypatch) -> Iterator[Answering]:
    """Two threads that decode and two that embed."""
    monkeypatch.setattr("cifnet_pl.serving.answering.decoding_cores", lambda: 2)
    served = ServedModel(model(), 3)
    made = Answering(CurrentModel(served), Limits(), 12)
    yield made
    made.close()


def test_two_batches_at_a_time_and_what_comes_meanwhile_is_one(answering):
    """Both threads embed an image when eight more come; these are embedded together."""
    recorder = Recorder(answering.current.served)
    recorder.go_on = threading.Event()
    first = answering.submit(IMAGES[0])
    assert recorder.started.acquire(timeout=60)
    second = answering.submit(IMAGES[1])
    assert recorder.started.acquire(timeout=60)
    later = [answering.submit(content) for content in IMAGES[2:10]]
    while answering._ready.qsize() < len(later):
        time.sleep(0.01)
    recorder.go_on.set()
    labels = [
        int(answer.result(60).probabilities.argmax())
        for answer in (first, second, *later)
    ]
    assert labels == [0, 1] * 5
    assert recorder.sizes[:2] == [1, 1]
    assert len(recorder.sizes) < 10


def test_too_many_are_refused_and_those_taken_in_are_answered(answering):
    recorder = Recorder(answering.current.served)
    recorder.go_on = threading.Event()
    answers = [answering.submit(IMAGES[1]) for _ in range(12)]
    with pytest.raises(RequestError) as refusal:
        answering.submit(IMAGES[1])
    assert refusal.value.status == 503
    recorder.go_on.set()
    scored = [answer.result(60) for answer in answers]
    assert {
        (int(one.probabilities.argmax()), one.served.version) for one in scored
    } == {(1, 3)}
    answering.close()
    assert answering.under_way == 0
