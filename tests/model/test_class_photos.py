"""Photos are recognised by their contents: learned before, twice in a folder, or in two classes."""

import shutil
from pathlib import Path

import pytest

from cifnet_pl.photos import photo
from tests.command_line import make_photos
from tests.models import learned


def test_a_photo_is_opened_once_and_one_that_is_known_is_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = learned("ridge", []).extend(make_photos(tmp_path / "old", ["ant", "bee"], 4)).model
    make_photos(tmp_path / "new", ["cat", "dog"], 6)
    shutil.copytree(tmp_path / "old" / "ant", tmp_path / "new" / "ant")
    opened, decoded = [], []
    read, square = photo.read_bytes, photo.Photo.square
    monkeypatch.setattr(photo, "read_bytes", lambda path: opened.append(path) or read(path))
    monkeypatch.setattr(photo.Photo, "square", lambda self, *shape: decoded.append(self.hash) or square(self, *shape))
    extension = model.extend(tmp_path / "new", more=True)
    assert sorted(opened) == sorted((tmp_path / "new").rglob("*.png"))
    assert len(decoded) == len(set(decoded)) == 12
    assert extension.learned == {"cat": 6, "dog": 6}
