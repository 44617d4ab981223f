"""The layout of the package: how many entries it has, and that imports run one way."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "cifnet_pl"


def check_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import contracts of ``pyproject.toml`` on the copy of the package in ``folder``."""
    code = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
    command = [sys.executable, "-c", code, "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with its contracts, to be changed by a test."""
    shutil.copytree(PACKAGE, tmp_path / "cifnet_pl", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(copy: Path):
    result = check_imports(copy)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("utilities/text.py", "from cifnet_pl.heads import Head", "Data flows one way"),
        ("statistics/sums.py", "import cifnet_pl.cli.parsing", "Data flows one way"),
        ("utilities/text.py", "from cifnet_pl.utilities.files import write_text", "No import cycles"),
        ("heads/base.py", "import lightning", "know Lightning"),
    ],
)
def test_an_import_that_runs_the_wrong_way_is_found(copy: Path, module: str, line: str, broken: str):
    path = copy / "cifnet_pl" / module
    # An import for type checking only counts too.
    path.write_text(path.read_text() + f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    {line}\n")
    if broken == "No import cycles":
        other = copy / "cifnet_pl" / "utilities" / "files.py"
        other.write_text(other.read_text() + "\nfrom cifnet_pl.utilities.text import printable\n")
    result = check_imports(copy)
    assert result.returncode != 0
    assert any(broken in text and "BROKEN" in text for text in result.stdout.splitlines()), result.stdout


def test_the_package_has_at_most_13_entries():
    names = {path.name for path in PACKAGE.iterdir()} - {"__pycache__", "py.typed"}
    assert len(names) <= 13, sorted(names)


def test_each_folder_says_what_it_is_for():
    for path in PACKAGE.rglob("__init__.py"):
        assert path.read_text().startswith('"""'), path
