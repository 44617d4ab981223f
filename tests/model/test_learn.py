"""``extend``: what it returns, and images and embeddings from memory."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cifnet_pl import extend, forget
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead
from cifnet_pl.images import image
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.cli.test_extend import assert_same_scores, queries
from tests.command_line import make_images
from tests.data.layouts import vectors
from tests.models import learned, tensors_equal


def classes_of(names: range, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) embeddings of overlapping classes in features of unequal spread, and their labels."""
    width = 40
    spread = np.geomspace(0.05, 3.0, width)
    means = 0.45 * spread * np.random.default_rng(0).normal(size=(40, width))
    draw = np.random.default_rng(seed)
    labels = np.repeat(names, count)
    z = means[labels] + spread * draw.normal(size=(len(labels), width))
    return z.astype(np.float32), labels


def test_the_accuracy_on_new_classes_is_that_of_the_stored_model():
    """On average over six draws, on images that nobody learned."""
    buffer = CalibrationBuffer(2000)
    head = RidgeHead(40, decision="auto")
    none = Classifier(build_backbone("none:40"), head, buffer, calibrated=True)
    old = extend(none, classes_of(range(20), 30, 40_000)).model
    differences = []
    for seed in range(6):
        result = extend(old, classes_of(range(20, 40), 30, seed + 20_000))
        assert result.score.images == 600
        z, y = classes_of(range(20, 40), 200, seed)
        columns = result.model.head(torch.from_numpy(z)).argmax(dim=1)
        predicted = np.array(result.model.class_names)[columns.numpy()]
        right = np.mean(predicted == y.astype(str))
        differences.append(result.score.accuracy - 100 * right)
    assert abs(np.mean(differences)) < 2
    assert np.abs(differences).max() < 6  # a standard deviation is 2 points


def test_extend_returns_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = learned("ridge")
    before = model.tensors()
    images = make_images(tmp_path / "new", ["gnu", "hen"], 10)
    (images / "gnu" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    old = make_images(tmp_path / "old", ["ant"], 3)
    result = extend(model, images, check=old)
    assert result.learned == {"gnu": 10, "hen": 10}
    assert (result.old_before.images, result.old_after.images) == (3, 3)
    assert [image.file.name for image in result.unreadable] == ["broken.jpg"]
    assert tensors_equal(model.tensors(), before)
    assert len(model.history) == 3
    assert capsys.readouterr() == ("", "")


def test_an_image_is_opened_once_and_one_that_is_known_is_not_decoded(tmp_path, watch):
    old = make_images(tmp_path / "old", ["ant", "bee"], 4)
    model = extend(learned("ridge", []), old).model
    make_images(tmp_path / "new", ["cat", "dog"], 6)
    shutil.copytree(tmp_path / "old" / "ant", tmp_path / "new" / "ant")
    opened = watch(image, "read_bytes", lambda path: path)
    decoded = watch(image.EncodedImage, "square", lambda self, *_: self.hash)
    extension = extend(model, tmp_path / "new", more=True)
    assert sorted(opened) == sorted((tmp_path / "new").rglob("*.png"))
    assert len(decoded) == len(set(decoded)) == 12
    assert extension.learned == {"cat": 6, "dog": 6}


def test_a_buffer_that_is_too_small_is_told_before_an_image_is_opened(tmp_path, watch):
    model = replace(learned("ridge"), buffer=CalibrationBuffer(3), calibrated=True)
    opened = watch(image, "read_bytes", lambda path: path)
    with pytest.raises(UsageError, match="use a capacity of"):
        extend(model, make_images(tmp_path / "new", ["gnu", "hen"], 1))
    assert not opened


def test_from_memory_as_from_files(tmp_path: Path):
    """Embeddings in arrays with names of classes: extended, classified, forgotten."""
    z, y = vectors(60, classes=5)
    new = y >= 3
    np.savez(tmp_path / "a.npz", embeddings=z[~new], labels=y[~new])
    np.savez(tmp_path / "b.npz", embeddings=z[new], labels=y[new])
    empty = Classifier(build_backbone("none:4"), RidgeHead(4))
    model = extend(empty, tmp_path / "a.npz").model
    names = np.array(["a", "b", "c", "gnu", "hen"])[y]
    extended = extend(model, (z[new], names[new]), check=(z[~new], y[~new]))
    assert extended.learned == {"gnu": 12, "hen": 12}
    assert extended.old_before.images == 36
    expected = extend(model, tmp_path / "b.npz").model
    result = extended.model
    torch.testing.assert_close(result.head(z), expected.head(z))
    np.savez(tmp_path / "all.npz", embeddings=z)
    from_file = result.classify(tmp_path / "all.npz")
    predictions = [replace(prediction, file=None) for prediction in from_file]
    assert list(result.classify(z)) == predictions
    assert list(result.classify(torch.from_numpy(z))) == predictions
    forgotten = forget(result, ["gnu", "hen"], z)
    assert forgotten.exact
    assert forgotten.ignored == 36
    torch.testing.assert_close(forgotten.model.head(z), model.head(z))
    with pytest.raises(DataError, match="0 of them are there"):
        forget(result, "gnu", z[~new])
    with pytest.raises(DataError, match="width 3"):
        extend(model, (z[:, :3], y))
    with pytest.raises(UsageError, match="a label for each sample"):
        extend(model, (z, y[1:]))


def test_images_in_memory_as_in_files(tmp_path: Path):
    old = learned("ridge")
    folder = make_images(tmp_path, ["gnu", "hen"], 10)
    files = sorted(folder.rglob("*.png"))
    names = [file.parent.name for file in files]
    expected = extend(old, folder).model
    pillow = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image) for image in pillow])
    for images in (files, [file.read_bytes() for file in files], pillow, arrays):
        twice = extend(old, (images, names))
        assert twice.warnings == []
        assert_same_scores(twice.model, expected, queries())
        found = [p.classes[0] for p in twice.model.classify(images)]
        assert found == [p.classes[0] for p in expected.classify(files)]
        again = forget(twice.model, ["gnu", "hen"], images)
        assert again.exact
        assert_same_scores(again.model, old, queries())
    one = extend(old, ([*pillow, pillow[0]], [*names, names[0]]))
    assert "note: 20 learned already or twice" in one.warnings[0]
    (alone,) = old.classify(arrays[0])
    assert alone.classes == next(old.classify(arrays)).classes
    with pytest.raises(DataError, match="expected uint8 pixels"):
        list(old.classify([arrays[0] / 255]))
    broken = extend(old, ([*pillow, b"none"], [*names, "gnu"]))
    assert [image.file for image in broken.unreadable] == [Path("an image in memory")]


def test_images_for_recalibration_score_no_new_class():
    """Neither are they new images of a known class."""
    head = RidgeHead(40, decision="auto")
    buffer = CalibrationBuffer(2000)
    none = Classifier(build_backbone("none:40"), head, buffer, calibrated=True)
    old = extend(none, classes_of(range(5), 30, 1)).model
    z, labels = map(torch.from_numpy, classes_of(range(5), 20, 2))
    measured = old.recalibrated(z, labels, torch.arange(100))
    for names in (range(5, 8), range(2)):
        new = classes_of(names, 30, 3)
        scores = [extend(m, new, more=True).score for m in (old, measured)]
        assert scores[0].images == scores[1].images > 0
