"""Two methods over the same seeds and test images, recomputed by hand from the files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from cifnet_pl.__main__ import main
from cifnet_pl.report import read_study
from cifnet_pl.report.comparison import compare_methods
from cifnet_pl.report.runs import correct_predictions, paired_predictions
from cifnet_pl.utilities.errors import DataError, UsageError
from tests.command_line import assert_ends
from tests.command_line import rows as rows_of
from tests.report.synthetic import write_run

IMAGES = 400


def keep_predictions(
    run: Path, right: np.ndarray, order: np.ndarray | None = None
) -> None:
    """Write predictions of two tasks; in the last, those of the images ``right`` are correct."""
    order = np.arange(len(right)) if order is None else order
    with pq.ParquetWriter(
        run / "predictions.parquet",
        pa.schema(
            [
                ("task", pa.int32()),
                ("image", pa.string()),
                ("label", pa.string()),
                ("top_1", pa.string()),
            ]
        ),
    ) as writer:
        for task, hits in ((1, np.zeros(len(right), dtype=bool)), (2, right)):
            label = [str(i % 10) for i in order]
            first = [
                a if hit else "x" for a, hit in zip(label, hits[order], strict=True)
            ]
            image = [str(i) for i in order]
            writer.write_table(
                pa.table(
                    {
                        "task": pa.array([task] * len(order), pa.int32()),
                        "image": image,
                        "label": label,
                        "top_1": first,
                    }
                )
            )


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, dict[tuple[str, int], np.ndarray]]:
    draw = np.random.default_rng(0)
    right = {}
    for head, share in (("CIFNetHead", 0.60), ("RidgeHead", 0.72)):
        for seed in (1, 2, 3):
            folder = tmp_path / f"{head}{seed}" / "version_0"
            answers = draw.random(IMAGES) < share
            right[head, seed] = answers
            write_run(folder, head=head, seed=seed, tasks=2, final=100 * answers.mean())
            keep_predictions(folder, answers, draw.permutation(IMAGES))
    return tmp_path, right


def test_differences_are_of_the_same_seeds_and_images(runs, tmp_path, capsys):
    folder, right = runs
    output = tmp_path / "out"
    arguments = [
        "report",
        str(folder),
        "--output",
        str(output),
        "--compare",
        "Exact ridge",
        "CIFNet",
    ]
    assert main(arguments) == 0
    (path,) = (output / "tables").glob("comparison_*.csv")
    rows = {row["quantity"]: row for row in rows_of(path)}
    pairs = [
        (right["RidgeHead", seed], right["CIFNetHead", seed]) for seed in (1, 2, 3)
    ]
    differences = np.array([100 * (a.mean() - b.mean()) for a, b in pairs])
    over_seeds = rows["final accuracy A_K, over seeds"]
    assert float(over_seeds["difference (points)"]) == pytest.approx(differences.mean())
    wanted = stats.ttest_1samp(differences, 0).confidence_interval()
    assert (
        float(over_seeds["95 % from"]),
        float(over_seeds["95 % to"]),
    ) == pytest.approx((wanted.low, wanted.high))
    both = rows["final accuracy A_K, over seeds and images"]
    assert float(both["difference (points)"]) == pytest.approx(differences.mean())
    assert float(both["95 % from"]) < differences.mean() < float(both["95 % to"])
    for seed, (a, b) in zip((1, 2, 3), pairs, strict=True):
        row = rows[f"final accuracy A_K, over images, seed {seed}"]
        assert float(row["only Exact ridge correct"]) == np.sum(a & ~b)
        assert float(row["only CIFNet correct"]) == np.sum(b & ~a)
        half = 1.96 * np.std(100.0 * (a.astype(float) - b)) / np.sqrt(IMAGES)
        assert float(row["95 % to"]) - float(row["95 % from"]) == pytest.approx(
            2 * half, rel=0.06
        )
        p = stats.binomtest(int(np.sum(a & ~b)), int(np.sum(a ^ b))).pvalue
        assert row["p"] == ("< 0.001" if p < 0.001 else f"{p:.3f}")
    assert (
        f"final accuracy A_K, over seeds: Exact ridge {float(over_seeds['Exact ridge']):.2f}; "
        in capsys.readouterr().out
    )
    assert "Comparison" in (output / "report.html").read_text()


def test_images_are_matched_by_name(tmp_path: Path) -> None:
    a = np.array([True, False, True, True])
    b = np.array([True, True, False, True])
    for name, answers, order in (("a", a, [3, 1, 0, 2]), ("b", b, [0, 2, 1])):
        (tmp_path / name).mkdir()
        keep_predictions(tmp_path / name, answers, np.array(order))
    both = paired_predictions(
        *(tmp_path / name / "predictions.parquet" for name in "ab")
    ).sort_index()
    assert (both["a"].tolist(), both["b"].tolist()) == (
        [True, False, True],
        [True, True, False],
    )
    assert both.index.tolist() == [("0", "0"), ("1", "1"), ("2", "2")]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["CIFNet"], "takes two methods, but got 1"),
        (["CIFNet", "Exact rige"], "did you mean Exact ridge?"),
        (["CIFNet", "CIFNet"], "were run on different data"),
        (["CIFNet", "Nearest"], "unknown method for --compare"),
    ],
)
def test_what_cannot_be_compared_is_said(runs, names, said, capsys, tmp_path):
    assert_ends(
        main(
            [
                "report",
                str(runs[0]),
                "--output",
                str(tmp_path / "o"),
                "--compare",
                *names,
            ]
        ),
        2,
        said,
        capsys,
    )


def test_without_a_common_seed_or_with_a_damaged_file(
    runs: tuple[Path, dict[tuple[str, int], np.ndarray]],
) -> None:
    folder, _ = runs
    study = read_study([folder / "CIFNetHead1", folder / "RidgeHead2"])
    with pytest.raises(UsageError, match="no common seed"):
        compare_methods(study, ["CIFNet", "Exact ridge"])
    path = folder / "CIFNetHead1" / "version_0" / "predictions.parquet"
    path.write_bytes(path.read_bytes()[:200])
    correct_predictions.cache_clear()
    with pytest.raises(DataError, match="is damaged"):
        correct_predictions(path)


def test_the_bootstrap_is_that_of_images_drawn_one_by_one(runs):
    """Seeds are drawn, and images, the same ones for all seeds."""
    folder, right = runs
    (table,) = compare_methods(read_study([folder]), ["Exact ridge", "CIFNet"])
    (row,) = (row for row in table.rows if row[0].endswith("over seeds and images"))
    difference = np.array(
        [
            100.0 * right["RidgeHead", s] - 100.0 * right["CIFNetHead", s]
            for s in (1, 2, 3)
        ]
    )
    draw = np.random.default_rng(5)
    means = []
    for _ in range(4000):
        seeds = draw.integers(0, 3, 3)
        images = draw.integers(0, IMAGES, IMAGES)
        means.append(difference[seeds][:, images].mean())
    low, high = np.quantile(means, [0.025, 0.975])
    assert row[3].mean == pytest.approx(difference.mean())
    assert (row[4].mean, row[5].mean) == pytest.approx(
        (low, high), abs=0.04 * (high - low)
    )


def test_networks_are_compared_on_the_same_images(runs, tmp_path):
    folder, right = runs
    other = write_run(
        tmp_path / "vit" / "version_0",
        head="RidgeHead",
        tasks=2,
        backbone="timm:vit",
        final=80.0,
    )
    answers = right["RidgeHead", 1].copy()
    answers[:7] = ~answers[:7]
    keep_predictions(other, answers, np.arange(IMAGES - 10))
    names = [
        "Exact ridge, timm:vit, 224 px",
        "Exact ridge, file:resnet18.pth (resnet18), 224 px",
    ]
    (table,) = compare_methods(read_study([folder, tmp_path / "vit"]), names)
    assert [column.header for column in table.columns[1:3]] == names
    assert table.title.endswith(": CIFAR-100, 10 cls/task")
    (images,) = (row[-4:-1] for row in table.rows if row[0].endswith("seed 1"))
    assert (images[0].mean, images[1].mean + images[2].mean) == (IMAGES - 10, 7)
    assert table.notes[1:] == [
        f"Seed 1: {IMAGES - 10} test images are common to both, of {IMAGES - 10} and {IMAGES}."
    ]
