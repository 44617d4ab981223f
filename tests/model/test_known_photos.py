"""A model recognises photos that it has learned, by their contents or by its buffer."""

from __future__ import annotations

from pathlib import Path

from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.metrics import evaluate
from tests.command_line import make_photos
from tests.models import learned


def test_learned_photos_are_recognised(tmp_path: Path):
    model = learned("ridge", []).extend(make_photos(tmp_path / "photos", ["ant", "bee"], 6)).model
    # The first six of each class are the same files.
    photos = ClassPhotos.find(make_photos(tmp_path / "more", ["ant", "bee"], 8), "--images")
    told = evaluate(model, photos, []).seen()
    assert told == ["learned" if int(Path(name).stem) < 6 else "" for name in photos.files.names]
    model.photos = None
    assert set(evaluate(model, photos, []).seen()) == {""}
