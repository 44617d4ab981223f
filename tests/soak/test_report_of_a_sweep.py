"""Every number of a report on a sweep that was run, with a killed seed, a filled cache, two widths and two machines."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_line import call, command, environment
from tests.report.test_every_cell import (  # noqa: F401 (collected here as well, on other runs)
    HERE,
    THERE,
    runs,
    tables,
    test_no_table_is_left_out,
    test_the_accuracy_table,
    test_the_table_of_all_results,
    test_the_tables_of_costs,
    test_the_tables_of_memory_widths_and_runs,
    test_what_is_missing_is_said,
    write_external,
)

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

BASE: dict[str, Any] = {
    "model": {
        "class_path": "cifnet_pl.CIFNetModule",
        "init_args": {
            "backbone": "pixels:8",
            "head": {"class_path": "cifnet_pl.heads.CIFNetHead", "init_args": {"ridge": 1.0}},
            "buffer": {"class_path": "cifnet_pl.CalibrationBuffer", "init_args": {"capacity": 300}},
        },
    },
    "data": {"source": "digits", "classes_per_task": 2, "image_size": 8, "num_workers": 0},
}


def head(name: str, **options: Any) -> dict[str, Any]:
    """Options of a point with another head, without a buffer."""
    return {"model.head": {"class_path": f"cifnet_pl.heads.{name}", "init_args": options}, "model.buffer": None}


AXES = {
    "method": [
        {"label": "cifnet"},
        {"label": "ridge", **head("RidgeHead")},
        {"label": "acil64", **head("ACILHead", width=64)},
        {"label": "acil256", **head("ACILHead", width=256)},
        {"label": "ncm", **head("NCMHead"), "energy.enabled": False},
    ]
}


def sweep(root: Path, *options: str) -> list[str]:
    """The words of a command line that runs points of the sweep."""
    return ["sweep", str(root / "sweep.yaml"), "--logs", str(root / "runs"), *options]


def sweep_digits(root: Path) -> Path:
    """Run the sweep; its seeds are complete but for one that is killed, and one reads its embeddings from a cache."""
    (root / "base.yaml").write_text(yaml.safe_dump(BASE))
    (root / "sweep.yaml").write_text(yaml.safe_dump({"base": "base.yaml", "axes": AXES}))
    for options in (
        ["--only", "ridge", "ncm", "--seeds", "1,2,3"],
        ["--only", "cifnet", "acil64", "--seeds", "1,2"],
        ["--only", "acil256", "--seeds", "1"],
    ):
        done = call(*sweep(root, *options), timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    cache = ["--only", "cifnet", "--seeds", "3", "--data.cache", "true", "--data.cache_folder", str(root / "cache")]
    for more in (["--logs", str(root / "first")], []):  # the first run fills the cache, the second reads it
        assert call(*sweep(root, *cache, *more), timeout=600).returncode == 0
    killed_point(root)
    for path in (root / "runs").rglob("summary.json"):
        summary = json.loads(path.read_text())
        there = summary["head"] == "RidgeHead" and summary["seed"] == 3
        path.write_text(json.dumps({**summary, **(THERE if there else HERE), "threads": None}))
    write_external(root / "runs")
    return root / "runs"


def killed_point(root: Path) -> None:
    """Run a point, and kill its process while it learns."""
    words = sweep(root, "--only", "acil256", "--seeds", "2")
    with subprocess.Popen(command(*words), env=environment(), stdout=subprocess.DEVNULL) as process:
        children, end = Path(f"/proc/{process.pid}/task/{process.pid}/children"), time.monotonic() + 120
        while not list((root / "runs").glob("acil256-s2-*/version_0/checkpoints")):
            assert process.poll() is None, "the point was not run"
            assert time.monotonic() < end, "the point did not begin"
            time.sleep(0.002)
        (child,) = map(int, children.read_text().split())
        os.kill(child, signal.SIGKILL)
        assert process.wait() == 1


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweep_digits(tmp_path_factory.mktemp("sweep"))
