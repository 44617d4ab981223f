"""Photos that are asked about at the same time are embedded together, and each gets its own answer."""

import sys
import threading
import time
from concurrent.futures import Future, wait

import numpy as np
import pytest
import torch
from PIL import Image

from cifnet_pl.serving.batches import Batcher, Scored, Served
from cifnet_pl.serving.refusals import RequestError
from tests.serving.services import SIDE, model, pixels

PHOTOS = [
    np.asarray(Image.fromarray(pixels(name, i)).resize((SIDE, SIDE))) for i in range(6) for name in ("red", "green")
]


@pytest.fixture(scope="module")
def served() -> Served:
    return Served(model(), 3)


def test_each_photo_gets_the_models_answer(served: Served) -> None:
    batcher = Batcher(lambda: served)
    answers = [batcher.submit(lambda photo=photo: photo) for photo in PHOTOS]
    scored = [answer.result(30) for answer in answers]
    batcher.close()
    expected = served.model.probabilities(torch.from_numpy(np.stack(PHOTOS)).permute(0, 3, 1, 2))
    assert torch.allclose(torch.stack([one.probabilities for one in scored]), expected.cpu(), atol=1e-6)
    assert {one.served.version for one in scored} == {3}
    assert batcher.under_way == 0


def test_photos_that_are_decoded_meanwhile_share_a_batch(served: Served) -> None:
    """The window is long, and all wait until the last one is decoded."""
    sizes: list[int] = []
    start = threading.Event()
    batcher = Batcher(lambda: served, window=30, workers=1, observe=sizes.append)

    def decode(photo: np.ndarray) -> np.ndarray:
        start.wait(30)
        return photo

    answers = [batcher.submit(lambda photo=photo: decode(photo)) for photo in PHOTOS]
    start.set()
    for answer in answers:
        answer.result(30)
    batcher.close()
    assert sum(sizes) == len(PHOTOS)
    assert len(sizes) < len(PHOTOS)


def test_an_error_meets_only_its_photo(served: Served) -> None:
    def broken() -> np.ndarray:
        raise ValueError("no photo")

    batcher = Batcher(lambda: served)
    bad, good = batcher.submit(broken), batcher.submit(lambda: PHOTOS[0])
    assert good.result(30).probabilities.argmax() == 0
    with pytest.raises(ValueError, match="no photo"):
        bad.result(30)
    batcher.close()


def test_too_many_are_refused_and_those_taken_in_are_answered(served: Served) -> None:
    start = threading.Event()

    def decode() -> np.ndarray:
        start.wait(30)
        return PHOTOS[1]

    batcher = Batcher(lambda: served, waiting=2)
    answers = [batcher.submit(decode) for _ in range(2)]
    with pytest.raises(RequestError, match="too many photos are waiting"):
        batcher.submit(decode)
    start.set()
    batcher.close()
    assert [int(answer.result(0).probabilities.argmax()) for answer in answers] == [1, 1]


def test_threads_that_wait_a_moment_for_more_photos_do_not_wait_for_ever(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A photo that one thread waits for is often taken by the other."""
    batcher = Batcher(lambda: served, window=2e-5, workers=2)
    monkeypatch.setattr(batcher, "_answer", lambda batch: [answer.set_result(served) for _, answer in batch])
    with batcher._lock:
        batcher._decoding += 1  # as if another photo were being decoded all the time
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            answers: list[Future[Scored]] = [Future() for _ in range(1000)]
            for answer in answers:
                batcher._ready.put((PHOTOS[0], answer))
                time.sleep(0)  # give way to the threads that wait
            assert not wait(answers, 10).not_done
    finally:
        sys.setswitchinterval(interval)
    batcher.close()
