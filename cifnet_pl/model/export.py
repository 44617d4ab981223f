"""Export one ONNX graph from images to calibrated probabilities, preprocessing included."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.backbones import Backbone
from cifnet_pl.backbones.engines import (
    exclusive_export,
    photographs,
)
from cifnet_pl.heads import Head
from cifnet_pl.statistics import to_probabilities
from cifnet_pl.utilities.errors import CifnetError, explained
from cifnet_pl.utilities.version import __version__

TOLERANCE = 1e-4
"""Largest accepted difference of a probability between onnxruntime and torch."""


def cubic_kernel(x: Tensor) -> Tensor:
    """Compute Keys' cubic convolution kernel (1981) with a = −1/2, as in Pillow."""
    x = x.abs()
    slope = 1.5 * x - 2.5
    near = slope * x.square() + 1
    bend = 2.5 - 0.5 * x
    far = 2 - x * (4 - x * bend)
    beyond = torch.zeros_like(x)
    outside = torch.where(x < 2, far, beyond)
    return torch.where(x < 1, near, outside)


class Square(nn.Module):
    """Resize and crop RGB images of one size to squares, as two matrix products.

    It resizes and crops a batch as :func:`cifnet_pl.images.image.square` does; orientation and
    colours must be right already. The weights are Pillow's: a cubic
    kernel, widened to the sampling step where that is larger than a pixel, around the centre of
    every target pixel within the cropped box. The rows are normalised, and both passes round to 8
    bits.

    Args:
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
    """

    def __init__(self, size: int, crop_ratio: float):
        super().__init__()
        self.size = size
        self.crop_ratio = crop_ratio

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, h, w, 3) uint8 as (n, 3, size, size) float32 with whole numbers 0–255."""
        height = images.shape[1]
        width = images.shape[2]
        rows = torch.scalar_tensor(height, dtype=torch.float64)
        columns = torch.scalar_tensor(width, dtype=torch.float64)
        short_side = torch.minimum(rows, columns)
        side = short_side * self.crop_ratio
        pixels = images.permute(0, 3, 1, 2).float()
        across = self._weights(width, columns, side)
        resized = pixels @ across.T
        narrow = _round_to_8_bits(resized)
        down = self._weights(height, rows, side)
        return _round_to_8_bits(down @ narrow)

    def _weights(self, pixels: int, length: Tensor, side: Tensor) -> Tensor:
        """Return the weights (size, pixels) float32 of one pass.

        Args:
            pixels: length of the image in this direction.
            length: the same as a tensor.
            side: length of the cropped part.
        """
        step = side / self.size
        first = (length - side) / 2
        offsets = torch.arange(self.size, dtype=torch.float64) + 0.5
        centre = first + offsets * step
        pixel_numbers = torch.arange(pixels, dtype=torch.float64)
        position = pixel_numbers + 0.5
        apart = position[None] - centre[:, None]
        width = torch.clamp_min(step, 1.0)
        weights = cubic_kernel(apart / width)
        total = weights.sum(dim=1, keepdim=True)
        return (weights / total).float()


def _round_to_8_bits(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)  # halves upwards, as in fixed point


class HeadGraph(nn.Module):
    """Map embeddings (n, d) to probabilities (n, C) and, if the head has it, novelty (n,).

    All are float32.

    Args:
        head: solved, on the CPU.

    Attributes:
        input_name: name of the input.
        about: description of the input.
        example: an input.
        outputs: names of the outputs.
    """

    input_name = "embeddings"

    def __init__(self, head: Head):
        super().__init__()
        self.about = (
            f"embeddings: float32 (n, {head.in_features}), from the backbone that the model was"
            " learned with"
        )
        self.example = torch.zeros(2, head.in_features)
        self.scoring = head.scoring()
        self.temperature = head.temperature
        self.odds_power = head.odds_power
        self.outputs = ["probabilities"]
        self.measuring = None
        if head.tells_novelty:
            self.outputs.append("novelty")
            self.measuring = head.novelty_function()

    def forward(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs; everything after the embedding is in float64, as in the head."""
        scores = self.scoring(embeddings)
        probabilities = to_probabilities(
            scores, self.temperature, self.odds_power
        ).float()
        if self.measuring is None:
            return (probabilities,)
        return (probabilities, self.measuring(embeddings).float())


class Graph(HeadGraph):
    """Map images (n, h, w, 3) uint8 RGB to what :class:`HeadGraph` gives for their embeddings.

    Args:
        head: solved, on the CPU.
        backbone: on the CPU.
        square: what resizes and crops images for the backbone.
    """

    input_name = "images"

    def __init__(self, head: Head, backbone: Backbone, square: Square):
        super().__init__(head)
        self.about = (
            "images: uint8 RGB (n, height, width, 3), all of one size, any size"
        )
        height = square.size + 3
        width = square.size + 5
        self.example = torch.zeros(2, height, width, 3, dtype=torch.uint8)
        self.square = square
        self.backbone = backbone

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs."""
        pixels = self.square(images)
        x = self.backbone.normalised(pixels)
        return super().forward(self.backbone.network(x))


class ExportCheck(NamedTuple):
    """Largest differences between onnxruntime and torch.

    Attributes:
        probability: of a probability.
        novelty: of the novelty, relative; None for a graph without it.
    """

    probability: float
    novelty: float | None = None


class Export(NamedTuple):
    """An exported model.

    Attributes:
        content: of an ONNX file.
        check: how far it is from this package.
    """

    content: bytes
    check: ExportCheck


def onnx_bytes(graph: HeadGraph, metadata: dict[str, str]) -> Export:
    """Export a graph, and check it with onnxruntime on real images or random embeddings.

    Args:
        graph: of a learned model.
        metadata: of the file, besides the descriptions of input and output.

    Raises:
        CifnetError: this backbone or head cannot be expressed, or the check failed.
    """
    import onnx

    graph.eval()
    proto = _exported(graph).model_proto
    output = (
        "probabilities: float32 (n, classes), calibrated, in the order of class_names"
    )
    if "novelty" in graph.outputs:
        output += "; novelty: float32 (n), larger is more novel"
    about = {
        "input": graph.about,
        "output": output,
        "producer": f"cifnet_pl {__version__}",
    }
    onnx.helper.set_model_props(proto, about | metadata)
    # The exporter's notes about its own source code hold paths of this machine.
    written = proto.graph
    tensors = (
        *written.value_info,
        *written.initializer,
        *written.input,
        *written.output,
    )
    for element in (written, *written.node, *tensors):
        del element.metadata_props[:]
        element.doc_string = ""
    content = proto.SerializeToString()
    return Export(content, check_onnx(content, graph))


def _exported(graph: HeadGraph) -> Any:
    # All dimensions but the last one, of channels or features, may have any size.
    dimensions = range(graph.example.ndim - 1)
    shape = dict.fromkeys(dimensions, torch.export.Dim.DYNAMIC)
    with (
        explained(CifnetError, "this model cannot be written as ONNX"),
        exclusive_export(),
    ):
        return torch.onnx.export(
            graph,
            (graph.example,),
            input_names=[graph.input_name],
            output_names=graph.outputs,
            dynamic_shapes=(shape,),
            dynamo=True,
            verbose=False,
        )


# ---------------------------------------------------------------------- check


def check_onnx(content: bytes, graph: HeadGraph) -> ExportCheck:
    """Compare onnxruntime with torch on two images (whole, cut, in a batch) or on embeddings.

    Args:
        content: of the ONNX file.
        graph: what was exported.

    Raises:
        CifnetError: a probability differs by more than ``TOLERANCE``, or the novelty relatively.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    if isinstance(graph, Graph):
        # Two images, a tall part of one, and every ninth pixel.
        images = photographs()
        parts = (images[:1, 30:230, 50:170], images[1:, ::9, ::9])
        batches = [images, *map(np.ascontiguousarray, parts)]
    else:
        # Usual embeddings, a single one, and large ones.
        size = (64, graph.example.shape[-1])
        z = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
        batches = [z, z[:1], 100 * z]
    largest = dict.fromkeys(graph.outputs, 0.0)
    for batch in batches:
        found = session.run(None, {graph.input_name: batch})
        with torch.no_grad():
            expected = graph(torch.from_numpy(batch))
        for name, a, b in zip(graph.outputs, found, expected, strict=True):
            scale = float(b.abs().max().clamp_min(1))
            difference = float(np.abs(a - b.numpy()).max()) / scale
            if not difference <= TOLERANCE:  # also where it is NaN
                raise CifnetError(
                    f"onnxruntime differs from torch by {difference:.1g} in {name}, more than"
                    f" {TOLERANCE:g}"
                )
            largest[name] = max(largest[name], difference)
    return ExportCheck(largest["probabilities"], largest.get("novelty"))
