"""Answers to many requests at a time: photos that arrive within a short window go through the network together."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from cifnet_pl.data.photos import batch_size
from cifnet_pl.data.workers import cores
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.refusals import RequestError


@dataclass(frozen=True)
class Served:
    """A model that answers, and the number of its version; replaced as a whole, never changed."""

    model: Classifier
    version: int


@dataclass(frozen=True)
class Scored:
    """What the model says of one photo.

    Attributes:
        served: the model and version that answered.
        z: (d,) float32 embedding.
        probabilities: (C,) float64, columns as the model's class names.
    """

    served: Served
    z: torch.Tensor
    probabilities: torch.Tensor


class Batcher:
    """Decodes photos in threads and embeds those that are ready together in one more thread.

    A photo waits at most ``window`` seconds for others, and only while others are being decoded: a single client
    never waits.

    Args:
        served: () → the model that answers now.
        window: longest wait in seconds.
        waiting: largest number of photos under way; more are refused.
        observe: called with the number of photos of each batch.
    """

    def __init__(
        self,
        served: Callable[[], Served],
        window: float = 0.005,
        waiting: int = 2048,
        observe: Callable[[int], object] = lambda size: None,
    ):
        self.served, self.window, self.waiting, self.observe = served, window, waiting, observe
        self._decoders = ThreadPoolExecutor(cores(), "decode")
        self._ready: queue.SimpleQueue[tuple[np.ndarray, Future[Scored]] | None] = queue.SimpleQueue()
        self._under_way = self._decoding = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="answer", daemon=True)
        self._thread.start()

    @property
    def under_way(self) -> int:
        """Photos that were taken in and not yet answered."""
        return self._under_way

    def submit(self, decode: Callable[[], np.ndarray]) -> Future[Scored]:
        """Answer one photo.

        Args:
            decode: gives the photo as (s, s, 3) uint8; called in another thread. What it raises, the future raises.

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
        """Answer what is under way and stop."""
        self._decoders.shutdown()
        self._ready.put(None)
        self._thread.join()

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
            try:
                served = self.served()
                with torch.inference_mode():
                    z = served.model.embed(
                        torch.from_numpy(np.stack([pixels for pixels, _ in batch])).permute(0, 3, 1, 2)
                    )
                    shares = served.model.head.probabilities(z).cpu()
                for row, (_, answer) in enumerate(batch):
                    answer.set_result(Scored(served, z[row], shares[row]))
            except BaseException as error:  # whatever happened, someone waits for it
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)

    def _next(self) -> list[tuple[np.ndarray, Future[Scored]]]:
        """The next batch; empty when this is to end."""
        first = self._ready.get()
        if first is None:
            return []
        batch, until = [first], time.monotonic() + self.window
        largest = batch_size(self.served().model.image_size)
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
