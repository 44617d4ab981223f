"""Custom code of the current folder runs where the user names it, also in a configuration."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.utilities.plugins import import_object
from tests.command_line import DATA, FAST, call, environment

HEAD = """
import pathlib
import lightning
pathlib.Path("imported").touch()
from cifnet_pl.heads import RidgeHead

class OwnHead(RidgeHead):
    pass

class OwnCallback(lightning.pytorch.Callback):
    pass
"""

PARTS = {"backbone": "pixels:8", "head": {"class_path": "my_own_parts.OwnHead"}}
MODEL = {"class_path": "cifnet_pl.CIFNetModule", "init_args": PARTS}
SMALL = [*DATA[2:], "--data.max_tasks", "1"]


@pytest.fixture
def folder(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of a custom head."""
    monkeypatch.setenv("CIFNET_CACHE", str(cwd / "cache"))
    (cwd / "my_own_parts.py").write_text(HEAD)
    yield cwd
    sys.modules.pop("my_own_parts", None)


def was_imported(folder: Path) -> bool:
    return bool(list(folder.rglob("imported")))  # a configuration is read in its folder


@pytest.mark.system
def test_a_folder_of_images_runs_no_code(folder: Path):
    """Modules that libraries import where they find them, and some that they need."""
    for module in ("numexpr", "amdsmi", "email"):
        code = "import pathlib\npathlib.Path('imported').touch()\n"
        (folder / f"{module}.py").write_text(code)
    done = call("fit", *FAST, "--data.max_tasks", "1", "--logs", "logs")
    assert done.returncode == 0, done.stderr
    assert not was_imported(folder)


@pytest.mark.parametrize("command", ["fit", "sweep"])
def test_a_name_in_a_configuration_is_imported(folder, command, monkeypatch, capsys):
    """The process of a sweep's point is this one, which has imported Lightning."""

    def run_here(words: list[str], **_: object) -> int:
        return main(words[3:])

    monkeypatch.setattr("cifnet_pl.cli.sweep.subprocess.call", run_here)
    callback = {"class_path": "my_own_parts.OwnCallback"}
    content = {"model": MODEL, "trainer": {"callbacks": [callback]}}
    (folder / "given.yaml").write_text(yaml.safe_dump(content))
    (folder / "sweep.yaml").write_text("base: given.yaml\n")
    words = {"fit": ["--config", "given.yaml"], "sweep": ["sweep.yaml"]}[command]
    assert main([command, *words, *SMALL, "--logs", "logs"]) == 0
    assert was_imported(folder)
    assert str(folder) not in sys.path
    if command == "fit":
        shown = capsys.readouterr().out.rstrip()
        assert shown.endswith("--output MODEL --trust")
        (own,) = (folder / "logs").rglob("config.yaml")
        assert main(["validate", "--config", str(own), "--ckpt_path", "last"]) == 0


def test_a_module_that_fails_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "my_own_parts.py").write_text("this is no Python")
    assert main(["fit", *FAST, "--model.head", "my_own_parts.OwnHead"]) == 2
    assert "cannot import my_own_parts.OwnHead: SyntaxError" in capsys.readouterr().err


def test_imports_of_a_custom_module_are_found_beside_it(folder: Path):
    (folder / "beside_it.py").write_text("value = 3\n")
    (folder / "my_own_parts.py").write_text("from beside_it import value\n")
    assert import_object("my_own_parts.value") == 3
    assert str(folder) not in sys.path
    sys.modules.pop("beside_it")


@pytest.mark.system
def test_a_checkout_can_be_run_where_it_is(tmp_path: Path):
    """``python -m cifnet_pl`` in the folder that holds the package."""
    root = Path(__file__).parents[2]
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    words = [sys.executable, "-m", "cifnet_pl", "--version"]
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
