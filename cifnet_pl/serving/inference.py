"""Serve the Open Inference Protocol, version 2, which Triton and KServe speak: tensors in, tensors out.

The specification is at https://github.com/kserve/open-inference-protocol. Images come as raw pixels, or as the bytes of
JPEG, PNG, … files: in JSON as base64, or behind the JSON as Triton's binary tensor extension has it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable
from functools import partial
from importlib.metadata import version as package_version
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi import Path as InPath
from PIL import Image
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from cifnet_pl.photos.photo import UnreadableImage, square
from cifnet_pl.serving.api import ERRORS
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.serving.service import Service

Decode = Callable[[], np.ndarray]
Name = Annotated[str, InPath(max_length=200)]


class InputTensor(BaseModel):
    """Images: (n, height, width, 3) UINT8 pixels, or (n) BYTES with one image file each."""

    name: str = Field(max_length=200)
    shape: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(min_length=1, max_length=8)
    datatype: Literal["UINT8", "BYTES"]
    data: list[Any] | None = None
    parameters: dict[str, Any] = {}


class RequestedOutput(BaseModel):
    """One output that is asked for."""

    name: Literal["probabilities", "classes"]


class InferRequest(BaseModel):
    """A request of the protocol."""

    id: str | None = Field(default=None, max_length=200)
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[RequestedOutput] | None = None


class OutputTensor(BaseModel):
    """An output, row by row."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any]


class InferResponse(BaseModel):
    """The answer of the protocol."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


BODY = {
    "requestBody": {"content": {"application/json": {"schema": InferRequest.model_json_schema()}}, "required": True}
}


def protocol(service: Service) -> APIRouter:
    """Make the routes of the Open Inference Protocol."""
    router = APIRouter(prefix="/v2", tags=["Open Inference Protocol"], responses=ERRORS)

    def check(name: str) -> None:
        if name != service.options.name:
            raise RequestError(404, f"there is no such model; this service has '{service.options.name}'")

    @router.get("")
    async def server() -> dict[str, Any]:
        """What this server is."""
        return {"name": "cifnet_pl", "version": package_version("cifnet_pl"), "extensions": ["binary_tensor_data"]}

    @router.get("/health/live")
    async def live() -> dict[str, bool]:
        """Whether the service runs."""
        return {"live": True}

    @router.get("/health/ready")
    async def ready() -> dict[str, bool]:
        """Whether the service can answer."""
        return {"ready": True}

    @router.get("/models/{name}")
    async def model(name: Name) -> dict[str, Any]:
        """Inputs and outputs of the model."""
        check(name)
        served = service.learner.served
        inputs = [{"name": "images", "datatype": "UINT8", "shape": [-1, -1, -1, 3]}]
        outputs = [
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, len(served.model.class_names)]},
            {"name": "classes", "datatype": "BYTES", "shape": [-1]},
        ]
        about = {"name": name, "versions": [str(served.version)], "platform": "pytorch_cifnet_pl"}
        return {**about, "inputs": inputs, "outputs": outputs}

    @router.get("/models/{name}/ready")
    async def model_ready(name: Name) -> dict[str, Any]:
        """Whether the model can answer."""
        check(name)
        return {"name": name, "ready": True}

    @router.post("/models/{name}/infer", openapi_extra=BODY, response_model_exclude_none=True)
    async def infer(name: Name, request: Request) -> InferResponse:
        """Probabilities of images, and the most probable class of each."""
        check(name)
        body = await request.body()
        header = request.headers.get("inference-header-content-length")
        asked, decoders = await run_in_threadpool(_parsed, body, header, service)
        futures = [service.batcher.submit(decode) for decode in decoders]
        try:
            scored = [await asyncio.wrap_future(future) for future in futures]
        except UnreadableImage as error:
            raise RequestError(422, f"an image cannot be decoded: {error}") from error
        served = scored[-1].served
        if any(one.served is not served for one in scored):  # a change was stored meanwhile: one version for all
            scored = [await asyncio.wrap_future(service.batcher.submit(decode)) for decode in decoders]
            served = scored[-1].served
        names, wanted = served.model.class_names, [output.name for output in asked.outputs or []]
        if any(len(one.probabilities) != len(names) for one in scored):
            raise RequestError(503, "the model was changed while it answered: ask again")
        shares = np.stack([one.probabilities.numpy() for one in scored]).astype(np.float32)
        outputs = [
            OutputTensor(name="probabilities", shape=list(shares.shape), datatype="FP32", data=shares.ravel().tolist()),
            OutputTensor(
                name="classes", shape=[len(shares)], datatype="BYTES", data=[names[i] for i in shares.argmax(1)]
            ),
        ]
        kept = [output for output in outputs if not wanted or output.name in wanted]
        return InferResponse(model_name=name, model_version=str(served.version), id=asked.id, outputs=kept)

    return router


def _parsed(body: bytes, header: str | None, service: Service) -> tuple[InferRequest, list[Decode]]:
    """Parse a request.

    Args:
        body: of the request.
        header: value of ``Inference-Header-Content-Length``, or None.
        service: that answers.

    Returns:
        The request, and a function for each image that decodes it.

    Raises:
        RequestError: the request is not as the protocol defines it.
    """
    if header is not None and not (header.isascii() and header.isdecimal() and int(header[:12]) <= len(body)):
        raise RequestError(400, "Inference-Header-Content-Length is not a length within the request")
    length = len(body) if header is None else int(header[:12])
    try:
        asked = InferRequest.model_validate(json.loads(body[:length]))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])
        raise RequestError(
            422, f"the request is not as the protocol has it, at {field[:100]}: {first['msg']}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise RequestError(400, "the request is not JSON") from error
    tensor = asked.inputs[0]
    count = tensor.shape[0]
    if not 0 < count <= service.options.limits.photos:
        raise RequestError(422, f"the input has {count} images, expected 1 to {service.options.limits.photos}")
    binary = body[length:] if "binary_data_size" in tensor.parameters else None
    return asked, _files(tensor, binary, service) if tensor.datatype == "BYTES" else _pixels(tensor, binary, service)


def _files(tensor: InputTensor, binary: bytes | None, service: Service) -> list[Decode]:
    """Return the image files: length-prefixed behind the JSON, or base64 within it."""
    if len(tensor.shape) != 1:
        raise RequestError(422, f"BYTES input has shape {tensor.shape}, expected one number, the number of images")
    files: list[bytes] = []
    if binary is not None:
        while binary:
            size = int.from_bytes(binary[:4], "little")
            if len(binary) < 4 + size:
                raise RequestError(422, "the binary data ends within an image")
            files.append(binary[4 : 4 + size])
            binary = binary[4 + size :]
    else:
        try:
            files = [base64.b64decode(item, validate=True) for item in tensor.data or []]
        except (binascii.Error, TypeError, ValueError) as error:
            raise RequestError(422, "BYTES data in JSON must be image files as base64 text") from error
    if len(files) != tensor.shape[0]:
        raise RequestError(422, f"the input holds {len(files)} images, its shape says {tensor.shape[0]}")
    return [service.decoder(content) for content in files]


def _pixels(tensor: InputTensor, binary: bytes | None, service: Service) -> list[Decode]:
    """Return the raw pixels: behind the JSON, or as a flat or nested list within it."""
    shape = tensor.shape
    if len(shape) != 4 or shape[3] != 3 or not (0 < shape[1] * shape[2] <= service.options.limits.pixels):
        raise RequestError(422, f"UINT8 input has shape {shape}, expected (images, height, width, 3)")
    size = int(np.prod(shape, dtype=object))
    if binary is not None:
        flat = np.frombuffer(binary, dtype=np.uint8)
    else:
        try:
            values = np.asarray(tensor.data if tensor.data is not None else [])
            if values.dtype.kind not in "iu" or (values.size and not 0 <= values.min() <= values.max() <= 255):
                raise ValueError
            flat = values.astype(np.uint8).ravel()
        except (ValueError, OverflowError) as error:
            raise RequestError(422, "UINT8 data must be whole numbers from 0 to 255") from error
    if flat.size != size:
        raise RequestError(422, f"the input holds {flat.size} numbers, its shape needs {size}")
    model = service.model
    images = [Image.fromarray(image) for image in flat.reshape(shape)]
    return [partial(square, image, model.image_size, model.crop_ratio) for image in images]
