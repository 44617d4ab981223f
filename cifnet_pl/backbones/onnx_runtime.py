"""Run an ONNX graph on a CPU: about twice as fast as torch for small networks."""

from __future__ import annotations

import logging
import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.utilities.text import one_line

log = logging.getLogger(__name__)

TELEMETRY_SWITCH = "ORT_DISABLE_TELEMETRY"
"""Environment variable that ONNX Runtime reads when it is imported."""

PIXELS_PER_PIECE = 2**17
"""Pixels that a thread embeds at once, such as 8 images of 128 by 128; of larger images, one.

The output of a layer then stays in the processor's caches, and needs little memory.
"""

PIXELS_FOR_SHARED_WORK = 2**18
"""Pixels of an image above which all threads embed the same one, as each image needs memory."""


def import_onnxruntime() -> Any:
    """Import ONNX Runtime with its telemetry switched off.

    Its official builds store facts about the machine in the user's cache folder and send them
    unless ``ORT_DISABLE_TELEMETRY`` is set. A value that the user has set stays.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault(TELEMETRY_SWITCH, "1")
    import onnxruntime

    return onnxruntime


class Runtime:
    """A graph in ONNX Runtime on the CPU, with as many threads as torch has.

    A batch is cut into pieces, and each thread embeds pieces of its own. Threads that shared the
    work of every layer would wait for each other after each layer, and all of them for one whose
    core another program has taken. Where there are fewer images than threads, or large images, all
    threads work on the same images.

    The same images with the same number of threads give the same bits. With another number of
    threads EfficientNet-Lite0 gives the same bits, too; networks with products of other shapes
    (some transformers) differ by 3e-7 of the largest value.

    Args:
        graph: content of an ONNX file.

    Raises:
        Exception: ONNX Runtime refuses the graph, with an error class of its own.
    """

    def __init__(self, graph: bytes):
        self._graph = graph
        self._sessions: dict[int, Any] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._pool_threads = 0
        self._lock = threading.Lock()
        self._has_failed = False
        self._session(1)

    def __deepcopy__(self, memo: Any) -> Runtime:
        return self  # a session cannot be copied, and does not change

    def _session(self, threads: int) -> Any:
        """Return the session in which ``threads`` embed the same images.

        Its threads stop waiting for work as soon as a call returns, because other processes may be
        decoding images on the same cores. Each session holds the weights, so there are at most two:
        of one thread, and of the current number of threads.
        """
        with self._lock:
            if threads not in self._sessions:
                for other in [count for count in self._sessions if count != 1]:
                    del self._sessions[other]
                self._sessions[threads] = self._new_session(threads)
            return self._sessions[threads]

    def _new_session(self, threads: int) -> Any:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3  # errors only
        return onnxruntime.InferenceSession(
            self._graph, options, providers=["CPUExecutionProvider"]
        )

    def _threads(self, count: int) -> ThreadPoolExecutor:
        """Return threads that stay: starting them for every batch takes a twentieth of its time."""
        with self._lock:
            if self._pool is None or self._pool_threads != count:
                self._pool = ThreadPoolExecutor(count, "embed")
                self._pool_threads = count
            return self._pool

    def __call__(self, images: Tensor) -> Tensor | None:
        """Embed images.

        Args:
            images: (n, 3, h, w) uint8.

        Returns:
            (n, d) float32; None where the graph cannot take images of this size.
        """
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        threads = torch.get_num_threads()
        height, width = images.shape[2:]
        apart = 1 < threads <= len(pixels) and height * width <= PIXELS_FOR_SHARED_WORK
        try:
            if apart:
                z = self._embed_apart(pixels, threads)
            else:
                z = self._embed_together(pixels, threads)
        except Exception as error:  # its own kinds of error, which do not share a base
            if not self._has_failed:
                log.warning(
                    "ONNX Runtime refuses images of %dx%d, torch embeds them: %s",
                    height,
                    width,
                    one_line(error),
                )
            self._has_failed = True
            return None
        return torch.from_numpy(z)

    def _embed_together(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels; all threads work on the same piece."""
        session = self._session(threads)
        size = _images_per_piece(pixels, PIXELS_PER_PIECE * threads)
        pieces = np.split(pixels, range(size, len(pixels), size))
        return np.concatenate([_embedded(session, piece) for piece in pieces])

    def _embed_apart(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels; each thread works on a piece of its own."""
        session = self._session(1)
        ends = piece_ends(
            len(pixels), _images_per_piece(pixels, PIXELS_PER_PIECE), threads
        )
        pieces = np.split(pixels, ends)
        embeddings = self._threads(threads).map(partial(_embedded, session), pieces)
        return np.concatenate(list(embeddings))


def piece_ends(count: int, largest: int, threads: int) -> list[int]:
    """Cut images into pieces of decreasing size, so that all threads finish at about the same time.

    Each piece is half of one thread's equal share of the rest (guided self-scheduling,
    Polychronopoulos and Kuck, 1987).

    Args:
        count: number of images.
        largest: number of images of a piece, at most.
        threads: number of threads that take the pieces in turn.

    Returns:
        The position of the first image of each piece but the first one.

    Example:
        >>> piece_ends(20, 4, 2)
        [4, 8, 11, 14, 16, 17, 18, 19]
    """
    ends = []
    start = 0
    while start < count:
        half_share = math.ceil((count - start) / (2 * threads))
        start += min(largest, half_share)
        ends.append(start)
    return ends[:-1]


def _images_per_piece(pixels: np.ndarray, limit: int) -> int:
    """Return how many images of (n, h, w, 3) have at most ``limit`` pixels together; at least 1."""
    pixels_per_image: int = math.prod(pixels.shape[1:3])
    return max(1, limit // pixels_per_image)


def _embedded(session: Any, pixels: np.ndarray) -> np.ndarray:
    z: np.ndarray = session.run(None, {"images": pixels})[0]
    return z
