"""The steps of docs/how_to/custom_head.md work, done one by one in a copy of the package."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import DATA

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs/how_to/custom_head.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the head that the page adds, compiled; files half written are left."""
    root = tmp_path_factory.mktemp("copy")
    for part in ("cifnet_pl", "tests", "configs", "docs"):
        shutil.copytree(
            REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("*.pyc.*")
        )
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    code, line = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (configuration,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)
    (root / "cifnet_pl/heads/mean_ridge.py").write_text(code, encoding="utf-8")
    registry = root / "cifnet_pl/heads/__init__.py"
    imports, rest = registry.read_text(encoding="utf-8").split("\n\nHEADS", 1)
    registry.write_text(f"{imports}\n{line}\nHEADS{rest}", encoding="utf-8")
    (root / "configs/heads/mean_ridge.yaml").write_text(configuration, encoding="utf-8")
    return root


def run(copy: Path, *arguments: str) -> str:
    """Run a module of the copy; its output."""
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.system
def test_the_shared_suites_test_it(copy: Path) -> None:
    (command,) = re.findall(r"^python -m (pytest .*)$", PAGE, re.M)
    passed = re.search(
        r"(\d+) passed", run(copy, *command.split(), "-q", "-p", "no:cacheprovider")
    )
    assert int(passed[1]) > 20


@pytest.mark.system
def test_the_configuration_runs(copy: Path) -> None:
    (command,) = re.findall(r"^cifnet (fit .*) --data.root IMAGES$", PAGE, re.M)
    tiny = [*DATA, "--data.root", "null", "--data.max_tasks", "2", "--logs", "logs"]
    assert "Ā" in run(copy, "cifnet_pl", *command.split(), *tiny)
    assert (
        "MeanRidgeHead" in (copy / "logs/mean_ridge/version_0/summary.json").read_text()
    )
