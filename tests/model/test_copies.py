"""Copies are recognised by their contents: learned before, twice in a folder, or in two classes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.known_photos import without_copies
from cifnet_pl.utilities.errors import DataError
from tests.command_line import make_photos
from tests.models import learned


def photos_in(folder: Path) -> ClassPhotos:
    return ClassPhotos.find(folder, "--images").hashed()


def test_copies_are_left_out_or_kept(tmp_path: Path):
    model = learned("ridge", []).extend(make_photos(tmp_path / "old", ["ant", "bee"], 4)).model
    new = make_photos(tmp_path / "new", ["cat"], 4)
    shutil.copy(new / "cat" / "0.png", new / "cat" / "twice.png")
    (new / "ant").mkdir()
    shutil.copy(tmp_path / "old" / "ant" / "1.png", new / "ant" / "again.png")
    shutil.copy(new / "cat" / "2.png", new / "ant" / "mislabelled.png")
    photos, copies, sentences = without_copies(model, photos_in(new), "leave_out")
    assert sorted(path.name for path in copies) == ["again.png", "twice.png"]
    assert sorted(photos.files.names) == ["ant/mislabelled.png", *(f"cat/{i}.png" for i in range(4))]
    assert len(sentences) == 2
    assert "in two classes" in sentences[0]
    assert "left out" in sentences[1]
    everything, copies, _ = without_copies(model, photos_in(new), "keep")
    assert len(everything.files) == 7
    assert len(copies) == 2


def test_a_folder_without_a_new_photo_is_refused(tmp_path: Path):
    folder = make_photos(tmp_path / "old", ["ant", "bee"], 4)
    model = learned("ridge", []).extend(folder).model
    with pytest.raises(DataError, match="learned already"):
        without_copies(model, photos_in(folder), "leave_out")
