"""Forgetting: exact with the images, plainly less without them, refused where it would be wrong."""

import shutil
from pathlib import Path

import pytest

import cifnet_pl
from tests.cli.test_extend import assert_same_scores, queries
from tests.command_line import assert_ends, make_images, run_cifnet
from tests.models import empty, learned

NAMES = ["ant", "bee", "cat", "dog"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of four classes and of three, and one whose head keeps a buffer."""
    root = tmp_path_factory.mktemp("made")
    images = make_images(root / "images", NAMES, 8)
    shutil.copytree(images, root / "fewer", ignore=shutil.ignore_patterns("bee"))
    for name, model, folder in (
        ("four", empty("ridge"), images),
        ("three", empty("ridge"), root / "fewer"),
        ("buffered", empty("cifnet", 40), images),
    ):
        cifnet_pl.extend(model, folder).model.save(root / name)
    return root


def forget(model: Path, output: Path, *images: object, name: str = "bee") -> int:
    words = ["--images", *map(str, images)] if images else []
    return run_cifnet("forget", *words, model=model, class_=name, output=output)


def test_without_images(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for head, undone in (("four", True), ("buffered", False)):
        assert forget(made / head, tmp_path / head) == 0
        said = capsys.readouterr().out
        assert "8 images still count" in said
        assert ("forget the class" in said) == undone
        model = cifnet_pl.load(tmp_path / head)
        assert model.class_names == ["ant", "cat", "dog"]
        assert model.history[-1].images is None
        assert model.buffer is None or len(model.buffer.y) == 24


def test_exact_is_only_what_is(made: Path, tmp_path: Path, capsys):
    """Removed without images, learned again, forgotten with them: the first time still counts."""
    images = made / "images" / "bee"
    assert forget(made / "four", tmp_path / "removed") == 0
    shutil.copytree(images, tmp_path / "new" / "bee")
    capsys.readouterr()
    given = {"model": tmp_path / "removed", "output": tmp_path / "again"}
    assert run_cifnet("extend", **given, images=tmp_path / "new") == 0
    said = capsys.readouterr().err
    assert "if it is among bee, those images count against it" in said
    names = cifnet_pl.load(tmp_path / "again").class_names
    assert names == ["ant", "cat", "dog", "bee"]
    code = forget(tmp_path / "again", tmp_path / "b", images)
    assert_ends(code, 0, "removed earlier without its images", capsys)


def test_images_in_several_folders(made: Path, tmp_path: Path, capsys):
    """Those of a class that was learned in two updates lie in two folders."""
    images = made / "images" / "bee"
    for i, image in enumerate(sorted(images.iterdir())):
        part = tmp_path / ("first" if i < 3 else "then")
        part.mkdir(exist_ok=True)
        shutil.copy(image, part / image.name)
    both = [tmp_path / "first", tmp_path / "then", images.parent / "cat"]
    assert forget(made / "four", tmp_path / "b", *both) == 0
    said = capsys.readouterr().out
    assert "'bee' forgotten exactly: 8 images" in said
    assert f"8 other images in {', '.join(map(str, both))} ignored" in said
    model = cifnet_pl.load(tmp_path / "b")
    never = cifnet_pl.load(made / "three")
    assert model.counts == never.counts
    assert_same_scores(model, never, queries(), 1e-8)
    assert model.history[-1].images == 8
    code = forget(made / "four", tmp_path / "c", both[0])
    assert_ends(code, 1, "3 of them are there", capsys)


def test_refusals(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    learned("ridge", [["ant"]]).save(tmp_path / "one")
    gone = tmp_path / "gone.zip"
    for model, name, images, code, sentence in (
        (made / "four", "bee", [tmp_path / "nowhere"], 1, "no file or folder"),
        (made / "four", "bee", [gone], 1, f"no file or folder {gone}: give"),
        (made / "four", "beee", [], 2, "did you mean bee?"),
        (tmp_path / "one", "ant", [], 2, "at least one must stay"),
    ):
        ended = forget(model, tmp_path / "b", *images, name=name)
        assert_ends(ended, code, sentence, capsys)
    assert not (tmp_path / "b").exists()
