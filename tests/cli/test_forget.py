"""Forgetting: exact with the images, plainly less without them, refused where it would be wrong."""

import shutil
from pathlib import Path

import pytest
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from tests.cli.test_extend import assert_same_scores, fit, queries
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.models import learn_task, learned

NAMES = ["ant", "bee", "cat", "dog"]


def test_a_forgotten_class_can_be_learned_again(tmp_path: Path):
    model = learned("cifnet")
    model.remove_classes(["fox", "ant"])
    learn_task(model, ["ant"])
    model.save(tmp_path / "b")
    again = cifnet_pl.load(tmp_path / "b")
    assert again.class_names == ["bee", "cat", "dog", "elk", "ant"]
    assert torch.equal(again.head(queries()), model.head(queries()))


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs over four classes and over three, and one whose head keeps a buffer."""
    root = tmp_path_factory.mktemp("made")
    make_images(root / "images" / "train", NAMES, 8)
    make_images(root / "images" / "val", NAMES, 2)
    shutil.copytree(root / "images", root / "fewer")
    for part in ("train", "val"):
        shutil.rmtree(root / "fewer" / part / "bee")
    ridge = ["--model.head", "RidgeHead", "--data.classes_per_task", "2"]
    fit(root / "images", root / "four", *ridge)
    fit(root / "fewer", root / "three", *ridge)
    cifnet = "--model.head CIFNetHead --model.buffer CalibrationBuffer"
    cifnet += " --data.classes_per_task 2"
    fit(root / "images", root / "buffered", *cifnet.split())
    return root


def forget(model: Path, output: Path, *options: str, name: str = "bee") -> int:
    return run_cifnet("forget", *options, model=model, class_=name, output=output)


def test_with_images(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    images = made / "images" / "train" / "bee"
    assert (
        forget(made / "four" / "default", tmp_path / "b", "--images", str(images)) == 0
    )
    assert "'bee' forgotten exactly: 8 images" in capsys.readouterr().out
    model = cifnet_pl.load(tmp_path / "b")
    never = cifnet_pl.load(made / "three" / "default")
    assert model.counts == never.counts
    z = torch.randn(
        30, model.head.in_features, generator=torch.Generator().manual_seed(0)
    )
    assert_same_scores(model, never, z, 1e-8)
    assert model.history[-1].images == 8


def test_without_images(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for head, undone in (("four", True), ("buffered", False)):
        assert forget(made / head / "default", tmp_path / head) == 0
        said = capsys.readouterr().out
        assert "8 images still count" in said
        assert ("forget the class" in said) == undone
        assert ("CIFNetHead cannot subtract" in said) != undone
        model = cifnet_pl.load(tmp_path / head)
        assert model.class_names == ["ant", "cat", "dog"]
        assert model.history[-1].images is None
        assert model.buffer is None or len(model.buffer.y) == 24


def test_exact_is_only_what_is(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Removed without its images, learned again and forgotten with them: the first time still
    counts.
    """
    images = made / "images" / "train" / "bee"
    assert forget(made / "four" / "default", tmp_path / "removed") == 0
    (tmp_path / "new").mkdir()
    shutil.copytree(images, tmp_path / "new" / "bee")
    capsys.readouterr()
    words = ["--images", str(tmp_path / "new"), "--output", str(tmp_path / "again")]
    assert main(["extend", "--model", str(tmp_path / "removed"), *words]) == 0
    assert (
        "if it is among bee, those images count against it" in capsys.readouterr().err
    )
    assert forget(tmp_path / "again", tmp_path / "b", "--images", str(images)) == 0
    assert "removed earlier without its images" in capsys.readouterr().out


def test_images_in_several_folders(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Those of a class that was learned in two updates lie in two folders."""
    model = made / "four" / "default"
    images = made / "images" / "train" / "bee"
    for i, image in enumerate(sorted(images.iterdir())):
        part = tmp_path / ("first" if i < 3 else "then")
        part.mkdir(exist_ok=True)
        shutil.copy(image, part / image.name)
    both = [str(tmp_path / "first"), str(tmp_path / "then"), str(images.parent / "cat")]
    assert forget(model, tmp_path / "b", "--images", *both) == 0
    ignored = f"8 other images in {', '.join(both)} ignored"
    assert ignored in capsys.readouterr().out
    assert forget(model, tmp_path / "whole", "--images", str(images)) == 0
    one, other = (cifnet_pl.load(tmp_path / name) for name in ("b", "whole"))
    torch.testing.assert_close(one.head.weights, other.head.weights, rtol=0, atol=1e-9)
    assert forget(model, tmp_path / "c", "--images", both[0]) == 1
    assert "3 of them are there" in capsys.readouterr().err


def test_other_images_are_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = made / "four" / "default"
    assert_ends(
        forget(model, tmp_path / "b", "--images", str(tmp_path / "nowhere")),
        1,
        "no file or folder",
        capsys,
    )
    assert forget(model, tmp_path / "b", "--images", str(tmp_path / "gone.zip")) == 1
    assert f"no Zip archive {tmp_path / 'gone.zip'}: give" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_unknown_and_last_classes(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert_ends(
        forget(made / "four" / "default", tmp_path / "b", name="beee"),
        2,
        "did you mean bee?",
        capsys,
    )
    learned("ridge", [["ant"]]).save(tmp_path / "one")
    assert_ends(
        forget(tmp_path / "one", tmp_path / "b", name="ant"),
        2,
        "at least one must stay",
        capsys,
    )
