"""The version of the package, also where it is not installed."""

import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from cifnet_pl.utilities.version import UNKNOWN_VERSION, package_version

ROOT = Path(__file__).parents[2]
WITHOUT_METADATA = """
import importlib.metadata, sys
real = importlib.metadata.version
def version(name):
    if name == "cifnet_pl":
        raise importlib.metadata.PackageNotFoundError(name)
    return real(name)
importlib.metadata.version = version
from cifnet_pl.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch):
    def fail(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("cifnet_pl.utilities.version.version", fail)
    package_version.cache_clear()
    yield
    package_version.cache_clear()


def test_of_a_clone(not_installed) -> None:
    assert f'version = "{package_version()}"' in (ROOT / "pyproject.toml").read_text()


def test_without_a_project_file(not_installed, tmp_path: Path) -> None:
    assert package_version(tmp_path) == UNKNOWN_VERSION


def test_of_the_installed_package() -> None:
    assert package_version(Path("nowhere")) == version("cifnet_pl")


@pytest.mark.system
def test_a_clone_learns_and_exports(tmp_path: Path) -> None:
    """Nothing but the source: no metadata of the package anywhere."""
    shutil.copytree(ROOT / "cifnet_pl", tmp_path / "clone" / "cifnet_pl")
    logs = tmp_path / "logs"
    fit = ["fit", "--model.backbone", "pixels:8", "--data.source", "digits"]
    fit += ["--data.image_size", "8", "--data.max_tasks", "1", "--logs", str(logs)]
    fit += ["--energy.enabled", "false", "--model.head", "RidgeHead"]
    run = str(logs / "default" / "version_0")
    export = ["export", "--model", run, "--output", str(tmp_path / "model")]
    for words in (fit, export, ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_METADATA, *words],
            cwd=tmp_path / "clone",
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
