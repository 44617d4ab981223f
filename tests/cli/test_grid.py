from pathlib import Path

import pytest
import yaml

from cifnet_pl.cli.sweep_plan import identity, put, read_points
from cifnet_pl.utilities.errors import UsageError

BASE = {
    "seed_everything": 1,
    "model": {
        "class_path": "cifnet_pl.CIFNetModule",
        "init_args": {
            "backbone": "pixels",
            "head": {"class_path": "cifnet_pl.heads.CIFNetHead", "init_args": {"ridge": 1.0}},
            "buffer": {"class_path": "cifnet_pl.CalibrationBuffer", "init_args": {"capacity": 200}},
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
    points = read_points(write(tmp_path, axes=AXES, seeds=[1, 2], fixed={"data.classes_per_task": 2}))
    assert [p.name.rsplit("-", 1)[0] for p in points] == [
        "a-200-s1", "a-200-s2", "a-500-s1", "a-500-s2", "b_c-200-s1", "b_c-200-s2", "b_c-500-s1", "b_c-500-s2",
    ]  # fmt: skip
    assert len({p.identity for p in points}) == 8
    last = points[-1].config
    assert last["seed_everything"] == last["data"]["class_order"] == 2
    assert last["data"]["classes_per_task"] == 2
    # A class takes the place of the one before; a plain option is merged, with init_args left out of its name.
    assert last["model"]["init_args"]["head"] == {"class_path": "RidgeHead"}
    assert last["model"]["init_args"]["buffer"]["init_args"] == {"capacity": 500}
    assert points[0].config["model"]["init_args"]["head"]["init_args"] == {"ridge": 1.0}


def test_options_that_start_from_other_configurations(tmp_path: Path) -> None:
    for name in ("slow", "quick"):
        model = {"class_path": "cifnet_pl.iterative.FinetuneModule", "init_args": {"preset": name}}
        content = {"experiment": name, "seed_everything": 7, "model": model, "data": {"source": "x", "batch_size": 9}}
        (tmp_path / f"m_{name}.yaml").write_text(yaml.safe_dump(content))
    options = [{"label": "a"}, {"config": "m_*.yaml", "model.epochs": 3}, {"label": "again", "config": "m_slow.yaml"}]
    path = write(tmp_path, axes={"head": options, "n": [{"label": "2", "data.classes_per_task": 2}]}, seeds=[1],
                 fixed={"data.source": "digits"})  # fmt: skip
    points = read_points(path)
    assert [p.labels["head"] for p in points] == ["a", "m_quick", "m_slow", "again"]
    assert points[0].config["model"] == BASE["model"]
    quick = points[1].config
    assert quick["model"] == {
        "class_path": "cifnet_pl.iterative.FinetuneModule",
        "init_args": {"preset": "quick", "epochs": 3},
    }
    # Its data section is the base's but for what it says itself; the sweep's own options win over both.
    assert quick["data"] == {"source": "digits", "classes_per_task": 2, "batch_size": 9, "class_order": 1}
    assert quick["seed_everything"] == 1
    assert "experiment" not in quick
    assert "epochs" not in points[3].config["model"]["init_args"]


def test_a_point_keeps_what_its_option_says_against_overrides(tmp_path: Path) -> None:
    model = {"class_path": "cifnet_pl.iterative.FinetuneModule", "init_args": {"backbone": "random:resnet18"}}
    (tmp_path / "slow.yaml").write_text(yaml.safe_dump({"model": model}))
    kept = {"config": "slow.yaml", "keep": ["model.backbone", "model.architecture"]}
    path = write(tmp_path, axes={"head": [{"label": "a"}, kept, {"label": "free", "config": "slow.yaml"}]})
    given = [("model.init_args.backbone", "file:x.pth"), ("model.architecture", "resnet18"), ("model.epochs", "2")]
    a, slow, free = read_points(path, given)
    assert [p.config["model"]["init_args"]["backbone"] for p in (a, slow, free)] == [
        "file:x.pth", "random:resnet18", "file:x.pth",
    ]  # fmt: skip
    assert slow.config["model"]["init_args"] == {"backbone": "random:resnet18", "epochs": 2}
    assert slow.kept == ["model.init_args.backbone", "model.architecture"]
    assert a.kept == free.kept == []
    assert slow.identity == read_points(path, given[2:])[1].identity


def test_names_are_stable_and_of_the_configuration_alone(tmp_path: Path) -> None:
    first = read_points(write(tmp_path, axes=AXES, seeds=[1]))
    again = read_points(write(tmp_path, seeds=[1], axes={"other": AXES["size"], "way": AXES["head"]}))
    assert [p.name for p in first] == [p.name for p in read_points(write(tmp_path, axes=AXES, seeds=[1]))]
    assert {p.identity for p in first} == {p.identity for p in again}
    assert all(p.name.endswith(p.identity) for p in first + again)


def test_settings_without_effect_keep_the_identity() -> None:
    other = {**BASE, "experiment": "x", "logs": "y", "data": {**BASE["data"], "num_workers": 3}}  # type: ignore[dict-item]
    assert identity(other) == identity(BASE)
    assert identity({**BASE, "seed_everything": 2}) != identity(BASE)


def test_overrides_win_and_drop_what_makes_no_difference(tmp_path: Path) -> None:
    parts = [
        {"label": "one", "fixed": {"data.root": "a"}, "axes": {"head": AXES["head"]}},
        {"label": "two", "fixed": {"data.root": "b"}, "axes": {"way": AXES["head"]}},
    ]
    path = write(tmp_path, parts=parts, axes={"size": AXES["size"]})
    assert [p.name.rsplit("-", 1)[0] for p in read_points(path)][:2] == ["one-a-200", "one-a-500"]
    assert len(read_points(path)) == 8
    overrides = [("data.root", "c"), ("model.buffer.capacity", "100"), ("data.image_size", "128")]
    points = read_points(path, overrides)
    assert [p.name.rsplit("-", 1)[0] for p in points] == ["a", "b_c"]
    assert points[0].config["data"] == {**BASE["data"], "root": "c", "image_size": 128}  # type: ignore[dict-item]
    assert points[0].config["model"]["init_args"]["buffer"]["init_args"] == {"capacity": 100}


@pytest.mark.parametrize(
    ("sweep", "part"),
    [
        ({"axis": {}}, "'axis' is not a part of a sweep"),
        ({"axes": {"head": []}}, "axis head has no options"),
        ({"axes": {"head": [{"model.head": 1}]}}, "has no label"),
        ({"axes": {"head": [{"label": "a"}, {"label": "a"}]}}, "same label"),
        ({"seeds": [1.5]}, "expected a list of integers"),
        ({"base": None}, "has no base"),
        ({"base": "no.yaml"}, "does not exist"),
        ({"fixed": {"data.source.name": 1}}, "there is no source that has settings"),
        ({"parts": {"a": 1}}, "parts is not a list"),
        ({"axes": {"head": [{"config": "none_*.yaml"}]}}, "no file is called none_"),
        ({"axes": {"head": [{"config": "none.yaml"}]}}, "does not exist"),
        ({"axes": {"head": [{"label": "a", "keep": "model.backbone"}]}}, "expected a list of dotted names"),
        ({"axes": {"head": [{"config": "sweep.yaml"}]}}, "is not a configuration with a model"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, sweep: dict[str, object], part: str) -> None:
    with pytest.raises(UsageError, match=part):
        read_points(write(tmp_path, **sweep))


def test_no_yaml(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: [")
    with pytest.raises(UsageError, match="is not YAML"):
        read_points(tmp_path / "x.yaml")
    with pytest.raises(UsageError, match="does not exist"):
        read_points(tmp_path / "y.yaml")


def test_put_makes_the_sections_it_needs() -> None:
    config: dict[str, object] = {"model": {"class_path": "M"}}
    put(config, "model.backbone", "pixels", "here")
    put(config, "energy.enabled", False, "here")
    assert config == {
        "model": {"class_path": "M", "init_args": {"backbone": "pixels"}},
        "energy": {"enabled": False},
    }
