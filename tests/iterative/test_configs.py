"""Every configuration of a trained method runs, with one epoch and few small images."""

from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.iterative import METHODS
from tests.command_line import DATA, make_images, summary_of

FOLDER = Path(__file__).parents[2] / "configs" / "iterative"
ALL = sorted(FOLDER.glob("*.yaml"))
TINY = "--data.source folder --data.max_tasks 2 --model.epochs 1"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("images"), ["a", "b", "c", "d"], 8)


def test_every_method_has_one():
    classes = {
        yaml.safe_load(path.read_text())["model"]["class_path"].rpartition(".")[2]
        for path in ALL
    }
    assert classes == {method.__name__ for method in METHODS}


@pytest.mark.system
@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_config_runs(path, images, tmp_path, capsys):
    options = [*DATA[2:], *TINY.split(), "--data.root", str(images)]
    assert main(["fit", "--config", str(path), *options, "--logs", str(tmp_path)]) == 0
    experiment = yaml.safe_load(path.read_text())["experiment"]
    folder = tmp_path / experiment / "version_0"
    shown = capsys.readouterr().out
    assert f"Run folder {folder}\n" in shown  # nothing held out is learned
    assert shown.endswith(f"next: cifnet export --model {folder} --output MODEL\n")
    summary = summary_of(folder)
    assert len(summary["A_k"]) == 2
