"""Sweeps of the paper's tables and figures: all of their configurations are valid."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml

from cifnet_pl.cli.parsing import with_clean_heads
from cifnet_pl.cli.sweep import Point, read_points
from tests.command_line import prepared

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


def test_points() -> None:
    """There is a sweep for every table and figure; on other data it is one part of it."""
    assert {path.stem for path in PAPER.glob("*.yaml")} == POINTS.keys()
    for name, count in POINTS.items():
        points = points_of(name)
        assert len(points) == count
        for point in points:
            data = point.config["data"]
            assert point.config["seed_everything"] == data["class_order"]
        for point in read_points(PAPER / f"{name}.yaml", FOLDER):
            assert point.config["data"]["root"] == "x"
            assert not re.search("cifar|imagenet|core50", point.name)


def test_tables_share_their_runs() -> None:
    """The paper's full method with 10 classes a task is one run for all tables that have it."""
    result = {name: {p.identity for p in points_of(name)} for name in POINTS}
    assert result["curves"] <= result["accuracy"]
    assert result["efficiency_cifar100"] == result["bubble_green"] <= result["curves"]
    assert result["efficiency_imagenet100"] <= result["curves"]
    assert result["memory"] <= result["curves"]
    shared = {"ablation": 6, "classifiers": 12, "buffer_size": 6, "sampling": 3}
    for name, count in shared.items():
        assert len(result[name] & result["accuracy"]) == count, name


@pytest.mark.parametrize(
    "name", ["accuracy", "curves", "efficiency_imagenet100", "bubble_green"]
)
def test_every_trained_method_is_in(name: str) -> None:
    published = {
        path.stem: yaml.safe_load(path.read_text())
        for path in (PAPER.parent / "iterative").glob("*.yaml")
    }
    trained = [p for p in points_of(name) if p.labels["head"] in published]
    assert {p.labels["head"] for p in trained} == published.keys()
    for point in trained:
        own = published[point.labels["head"]]
        assert point.config["model"]["class_path"] == own["model"]["class_path"]
        data = point.config["data"]
        model = point.config["model"]["init_args"]
        settings = own["model"]["init_args"].items()
        different = {key for key, value in settings if model[key] != value}
        if data["source"] == "cifar100":
            assert different == set()
            assert data["batch_size"] == own["data"]["batch_size"]
            assert data["image_size"] == 32
        else:  # the paper's ResNet-18, on images as large as for the other methods, augmented
            free = {"crop_padding", "autoaugment", "cutout", "latent", "alpha"}
            is_imagenet = data["source"] == "imagenet100"
            assert ("crop_padding" in different) == is_imagenet
            assert different - free == {"backbone", "preset"}
            assert data["image_size"] == (None if is_imagenet else 128)


def unlike() -> list[Point]:
    """Points that differ in more than seed and data; trained methods with one network."""
    result: dict[str, Point] = {}
    for name in POINTS:
        for point in points_of(name):
            parts = [point.config["model"]["init_args"], point.config.get("trainer")]
            method = point.labels["head"] if "preset" in parts[0] else str(parts)
            result.setdefault(method, point)
    return list(result.values())


def test_configurations_are_valid(tmp_path: Path) -> None:
    parser = prepared().parser
    file = tmp_path / "point.yaml"
    for point in unlike():
        file.write_text(yaml.safe_dump(point.config))
        words = with_clean_heads(["--config", str(file)])
        words = ["--model=cifnet_pl.CIFNetModule", *words]
        given = parser.parse_args(words, defaults=False).as_dict()["model"]["init_args"]
        wanted = point.config["model"]["init_args"]
        if "preset" in wanted:
            assert wanted.items() <= given.items()
            continue
        head = given["head"]
        assert head["class_path"].endswith(wanted["head"]["class_path"].split(".")[-1])
        settings = wanted["head"].get("init_args", {})
        assert settings.items() <= head.get("init_args", {}).items()
        assert (given["buffer"] is None) == (wanted["buffer"] is None)
