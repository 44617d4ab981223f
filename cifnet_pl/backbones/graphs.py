"""Export a frozen network as an ONNX graph once, check it against torch, and keep it in the user's cache folder.

A file's name holds the hash of its content and a key of what it was made from: the weights, the preprocessing and the
versions of exporter and runtime. A damaged file does not fit its name; it is made again, never loaded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.files import write_atomic
from cifnet_pl.utilities.text import one_line

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the graphs that :func:`exported` makes."""

TOLERANCE = 1e-4
"""Largest difference between the engines, as a share of the largest number of the embeddings compared."""

CACHE = "CIFNET_CACHE"
"""Environment variable that names another folder than ``~/.cache/cifnet_pl`` for the graphs."""

WAIT = 600.0
"""Seconds to wait for another process that is exporting the same network, before exporting it as well."""

AGAIN = 86_400.0
"""Seconds after which an export that failed is tried again: the reason may have been the moment, not the network."""

_exporting = threading.Lock()  # two exports in one process disturb each other


class NoGraph(CifnetError):
    """A network that cannot be used as a graph: it cannot be exported, or the graph computes something else.

    Args:
        message: the reason.
        lasting: whether the same versions of all packages would probably fail again.
    """

    def __init__(self, message: str, lasting: bool = False):
        super().__init__(message)
        self.lasting = lasting


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


# ---------------------------------------------------------------------- kept


def graphs_folder() -> Path:
    """Return the folder that holds the graphs of this user."""
    return Path(os.environ.get(CACHE) or "~/.cache/cifnet_pl").expanduser() / "graphs"


def graph_key(identity: str) -> str:
    """Hash everything that a graph depends on: what it computes, and the versions that make, check and run it.

    Args:
        identity: of the :class:`Embedder`.

    Returns:
        32 hexadecimal digits.
    """
    made_by = [f"{name} {version(name)}" for name in ("torch", "onnx", "onnxscript", "onnxruntime")]
    return _digest(repr((FORMAT, identity, *made_by, platform.machine())).encode())


def stored_graph(embedder: Embedder) -> bytes:
    """Return the graph of a network, from the cache folder or exported now.

    Only one process exports a network at a time; others wait for it.

    Args:
        embedder: the network.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: the network cannot be exported, or the graph does not agree with torch.
    """
    folder, key = graphs_folder(), graph_key(embedder.identity)
    content = _read(folder, key)
    if content is not None:
        return content
    with _turn(folder / f".{key}.lock"):
        content = _read(folder, key)
        if content is None:
            log.info("exporting %s for ONNX Runtime, once: this takes 4 to 15 s", embedder.name)
            content = _made(embedder, folder, key)
    return content


def _read(folder: Path, key: str) -> bytes | None:
    """Return the graph in the cache, or None if it is not there or damaged; NoGraph if its export failed lately."""
    try:
        refused = folder / f"{key}.txt"
        if refused.is_file() and time.time() - refused.stat().st_mtime < AGAIN:
            raise NoGraph(refused.read_text(encoding="utf-8"))
        for path in sorted(folder.glob(f"{key}-*.onnx")):
            content = path.read_bytes()
            if path.stem == f"{key}-{_digest(content)}":
                return content
            log.warning("%s is damaged: the network is exported again", path)
            path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot read %s: %s", folder, error.strerror or error)
    return None


def _made(embedder: Embedder, folder: Path, key: str) -> bytes:
    """Export and check a graph, and keep it; if it cannot be kept, this process can use it all the same."""
    try:
        with _exporting:
            content = exported(embedder)
        check_graph(content, embedder)
    except NoGraph as error:
        if error.lasting:
            _keep(folder / f"{key}.txt", str(error).encode())
        raise
    _keep(folder / f"{key}-{_digest(content)}.onnx", content)
    return content


def _keep(path: Path, content: bytes) -> None:
    try:
        write_atomic(path, lambda file: file.write(content))
    except CifnetError as error:
        log.warning("%s; the next command exports the network again (%s names another folder)", error, CACHE)


@contextmanager
def _turn(lock: Path) -> Iterator[None]:
    """Wait until no other process exports the same network; go on without where files cannot be locked."""
    held = FileLock(lock)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        held.acquire(timeout=WAIT)
    except (OSError, NotImplementedError, Timeout) as error:
        log.debug("no lock on %s: %s", lock, error)
    try:
        yield
    finally:
        held.release()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


# ---------------------------------------------------------------------- made


def exported(embedder: Embedder) -> bytes:
    """Export a network, for any number of photos, and for photos of any size if the network takes any.

    Args:
        embedder: the network.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: torch's exporter or ONNX cannot express a layer, which is named.
    """
    side, auto = embedder.side, torch.export.Dim.AUTO
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    program: Any = None
    try:
        with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
            warnings.simplefilter("ignore")  # about torch's own internals
            shapes = ({0: torch.export.Dim.DYNAMIC, 1: auto, 2: auto},)
            program = torch.export.export(embedder.eval(), (example,), dynamic_shapes=shapes, strict=False)
            graph: Any = torch.onnx.export(
                program, (), input_names=["images"], output_names=["embeddings"], dynamo=True, verbose=False
            )
        return bytes(graph.model_proto.SerializeToString())
    except Exception as error:  # the exporter fails in its own way for every operation that it does not know
        layer = _layer_of(error, program, embedder)
        where, cause = f" (layer {layer})" if layer else "", error.__cause__ or error
        reason = f"{embedder.name} cannot be exported{where}: {type(cause).__name__}: {one_line(cause, 160)}"
        raise NoGraph(reason, lasting=not isinstance(cause, MemoryError | OSError)) from error


def _layer_of(error: BaseException, program: Any, embedder: Embedder) -> str | None:
    """Return the layer in which an export failed: its code raised the error, or its operation is not in ONNX."""
    names = {id(module): name for name, module in embedder.network.named_modules() if name}
    layer: str | None = None
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        while trace is not None:
            layer = names.get(id(trace.tb_frame.f_locals.get("self"))) or layer
            trace = trace.tb_next
        cause = cause.__cause__ or cause.__context__
    for node in program.graph.nodes if program is not None else ():
        if f"%{node.name} " in str(error) and node.meta.get("nn_module_stack"):
            layer = [path for path, _ in node.meta["nn_module_stack"].values()][-1].removeprefix("network.")
    return layer


# ---------------------------------------------------------------------- checked


def check_graph(content: bytes, embedder: Embedder) -> float:
    """Compare ONNX Runtime with torch on two photographs, alone and together, of the network's own size and another.

    Args:
        content: the graph as the content of an ONNX file.
        embedder: the network in torch.

    Returns:
        The largest difference, as a share of the largest number of the embeddings compared.

    Raises:
        NoGraph: the difference is more than ``TOLERANCE``, or ONNX Runtime refuses the graph.
    """
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds of error, which do not share a base
        raise NoGraph(f"ONNX Runtime does not load the graph of {embedder.name}: {one_line(error, 160)}") from error
    worst = 0.0
    for batch in _photographs(embedder):
        with torch.inference_mode():
            expected = embedder(torch.from_numpy(batch)).numpy()
        output = session.run(None, {"images": batch})[0]
        if output.shape != expected.shape:
            raise NoGraph(f"the graph of {embedder.name} gives {output.shape}, torch {expected.shape}", lasting=True)
        off = float(np.abs(output - expected).max() / max(np.abs(expected).max(), 1e-30))
        if not off <= TOLERANCE:
            raise NoGraph(
                f"ONNX Runtime differs from torch by {off:.1g} in embeddings of {embedder.name}", lasting=True
            )
        worst = max(worst, off)
    return worst


def _photographs(embedder: Embedder) -> Iterator[np.ndarray]:
    """Yield (n, h, w, 3) uint8 batches that torch takes: two photographs, alone and together, in two sizes."""
    from sklearn.datasets import load_sample_images

    photos = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2).float()
    for side in (embedder.side, max(embedder.side * 3 // 4, 1)):
        scaled = nn.functional.interpolate(photos, size=(side, side), mode="bilinear", antialias=True)
        batch = scaled.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
        yield from (batch, batch[:1], np.concatenate([batch, batch[::-1]])) if _takes(embedder, batch) else ()


def _takes(embedder: Embedder, batch: np.ndarray) -> bool:
    """Return whether torch embeds images of this size; some networks take only one size."""
    try:
        with torch.inference_mode():
            embedder(torch.from_numpy(batch))
    except (AssertionError, RuntimeError):
        if batch.shape[1] == embedder.side:
            raise
        return False
    return True
