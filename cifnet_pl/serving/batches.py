"""Answer many requests at a time: photos that arrive within a short window are embedded together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from cifnet_pl.model.classifier import Classifier, Judged
from cifnet_pl.model.open_set import Verdict, able
from cifnet_pl.photos.reading import batch_size, cores
from cifnet_pl.serving.refusals import RequestError

AT_ONCE = 64
"""Photos that are answered together, at most: the first of them waits for all."""


@dataclass(frozen=True)
class Served:
    """A model that answers, and the number of its version; replaced as a whole, never changed.

    Attributes:
        model: the model.
        version: its number.
        unknown, coverage: as for :meth:`Classifier.judge`; ignored if the model cannot keep the promise.
    """

    model: Classifier
    version: int
    unknown: float | None = None
    coverage: float | None = None

    def judging(self) -> Judged:
        """Return a function from embeddings (n, d) and probabilities (n, C) to verdicts; prepared at the first call."""
        return self.model.judging(*able(self.model, self.unknown, self.coverage))


@dataclass(frozen=True)
class Scored:
    """The model's result for one photo.

    Attributes:
        served: the model and version that answered.
        z: (d,) float32 embedding.
        probabilities: (C,) float64, columns as the model's class names.
        verdict: whether it is of a known class, and the set of classes that it may be, if the model can tell.
    """

    served: Served
    z: torch.Tensor
    probabilities: torch.Tensor
    verdict: Verdict


class Batcher:
    """Decodes photos in threads, and embeds those that are ready together in other threads.

    A photo waits at most ``window`` seconds for others, and only while others are being decoded: a single client
    never waits. On a CPU one thread per core embeds. Networks that run side by side with one thread each are faster
    than one after the other with all threads, because those wait for each other at every layer, above all if other
    programs use the same cores.

    Args:
        served: returns the model that answers now.
        window: longest wait in seconds.
        waiting: largest number of photos under way; more are refused.
        workers: threads that embed; by default one per core, and one if the model is not on the CPU.
        observe: called with the number of photos of each batch.
    """

    def __init__(
        self,
        served: Callable[[], Served],
        window: float = 0.005,
        waiting: int = 2048,
        workers: int | None = None,
        observe: Callable[[int], object] = lambda size: None,
    ):
        self.served, self.window, self.waiting, self.observe = served, window, waiting, observe
        self._decoders = ThreadPoolExecutor(cores(), "decode")
        # Not a SimpleQueue: in CPython its `get(timeout=…)` can wait for ever when another thread takes the item.
        self._ready: queue.Queue[tuple[np.ndarray, Future[Scored]] | None] = queue.Queue()
        self._under_way = self._decoding = 0
        self._lock = threading.Lock()
        alone = served().model.device.type != "cpu"
        self._workers = workers or (1 if alone else cores())
        self._threads = [threading.Thread(target=self._run, name="answer", daemon=True) for _ in range(self._workers)]
        for thread in self._threads:
            thread.start()

    @property
    def under_way(self) -> int:
        """Photos that were taken in and not yet answered."""
        return self._under_way

    def submit(self, decode: Callable[[], np.ndarray]) -> Future[Scored]:
        """Answer one photo.

        Args:
            decode: returns the photo as (s, s, 3) uint8; called in another thread. Its errors are those of the future.

        Raises:
            RequestError: too many photos are waiting.
        """
        answer: Future[Scored] = Future()
        with self._lock:
            if self._under_way >= self.waiting:
                raise RequestError(503, "too many photos are waiting: try again in a few seconds")
            self._under_way += 1
            self._decoding += 1
        answer.add_done_callback(self._answered)
        self._decoders.submit(self._decode, decode, answer)
        return answer

    def close(self) -> None:
        """Answer everything that is under way, and stop."""
        self._decoders.shutdown()
        self._ready.put(None)
        for thread in self._threads:
            thread.join()

    def _answered(self, answer: Future[Scored]) -> None:
        with self._lock:
            self._under_way -= 1

    def _decode(self, decode: Callable[[], np.ndarray], answer: Future[Scored]) -> None:
        try:
            if answer.set_running_or_notify_cancel():
                self._ready.put((decode(), answer))
        except BaseException as error:  # whatever happened, someone waits for it
            answer.set_exception(error)
        finally:
            with self._lock:
                self._decoding -= 1

    def _run(self) -> None:
        while batch := self._next():
            self.observe(len(batch))
            self._answer(batch)
            del batch  # while this thread waits, it holds no model that is no longer served

    def _answer(self, batch: list[tuple[np.ndarray, Future[Scored]]]) -> None:
        try:
            served = self.served()
            with torch.inference_mode():
                z = served.model.embed(torch.from_numpy(np.stack([pixels for pixels, _ in batch])).permute(0, 3, 1, 2))
                shares = served.model.head.probabilities(z)
                verdicts = served.judging()(z, shares)
                shares = shares.cpu()
            for row, (_, answer) in enumerate(batch):
                answer.set_result(Scored(served, z[row], shares[row], verdicts[row]))
        except BaseException as error:  # whatever happened, someone waits for it
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)

    def _next(self) -> list[tuple[np.ndarray, Future[Scored]]]:
        """Return the next batch; empty when the thread is to end."""
        first = self._ready.get()
        if first is None:
            self._ready.put(None)  # for the next thread
            return []
        batch, until = [first], time.monotonic() + self.window
        largest = max(1, min(AT_ONCE, batch_size(self.served().model.image_size)) // self._workers)
        while len(batch) < largest:
            try:
                more = self._ready.get_nowait()
            except queue.Empty:
                left = until - time.monotonic()
                if not self._decoding or left <= 0:
                    break
                try:
                    more = self._ready.get(timeout=left)
                except queue.Empty:
                    break
            if more is None:
                self._ready.put(None)
                break
            batch.append(more)
        return batch
