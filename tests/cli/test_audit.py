"""`cifnet audit`: the page, its tables, and that nothing is embedded twice."""

import re
import shutil
from pathlib import Path

import pytest

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.statistics import groups as near_duplicates
from tests.cli.test_evaluate import bundle
from tests.command_line import assert_ends, make_images, rows, run_cifnet

CLASSES = ["ant", "bee <b>&", "cat"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle, and alike images of which one has a wrong label, and one lies in two classes."""
    monkeypatch.setattr(near_duplicates, "NEAR_DUPLICATE", 1.1)
    images = make_images(tmp_path / "images", CLASSES, 14)
    bundle(tmp_path / "m", images)
    (images / "ant" / "3.png").rename(images / "cat" / "moved <i>.png")
    shutil.copy(images / "ant" / "7.png", images / "cat" / "again.png")
    return tmp_path


def run(made: Path, **options: object) -> int:
    given = {"model": made / "m", "output": made / "out", **options}
    return run_cifnet("audit", **given, cache_folder=made / "cache")


def test_the_page_and_its_tables(made, watch, capsys):
    """The image in two classes is judged in neither: by itself, each would be a label error. The
    images of a run are found, and those of a class that has changed are embedded again.
    """
    assert run(made, images=made / "images", output=made / "before") == 0
    (made / "images" / "cat" / "5.png").write_bytes(b"no image")
    data = f"data:\n  source: folder\n  root: {made / 'images'}\n"
    (made / "m" / "config.yaml").write_text(data)
    embedded = watch(Classifier, "embed", lambda _, images, *rest: len(images))
    capsys.readouterr()
    assert run(made) == 0
    assert sum(embedded) == 13
    embedded.clear()
    assert run(made, output=made / "again") == 0
    assert sum(embedded) == 0
    shown = capsys.readouterr()
    assert "Leave-one-out accuracy 97.5 % (40 images, 3 classes" in shown.out
    assert "2 images in two classes, not judged" in shown.out
    assert "1 probable label error\n" in shown.out
    assert "5.png" in shown.err
    page = (made / "out" / "audit.html").read_text(encoding="utf-8")
    assert "<i>" not in page
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in page
    images = rows(made / "out" / "images.csv")
    files = [Path(row["file"]).name for row in images]
    assert len(images) == 40
    assert "again.png" not in files
    wrong = [row["label_error"] for row in images]
    assert (files[wrong.index("true")], wrong.count("true")) == ("moved <i>.png", 1)
    assert (images[0]["class"], images[0]["predicted"]) == ("cat", "ant")
    names = {path.name for path in (made / "out").iterdir()}
    tables = {"classes.csv", "confusion.csv"}
    assert {"confusion.png", "learning_curve.png", *tables} < names
    assert_ends(run(made, images=made / "images"), 2, "exists already", capsys)


def test_refusals(made: Path, capsys: pytest.CaptureFixture[str]):
    images = make_images(made / "single", ["ant", "cat"], 1)
    assert_ends(run(made, images=images), 1, "each class has one image", capsys)
    # A file beside the bundle, which belongs to no run.
    (made / "config.yaml").write_text(f"data: {{source: folder, root: {images}}}\n")
    assert_ends(run(made), 2, "give them with --images", capsys)
    assert_ends(run(made, images="none"), 1, "none", capsys)
