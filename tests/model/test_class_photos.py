"""Photos are recognised by their contents: learned before, twice in a folder, or in two classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cifnet_pl.model.class_photos import ClassPhotos, copies_among
from cifnet_pl.model.core import PhotoHashes
from cifnet_pl.model.metrics import evaluate
from cifnet_pl.photos import photo
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_photos
from tests.models import learned


def photos_in(folder: Path) -> ClassPhotos:
    return ClassPhotos.find(folder, "--images")


def test_copies_are_left_out_or_kept(tmp_path: Path):
    model = learned("ridge", []).extend(make_photos(tmp_path / "old", ["ant", "bee"], 4)).model
    new = make_photos(tmp_path / "new", ["cat"], 4)
    shutil.copy(new / "cat" / "0.png", new / "cat" / "twice.png")
    (new / "ant").mkdir()
    shutil.copy(tmp_path / "old" / "ant" / "1.png", new / "ant" / "again.png")
    shutil.copy(new / "cat" / "2.png", new / "ant" / "mislabelled.png")
    photos = photos_in(new)
    copies, _, sentences = copies_among(model, photos, "leave_out")
    assert [photos.files.names[row] for row in copies] == ["ant/again.png", "cat/twice.png"]
    extension = model.extend(new, more=True)
    assert [path.name for path in extension.copies] == ["again.png", "twice.png"]
    assert [path.name for path in extension.undecided] == ["mislabelled.png", "2.png"]
    assert extension.learned == {"cat": 3}
    assert len(sentences) == 2
    assert "in two classes" in sentences[0]
    assert "left out" in sentences[1]
    everything = model.extend(new, more=True, duplicates="keep")
    assert sum(everything.model.counts.values()) == 15
    assert len(everything.copies) == 2


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


def test_a_folder_without_a_new_photo_is_refused(tmp_path: Path):
    folder = make_photos(tmp_path / "old", ["ant", "bee"], 4)
    model = learned("ridge", []).extend(folder).model
    with pytest.raises(DataError, match="learned already"):
        model.extend(folder, more=True)


def test_learned_photos_are_recognised(tmp_path: Path):
    model = learned("ridge", []).extend(make_photos(tmp_path / "photos", ["ant", "bee"], 6)).model
    # The first six of each class are the same files.
    photos = ClassPhotos.find(make_photos(tmp_path / "more", ["ant", "bee"], 8), "--images")
    told = evaluate(model, photos, []).seen()
    assert told == ["learned" if int(Path(name).stem) < 6 else "" for name in photos.files.names]
    model.photos = PhotoHashes()
    assert set(evaluate(model, photos, []).seen()) == {""}
