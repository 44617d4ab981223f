"""Choose what runs a frozen network, torch or ONNX Runtime, and the precision."""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from torch import nn

from cifnet_pl.backbones.onnx_graphs import (
    ENGINE_TOLERANCE,
    Embedder,
    NoGraph,
    check_difference,
    stored_graph,
)
from cifnet_pl.backbones.onnx_runtime import Runtime
from cifnet_pl.utilities.errors import UsageError, check_choice
from cifnet_pl.utilities.text import number_of

log = logging.getLogger(__name__)

FLOAT32 = "32-true"

REDUCED = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Name of a reduced precision → dtype in which autocast computes most layers."""

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
    dtype = REDUCED.get(check_precision(precision))
    return torch.autocast(device, dtype, enabled=dtype is not None)


def current_precision(device: str) -> str:
    """Return the precision of the context of the caller.

    Args:
        device: type of the device, such as "cpu".

    Returns:
        One of ``PRECISIONS``, or the name of another dtype of autocast.
    """
    if not torch.is_autocast_enabled(device):
        return FLOAT32
    current = torch.get_autocast_dtype(device)
    for name, dtype in REDUCED.items():
        if dtype == current:
            return name
    return str(current)


EngineChoice = Literal["auto", "torch", "onnxruntime"]
"""``auto`` is ONNX Runtime on a CPU where it can run the network, and torch elsewhere."""

PACKAGES = ("onnxruntime", "onnx", "onnxscript")
"""Packages that running a network of torch in ONNX Runtime needs."""


class Engine:
    """The engine that the user requested, and the graph once it is ready.

    Args:
        name: one of ``EngineChoice``.
    """

    def __init__(self, name: str):
        check_choice("engine", name, EngineChoice)
        self.name = name
        self._graph: Runtime | None = None
        self._is_prepared = False  # whether a graph was made, or cannot be

    def runtime(
        self, embedder: Callable[[], Embedder], device: str, precision: str
    ) -> Runtime | None:
        """Return the graph that embeds.

        Args:
            embedder: returns the network that is to be exported; called only if it is needed.
            device: type of the device, such as "cpu".
            precision: one of Lightning's names.

        Returns:
            The graph in ONNX Runtime; None where torch computes.

        Raises:
            UsageError: ONNX Runtime was requested by name, and is not installed, or has no such
                device or precision.
            CifnetError: it was requested by name, and the network cannot be exported.
        """
        if self.name == "torch":
            return None
        if device == "cpu" and precision == FLOAT32:
            if not self._is_prepared:
                self._graph = self._prepared(embedder())
                self._is_prepared = True
            return self._graph
        if self.name == "auto":
            return None
        if device != "cpu":
            reason = (
                f"computes on the CPU only here, and this is a device of type {device}"
            )
        else:
            reason = f"computes in float32 only, and {precision} was asked for"
        raise UsageError(f"engine onnxruntime {reason}: use engine auto or torch")

    def _prepared(self, embedder: Embedder) -> Runtime | None:
        """Return the graph; None, with a warning, where torch is to compute.

        There is no warning for a network without parameters, which needs no graph.
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
                raise kind(
                    f"engine onnxruntime: {error}; or use engine torch"
                ) from error
            log.warning("engine torch, not onnxruntime: %s", error)
            return None
        log.info("engine onnxruntime, %s", number_of(torch.get_num_threads(), "thread"))
        return runtime


def _checked_runtime(embedder: Embedder) -> Runtime:
    """Return the runtime of the stored graph, exported again where it no longer agrees with torch.

    The name of a stored graph depends on the weights and on versions of packages. It does not
    depend on the code of a network, which may have changed.

    Raises:
        NoGraph: the network cannot be exported.
    """
    runtime = Runtime(stored_graph(embedder))
    generator = torch.Generator().manual_seed(0)
    grid = torch.rand(1, 3, 8, 8, generator=generator) * 255
    size = (embedder.side, embedder.side)
    image = nn.functional.interpolate(
        grid, size=size, mode="bilinear"
    ).byte()  # is smooth
    one_for_each_thread = image.expand(torch.get_num_threads(), -1, -1, -1)
    try:
        check_difference(runtime, embedder, one_for_each_thread, 10 * ENGINE_TOLERANCE)
    except NoGraph:
        log.warning(
            "%s computes something else than when it was exported for ONNX Runtime",
            embedder.name,
        )
        runtime = Runtime(stored_graph(embedder, replace=True))
    return runtime
