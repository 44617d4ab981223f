"""Export a frozen network as an ONNX graph by torch's exporter, one network at a time."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.text import one_line

_exporting = threading.Lock()


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
        NoGraph: torch's exporter or ONNX cannot express a layer, which is named.
    """
    side, auto = embedder.side, torch.export.Dim.AUTO
    example = torch.zeros(2, side, side, 3, dtype=torch.uint8)
    shapes = ({0: torch.export.Dim.DYNAMIC, 1: auto, 2: auto},)
    program: Any = None
    try:
        with alone_with_the_exporter():
            embedder = copy.deepcopy(embedder).eval()
            program = torch.export.export(embedder, (example,), dynamic_shapes=shapes, strict=False)
            graph: Any = torch.onnx.export(
                program, (), input_names=["images"], output_names=["embeddings"], dynamo=True, verbose=False
            )
        return bytes(graph.model_proto.SerializeToString())
    except Exception as error:  # the exporter fails in its own way for every operation that it does not know
        layer, cause = _layer_of(error, program, embedder), _first_cause(error)
        where = f" (layer {layer})" if layer else ""
        reason = f"{embedder.name} cannot be exported{where}: {type(cause).__name__}: {one_line(cause, 160)}"
        # What happened outside all layers, such as a driver that failed, says nothing about the network.
        raise NoGraph(reason, lasting=layer is not None and not isinstance(cause, MemoryError | OSError)) from error


def _first_cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _layer_of(error: BaseException, program: Any, embedder: Embedder) -> str | None:
    """Return the layer in which an export failed: its code raised the error, or its operation is not in ONNX.

    Returns:
        Its name; "" where it is the whole network, and None where no layer had to do with it.
    """
    names = {id(module): name for name, module in embedder.network.named_modules()}
    layer: str | None = None
    cause: BaseException | None = error
    while cause is not None:
        trace = cause.__traceback__
        while trace is not None:
            layer = names.get(id(trace.tb_frame.f_locals.get("self")), layer)
            trace = trace.tb_next
        cause = cause.__cause__ or cause.__context__
    for node in program.graph.nodes if program is not None else ():
        if f"%{node.name} " in str(error) and node.meta.get("nn_module_stack"):
            layer = [path for path, _ in node.meta["nn_module_stack"].values()][-1].removeprefix("network.")
    return layer
