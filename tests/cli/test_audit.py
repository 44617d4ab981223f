"""`cifnet audit`: the page, its tables, and that nothing is embedded twice."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.statistics import groups as near_duplicates
from tests.cli.test_evaluate import bundle
from tests.command_line import assert_ends, learned, make_images, rows, run_cifnet

CLASSES = ["ant", "bee <b>&", "cat"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle, and its images with a wrong label and a broken file; alike as they are, none is a
    near-duplicate.
    """
    monkeypatch.setattr(near_duplicates, "NEAR_DUPLICATE", 1.1)
    images = make_images(tmp_path / "images", CLASSES, 14)
    bundle(tmp_path / "m", images, CLASSES, 14)
    (images / "ant" / "3.png").rename(images / "cat" / "moved <i>.png")
    (images / "cat" / "5.png").write_bytes(b"no image")
    return tmp_path


def run(made: Path, *options: str) -> int:
    given = {"model": made / "m", "images": made / "images", "output": made / "out"}
    return run_cifnet("audit", *options, **given, cache_folder=made / "cache")


def test_the_page_and_its_tables(made: Path, capsys: pytest.CaptureFixture[str]):
    assert run(made) == 0
    shown = capsys.readouterr()
    assert "Leave-one-out accuracy 97.6 % (41 images, 3 classes" in shown.out
    assert "1 probable label error\n" in shown.out
    page = (made / "out" / "audit.html").read_text(encoding="utf-8")
    assert "<i>" not in page
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in page
    images = rows(made / "out" / "images.csv")
    assert len(images) == 41
    assert [
        Path(row["file"]).name for row in images if row["label_error"] == "true"
    ] == ["moved <i>.png"]
    assert (images[0]["class"], images[0]["predicted"]) == ("cat", "ant")
    names = {path.name for path in (made / "out").iterdir()}
    assert {
        "confusion.png",
        "learning_curve.png",
        "classes.csv",
        "confusion.csv",
    } < names
    assert_ends(run(made), 2, "exists already", capsys)


def test_images_in_two_classes_are_judged_in_neither(
    made: Path, capsys: pytest.CaptureFixture[str]
):
    """By itself in the other class, each would be a label error."""
    shutil.copy(
        made / "images" / "ant" / "7.png", made / "images" / "cat" / "again.png"
    )
    assert_ends(
        run(made),
        0,
        "2 images in two classes, not judged",
        capsys,
    )
    judged = {
        (row["class"], Path(row["file"]).name): row["label_error"]
        for row in rows(made / "out" / "images.csv")
    }
    assert not {("ant", "7.png"), ("cat", "again.png")} & judged.keys()
    assert [
        name for (_, name), label_errors in judged.items() if label_errors == "true"
    ] == ["moved <i>.png"]
    assert len(judged) == 40


def test_single_images_alone_are_refused(
    made: Path, capsys: pytest.CaptureFixture[str]
):
    shutil.rmtree(made / "images")
    make_images(made / "images", ["ant", "cat"], 1)
    assert run(made) == 1
    assert "each class has one image" in capsys.readouterr().err


def test_the_network_is_not_touched_again(made: Path, monkeypatch: pytest.MonkeyPatch):
    (made / "images" / "cat" / "5.png").unlink()
    assert run(made) == 0
    first = (made / "out" / "images.csv").read_bytes()
    monkeypatch.setattr(Classifier, "embed", Mock(side_effect=AssertionError))
    assert run(made, "--overwrite") == 0
    assert (made / "out" / "images.csv").read_bytes() == first


def test_a_cache_that_cannot_be_written_is_a_warning(
    made: Path, capsys: pytest.CaptureFixture[str]
):
    (made / "cache").write_text("no folder")
    assert run(made) == 0
    shown = capsys.readouterr()
    assert "Leave-one-out accuracy 97.6 % (41 images, 3 classes" in shown.out
    assert shown.err.count("no embeddings are cached: cannot write") == 1


def test_images_of_a_run_and_of_none(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (made / "images" / "cat" / "5.png").unlink()
    cache = ["--data.cache", "true", "--data.cache_folder", str(made / "cache")]
    images = f"--data.source folder --data.root {made}/images --model.head RidgeHead"
    folder = learned(tmp_path / "logs", *images.split(), *cache)
    common = ["--cache_folder", str(made / "cache")]
    capsys.readouterr()
    assert run_cifnet("audit", *common, model=folder, output=tmp_path / "a") == 0
    assert "(41 images, 3 classes" in capsys.readouterr().out
    given = {"model": made / "m", "output": tmp_path / "b"}
    assert run_cifnet("audit", *common, **given) == 2
    assert "give them with --images" in capsys.readouterr().err
    assert run_cifnet("audit", *common, **given, images="none") == 2
    assert "no folder none: give the images with --images" in capsys.readouterr().err
