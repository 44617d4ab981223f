"""Sweeps of the paper's tables and figures: all of their configurations are valid, and some are run and reported."""

import csv
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.cli.grid import Point, read_points
from cifnet_pl.report.groups import group_runs
from cifnet_pl.report.runs import read_runs

PAPER = Path(__file__).parents[2] / "configs" / "paper"
POINTS = {
    "accuracy": 72, "curves": 36, "efficiency_cifar100": 12, "efficiency_imagenet100": 12, "bubble_green": 12,
    "memory": 8, "long_horizon": 12, "ablation": 30, "classifiers": 48, "buffer_size": 30, "sampling": 12,
    "calibration": 2,
}  # fmt: skip
FOLDER = [("data.source", "folder"), ("data.root", "x"), ("data.image_size", "128")]
TINY = [
    ("data.source", "digits"), ("data.root", "null"), ("data.image_size", "8"), ("data.num_workers", "0"),
    ("model.backbone", "pixels"), ("energy.enabled", "false"),
]  # fmt: skip


def test_there_is_one_for_every_table_and_figure() -> None:
    assert {path.stem for path in PAPER.glob("*.yaml")} == POINTS.keys()


@pytest.mark.parametrize("name", POINTS)
def test_points(name: str) -> None:
    points = read_points(PAPER / f"{name}.yaml")
    assert len(points) == POINTS[name]
    assert all(p.config["seed_everything"] == p.config["data"]["class_order"] for p in points)
    elsewhere = read_points(PAPER / f"{name}.yaml", FOLDER)
    assert {p.config["data"]["root"] for p in elsewhere} == {"x"}
    assert not any(label in p.name for p in elsewhere for label in ("cifar", "imagenet", "core50"))


def test_tables_share_their_runs() -> None:
    """The paper's full method with 10 classes a task is one run for all tables that have it."""
    found = {name: {p.identity for p in read_points(PAPER / f"{name}.yaml")} for name in POINTS}
    assert found["curves"] <= found["accuracy"]
    assert found["efficiency_cifar100"] == found["bubble_green"] <= found["curves"]
    assert found["efficiency_imagenet100"] <= found["curves"]
    assert found["memory"] <= found["curves"]
    for name, shared in (("ablation", 6), ("classifiers", 12), ("buffer_size", 6), ("sampling", 3)):
        assert len(found[name] & found["accuracy"]) == shared, name


def unlike() -> list[Point]:
    """Points of all sweeps that differ in more than seed and data."""
    found = {}
    for name in POINTS:
        for point in read_points(PAPER / f"{name}.yaml"):
            parts = {**point.config["model"]["init_args"], "trainer": point.config.get("trainer")}
            found.setdefault(yaml.safe_dump(parts), point)
    return list(found.values())


@pytest.mark.parametrize("point", unlike(), ids=lambda point: point.name)
def test_configurations_are_valid(point: Point, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(point.config))
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(tmp_path / "point.yaml"), "--print_config"])
    assert stop.value.code in (0, None)
    shown = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    wanted = point.config["model"]["init_args"]
    assert shown["head"]["class_path"].split(".")[-1] == wanted["head"]["class_path"].split(".")[-1]
    assert wanted["head"].get("init_args", {}).items() <= shown["head"]["init_args"].items()
    assert (shown["buffer"] is None) == (wanted["buffer"] is None)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A part of the ablation and the effect of calibration, on digits."""
    logs = tmp_path_factory.mktemp("runs")
    overrides = [*TINY, ("data.class_order", "1"), ("data.classes_per_task", "2"), ("data.max_tasks", "3")]
    overrides.append(("seed_everything", "1"))
    for name, kept in (("ablation", "no_oversampling"), ("calibration", "with")):
        for point in (p for p in read_points(PAPER / f"{name}.yaml", overrides) if p.name.startswith(kept)):
            config = {**point.config, "experiment": point.name, "logs": str(logs)}
            (logs / "point.yaml").write_text(yaml.safe_dump(config))
            assert main(["fit", "--config", str(logs / "point.yaml")]) == 0
    return logs


def test_real_runs_are_grouped_and_named(runs: Path) -> None:
    groups, _ = group_runs(read_runs([runs])[0])
    assert {group.label for group in groups} == {"CIFNet", "CIFNet, no buffer", "CIFNet, no oversampling"}
    reference = next(group for group in groups if group.is_reference)
    assert sum(reference.components.values()) == reference.outcomes[0].values["state_elements"]
    assert reference.setting.dataset == "digits"


def test_real_runs_make_a_report(runs: Path, tmp_path: Path) -> None:
    assert main(["report", str(runs), "--output", str(tmp_path)]) == 0
    figures = {path.name for path in (tmp_path / "figures").glob("*.png")}
    wanted = {"trajectory", "ablation_curves", "ablation", "calibration", "memory", "buffer_bytes"}
    assert {figure.split("_digits")[0].removesuffix(".png") for figure in figures} >= wanted
    with (tmp_path / "tables" / "ablation.csv").open(newline="") as file:
        rows = {row["variant"]: float(row["digits, 2 cls/task: A_K"]) for row in csv.DictReader(file)}
    assert rows["CIFNet, no buffer"] < rows["CIFNet, full method"]
