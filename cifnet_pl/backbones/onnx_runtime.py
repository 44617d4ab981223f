"""Run the graph of a frozen network in ONNX Runtime, on as many threads as torch has, without telemetry."""

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

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"
"""Environment variable that ONNX Runtime reads when it is imported."""

PIECE = 2**17
"""Pixels that a thread takes at once, such as 8 photos of 128 by 128; of larger photos, one.

What a layer leaves for the next one then stays in the processor's caches, and needs little memory.
"""

LARGE = 2**18
"""Pixels of a photo above which all threads compute the same one: every photo that is under way needs memory."""


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, which would otherwise note facts about the machine in the user's cache folder and send them.

    Its official builds do so unless ``ORT_DISABLE_TELEMETRY`` is set. A value that the user has given it stays.

    Returns:
        The module.

    Raises:
        ImportError: it is not installed.
    """
    os.environ.setdefault(TELEMETRY_OFF, "1")
    import onnxruntime

    return onnxruntime


class Refused(Exception):
    """ONNX Runtime does not compute something; the cause is its own error."""


class Runtime:
    """A graph in ONNX Runtime on the CPU, with as many threads as torch has.

    Many photos are cut into pieces, and each thread computes pieces of its own. Threads that share the work of every
    layer would wait for each other after it, and all of them for one whose core another program has taken. Where there
    are fewer photos than threads, or large ones, all threads work on the same photos.

    The same photos with the same number of threads give the same bits. With another number, EfficientNet-Lite0 gives
    the same ones; networks with products of other shapes (some transformers) differ by 3e-7 of the largest number.

    Args:
        graph: content of an ONNX file.

    Raises:
        Exception: of ONNX Runtime, which refuses the graph.
    """

    def __init__(self, graph: bytes):
        self._graph = graph
        self._sessions: dict[int, Any] = {}
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._making = threading.Lock()
        self._failed = False
        self._session(1)

    def __deepcopy__(self, memo: Any) -> Runtime:
        return self  # a session cannot be copied, and holds nothing that changes

    def _session(self, threads: int) -> Any:
        """Return the session in which ``threads`` compute the same photos.

        Its threads stop waiting for work as soon as a call returns, because other processes may be decoding photos on
        the same cores. Each session holds the weights: those of numbers of threads that torch had before are dropped.
        """
        with self._making:
            if threads not in self._sessions:
                onnxruntime = import_onnxruntime()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
                options.add_session_config_entry("session.force_spinning_stop", "1")
                options.log_severity_level = 3  # errors only
                made = onnxruntime.InferenceSession(self._graph, options, providers=["CPUExecutionProvider"])
                self._sessions = {n: session for n, session in self._sessions.items() if n == 1} | {threads: made}
            return self._sessions[threads]

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Return threads that wait for pieces; to start them for every batch takes a twentieth of its time."""
        with self._making:
            if threads not in self._pools:
                self._pools = {threads: ThreadPoolExecutor(threads, "embed")}
            return self._pools[threads]

    def __call__(self, images: Tensor) -> Tensor | None:
        """Embed images.

        Args:
            images: (n, 3, h, w) uint8.

        Returns:
            (n, d) float32; None where the graph cannot take images of this side.
        """
        pixels, threads = images.permute(0, 2, 3, 1).contiguous().numpy(), torch.get_num_threads()
        apart = 1 < threads <= len(pixels) and math.prod(pixels.shape[1:3]) <= LARGE
        try:
            z = self._apart(pixels, threads) if apart else self._together(pixels, threads)
        except Refused as error:
            if not self._failed:
                log.warning(
                    "ONNX Runtime refuses images of %sx%s, torch is asked: %s",
                    *images.shape[2:],
                    one_line(error.__cause__ or error),
                )
            self._failed = True
            return None
        return torch.from_numpy(z)

    def _together(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, all threads the same ones, as many at once as are good for the caches."""
        session, size = self._session(threads), _photos(pixels, PIECE * threads)
        pieces = np.split(pixels, range(size, len(pixels), size))
        return np.concatenate([_embedded(session, piece) for piece in pieces])

    def _apart(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, each thread other ones."""
        session, ends = self._session(1), piece_ends(len(pixels), _photos(pixels, PIECE), threads)
        pieces = self._pool(threads).map(partial(_embedded, session), np.split(pixels, ends))
        return np.concatenate(list(pieces))


def piece_ends(count: int, most: int, threads: int) -> list[int]:
    """Cut photos into pieces that become smaller, so that no thread is busy for long after the others have finished.

    Each piece is half of one thread's equal share of the rest (guided self-scheduling, Polychronopoulos and Kuck,
    1987).

    Args:
        count: number of photos.
        most: photos of a piece, at most.
        threads: number of threads that take the pieces in turn.

    Returns:
        The position of the first photo of each piece but the first one.

    Example:
        >>> piece_ends(20, 4, 2)
        [4, 8, 11, 14, 16, 17, 18, 19]
    """
    ends = [0]
    while ends[-1] < count:
        ends.append(ends[-1] + min(most, math.ceil((count - ends[-1]) / (2 * threads))))
    return ends[1:-1]


def _photos(pixels: np.ndarray, most: int) -> int:
    """Return how many photos of (n, h, w, 3) have at most ``most`` pixels together; at least 1."""
    return max(1, most // math.prod(pixels.shape[1:3]))


def _embedded(session: Any, pixels: np.ndarray) -> np.ndarray:
    try:
        z: np.ndarray = session.run(None, {"images": pixels})[0]
    except Exception as error:  # its own kinds of error, which do not share a base
        raise Refused from error
    return z
