"""Which runs are one configuration, and what it and its settings are called."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from cifnet_pl import iterative
from cifnet_pl.heads import HEADS
from cifnet_pl.iterative import FOSTERModule
from cifnet_pl.report.results import JOINT, METHODS, read_results, warnings
from cifnet_pl.report.tables import settings_table
from cifnet_pl.utilities.plugins import defaults_of, title_of
from tests.report.synthetic import results_of, write_run


def seeds_by_label(results):
    """Label of each configuration → its seeds, in the order of tables."""
    groups = results.measured.groupby(["setting", "label"], sort=False)
    return {label: list(rows["seed"]) for (_, label), rows in groups}


def test_the_table_has_a_row_for_each_run_and_task(tmp_path):
    table = results_of(tmp_path, {"seed": 1}, {"seed": 2}).table
    for run, rows in table[table["origin"] == "measured"].groupby("run"):
        tasks = pd.read_csv(Path(run) / "tasks.csv")
        assert list(rows["task"]) == [1, 2, 3]
        assert list(rows["A_k"]) == pytest.approx(list(tasks["A_k"]))
        assert list(rows["A_K"]) == [tasks["A_k"].iloc[-1]] * 3


def test_the_same_data_in_another_folder_is_the_same_setting(tmp_path):
    """As on a second machine; images that differ, in folders of one name, stay apart."""
    roots = ["/a/images", "/b/photos", "/c/images", "/d/images"]
    marks = ["aa", "aa", "cc", None]
    options = []
    for seed, (root, mark) in enumerate(zip(roots, marks, strict=True), 1):
        data = {"source": "folder", "root": root}
        about = {"data_fingerprint": mark}
        options.append({"seed": seed, "data": data, "about": about})
    measured = results_of(tmp_path, *options).measured
    found = measured.groupby("root")["seed"].agg(list).to_dict()
    assert found == {"/a/images": ["1", "2"], "/c/images": ["3"], "/d/images": ["4"]}
    assert set(measured["dataset"]) == {"images"}


def test_what_is_no_part_of_a_configuration(tmp_path):
    """Defaults that a run did not write, class orders, caches, and how a run was watched."""
    options = [
        {"seed": 1, "data": {"split_seed": 0, "options": None}},
        {"seed": 2, "data": {"class_order": None}},
        {"seed": 3, "data": {"class_order": 7, "cache": True}},
        {"seed": 4, "data": {"split_seed": 1}},
    ]
    results = results_of(tmp_path, *options)
    path = tmp_path / "e01" / "version_0" / "config.yaml"
    config = yaml.safe_load(path.read_text())
    config["checkpoint"] = {"every_minutes": 5}
    config["trainer"] |= {"devices": 1, "num_nodes": 1, "enable_progress_bar": True}
    path.write_text(yaml.safe_dump(config))
    for found in (results, read_results([tmp_path])):
        seeds = seeds_by_label(found)
        assert seeds == {"CIFNet": ["1", "2", "3"], "CIFNet, split seed 1": ["4"]}


def test_every_other_setting_makes_another_row(tmp_path):
    others = [
        {},
        {"data": {"batch_size": 32}},
        {"data": {"image_size": 128}},
        {"data": {"class_order": ["a", "b"]}},
        {"head_options": {"dtype": "float32"}},
    ]
    results = results_of(tmp_path, *others)
    assert len(results.measured.drop_duplicates(["setting", "label"])) == len(others)


def test_the_same_seed_twice_counts_once(tmp_path):
    results = results_of(tmp_path, {"final": 40.0}, {"final": 50.0})
    assert list(results.measured["A_K"]) == pytest.approx([50.0])
    (sentence,) = results.left_out
    assert "e00/version_0: a later run of the same configuration" in sentence


def test_variants_are_named_by_what_they_change(tmp_path):
    changes = {"head_options": {"ridge": 10.0}, "buffer": {"capacity": 200}}
    runs = {
        "CIFNet": {},
        "CIFNet, no buffer": {"buffer": None},
        "CIFNet, buffer 500": {"buffer": {"capacity": 500}},
        "CIFNet, no oversampling": {"buffer": {"oversample": False}},
        "CIFNet, herding buffer": {"buffer": {"strategy": "herding"}},
        "CIFNet, λ by GCV": {"head_options": {"ridge": "gcv"}},
        "CIFNet, locked old neurons": {"head_options": {"update_past": False}},
        "CIFNet, released weighting": {"head_options": {"weighting": "released"}},
        "CIFNet, buffer 200, λ 10": changes,
        "Exact ridge": {"head": "RidgeHead", "buffer": {"capacity": 500}},
    }
    # A buffer that a head has no use for makes no difference.
    without = {"head": "RidgeHead", "buffer": None, "seed": 2}
    results = results_of(tmp_path, *reversed(runs.values()), without)
    seeds = seeds_by_label(results)
    assert list(seeds) == list(runs)
    assert len(seeds["Exact ridge"]) == 2
    (family,) = results.families("buffer", "buffer.oversample", "head.update_past")
    variants = ["full method", "no buffer", "no oversampling", "locked old neurons"]
    assert list(family["variant"].unique()) == variants
    assert results.other_keys() == ["head.ridge"]


def test_two_buffers_beside_a_reference_without_any(tmp_path):
    runs = [{"buffer": {"capacity": c}, "classes": 2} for c in (100, 300)]
    runs += [{"buffer": None, "classes": c} for c in (2, 5, 10)]
    measured = results_of(tmp_path, *runs).measured
    same = measured[measured["protocol"] == "2"]
    with_buffer = "CIFNet, with buffer"
    labels = ["CIFNet, no buffer", with_buffer, f"{with_buffer}, buffer 300"]
    assert sorted(same["label"]) == labels


def test_the_default_is_the_reference_of_a_pure_sweep(tmp_path):
    runs = [{"buffer": {"capacity": c}} for c in (200, 2000, 4000)]
    results = results_of(tmp_path, *runs)
    labels = ["CIFNet", "CIFNet, buffer 200", "CIFNet, buffer 4000"]
    assert list(seeds_by_label(results)) == labels
    # A part that is missing is said, even where nothing else is there.
    alone = results_of(tmp_path / "alone", {"buffer": None})
    assert list(seeds_by_label(alone)) == ["CIFNet, no buffer"]


def test_a_label_is_one_configuration_in_every_setting(tmp_path):
    """The width that a setting has most runs of is not that of the other setting."""
    runs = []
    for width, classes, seeds in ((8192, 10, 2), (8192, 5, 1), (1024, 5, 2)):
        run = {"head": "ACILHead", "head_options": {"width": width}, "classes": classes}
        runs += [{**run, "seed": seed, "final": width / 100} for seed in range(seeds)]
    measured = results_of(tmp_path, *runs).measured
    rounded = measured["A_K"].round(2)
    accuracies = rounded.groupby(measured["label"]).agg(set).to_dict()
    assert accuracies == {"ACIL": {81.92}, "ACIL, width 1024": {10.24}}


def test_settings_with_one_name_are_told_apart(tmp_path):
    """Further tasks are those of a folder of images that has got classes since. A protocol says the
    classes of each task.
    """
    runs = [{}, {"tasks": 2}, {"backbone": "pixels"}, {"classes": 5, "tasks": 2}]
    for protocol in ({"initial_classes": 50}, {"classes_per_task": [4, 3, 3]}):
        runs.append({"data": protocol})
    network = "file:resnet18.pth (resnet18), 224 px"
    assert sorted(results_of(tmp_path, *runs).settings) == [
        f"CIFAR-100, 10 cls/task, {network}, 2 tasks",
        f"CIFAR-100, 10 cls/task, {network}, 3 tasks",
        "CIFAR-100, 10 cls/task, pixels, 224 px",
        "CIFAR-100, 4, 3, 3 cls/task",
        "CIFAR-100, 5 cls/task",
        "CIFAR-100, 50 + 10 cls/task",
    ]


def test_seeds_of_a_trained_method_are_one_row(tmp_path):
    """Its options, the seed among them, are those of the model itself."""
    own = {"head": "FOSTERModule", "head_settings": None, "buffer_settings": None}
    own |= {"title": title_of(FOSTERModule), "defaults": defaults_of(FOSTERModule)}
    runs = []
    for seed, rate in ((1, 0.5), (2, 0.5), (1, None), (2, None)):
        given = {"backbone": "b", "seed": seed, "memory_rate": rate}
        runs.append({"seed": seed, "about": own, "model": {"init_args": given}})
    rows = {"FOSTER": ["1", "2"], "FOSTER, memory rate 0.5": ["1", "2"]}
    assert seeds_by_label(results_of(tmp_path, *runs)) == rows


def test_trained_methods_have_their_papers_names_and_order(tmp_path):
    """Also where a run of a version before did not write its title, parts and widths."""
    names = {"FOSTERModule": "FOSTER", "ICaRLModule": "iCaRL", "NCMHead": "NCM"}
    for head in names:
        run = write_run(tmp_path / head / "version_0", tasks=2, about={"head": head})
        path = run / "summary.json"
        summary = json.loads(path.read_text())
        for key in ("network_params", "state_components", "state_bytes_per_element"):
            del summary[key]
        path.write_text(json.dumps(summary))
    results = read_results([tmp_path])
    assert list(seeds_by_label(results)) == ["NCM", "iCaRL", "FOSTER"]
    assert set(results.measured["network_params"]) == {0}


def outside(seed, **options):
    """A run of a head from outside: the summary has its title and the defaults of its arguments."""
    defaults = {"alpha": 2.0, "soft": False}
    own = {"head": "Mine", "title": "My head", "defaults": defaults}
    return {"seed": seed, "head": "NCMHead", "head_options": options, "about": own}


def test_a_head_from_outside_is_first_class(tmp_path):
    """Its own title, and as reference the configuration that is nearest to its own defaults."""
    default = outside(2, alpha=2.0)  # soft is left to its own
    runs = [default, outside(1, alpha=1.0, soft=False)]
    results = results_of(tmp_path, *runs, outside(1, alpha=2.0, soft=False))
    assert seeds_by_label(results) == {"My head": ["2", "1"], "My head, alpha 1": ["1"]}
    (text,) = settings_table(results).texts["reference configuration"]
    own = "head.alpha: 2.0; head.dtype: float64; head.metric: cosine; head.soft: no"
    assert own in text


def test_the_bound_is_one_method_with_its_settings(tmp_path):
    bound = {"head": "LogisticHead", "head_options": {"inverse_penalty": 0.01}}
    bound |= {"buffer": {"capacity": 10_000_000, "oversample": False}}
    bound |= {"about": {"learned_images": 50_000}}
    results = results_of(tmp_path, {}, {"head": "LogisticHead"}, bound)
    assert list(seeds_by_label(results)) == ["CIFNet", "Logistic regression", JOINT]


def test_every_method_has_a_name_of_its_own():
    assert len(set(METHODS.values())) == len(METHODS)
    learners = [*HEADS.values(), *iterative.METHODS]
    named = [(kind.__name__, title_of(kind)) for kind in learners]
    assert list(METHODS.items()) == named


def test_runs_of_other_data_are_said(tmp_path):
    runs = []
    for seed, mark in enumerate(["aaaa", "aaaa", "bbbb", None]):
        runs.append({"seed": seed, "about": {"data_fingerprint": mark}})
    sentence = warnings(results_of(tmp_path, *runs))[0]
    assert "Runs of CIFAR-100, 10 cls/task had different data" in sentence
    assert str(tmp_path / "e02") in sentence


def test_a_task_without_test_images_has_no_accuracy(tmp_path):
    folder = write_run(tmp_path / "version_0", tasks=2)
    for name, known in (
        ("summary.json", r'("A_k": \[\s*)90\.0'),
        ("tasks.csv", "(1,10,)90.0"),
    ):
        text = (folder / name).read_text()
        empty = "null" if name == "summary.json" else ""
        (folder / name).write_text(re.sub(known, rf"\g<1>{empty}", text))
    accuracies = read_results([folder]).table["A_k"]
    assert accuracies.isna().tolist() == [True, False]
