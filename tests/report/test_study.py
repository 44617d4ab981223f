"""Which runs are one configuration, and what it and its settings are called."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from cifnet_pl.heads import HEADS
from cifnet_pl.report.runs import read_runs
from cifnet_pl.report.settings import METHODS
from cifnet_pl.report.study import Group, Study, group_runs
from cifnet_pl.report.tables import settings_table
from tests.report.synthetic import write_run


def groups_of(folder: Path, *runs: dict[str, Any]) -> list[Group]:
    for i, options in enumerate(runs):
        write_run(folder / f"e{i:02}" / "version_0", **{"tasks": 3, **options})
    return group_runs(read_runs([folder])[0])[0]


def test_further_tasks_of_one_configuration_are_another_row(tmp_path: Path) -> None:
    """As of a folder of images that has got classes since: nothing in the configuration says so."""
    runs = [
        {"seed": seed, "tasks": tasks, "final": 10.0 * tasks}
        for seed in (1, 2)
        for tasks in (2, 3)
    ]
    groups = groups_of(tmp_path, *runs)
    found = {
        (g.setting.n_tasks, tuple(o.seed for o in g.outcomes), g.mean("A_K"))
        for g in groups
    }
    assert found == {(2, (1, 2), 20.0), (3, (1, 2), 30.0)}
    names = Study(groups).names
    assert sorted(names.values()) == [
        "CIFAR-100, 10 cls/task, 2 tasks",
        "CIFAR-100, 10 cls/task, 3 tasks",
    ]


def test_the_same_data_in_another_folder_is_the_same_setting(tmp_path: Path) -> None:
    """As on a second machine; images that differ, in folders of one name, stay apart."""
    places = {
        "/a/images": "aaaa",
        "/b/images": "aaaa",
        "/c/images": "cccc",
        "/d/images": None,
    }
    options = [
        {
            "seed": seed,
            "data": {"source": "folder", "root": root},
            "about": {"data_fingerprint": mark},
        }
        for seed, (root, mark) in enumerate(places.items(), 1)
    ]
    groups = groups_of(tmp_path, *options)
    assert sorted((g.setting.root, [o.seed for o in g.outcomes]) for g in groups) == [
        ("/a/images", [1, 2]),
        ("/c/images", [3]),
        ("/d/images", [4]),
    ]


def test_a_setting_that_a_run_did_not_write_is_its_default(tmp_path: Path) -> None:
    write_run(
        tmp_path / "new" / "version_0",
        seed=1,
        tasks=3,
        data={"split_seed": 0, "options": None},
    )
    write_run(tmp_path / "old" / "version_0", seed=2, tasks=3)
    write_run(tmp_path / "other" / "version_0", seed=3, tasks=3, data={"split_seed": 1})
    groups, _ = group_runs(read_runs([tmp_path])[0])
    assert [len(group.outcomes) for group in groups] == [2, 1]
    assert groups[1].label == "CIFNet, split seed 1"


def test_class_orders_given_or_drawn_are_one_group(tmp_path: Path) -> None:
    """A permutation by seed, and the order as given, are two samples of one thing."""
    given = {"class_order": None}
    drawn = {"class_order": 7, "cache": True}
    (group,) = groups_of(
        tmp_path, {"seed": 1, "data": given}, {"seed": 1, "data": drawn}
    )
    assert len(group.outcomes) == 2
    assert "class_order" not in group.label
    assert "cache" not in group.label


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"batch_size": 32}},
        {"data": {"image_size": 128}},
        {"data": {"class_order": ["a", "b"]}},
        {"buffer": {"capacity": 500}},
        {"buffer": None},
        {"head_options": {"dtype": "float32"}},
        {"backbone": "pixels"},
    ],
)
def test_every_other_setting_makes_a_group_of_its_own(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    assert len(groups_of(tmp_path, {"seed": 1}, {"seed": 2, **other})) == 2


def test_the_same_seed_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "e" / "version_0", tasks=3, final=40.0)
    write_run(tmp_path / "e" / "version_1", tasks=3, final=50.0)
    groups, replaced = group_runs(read_runs([tmp_path])[0])
    stat = groups[0].stat("A_K")
    assert (stat.mean, stat.n) == (pytest.approx(50.0), 1)
    assert len(replaced) == 1
    assert "version_0: the same configuration and seed" in replaced[0]


def test_variants_are_named_by_what_they_change(tmp_path: Path) -> None:
    groups = groups_of(
        tmp_path,
        {},
        {"buffer": None},
        {"buffer": {"oversample": False}},
        {"head_options": {"update_past": False}},
        {"head_options": {"weighting": "released"}},
        {"buffer": {"capacity": 500}},
        {"buffer": {"strategy": "herding"}},
        {"head_options": {"ridge": "gcv"}},
        {"head_options": {"ridge": 10.0}, "buffer": {"capacity": 200}},
        {"head": "RidgeHead", "buffer": {"capacity": 500}},
        {"head": "RidgeHead", "buffer": None, "seed": 2},
    )
    assert [g.label for g in groups] == [
        "CIFNet",
        "CIFNet, no buffer",
        "CIFNet, buffer 500",
        "CIFNet, no oversampling",
        "CIFNet, herding buffer",
        "CIFNet, λ by GCV",
        "CIFNet, locked old neurons",
        "CIFNet, released weighting",
        "CIFNet, buffer 200, λ 10",
        "Exact ridge",  # a buffer that a head has no use for makes no difference
    ]
    assert len(groups[-1].outcomes) == 2
    study = Study(groups)
    (family,) = study.varied(
        "buffer", "buffer.oversample", "head.update_past", "head.weighting"
    )
    names = [g.variant for g in family]
    assert names == [
        "full method",
        "no buffer",
        "no oversampling",
        "locked old neurons",
        "released weighting",
    ]
    assert [len(f) for f in study.varied("buffer.capacity")] == [2]
    assert study.other_keys() == ["head.ridge"]


def test_a_method_without_a_part_says_so_even_alone(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, {"buffer": None})
    assert group.label == "CIFNet, no buffer"


def test_two_buffers_beside_a_reference_without_any_are_told_apart(
    tmp_path: Path,
) -> None:
    sizes = [{"buffer": {"capacity": c}, "classes": 2} for c in (100, 300)]
    groups = groups_of(
        tmp_path, *({"buffer": None, "classes": c} for c in (2, 5, 10)), *sizes
    )
    same = [group for group in groups if group.setting.protocol == "2"]
    names = [group.label for group in same]
    assert names == [
        "CIFNet, no buffer",
        "CIFNet, with buffer, buffer 100",
        "CIFNet, with buffer, buffer 300",
    ]
    assert len({group.variant for group in same}) == 3


def test_the_default_is_the_reference_of_a_pure_sweep(tmp_path: Path) -> None:
    groups = groups_of(
        tmp_path, *({"buffer": {"capacity": c}} for c in (200, 2000, 4000))
    )
    assert [g.label for g in groups] == [
        "CIFNet",
        "CIFNet, buffer 200",
        "CIFNet, buffer 4000",
    ]


def test_settings_with_one_name_are_told_apart(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, {}, {"backbone": "pixels"}, {"classes": 5, "tasks": 2})
    names = sorted(Study(groups).names.values())
    assert names == [
        "CIFAR-100, 10 cls/task, file:resnet18.pth (resnet18)",
        "CIFAR-100, 10 cls/task, pixels",
        "CIFAR-100, 5 cls/task",
    ]


def test_a_folder_whose_name_is_no_text_is_shown_by_codes(tmp_path: Path) -> None:
    (group,) = groups_of(
        tmp_path, {"data": {"source": "folder", "root": os.fsdecode(b"images/t\xe4st")}}
    )
    assert group.setting.dataset == "t\\udce4st"
    assert group.setting.root.isprintable()


@pytest.mark.parametrize(
    ("per_task", "initial", "name"),
    [(10, None, "10"), (10, 50, "50 + 10"), ([4, 3, 3], None, "4, 3, 3")],
)
def test_a_protocol_says_the_classes_of_each_task(per_task, initial, name, tmp_path):
    (group,) = groups_of(
        tmp_path, {"data": {"classes_per_task": per_task, "initial_classes": initial}}
    )
    assert group.setting.protocol == name


def test_settings_whose_names_differ_in_other_characters_have_files_of_their_own() -> (
    None
):
    study: Any = SimpleNamespace(
        names={1: "写真, 2 cls/task", 2: "画像, 2 cls/task", 3: "digits"}
    )
    names = [Study.slug(study, setting) for setting in study.names]
    assert names == ["2_cls_task", "2_cls_task_2", "digits"]


def trained(folder: Path, seed: int, **options: Any) -> None:
    """A run of FOSTER: its options, the seed among them, are those of the model itself."""
    write_run(folder, seed=seed, tasks=2)
    for name, key in (("config.yaml", "model"), ("summary.json", "head")):
        content = yaml.safe_load((folder / name).read_text())
        given = {"backbone": "b", "seed": seed, **options}
        model = {"class_path": "cifnet_pl.iterative.FOSTERModule", "init_args": given}
        content[key] = model if key == "model" else "FOSTERModule"
        content.pop("head_settings", None)
        if name.endswith(".yaml"):
            write = yaml.safe_dump
        else:
            write = json.dumps
        (folder / name).write_text(write(content))


def test_seeds_of_a_trained_method_are_one_group_and_its_defaults_have_its_name(
    tmp_path: Path,
) -> None:
    for seed in (1, 2):
        trained(tmp_path / f"half-s{seed}" / "version_0", seed, memory_rate=0.5)
        trained(tmp_path / f"plain-s{seed}" / "version_0", seed, memory_rate=None)
    groups, _ = group_runs(read_runs([tmp_path])[0])
    seeds = {
        group.label: [outcome.seed for outcome in group.outcomes] for group in groups
    }
    assert seeds == {"FOSTER": [1, 2], "FOSTER, memory rate 0.5": [1, 2]}


def outside(folder: Path, seed: int, **options: Any) -> None:
    """A run of a head from outside: the summary has its title and the defaults of its arguments."""
    run = write_run(folder, seed=seed, head="NCMHead", head_options=options, tasks=3)
    path = run / "summary.json"
    more = {
        "head": "Mine",
        "title": "My head",
        "defaults": {"alpha": 2.0, "soft": False},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))


def test_a_head_from_outside_is_first_class(tmp_path: Path) -> None:
    """Its own title, the configuration that is nearest to its own defaults as reference, a line
    beside all heads.
    """
    outside(tmp_path / "one" / "version_0", 1, alpha=1.0, soft=False)
    outside(tmp_path / "two" / "version_0", 1, alpha=2.0, soft=False)
    outside(
        tmp_path / "left" / "version_0", 2, alpha=2.0
    )  # soft was left to its default
    for head in ("CIFNetHead", "NCMHead", "SGDHead"):
        write_run(tmp_path / head / "version_0", head=head, tasks=3)
    trained(tmp_path / "foster" / "version_0", 1)
    study = Study(group_runs(read_runs([tmp_path])[0])[0])
    own = {
        g.label: [outcome.seed for outcome in g.outcomes]
        for g in study.groups
        if g.name == "My head"
    }
    assert own == {"My head": [1, 2], "My head, alpha 1": [1]}
    (row,) = [row for row in settings_table(study).rows if row[1] == "My head"]
    assert row[2] == "head.alpha: 2.0; head.dtype: float64; head.soft: no"
    frozen = [
        group.label for group in study.groups if group.frozen and group.is_reference
    ]
    assert frozen == [
        "CIFNet",
        "NCM",
        "Linear (SGD)",
        "My head",
    ]  # FOSTER trains its network


def test_how_a_run_was_watched_is_no_part_of_a_configuration(tmp_path: Path) -> None:
    """How often it was stored, on which devices it ran."""
    watched = {"checkpoint": {"every_minutes": 5}}
    watched["trainer"] = {"devices": 1, "num_nodes": 1, "enable_progress_bar": True}
    for seed, more in ((1, {}), (2, watched)):
        path = (
            write_run(tmp_path / f"e{seed}" / "version_0", seed=seed, tasks=2)
            / "config.yaml"
        )
        config = yaml.safe_load(path.read_text())
        for key, value in more.items():
            config[key] = (
                {**config[key], **value} if isinstance(config.get(key), dict) else value
            )
        path.write_text(yaml.safe_dump(config))
    (group,) = group_runs(read_runs([tmp_path])[0])[0]
    assert group.seeds == 2


def test_every_head_has_a_name_of_its_own():
    names = [METHODS[head] for head in HEADS]
    assert len(set(names)) == len(names)
