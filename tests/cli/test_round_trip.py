"""A run's own configuration reads back as it was given, whatever its names look like."""

from pathlib import Path

import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.utilities.files import dump_yaml
from tests.command_line import make_images, prepared

SMALL = "--model.backbone pixels:4 --data.image_size 4 --data.num_workers 0"
SMALL += " --energy.enabled false --model.head RidgeHead --data.source folder"
SMALL += " --data.root images --data.classes_per_task 16"
NAMES = ["1e5", "x", "010", "no", "null", "0x10", "1_000", "2024-01-01", "12:30"]
NAMES += ["nan", "true", "~", "-3", "a: b", "[c]", "1.5"]


def test_class_order(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", NAMES, 2)
    style = {"default_style": "'", "default_flow_style": True, "width": 1000}
    order = yaml.safe_dump(NAMES, **style).strip()
    names = ["--data.class_order", order, "--experiment", "1e5", "--logs", "010"]
    # A callback of Lightning that has a member of an enumeration among its options.
    names += ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=01:00:00:00"]
    assert main(["fit", *SMALL.split(), *names]) == 0
    stored = Path("010") / "1e5" / "version_0" / "config.yaml"
    config = yaml.safe_load(stored.read_text())
    assert (config["data"]["class_order"], config["experiment"]) == (NAMES, "1e5")
    again = prepared("--config", str(stored))
    assert again.config.data.class_order == NAMES
    assert (again.config.experiment, again.config.logs) == ("1e5", "010")


def test_positions_are_numbers_and_names_that_are_need_quotes(
    tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    make_images(tmp_path / "images", ["1e5", "x"], 4)
    given = ["fit", *SMALL.split(), "--data.classes_per_task=2", "--data.class_order"]
    assert main([*given, "[1, 0]"]) == 0
    assert "test images: x, 1e5" in capsys.readouterr().out
    assert main([*given, "[x, 1e5]"]) == 2
    assert "quote" in capsys.readouterr().err


def test_yaml_texts_stay_texts():
    # What the command line reads with.
    from jsonargparse._loaders_dumpers import yaml_load

    for name in [*NAMES, "", " a", "1e-3", "007", "yes", "inf"]:
        content = {"key": name, "list": [name]}
        text = dump_yaml(content)
        assert yaml_load(text) == yaml.safe_load(text) == content
