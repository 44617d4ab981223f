"""One ONNX graph from photos as they are to calibrated probabilities: resize and normalisation inside."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cifnet_pl.data.images import square
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import CifnetError, UsageError

TOLERANCE = 1e-4
"""Largest difference of a probability between onnxruntime and torch that an export is good for."""

CUBIC = -0.5
"""The cubic kernel's parameter, as Pillow has it."""


def cubic_kernel(x: Tensor) -> Tensor:
    """Keys' cubic convolution kernel (1981) at distances ``x``."""
    x = x.abs()
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x.square() + 1
    far = CUBIC * (((x - 5) * x + 8) * x - 4)
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


class Square(nn.Module):
    """:func:`cifnet_pl.data.images.square` for a batch of RGB images of one size, any size, as two matrix products.

    The weights are Pillow's: a cubic kernel, widened to the sampling step where that is larger than a pixel, around
    the centre of every target pixel within the cropped box; the rows are normalised, and both passes round to 8 bits.
    """

    def __init__(self, size: int, crop_ratio: float):
        super().__init__()
        self.size, self.crop_ratio = size, crop_ratio

    def forward(self, images: Tensor) -> Tensor:
        """(n, h, w, 3) uint8 → (n, 3, size, size) float32 with whole numbers 0–255."""
        height, width = images.shape[1], images.shape[2]
        rows, columns = (torch.scalar_tensor(side, dtype=torch.float64) for side in (height, width))
        side = torch.minimum(rows, columns) * self.crop_ratio
        x = images.permute(0, 3, 1, 2).float()
        x = _to_8_bits(x @ self._weights(width, columns, side).T)
        return _to_8_bits(self._weights(height, rows, side) @ x)

    def _weights(self, pixels: int, length: Tensor, side: Tensor) -> Tensor:
        """(size, pixels) float32 weights of one pass; ``length`` is ``pixels`` as a tensor."""
        step = side / self.size
        centre = (length - side) / 2 + (torch.arange(self.size, dtype=torch.float64) + 0.5) * step
        place = torch.arange(pixels, dtype=torch.float64) + 0.5
        weights = cubic_kernel((place[None] - centre[:, None]) / torch.clamp_min(step, 1.0))
        return (weights / weights.sum(dim=1, keepdim=True)).float()


def _to_8_bits(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)  # halves upwards, as in fixed point


class Graph(nn.Module):
    """Images (n, h, w, 3) uint8 RGB → calibrated probabilities (n, C) float32."""

    scale: Tensor
    shift: Tensor

    def __init__(self, model: Classifier):
        super().__init__()
        self.square = Square(model.image_size, model.crop_ratio)
        self.network = model.backbone.network
        self.register_buffer("scale", model.backbone.scale)
        self.register_buffer("shift", model.backbone.shift)
        self.scoring = model.head.scoring()
        self.temperature = float(model.head.temperature)

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities; everything after the embedding is in float64, as in the head."""
        z = self.network(self.square(images) * self.scale + self.shift)
        return torch.softmax(self.scoring(z) / self.temperature, dim=1).float()


class Check(NamedTuple):
    """Largest differences of a probability: onnxruntime from torch, and the graph from Pillow's resize."""

    torch: float
    pillow: float


def onnx_bytes(model: Classifier) -> tuple[bytes, Check]:
    """The graph as a file's content, checked with onnxruntime on real photos.

    Raises:
        UsageError: the packages for it are not installed.
        CifnetError: this backbone or head cannot be expressed, or the check failed.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401, the check needs it: better known now
        import onnxscript  # noqa: F401, torch's exporter needs it
    except ImportError as error:
        raise UsageError(f"--format onnx needs {error.name}: pip install {error.name}") from None
    graph = Graph(model.clone().to("cpu")).eval()
    program = _exported(graph)
    proto: Any = program.model_proto
    metadata = {
        "class_names": json.dumps(model.class_names),
        "input": "images: uint8 RGB (n, height, width, 3), all of one size, any size",
        "output": "probabilities: float32 (n, classes), calibrated, in the order of class_names",
        "backbone": f"{model.backbone.name} sha256 {model.backbone.sha256}",
        "image_size": str(model.image_size),
        "crop_ratio": str(model.crop_ratio),
        "producer": f"cifnet_pl {version('cifnet_pl')}",
    }
    onnx.helper.set_model_props(proto, metadata)
    _strip(proto.graph)
    content = proto.SerializeToString()
    return content, check_onnx(content, graph, model)


def _exported(graph: Graph) -> Any:
    size = torch.export.Dim.DYNAMIC
    example = torch.zeros(2, graph.square.size + 3, graph.square.size + 5, 3, dtype=torch.uint8)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # about torch's own internals
            return torch.onnx.export(
                graph,
                (example,),
                input_names=["images"],
                output_names=["probabilities"],
                dynamic_shapes=({0: size, 1: size, 2: size},),
                dynamo=True,
                verbose=False,
            )
    except Exception as error:  # torch's exporter fails in its own way for every operation that it does not know
        reason = " ".join(str(error).split())[:200]
        raise CifnetError(f"this model cannot be written as ONNX: {type(error).__name__}: {reason}") from error


def _strip(graph: Any) -> None:
    """Take out what the exporter notes about its own source code, paths of this machine included."""
    for part in (graph, *graph.node, *graph.value_info, *graph.initializer, *graph.input, *graph.output):
        del part.metadata_props[:]
        part.doc_string = ""


def check_onnx(content: bytes, graph: Graph, model: Classifier) -> Check:
    """Compare onnxruntime with torch on two photographs, whole, upright and cut, alone and in a batch.

    Raises:
        CifnetError: a probability differs by more than ``TOLERANCE``, or the class names do not come back.
    """
    import onnxruntime
    from sklearn.datasets import load_sample_images

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
    photos: Sequence[np.ndarray] = load_sample_images().images
    cuts = [np.stack(photos), *(photo[None] for photo in photos)]
    cuts += [cuts[1][:, 30:230, 50:170], cuts[2].transpose(0, 2, 1, 3), cuts[2][:, ::9, ::9]]
    off = far = 0.0
    for cut in cuts:
        batch = np.array(cut, order="C")
        found = session.run(None, {"images": batch})[0]
        with torch.no_grad():
            expected = graph(torch.from_numpy(batch)).numpy()
        squares = [square(Image.fromarray(image), model.image_size, model.crop_ratio) for image in batch]
        pillow = model.probabilities(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)).cpu().numpy()
        off, far = max(off, _distance(found, expected)), max(far, _distance(found, pillow))
    if names != model.class_names:
        raise CifnetError("the class names do not come back from the ONNX file as they were")
    if not off <= TOLERANCE:
        raise CifnetError(f"onnxruntime differs from torch by {off:.1g} in a probability, more than {TOLERANCE:g}")
    return Check(off, far)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())
