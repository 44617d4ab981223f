"""Custom code runs where the user names it, or trusts the file that does, and only then."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.cli.custom_code import names_in, names_on_command_line, split_trust
from cifnet_pl.utilities.plugins import import_object
from tests.command_line import FAST, call, environment

HEAD = """
import pathlib
pathlib.Path("imported").touch()
from cifnet_pl.heads import RidgeHead

class OwnHead(RidgeHead):
    pass

class OwnCallback:
    pass
"""

MODEL = {
    "class_path": "cifnet_pl.CIFNetModule",
    "init_args": {
        "backbone": "pixels:8",
        "head": {"class_path": "my_own_parts.OwnHead"},
    },
}
SMALL = [*FAST[2:], "--data.max_tasks", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of a custom head."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CIFNET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "my_own_parts.py").write_text(HEAD)
    yield tmp_path
    sys.modules.pop("my_own_parts", None)


def was_imported(folder: Path) -> bool:
    return (folder / "imported").exists()


def write_config(folder: Path, **content: object) -> Path:
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump({"model": MODEL, **content}))
    return path


@pytest.mark.system
@pytest.mark.parametrize("module", ["numexpr", "amdsmi", "email"])
def test_a_folder_of_images_runs_no_code(folder: Path, module: str):
    """Modules that libraries import where they find them, and some that they need."""
    (folder / f"{module}.py").write_text(
        "import pathlib\npathlib.Path('imported').touch()\n"
    )
    done = call("fit", *FAST, "--data.max_tasks", "1", "--logs", "logs")
    assert done.returncode == 0, done.stderr
    assert not was_imported(folder)


def test_a_name_on_the_command_line_is_imported(folder: Path):
    options = ["--model.head", "my_own_parts.OwnHead", "--logs", "logs"]
    assert main(["fit", *FAST, "--data.max_tasks", "1", *options]) == 0
    assert was_imported(folder)
    assert str(folder) not in sys.path


NAMED_IN_FILES = {
    "head": {"model": MODEL},
    "backbone": {"model": {"init_args": {"backbone": "import:my_own_parts.OwnNet"}}},
    "source": {"model": None, "data": {"source": "my_own_parts.source"}},
    "callback": {
        "trainer": {"callbacks": [{"class_path": "my_own_parts.OwnCallback"}]},
        "model": None,
    },
    "function of a listed class": {
        "model": None,
        "trainer": {
            "callbacks": [
                {
                    "class_path": "lightning.pytorch.callbacks.LambdaCallback",
                    "init_args": {"on_fit_start": "my_own_parts.OwnCallback"},
                }
            ]
        },
    },
    "unlisted module": {"model": {"class_path": "subprocess.Popen"}},
}


@pytest.mark.parametrize("case", NAMED_IN_FILES)
def test_a_file_alone_runs_no_code(
    folder: Path, case: str, capsys: pytest.CaptureFixture[str]
):
    content = {
        key: value for key, value in NAMED_IN_FILES[case].items() if value is not None
    }
    path = folder / "given.yaml"
    path.write_text(yaml.safe_dump(content))
    assert main(["fit", "--config", str(path), *SMALL, "--logs", "logs"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not was_imported(folder)
    assert not (folder / "logs").exists()


def test_a_file_that_another_file_names_is_read_too(folder: Path):
    (folder / "model.yaml").write_text(yaml.safe_dump(MODEL))
    path = folder / "given.yaml"
    path.write_text("model: model.yaml\n")
    assert main(["fit", "--config", str(path), *SMALL]) == 2
    assert main(["fit", "--model", "model.yaml", *SMALL]) == 2
    assert not was_imported(folder)


@pytest.mark.parametrize(
    "allowed", [["--trust"], ["--model.head", "my_own_parts.OwnHead"]]
)
def test_a_trusted_file_and_the_configuration_of_an_own_run(
    folder: Path, allowed, capsys
):
    path = write_config(folder)
    assert main(["fit", "--config", str(path), *SMALL, "--logs", "logs", *allowed]) == 0
    assert was_imported(folder)
    own = folder / "logs" / "default" / "version_0" / "config.yaml"
    assert "trust" not in own.read_text()
    assert main(["validate", "--config", str(own), "--ckpt_path", "last"]) == 0
    capsys.readouterr()
    own.write_text(own.read_text() + "# changed\n")
    assert main(["validate", "--config", str(own), "--ckpt_path", "last"]) == 2
    assert "my_own_parts.OwnHead" in capsys.readouterr().err


def test_a_sweep_needs_trust(folder: Path, capsys: pytest.CaptureFixture[str]):
    write_config(folder)
    sweep = folder / "sweep.yaml"
    sweep.write_text("base: given.yaml\n")
    assert main(["sweep", str(sweep), "--dry_run", "--model.head.ridge", "1"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert not was_imported(folder)
    assert main(["sweep", str(sweep), "--dry_run", "--trust"]) == 0


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


def test_paths_are_no_names_of_code(folder: Path):
    words = ["fit", "--data.root", "my_own_parts.zip", "--experiment", "my_own_parts.x"]
    assert names_on_command_line(words) == set()
    assert names_on_command_line(["--model.head=my_own_parts.OwnHead"]) == {
        "my_own_parts.OwnHead"
    }
    assert names_in({"data": {"root": "images.zip", "source": "torch.x"}}) == set()


PLAIN_TEXTS = {
    "class names": {"data": {"class_order": ["email.mime", "my_own_parts.OwnHead"]}},
    "images": {"data": {"root": "my_own_parts.images"}},
    "experiment": {"experiment": "my_own_parts.first"},
    "name of a logger": {
        "trainer": {
            "logger": {
                "class_path": "lightning.pytorch.loggers.CSVLogger",
                "init_args": {"save_dir": "logs", "name": "my_own_parts.first"},
            }
        }
    },
}


@pytest.mark.parametrize("case", PLAIN_TEXTS)
def test_texts_that_only_look_like_names_of_code(folder: Path, case: str):
    assert names_in(PLAIN_TEXTS[case]) == set()


@pytest.mark.parametrize(
    "content",
    [
        {"model.class_path": "my_own_parts.OwnHead"},
        {"model.init_args.head": {"class_path": "my_own_parts.OwnHead"}},
        {"model": {"init_args.head": "my_own_parts.OwnHead"}},
        {"fit": {"trainer": {"callbacks+": ["my_own_parts.OwnHead"]}}},
        {"trainer": {"strategy": "my_own_parts.OwnHead"}},
        {"data": {"class_path": "my_own_parts.OwnHead"}},
        {"energy": {"class_path": "my_own_parts.OwnHead"}},
    ],
)
def test_names_of_code_in_every_way_of_writing(folder: Path, content: object):
    assert names_in(content) == {"my_own_parts.OwnHead"}


@pytest.mark.parametrize(
    ("words", "others", "trust"),
    [
        (["--trust"], [], True),
        (["--trust", "false", "--a"], ["--a"], False),
        (["--trust=true", "b"], ["b"], True),
        (["--a", "true"], ["--a", "true"], False),
    ],
)
def test_the_option(words: list[str], others: list[str], trust: bool):
    assert split_trust(words) == (others, trust)


@pytest.mark.system
def test_a_checkout_can_be_run_where_it_is(tmp_path: Path):
    """``python -m cifnet_pl`` in the folder that holds the package."""
    root = Path(__file__).parents[2]
    env = {key: value for key, value in environment().items() if key != "PYTHONPATH"}
    words = [sys.executable, "-m", "cifnet_pl", "--version"]
    done = subprocess.run(words, cwd=root, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
