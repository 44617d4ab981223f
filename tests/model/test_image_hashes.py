"""No image counts twice, whether it is learned, forgotten or merged."""

import shutil
from pathlib import Path

import pytest

from cifnet_pl import extend, forget
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.cli.test_extend import assert_same_scores, queries
from tests.command_line import make_images
from tests.models import empty, tensors_equal

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


def test_a_class_that_one_site_renamed_counts_twice_and_is_told(model, tmp_path):
    first = extend(model, extra(tmp_path / "x", "dog", 5)).model
    first.rename("ant", "Ameise")
    second = extend(model, extra(tmp_path / "y", "elk", 4)).model
    with pytest.raises(UsageError, match="12 images were learned by both"):
        merge([first, second])
    second.rename("bee", "Biene")
    second.rename("cat", "Katze")
    (warning,) = merge([first, second]).warnings
    assert "18 images in classes of different names" in warning
