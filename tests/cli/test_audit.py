"""`cifnet audit`: the page, its tables, and that nothing is embedded twice."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.cli.audit import more_photos
from cifnet_pl.model.audit import LearningCurve
from cifnet_pl.model.core import Model
from cifnet_pl.statistics import look_alikes as near_copies
from tests.cli.test_evaluate import bundle
from tests.command_line import assert_ends, learned, make_photos, rows

CLASSES = ["ant", "bee <b>&", "cat"]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bundle, and its photos with a wrong label and a broken file; alike as they are, none is a near-copy."""
    monkeypatch.setattr(near_copies, "SIMILAR", 1.1)
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
    assert "41 photos of 3 classes, each judged by all others but its look-alikes: 97.6 % right" in shown.out
    page = (made / "out" / "audit.html").read_text(encoding="utf-8")
    assert "<i>" not in page
    assert re.findall(r"(?:src|href)=\"(?!data:)", page) == []
    assert "http" not in page
    photos = rows(made / "out" / "photos.csv")
    assert len(photos) == 41
    assert [Path(row["file"]).name for row in photos if row["doubtful"] == "true"] == ["moved <i>.png"]
    assert (photos[0]["class"], photos[0]["looks_like"]) == ("cat", "ant")
    names = {path.name for path in (made / "out").iterdir()}
    assert {"confusion.png", "learning_curve.png", "classes.csv", "confusion.csv"} < names
    assert_ends(run(made), 2, "exists already", capsys)


def test_photos_in_two_classes_are_judged_in_neither(made: Path, capsys: pytest.CaptureFixture[str]):
    """By itself in the other class, each would be a doubtful label."""
    shutil.copy(made / "photos" / "ant" / "7.png", made / "photos" / "cat" / "again.png")
    assert_ends(run(made), 0, "2 photos lie in two classes, and are judged in neither and learned by neither", capsys)
    judged = {(row["class"], Path(row["file"]).name): row["doubtful"] for row in rows(made / "out" / "photos.csv")}
    assert not {("ant", "7.png"), ("cat", "again.png")} & judged.keys()
    assert [name for (_, name), doubtful in judged.items() if doubtful == "true"] == ["moved <i>.png"]
    assert len(judged) == 40


def test_a_class_with_one_photo_is_named_and_not_judged(made: Path, capsys: pytest.CaptureFixture[str]):
    (made / "photos" / "cat" / "5.png").unlink()
    (made / "photos" / "eel").mkdir()
    (made / "photos" / "cat" / "4.png").rename(made / "photos" / "eel" / "lonely.png")
    assert_ends(run(made), 0, "1 class has one photo and cannot be judged: eel\n", capsys)
    tables = {name: rows(made / "out" / f"{name}.csv") for name in ("photos", "classes")}
    last = tables["photos"][-1]
    assert (Path(last["file"]).name, last["class"]) == ("lonely.png", "eel")
    empty = ("probability_of_class", "looks_like", "probability", "doubtful", "distance")
    assert [last[name] for name in empty] == [""] * 5
    assert all(row["distance"] and row["probability"] for row in tables["photos"][:-1])
    (eel,) = (row for row in tables["classes"] if row["class"] == "eel")
    assert eel["photos"] == "1"
    assert [eel[name] for name in ("right", "accuracy", "low", "high", "taken_for")] == [""] * 5


def test_classes_of_near_copies_alone_are_named(made, monkeypatch, capsys):
    monkeypatch.undo()
    assert run(made) == 0
    named = "2 classes have one photo, or near-copies of one alone, and cannot be judged: ant, bee <b>&\n"
    assert named in capsys.readouterr().out


def test_single_photos_alone_are_refused(made: Path, capsys: pytest.CaptureFixture[str]):
    photos = make_photos(made / "single", ["ant", "cat"], 1)
    given = ["--output", str(made / "out"), "--cache_folder", str(made / "cache")]
    assert main(["audit", "--model", str(made / "m"), "--images", str(photos), *given]) == 1
    assert "has one photo of each class, or near-copies of one" in capsys.readouterr().err


def test_small_classes_are_named_before_anything_is_enough():
    names = ["ant", "bee", "cat"]
    flat = LearningCurve([(75, 85.7), (150, 86.0)])
    assert flat.gain == pytest.approx(0.3)
    assert more_photos(flat, names).endswith("that is enough")
    assert more_photos(LearningCurve([(75, 80.0), (150, 86.0)]), names).endswith("more photos would help")
    first = "2 classes have fewer than 75 photos: give these more first: ant, cat"
    assert more_photos(flat._replace(short=(0, 2)), names).endswith(first)
    assert more_photos(LearningCurve(flat.points[1:], (0, 2)), names).endswith(f"; {first}")
    many = more_photos(flat._replace(short=tuple(range(12))), [str(n) for n in range(12)])
    assert many.endswith("more first: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more")


def test_the_network_is_not_touched_again(made: Path, monkeypatch: pytest.MonkeyPatch):
    (made / "photos" / "cat" / "5.png").unlink()
    assert run(made) == 0
    first = (made / "out" / "photos.csv").read_bytes()
    monkeypatch.setattr(Model, "embed", Mock(side_effect=AssertionError))
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
    options += ["--energy.enabled", "false", "--model.head", "RidgeHead"]
    assert main(["fit", *options, "--logs", str(tmp_path)]) == 0
    for photos in ([], ["--images", str(made / "photos")]):
        audited = ["audit", "--model", str(tmp_path / "default"), "--output", str(tmp_path / "b"), *photos]
        capsys.readouterr()
        assert_ends(main(audited), 2, "learned embeddings that were computed elsewhere: an audit needs photos", capsys)
