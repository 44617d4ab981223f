"""`cifnet audit`: the page, its tables, and that nothing is embedded twice."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.model.incremental import IncrementalClassifier
from tests.cli.test_evaluate import bundle
from tests.command_line import learned, make_photos

CLASSES = ["ant", "bee <b>&", "cat"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A bundle, and its photos with a wrong label and a broken file."""
    photos = make_photos(tmp_path / "photos", CLASSES, 14)
    bundle(tmp_path / "m", photos, CLASSES, 14)
    (photos / "ant" / "3.png").rename(photos / "cat" / "moved <i>.png")
    (photos / "cat" / "5.png").write_bytes(b"no photo")
    return tmp_path


def run(made: Path, *options: str) -> int:
    given = ["--images", str(made / "photos"), "--output", str(made / "out"), "--cache_folder", str(made / "cache")]
    return main(["audit", "--model", str(made / "m"), *given, *options])


def test_the_page_and_its_tables(made: Path, capsys: pytest.CaptureFixture[str]):
    assert run(made) == 0
    shown = capsys.readouterr()
    assert "41 photos of 3 classes, each judged by all others: 97.6 % right" in shown.out
    assert "; 1 doubtful label\n" in shown.out
    assert "5.png: no image of a known format" in shown.err
    page = (made / "out" / "audit.html").read_text(encoding="utf-8")
    assert "moved &lt;i&gt;.png" in page
    assert "bee &lt;b&gt;&amp;" in page
    assert "<i>" not in page
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in page
    with (made / "out" / "photos.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 41
    assert [Path(row["file"]).name for row in rows if row["doubtful"] == "true"] == ["moved <i>.png"]
    assert (rows[0]["class"], rows[0]["looks_like"]) == ("cat", "ant")
    names = {path.name for path in (made / "out").iterdir()}
    assert {"confusion.png", "learning_curve.png", "classes.csv", "confusion.csv"} < names
    assert run(made) == 2
    assert "exists already" in capsys.readouterr().err


def test_the_network_is_not_touched_again(made: Path, monkeypatch: pytest.MonkeyPatch):
    (made / "photos" / "cat" / "5.png").unlink()
    assert run(made) == 0
    first = (made / "out" / "photos.csv").read_bytes()

    def embed(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(IncrementalClassifier, "embed", embed)
    assert run(made, "--overwrite") == 0
    assert (made / "out" / "photos.csv").read_bytes() == first


def test_photos_of_a_run_and_of_none(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (made / "photos" / "cat" / "5.png").unlink()
    cache = ["--data.cache", "true", "--data.cache_folder", str(made / "cache")]
    photos = ["--data.source", "folder", "--data.root", str(made / "photos"), "--model.head", "RidgeHead"]
    folder = learned(tmp_path / "logs", *photos, *cache)
    common = ["--cache_folder", str(made / "cache")]
    capsys.readouterr()
    assert main(["audit", "--model", str(folder), "--output", str(tmp_path / "a"), *common]) == 0
    assert "41 photos of 3 classes" in capsys.readouterr().out
    assert main(["audit", "--model", str(made / "m"), "--output", str(tmp_path / "b"), *common]) == 2
    assert "give them with --images" in capsys.readouterr().err


def test_what_cannot_be_audited(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["audit", "--model", str(made / "m"), "--images", "none", "--output", str(tmp_path / "a")]) == 2
    assert "no folder none: give the photos with --images" in capsys.readouterr().err
    z = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    np.savez(tmp_path / "z.npz", embeddings=z, labels=np.arange(60) % 3)
    options = ["--data.source", "embeddings", "--data.root", str(tmp_path / "z.npz"), "--data.classes_per_task", "3"]
    assert (
        main(["fit", *options, "--energy.enabled", "false", "--logs", str(tmp_path), "--model.head", "RidgeHead"]) == 0
    )
    for photos in ([], ["--images", str(made / "photos")]):
        audited = ["audit", "--model", str(tmp_path / "default"), "--output", str(tmp_path / "b"), *photos]
        capsys.readouterr()
        assert main(audited) == 2
        assert "learned embeddings that were computed elsewhere: an audit needs photos" in capsys.readouterr().err
