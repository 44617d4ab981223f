"""``replicas``: answer from one model that never changes in several processes, or on several GPUs, with LitServe."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, Literal

import torch
from fastapi import HTTPException
from litserve import LitAPI
from pydantic import BaseModel, Field

from cifnet_pl.model.classifier import Prediction
from cifnet_pl.model.open_set import able
from cifnet_pl.model.store import load
from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.serving.answers import Candidate, PhotoAnswer
from cifnet_pl.serving.refusals import check_shares, given_token
from cifnet_pl.serving.uploads import Limits, opened
from cifnet_pl.utilities.errors import UsageError

Asked = tuple[float | None, float | None]
TOP = 5


class Photo(BaseModel):
    """One photo."""

    image: str = Field(description="content of an image file, base64")


class Replica(LitAPI):  # type: ignore[misc]
    """Answers from one model, which it never changes.

    Args:
        model: a run's folder, a checkpoint file or a bundle.
        asked: share that may be called unknown and coverage of the sets of answers; None for what is not to be said.
        trust: as for :func:`cifnet_pl.load`.
        options: of LitAPI.
    """

    def __init__(self, model: str, asked: Asked = (0.05, 0.95), trust: bool = False, **options: Any):
        super().__init__(**options)
        self._place, self._asked, self._trust = model, asked, trust

    def setup(self, device: str) -> None:
        """Load the model, in the process of the replica."""
        torch.set_num_threads(1)  # replicas share the cores
        self.model = load(self._place, device=device, trust=self._trust)
        self.limits, self.asked = Limits(), able(self.model, *self._asked)

    def decode_request(self, request: Photo, **options: Any) -> bytes:
        """Return the content of the image file; HTTP error 422 if it is none."""
        try:
            content = base64.b64decode(request.image, validate=True)
            opened(content, self.limits).close()
        except (binascii.Error, ValueError) as error:
            raise HTTPException(422, "image must be the content of an image file as base64 text") from error
        except UnreadableImage as error:
            raise HTTPException(422, f"the image cannot be decoded: {error}") from error
        return content

    def predict(self, x: list[bytes], **options: Any) -> list[Prediction]:
        """Name what is on each photo of a batch."""
        unknown, coverage = self.asked
        return list(self.model.classify(x, TOP, unknown=unknown, coverage=coverage))

    def batch(self, inputs: list[bytes]) -> list[bytes]:
        """Return the photos as a list, because they have different sizes."""
        return inputs

    def unbatch(self, output: list[Prediction]) -> list[Prediction]:
        """Return the list of answers."""
        return output

    def encode_response(self, output: Prediction, **options: Any) -> PhotoAnswer:
        """Return the fields that ``/classify`` of ``serve`` has."""
        pairs = zip(output.classes, output.probabilities, strict=True)
        return PhotoAnswer(
            file="image",
            classes=[Candidate(name=name, probability=share) for name, share in pairs],
            known=output.known,
            novelty=output.novelty,
            p_value=output.p_value,
            answers=None if output.answers is None else list(output.answers),
            unreadable=output.unreadable,
        )


BATCH = 16
"""Photos that a replica takes at a time."""

WINDOW = 0.005
"""Seconds that it waits for them."""

LARGEST = 2**26
"""Bytes of a request."""


def replicas(
    model: str,
    count: int = 2,
    port: int = 8000,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    unknown: float | None = 0.05,
    coverage: float | None = 0.95,
    token: str | None = None,
    token_file: str | None = None,
    trust: bool = False,
) -> None:
    """Answer from a model in several processes, on this machine's own address: read-only, behind a proxy of yours.

    Each takes ``POST /classify`` with ``{"image": "…"}``, an image file as base64.

    Args:
        model: a run's folder, a checkpoint file or a bundle; it is not changed.
        count: number of processes per device.
        port: to listen on.
        device: what computes; with cuda, every GPU.
        unknown: share of photos of known classes that may be called "none of these"; null never to say so.
        coverage: chance that the right class is in the set of answers; null to give no set.
        token: what clients must send; better in a file, as other users of a machine can see command lines.
        token_file: file with the token.
        trust: whether heads and networks from outside the package that a model names may be imported, code and all.

    Raises:
        UsageError: LitServe is not installed, there is no model, or an option makes no sense.
    """
    check_shares(unknown, coverage)
    secret = given_token(token, token_file)
    try:
        from litserve import LitServer

        from cifnet_pl.serving.app import Guard, Rate
    except ImportError as error:
        raise UsageError(f"replicas needs {error.name}: pip install 'cifnet_pl[replicas]'") from None
    path = Path(model).expanduser()
    if not path.exists():
        raise UsageError(f"there is no model at {model}: give a run's folder, a checkpoint file or a bundle")
    if not 1 <= count <= 256 or not 0 < port < 2**16:
        raise UsageError(f"--count is {count} and --port {port}, expected 1 to 256 and 1 to {2**16 - 1}")
    asked = (unknown, coverage)
    api = Replica(str(path), asked, trust, api_path="/classify", max_batch_size=BATCH, batch_timeout=WINDOW)
    guard = (Guard, {"token": secret, "any_host": secret is not None, "rate": Rate(0), "body_bytes": LARGEST})
    server = LitServer(api, accelerator=device, workers_per_device=count, middlewares=[guard])
    server.run(host="127.0.0.1", port=port, generate_client_file=False, log_level="warning")
