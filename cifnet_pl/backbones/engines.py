"""Run a frozen network by torch, or by ONNX Runtime, about twice as fast for small networks on a
CPU.

Both compute in float32. Their embeddings agree to 1e-4 of the largest number, which is checked on
images when a graph is made (:func:`check_graph`); measured, to 2e-6. Each process compares them on
one image again.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import math
import os
import platform
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CifnetError, UsageError, check_choice
from cifnet_pl.utilities.files import write_bytes
from cifnet_pl.utilities.text import number_of, one_line

log = logging.getLogger(__name__)

TELEMETRY_OFF = "ORT_DISABLE_TELEMETRY"
"""Environment variable that ONNX Runtime reads when it is imported."""

PIECE = 2**17
"""Pixels that a thread takes at once, such as 8 images of 128 by 128; of larger images, one.

What a layer leaves for the next one then stays in the processor's caches, and needs little memory.
"""

LARGE = 2**18
"""Pixels of an image above which all threads compute the same one: every image that is under way
needs memory.
"""


def import_onnxruntime() -> Any:
    """Import ONNX Runtime, which would otherwise note facts about the machine in the user's cache
    folder and send them.

    Its official builds do so unless ``ORT_DISABLE_TELEMETRY`` is set. A value that the user has
    given it stays.

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

    Many images are cut into pieces, and each thread computes pieces of its own. Threads that share
    the work of every layer would wait for each other after it, and all of them for one whose core
    another program has taken. Where there are fewer images than threads, or large ones, all threads
    work on the same images.

    The same images with the same number of threads give the same bits. With another number,
    EfficientNet-Lite0 gives the same ones; networks with products of other shapes (some
    transformers) differ by 3e-7 of the largest number.

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
        """Return the session in which ``threads`` compute the same images.

        Its threads stop waiting for work as soon as a call returns, because other processes may be
        decoding images on the same cores. Each session holds the weights: those of numbers of
        threads that torch had before are dropped.
        """
        with self._making:
            if threads not in self._sessions:
                onnxruntime = import_onnxruntime()
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = threads
                options.inter_op_num_threads = 1
                options.add_session_config_entry("session.force_spinning_stop", "1")
                options.log_severity_level = 3  # errors only
                made = onnxruntime.InferenceSession(
                    self._graph, options, providers=["CPUExecutionProvider"]
                )
                self._sessions = {n: session for n, session in self._sessions.items() if n == 1} | {
                    threads: made
                }
            return self._sessions[threads]

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Return threads that wait for pieces; to start them for every batch takes a twentieth of
        its time.
        """
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
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        threads = torch.get_num_threads()
        apart = 1 < threads <= len(pixels) and math.prod(pixels.shape[1:3]) <= LARGE
        try:
            if apart:
                z = self._apart(pixels, threads)
            else:
                z = self._together(pixels, threads)
        except Exception as error:  # its own kinds of error, which do not share a base
            if not self._failed:
                side = "x".join(map(str, images.shape[2:]))
                log.warning(
                    "ONNX Runtime refuses images of %s, torch is asked: %s", side, one_line(error)
                )
            self._failed = True
            return None
        return torch.from_numpy(z)

    def _together(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, all threads the same ones, as many at once as are good
        for the caches.
        """
        session = self._session(threads)
        size = _images(pixels, PIECE * threads)
        pieces = np.split(pixels, range(size, len(pixels), size))
        return np.concatenate([_embedded(session, piece) for piece in pieces])

    def _apart(self, pixels: np.ndarray, threads: int) -> np.ndarray:
        """Embed (n, h, w, 3) uint8 pixels, each thread other ones."""
        session = self._session(1)
        ends = piece_ends(len(pixels), _images(pixels, PIECE), threads)
        pieces = self._pool(threads).map(partial(_embedded, session), np.split(pixels, ends))
        return np.concatenate(list(pieces))


def piece_ends(count: int, most: int, threads: int) -> list[int]:
    """Cut images into pieces that become smaller, so that no thread is busy for long after the
    others have finished.

    Each piece is half of one thread's equal share of the rest (guided self-scheduling,
    Polychronopoulos and Kuck, 1987).

    Args:
        count: number of images.
        most: images of a piece, at most.
        threads: number of threads that take the pieces in turn.

    Returns:
        The position of the first image of each piece but the first one.

    Example:
        >>> piece_ends(20, 4, 2)
        [4, 8, 11, 14, 16, 17, 18, 19]
    """
    ends = [0]
    while ends[-1] < count:
        ends.append(ends[-1] + min(most, math.ceil((count - ends[-1]) / (2 * threads))))
    return ends[1:-1]


def _images(pixels: np.ndarray, most: int) -> int:
    """Return how many images of (n, h, w, 3) have at most ``most`` pixels together; at least 1."""
    return max(1, most // math.prod(pixels.shape[1:3]))


def _embedded(session: Any, pixels: np.ndarray) -> np.ndarray:
    z: np.ndarray = session.run(None, {"images": pixels})[0]
    return z


_exporting = threading.Lock()


class NoGraph(CifnetError):
    """A network that cannot be used as a graph: it cannot be exported, or the graph computes
    something else.
    """


class Embedder(nn.Module):
    """The module that is exported: images (n, h, w, 3) uint8 → embeddings (n, d) float32.

    Args:
        name: the backbone's, for messages.
        identity: everything that the embeddings depend on, as text.
        network: normalised images (n, 3, h, w) → (n, d).
        scale, shift: (3, 1, 1) of the normalisation.
        side: of the images that the weights were made for, in pixels.
    """

    def __init__(
        self, name: str, identity: str, network: nn.Module, scale: Tensor, shift: Tensor, side: int
    ):
        super().__init__()
        self.name = name
        self.identity = identity
        self.side = side
        self.network = network
        self.scale = scale
        self.shift = shift

    def forward(self, images: Tensor) -> Tensor:
        """Embed (n, h, w, 3) uint8 images."""
        x = images.permute(0, 3, 1, 2).float()
        return self.network(x * self.scale + self.shift).float()  # type: ignore[no-any-return]


@contextmanager
def alone_with_the_exporter() -> Iterator[None]:
    """Let no other thread export: torch's exporter keeps what it works on in globals, and fails
    where calls overlap.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with _exporting, warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # about torch's own internals
        yield


def exported(embedder: Embedder) -> bytes:
    """Export a network, for any number of images, and for images of any size if the network takes
    any.

    Args:
        embedder: the network; a copy is exported, as the exporter replaces parameters while another
            thread may embed.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: torch's exporter or ONNX cannot express a layer.
    """
    side = embedder.side
    auto = torch.export.Dim.AUTO
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: auto, 2: auto},)
    try:
        with alone_with_the_exporter():
            embedder = copy.deepcopy(embedder).eval()
            program = torch.export.export(embedder, (example,), dynamic_shapes=shapes, strict=False)
            graph: Any = torch.onnx.export(
                program,
                (),
                input_names=["images"],
                output_names=["embeddings"],
                dynamo=True,
                verbose=False,
            )
        return bytes(graph.model_proto.SerializeToString())
    except (
        Exception
    ) as error:  # the exporter fails in its own way for every operation that it does not know
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = (
            f"{embedder.name} cannot be exported: {type(cause).__name__}: {one_line(cause, 160)}"
        )
        raise NoGraph(reason) from error


# ---------------------------------------------------------------------- graphs that are kept

FORMAT = 1
"""Version of the graphs that :func:`exported` makes."""

TOLERANCE = 1e-4
"""Largest difference between the engines, as a share of the largest number of the embeddings
compared.
"""

CACHE = "CIFNET_CACHE"
"""Environment variable that names another folder than ``~/.cache/cifnet_pl`` for the graphs."""


def graphs_folder() -> Path:
    """Return the folder that holds the graphs of this user."""
    return Path(os.environ.get(CACHE) or "~/.cache/cifnet_pl").expanduser() / "graphs"


def graph_key(identity: str) -> str:
    """Hash everything that a graph depends on: what it computes, and the versions that make, check
    and run it.

    Args:
        identity: of the :class:`Embedder`.

    Returns:
        32 hexadecimal digits.
    """
    made_by = [f"{name} {version(name)}" for name in ("torch", "onnx", "onnxscript", "onnxruntime")]
    return _digest(repr((FORMAT, identity, *made_by, platform.machine())).encode())


def stored_graph(embedder: Embedder, anew: bool = False) -> bytes:
    """Return the graph of a network, from the cache folder or exported now, which is kept there if
    that is possible.

    Args:
        embedder: the network.
        anew: whether the graph in the folder computes something else, and is to be replaced.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: the network cannot be exported, or the graph does not agree with torch.
    """
    folder = graphs_folder()
    key = graph_key(embedder.identity)
    content = None if anew else _read(folder, key)
    if content is not None:
        return content
    log.info("exporting %s for ONNX Runtime, once: this takes 4 to 15 s", embedder.name)
    content = exported(embedder)
    check_graph(content, embedder)
    try:
        with suppress(OSError):
            for path in folder.glob(f"{key}-*.onnx"):
                path.unlink(missing_ok=True)
        write_bytes(folder / f"{key}-{_digest(content)}.onnx", content)
    except CifnetError as error:
        log.warning(
            "%s; the next command exports the network again (%s names another folder)", error, CACHE
        )
    return content


def _read(folder: Path, key: str) -> bytes | None:
    """Return the graph in the cache, or None if it is not there or damaged."""
    try:
        for path in sorted(folder.glob(f"{key}-*.onnx")):
            content = path.read_bytes()
            if path.stem == f"{key}-{_digest(content)}":
                return content
            log.warning("%s is damaged: the network is exported again", path)
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot read %s: %s", folder, error.strerror or error)
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# ---------------------------------------------------------------------- checked


def check_graph(content: bytes, embedder: Embedder) -> float:
    """Compare ONNX Runtime with torch on two images, alone and together, of the network's own size
    and another.

    Args:
        content: the graph as the content of an ONNX file.
        embedder: the network in torch.

    Returns:
        The largest difference, as a share of the largest number of the embeddings compared.

    Raises:
        NoGraph: the difference is more than ``TOLERANCE``, or ONNX Runtime refuses the graph.
    """
    try:
        runtime = Runtime(content)
    except Exception as error:  # its own kinds of error, which do not share a base
        raise NoGraph(
            f"ONNX Runtime does not load the graph of {embedder.name}: {one_line(error, 160)}"
        ) from error
    worst = 0.0
    for side in (embedder.side, max(embedder.side * 3 // 4, 1)):
        pair = natural_images(side)
        if side == embedder.side or _takes(embedder, pair):
            for images in (pair, pair[:1], torch.cat([pair, pair.flip(0)])):
                worst = max(worst, _difference(runtime, embedder, images, TOLERANCE))
    return worst


def _difference(runtime: Runtime, embedder: Embedder, images: Tensor, most: float) -> float:
    """Return how far both engines are apart on (n, 3, h, w) uint8 images; NoGraph where that is
    more than ``most``.
    """
    expected = _by_torch(embedder, images)
    z = runtime(images)
    if z is None or z.shape != expected.shape:
        raise NoGraph(
            f"the graph of {embedder.name} takes other images than torch, or gives other embeddings"
        )
    off = float((z - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
    if not off <= most:
        raise NoGraph(
            f"ONNX Runtime differs from torch by {off:.1g} in embeddings of {embedder.name}"
        )
    return off


@torch.inference_mode()
def _by_torch(embedder: Embedder, images: Tensor) -> Tensor:
    z: Tensor = embedder(images.permute(0, 2, 3, 1).contiguous())
    return z


def natural_images(side: int) -> Tensor:
    """Return two images, (2, 3, ``side``, ``side``) uint8."""
    from sklearn.datasets import load_sample_images

    images = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2).float()
    scaled = nn.functional.interpolate(images, size=(side, side), mode="bilinear", antialias=True)
    return scaled.round().clamp(0, 255).byte()


def _takes(embedder: Embedder, images: Tensor) -> bool:
    """Return whether torch embeds images of this size; some networks take only one size."""
    try:
        _by_torch(embedder, images)
    except (AssertionError, RuntimeError):
        return False
    return True


FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name → dtype that autocast computes most layers in."""

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: tuple[str, ...] = get_args(Precision)


def check_precision(name: str) -> str:
    """Return ``name`` if it is one of ``PRECISIONS``.

    Raises:
        UsageError: it is another one.
    """
    if name not in PRECISIONS:
        raise UsageError(
            f"precision {name} does not leave the statistics alone: use {', '.join(PRECISIONS)}"
        )
    return name


def autocast(device: str, precision: str) -> torch.autocast:
    """Return a context in which a network computes in a precision.

    On a CPU float16 is used where it is asked for, although Lightning takes bf16 there: a model
    that was learned on a GPU then gets the same embeddings.

    Args:
        device: type of the device, such as "cpu".
        precision: one of ``PRECISIONS``.

    Raises:
        UsageError: ``precision`` is none of ``PRECISIONS``.
    """
    reduced = REDUCED.get(check_precision(precision))
    return torch.autocast(device, reduced, enabled=reduced is not None)


EngineChoice = Literal["auto", "torch", "onnxruntime"]
"""``auto`` is ONNX Runtime on a CPU, where it is installed and can express the network; torch
anywhere else.
"""

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
"""What ONNX Runtime needs to run a network of torch: itself, and what torch's exporter imports."""


class Wanted:
    """The engine that the user asked for, and the graph once it is ready.

    Args:
        name: one of ``EngineChoice``.
    """

    def __init__(self, name: str):
        check_choice("engine", name, EngineChoice)
        self.name = name
        self._graph: Runtime | None = None
        self._tried = False  # whether a graph was made, or cannot be

    def runtime(
        self, embedder: Callable[[], Embedder], device: str, precision: str
    ) -> Runtime | None:
        """Return the graph that embeds.

        Args:
            embedder: makes the network that is to be exported; called only where it is needed.
            device: type of the device, such as "cpu".
            precision: one of Lightning's names.

        Returns:
            The graph in ONNX Runtime; None where torch computes.

        Raises:
            UsageError: ONNX Runtime was asked for by name, and is not installed, or has no such
                device or precision.
            CifnetError: it was asked for by name, and the network cannot be exported.
        """
        if self.name == "torch":
            return None
        if device == "cpu" and precision == FLOAT32:
            if not self._tried:
                self._graph = self._made(embedder())
                self._tried = True
            return self._graph
        unfit = f"computes in float32 only, and {precision} was asked for"
        if device != "cpu":
            unfit = f"computes on the CPU only here, and this is a device of type {device}"
        if self.name == "onnxruntime":
            raise UsageError(f"engine onnxruntime {unfit}: use engine auto or torch")
        return None

    def _made(self, embedder: Embedder) -> Runtime | None:
        """Return the graph; None where torch is to compute, which is said unless there is nothing
        to compute.
        """
        if self.name == "auto" and not any(True for _ in embedder.parameters()):
            return None
        missing = [name for name in PACKAGES if find_spec(name) is None]
        try:
            if missing:
                raise NoGraph(f"it needs {missing[0]}: pip install {' '.join(missing)}")
            runtime = _checked_runtime(embedder)
        except NoGraph as error:
            if self.name == "onnxruntime":
                kind = UsageError if missing else NoGraph
                raise kind(f"engine onnxruntime: {error}; or use engine torch") from error
            log.warning("engine torch, not onnxruntime: %s", error)
            return None
        log.info("engine onnxruntime, %s", number_of(torch.get_num_threads(), "thread"))
        return runtime


def _checked_runtime(embedder: Embedder) -> Runtime:
    """Return the runtime of the stored graph; where torch now computes something else, of one
    exported anew.

    The name of a stored graph depends on the weights and on versions of packages. It cannot tell
    that the code of a network has changed.

    Raises:
        NoGraph: the network cannot be exported.
    """
    runtime = Runtime(stored_graph(embedder))
    # An image of the network's own size, smooth like an image, once for each thread.
    grid = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255
    image = nn.functional.interpolate(
        grid, size=(embedder.side, embedder.side), mode="bilinear"
    ).byte()
    try:
        _difference(
            runtime, embedder, image.expand(torch.get_num_threads(), -1, -1, -1), 10 * TOLERANCE
        )
    except NoGraph:
        log.warning(
            "%s computes something else than when it was exported for ONNX Runtime", embedder.name
        )
        runtime = Runtime(stored_graph(embedder, anew=True))
    return runtime
