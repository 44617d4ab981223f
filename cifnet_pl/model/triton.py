"""Write an ONNX graph as an entry of a model repository, which Triton and KServe's Triton runtime serve."""

from __future__ import annotations

from typing import Any

from cifnet_pl.utilities.errors import CifnetError

BATCH = 64
"""Largest number of images that the server puts into one call."""

DELAY = 5000
"""Microseconds that the server waits for images of the same size to join a batch."""

CONFIG = """# images: RGB, all of a request of one size; probabilities: in the order of labels.txt
name: "{name}"
platform: "onnxruntime_onnx"
max_batch_size: {batch}
input [
  {{
    name: "images"
    data_type: TYPE_UINT8
    dims: [ -1, -1, 3 ]
  }}
]
output [
  {{
    name: "probabilities"
    data_type: TYPE_FP32
    dims: [ {classes} ]
    label_filename: "labels.txt"
  }}{more}
]
dynamic_batching {{
  max_queue_delay_microseconds: {delay}
}}
"""

NOVELTY = """,
  {
    name: "novelty"
    data_type: TYPE_FP32
    dims: [ 1 ]
    reshape { shape: [ ] }
  }"""
"""The second output, one number an image, of a graph that has it."""


def triton_config(name: str, classes: int, graph: bytes) -> str:
    """Return the content of ``config.pbtxt``, checked against the inputs and outputs of the graph.

    Args:
        name: of the model, which is its folder's.
        classes: number of them.
        graph: as :func:`cifnet_pl.model.onnx.onnx_bytes` gives it.

    Raises:
        CifnetError: the graph has other inputs or outputs than the configuration says.
    """
    tensors = _tensors(graph)
    expected = {"images": ("UINT8", [-1, -1, -1, 3]), "probabilities": ("FLOAT", [-1, classes])}
    more = "novelty" in tensors
    if more:
        expected["novelty"] = ("FLOAT", [-1])
    if tensors != expected:
        raise CifnetError(f"the ONNX graph has {tensors}, expected {expected}")
    return CONFIG.format(name=name, batch=BATCH, classes=classes, delay=DELAY, more=NOVELTY if more else "")


def _tensors(graph: bytes) -> dict[str, tuple[str, list[int]]]:
    """Return the inputs and outputs of a graph: name → type and shape, in which -1 is any length."""
    import onnx

    proto: Any = onnx.load_model_from_string(graph).graph
    tensors = {}
    for value in (*proto.input, *proto.output):
        tensor = value.type.tensor_type
        sides = [side.dim_value if side.HasField("dim_value") else -1 for side in tensor.shape.dim]
        tensors[value.name] = (onnx.TensorProto.DataType.Name(tensor.elem_type), sides)
    return tensors
