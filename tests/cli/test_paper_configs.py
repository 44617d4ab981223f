"""Sweeps of the paper's tables and figures: all of their configurations are valid."""

from functools import cache
from pathlib import Path

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.cli.sweep import Point, read_points

PAPER = Path(__file__).parents[2] / "configs" / "paper"
POINTS = {
    "accuracy": 270,
    "curves": 135,
    "efficiency_cifar100": 45,
    "efficiency_imagenet100": 45,
    "bubble_green": 45,
    "memory": 8,
    "long_horizon": 12,
    "ablation": 30,
    "classifiers": 48,
    "buffer_size": 30,
    "sampling": 12,
    "calibration": 2,
}
FOLDER = [("data.source", "folder"), ("data.root", "x"), ("data.image_size", "128")]


@cache
def points_of(name: str) -> list[Point]:
    return read_points(PAPER / f"{name}.yaml")


def test_there_is_one_for_every_table_and_figure() -> None:
    assert {path.stem for path in PAPER.glob("*.yaml")} == POINTS.keys()


@pytest.mark.parametrize("name", POINTS)
def test_points(name: str) -> None:
    points = points_of(name)
    assert len(points) == POINTS[name]
    assert all(
        p.config["seed_everything"] == p.config["data"]["class_order"] for p in points
    )
    elsewhere = read_points(PAPER / f"{name}.yaml", FOLDER)
    assert {p.config["data"]["root"] for p in elsewhere} == {"x"}
    assert not any(
        label in p.name for p in elsewhere for label in ("cifar", "imagenet", "core50")
    )


def test_tables_share_their_runs() -> None:
    """The paper's full method with 10 classes a task is one run for all tables that have it."""
    result = {name: {p.identity for p in points_of(name)} for name in POINTS}
    assert result["curves"] <= result["accuracy"]
    assert result["efficiency_cifar100"] == result["bubble_green"] <= result["curves"]
    assert result["efficiency_imagenet100"] <= result["curves"]
    assert result["memory"] <= result["curves"]
    for name, shared in (
        ("ablation", 6),
        ("classifiers", 12),
        ("buffer_size", 6),
        ("sampling", 3),
    ):
        assert len(result[name] & result["accuracy"]) == shared, name


@pytest.mark.parametrize(
    "name",
    [
        "accuracy",
        "curves",
        "efficiency_cifar100",
        "efficiency_imagenet100",
        "bubble_green",
    ],
)
def test_every_trained_method_is_in(name: str) -> None:
    methods = {path.stem for path in (PAPER.parent / "iterative").glob("*.yaml")}
    trained = [p for p in points_of(name) if p.labels["head"] in methods]
    assert {p.labels["head"] for p in trained} == methods
    for point in trained:
        published = yaml.safe_load(
            (PAPER.parent / "iterative" / f"{point.labels['head']}.yaml").read_text()
        )
        assert point.config["model"]["class_path"] == published["model"]["class_path"]
        data = point.config["data"]
        model = point.config["model"]["init_args"]
        different = {
            key
            for key, value in published["model"]["init_args"].items()
            if model[key] != value
        }
        if data["source"] == "cifar100":
            assert different == set()
            assert data["batch_size"] == published["data"]["batch_size"]
            assert data["image_size"] == 32
        else:  # the paper's ResNet-18, on images as large as for the other methods, augmented
            own = {
                "crop_padding",
                "autoaugment",
                "cutout",
                "latent",
                "alpha",
            } & different
            assert ("crop_padding" in own) == (data["source"] == "imagenet100")
            assert different == {"backbone", "preset", *own}
            assert (
                data["image_size"]
                == {"imagenet100": None, "core50": 128}[data["source"]]
            )


def unlike() -> list[Point]:
    """Points of all sweeps that differ in more than seed and data; trained methods with one of
    their networks.
    """
    result = {}
    for name in POINTS:
        for point in points_of(name):
            parts = {
                **point.config["model"]["init_args"],
                "trainer": point.config.get("trainer"),
            }
            result.setdefault(
                point.labels["head"] if "preset" in parts else yaml.safe_dump(parts),
                point,
            )
    return list(result.values())


def test_configurations_are_valid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for point in unlike():
        assert_valid(point, tmp_path, capsys)


def assert_valid(
    point: Point, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "point.yaml").write_text(yaml.safe_dump(point.config))
    with pytest.raises(SystemExit) as stop:
        main(["fit", "--config", str(tmp_path / "point.yaml"), "--print_config"])
    assert stop.value.code in (0, None)
    shown = yaml.safe_load(capsys.readouterr().out)["model"]["init_args"]
    wanted = point.config["model"]["init_args"]
    if "preset" in wanted:
        assert wanted.items() <= shown.items()
        return
    assert (
        shown["head"]["class_path"].split(".")[-1]
        == wanted["head"]["class_path"].split(".")[-1]
    )
    assert (
        wanted["head"].get("init_args", {}).items()
        <= shown["head"]["init_args"].items()
    )
    assert (shown["buffer"] is None) == (wanted["buffer"] is None)
