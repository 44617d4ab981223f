"""Classifying files: the table, which files it takes, what cannot be read and what is not known."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import cifnet_pl
from cifnet_pl.images.image import read_square
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import read_list_cell
from tests.cli.test_evaluate import bundle
from tests.command_line import assert_ends, environment, make_images, rows, run_cifnet

CLASSES = ["ant", "bee", "cat"]
UNKNOWN = ["yak", "zebu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and bundles with many calibration samples and none."""
    root = tmp_path_factory.mktemp("made")
    make_images(root / "images", CLASSES, 12)
    make_images(root / "many", CLASSES, 25)
    bundle(root / "b", root / "images")
    bundle(root / "many samples", root / "many", 75)
    make_images(root / "many", UNKNOWN, 4)
    return root


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """The same, each time anew."""
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def classify(place: Path, images: object, *options: str, model: str = "b") -> int:
    given = {"model": place / model, "images": images, "output": place / "out.csv"}
    return run_cifnet("classify", *options, **given)


def table(place: Path) -> list[dict[str, str]]:
    return rows(place / "out.csv")


def test_the_table(place: Path, capsys):
    code = classify(place, place / "images")
    assert_ends(code, 0, "36 images classified", capsys)
    told = table(place)
    columns = "file class probability class_2 probability_2 class_3 probability_3"
    assert list(told[0]) == columns.split()
    files = sorted((place / "images").rglob("*.png"), key=str)
    assert [row["file"] for row in told] == list(map(str, files))
    model = cifnet_pl.load(place / "b")
    squares = [torch.from_numpy(read_square(file, 2).copy()) for file in files]
    probabilities = model.probabilities(torch.stack(squares).permute(0, 3, 1, 2))
    ranked = probabilities.sort(dim=1, descending=True)
    for row, file, shares, order in zip(told, files, *ranked, strict=True):
        names = [row[f"class{k}"] for k in ("", "_2", "_3")]
        assert names == [model.class_names[i] for i in order]
        assert names[0] == file.parent.name
        told_shares = [float(row[f"probability{k}"]) for k in ("", "_2", "_3")]
        assert told_shares == pytest.approx(shares.tolist(), abs=1e-6)


def test_names_that_are_not_text_keep_their_bytes(latin_name: str, place: Path):
    """A file of an old disk, whose name is in another encoding: \\xe4 is ä in Latin-1."""
    name = f"{latin_name}.png"
    shutil.copy(place / "images" / "cat" / "0.png", place / "images" / name)
    assert classify(place, place / "images") == 0
    assert str(place / "images" / name) in {row["file"] for row in table(place)}
    assert classify(place, place / "images" / name, "--overwrite") == 0


def test_unreadable_files_are_listed_and_counted(place: Path, capsys):
    """With no others there is no table, as for a folder without images."""
    (place / "x").mkdir()
    cut = (place / "images" / "ant" / "1.png").read_bytes()[:60]
    for i, content in enumerate([b"", b"not an image", cut]):
        (place / "x" / f"broken{i}.png").write_bytes(content)
    before = sorted(place.iterdir())
    assert classify(place, place / "x", "--gallery", str(place / "g.png")) == 1
    assert f"no image of {place / 'x'} can be read (3 files)" in capsys.readouterr().err
    assert sorted(place.iterdir()) == before
    assert classify(place, place / "images", "--images", str(place / "x")) == 0
    said = capsys.readouterr()
    assert all(f"broken{i}.png" in said.err for i in range(3))
    assert "3 unreadable" in said.out
    assert len(table(place)) == 36


REFUSED = [
    ("--images {tmp}/no --output {tmp}/old.csv --overwrite", 1, "no file or folder"),
    ("--images {tmp}/empty", 1, "no image in"),
    ("--top 0", 2, "--top"),
    ("--output {tmp}/old.csv", 2, "--overwrite true"),
    ("--gallery {tmp}/old.png", 2, "--overwrite true"),
    ("--gallery {tmp}/old.csv/x.png", 1, "cannot write"),
    ("--output {tmp}/pipe --overwrite", 2, "is no file"),
]


@pytest.mark.parametrize(("options", "code", "reason"), REFUSED)
def test_refusals(options: str, code: int, reason: str, place: Path, capsys):
    (place / "empty").mkdir()
    (place / "old.csv").write_text("mine")
    (place / "old.png").write_text("mine")
    os.mkfifo(place / "pipe")
    before = sorted(place.rglob("*"))
    given = options.format(tmp=place).split()
    assert_ends(classify(place, place / "images", *given), code, reason, capsys)
    assert sorted(place.rglob("*")) == before
    assert (place / "old.csv").read_text() == "mine"


@pytest.mark.system
def test_memory_does_not_grow_with_the_number_of_files(place: Path):
    """A folder with 6,000 links, and one with 600; the sorting of names is bounded tightly."""
    peaks = []
    for count in (600, 6_000):
        folder = place / f"many{count}"
        folder.mkdir()
        name = "an image with a rather long name, as cameras and people give them"
        for i in range(count):
            link = folder / f"{name} {i:06}.png"
            link.symlink_to(place / "images" / "ant" / "0.png")
        words = f"--model {place}/b --images {folder} --output {place}/{count}.csv"
        code = f"""
import resource
from cifnet_pl.__main__ import main
from cifnet_pl.images import files
files.SORTED_AT_ONCE = 200
assert main("classify {words}".split()) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
        program = [sys.executable, "-c", code]
        said = subprocess.check_output(program, text=True, env=environment())
        peaks.append(int(said.splitlines()[-1]))
    assert peaks[1] - peaks[0] < 4_000  # kB


def test_python_takes_paths_and_bytes(place: Path):
    model = cifnet_pl.load(place / "b")
    path = place / "images" / "bee" / "4.png"
    (expected,) = model.classify([path])
    packed = Path(shutil.make_archive(str(place / "bees"), "zip", path.parent))
    for images in (str(path), path, path.read_bytes(), packed / "4.png"):
        (found,) = model.classify(images)
        assert replace(found, file=path) == expected
        assert found.file in (path, packed / "4.png", None)
    assert len(list(model.classify(np.zeros((9, 8, 4), np.uint8)))) == 1
    (broken,) = model.classify(b"no image")
    assert (broken.file, broken.unreadable) == (None, "no image of a known format")
    with pytest.raises(DataError, match="an image in memory is an image of shape"):
        list(model.classify([7]))


# ---------------------------------------------------------------------- what the model does not
# know


def test_the_columns(place, capsys):
    options = ["--unknown", "0.05", "--coverage", "0.9", "--top", "2"]
    assert classify(place, place / "many", *options, model="many samples") == 0
    told = table(place)
    last = ["probability_2", "known", "novelty", "p_value", "prediction_set"]
    assert list(told[0])[-5:] == last
    known = {True: [], False: []}
    for row in told:
        known[Path(row["file"]).parent.name in CLASSES].append(row["known"])
    assert set(known[False]) == {"false"}
    assert known[True].count("false") <= 0.1 * len(known[True])
    unknown = sum(row["known"] == "false" for row in told)
    said = capsys.readouterr().out
    assert f"{unknown} of {len(told)} images unknown" in said
    assert "coverage 90 % for images of known classes" in said
    files = [row["file"] for row in told]
    model = cifnet_pl.load(place / "many samples")
    predictions = model.classify(files, unknown=0.05, coverage=0.9)
    for row, expected in zip(told, predictions, strict=True):
        assert row["known"] == str(expected.known).lower()
        assert float(row["novelty"]) == pytest.approx(expected.novelty, rel=1e-5)
        assert float(row["p_value"]) == pytest.approx(expected.p_value, abs=1e-6)
        assert read_list_cell(row["prediction_set"]) == list(expected.prediction_set)


def test_the_gallery_marks_what_is_unknown(place):
    red = np.array([178, 24, 43])

    def drawn(*options: str) -> np.ndarray:
        images = place / "many" / "[by]*" / "0.png"
        words = ("--overwrite", "--gallery", str(place / "g.png"), *options)
        assert classify(place, images, *words, model="many samples") == 0
        with Image.open(place / "g.png") as image:
            assert image.format == "PNG"
            return np.asarray(image.convert("RGB"))

    pixels = drawn()
    assert pixels.shape[1] > 400 > pixels.shape[0]  # two images beside each other
    many_colours = Image.fromarray(pixels).getcolors(100) is None
    assert many_colours  # images, no empty page
    marked = (drawn("--unknown", "0.05") == red).all(axis=2).sum()
    assert marked > (pixels == red).all(axis=2).sum() + 500
