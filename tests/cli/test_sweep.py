import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.cli import sweep as sweeping
from cifnet_pl.cli.commands import split_overrides
from cifnet_pl.cli.grid import Point
from cifnet_pl.cli.sweep import complete_run
from cifnet_pl.utilities.errors import UsageError
from tests.cli.test_grid import AXES, write
from tests.report.synthetic import write_run

FAST = {"data.num_workers": 0, "data.image_size": 8, "energy.enabled": False}


def fake_run(folder: Path, point: Point, lock: int) -> int:
    """Stands in for the process of a point: the head decides how it ends."""
    (folder / "output.log").write_text("loading\ncifnet: error: no such data\n\n")
    if point.config["model"]["init_args"]["head"]["class_path"] == "RidgeHead":
        return 1
    write_run(folder / "version_0", seed=point.config["seed_everything"], tasks=3)
    return 0


def test_failures_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "_run", fake_run)
    path, logs, output = (
        write(tmp_path, axes={"head": AXES["head"][::-1]}, seeds=[1, 2]),
        tmp_path / "l",
        tmp_path / "r",
    )
    code = main(["sweep", str(path), "--logs", str(logs), "--output", str(output)])
    said = capsys.readouterr()
    assert code == 1
    assert "2 of 4 points failed" in said.err
    assert said.out.count("failed (exit code 1): cifnet: error: no such data") == 2
    assert said.out.count("done in") == 2
    assert len([folder for folder in logs.iterdir() if complete_run(folder)]) == 2
    assert (output / "report.html").is_file()
    assert "2 runs of 1 configurations" in said.out


def test_complete_points_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "_run", fake_run)
    path, logs = write(tmp_path, seeds=[1, 2]), tmp_path / "logs"
    assert main(["sweep", str(path), "--logs", str(logs)]) == 0
    (broken,) = logs.glob("s2-*")
    (broken / "version_0" / "summary.json").unlink()
    capsys.readouterr()
    assert main(["sweep", str(path), "--logs", str(logs)]) == 0
    said = capsys.readouterr().out
    assert said.count("complete already") == 1
    assert said.count("done in") == 1
    # Another sweep file with a point of the same configuration finds it under its first name.
    labelled = write(tmp_path, axes={"same": [{"label": "renamed"}]}, seeds=[1, 2])
    assert main(["sweep", str(labelled), "--logs", str(logs)]) == 0
    assert len([p for p in logs.iterdir() if p.is_dir()]) == 2
    assert capsys.readouterr().out.count("complete already") == 2


def test_a_stopped_point_goes_on_where_it_was_and_a_failing_one_says_why(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path, logs = write(tmp_path, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3]), tmp_path / "logs"
    (point,) = sweeping.read_points(path)
    config = {**point.config, "experiment": point.name, "logs": str(logs)}
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(config))
    # What a kill after two tasks leaves behind.
    assert main(["fit", "--config", str(tmp_path / "point.yaml"), "--data.max_tasks", "2"]) == 0
    run = logs / point.name / "version_0"
    (run / "summary.json").unlink()
    before = (run / "tasks.csv").read_text().splitlines()
    capfd.readouterr()
    axes = {"data": [{"label": "digits"}, {"label": "none", "data.source": "digit"}]}
    path = write(tmp_path, axes=axes, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3])
    assert main(["sweep", str(path), "--logs", str(logs)]) == 1
    assert "unknown data source 'digit'" in capfd.readouterr().out  # the error of the point that fails is repeated
    assert complete_run(logs / point.name) == run
    assert len(list(run.parent.glob("version_*"))) == 1
    after = (run / "tasks.csv").read_text().splitlines()
    assert after[:3] == before  # the tasks learned before were not learned again
    assert len(after) == 6


def test_two_sweeps_never_run_one_point_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with sweeping._alone(tmp_path) as lock:
        # An orphan of a killed sweep: it holds the lock that it was given as long as it lives.
        orphan = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1)"], pass_fds=[lock])
    start = time.monotonic()
    with sweeping._alone(tmp_path):
        assert orphan.wait(1) == 0
    assert time.monotonic() - start > 0.5
    assert "which another process is running" in capsys.readouterr().out


def test_options_with_a_dot_hold_for_all_points() -> None:
    args = ["a.yaml", "--data.root", "x", "--logs", "l", "--data.image_size=8", "--data.class_order", "-1"]
    own, overrides = split_overrides(args)
    assert own == ["a.yaml", "--logs", "l"]
    assert overrides == [("data.root", "x"), ("data.image_size", "8"), ("data.class_order", "-1")]
    with pytest.raises(UsageError, match=r"--data\.root has no value"):
        split_overrides(["--data.root"])
