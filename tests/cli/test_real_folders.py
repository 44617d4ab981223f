"""Commands over folders as people have them: other images than expected, pipes, broken links."""

import os
import unicodedata
from pathlib import Path

import pytest

import cifnet_pl
from cifnet_pl.__main__ import main
from tests.command_line import learned, make_images, rows
from tests.data.tree import fill
from tests.models import empty

RIDGE = ["--data.source", "folder", "--model.head", "RidgeHead"]
COMPOSED = unicodedata.normalize("NFC", "Café")
DECOMPOSED = unicodedata.normalize("NFD", "Café")


def special_entries(folder: Path) -> None:
    """Add a pipe, a link that leads nowhere, a circle of links and a link to a device."""
    os.mkfifo(folder / "pipe.png")
    (folder / "nowhere.png").symlink_to("gone.png")
    (folder / "circle.png").symlink_to("circle.png")
    (folder / "device.png").symlink_to("/dev/zero")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two classes, one of which has an accent."""
    place = tmp_path_factory.mktemp("model")
    images = make_images(place / "images", ["ant", COMPOSED], 6)
    cifnet_pl.extend(empty("ridge"), images).model.save(place / "m")
    return place / "m"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("classify", ["4 unreadable", "1 file is passed over"]),
        ("watch --once", ["pipe.png", "device.png"]),
    ],
)
def test_no_command_waits_for_a_pipe(command, said, model, tmp_path, capsys):
    folder = make_images(tmp_path / "new", ["ant"], 3)
    special_entries(folder)
    (folder / "1.jxl").write_bytes(b"x")
    table = tmp_path / "a.csv"
    words = f"{command} --model {model} --images {folder} --output {table}"
    assert main(words.split()) == 0
    assert len(rows(table)) == 3
    shown = capsys.readouterr()
    assert [part for part in said if part not in shown.out + shown.err] == []


def test_extend_knows_a_class_in_another_unicode_form(model, tmp_path):
    more = tmp_path / "more"
    for name, colour in ((DECOMPOSED, (200, 0, 0)), ("elk", (0, 200, 0))):
        fill(more / name, colour, 4)
    words = ["extend", "--model", str(model), "--images", str(more), "--more", "true"]
    assert main([*words, "--output", str(tmp_path / "b")]) == 0
    extended = cifnet_pl.load(tmp_path / "b")
    assert extended.class_names == [COMPOSED, "ant", "elk"]
    words = ["forget", "--model", str(tmp_path / "b"), "--class", DECOMPOSED]
    assert main([*words, "--output", str(tmp_path / "c")]) == 0
    assert cifnet_pl.load(tmp_path / "c").class_names == ["ant", "elk"]


def test_classes_of_one_image_are_learned_and_not_scored(tmp_path, capsys, recwarn):
    images = make_images(tmp_path / "images", ["ant", "bee"], 1)
    learned(tmp_path / "logs", *RIDGE, "--data.root", str(images))
    assert "Accuracy not measured: no test images" in capsys.readouterr().out
    assert not [warning for warning in recwarn if "compute" in str(warning.message)]
