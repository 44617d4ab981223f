"""Differences of two methods against scipy and brute force, and what cannot be compared."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cifnet_pl.__main__ import main
from cifnet_pl.report.comparison import bootstrap_interval, compare_methods
from cifnet_pl.report.results import read_results
from cifnet_pl.report.tables import accuracy_table
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import rows as rows_of
from tests.report.synthetic import results_of, write_run

IMAGES = 400
SEEDS = (1, 2, 3)


def keep_predictions(run, right, order):
    """Write predictions of two tasks; in the last, those of the images ``right`` are correct."""
    folder = run / "predictions.parquet"
    folder.mkdir()
    for task, hits in ((1, np.zeros(len(right), dtype=bool)), (2, right)):
        label = (order % 10).astype(str)
        first = np.where(hits[order], label, "x")
        part = {
            "task": task,
            "image": order.astype(str),
            "label": label,
            "top_1": first,
        }
        pd.DataFrame(part).to_parquet(folder / f"task_{task:04}.parquet")


@pytest.fixture
def runs(tmp_path):
    draw = np.random.default_rng(0)
    right = {}
    for head, share in (("CIFNetHead", 0.60), ("RidgeHead", 0.72)):
        for seed in SEEDS:
            folder = tmp_path / f"{head}{seed}" / "version_0"
            answers = draw.random(IMAGES) < share
            right[head, seed] = answers
            write_run(folder, head=head, seed=seed, tasks=2, final=100 * answers.mean())
            keep_predictions(folder, answers, draw.permutation(IMAGES))
    return tmp_path, right


def test_differences_are_of_equal_seeds_and_images(runs, tmp_path, capsys, monkeypatch):
    folder, right = runs
    monkeypatch.setattr("cifnet_pl.report.figures.all_pictures", lambda _: {})
    words = ["report", str(folder), "--output", str(tmp_path / "out")]
    assert main([*words, "--compare", "Exact ridge", "CIFNet"]) == 0
    (path,) = (tmp_path / "out" / "tables").glob("comparison_*.csv")
    rows = {row["quantity"]: row for row in rows_of(path)}
    pairs = [(right["RidgeHead", seed], right["CIFNetHead", seed]) for seed in SEEDS]
    differences = np.array([100 * (a.mean() - b.mean()) for a, b in pairs])
    over_seeds = rows["final accuracy A_K (%), over seeds"]
    assert float(over_seeds["difference"]) == pytest.approx(differences.mean())
    wanted = stats.ttest_1samp(differences, 0)
    low = wanted.confidence_interval().low
    assert float(over_seeds["95 % from"]) == pytest.approx(low)
    assert float(over_seeds["p"]) == pytest.approx(wanted.pvalue, rel=0.05)
    both = rows["final accuracy A_K (%), over seeds and images"]
    assert float(both["95 % from"]) < differences.mean() < float(both["95 % to"])
    for seed, (a, b) in zip(SEEDS, pairs, strict=True):
        row = rows[f"final accuracy A_K (%), over images, seed {seed}, order {seed}"]
        assert float(row["only Exact ridge"]) == np.sum(a & ~b)
        assert float(row["only CIFNet"]) == np.sum(b & ~a)
        p = stats.binomtest(int(np.sum(a & ~b)), int(np.sum(a ^ b))).pvalue
        assert float(row["p"]) == pytest.approx(p, rel=0.05)
    said = capsys.readouterr().out
    assert "final accuracy A_K (%), over seeds: Exact ridge " in said
    assert "Comparison" in (tmp_path / "out" / "report.html").read_text()


def test_the_bootstrap_draws_seeds_and_images():
    draw = np.random.default_rng(0)
    frames = []
    for share in (0.70, 0.75, 0.72):
        right = {"a": draw.random(300) < share, "b": draw.random(300) < 0.66}
        frames.append(pd.DataFrame(right))
    interval = bootstrap_interval(frames)
    difference = np.array([100.0 * f["a"] - 100.0 * f["b"] for f in frames])
    means = []
    for _ in range(4000):
        seeds = draw.integers(0, 3, 3)
        images = draw.integers(0, 300, 300)
        means.append(difference[seeds][:, images].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    assert interval == pytest.approx((low, high), abs=0.05 * (high - low))
    # Four seeds that answer alike are one measurement: they say no more than one of them.
    alike = bootstrap_interval([frames[0]] * 4)
    alone = bootstrap_interval([frames[0]])
    assert np.ptp(alike) == pytest.approx(np.ptp(alone), rel=0.05)
    other = pd.DataFrame({"a": [True] * 50, "b": [False] * 50})
    other.index += 300  # images that the first seed was not tested on
    assert bootstrap_interval([frames[0], other])[1] <= 100


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["CIFNet"], "takes two methods, but got 1"),
        (["CIFNet", "Exact rige"], "did you mean Exact ridge?"),
        (["CIFNet", "CIFNet"], "in common: run both"),
        (["CIFNet", "Exact ridge"], "seed and class order in common"),
    ],
)
def test_what_cannot_be_compared_is_said(names, said, tmp_path):
    results = results_of(tmp_path, {}, {"head": "RidgeHead", "seed": 2})
    with pytest.raises(UsageError, match=re.escape(said)):
        compare_methods(results, names)


def test_damaged_predictions_are_named(runs):
    folder, _ = runs
    run = folder / "CIFNetHead1" / "version_0"
    path = run / "predictions.parquet" / "task_0002.parquet"
    path.write_bytes(path.read_bytes()[:200])
    results = read_results([folder / "CIFNetHead1", folder / "RidgeHead1"])
    with pytest.raises(DataError, match="parquet is damaged"):
        compare_methods(results, ["CIFNet", "Exact ridge"])


def test_networks_are_compared_on_the_images_that_both_have(runs, tmp_path):
    folder, right = runs
    other = tmp_path / "vit" / "version_0"
    write_run(other, head="RidgeHead", tasks=2, backbone="timm:vit", final=80.0)
    answers = right["RidgeHead", 1].copy()
    answers[:7] = ~answers[:7]
    keep_predictions(other, answers, np.arange(IMAGES - 10))
    names = ["Exact ridge, timm:vit, 224 px"]
    names.append("Exact ridge, file:resnet18.pth (resnet18), 224 px")
    paths = [folder / "RidgeHead1", tmp_path / "vit"]
    (table,) = compare_methods(read_results(paths), names)
    assert list(table.texts)[1:3] == names
    row = table.values.set_index("quantity").iloc[-1]
    assert row["images"] == IMAGES - 10
    common = right["RidgeHead", 1][: IMAGES - 10]
    gained = np.mean(answers[: IMAGES - 10]) - np.mean(common)
    assert row["difference"] == pytest.approx(100 * gained)


def test_runs_that_no_seed_changes_are_one_measurement(tmp_path):
    """Two class orders, each with two seeds that change nothing."""
    accuracies = {("RidgeHead", 7): 93.0, ("NCMHead", 7): 77.0}
    accuracies |= {("RidgeHead", 8): 96.0, ("NCMHead", 8): 78.0}
    for (head, order), final in accuracies.items():
        for seed in (1, 2):
            folder = tmp_path / f"{head}{order}{seed}" / "version_0"
            data = {"class_order": order}
            write_run(folder, head=head, seed=seed, tasks=1, data=data, first=final)
            right = np.arange(IMAGES) < IMAGES * final / 100
            keep_predictions(folder, right, np.arange(IMAGES))
    results = read_results([tmp_path])
    (table,) = compare_methods(results, ["Exact ridge", "NCM"])
    rows = table.values.set_index("quantity")
    over_seeds = rows.loc["final accuracy A_K (%), over seeds"]
    assert over_seeds["distinct pairs"] == 2
    p = stats.ttest_1samp([93.0 - 77.0, 96.0 - 78.0], 0).pvalue
    assert float(over_seeds["p"]) == pytest.approx(p, rel=0.05)
    tested = [name for name in rows.index if "images, " in name]
    start = "final accuracy A_K (%), over images, seed 1, order"
    assert tested == [f"{start} 7", f"{start} 8"]
    row = accuracy_table(results).values.set_index("method").loc["Exact ridge"]
    name = "CIFAR-100, 10 cls/task: A_K (%)"
    assert row[f"{name} n"] == 2
    assert row[f"{name} sd"] == pytest.approx(np.std([93.0, 96.0], ddof=1))


def test_a_number_without_a_unit_has_three_digits(tmp_path):
    runs = [
        {"head": "RidgeHead", "about": {"metrics": {"macro_f1": 0.9148}}},
        {"head": "NCMHead", "about": {"metrics": {"macro_f1": 0.9108}}},
    ]
    (table,) = compare_methods(results_of(tmp_path, *runs), ["Exact ridge", "NCM"])
    row = table.texts.set_index("quantity").loc["macro f1, over seeds"]
    assert row.iloc[:3].tolist() == ["0.915", "0.911", "0.00400"]


def test_predictions_of_an_earlier_task_are_not_final_ones(runs):
    """A run that went on without keeping its predictions."""
    folder, _ = runs
    run = folder / "CIFNetHead1" / "version_0"
    (run / "predictions.parquet" / "task_0002.parquet").unlink()
    results = read_results([folder / "CIFNetHead1", folder / "RidgeHead1"])
    (table,) = compare_methods(results, ["CIFNet", "Exact ridge"])
    assert "No test images are compared" in table.notes[-1]
