"""Coverage and size of sets of answers, class by class, in reports."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.learning.run_record import to_csv
from tests.report.synthetic import write_run

HEADER = ["class", "test_images", "covered", "answers"]
COVERED, SIZE = "Exact ridge: covered (%)", "Exact ridge: classes"


def calibrated(folder: Path, seed: int, rows: list[list[object]]) -> None:
    run = write_run(folder / f"exact{seed}" / "version_0", seed=seed, head="RidgeHead", tasks=3, classes=2)
    (run / "answer_sets.csv").write_text(to_csv(HEADER, rows))


def test_the_least_covered_class_comes_first_and_seeds_are_averaged(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "other" / "version_0", tasks=3, classes=2)
    calibrated(tmp_path / "runs", 1, [["cat", 5, 100, 1.5], ["<b>dog & co</b>", 5, 80, 3], ["eel", 0, None, None]])
    calibrated(tmp_path / "runs", 2, [["<b>dog & co</b>", 5, 90, 4], ["cat", 5, 95, 1], ["eel", 0, None, None]])
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out" / "tables").glob("answer_sets_*.csv")
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == ["<b>dog & co</b>", "cat"]
    assert [float(row[COVERED]) for row in rows] == pytest.approx([85, 97.5])
    assert [float(row[SIZE]) for row in rows] == pytest.approx([3.5, 1.25])
    assert {row[f"{COVERED} n"] for row in rows} == {"2"}
    assert not any("CIFNet" in name for name in rows[0])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Sets of answers" in page
    assert "&lt;b&gt;dog &amp; co&lt;/b&gt;" in page
    assert "<b>dog" not in page


def test_without_calibrated_runs_there_is_no_such_table(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "exact" / "version_0", head="RidgeHead", tasks=3, classes=2)
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    assert not list((tmp_path / "out" / "tables").glob("answer_sets_*"))
    assert "Sets of answers" not in (tmp_path / "out" / "report.html").read_text()


def test_a_damaged_table_leaves_the_run_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path / "runs", 1, [["cat", 5, 100, 1]])
    calibrated(tmp_path / "runs", 2, [["cat", 5, "many", 1]])
    assert main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    assert "answer_sets.csv is damaged" in capsys.readouterr().out
