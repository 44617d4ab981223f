"""An image is counted once: in fit, extend, merge and forget, across bundles and checkpoints."""

import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.cli.test_extend import assert_same_scores, fit
from tests.command_line import make_images

NAMES = ["ant", "bee", "cat"]


def queries(model: Classifier) -> torch.Tensor:
    return torch.randn(
        30, model.head.in_features, generator=torch.Generator().manual_seed(1)
    )


def distinct(model: Classifier) -> int:
    """Number of images by which the head chooses its ridge."""
    assert isinstance(model.head, RidgeHead)
    return int(model.head.sums.seen)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run over three classes, and its images."""
    root = tmp_path_factory.mktemp("base")
    make_images(root / "images" / "train", NAMES, 6)
    make_images(root / "images" / "val", NAMES, 2)
    fit(
        root / "images",
        root / "logs",
        "--model.head",
        "RidgeHead",
        "--data.classes_per_task",
        "2",
    )
    return root


@pytest.fixture
def model(base: Path) -> Classifier:
    return cifnet_pl.load(base / "logs" / "default", device="cpu")


def extra(root: Path, name: str, count: int) -> Path:
    """More images of a class, unlike those that ``make_images`` makes."""
    made = make_images(root / "made", [name], 10 + count) / name
    (root / "more" / name).mkdir(parents=True, exist_ok=True)
    for i in range(10, 10 + count):
        shutil.copy(made / f"{i}.png", root / "more" / name / f"new{i}.png")
    return root / "more"


def test_duplicates_are_left_out(base: Path, model: Classifier, tmp_path: Path):
    """Two new images of a class, one of them twice, three learned ones under other names, and a
    wrong label.
    """
    images = extra(tmp_path, "ant", 2)
    shutil.copy(images / "ant" / "new10.png", images / "ant" / "twice.png")
    for i in range(3):
        shutil.copy(
            base / "images" / "train" / "ant" / f"{i}.png",
            images / "ant" / f"again{i}.png",
        )
    expected = cifnet_pl.extend(model, extra(tmp_path / "clean", "ant", 2), more=True)
    result = cifnet_pl.extend(model, images, more=True)
    assert result.learned == {"ant": 2}
    assert sorted(path.name for path in result.duplicates) == [
        "again0.png",
        "again1.png",
        "again2.png",
        "twice.png",
    ]
    assert any(
        "ant/again0.png" in warning and "left out" in warning
        for warning in result.warnings
    )
    assert_same_scores(result.model, expected.model, queries(model))
    kept = cifnet_pl.extend(model, images, more=True, duplicates="keep")
    assert kept.learned == {"ant": 6}
    assert distinct(kept.model) == 18 + 2
    wrong = extra(tmp_path / "wrong", "dog", 2)
    shutil.copy(base / "images" / "train" / "bee" / "0.png", wrong / "dog" / "b.png")
    assert any(
        "dog/b.png (learned as bee)" in w and "wrong" in w
        for w in cifnet_pl.extend(model, wrong).warnings
    )
    with pytest.raises(DataError, match="nothing to learn"):
        cifnet_pl.extend(model, base / "images" / "train", more=True)
    (wrong / "dog" / "new10.png").unlink()
    (wrong / "dog" / "new11.png").unlink()
    with pytest.raises(DataError, match=r"b\.png \(learned as bee\).*cifnet forget"):
        cifnet_pl.extend(model, wrong)


def test_forgetting_after_more_picks_the_learned_images(base, model, tmp_path):
    """The folder holds what fit and extend learned, and other images; without hashes that was
    refused.
    """
    whole = cifnet_pl.extend(model, extra(tmp_path, "bee", 4), more=True).model
    folder = tmp_path / "everything"
    shutil.copytree(base / "images", folder / "old")
    shutil.copytree(tmp_path / "more", folder / "new")
    result = cifnet_pl.forget(whole, "bee", folder)
    assert (result.exact, result.images) == (True, {"bee": 10})
    assert result.ignored == 16  # two held-out images are duplicates of learned ones
    never = cifnet_pl.forget(model, "bee", base / "images" / "train").model
    assert_same_scores(result.model, never, queries(model), 1e-8)
    twice = cifnet_pl.extend(
        model, base / "images" / "train", more=True, duplicates="keep"
    ).model
    assert distinct(twice) == distinct(model) == 18
    less = cifnet_pl.forget(twice, "bee", folder).model
    assert distinct(less) == 12
    assert_same_scores(
        less,
        cifnet_pl.forget(twice, "bee", base / "images" / "train").model,
        queries(model),
    )
    (folder / "new" / "bee" / "new10.png").unlink()
    with pytest.raises(
        DataError,
        match="learned from 10 images, 9 of",
    ):
        cifnet_pl.forget(whole, "bee", folder)


def test_models_with_a_common_ancestor(model: Classifier, tmp_path: Path):
    first = cifnet_pl.extend(model, extra(tmp_path / "x", "dog", 5)).model
    second = cifnet_pl.extend(model, extra(tmp_path / "y", "elk", 4)).model
    pooled = cifnet_pl.extend(first, tmp_path / "y" / "more").model
    with pytest.raises(UsageError, match=r"18 images were learned by both .* --base"):
        merge([first, second])
    result = merge([first, second], base=model)
    assert result.images == distinct(result.model) == 18 + 5 + 4
    assert_same_scores(result.model, pooled, queries(model), 1e-8)
    for pair in ([model, first], [first, model]):  # of which one learned nothing else
        assert_same_scores(merge(pair, base=model).model, first, queries(model))
    with pytest.raises(UsageError, match="not exactly the"):
        merge([first, second], base=first)
    assert result.model.history[-1].parents == [first.identity, second.identity]


def test_duplicates_within_what_is_merged_count_once(model: Classifier, tmp_path: Path):
    """One that both shards call by other names, and one that stands twice in the common
    ancestor.
    """
    old = cifnet_pl.extend(
        model, extra(tmp_path / "x", "ant", 3), more=True, duplicates="keep"
    ).model
    old = cifnet_pl.extend(
        old, tmp_path / "x" / "more", more=True, duplicates="keep"
    ).model
    dog = extra(tmp_path / "y", "dog", 5)
    elk = extra(tmp_path / "z", "elk", 4)
    shutil.copy(dog / "dog" / "new10.png", elk / "elk" / "same.png")
    shutil.copy(tmp_path / "x" / "more" / "ant" / "new10.png", elk / "elk" / "old.png")
    first = cifnet_pl.extend(old, dog).model
    second = cifnet_pl.extend(old, elk).model
    assert [distinct(m) for m in (old, first, second)] == [21, 26, 21 + 5]
    assert distinct(merge([first, second], base=old).model) == 21 + 5 + 4
