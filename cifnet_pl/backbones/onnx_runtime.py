"""Run the graph of a frozen network in ONNX Runtime, on as many threads as torch has, without telemetry."""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CifnetError
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


_exporting = threading.Lock()


class NoGraph(CifnetError):
    """A network that cannot be used as a graph: it cannot be exported, or the graph computes something else."""


class Embedder(nn.Module):
    """The module that is exported: images (n, h, w, 3) uint8 → embeddings (n, d) float32.

    Args:
        name: the backbone's, for messages.
        identity: everything that the embeddings depend on, as text.
        network: normalised images (n, 3, h, w) → (n, d).
        scale, shift: (3, 1, 1) of the normalisation.
        side: of the images that the weights were made for, in pixels.
    """

    def __init__(self, name: str, identity: str, network: nn.Module, scale: Tensor, shift: Tensor, side: int):
        super().__init__()
        self.name, self.identity, self.side = name, identity, side
        self.network, self.scale, self.shift = network, scale, shift

    def forward(self, images: Tensor) -> Tensor:
        """Embed (n, h, w, 3) uint8 images."""
        x = images.permute(0, 3, 1, 2).float()
        return self.network(x * self.scale + self.shift).float()  # type: ignore[no-any-return]


@contextmanager
def alone_with_the_exporter() -> Iterator[None]:
    """Let no other thread export: torch's exporter keeps what it works on in globals, and fails where calls overlap."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with _exporting, warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # about torch's own internals
        yield


def exported(embedder: Embedder) -> bytes:
    """Export a network, for any number of photos, and for photos of any size if the network takes any.

    Args:
        embedder: the network; a copy is exported, as the exporter replaces parameters while another thread may embed.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: torch's exporter or ONNX cannot express a layer.
    """
    side, auto = embedder.side, torch.export.Dim.AUTO
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: auto, 2: auto},)
    try:
        with alone_with_the_exporter():
            embedder = copy.deepcopy(embedder).eval()
            program = torch.export.export(embedder, (example,), dynamic_shapes=shapes, strict=False)
            graph: Any = torch.onnx.export(
                program, (), input_names=["images"], output_names=["embeddings"], dynamo=True, verbose=False
            )
        return bytes(graph.model_proto.SerializeToString())
    except Exception as error:  # the exporter fails in its own way for every operation that it does not know
        cause = _first_cause(error)
        reason = f"{embedder.name} cannot be exported: {type(cause).__name__}: {one_line(cause, 160)}"
        raise NoGraph(reason) from error


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
