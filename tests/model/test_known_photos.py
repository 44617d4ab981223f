"""A model recognises photos that it has learned, by their contents or by its buffer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.known_photos import KnownPhotos
from tests.command_line import make_photos
from tests.models import learned


def test_learned_photos_are_recognised(tmp_path: Path):
    folder = make_photos(tmp_path / "photos", ["ant", "bee"], 6)
    model = learned("ridge", []).extend(folder).model
    new = make_photos(tmp_path / "more", ["ant", "bee"], 8)
    photos = ClassPhotos.find(new, "--images")  # the first six of each class are the same files
    known = KnownPhotos(model, photos)
    rows = np.arange(len(photos.files))
    far = torch.randn(len(rows), model.head.in_features, generator=torch.Generator().manual_seed(0))
    assert known.seen(rows, far).tolist() == [int(Path(name).stem) < 6 for name in photos.files.names]
    model.photos = None
    assert not KnownPhotos(model, photos).seen(rows, far).any()
