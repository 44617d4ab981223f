"""A run's own configuration reads back as it was given, whatever its names look like."""

from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.utilities.files import dump_yaml
from tests.command_line import make_images

SMALL = [
    "--model.backbone",
    "pixels:4",
    "--data.image_size",
    "4",
    "--data.num_workers",
    "0",
]
SMALL += [
    "--energy.enabled",
    "false",
    "--model.head",
    "RidgeHead",
    "--data.classes_per_task",
    "2",
]
NAMES = [
    ["1e5", "x"],
    ["x", "1e5"],
    ["010", "007"],
    ["1", "0"],
    ["no", "yes"],
    ["null", "x"],
    ["0x10", "1_000"],
    ["2024-01-01", "12:30"],
    ["nan", "inf"],
    ["true", "~"],
    ["1.5", "-3"],
    ["a: b", "[c]"],
]


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_class_order(names: list[str], tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", names, 4)
    order = yaml.safe_dump(
        names, default_style="'", default_flow_style=True, width=1000
    ).strip()
    given = [
        "--data.root",
        "images",
        "--data.source",
        "folder",
        "--data.class_order",
        order,
    ]
    assert main(["fit", *given, *SMALL, "--experiment", "1e5", "--logs", "010"]) == 0
    run = Path("010") / "1e5" / "version_0"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["data"]["class_order"], config["experiment"]) == (names, "1e5")
    assert main(["fit", "--config", str(run / "config.yaml")]) == 0
    again = run.with_name("version_1") / "config.yaml"
    assert again.read_bytes() == (run / "config.yaml").read_bytes()
    capsys.readouterr()
    words = ["validate", "--config", str(run / "config.yaml"), "--ckpt_path", "last"]
    assert main(words) == 0
    assert f"{names[0]} (" in capsys.readouterr().out


def test_positions_are_numbers(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", ["007", "010"], 4)
    given = ["--data.root", "images", "--data.source", "folder", "--data.class_order"]
    assert main(["fit", *given, "[1, 0]", *SMALL]) == 0
    assert "010 (1), 007 (1)" in capsys.readouterr().out


def test_an_unquoted_name_that_is_a_number_is_explained(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", ["1e5", "x"], 4)
    given = ["--data.root", "images", "--data.source", "folder", "--data.class_order"]
    assert main(["fit", *given, "[x, 1e5]", *SMALL]) == 2
    assert "quote" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", [text for pair in NAMES for text in pair] + ["", " a", "1e-3"]
)
def test_yaml_texts_stay_texts(text: str):
    from jsonargparse._loaders_dumpers import (
        yaml_load,  # what the command line reads with
    )

    content = {"key": text, "list": [text]}
    assert (
        yaml_load(dump_yaml(content)) == yaml.safe_load(dump_yaml(content)) == content
    )
