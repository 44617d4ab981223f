"""Images that are asked about at the same time are embedded together; each gets its own answer."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from cifnet_pl.serving import answering as answering_module
from cifnet_pl.serving.answering import Answering, ServiceOptions
from tests.serving.services import PATIENCE, becomes, image, model

IMAGES = [image(name, number) for number in range(6) for name in ("red", "green")]


@pytest.fixture
def answering(monkeypatch):
    """Two threads that decode and two that embed."""
    monkeypatch.setattr("cifnet_pl.serving.answering.decoding_cores", lambda: 2)
    made = Answering(model(), 3, ServiceOptions())
    yield made
    made.close()


def test_two_batches_at_a_time_and_what_comes_meanwhile_is_one(answering, watch):
    """Both threads embed an image when eight more come; these are embedded together."""
    sizes = []
    started = threading.Semaphore(0)
    go_on = threading.Event()

    def wait(images):
        sizes.append(len(images))
        started.release()
        assert go_on.wait(PATIENCE)

    watch(answering.served.model, "embed", wait)
    first = []
    for content in IMAGES[:2]:
        first.append(answering.submit(content))
        assert started.acquire(timeout=PATIENCE)
    later = [answering.submit(content) for content in IMAGES[2:10]]
    assert becomes(lambda: answering._asked.qsize() == len(later))
    go_on.set()
    results = [answer.result() for answer in first + later]
    assert [int(one.probabilities.argmax()) for one in results] == [0, 1] * 5
    assert {one.served.version for one in results} == {3}
    assert sizes[:2] == [1, 1]
    assert len(sizes) < 10


def test_a_small_request_does_not_wait_for_a_large_one(server, watch):
    """Its image comes in turn, though it waits only once the large request has begun."""
    large, small = IMAGES[:2]
    go_on = threading.Event()
    decoding = server.app.state.decoding
    count = decoding._value + 3 * answering_module.LARGEST_BATCH
    decoded = []

    def slow_down(content, *_):
        assert go_on.wait(PATIENCE)
        decoded.append(content)
        time.sleep(0.02)

    def ask(content, count):
        files = [("files", ("a.png", content))] * count
        return httpx.post(f"{server.url}/classify", files=files, timeout=PATIENCE)

    watch(answering_module, "decoded", slow_down)
    with ThreadPoolExecutor(2) as pool:
        whole = pool.submit(ask, large, count)
        assert becomes(lambda: len(decoding._waiters or ()) == 1)
        part = pool.submit(ask, small, 1)
        assert becomes(lambda: len(decoding._waiters or ()) == 2)
        go_on.set()
        assert part.result().status_code == 200
        assert decoded.count(large) < count
        assert len(whole.result().json()["images"]) == count


def test_all_answers_of_a_request_are_of_the_version_that_it_names(http, monkeypatch):
    """An image that another version answered, as a change was stored meanwhile, too."""
    answering = http.app.app.state.service.answering
    renamed = model()
    renamed.rename("red", "crimson")
    other = answering_module.ServedModel(renamed, 2, ServiceOptions())
    submit = answering.submit

    def answered_by_another(content):
        answer = Future()
        z = submit(content).result(PATIENCE).z
        answer.set_result(other.scored(z[None])[0])
        return answer

    monkeypatch.setattr(answering, "submit", answered_by_another)
    files = [("files", ("a.png", content)) for content in IMAGES[:2]]
    found = http.post("/classify", files=files).json()
    names = [one["classes"][0]["name"] for one in found["images"]]
    assert (found["version"], names) == (1, ["red", "green"])


def test_who_goes_while_the_image_waits_stops_no_other(answering):
    """A future that is cancelled is left out of its batch."""
    gone, other = Future(), Future()
    for content, answer in zip(IMAGES, (gone, other), strict=False):
        answering._asked.put((content, answer))
    gone.cancel()
    answering._answer_batch()
    assert int(other.result(0).probabilities.argmax()) == 1
