"""Keep ONNX graphs of frozen networks in the user's cache folder: each is exported once, and checked against torch.

A file's name holds the hash of its content and a key of what it was made from: the weights, the preprocessing and the
versions of exporter and runtime. A damaged file does not fit its name; it is made again, never loaded.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import nn

from cifnet_pl.backbones.exporter import Embedder, NoGraph, exported
from cifnet_pl.backbones.onnx_runtime import import_onnxruntime
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

SILENT = 2.0
"""Seconds of waiting before a line on the screen says so."""

AGAIN = 86_400.0
"""Seconds after which a layer that could not be exported is tried again: the reason may have been the moment."""


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
            _remove_halves(folder, key)
            log.info("exporting %s for ONNX Runtime, once: this takes 4 to 15 s", embedder.name)
            content = _made(embedder, folder, key)
    return content


def remade_graph(embedder: Embedder) -> bytes:
    """Export a network whose stored graph computes something else, and keep the new graph in its place.

    Args:
        embedder: the network.

    Returns:
        The content of an ONNX file.

    Raises:
        NoGraph: as :func:`stored_graph`.
    """
    folder, key = graphs_folder(), graph_key(embedder.identity)
    with _turn(folder / f".{key}.lock"):
        with suppress(OSError):
            for path in folder.glob(f"{key}-*.onnx"):
                path.unlink(missing_ok=True)
        return _made(embedder, folder, key)


def _read(folder: Path, key: str) -> bytes | None:
    """Return the graph in the cache, or None if it is not there or damaged; NoGraph if its export failed lately."""
    try:
        for path in sorted(folder.glob(f"{key}-*.onnx")):
            content = path.read_bytes()
            if path.stem == f"{key}-{_digest(content)}":
                return content
            log.warning("%s is damaged: the network is exported again", path)
            path.unlink(missing_ok=True)
        refused = folder / f"{key}.txt"
        if refused.is_file() and time.time() - refused.stat().st_mtime < AGAIN:
            reason = " ".join(refused.read_text(encoding="utf-8", errors="replace").split())
            if reason.isprintable() and reason:
                raise NoGraph(reason[:400])
    except OSError as error:
        log.warning("cannot read %s: %s", folder, error.strerror or error)
    return None


def _remove_halves(folder: Path, key: str) -> None:
    """Remove what processes left that were killed while they wrote this graph."""
    with suppress(OSError):
        for path in folder.glob(f".{key}-*.tmp"):
            path.unlink(missing_ok=True)


def _made(embedder: Embedder, folder: Path, key: str) -> bytes:
    """Export and check a graph, and keep it; if it cannot be kept, this process can use it all the same."""
    try:
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
        try:
            held.acquire(timeout=SILENT)
        except Timeout:
            log.info("waiting for another process that exports this network, at most %.0f min", WAIT / 60)
            held.acquire(timeout=WAIT)
    except (OSError, NotImplementedError, Timeout) as error:
        log.debug("no lock on %s: %s", lock, error)
    try:
        yield
    finally:
        held.release()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


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
    onnxruntime = import_onnxruntime()
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
