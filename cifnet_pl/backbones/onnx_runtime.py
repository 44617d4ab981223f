"""Run the graph of a frozen network in ONNX Runtime, on as many threads as torch has, without telemetry."""

from __future__ import annotations

import logging
import math
import os
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
"""Pixels that a thread takes at once, at most, such as 8 photos of 128 by 128.

What a layer leaves for the next one then stays in the processor's caches, and needs little memory.
"""


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


class Runtime:
    """A graph in ONNX Runtime on the CPU, with as many threads as torch has.

    Many photos are cut into pieces, and each thread computes pieces of its own. Threads that share the work of every
    layer would wait for each other after it, and all of them for one whose core another program has taken. Only where
    there are fewer photos than threads, all threads work on the same ones. The embeddings are the same bits either way.

    Args:
        graph: content of an ONNX file.
    """

    def __init__(self, graph: bytes):
        self._graph = graph
        self._sessions: dict[int, Any] = {}
        self._failed = False
        self._session(torch.get_num_threads())  # a graph that the runtime refuses is refused here

    def __deepcopy__(self, memo: Any) -> Runtime:
        return self  # a session cannot be copied, and holds nothing that changes

    def _session(self, threads: int) -> Any:
        """Return the session in which ``threads`` compute the same photos.

        Its threads stop waiting for work as soon as a call returns, because other processes may be decoding photos on
        the same cores.
        """
        if threads not in self._sessions:
            onnxruntime = import_onnxruntime()
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
            options.add_session_config_entry("session.force_spinning_stop", "1")
            options.log_severity_level = 3  # errors only
            self._sessions[threads] = onnxruntime.InferenceSession(
                self._graph, options, providers=["CPUExecutionProvider"]
            )
        return self._sessions[threads]

    def __call__(self, images: Tensor) -> Tensor | None:
        """Embed images.

        Args:
            images: (n, 3, h, w) uint8.

        Returns:
            (n, d) float32; None where the graph cannot take images of this side.
        """
        pixels, threads = images.permute(0, 2, 3, 1).contiguous().numpy(), torch.get_num_threads()
        try:
            z = self._together(pixels, threads) if len(pixels) < threads else self._in_pieces(pixels, threads)
        except Exception as error:  # its own kinds of error, which do not share a base
            if not self._failed:
                log.warning(
                    "ONNX Runtime refuses images of %sx%s, torch is asked: %s", *images.shape[2:], one_line(error)
                )
            self._failed = True
            return None
        return torch.from_numpy(z)

    def _together(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, all threads the same ones."""
        return _embedded(self._session(threads), pixels)

    def _in_pieces(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, each thread other ones."""
        pieces = np.split(pixels, piece_ends(len(pixels), PIECE // math.prod(pixels.shape[1:3]), threads))
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(partial(_embedded, self._session(1)), pieces)))


def piece_ends(count: int, most: int, threads: int) -> list[int]:
    """Cut photos into pieces that become smaller, so that no thread is busy for long after the others have finished.

    Each piece has a share of what is left, half of what each thread would get (guided self-scheduling, Polychronopoulos
    and Kuck, 1987).

    Args:
        count: number of photos.
        most: photos of a piece, at most; 0 is taken as 1.
        threads: number of threads that take the pieces in turn.

    Returns:
        The position of the first photo of each piece but the first one.

    Example:
        >>> piece_ends(20, 4, 2)
        [4, 8, 11, 14, 16, 17, 18, 19]
    """
    ends = [0]
    while ends[-1] < count:
        ends.append(ends[-1] + min(max(1, most), math.ceil((count - ends[-1]) / (2 * threads))))
    return ends[1:-1]


def _embedded(session: Any, pixels: np.ndarray) -> np.ndarray:
    z: np.ndarray = session.run(None, {"images": pixels})[0]
    return z
