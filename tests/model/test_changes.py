"""``extend``, ``forget``, ``merge``: what they return, refuse and leave; no image counts twice."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cifnet_pl import extend, forget
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer, ungrouped
from cifnet_pl.heads import RidgeHead
from cifnet_pl.images import image
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import _subtract_images
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
from tests.cli.test_extend import assert_same_scores, queries
from tests.command_line import make_images
from tests.data.layouts import vectors
from tests.models import empty, learn_task, learned, samples, tensors_equal


def classes_of(names: range, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n, d) embeddings of overlapping classes in features of unequal spread, and their labels."""
    width = 40
    spread = np.geomspace(0.05, 3.0, width)
    means = 0.45 * spread * np.random.default_rng(0).normal(size=(60, width))
    draw = np.random.default_rng(seed)
    labels = np.repeat(names, count)
    z = means[labels] + spread * draw.normal(size=(len(labels), width))
    return z.astype(np.float32), labels


def test_the_accuracy_on_new_classes_is_that_of_the_stored_model():
    """On average over ten draws, on images that nobody learned."""
    differences = []
    for seed in range(10):
        buffer = CalibrationBuffer(2000)
        head = RidgeHead(40, decision="auto")
        none = Classifier(build_backbone("none:40"), head, buffer, calibrated=True)
        old = extend(none, classes_of(range(40), 30, seed + 40_000)).model
        result = extend(old, classes_of(range(40, 60), 30, seed + 20_000))
        assert result.score.images == 600
        z, y = classes_of(range(40, 60), 200, seed)
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


# ---------------------------------------------------------------------- removal


@pytest.mark.parametrize("head", ["cifnet", "ridge", "knn", "logistic", "dsal"])
def test_removal_leaves_the_others_alone(head: str):
    model = learned(head)
    kept = [i for i, name in enumerate(model.class_names) if name != "dog"]
    before = model.head(queries())[:, kept]
    model.remove_classes(["dog"])
    assert model.class_names == ["ant", "bee", "cat", "elk", "fox"]
    assert model.tasks == [["ant", "bee"], ["cat"], ["elk", "fox"]]
    if head not in ("knn", "dsal"):
        torch.testing.assert_close(model.head(queries()), before, rtol=0, atol=1e-12)
    if model.buffer is not None:
        assert set(model.buffer.y.tolist()) <= set(model.head.classes)
        assert len(model.buffer.y) == 10  # two of each class


def test_a_head_that_keeps_no_sums_refuses_images(tmp_path: Path):
    images = make_images(tmp_path, ["ant"], 3)
    model = learned("logistic")
    with pytest.raises(UnsupportedError, match="LogisticHead"):
        forget(model, "ant", images)
    removed = forget(model, "ant")
    assert not removed.exact
    assert not removed.model.head.subtracts


@pytest.mark.parametrize("remember", [True, False])
def test_a_forgotten_class_leaves_statistics_as_if_it_had_never_been_there(remember):
    """Also where most of its images are duplicates: each of 50 is there three times."""
    z = torch.tensor(vectors(210, width=6, classes=2)[0])
    z[50:100] = z[100:150] = z[:50]
    y = torch.tensor([0] * 150 + [1] * 60)
    hashes = torch.cat([torch.arange(50).repeat(3), 50 + torch.arange(60)])
    samples = ungrouped(z, y, hashes)
    empty = Classifier(build_backbone("none:6"), RidgeHead(6, remember=remember))
    never = empty.clone()
    later = samples.at(slice(150, None))
    never.learn_embeddings(["b"], later._replace(y=later.y - 1))
    forgotten = empty.clone()
    forgotten.learn_embeddings(["a", "b"], samples)
    if remember:
        forgotten = forget(forgotten, "a").model
    else:
        _subtract_images(forgotten, "a", dict(enumerate(z[:50])))
        forgotten.remove_classes(["a"])
    assert int(forgotten.head.sums.seen) == 60
    ours = forgotten.tensors()
    for name, tensor in never.tensors().items():
        if not name.endswith("labels"):  # the label of a class never changes
            torch.testing.assert_close(ours[name], tensor, rtol=1e-9, atol=1e-9)


def test_nothing_in_a_bundle_identifies_an_image_of_a_forgotten_class(tmp_path: Path):
    model = learned("ridge-auto")
    hashes = [int(key) for key in model.images.of_label(model.labels(["dog"])[0])]
    others = [int(key) for key in model.images.of_label(model.labels(["cat"])[0])]
    keys = torch.tensor(hashes + others)
    model.calibration.exclude_selected(keys)
    model.calibrate()

    def found(model: Classifier, keys: list[int]) -> int:
        model.save(tmp_path, overwrite=True)
        content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        return sum(
            key.to_bytes(8, "little") in content or str(key).encode() in content
            for key in keys
        )

    assert found(model, hashes) == len(hashes)
    model.remove_classes(["dog"])
    assert found(model, hashes) == 0
    assert found(model, others) == len(others)


def test_an_aborted_task_leaves_no_hash():
    """Neither of a new class nor of one that got more images."""
    model = learned("ridge")
    before = model.images.images()
    z, _, keys = samples(["ant", "gnu"])
    model.begin_task(["ant", "gnu", "hen"])
    labels = torch.tensor(model.labels(["ant", "gnu"])).repeat_interleave(7)
    model.observe(z, labels, keys + 1)
    with pytest.raises(DataError, match="'hen'"):
        model.finish_task()
    model.abort_task()
    assert model.images.images() == before
    learn_task(model, ["kiwi"])
    assert len(model.images.of_label(model.labels(["kiwi"])[0])) == 7


# ---------------------------------------------------------------------- an image is counted once

NAMES = ["ant", "bee", "cat"]


def distinct(model: Classifier) -> int:
    """Number of images by which the head chooses its ridge."""
    return int(model.head.sums.seen)


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images"), NAMES, 6)


@pytest.fixture(scope="module")
def model(train: Path) -> Classifier:
    return extend(empty("ridge"), train).model


def extra(root: Path, name: str, count: int) -> Path:
    """More images of a class, unlike those that ``make_images`` makes."""
    made = make_images(root / "made", [name], 10 + count) / name
    (root / "more" / name).mkdir(parents=True)
    for i in range(10, 10 + count):
        shutil.copy(made / f"{i}.png", root / "more" / name / f"new{i}.png")
    return root / "more"


def test_duplicates_are_left_out(train, model, tmp_path):
    """Two new images of a class, one of them twice, and two learned ones under other names."""
    expected = extend(model, extra(tmp_path / "clean", "ant", 2), more=True)
    images = extra(tmp_path, "ant", 2)
    shutil.copy(images / "ant" / "new10.png", images / "ant" / "twice.png")
    for name in ("0.png", "1.png"):
        shutil.copy(train / "ant" / name, images / "ant")
    result = extend(model, images, more=True)
    assert result.learned == {"ant": 2}
    said = " ".join(result.warnings)
    assert "ant/0.png, ant/1.png" in said
    assert "twice.png" in said
    assert "left out" in said
    assert_same_scores(result.model, expected.model, queries())
    kept = extend(model, images, more=True, duplicates="keep")
    assert kept.learned == {"ant": 5}
    assert distinct(kept.model) == 18 + 2
    with pytest.raises(DataError, match="nothing to learn"):
        extend(model, train, more=True)


def test_a_learned_image_in_another_class_is_learned_as_neither(train, model, tmp_path):
    wrong = extra(tmp_path, "dog", 1)
    shutil.copy(train / "bee" / "0.png", wrong / "dog" / "b.png")
    (warning,) = extend(model, wrong).warnings
    assert "dog/b.png (learned as bee)" in warning
    (wrong / "dog" / "new10.png").unlink()
    with pytest.raises(DataError, match=r"b\.png \(learned as bee\).*cifnet forget"):
        extend(model, wrong)


def test_forgetting_after_more_picks_the_learned_images(train, model, tmp_path):
    """The folder holds what fit and extend learned, and other images."""
    folder = tmp_path / "everything"
    shutil.copytree(train, folder / "old")
    new = shutil.copytree(extra(tmp_path, "bee", 4), folder / "new")
    whole = extend(model, new, more=True).model
    result = forget(whole, "bee", folder)
    assert (result.exact, result.images) == (True, {"bee": 10})
    assert result.ignored == 12
    never = forget(model, "bee", train).model
    assert_same_scores(result.model, never, queries(), 1e-8)
    twice = extend(model, train, more=True, duplicates="keep").model
    assert distinct(twice) == distinct(model) == 18
    less = forget(twice, "bee", folder).model
    assert distinct(less) == 12
    assert_same_scores(less, forget(twice, "bee", train).model, queries())
    (new / "bee" / "new10.png").unlink()
    with pytest.raises(DataError, match="learned from 10 images, 9 of"):
        forget(whole, "bee", folder)


def test_models_with_a_common_ancestor(model, tmp_path):
    first = extend(model, extra(tmp_path / "x", "dog", 5)).model
    images = extra(tmp_path / "y", "elk", 4)
    second = extend(model, images).model
    with pytest.raises(UsageError, match=r"18 images were learned by both .* --base"):
        merge([first, second])
    before = [first.tensors(), second.tensors()]
    result = merge([first, second], base=model)
    assert all(map(tensors_equal, before, [first.tensors(), second.tensors()]))
    assert result.images == distinct(result.model) == 18 + 5 + 4
    assert_same_scores(result.model, extend(first, images).model, queries(), 1e-8)
    for pair in ([model, first], [first, model]):  # of which one learned nothing else
        assert_same_scores(merge(pair, base=model).model, first, queries())
    with pytest.raises(UsageError, match="not exactly those"):
        merge([first, second], base=first)
    assert result.model.history[-1].parents == [first.identity, second.identity]


def test_duplicates_within_what_is_merged_count_once(model, tmp_path):
    """One that both call by other names, and one that stands twice in the common ancestor."""
    ants = extra(tmp_path / "x", "ant", 3)
    dog = extra(tmp_path / "y", "dog", 5)
    elk = extra(tmp_path / "z", "elk", 4)
    shutil.copy(dog / "dog" / "new10.png", elk / "elk" / "same.png")
    shutil.copy(ants / "ant" / "new10.png", elk / "elk" / "old.png")
    old = extend(model, ants, more=True, duplicates="keep").model
    old = extend(old, ants, more=True, duplicates="keep").model
    first = extend(old, dog).model
    second = extend(old, elk).model
    assert [distinct(m) for m in (old, first, second)] == [21, 26, 21 + 5]
    assert distinct(merge([first, second], base=old).model) == 21 + 5 + 4
