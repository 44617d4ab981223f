"""Sweeps: the points of their files, and running them one after another."""

import itertools
import sys
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.cli import sweep
from cifnet_pl.cli.sweep import read_points, state
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.files import exclusive
from tests.report.synthetic import write_run

RIDGE = {"class_path": "cifnet_pl.heads.CIFNetHead", "init_args": {"ridge": 1.0}}
SIZE = {"class_path": "cifnet_pl.CalibrationBuffer", "init_args": {"capacity": 200}}
PARTS = {"backbone": "pixels", "head": RIDGE, "buffer": SIZE}
BASE = {
    "seed_everything": 1,
    "model": {"class_path": "cifnet_pl.CIFNetModule", "init_args": PARTS},
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
    fixed = {"data.classes_per_task": 2, "label": "two"}
    points = read_points(write(tmp_path, axes=AXES, seeds=[1, 2], fixed=fixed))
    names = [p.name.rsplit("-", 1)[0] for p in points]
    product = itertools.product(("two",), ("a", "b_c"), ("200", "500"), ("s1", "s2"))
    assert names == ["-".join(labels) for labels in product]
    assert len({p.identity for p in points}) == 8
    last = points[-1].config
    assert last["seed_everything"] == last["data"]["class_order"] == 2
    assert last["data"]["classes_per_task"] == 2
    # A class takes the place of the one before; a plain option is merged, with init_args left out
    # of its name.
    assert last["model"]["init_args"]["head"] == {"class_path": "RidgeHead"}
    assert last["model"]["init_args"]["buffer"]["init_args"] == {"capacity": 500}
    assert points[0].config["model"]["init_args"]["head"]["init_args"] == {"ridge": 1.0}


def class_orders(path: Path, *overrides: tuple[str, str]) -> list[int]:
    points = read_points(path, overrides)
    return [point.config["data"]["class_order"] for point in points]


def test_seeds_leave_an_order_that_is_named(tmp_path: Path) -> None:
    orders = [{"label": f"o{order}", "data.class_order": order} for order in (7, 8)]
    path = write(tmp_path, axes={"order": orders}, seeds=[1, 2])
    seeds = [point.config["seed_everything"] for point in read_points(path)]
    assert (class_orders(path), seeds) == ([7, 7, 8, 8], [1, 2, 1, 2])
    assert set(class_orders(path, ("data.class_order", "3"))) == {3}
    twice = [{"label": "nine", "seed_everything": 9}]
    with pytest.raises(UsageError, match="axis run and seeds both set"):
        read_points(write(tmp_path, axes={"run": twice}, seeds=[1]))
    alone = write(tmp_path, seeds=[1, 2])
    for seed_of_base, expected in ((1, [5, 5]), (5, [1, 2])):
        data = {**BASE["data"], "class_order": 5}
        base = {**BASE, "data": data, "seed_everything": seed_of_base}
        (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
        assert class_orders(alone) == expected


def test_options_that_start_from_other_configurations(tmp_path: Path) -> None:
    for name in ("slow", "quick"):
        model = {"class_path": FINETUNE, "init_args": {"preset": name}}
        data = {"source": "x", "batch_size": 9}
        content = {"experiment": name, "seed_everything": 7}
        content |= {"model": model, "data": data}
        (tmp_path / f"m_{name}.yaml").write_text(yaml.safe_dump(content))
    options = [
        {"label": "a"},
        {"config": "m_*.yaml", "model.epochs": 3},
        {"label": "again", "config": "m_slow.yaml"},
    ]
    axes = {"head": options, "n": [{"label": 0, "data.classes_per_task": 2}]}
    path = write(tmp_path, axes=axes, seeds=[1], fixed={"data.source": "digits"})
    points = read_points(path)
    assert [p.labels["head"] for p in points] == ["a", "m_quick", "m_slow", "again"]
    assert points[0].labels["n"] == "0"
    assert points[0].config["model"] == BASE["model"]
    quick = points[1].config
    assert quick["model"]["class_path"] == FINETUNE
    assert quick["model"]["init_args"] == {"preset": "quick", "epochs": 3}
    # Its data section is the base's but for what it says itself; the sweep's own options win over
    # both.
    data = {"source": "digits", "classes_per_task": 2}
    assert quick["data"] == data | {"batch_size": 9, "class_order": 1}
    assert quick["seed_everything"] == 1
    assert "epochs" not in points[3].config["model"]["init_args"]


def test_a_configuration_of_its_own_keeps_its_backbone(tmp_path: Path) -> None:
    model = {"class_path": FINETUNE, "init_args": {"backbone": "random:resnet18"}}
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump({"model": model, "data": None}))
    path = write(tmp_path, axes={"head": [{"label": "a"}, {"config": "slow.yaml"}]})
    given = [
        ("model.init_args.backbone", "file:x.pth"),
        ("model.architecture", "resnet18"),
        ("model.epochs", "2"),
    ]
    plain, own = read_points(path, given)
    assert plain.config["model"]["init_args"]["backbone"] == "file:x.pth"
    wanted = {"backbone": "random:resnet18", "epochs": 2}
    assert own.config["model"]["init_args"] == wanted
    assert own.ignored == ["model.init_args.backbone", "model.architecture"]
    assert plain.ignored == ["model.epochs"]
    assert own.identity == read_points(path, given[2:])[1].identity


def test_overrides_win(tmp_path: Path, capsys) -> None:
    parts = [
        {"label": "one", "fixed": {"data.root": "a"}, "axes": {"head": AXES["head"]}},
        {"label": "two", "fixed": {"data.root": "b"}, "axes": {"way": AXES["head"]}},
    ]
    path = write(tmp_path, parts=parts, axes={"size": AXES["size"]})
    names = [p.name.rsplit("-", 1)[0] for p in read_points(path)]
    assert names[:2] == ["one-a-200", "one-a-500"]
    assert len(names) == 8
    overrides = [("data.root", "c"), ("data.image_size", "128")]
    overrides.append(("model.buffer.capacity", "100"))
    points = read_points(path, overrides)
    names = [p.name.rsplit("-", 1)[0] for p in points]
    assert names == ["a-200", "a-500", "b_c-200", "b_c-500"]
    words = [word for name, value in overrides for word in (f"--{name}", value)]
    assert main(["sweep", str(path), "--dry_run", *words]) == 0
    shown = capsys.readouterr().out  # two buffers of one size are one run
    names = [line.rpartition("-")[0] for line in shown.splitlines()[1:]]
    assert names == ["a-200", "b_c-200"]
    config = points[0].config
    assert config["data"] == {**BASE["data"], "root": "c", "image_size": 128}  # type: ignore[dict-item]
    assert config["model"]["init_args"]["buffer"]["init_args"] == {"capacity": 100}


@pytest.mark.parametrize(
    ("sweep", "part"),
    [
        ({"axis": {}}, "axis is '{}': Extra inputs"),
        ({"parts": []}, "parts is '.*at least 1 item"),
        ({"seeds": [1.5]}, "seeds.0 is '1.5': .* integer"),
        ({"fixed": {"data.source.name": 1}}, "source.name cannot be set"),
        ({"axes": {"head": [{"config": "none_*.yaml"}]}}, "none_.* does not exist"),
        ({"axes": {"seed": [{"seed_everything": 1}]}}, "axis is called part or seed"),
    ],
)
def test_bad_files_are_named(tmp_path, sweep: dict[str, object], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read_points(write(tmp_path, **sweep))


# ---------------------------------------------------------------------- running

FINETUNE = "cifnet_pl.iterative.FinetuneModule"
FAST = {"data.num_workers": 0, "data.image_size": 8, "energy.enabled": False}


def fake_run(folder: Path) -> str:
    """Stands in for the process of a point: the head decides how it ends."""
    config = yaml.safe_load((folder / "point.yaml").read_text())
    if config["model"]["init_args"]["head"]["class_path"] == "RidgeHead":
        raise CifnetError("exit code 1: no such data")
    write_run(folder / "version_0", seed=config["seed_everything"], tasks=3)
    return state(folder)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Sweep ``tmp_path/sweep.yaml`` into ``tmp_path/logs`` in no time; what was said."""
    monkeypatch.setattr(sweep, "run_point", fake_run)
    monkeypatch.setattr("cifnet_pl.report.figures.all_pictures", lambda _: {})

    def run_sweep(*options: str, code: int = 0) -> str:
        capsys.readouterr()
        words = [str(tmp_path / "sweep.yaml"), "--logs", str(tmp_path / "logs")]
        assert main(["sweep", *words, *options]) == code
        said = capsys.readouterr()
        return said.out + said.err

    return run_sweep


def test_failures_do_not_stop_the_others(tmp_path, run):
    write(tmp_path, axes={"head": AXES["head"][::-1]}, seeds=[1, 2])
    said = run("--output", str(tmp_path / "r"), code=1)
    assert "2 of 4 points failed" in said
    assert said.count("failed (exit code 1: no such data)") == 2
    assert said.count(": A_K 59.6 %") == 2
    assert sum(bool(state(folder)) for folder in (tmp_path / "logs").iterdir()) == 2
    assert (tmp_path / "r" / "report.html").is_file()
    assert "2 runs: " in said


def test_complete_points_are_skipped(tmp_path, run, monkeypatch):
    write(tmp_path, seeds=[1, 2])
    run()
    (broken,) = (tmp_path / "logs").glob("s2-*")
    summary = broken / "version_0" / "summary.json"
    summary.unlink()
    run_again = []
    monkeypatch.setattr(sweep, "run_point", run_again.append)
    run()
    assert run_again == [broken]
    # Without test images a point is complete, too. Another sweep file with a point of the same
    # configuration, but for what has no effect, finds it under its first name.
    summary.write_text('{"A_K": null}')
    fixed = {"data.num_workers": 3, "experiment": "x", "logs": "y"}
    write(tmp_path, axes={"same": [{"label": "z"}]}, fixed=fixed, seeds=[1, 2])
    assert "A_K –" in run()
    assert run_again == [broken]
    assert len([p for p in (tmp_path / "logs").iterdir() if p.is_dir()]) == 2


@pytest.mark.system
def test_a_stopped_point_goes_on_and_a_failing_one_says_why(tmp_path, capfd):
    fixed = {**FAST, "data.classes_per_task": 2}
    path = write(tmp_path, fixed=fixed, seeds=[3])
    logs = tmp_path / "logs"
    (point,) = read_points(path)
    config = {**point.config, "experiment": point.name, "logs": str(logs)}
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(config))
    # What a kill after two tasks leaves behind.
    words = ["--config", str(tmp_path / "point.yaml"), "--data.max_tasks", "2"]
    assert main(["fit", *words]) == 0
    run = logs / point.name / "version_0"
    (run / "summary.json").unlink()
    before = (run / "tasks.csv").read_text().splitlines()
    capfd.readouterr()
    axes = {"data": [{"label": "digits"}, {"label": "none", "data.source": "digit"}]}
    path = write(tmp_path, axes=axes, fixed=fixed, seeds=[3])
    assert main(["sweep", str(path), "--logs", str(logs)]) == 1
    # The error of the point that fails is repeated.
    assert "unknown data source 'digit'" in capfd.readouterr().out
    assert (run / "summary.json").is_file()
    assert len(list(run.parent.glob("version_*"))) == 1
    after = (run / "tasks.csv").read_text().splitlines()
    assert after[:3] == before  # the tasks learned before were not learned again
    assert len(after) == 6


def test_two_sweeps_never_run_one_point_at_once(tmp_path: Path, capsys) -> None:
    (point,) = read_points(write(tmp_path))
    folder = tmp_path / "logs" / point.name
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--logs", str(tmp_path / "logs")]
    with exclusive(folder / "point.yaml"):
        assert main(words) == 1
    assert "failed (another process is writing" in capsys.readouterr().out
    assert not (folder / "output.log").exists()


def test_a_repeated_sweep_has_its_report_already(tmp_path, run):
    write(tmp_path, seeds=[1, 2])
    output = ["--output", str(tmp_path / "report"), "--logs", str(tmp_path / "a,b")]
    run(*output)
    report = tmp_path / "report" / "report.html"
    before = report.stat().st_mtime_ns
    assert f"{tmp_path}/report is already there" in run(*output)
    assert report.stat().st_mtime_ns == before
    for seeds in ("1", "1,2,3"):
        assert "exists already" in run(*output, "--seeds", seeds, code=2)


def test_labels_and_seeds_choose_the_points(tmp_path, run):
    """A plan of them is printed, and nothing is run."""
    write(tmp_path, axes=AXES, seeds=[1, 2])
    assert run("--dry-run").count("not run yet") == 8
    assert not (tmp_path / "logs").exists()
    run("--only", "a", "500", "--without", "s2", "--seeds", "2,7")
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("a-500-s7-")
    assert run("--dry_run", "--seeds", "7").count("A_K 59.6 %") == 1
    said = run("--only", "b", code=2)
    assert "unknown label of the sweep 'b': did you mean b c?" in said
    assert "no point has these labels" in run("--without", "a", "b c", code=2)
    parts = [{"label": "one"}, {"label": "two", "axes": {"way": AXES["head"]}}]
    write(tmp_path, parts=parts)
    assert run("--only", "b c", "--dry_run").count("two-b_c-") == 1
    write(tmp_path, axes={"head": []})
    assert "no point has these labels" in run(code=2)
    write(tmp_path, axes=AXES)
    assert "expected such as 1,2,3" in run("--seeds", "1;2", code=2)


def test_an_option_of_some_points_is_for_those(tmp_path, run):
    wide = {"label": "wide", "model.head": "ACILHead"}
    bare = {"label": "bare", "model.buffer": None}
    write(tmp_path, axes={"head": [{"label": "own"}, wide, bare]})
    said = run("--model.head.width", "64", "--model.buffer.capacity", "50")
    assert "--model.head.width is not for 2 points" in said
    assert "--model.buffer.capacity is not for 1 point" in said
    made = {}
    for path in (tmp_path / "logs").glob("*/point.yaml"):
        config = yaml.safe_load(path.read_text())
        made[path.parent.name.split("-")[0]] = config["model"]
    assert made["wide"]["init_args"]["head"]["init_args"] == {"width": 64}
    assert "width" not in made["own"]["init_args"]["head"]["init_args"]
    assert made["bare"]["init_args"]["buffer"] is None
    for name in ("model.head.width", "data.colour"):
        words = (f"--{name}", "64", "--only", "own")
        assert f"--{name} fits no point" in run(*words, code=2)


def test_a_killed_point_says_what_happened(tmp_path, monkeypatch, capsys):
    """A shell script stands in for Python."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "point"))
    (tmp_path / "point").write_text("#!/bin/sh\necho task 3: A_k 90 %\nkill -9 $$\n")
    (tmp_path / "point").chmod(0o755)
    assert main(["sweep", str(write(tmp_path)), "--logs", str(tmp_path / "logs")]) == 1
    assert "failed (killed by SIGKILL)" in capsys.readouterr().out
    (folder,) = (tmp_path / "logs").iterdir()
    assert (folder / "failure.txt").read_text() == "killed by SIGKILL\n"
