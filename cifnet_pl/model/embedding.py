"""Turn photos into vectors by a frozen network, without learning anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.model.core import embed_images
from cifnet_pl.photos.photo import AnyPhoto
from cifnet_pl.photos.reading import photos_of, place_of, squares
from cifnet_pl.utilities.text import counted

BACKBONE = "embedded:efficientnet_lite0"
"""The network that comes with the package's dependencies."""


class Embedded(NamedTuple):
    """Vectors of photos.

    Attributes:
        embeddings: (n, d) float32, on the CPU.
        files: of the n photos; None for one that was given as bytes or as an image.
        unreadable: photo that could not be read, as messages name it → why.
    """

    embeddings: Tensor
    files: list[Path | None]
    unreadable: dict[str, str]


def embed(
    photos: AnyPhoto | str | Iterable[AnyPhoto | str],
    backbone: str | Backbone = BACKBONE,
    *,
    image_size: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Embedded:
    """Embed photos by a frozen network, as ``fit`` does: upright, resized and cropped to a square.

    Args:
        photos: one photo or many: paths, bytes of image files, or Pillow images. A single path may also be a folder
            with photos, a Zip archive, or a pattern.
        backbone: the network, or its name (:func:`cifnet_pl.build_backbone`).
        image_size: side of the squares in pixels; None for the size and crop that the weights were made for.
        device: where to compute; None for the first GPU if there is one, else the CPU.
        progress: whether to draw a bar on a terminal.

    Returns:
        The vectors of the photos that can be read, in the order given.

    Raises:
        DataError: a single path where there is no photo.
        UsageError: something that is no photo, or an unknown network.
        NonFiniteError: an embedding holds NaN or infinity; names the photo.

    Example::

        vectors, files, unreadable = cifnet_pl.embed("photos")
    """
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    network = (build_backbone(backbone) if isinstance(backbone, str) else backbone).to(place)
    shape = network.preprocessing
    size, crop_ratio = (shape.image_size, shape.crop_ratio) if image_size is None else (image_size, 1.0)
    parts, files, unreadable = [torch.zeros(0, network.features)], list[Path | None](), dict[str, str]()
    batches = squares(photos_of(photos), size, crop_ratio)
    for batch in counted(batches, "embedding") if progress else batches:
        readable = []
        for photo, reason in zip(batch.files, batch.unreadable, strict=True):
            if reason is None:
                readable.append(photo)
            else:
                unreadable[place_of(photo)] = reason
        parts.append(embed_images(network, batch.image.to(place), [*map(place_of, readable)].__getitem__).cpu())
        files += [photo if isinstance(photo, Path) else None for photo in readable]
    return Embedded(torch.cat(parts), files, unreadable)
