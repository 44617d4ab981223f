"""What runs a frozen network, torch or ONNX Runtime, and in which precision.

On a CPU ONNX Runtime is about twice as fast as torch for small networks. A network is exported to a
graph once, which is checked against torch and stored in a cache folder. Both engines compute in
float32. Their embeddings agree to 1e-4 of the largest value, which is checked on images when a
graph is exported (:func:`checked_runtime`); measured, to 2e-6. Each process compares them on one
image again.

In all functions ``backbone`` is a :class:`~cifnet_pl.backbones.backbone.Backbone`; the class is not
imported, as its module imports this one.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CifnetError, UsageError, explained
from cifnet_pl.utilities.files import expanded, write_bytes
from cifnet_pl.utilities.text import number_of, one_line

log = logging.getLogger(__name__)

FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name of a reduced precision → dtype in which autocast computes most layers.

On a CPU float16 is used where it is asked for, although Lightning takes bf16 there: a model that
was learned on a GPU then gets the same embeddings."""

Precision = Literal["32-true", "bf16-mixed", "16-mixed"]
PRECISIONS: tuple[str, ...] = get_args(Precision)

EngineChoice = Literal["auto", "torch", "onnxruntime"]
"""``auto`` is ONNX Runtime on a CPU where it can run the network, and torch elsewhere."""

PACKAGES = ("torch", "onnxruntime", "onnx", "onnxscript")
"""Packages that a graph depends on."""

CACHE_VARIABLE = "CIFNET_CACHE"
"""Environment variable that names another folder than ``~/.cache/cifnet_pl``."""

ENGINE_TOLERANCE = 1e-4
"""Largest difference between the engines, relative to the largest value of the embeddings."""


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


class NoGraph(CifnetError):
    """The network has no usable graph: the export fails, or the graph gives other embeddings."""


def prepared_runtime(backbone: Any, choice: str) -> Runtime | None:
    """Prepare the graph of a network; seconds where it is exported for the first time.

    The name of a stored graph does not depend on the code of the network, which may have changed.
    So the graph is used only if it agrees with torch on an image.

    Args:
        backbone: with the network.
        choice: "auto" or "onnxruntime".

    Returns:
        None, with a warning, where torch is to compute. There is no warning for a network without
        parameters, which needs no graph.

    Raises:
        CifnetError: ONNX Runtime was requested by name, and the network cannot be exported.
    """
    if not any(True for _ in backbone.network.parameters()):
        return None
    threads = torch.get_num_threads()
    path = graph_file(backbone)
    runtime = None
    if path.is_file():
        side = backbone.preprocessing.image_size
        gradient = torch.linspace(0, 255, side).byte().expand(side, side)
        # Colours, rows and columns differ, so that a change of their order shows.
        image = torch.stack([gradient, gradient.T, gradient.flip(1)])
        images = image.expand(threads, -1, -1, -1)
        try:
            stored = Runtime(path.read_bytes())
            check_difference(stored, backbone, images, 10 * ENGINE_TOLERANCE)
            runtime = stored
        # ONNX Runtime's own kinds of error for damaged files do not share a base.
        except Exception as error:
            log.warning("%s is not used: %s", path, one_line(error, 160))
    try:
        runtime = runtime or exported_runtime(backbone, path)
    except NoGraph as error:
        if choice == "onnxruntime":
            problem = f"engine onnxruntime: {error}; or use engine torch"
            raise NoGraph(problem) from error
        log.warning("engine torch, not onnxruntime: %s", error)
        return None
    log.info("engine onnxruntime, %s", number_of(threads, "thread"))
    return runtime


# ---------------------------------------------------------------------- stored graphs


def exported_runtime(backbone: Any, path: Path) -> Runtime:
    """Export a network, and store its graph; return its runtime.

    Args:
        backbone: with the network.
        path: file of the graph; the runtime is returned even if it cannot be written.

    Raises:
        NoGraph: the network cannot be exported, or the graph does not agree with torch.
    """
    log.info("exporting %s to ONNX, once: 4 to 15 s", backbone.name)
    content = exported(backbone)
    runtime = checked_runtime(content, backbone)
    try:
        write_bytes(path, content)
    except CifnetError as error:
        log.warning(
            "%s; the next command exports the network again (%s names another folder)",
            error,
            CACHE_VARIABLE,
        )
    return runtime


def graph_file(backbone: Any) -> Path:
    """Return the file of a graph in this user's cache.

    Its name is a hash of everything that the graph depends on: the network, and the versions of the
    packages.

    Raises:
        UsageError: this account has no home folder, and no other folder is named.
    """
    versions = [f"{name} {version(name)}" for name in PACKAGES]
    identity = f"{backbone.name} {backbone.architecture} {backbone.sha256}"
    parts = (identity, *versions, platform.machine())
    digest = hashlib.sha256(repr(parts).encode())
    cache = os.environ.get(CACHE_VARIABLE) or "~/.cache/cifnet_pl"
    return expanded(cache) / "graphs" / f"{digest.hexdigest()[:32]}.onnx"


# ---------------------------------------------------------------------- export

_export_lock = threading.Lock()


class _Normalised(nn.Module):
    """The module that is exported: images (n, h, w, 3) uint8 → embeddings (n, d) float32."""

    def __init__(self, backbone: Any):
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Tensor:
        """Embed images."""
        pixels = images.permute(0, 3, 1, 2).float()
        x = self.backbone.normalised(pixels)
        z: Tensor = self.backbone.network(x)
        return z.float()


@contextmanager
def exclusive_export() -> Iterator[None]:
    """Let no other thread export.

    Torch's exporter keeps what it works on in globals, and fails where calls overlap.
    """
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with (
        _export_lock,
        warnings.catch_warnings(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        warnings.simplefilter("ignore")  # about torch's own internals
        yield


def exported(backbone: Any) -> bytes:
    """Export a network for any number of images, and for any size where the network takes any.

    Args:
        backbone: with the network. A copy is exported, because the exporter replaces parameters
            while another thread may embed.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: torch's exporter or ONNX cannot express a layer.
    """
    side = backbone.preprocessing.image_size
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    any_size = torch.export.Dim.AUTO
    dynamic_shapes = ({0: torch.export.Dim.DYNAMIC, 1: any_size, 2: any_size},)
    module = _Normalised(backbone)
    failed = f"{backbone.name} cannot be exported"
    # The exporter has an error class for every unknown operation.
    with explained(NoGraph, failed), exclusive_export():
        graph: Any = torch.onnx.export(
            copy.deepcopy(module).eval(),
            (example,),
            input_names=["images"],
            output_names=["embeddings"],
            dynamic_shapes=dynamic_shapes,
            dynamo=True,
            verbose=False,
        )
        return bytes(graph.model_proto.SerializeToString())


# ---------------------------------------------------------------------- checks


def checked_runtime(graph: bytes, backbone: Any) -> Runtime:
    """Return the runtime of a graph that agrees with torch on two images, one alone and both twice.

    They are compared in two sizes, where the network takes more than one.

    Args:
        graph: content of an ONNX file.
        backbone: with the network in torch.

    Raises:
        NoGraph: the difference is more than ``ENGINE_TOLERANCE``, or ONNX Runtime refuses the
            graph.
    """
    # ONNX Runtime's own kinds of error do not share a base.
    with explained(NoGraph, f"ONNX Runtime does not load the graph of {backbone.name}"):
        runtime = Runtime(graph)
    side = backbone.preprocessing.image_size
    for size in (side, max(side * 3 // 4, 1)):
        pair = natural_images(size)
        try:
            backbone.embed(pair)
        except CifnetError:
            log.debug("%s takes images of one size", backbone.name)
            continue
        four = torch.cat([pair, pair.flip(0)])
        for images in (pair[:1], four):
            check_difference(runtime, backbone, images, ENGINE_TOLERANCE)
    return runtime


@torch.inference_mode()
def check_difference(
    runtime: Runtime,
    backbone: Any,
    images: Tensor,
    tolerance: float,
) -> None:
    """Compare a graph with torch on some images.

    Args:
        runtime: the graph.
        backbone: with the network in torch.
        images: (n, 3, h, w) uint8.
        tolerance: largest difference allowed, relative to the largest value of the embeddings.

    Raises:
        NoGraph: the difference is larger than ``tolerance``.
    """
    expected = backbone.embed(images)
    z = runtime(images)
    if z is None or z.shape != expected.shape:
        raise NoGraph(
            f"the graph of {backbone.name} takes other images than torch, or gives other embeddings"
        )
    scale = expected.abs().max().clamp_min(1e-30)
    difference = float((z - expected).abs().max() / scale)
    if not difference <= tolerance:  # NaN is none
        raise NoGraph(
            f"ONNX Runtime differs from torch by {difference:.1g} in embeddings of {backbone.name}"
        )


def photographs() -> np.ndarray:
    """Return two photographs, (2, h, w, 3) uint8."""
    from sklearn.datasets import load_sample_images

    return np.stack(load_sample_images().images)


def natural_images(side: int) -> Tensor:
    """Return the two photographs as squares, (2, 3, ``side``, ``side``) uint8."""
    images = torch.from_numpy(photographs()).permute(0, 3, 1, 2).float()
    scaled = nn.functional.interpolate(
        images, size=(side, side), mode="bilinear", antialias=True
    )
    return scaled.round().clamp(0, 255).byte()


# ---------------------------------------------------------------------- ONNX Runtime

# ONNX Runtime's official builds store facts about the machine in the user's cache folder and send
# them, unless this is set when it is imported. A value that the user has set stays.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

PIXELS_PER_PIECE = 2**17
"""Pixels that a thread embeds at once, such as 8 images of 128 by 128; of larger images, one.

The output of a layer then stays in the processor's caches, and needs little memory.
"""

PIXELS_FOR_SHARED_WORK = 2**18
"""Pixels of an image above which all threads embed the same one, as each image needs memory."""


class Runtime:
    """A graph in ONNX Runtime on the CPU, with as many threads as torch has.

    A batch is cut into pieces of about equal size, and each thread embeds as many. Threads that
    shared the work of every layer would wait for each other after each layer, and all of them for
    one whose core another program has taken. Where there are fewer images than threads, or large
    images, all threads work on the same images.

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
        # Each session holds the weights: one of one thread, and one of the current number.
        self._session = lru_cache(maxsize=2)(self._new_session)
        self._session(1)

    def __deepcopy__(self, memo: Any) -> Runtime:
        return self  # a session cannot be copied, and does not change

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a pickled network prepares its runtime again

    def _new_session(self, threads: int) -> Any:
        """Return a session in which ``threads`` embed the same images.

        Its threads stop waiting for work as soon as a call returns, because other processes may be
        decoding images on the same cores.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3  # errors only
        return onnxruntime.InferenceSession(
            self._graph, options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, images: Tensor) -> Tensor | None:
        """Embed images.

        Args:
            images: (n, 3, h, w) uint8.

        Returns:
            (n, d) float32; None where the graph cannot take images of this size.
        """
        pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        count, height, width = pixels.shape[:3]
        area = height * width
        threads = torch.get_num_threads()
        workers = threads
        if threads > count or area > PIXELS_FOR_SHARED_WORK:
            workers = 1  # a piece after the other, each embedded by all threads
        threads_each = threads // workers
        session = self._session(threads_each)
        largest = max(1, threads_each * PIXELS_PER_PIECE // area)
        pieces_each = math.ceil(count / (workers * largest))
        pieces = np.array_split(pixels, min(count, workers * pieces_each))
        inputs = [{"images": piece} for piece in pieces]
        embed = partial(session.run, None)
        try:
            outputs = list(_workers(workers).map(embed, inputs))
        except Exception as error:  # its own kinds of error, which do not share a base
            log.debug("ONNX Runtime refuses images: %s", one_line(error))
            return None
        return torch.from_numpy(np.concatenate([z for (z,) in outputs]))


_workers = lru_cache(maxsize=2)(ThreadPoolExecutor)
"""Number of threads → threads that stay: starting them for each batch takes a twentieth of its
time.
"""
