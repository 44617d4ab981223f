"""Export a network to an ONNX graph, check it against torch, and store it in a cache folder.

Both engines compute in float32. Their embeddings agree to 1e-4 of the largest value, which is
checked on images when a graph is exported (:func:`check_graph`); measured, to 2e-6. Each process
compares them on one image again.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import platform
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones.onnx_runtime import Runtime
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import CACHE_VARIABLE, user_cache, write_bytes
from cifnet_pl.utilities.text import one_line

log = logging.getLogger(__name__)

ENGINE_TOLERANCE = 1e-4
"""Largest difference between the engines, relative to the largest value of the embeddings."""

_export_lock = threading.Lock()


class NoGraph(CifnetError):
    """The network has no usable graph: the export fails, or the graph gives other embeddings."""


class Embedder(nn.Module):
    """The module that is exported: images (n, h, w, 3) uint8 → embeddings (n, d) float32.

    Args:
        name: the backbone's, for messages.
        identity: everything that the embeddings depend on, as text.
        network: normalised images (n, 3, h, w) → (n, d).
        scale: (3, 1, 1) of the normalisation.
        shift: (3, 1, 1) of the normalisation.
        side: of the images that the weights were made for, in pixels.
    """

    def __init__(
        self,
        name: str,
        identity: str,
        network: nn.Module,
        scale: Tensor,
        shift: Tensor,
        side: int,
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
        z: Tensor = self.network(x * self.scale + self.shift)
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


def exported(embedder: Embedder) -> bytes:
    """Export a network for any number of images, and for any size where the network takes any.

    Args:
        embedder: the network. A copy is exported, because the exporter replaces parameters while
            another thread may embed.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: torch's exporter or ONNX cannot express a layer.
    """
    side = embedder.side
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    any_size = torch.export.Dim.AUTO
    dynamic_shapes = ({0: torch.export.Dim.DYNAMIC, 1: any_size, 2: any_size},)
    try:
        with exclusive_export():
            module = copy.deepcopy(embedder).eval()
            program = torch.export.export(
                module, (example,), dynamic_shapes=dynamic_shapes, strict=False
            )
            graph: Any = torch.onnx.export(
                program,
                (),
                input_names=["images"],
                output_names=["embeddings"],
                dynamo=True,
                verbose=False,
            )
        return bytes(graph.model_proto.SerializeToString())
    except Exception as error:
        # The exporter has an error class for every unknown operation.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        kind = type(cause).__name__
        raise NoGraph(
            f"{embedder.name} cannot be exported: {kind}: {one_line(cause, 160)}"
        ) from error


# ---------------------------------------------------------------------- stored graphs


def graphs_folder() -> Path:
    """Return the folder that holds the graphs of this user; UsageError without a home folder."""
    return user_cache() / "graphs"


def graph_key(identity: str) -> str:
    """Hash everything that a graph depends on: the network, and the versions of the packages.

    Args:
        identity: of the :class:`Embedder`.

    Returns:
        32 hexadecimal digits.
    """
    packages = ("torch", "onnx", "onnxscript", "onnxruntime")
    versions = [f"{name} {version(name)}" for name in packages]
    parts = (identity, *versions, platform.machine())
    return _digest(repr(parts).encode())


def stored_graph(embedder: Embedder, replace: bool = False) -> bytes:
    """Return the graph of a network from the cache folder, or export and store it.

    Args:
        embedder: the network.
        replace: whether the stored graph gives other embeddings, and is to be replaced.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: the network cannot be exported, or the graph does not agree with torch.
    """
    key = graph_key(embedder.identity)
    if not replace:
        with suppress(UsageError):  # no home folder: told below
            stored = _read(graphs_folder(), key)
            if stored is not None:
                return stored
    log.info("exporting %s to ONNX, once: 4 to 15 s", embedder.name)
    content = exported(embedder)
    check_graph(content, embedder)
    try:
        folder = graphs_folder()
        with suppress(OSError):
            for path in folder.glob(f"{key}-*.onnx"):
                path.unlink(missing_ok=True)
        write_bytes(folder / f"{key}-{_digest(content)}.onnx", content)
    except CifnetError as error:
        log.warning(
            "%s; the next command exports the network again (%s names another folder)",
            error,
            CACHE_VARIABLE,
        )
    return content


def _read(folder: Path, key: str) -> bytes | None:
    """Return a stored graph; None if it is missing or damaged."""
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


# ---------------------------------------------------------------------- checks


def check_graph(content: bytes, embedder: Embedder) -> float:
    """Compare ONNX Runtime with torch on two images, alone and together, of two sizes.

    Args:
        content: the graph as the content of an ONNX file.
        embedder: the network in torch.

    Returns:
        The largest difference, relative to the largest value of the embeddings.

    Raises:
        NoGraph: the difference is more than ``ENGINE_TOLERANCE``, or ONNX Runtime refuses the
            graph.
    """
    try:
        runtime = Runtime(content)
    except Exception as error:  # its own kinds of error, which do not share a base
        raise NoGraph(
            f"ONNX Runtime does not load the graph of {embedder.name}: {one_line(error, 160)}"
        ) from error
    largest = 0.0
    smaller = max(embedder.side * 3 // 4, 1)
    for side in (embedder.side, smaller):
        pair = natural_images(side)
        if side == embedder.side or _takes(embedder, pair):
            four = torch.cat([pair, pair.flip(0)])
            for images in (pair, pair[:1], four):
                difference = check_difference(
                    runtime, embedder, images, ENGINE_TOLERANCE
                )
                largest = max(largest, difference)
    return largest


def check_difference(
    runtime: Runtime, embedder: Embedder, images: Tensor, tolerance: float
) -> float:
    """Compare a graph with torch on some images.

    Args:
        runtime: the graph.
        embedder: the network in torch.
        images: (n, 3, h, w) uint8.
        tolerance: largest difference allowed.

    Returns:
        The largest difference, relative to the largest value of the embeddings.

    Raises:
        NoGraph: the difference is larger than ``tolerance``.
    """
    expected = _embedded_by_torch(embedder, images)
    z = runtime(images)
    if z is None or z.shape != expected.shape:
        raise NoGraph(
            f"the graph of {embedder.name} takes other images than torch, or gives other embeddings"
        )
    scale = expected.abs().max().clamp_min(1e-30)
    difference = float((z - expected).abs().max() / scale)
    if not difference <= tolerance:  # NaN is none
        raise NoGraph(
            f"ONNX Runtime differs from torch by {difference:.1g} in embeddings of {embedder.name}"
        )
    return difference


@torch.inference_mode()
def _embedded_by_torch(embedder: Embedder, images: Tensor) -> Tensor:
    z: Tensor = embedder(images.permute(0, 2, 3, 1).contiguous())
    return z


def natural_images(side: int) -> Tensor:
    """Return two photographs, (2, 3, ``side``, ``side``) uint8."""
    from sklearn.datasets import load_sample_images

    photographs = np.stack(load_sample_images().images)
    images = torch.from_numpy(photographs).permute(0, 3, 1, 2).float()
    scaled = nn.functional.interpolate(
        images, size=(side, side), mode="bilinear", antialias=True
    )
    return scaled.round().clamp(0, 255).byte()


def _takes(embedder: Embedder, images: Tensor) -> bool:
    """Return whether torch embeds images of this size; some networks take only one size."""
    try:
        _embedded_by_torch(embedder, images)
    except (AssertionError, RuntimeError):
        return False
    return True
