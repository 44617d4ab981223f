import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import IO

import pytest
import yaml
from filelock import FileLock, Timeout

from cifnet_pl.__main__ import main
from cifnet_pl.cli import sweep as sweeping
from cifnet_pl.cli.sweep import Job, complete, complete_run, reason, run_point, waiting_lock
from cifnet_pl.cli.sweep_plan import Cost, cost_of, estimate, read_points, total
from tests.cli.test_grid import AXES, HEAD, write
from tests.command_line import environment
from tests.killing import ended, start
from tests.report.synthetic import write_run

FAST = {"data.num_workers": 0, "data.image_size": 8, "energy.enabled": False}


def fake_run(job: Job, end: float) -> int:
    """Stands in for the process of a point: the head decides how it ends."""
    point, folder = job
    job.write()
    (folder / "output.log").write_text("loading\ncifnet: error: no such data\n\n")
    if point.config["model"]["init_args"]["head"]["class_path"] == "RidgeHead":
        return 1
    write_run(folder / "version_0", seed=point.config["seed_everything"], tasks=3)
    return 0


def test_failures_do_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    path, logs, output = (
        write(tmp_path, axes={"head": AXES["head"][::-1]}, seeds=[1, 2]),
        tmp_path / "l",
        tmp_path / "r",
    )
    code = main(["sweep", str(path), "--logs", str(logs), "--output", str(output)])
    said = capsys.readouterr()
    assert code == 1
    assert "2 of 4 points failed" in said.err
    assert said.out.count("failed (exit code 1: no such data)") == 2
    assert said.out.count("done in") == 2
    assert len([folder for folder in logs.iterdir() if complete_run(folder)]) == 2
    assert (output / "report.html").is_file()
    assert "2 runs of 1 configurations" in said.out


def test_complete_points_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
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


class Forked:
    """A point's process, forked from one that has imported the product already."""

    def __init__(self, words: list[str], stdout: IO[bytes], stderr: int):
        assert words[1:3] == ["-m", "cifnet_pl.cli.sweep"]
        assert stderr == subprocess.STDOUT
        self.process = start(partial(run_point, Path(words[3])), Path(stdout.name))

    def wait(self, timeout: float | None = None) -> int:
        return ended(self.process, timeout or 240)

    def terminate(self) -> None:
        self.process.terminate()


def test_a_stopped_point_goes_on_where_it_was_and_a_failing_one_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path, logs = write(tmp_path, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3]), tmp_path / "logs"
    (point,) = read_points(path)
    config = {**point.config, "experiment": point.name, "logs": str(logs)}
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(config))
    # What a kill after two tasks leaves behind.
    assert main(["fit", "--config", str(tmp_path / "point.yaml"), "--data.max_tasks", "2"]) == 0
    run = logs / point.name / "version_0"
    (run / "summary.json").unlink()
    before = (run / "tasks.csv").read_text().splitlines()
    capfd.readouterr()
    monkeypatch.setattr(sweeping.subprocess, "Popen", Forked)
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
    # An orphan of a killed sweep: its process holds the lock as long as it lives.
    hold = "import pathlib, sys, time\nfrom cifnet_pl.cli.sweep import waiting_lock\n"
    hold += "with waiting_lock(pathlib.Path(sys.argv[1])):\n print('held', flush=True)\n time.sleep(60)"
    words = [sys.executable, "-c", hold, str(tmp_path / ".running")]
    orphan = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment())
    assert orphan.stdout is not None
    with orphan.stdout:
        assert orphan.stdout.readline() == b"held\n"
    threading.Timer(0.5, orphan.kill).start()
    write_run(tmp_path / "version_0")
    (point,) = read_points(write(tmp_path))
    assert complete(Job(point, tmp_path)).startswith("complete already")
    assert orphan.wait(0.1) == -signal.SIGKILL
    assert "which another process is running" in capsys.readouterr().out


def test_a_point_holds_its_lock_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def fit(words: list[str]) -> int:
        held = FileLock(tmp_path / ".running")
        with pytest.raises(Timeout):
            held.acquire(blocking=False)
        calls.append(words)
        return 3

    monkeypatch.setattr("cifnet_pl.__main__.main", fit)
    assert run_point(tmp_path / "point.yaml") == 3
    assert calls == [["fit", "--config", str(tmp_path / "point.yaml"), "--ckpt_path", "last"]]
    # Lightning's further processes of the same run do not wait for the first one.
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("cifnet_pl.__main__.main", lambda words: 0)
    with waiting_lock(tmp_path / ".running"):
        assert run_point(tmp_path / "point.yaml") == 0


def test_a_plan_is_printed_and_nothing_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    path, logs = write(tmp_path, axes=AXES, seeds=[1, 2]), tmp_path / "logs"
    assert main(["sweep", str(path), "--logs", str(logs), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("not run yet") == 8
    assert "8 to run: no estimate yet: none of these configurations has run" in said
    assert not logs.exists()
    # One point of 90 s of learning, 3 s of evaluation and 0.06 kWh: its other seed is expected to take as long.
    assert main(["sweep", str(path), "--logs", str(logs), "--only", "a", "200", "--seeds", "1"]) == 0
    capsys.readouterr()
    assert main(["sweep", str(path), "--logs", str(logs), "--dry_run"]) == 0
    said = capsys.readouterr().out
    assert said.count("complete already, A_K 59.6 %") == 1
    assert "7 to run: 2 min, 0.06 kWh for 1 of them; 6 without an estimate, as no other seed has run" in said


def test_what_is_left_is_estimated_from_seeds_that_have_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)  # 90 s of learning, 3 s of evaluation and 0.06 kWh each
    assert main(["sweep", str(write(tmp_path, seeds=[1, 2, 3])), "--logs", str(tmp_path / "logs")]) == 0
    done = [line.rpartition("; ")[2] for line in capsys.readouterr().out.splitlines() if "done in" in line]
    assert done[:2] == ["2 left: 3 min, 0.12 kWh", "1 left: 2 min, 0.06 kWh"]


def test_a_point_is_estimated_from_its_other_seeds_only(tmp_path: Path) -> None:
    """The same label on other data, and another method, say nothing; another label of the same configuration does."""
    heads = {"head": [{"label": "a"}, {"label": "b", HEAD: {"class_path": "RidgeHead"}}]}
    a1, a2, b1, b2 = read_points(write(tmp_path, axes=heads, seeds=[1, 2]))
    (elsewhere,) = read_points(write(tmp_path, axes={"head": heads["head"][:1]}, seeds=[3], fixed={"data.source": "x"}))
    (renamed,) = read_points(write(tmp_path, axes={"way": [{"label": "z"}]}, seeds=[3]))
    ran = [(a1, Cost(60.0, 0.01, 5))]
    assert estimate(a2, tmp_path / "a2", ran) == ran[0][1]
    assert estimate(renamed, tmp_path / "z", ran) == ran[0][1]
    assert [estimate(p, tmp_path / "none", ran) for p in (b1, b2, elsewhere)] == [None] * 3
    # Of what has begun, the tasks that are left.
    run = write_run(tmp_path / "a2" / "version_0", tasks=5)
    lines = (run / "tasks.csv").read_text().splitlines(keepends=True)
    (run / "tasks.csv").write_text("".join(lines[:3]))
    cost = estimate(a2, tmp_path / "a2", ran)
    assert cost is not None
    assert (cost.seconds, cost.kwh) == (pytest.approx(36.0), pytest.approx(0.006))


def test_costs_and_their_sum() -> None:
    measured = {"train_seconds": 50.0, "eval_seconds": 10.0, "energy_kwh": 0.02, "eval_energy_kwh": 0.01, "n_tasks": 5}
    assert cost_of(measured) == Cost(60.0, pytest.approx(0.03), 5)
    assert cost_of({**measured, "eval_seconds": None, "energy_kwh": None}) == Cost(50.0, None, 5)
    assert "no estimate yet" in total([None])
    assert total([Cost(30.0, 0.01, 5), Cost(90.0, None, 5), None]).startswith("2 min, 0.01 kWh for 2 of them; 1 ")


def test_settings_that_a_sweep_keeps_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    options = [{"label": "a"}, {"label": "own", "keep": ["model.backbone"], "model.backbone": "random:resnet18"}]
    path, logs = write(tmp_path, axes={"head": options}, seeds=[1, 2]), tmp_path / "logs"
    words = ["sweep", str(path), "--logs", str(logs), "--dry_run", "--model.backbone", "file:x.pth"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    own = "own keep model.backbone random:resnet18"
    assert f"{own}; the command line holds for the others (--model.backbone)" in said
    assert main([*words, "--only", "own"]) == 2
    assert "--model.backbone fits no point" in capsys.readouterr().err


def test_labels_and_seeds_choose_the_points(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    path, logs = write(tmp_path, axes=AXES, seeds=[1, 2]), tmp_path / "logs"
    words = ["sweep", str(path), "--logs", str(logs)]
    assert main([*words, "--only", "a", "500", "--without", "s2", "--seeds", "2,7"]) == 0
    assert [p.name.rsplit("-", 1)[0] for p in logs.iterdir()] == ["a-500-s7"]
    assert main([*words, "--only", "b"]) == 2
    assert "unknown label of the sweep 'b': did you mean b c?" in capsys.readouterr().err
    assert main([*words, "--without", "a", "b c"]) == 2
    assert "no point has these labels" in capsys.readouterr().err
    assert main([*words, "--seeds", "1;2"]) == 2
    assert "expected integers and commas" in capsys.readouterr().err


def test_an_option_of_some_points_is_for_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    axes = {"head": [{"label": "own"}, {"label": "wide", "model.head": {"class_path": "ACILHead"}},
                     {"label": "bare", "model.buffer": None}]}  # fmt: skip
    path, logs = write(tmp_path, axes=axes), tmp_path / "logs"
    words = ["sweep", str(path), "--logs", str(logs), "--model.head.width", "64"]
    assert main([*words, "--model.buffer.capacity", "50"]) == 0
    said = capsys.readouterr().out
    assert "--model.head.width is for 1 of 3 points, not for: own; bare" in said
    assert "--model.buffer.capacity is for 2 of 3 points, not for: bare" in said
    made = {p.name.split("-")[0]: yaml.safe_load((p / "point.yaml").read_text())["model"] for p in logs.iterdir()}
    assert made["wide"]["init_args"]["head"]["init_args"] == {"width": 64}
    assert "width" not in made["own"]["init_args"]["head"]["init_args"]
    assert made["bare"]["init_args"]["buffer"] is None
    assert main([*words, "--only", "own"]) == 2
    assert "--model.head.width fits no point" in capsys.readouterr().err


def test_a_budget_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sweeping, "run_process", fake_run)
    path, logs, output = write(tmp_path, seeds=[1, 2, 3]), tmp_path / "logs", tmp_path / "out"
    words = ["sweep", str(path), "--logs", str(logs), "--output", str(output)]
    # The first has no estimate and is begun; each other one is expected to take 93 s, which 0.02 hours do not hold.
    assert main([*words, "--budget", "0.02"]) == 0
    said = capsys.readouterr().out
    assert said.count("expected to take 2 min, more than is left of the budget") == 2
    assert "the budget is spent: 2 of 3 points are left" in said
    assert (output / "report.md").read_text().count("not run yet") == 2
    assert main([*words, "--budget", "1"]) == 0
    assert len([folder for folder in logs.iterdir() if complete_run(folder)]) == 3
    assert main([*words, "--budget", "0"]) == 2


def test_a_point_that_runs_when_the_budget_is_over_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping.sys, "executable", str(tmp_path / "slow"))
    (tmp_path / "slow").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "slow").chmod(0o755)
    start = time.monotonic()
    assert main(["sweep", str(write(tmp_path)), "--logs", str(tmp_path / "logs"), "--budget", "0.0001"]) == 0
    assert time.monotonic() - start < 20
    assert "stopped, as the budget is over" in capsys.readouterr().out


def test_a_killed_point_says_what_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sweeping.sys, "executable", str(tmp_path / "killed"))
    (tmp_path / "killed").write_text("#!/bin/sh\necho task 3: A_k 90 %\nkill -9 $$\n")
    (tmp_path / "killed").chmod(0o755)
    assert main(["sweep", str(write(tmp_path)), "--logs", str(tmp_path / "logs")]) == 1
    assert "failed (killed by SIGKILL)" in capsys.readouterr().out
    (folder,) = (tmp_path / "logs").iterdir()
    assert (folder / "failure.txt").read_text() == "killed by SIGKILL\n"


@pytest.mark.parametrize(
    ("code", "said", "expected"),
    [
        (-signal.SIGKILL, "task 2: A_k 90 %", "killed by SIGKILL"),
        (143, "stopped after task 2", "killed by SIGTERM"),
        (2, "cifnet: error: no data at x\n", "exit code 2: no data at x"),
        (1, "Traceback (most recent call last):\nValueError: a\nbye", "exit code 1: ValueError: a"),
        (1, "torch.OutOfMemoryError: out of memory", "exit code 1: torch.OutOfMemoryError: out of memory"),
        (3, "task 1: A_k 90 %", "exit code 3, without saying why"),
    ],
)
def test_reasons(code: int, said: str, expected: str) -> None:
    assert reason(code, said) == expected
