"""Decode the photos of a batch and classify them, in each replica. Needs LitServe.

LitServe reads the annotation of a request at run time, so annotations must not be strings in this module.
"""

import base64
import binascii
from typing import Any

import torch
from fastapi import HTTPException
from litserve import LitAPI
from pydantic import BaseModel, Field

from cifnet_pl.data.images import UnreadableImage
from cifnet_pl.model.classifier import Prediction
from cifnet_pl.model.loading import load
from cifnet_pl.model.open_set import able
from cifnet_pl.serving.answers import Candidate, PhotoAnswer
from cifnet_pl.serving.uploads import Limits, opened

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
