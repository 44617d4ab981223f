"""Export one ONNX graph from images to calibrated probabilities, with resize and normalisation
inside.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from cifnet_pl.backbones.onnx_graphs import exclusive_export
from cifnet_pl.backbones.onnx_runtime import import_onnxruntime
from cifnet_pl.images.image import square
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.statistics import to_probabilities
from cifnet_pl.utilities.errors import CifnetError, explained
from cifnet_pl.utilities.files import rendered

TOLERANCE = 1e-4
"""Largest difference of a probability between onnxruntime and torch that an export is good for."""

WIDEST = 4096
"""Features up to which a graph holds the matrix of the novelty: 134 MB."""

SHARES = (0.01, 0.02, 0.05, 0.1)
"""Shares of images of known classes above the thresholds of novelty that are noted in the file."""

CUBIC = -0.5
"""The cubic kernel's parameter, as Pillow has it."""


def cubic_kernel(x: Tensor) -> Tensor:
    """Compute Keys' cubic convolution kernel (1981) at distances ``x``."""
    x = x.abs()
    near = ((CUBIC + 2) * x - (CUBIC + 3)) * x.square() + 1
    far = CUBIC * (((x - 5) * x + 8) * x - 4)
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


class Square(nn.Module):
    """:func:`cifnet_pl.images.image.square` for a batch of RGB images of one size, any size, as two
    matrix products.

    The weights are Pillow's: a cubic kernel, widened to the sampling step where that is larger than
    a pixel, around the centre of every target pixel within the cropped box; the rows are
    normalised, and both passes round to 8 bits.
    """

    def __init__(self, size: int, crop_ratio: float):
        super().__init__()
        self.size = size
        self.crop_ratio = crop_ratio

    def forward(self, images: Tensor) -> Tensor:
        """Return (n, h, w, 3) uint8 → (n, 3, size, size) float32 with whole numbers 0–255."""
        height = images.shape[1]
        width = images.shape[2]
        rows, columns = (
            torch.scalar_tensor(side, dtype=torch.float64) for side in (height, width)
        )
        side = torch.minimum(rows, columns) * self.crop_ratio
        x = images.permute(0, 3, 1, 2).float()
        x = _to_8_bits(x @ self._weights(width, columns, side).T)
        return _to_8_bits(self._weights(height, rows, side) @ x)

    def _weights(self, pixels: int, length: Tensor, side: Tensor) -> Tensor:
        """Return the weights (size, pixels) float32 of one pass; ``length`` is ``pixels`` as a
        tensor.
        """
        step = side / self.size
        centre = (length - side) / 2 + (
            torch.arange(self.size, dtype=torch.float64) + 0.5
        ) * step
        position = torch.arange(pixels, dtype=torch.float64) + 0.5
        weights = cubic_kernel(
            (position[None] - centre[:, None]) / torch.clamp_min(step, 1.0)
        )
        return (weights / weights.sum(dim=1, keepdim=True)).float()


def _to_8_bits(x: Tensor) -> Tensor:
    return (x + 0.5).floor().clamp(0, 255)  # halves upwards, as in fixed point


class HeadGraph(nn.Module):
    """Embeddings (n, d) → calibrated probabilities (n, C) and, if the head can tell it, novelty
    (n,); all float32.

    A head with more than ``WIDEST`` features has no novelty here: its matrix would be most of the
    file.
    """

    input_name = "embeddings"

    def __init__(self, model: Classifier):
        super().__init__()
        self.about = (
            f"embeddings: float32 (n, {model.head.in_features}), from the network that this was"
            " learned with"
        )
        self.example = torch.zeros(2, model.head.in_features)
        self.scoring = model.head.scoring()
        self.temperature: Tensor = nn.Buffer(model.head.temperature.clone())
        self.odds_power: Tensor = nn.Buffer(model.head.odds_power.clone())
        features = (
            model.head.distances().moments.gram.shape[0]
            if model.head.tells_novelty
            else None
        )
        self.too_wide = features if features is not None and features > WIDEST else None
        told = features is not None and self.too_wide is None
        self.measuring = model.head.novelty_function() if told else None

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return ["probabilities"] + ["novelty"] * (self.measuring is not None)

    def forward(self, embeddings: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs; everything after the embedding is in float64, as in the head."""
        probabilities = to_probabilities(
            self.scoring(embeddings), self.temperature, self.odds_power
        ).float()
        if self.measuring is None:
            return (probabilities,)
        return (probabilities, self.measuring(embeddings).float())


class Graph(HeadGraph):
    """Images (n, h, w, 3) uint8 RGB → what :class:`HeadGraph` gives for their embeddings."""

    input_name = "images"

    def __init__(self, model: Classifier):
        super().__init__(model)
        self.about = (
            "images: uint8 RGB (n, height, width, 3), all of one size, any size"
        )
        self.example = torch.zeros(
            2, model.image_size + 3, model.image_size + 5, 3, dtype=torch.uint8
        )
        self.square = Square(model.image_size, model.crop_ratio)
        self.network = model.backbone.network
        self.scale: Tensor = nn.Buffer(model.backbone.scale)
        self.shift: Tensor = nn.Buffer(model.backbone.shift)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all outputs."""
        return super().forward(
            self.network(self.square(images) * self.scale + self.shift)
        )


class Check(NamedTuple):
    """Largest differences between the exported graph and this package.

    Attributes:
        torch: of a probability, between onnxruntime and torch.
        pillow: of a probability, between the graph and Pillow's resize; None for a graph that takes
            embeddings.
        novelty: relative, of the novelty; None for a graph without it.
        too_wide: number of features, where these are why there is no novelty; else None.
    """

    torch: float
    pillow: float | None
    novelty: float | None = None
    too_wide: int | None = None


def onnx_bytes(model: Classifier) -> tuple[bytes, Check]:
    """Export a model, and check the graph with onnxruntime on real images or on random embeddings.

    Args:
        model: a learned model.

    Returns:
        The content of an ONNX file, and how far it is from torch.

    Raises:
        CifnetError: this backbone or head cannot be expressed, or the check failed.
    """
    import onnx

    model = copy.deepcopy(model).to("cpu")  # the network too: another thread may use it
    graph = (Graph if model.backbone.takes_images else HeadGraph)(model).eval()
    program = _exported(graph)
    proto: Any = program.model_proto
    metadata = _thresholds(model, graph) | {
        "class_names": json.dumps(model.class_names),
        "input": graph.about,
        "output": (
            "probabilities: float32 (n, classes), calibrated, in the order of class_names"
            + "; novelty: float32 (n), larger is more foreign"
            * ("novelty" in graph.outputs)
        ),
        "backbone": f"{model.backbone.name} sha256 {model.backbone.sha256}",
        "image_size": str(model.image_size),
        "crop_ratio": str(model.crop_ratio),
        "producer": f"cifnet_pl {version('cifnet_pl')}",
    }
    onnx.helper.set_model_props(proto, metadata)
    _strip(proto.graph)
    content = proto.SerializeToString()
    return content, check_onnx(content, graph, model)


def _thresholds(model: Classifier, graph: HeadGraph) -> dict[str, str]:
    """Return the novelty above which an image is called unknown, for each of ``SHARES``, as
    metadata of the graph.
    """
    asked, _ = model.available_shares(unknown=SHARES[0])
    if asked is None or "novelty" not in graph.outputs:
        return {}
    limits = {f"{share:g}": model.judge(unknown=share).limit for share in SHARES}
    return {
        "unknown_above": json.dumps(
            {share: limit for share, limit in limits.items() if limit is not None}
        )
    }


def _exported(graph: HeadGraph) -> Any:
    sides = range(
        graph.example.ndim - 1
    )  # all but the last one, of channels or features
    with (
        explained(CifnetError, "this model cannot be written as ONNX"),
        exclusive_export(),
    ):
        return torch.onnx.export(
            graph,
            (graph.example,),
            input_names=[graph.input_name],
            output_names=graph.outputs,
            dynamic_shapes=(dict.fromkeys(sides, torch.export.Dim.DYNAMIC),),
            dynamo=True,
            verbose=False,
        )


def _strip(graph: Any) -> None:
    """Remove the exporter's notes about its own source code, which hold paths of this machine."""
    for element in (
        graph,
        *graph.node,
        *graph.value_info,
        *graph.initializer,
        *graph.input,
        *graph.output,
    ):
        del element.metadata_props[:]
        element.doc_string = ""


def check_onnx(content: bytes, graph: HeadGraph, model: Classifier) -> Check:
    """Compare onnxruntime with torch, on two images (whole and cut; alone and in a batch) or on
    embeddings.

    Args:
        content: of the ONNX file.
        graph: what was exported.
        model: what it was made from.

    Raises:
        CifnetError: a probability differs by more than ``TOLERANCE``, or the novelty relatively.
    """
    session = import_onnxruntime().InferenceSession(
        content, providers=["CPUExecutionProvider"]
    )
    off = 0.0
    far = 0.0 if isinstance(graph, Graph) else None
    strange = 0.0 if "novelty" in graph.outputs else None
    for batch in (
        _natural_images()
        if isinstance(graph, Graph)
        else _embeddings(model.head.in_features)
    ):
        scores, *novelty = session.run(None, {graph.input_name: batch})
        with torch.no_grad():
            expected, *measured = (
                output.numpy() for output in graph(torch.from_numpy(batch))
            )
        if strange is not None:
            strange = max(
                strange,
                _distance(novelty[0], measured[0])
                / max(1.0, float(np.abs(measured[0]).max())),
            )
        off = max(off, _distance(scores, expected))
        if far is None:
            continue
        squares = [
            square(Image.fromarray(image), model.image_size, model.crop_ratio)
            for image in batch
        ]
        pillow = (
            model.probabilities(torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2))
            .cpu()
            .numpy()
        )
        far = max(far, _distance(scores, pillow))
    if not off <= TOLERANCE:
        raise CifnetError(
            f"onnxruntime differs from torch by {off:.1g} in a probability, more than {TOLERANCE:g}"
        )
    if strange is not None and not strange <= TOLERANCE:
        raise CifnetError(
            f"onnxruntime differs from torch by a share of {strange:.1g} in the novelty of an image"
        )
    return Check(off, far, strange, graph.too_wide)


def _natural_images() -> Iterator[np.ndarray]:
    """Yield batches (n, h, w, 3) uint8."""
    from sklearn.datasets import load_sample_images

    images: Sequence[np.ndarray] = load_sample_images().images
    cuts = [np.stack(images), *(image[None] for image in images)]
    cuts += [
        cuts[1][:, 30:230, 50:170],
        cuts[2].transpose(0, 2, 1, 3),
        cuts[2][:, ::9, ::9],
    ]
    return (np.array(cut, order="C") for cut in cuts)


def _embeddings(width: int) -> Iterator[np.ndarray]:
    """Return batches (n, ``width``) float32."""
    z = np.random.default_rng(0).standard_normal((64, width), dtype=np.float32)
    return iter((z, z[:1], 100 * z, z * np.abs(z)))


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a - b).max())


TRITON = Path(__file__).parent / "templates" / "config.pbtxt"


def triton_config(name: str, classes: int, graph: bytes) -> str:
    """Return the content of ``config.pbtxt``.

    Args:
        name: of the model, which is its folder's.
        classes: number of them.
        graph: as :func:`cifnet_pl.model.export.onnx_bytes` gives it.
    """
    import onnx

    outputs = {
        output.name for output in onnx.load_model_from_string(graph).graph.output
    }
    return rendered(TRITON, name=name, classes=classes, novelty="novelty" in outputs)
