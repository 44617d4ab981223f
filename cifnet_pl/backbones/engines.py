"""Choose what runs a frozen network: torch, or ONNX Runtime, about twice as fast for small networks on a CPU.

Both compute in float32. Their embeddings agree to 1e-4 of the largest number, which is checked on photographs when a
graph is made (:mod:`cifnet_pl.backbones.graphs`); measured, to 2e-6. Each process compares them on one image again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import Literal

import torch
from torch import nn

from cifnet_pl.backbones.exporter import Embedder, NoGraph
from cifnet_pl.backbones.graphs import TOLERANCE, remade_graph, stored_graph
from cifnet_pl.backbones.onnx_runtime import Runtime
from cifnet_pl.backbones.precision import FLOAT32, warn_if_slow
from cifnet_pl.utilities.errors import UsageError, check_choice
from cifnet_pl.utilities.text import number_of

log = logging.getLogger(__name__)

EngineChoice = Literal["auto", "torch", "onnxruntime"]
"""``auto`` is ONNX Runtime on a CPU, where it is installed and can express the network; torch anywhere else."""

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
        self._made: Runtime | None = None
        self._said: str | None = None  # why torch computes on this device or in this precision
        self._reason: str | None = None  # why torch computes instead; "" where that goes without saying

    def runtime(self, embedder: Callable[[], Embedder], device: str, precision: str) -> Runtime | None:
        """Return the graph that embeds.

        Args:
            embedder: makes the network that is to be exported; called only where it is needed.
            device: type of the device, such as "cpu".
            precision: one of Lightning's names.

        Returns:
            The graph in ONNX Runtime; None where torch computes.

        Raises:
            UsageError: ONNX Runtime was asked for by name, and is not installed, or has no such device or precision.
            CifnetError: it was asked for by name, and the network cannot be exported.
        """
        if device == "cpu" and precision != FLOAT32:
            warn_if_slow(precision)
        if self.name == "torch":
            return None
        elsewhere = self._elsewhere(device, precision)
        if elsewhere is not None:
            if self.name == "onnxruntime":
                raise UsageError(f"engine onnxruntime {elsewhere}: use engine auto or torch")
            self._say_torch(elsewhere)
            return None
        if self._made is None and self._reason is None:
            self._make(embedder())
        return self._made

    def _say_torch(self, why: str) -> None:
        if self._said != why:
            log.info("engine torch: ONNX Runtime %s", why)
        self._said = why

    def _elsewhere(self, device: str, precision: str) -> str | None:
        if device != "cpu":
            return f"computes on the CPU only here, and this is a device of type {device}"
        if precision != FLOAT32:
            return f"computes in float32 only, and {precision} was asked for"
        return None

    def _make(self, embedder: Embedder) -> None:
        if self.name == "auto" and not any(True for _ in embedder.parameters()):
            self._reason = ""
            return
        missing = missing_packages()
        try:
            if missing:
                raise NoGraph(f"it needs {missing[0]}: pip install {' '.join(missing)}")
            self._made = _checked_runtime(embedder)
            log.info("engine onnxruntime, %s", number_of(torch.get_num_threads(), "thread"))
        except NoGraph as error:
            if self.name == "onnxruntime":
                kind = UsageError if missing else NoGraph
                raise kind(f"engine onnxruntime: {error}; or use engine torch") from error
            self._reason = str(error)
            log.warning("engine torch, not onnxruntime: %s", error)


def _checked_runtime(embedder: Embedder) -> Runtime:
    """Return the runtime of the stored graph; where torch now computes something else, of one exported anew.

    The name of a stored graph depends on the weights and on versions of packages. It cannot tell that the code of a
    network has changed.

    Raises:
        NoGraph: the network cannot be exported.
    """
    runtime = Runtime(stored_graph(embedder))
    if _agrees(runtime, embedder):
        return runtime
    log.warning("%s computes something else than when it was exported for ONNX Runtime: exporting it again, this takes "
                "4 to 15 s", embedder.name)  # fmt: skip
    return Runtime(remade_graph(embedder))


def _agrees(runtime: Runtime, embedder: Embedder) -> bool:
    """Compare both engines on an image of the network's own size, smooth like a photo, once for each thread."""
    grid = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 255
    image = nn.functional.interpolate(grid, size=(embedder.side, embedder.side), mode="bilinear").byte()
    with torch.inference_mode():
        expected = embedder(image.permute(0, 2, 3, 1).contiguous())
    z = runtime(image.expand(torch.get_num_threads(), -1, -1, -1))
    if z is None or z.shape[1:] != expected.shape[1:]:
        return False
    return float((z - expected).abs().max()) <= 10 * TOLERANCE * float(expected.abs().max().clamp_min(1e-30))


def missing_packages(names: Collection[str] = PACKAGES) -> list[str]:
    """Return those of ``names`` that are not installed."""
    return [name for name in names if find_spec(name) is None]
