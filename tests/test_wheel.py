"""The wheel holds all that a run needs: installed into an empty folder, it runs without the
repository.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import call_in_turn

REPOSITORY = Path(__file__).parents[1]


def run(
    *arguments: str, cwd: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel holds; its dependencies are those of this interpreter."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp(
        "source"
    )  # so that no build folder is left in the repository
    for name in ("cifnet_pl", "configs", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(REPOSITORY / name)
    pip = ["-m", "pip", "--disable-pip-version-check", "--no-input", "--no-cache-dir"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target"]
    # It builds a wheel and installs that.
    run(*pip, "install", *options, str(target), str(source), cwd=source)
    return target


@pytest.mark.system
def test_it_runs_in_another_folder(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    environment = {"PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    imported_from = run(
        "-c", "import cifnet_pl; print(cifnet_pl.__file__)", cwd=tmp_path, **environment
    ).stdout
    assert imported_from.startswith(str(installed))
    words = "fit --config quickstart --model.backbone pixels:8"
    words += " --data.image_size 8 --energy.enabled false"
    run_folder = "lightning_logs/quickstart/version_0"
    monkeypatch.chdir(tmp_path)
    fit, configs, info, report = call_in_turn(
        words.split(),
        ["configs"],
        ["info", "--model", run_folder],
        ["report", run_folder],
        **environment,
    )
    for done in (fit, configs, info, report):
        assert done.returncode == 0, done.stderr
    assert (tmp_path / run_folder / "summary.json").is_file()
    for path in (REPOSITORY / "configs").rglob("*.yaml"):
        assert (
            path.relative_to(REPOSITORY / "configs").with_suffix("").as_posix()
            in configs.stdout
        )
    assert "10 classes" in info.stdout
    assert (tmp_path / "report" / "report.html").is_file()
