"""Embed images by a frozen backbone, without a head."""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.backbones import DEFAULT_BACKBONE, Backbone, build_backbone
from cifnet_pl.images.image import IMAGE_SIZE_LIMIT
from cifnet_pl.images.reader import (
    GivenImages,
    decode_images,
    image_location,
    iterate_images,
)
from cifnet_pl.utilities.errors import check_embeddings, check_that
from cifnet_pl.utilities.growing_tensors import chosen_device
from cifnet_pl.utilities.text import counted


class Embedded(NamedTuple):
    """Embeddings of images.

    Attributes:
        embeddings: (n, d) float32, on the CPU.
        files: of the n images; None for one that was given as bytes or as an image.
        unreadable: image that could not be read, as messages name it → why.
    """

    embeddings: Tensor
    files: list[Path | None]
    unreadable: dict[str, str]


def embed(
    images: GivenImages,
    backbone: str | Backbone = DEFAULT_BACKBONE,
    *,
    image_size: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Embedded:
    """Embed images by a frozen backbone as ``fit`` does: upright, resized and cropped to a square.

    Args:
        images: one image or many, see :data:`~cifnet_pl.images.reader.GivenImages`.
        backbone: the backbone, or its name (:func:`cifnet_pl.build_backbone`).
        image_size: side of the squares in pixels; None for the size and crop of the weights.
        device: where to compute; None for the first GPU if there is one, else the CPU.
        progress: whether to draw a bar on a terminal.

    Returns:
        The embeddings of the images that can be read, in the order given.

    Raises:
        DataError: a single path where there is no image, or something that is no image.
        UsageError: an unknown backbone, or an impossible size.
        NonFiniteError: an embedding holds NaN or infinity; names the image.

    Example::

        embeddings, files, unreadable = cifnet_pl.embed("images")
    """
    valid_size = image_size is None or 1 <= image_size <= IMAGE_SIZE_LIMIT
    expected = f"1 to {IMAGE_SIZE_LIMIT} pixels, or null"
    check_that(valid_size, "image_size", image_size, expected)
    place = chosen_device(device)
    if isinstance(backbone, str):
        backbone = build_backbone(backbone)
    backbone = backbone.to(place)
    crop_ratio = 1.0
    if image_size is None:
        image_size = backbone.preprocessing.image_size
        crop_ratio = backbone.preprocessing.crop_ratio
    embeddings = [torch.zeros(0, backbone.features)]
    files = list[Path | None]()
    unreadable = dict[str, str]()
    found = iterate_images(images)
    if progress:
        found = counted(found, "embedding")
    for batch in decode_images(found, image_size, crop_ratio, device=place.type):
        for image, reason in zip(batch.files, batch.unreadable, strict=True):
            if reason is not None:
                unreadable[image_location(image)] = reason
            elif isinstance(image, Path):
                files.append(image)
            else:
                files.append(None)
        z = backbone(batch.images.to(place)).cpu()
        check_embeddings(z, backbone.features, batch.location)
        embeddings.append(z)
    return Embedded(torch.cat(embeddings), files, unreadable)
