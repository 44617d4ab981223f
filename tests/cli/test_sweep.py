"""Sweeps: the points of their files, and running them one after another."""

import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import IO

import pytest
import yaml
from filelock import FileLock, Timeout

from cifnet_pl.__main__ import main
from cifnet_pl.cli import sweep_jobs
from cifnet_pl.cli.sweep_jobs import SweepJob, complete_run, reason, run_point
from cifnet_pl.cli.sweep_points import Point, read_points
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import environment
from tests.killing import ended, start
from tests.report.synthetic import write_run

BASE = {
    "seed_everything": 1,
    "model": {
        "class_path": "cifnet_pl.CIFNetModule",
        "init_args": {
            "backbone": "pixels",
            "head": {
                "class_path": "cifnet_pl.heads.CIFNetHead",
                "init_args": {"ridge": 1.0},
            },
            "buffer": {
                "class_path": "cifnet_pl.CalibrationBuffer",
                "init_args": {"capacity": 200},
            },
        },
    },
    "data": {"source": "digits", "classes_per_task": 5},
}
HEAD = "model.init_args.head"


def write(folder: Path, **sweep: object) -> Path:
    (folder / "base.yaml").write_text(yaml.safe_dump(BASE))
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": "base.yaml", **sweep}, sort_keys=False))
    return path


AXES = {
    "head": [{"label": "a"}, {"label": "b c", HEAD: {"class_path": "RidgeHead"}}],
    "size": [{"label": "200"}, {"label": "500", "model.buffer.capacity": 500}],
}


def test_product_of_axes_and_seeds(tmp_path: Path) -> None:
    points = read_points(
        write(tmp_path, axes=AXES, seeds=[1, 2], fixed={"data.classes_per_task": 2})
    )
    assert [p.name.rsplit("-", 1)[0] for p in points] == [
        "a-200-s1",
        "a-200-s2",
        "a-500-s1",
        "a-500-s2",
        "b_c-200-s1",
        "b_c-200-s2",
        "b_c-500-s1",
        "b_c-500-s2",
    ]
    assert len({p.identity for p in points}) == 8
    last = points[-1].config
    assert last["seed_everything"] == last["data"]["class_order"] == 2
    assert last["data"]["classes_per_task"] == 2
    # A class takes the place of the one before; a plain option is merged, with init_args left out
    # of its name.
    assert last["model"]["init_args"]["head"] == {"class_path": "RidgeHead"}
    assert last["model"]["init_args"]["buffer"]["init_args"] == {"capacity": 500}
    assert points[0].config["model"]["init_args"]["head"]["init_args"] == {"ridge": 1.0}


def test_options_that_start_from_other_configurations(tmp_path: Path) -> None:
    for name in ("slow", "quick"):
        model = {
            "class_path": "cifnet_pl.iterative.FinetuneModule",
            "init_args": {"preset": name},
        }
        content = {
            "experiment": name,
            "seed_everything": 7,
            "model": model,
            "data": {"source": "x", "batch_size": 9},
        }
        (tmp_path / f"m_{name}.yaml").write_text(yaml.safe_dump(content))
    options = [
        {"label": "a"},
        {"config": "m_*.yaml", "model.epochs": 3},
        {"label": "again", "config": "m_slow.yaml"},
    ]
    path = write(
        tmp_path,
        axes={"head": options, "n": [{"label": "2", "data.classes_per_task": 2}]},
        seeds=[1],
        fixed={"data.source": "digits"},
    )
    points = read_points(path)
    assert [p.labels["head"] for p in points] == ["a", "m_quick", "m_slow", "again"]
    assert points[0].config["model"] == BASE["model"]
    quick = points[1].config
    assert quick["model"]["class_path"] == "cifnet_pl.iterative.FinetuneModule"
    assert quick["model"]["init_args"] == {"preset": "quick", "epochs": 3}
    # Its data section is the base's but for what it says itself; the sweep's own options win over
    # both.
    assert quick["data"] == {
        "source": "digits",
        "classes_per_task": 2,
        "batch_size": 9,
        "class_order": 1,
    }
    assert quick["seed_everything"] == 1
    assert "experiment" not in quick
    assert "epochs" not in points[3].config["model"]["init_args"]


def test_a_configuration_of_its_own_keeps_its_backbone(tmp_path: Path) -> None:
    model = {
        "class_path": "cifnet_pl.iterative.FinetuneModule",
        "init_args": {"backbone": "random:resnet18"},
    }
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump({"model": model}))
    path = write(tmp_path, axes={"head": [{"label": "a"}, {"config": "slow.yaml"}]})
    given = [
        ("model.init_args.backbone", "file:x.pth"),
        ("model.architecture", "resnet18"),
        ("model.epochs", "2"),
    ]
    plain, own = read_points(path, given)
    assert plain.config["model"]["init_args"]["backbone"] == "file:x.pth"
    assert own.config["model"]["init_args"] == {
        "backbone": "random:resnet18",
        "epochs": 2,
    }
    assert own.ignored == ["model.init_args.backbone", "model.architecture"]
    assert plain.ignored == ["model.epochs"]
    assert own.identity == read_points(path, given[2:])[1].identity


def test_settings_without_effect_keep_the_identity() -> None:
    other = {
        **BASE,
        "experiment": "x",
        "logs": "y",
        "data": {**BASE["data"], "num_workers": 3},
    }  # type: ignore[dict-item]
    assert Point(other, {}).identity == Point(BASE, {}).identity
    assert (
        Point({**BASE, "seed_everything": 2}, {}).identity != Point(BASE, {}).identity
    )


def test_overrides_win(tmp_path: Path) -> None:
    parts = [
        {"label": "one", "fixed": {"data.root": "a"}, "axes": {"head": AXES["head"]}},
        {"label": "two", "fixed": {"data.root": "b"}, "axes": {"way": AXES["head"]}},
    ]
    path = write(tmp_path, parts=parts, axes={"size": AXES["size"]})
    assert [p.name.rsplit("-", 1)[0] for p in read_points(path)][:2] == [
        "one-a-200",
        "one-a-500",
    ]
    assert len(read_points(path)) == 8
    overrides = [
        ("data.root", "c"),
        ("model.buffer.capacity", "100"),
        ("data.image_size", "128"),
    ]
    points = read_points(path, overrides)
    assert [p.name.rsplit("-", 1)[0] for p in points] == ["a-200", "b_c-200"]
    assert points[0].config["data"] == {**BASE["data"], "root": "c", "image_size": 128}  # type: ignore[dict-item]
    assert points[0].config["model"]["init_args"]["buffer"]["init_args"] == {
        "capacity": 100
    }


@pytest.mark.parametrize(
    ("sweep", "part"),
    [
        ({"axis": {}}, "axis: Extra inputs"),
        ({"axes": {"head": []}}, "axes.head: List should have at least 1"),
        ({"axes": {"head": [{"model.head": 1}]}}, "an option has no label"),
        (
            {"axes": {"head": [{"label": "a"}, {"label": "a"}]}},
            "two options have the same label",
        ),
        ({"seeds": [1.5]}, "seeds.0: .* integer"),
        ({"axes": {"head": [{"label": "x" * 300}]}}, "make the labels shorter"),
        (
            {
                "axes": {
                    axis: [{"label": f"{axis}{i}"} for i in range(10)]
                    for axis in "abcdefgh"
                }
            },
            "100,000,000 points, expected at most 10,000",
        ),
        ({"base": None}, "base: "),
        ({"fixed": {"data.source.name": 1}}, "there is no source that has settings"),
        ({"axes": {"head": [{"config": "none_*.yaml"}]}}, "no file is called none_"),
        (
            {"axes": {"head": [{"config": "sweep.yaml"}]}},
            "is not a configuration",
        ),
    ],
)
def test_bad_files_are_named(
    tmp_path: Path, sweep: dict[str, object], part: str
) -> None:
    with pytest.raises(UsageError, match=part):
        read_points(write(tmp_path, **sweep))


# ---------------------------------------------------------------------- running

FAST = {"data.num_workers": 0, "data.image_size": 8, "energy.enabled": False}


def fake_run(job: SweepJob, trust: bool) -> int:
    """Stands in for the process of a point: the head decides how it ends."""
    point, folder = job
    (folder / "output.log").write_text("loading\ncifnet: error: no such data\n\n")
    if point.config["model"]["init_args"]["head"]["class_path"] == "RidgeHead":
        return 1
    write_run(folder / "version_0", seed=point.config["seed_everything"], tasks=3)
    return 0


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Sweep ``tmp_path/sweep.yaml`` into ``tmp_path/logs`` with points that take no time; what was
    said.
    """
    monkeypatch.setattr(sweep_jobs, "run_process", fake_run)

    def sweep(*options: str, code: int = 0) -> str:
        capsys.readouterr()
        assert (
            main(
                [
                    "sweep",
                    str(tmp_path / "sweep.yaml"),
                    "--logs",
                    str(tmp_path / "logs"),
                    *options,
                ]
            )
            == code
        )
        said = capsys.readouterr()
        return said.out + said.err

    return sweep


def test_a_small_ridge_with_about_as_many_images_as_features_is_noted(
    tmp_path, monkeypatch, run
):
    def learned(job: SweepJob, trust: bool) -> int:
        write_run(
            job.folder / "version_0",
            head_options={"ridge": 0.01},
            about={"learned_images": 1000},
        )
        return 0

    monkeypatch.setattr(sweep_jobs, "run_process", learned)
    write(tmp_path, seeds=[1, 2])
    assert run().count("note: 1,000 images were learned") == 1


def test_failures_do_not_stop_the_others(tmp_path, run):
    write(tmp_path, axes={"head": AXES["head"][::-1]}, seeds=[1, 2])
    said = run("--output", str(tmp_path / "r"), code=1)
    assert "2 of 4 points failed" in said
    assert said.count("failed (exit code 1: no such data)") == 2
    assert said.count("done in") == 2
    assert (
        len(
            [folder for folder in (tmp_path / "logs").iterdir() if complete_run(folder)]
        )
        == 2
    )
    assert (tmp_path / "r" / "report.html").is_file()
    assert "2 runs of 1 configuration:" in said


def test_complete_points_are_skipped(tmp_path, run):
    write(tmp_path, seeds=[1, 2])
    run()
    (broken,) = (tmp_path / "logs").glob("s2-*")
    (broken / "version_0" / "summary.json").unlink()
    said = run()
    assert (said.count("complete already"), said.count("done in")) == (1, 1)
    # Another sweep file with a point of the same configuration finds it under its first name.
    write(tmp_path, axes={"same": [{"label": "renamed"}]}, seeds=[1, 2])
    assert run().count("complete already") == 2
    assert len([p for p in (tmp_path / "logs").iterdir() if p.is_dir()]) == 2


class Forked:
    """A point's process, forked from one that has imported the product already."""

    def __init__(self, words: list[str], stdout: IO[bytes], stderr: int):
        assert words[1:3] == ["-m", "cifnet_pl.cli.sweep_jobs"]
        assert stderr == subprocess.STDOUT
        self.process = start(partial(run_point, Path(words[3])), Path(stdout.name))

    def wait(self, timeout: float | None = None) -> int:
        return ended(self.process, timeout or 240)

    def terminate(self) -> None:
        self.process.terminate()


def test_a_stopped_point_goes_on_where_it_was_and_a_failing_one_says_why(
    tmp_path, monkeypatch, capfd
):
    path = write(tmp_path, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3])
    logs = tmp_path / "logs"
    (point,) = read_points(path)
    config = {**point.config, "experiment": point.name, "logs": str(logs)}
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(config))
    # What a kill after two tasks leaves behind.
    assert (
        main(["fit", "--config", str(tmp_path / "point.yaml"), "--data.max_tasks", "2"])
        == 0
    )
    run = logs / point.name / "version_0"
    (run / "summary.json").unlink()
    before = (run / "tasks.csv").read_text().splitlines()
    capfd.readouterr()
    monkeypatch.setattr(subprocess, "Popen", Forked)
    axes = {"data": [{"label": "digits"}, {"label": "none", "data.source": "digit"}]}
    path = write(
        tmp_path, axes=axes, fixed={**FAST, "data.classes_per_task": 2}, seeds=[3]
    )
    assert main(["sweep", str(path), "--logs", str(logs)]) == 1
    assert (
        "unknown data source 'digit'" in capfd.readouterr().out
    )  # the error of the point that fails is repeated
    assert complete_run(logs / point.name) == run
    assert len(list(run.parent.glob("version_*"))) == 1
    after = (run / "tasks.csv").read_text().splitlines()
    assert after[:3] == before  # the tasks learned before were not learned again
    assert len(after) == 6


def test_two_sweeps_never_run_one_point_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An orphan of a killed sweep: its process holds the lock as long as it lives.
    hold = (
        "import filelock, sys, time\nwith filelock.FileLock(sys.argv[1]):\n print('held',"
        " flush=True)\n time.sleep(600)"
    )
    words = [sys.executable, "-c", hold, str(tmp_path / ".running")]
    orphan = subprocess.Popen(words, stdout=subprocess.PIPE, env=environment())
    with orphan.stdout:
        assert orphan.stdout.readline() == b"held\n"
    ends = threading.Event()

    def end() -> None:
        ends.set()
        orphan.kill()

    threading.Timer(0.5, end).start()
    write_run(tmp_path / "version_0")
    monkeypatch.setattr(
        "cifnet_pl.__main__.main", lambda words: pytest.fail("it is complete already")
    )
    assert run_point(tmp_path / "point.yaml") == 0
    assert ends.is_set()
    assert orphan.wait(60) == -signal.SIGKILL


def test_a_point_holds_its_lock_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def fit(words: list[str]) -> int:
        held = FileLock(tmp_path / ".running")
        with pytest.raises(Timeout):
            held.acquire(blocking=False)
        calls.append(words)
        return 3

    monkeypatch.setattr("cifnet_pl.__main__.main", fit)
    assert run_point(tmp_path / "point.yaml") == 3
    assert calls == [
        ["fit", "--config", str(tmp_path / "point.yaml"), "--ckpt_path", "last"]
    ]
    # Lightning's further processes of the same run do not wait for the first one.
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("cifnet_pl.__main__.main", lambda words: 0)
    with FileLock(tmp_path / ".running"):
        assert run_point(tmp_path / "point.yaml") == 0


@pytest.mark.parametrize(
    ("option", "said"),
    [("--output", "is a file, expected a folder"), ("--external", "no file")],
)
def test_a_report_that_cannot_be_made_is_refused_first(option, said, tmp_path, run):
    write(tmp_path, fixed=FAST)
    other = {"--output": "sweep.yaml", "--external": "none.csv"}[option]
    assert said in run(option, str(tmp_path / other), code=2)
    assert not (tmp_path / "logs").exists()


def test_a_plan_is_printed_and_nothing_run(tmp_path, run):
    write(tmp_path, axes=AXES, seeds=[1, 2])
    said = run("--dry-run")
    assert said.count("not run yet") == 8
    assert not (tmp_path / "logs").exists()
    run("--only", "a", "200", "--seeds", "1")
    assert run("--dry_run").count("complete already, A_K 59.6 %") == 1


def test_labels_and_seeds_choose_the_points(tmp_path, run):
    write(tmp_path, axes=AXES, seeds=[1, 2])
    run("--only", "a", "500", "--without", "s2", "--seeds", "2,7")
    assert [p.name.rsplit("-", 1)[0] for p in (tmp_path / "logs").iterdir()] == [
        "a-500-s7"
    ]
    assert "unknown label of the sweep 'b': did you mean b c?" in run(
        "--only", "b", code=2
    )
    assert "no point has these labels" in run("--without", "a", "b c", code=2)
    assert "expected integers and commas" in run("--seeds", "1;2", code=2)


def test_an_option_of_some_points_is_for_those(tmp_path, run):
    axes = {
        "head": [
            {"label": "own"},
            {"label": "wide", "model.head": {"class_path": "ACILHead"}},
            {"label": "bare", "model.buffer": None},
        ]
    }
    write(tmp_path, axes=axes)
    said = run("--model.head.width", "64", "--model.buffer.capacity", "50")
    assert "--model.head.width is for 1 of 3 points, not for: own; bare" in said
    assert "--model.buffer.capacity is for 2 of 3 points, not for: bare" in said
    points = {
        p.name.split("-")[0]: p / "point.yaml" for p in (tmp_path / "logs").iterdir()
    }
    made = {
        name: yaml.safe_load(path.read_text())["model"] for name, path in points.items()
    }
    assert made["wide"]["init_args"]["head"]["init_args"] == {"width": 64}
    assert "width" not in made["own"]["init_args"]["head"]["init_args"]
    assert made["bare"]["init_args"]["buffer"] is None
    assert "--model.head.width fits no point" in run(
        "--model.head.width", "64", "--only", "own", code=2
    )


def test_a_killed_point_says_what_happened(tmp_path, monkeypatch, capsys):
    """A shell script stands in for Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "point"))
    (tmp_path / "point").write_text("#!/bin/sh\necho task 3: A_k 90 %\nkill -9 $$\n")
    (tmp_path / "point").chmod(0o755)
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
        (
            1,
            "Traceback (most recent call last):\nValueError: a\nbye",
            "exit code 1: ValueError: a",
        ),
        (
            1,
            "torch.OutOfMemoryError: out of memory",
            "exit code 1: torch.OutOfMemoryError: out of memory",
        ),
        (3, "task 1: A_k 90 %", "exit code 3, without a reason"),
    ],
)
def test_reasons(code: int, said: str, expected: str) -> None:
    assert reason(code, said) == expected
