"""``extend`` and ``learn``: what they return, the score of the held-out fifth, and that no model is
changed.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cifnet_pl
from cifnet_pl.backbones import build_backbone
from cifnet_pl.heads import RidgeHead
from cifnet_pl.images import image
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.model.learn import HELD_OUT, learn
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.cli.test_extend import queries
from tests.command_line import make_images
from tests.data.layouts import vectors
from tests.models import learned, tensors_equal


@pytest.fixture
def images(tmp_path: Path) -> LabelledImages:
    """Twenty images of each of two classes."""
    return LabelledImages.find(make_images(tmp_path, ["gnu", "hen"], 20), "--images")


def test_the_score_is_that_of_a_model_of_the_other_images(images: LabelledImages):
    old = learned("ridge")
    before = learned("ridge").tensors()
    extension = learn(old, images)
    model = extension.model
    score = extension.score
    assert model.counts["gnu"] == model.counts["hen"] == 20
    held = np.zeros(len(images.files), dtype=bool)
    for rows in images.files.rows_of.values():
        held[rows] = images.held_out(rows, HELD_OUT)
    assert held.sum() == score.images == 8
    other = old.clone()
    other.begin_task(images.class_names, [16, 16])
    labels = torch.tensor(other.labels(images.class_names))[images.files.labels]
    embedded = list(images.embedded(old, "", []))
    z = torch.cat([part for _, part in embedded])
    kept = torch.from_numpy(~held)
    other.observe(z[kept], labels[kept], torch.arange(32))
    other.finish_task()
    assert score.correct == int((other.head.predict(z[~kept]) == labels[~kept]).sum())
    assert tensors_equal(old.tensors(), before)


def test_extend_returns_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    model = learned("ridge")
    before = model.tensors()
    images = make_images(tmp_path / "new", ["gnu", "hen"], 10)
    (images / "gnu" / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    result = cifnet_pl.extend(
        model, images, check=make_images(tmp_path / "old", ["ant"], 3)
    )
    assert result.learned == {"gnu": 10, "hen": 10}
    assert result.model.class_names == [*model.class_names, "gnu", "hen"]
    assert isinstance(result.model, Classifier)
    assert (result.score.images, result.old_before.images, result.old_after.images) == (
        4,
        3,
        3,
    )
    assert [image.file.name for image in result.unreadable] == ["broken.jpg"]
    assert result.model.history[-1].images == 20
    assert result.rarely_predicted == []
    assert tensors_equal(model.tensors(), before)
    assert len(model.history) == 3
    with pytest.raises(UsageError, match="already learned"):
        cifnet_pl.extend(result.model, images)
    assert capsys.readouterr() == ("", "")


def of_embeddings() -> Classifier:
    return Classifier(build_backbone("none:4"), RidgeHead(4), None, [], 1)


def save(path: Path, keep: list[int], **more: np.ndarray) -> Path:
    z, y = vectors(60, classes=5)
    rows = np.isin(y, keep)
    np.savez(path, embeddings=z[rows], labels=y[rows], **more)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    """Three of five classes, each image known by its hash."""
    return cifnet_pl.extend(of_embeddings(), save(tmp_path / "a.npz", [0, 1, 2])).model


def test_in_two_steps_as_in_one(model: Classifier, tmp_path: Path):
    result = cifnet_pl.extend(
        model, save(tmp_path / "b.npz", [3, 4]), check=tmp_path / "a.npz"
    )
    assert result.learned == {"3": 12, "4": 12}
    assert result.old_before.images == 36
    whole = cifnet_pl.extend(
        of_embeddings(), save(tmp_path / "all.npz", [0, 1, 2, 3, 4])
    ).model
    z, _ = vectors(20, classes=5, seed=7)

    torch.testing.assert_close(
        result.model.head(torch.from_numpy(z)), whole.head(torch.from_numpy(z))
    )
    result.model.save(tmp_path / "bundle")
    actual = list(cifnet_pl.load(tmp_path / "bundle").classify(tmp_path / "b.npz"))
    assert [prediction.classes[0] for prediction in actual[:2]] == ["3", "4"]


def test_embeddings_of_another_width(model: Classifier, tmp_path: Path):
    np.savez(
        tmp_path / "w.npz",
        embeddings=np.ones((4, 5), np.float32),
        labels=np.array([7, 7, 8, 8]),
    )
    with pytest.raises(DataError, match="width 5, expected the model's 4"):
        cifnet_pl.extend(model, tmp_path / "w.npz")


def test_an_image_is_opened_once_and_one_that_is_known_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    model = cifnet_pl.extend(
        learned("ridge", []), make_images(tmp_path / "old", ["ant", "bee"], 4)
    ).model
    make_images(tmp_path / "new", ["cat", "dog"], 6)
    shutil.copytree(tmp_path / "old" / "ant", tmp_path / "new" / "ant")
    opened = []
    decoded = []
    read = image.read_bytes
    square = image.EncodedImage.square
    monkeypatch.setattr(
        image, "read_bytes", lambda path: opened.append(path) or read(path)
    )
    monkeypatch.setattr(
        image.EncodedImage,
        "square",
        lambda self, *shape: decoded.append(self.hash) or square(self, *shape),
    )
    extension = cifnet_pl.extend(model, tmp_path / "new", more=True)
    assert sorted(opened) == sorted((tmp_path / "new").rglob("*.png"))
    assert len(decoded) == len(set(decoded)) == 12
    assert extension.learned == {"cat": 6, "dog": 6}


def test_from_memory_as_from_files(model: Classifier, tmp_path: Path):
    """Embeddings in arrays with names of classes: extended, classified, forgotten."""
    z, y = vectors(60, classes=5)
    new = y >= 3
    names = np.array(["a", "b", "c", "gnu", "hen"])[y]
    extended = cifnet_pl.extend(model, (z[new], names[new]), check=(z[~new], y[~new]))
    assert extended.learned == {"gnu": 12, "hen": 12}
    assert extended.old_before.images == 36
    expected = cifnet_pl.extend(model, save(tmp_path / "b.npz", [3, 4])).model
    result = extended.model
    torch.testing.assert_close(result.head(z), expected.head(z))
    np.savez(tmp_path / "all.npz", embeddings=z)
    from_file = result.classify(tmp_path / "all.npz")
    predictions = [replace(prediction, file=None) for prediction in from_file]
    assert list(result.classify(z)) == predictions
    assert list(result.classify(torch.from_numpy(z))) == predictions
    forgotten = cifnet_pl.forget(result, ["gnu", "hen"], z)
    assert forgotten.exact
    assert forgotten.ignored == 36
    torch.testing.assert_close(forgotten.model.head(z), model.head(z))
    with pytest.raises(DataError, match="0 of them are there"):
        cifnet_pl.forget(result, "gnu", z[~new])
    with pytest.raises(DataError, match="width 3"):
        cifnet_pl.extend(model, (z[:, :3], y))
    with pytest.raises(UsageError, match="a label for each sample"):
        cifnet_pl.extend(model, (z, y[1:]))


def test_images_in_memory_as_in_files(tmp_path: Path):
    old = learned("ridge")
    folder = make_images(tmp_path, ["gnu", "hen"], 10)
    files = sorted(folder.rglob("*.png"))
    names = [file.parent.name for file in files]
    expected = cifnet_pl.extend(old, folder).model
    pillow = [Image.open(file) for file in files]
    arrays = np.stack([np.asarray(image) for image in pillow])
    for images in (files, [file.read_bytes() for file in files], pillow, arrays):
        twice = cifnet_pl.extend(old, (images, names))
        assert twice.duplicates == []
        torch.testing.assert_close(
            twice.model.head(queries()), expected.head(queries())
        )
        found = [p.classes[0] for p in twice.model.classify(images)]
        assert found == [p.classes[0] for p in expected.classify(files)]
        again = cifnet_pl.forget(twice.model, ["gnu", "hen"], images)
        assert again.exact
        torch.testing.assert_close(again.model.head(queries()), old.head(queries()))
    one = cifnet_pl.extend(old, ([*pillow, pillow[0]], [*names, names[0]]))
    assert one.duplicates == [Path("number 20")]
    (alone,) = old.classify(arrays[0])
    assert alone.classes == next(old.classify(arrays)).classes
    with pytest.raises(DataError, match="expected uint8 pixels"):
        list(old.classify([arrays[0] / 255]))
    broken = cifnet_pl.extend(old, ([*pillow, b"none"], [*names, "gnu"]))
    assert [image.file for image in broken.unreadable] == [Path("an image in memory")]
