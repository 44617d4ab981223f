"""Classifying files: what the table says, which files it takes, and what happens with those that cannot be read."""

import csv
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.model.classifier import Prediction
from cifnet_pl.photos.photo import read_square
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import environment, make_photos
from tests.models import empty

CLASSES = ["ant", "bee", "cat"]


def colours(root: Path, count: int = 12) -> None:
    make_photos(root, CLASSES, count)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that tells three colours apart, and photos of them."""
    root = tmp_path_factory.mktemp("made")
    colours(root / "photos")
    model = empty("ridge")
    files = sorted((root / "photos").rglob("*.png"))
    z = model.embed(torch.stack([torch.from_numpy(read_square(f, 2).copy()).permute(2, 0, 1) for f in files]))
    model.begin_task(CLASSES)
    model.observe(z, torch.tensor(model.labels(f.parent.name for f in files)), torch.arange(len(files)))
    model.finish_task()
    model.save(root / "b")
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def classify(place: Path, images: str, *options: str) -> int:
    given = ["--model", str(place / "b"), "--images", images, "--output", str(place / "out.csv")]
    return main(["classify", *given, *options])


def table(place: Path) -> list[dict[str, str]]:
    with (place / "out.csv").open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def test_the_table(place: Path, capsys: pytest.CaptureFixture[str]):
    assert classify(place, str(place / "photos")) == 0
    rows = table(place)
    assert list(rows[0]) == ["file", "class", "probability", "class_2", "probability_2", "class_3", "probability_3"]
    assert [row["file"] for row in rows] == sorted(str(path) for path in (place / "photos").rglob("*.png"))
    assert all(row["class"] == Path(row["file"]).parent.name for row in rows)
    model = cifnet_pl.load(place / "b")
    for row in rows[::7]:
        pixels = torch.from_numpy(read_square(Path(row["file"]), 2).copy()).permute(2, 0, 1)[None]
        expected = model.probabilities(pixels)[0]
        shares = [float(row[f"probability{k}"]) for k in ("", "_2", "_3")]
        assert shares == sorted(shares, reverse=True)
        assert shares == pytest.approx(expected.sort(descending=True).values.tolist(), abs=1e-6)
        names = [row[f"class{k}"] for k in ("", "_2", "_3")]
        assert names == [model.class_names[i] for i in expected.argsort(descending=True)]
    assert "36 photos classified" in capsys.readouterr().out


def test_top(place: Path):
    assert classify(place, str(place / "photos"), "--top", "1") == 0
    assert list(table(place)[0]) == ["file", "class", "probability"]
    assert classify(place, str(place / "photos"), "--top", "2", "--overwrite", "true") == 0
    assert list(table(place)[0]) == ["file", "class", "probability", "class_2", "probability_2"]


def test_one_file_a_pattern_and_nested_folders(place: Path):
    assert classify(place, str(place / "photos" / "ant" / "3.png")) == 0
    assert [Path(row["file"]).name for row in table(place)] == ["3.png"]
    deep = place / "photos" / "ant" / "a" / "b"
    deep.mkdir(parents=True)
    shutil.copy(place / "photos" / "bee" / "1.png", deep / 'Ströme, "x".PNG')
    (deep / "notes.txt").write_text("no photo")
    (deep / ".hidden.png").write_bytes(b"")
    (deep / "loop").symlink_to(place / "photos", target_is_directory=True)
    assert classify(place, str(place / "photos"), "--overwrite") == 0
    rows = {row["file"]: row["class"] for row in table(place)}
    assert len(rows) == 37
    assert rows[str(deep / 'Ströme, "x".PNG')] == "bee"
    assert classify(place, str(place / "photos" / "**" / "1*.png"), "--overwrite") == 0
    assert sorted(Path(row["file"]).name for row in table(place)) == sorted(["1.png", "10.png", "11.png"] * 3)
    for odd in ("[brackets]", "a*b"):
        (place / odd).mkdir()
        shutil.copy(place / "photos" / "cat" / "0.png", place / odd)
        assert classify(place, str(place / odd), "--overwrite") == 0
        assert [row["class"] for row in table(place)] == ["cat"]


def test_names_that_are_not_text_keep_their_bytes(place: Path):
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")
    try:
        shutil.copy(place / "photos" / "cat" / "0.png", place / "photos" / name)
    except OSError:
        return  # this file system has no such names
    assert classify(place, str(place / "photos")) == 0
    assert str(place / "photos" / name) in {row["file"] for row in table(place)}


def test_unreadable_files_are_listed_and_counted(place: Path, capsys: pytest.CaptureFixture[str]):
    for i, content in enumerate([b"", b"not a photo", (place / "photos" / "ant" / "1.png").read_bytes()[:60]]):
        (place / "photos" / "ant" / f"broken{i}.png").write_bytes(content)
    assert classify(place, str(place / "photos")) == 0
    said = capsys.readouterr()
    assert said.err.count("skipped ") == 3
    assert all(f"broken{i}.png" in said.err for i in range(3))
    assert "36 photos classified" in said.out
    assert "3 unreadable left out" in said.out
    assert len(table(place)) == 36


def test_strict_stops_and_leaves_no_table(place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "photos" / "bee" / "broken.png").write_bytes(b"")
    assert classify(place, str(place / "photos"), "--strict") == 1
    assert "broken.png" in capsys.readouterr().err
    assert not (place / "out.csv").exists()
    assert classify(place, str(place / "photos"), "--strict", "false") == 0


def test_only_unreadable_files(place: Path, capsys: pytest.CaptureFixture[str]):
    """As for a folder without photos: no table of nothing."""
    (place / "x").mkdir()
    (place / "x" / "a.png").write_bytes(b"")
    before = sorted(place.iterdir())
    assert classify(place, str(place / "x"), "--gallery", str(place / "g.png")) == 1
    assert f"no photo of {place / 'x'} can be read (1 file)" in capsys.readouterr().err
    assert sorted(place.iterdir()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="other systems decode all names")
def test_a_name_that_is_no_text(place: Path, tmp_path: Path):
    """A file of an old disk, whose name is in another encoding: \\xe9 is é in Latin-1."""
    name = os.fsdecode(b"caf\xe9.png")
    photo = next(iter(sorted((place / "photos").rglob("*.png"))))
    (place / name).write_bytes(photo.read_bytes())
    assert classify(place, str(place / name)) == 0


REFUSED = [
    (["--images", "{tmp}/nowhere"], 1, "no file or folder"),
    (["--images", "{tmp}/gone.zip"], 1, "gone.zip: give a photo, a folder, a Zip archive, or"),
    (["--images", "{tmp}/*.gif"], 1, "no photo matches"),
    (["--images", "{tmp}/empty"], 1, "holds no photo"),
    (["--top", "0"], 2, "--top"),
    (["--top", "many"], 2, "--top"),
    (["--output", "{tmp}/b"], 2, "is a folder"),
    (["--output", "{tmp}/old.csv"], 2, "--overwrite true"),
    (["--gallery", "{tmp}/old.png"], 2, "--overwrite true"),
    (["--gallery", "{tmp}/new.gif"], 2, "ends in .png"),
    (["--gallery", "{tmp}/old.csv/x.png"], 1, "cannot write"),
    (["--output", "{tmp}/new.png", "--gallery", "{tmp}/new.png"], 2, "give two names"),
    (["--model", "{tmp}/old.csv"], 1, "damaged or not a checkpoint"),
]


@pytest.mark.parametrize(("options", "code", "reason"), REFUSED)
def test_refusals(options: list[str], code: int, reason: str, place: Path, capsys: pytest.CaptureFixture[str]):
    (place / "empty").mkdir()
    (place / "old.csv").write_text("mine")
    (place / "old.png").write_text("mine")
    before = sorted(place.rglob("*"))
    assert classify(place, str(place / "photos"), *(o.format(tmp=place) for o in options)) == code
    assert reason in capsys.readouterr().err
    assert sorted(place.rglob("*")) == before
    assert (place / "old.csv").read_text() == "mine"


def test_gallery(place: Path):
    assert classify(place, str(place / "photos"), "--gallery", str(place / "g.png")) == 0
    with Image.open(place / "g.png") as picture:
        assert picture.format == "PNG"
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape[0] > 1000 < pixels.shape[1]  # four rows of six
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 1000  # photos, not an empty page
    assert (
        classify(place, str(place / "photos" / "ant" / "0.png"), "--gallery", str(place / "1.png"), "--overwrite") == 0
    )
    with Image.open(place / "1.png") as picture:
        assert picture.size[0] < 400


@pytest.mark.system
def test_memory_does_not_grow_with_the_number_of_files(place: Path):
    """A folder with 6,000 links to one photo, and one with 600; the sorting of names is bounded tightly."""
    peaks = []
    for count in (600, 6_000):
        folder = place / f"many{count}"
        folder.mkdir()
        for i in range(count):
            (folder / f"a photo with a rather long name, as cameras and people give them {i:06}.png").symlink_to(
                place / "photos" / "ant" / "0.png"
            )
        code = (
            "import resource; from cifnet_pl.photos import files; from cifnet_pl.__main__ import main\n"
            "files.SORTED_AT_ONCE = 200\n"
            f"assert main(['classify', '--model', {str(place / 'b')!r}, '--images', {str(folder)!r}, "
            f"'--output', {str(place / f'{count}.csv')!r}]) == 0\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] - peaks[0] < 4_000  # kB


def test_python(place: Path):
    model = cifnet_pl.load(place / "b")
    (found,) = model.classify([place / "photos" / "bee" / "2.png"], top=2)
    assert found.classes[0] == "bee"
    assert len(found.classes) == len(found.probabilities) == 2
    (place / "broken.png").touch()
    (lost,) = model.classify([place / "broken.png"])
    assert lost.unreadable
    assert lost.classes == ()


def test_several_places_and_an_archive(place: Path, capsys: pytest.CaptureFixture[str]):
    with zipfile.ZipFile(place / "bees.zip", "w") as archive:
        for path in sorted((place / "photos" / "bee").iterdir()):
            archive.write(path, f"bees of May/{path.name}")
    given = [str(place / "photos" / "ant"), str(place / "photos" / "cat" / "[0-3].png"), str(place / "bees.zip")]
    assert main(["classify", "--model", str(place / "b"), "--images", *given, "--output", str(place / "out.csv")]) == 0
    rows = table(place)
    assert [row["class"] for row in rows] == ["ant"] * 12 + ["cat"] * 4 + ["bee"] * 12
    assert rows[-1]["file"] == str(place / "bees.zip" / "bees of May" / "9.png")
    assert classify(place, given[0], "--images", given[1], "--overwrite") == 0
    assert len(table(place)) == 16
    assert classify(place, given[0], "--images", str(place / "none"), "--overwrite") == 1
    assert "no file or folder" in capsys.readouterr().err
    assert len(table(place)) == 16


def test_python_takes_paths_bytes_and_images(place: Path):
    model = cifnet_pl.load(place / "b")
    path = place / "photos" / "bee" / "4.png"
    (expected,) = model.classify([path])
    with Image.open(path) as image:
        image.load()
    for photos in (str(path), path, [str(path)], path.read_bytes(), [bytearray(path.read_bytes())], image, [image]):
        (found,) = model.classify(photos)
        assert (found.classes, found.probabilities) == (expected.classes, expected.probabilities)
        assert found.file in (path, None)
    assert len(list(model.classify(place / "photos"))) == 36
    (broken,) = model.classify(b"no photo")
    assert (broken.file, broken.unreadable) == (None, "no image of a known format")
    with pytest.raises(DataError, match="no file or folder"):
        list(model.classify(str(place / "none.png")))
    with pytest.raises(UsageError, match="int is no photo"):
        list(model.classify([7]))


def test_gallery_of_the_least_sure_and_of_the_wrong(place: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    shown: list[list[Prediction]] = []
    monkeypatch.setattr("cifnet_pl.cli.classify.write_gallery", lambda found, path: shown.append(list(found)))
    monkeypatch.setattr("cifnet_pl.cli.classify.IN_GALLERY", 5)
    (place / "photos" / "ant" / "3.png").rename(place / "photos" / "bee" / "moved.png")
    options = ("--gallery", str(place / "g.png"), "--overwrite")
    assert classify(place, str(place / "photos"), *options, "--show", "unsure") == 0
    assert classify(place, str(place / "photos"), *options, "--show", "wrong") == 0
    least = sorted(float(row["probability"]) for row in table(place))[:5]
    assert [p.probabilities[0] for p in shown[0]] == pytest.approx(least, abs=1e-6)
    assert [str(p.file) for p in shown[1]] == [str(place / "photos" / "bee" / "moved.png")]
    capsys.readouterr()
    assert classify(place, str(place / "photos" / "cat"), *options, "--show", "wrong") == 0
    assert "no gallery is written" in capsys.readouterr().out
    assert len(shown) == 2


def test_gallery_with_names_in_any_script(place: Path, recwarn: pytest.WarningsRecorder, capsys):
    model = cifnet_pl.load(place / "b")
    model.class_names = ["Ёлка 😀", "猫", "ß $x$"]
    model.save(place / "b2")
    (place / "photos" / "ant" / "0.png").rename(place / "photos" / "ant" / "木 $1$.png")
    given = ["--model", str(place / "b2"), "--images", str(place / "photos" / "ant")]
    assert main(["classify", *given, "--output", str(place / "o.csv"), "--gallery", str(place / "g.png")]) == 0
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
    said = capsys.readouterr().out
    assert "gallery of 12 of them" in said
    with Image.open(place / "g.png") as image:
        image.load()
