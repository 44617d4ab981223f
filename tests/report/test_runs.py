"""Run folders as disks and people leave them: no traceback, every doubt said, the page and its
figures legible.
"""

import csv
import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from cifnet_pl.__main__ import main
from cifnet_pl.report import read_study
from cifnet_pl.report.figures import all_pictures
from cifnet_pl.report.page import to_html
from cifnet_pl.report.runs import find_folders, is_complete, read_runs
from cifnet_pl.report.table_formats import to_latex
from cifnet_pl.report.tables import all_tables
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import assert_ends, learned
from tests.report.labels import assert_labels_are_readable
from tests.report.synthetic import write_run


def test_folders_are_found_at_any_depth_in_natural_order(tmp_path: Path) -> None:
    for version in (10, 9):
        write_run(tmp_path / "logs" / "e" / f"version_{version}", tasks=2)
    (tmp_path / "logs" / "other").mkdir()
    result = find_folders([tmp_path, tmp_path / "logs" / "e"])
    assert [folder.name for folder in result] == ["version_9", "version_10"]
    with pytest.raises(UsageError, match="no folder"):
        find_folders([tmp_path / "none"])


def test_a_file_among_the_folders_is_passed_over_with_a_note(tmp_path, capsys):
    """As of ``report lightning_logs/*``, where the runs lie beside a README."""
    write_run(tmp_path / "logs" / "e" / "version_0", tasks=2)
    readme = tmp_path / "logs" / "README.md"
    readme.write_text("about the runs")
    arguments = [
        "report",
        *map(str, sorted(readme.parent.iterdir())),
        "--output",
        str(tmp_path / "out"),
    ]
    assert_ends(main(arguments), 0, f"left out: {readme} is a file", capsys)
    assert main(["report", str(readme), "--output", str(tmp_path / "none")]) == 1


Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run as the product leaves it: the exact head on digits, with its predictions."""
    return learned(
        tmp_path_factory.mktemp("real"),
        "--model.head",
        "RidgeHead",
        "--predictions.every_task",
        "true",
        "--seed_everything",
        "1",
        "--data.class_order",
        "1",
    )


def cut(name: str, share: float = 0.5) -> Change:
    """Leave only the beginning of a file, as a full disk does."""

    def change(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: int(share * len(content))])

    return change


def garbage(name: str) -> Change:
    """Overwrite the middle of a file."""

    def change(run: Path) -> None:
        content = bytearray((run / name).read_bytes())
        middle = len(content) // 2
        content[middle : middle + 400] = b"\xff\x00\x9c" * 100
        (run / name).write_bytes(bytes(content))

    return change


def changed(**values: Any) -> Change:
    """Set entries of the summary."""

    def change(run: Path) -> None:
        path = run / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **values}))

    return change


DAMAGED: list[tuple[Change, str]] = [
    (cut("summary.json"), "summary.json is damaged"),
    (garbage("summary.json"), "summary.json is damaged"),
    (cut("tasks.csv"), "rows, but summary.json says 5 tasks"),
    (garbage("tasks.csv"), "tasks.csv is damaged"),
    (cut("config.yaml", 0.02), "config.yaml"),
    (garbage("config.yaml"), "config.yaml is damaged"),
    (
        lambda run: (run / "activations.csv").write_text("a,b\n1,high\n"),
        "activations.csv is damaged",
    ),
    (changed(A_K="high"), "summary.json is damaged: A_K should be a valid number"),
    (changed(A_k=[]), "summary.json is damaged: A_k"),
    (changed(ece=math.nan), "summary.json is damaged: ece should be a finite number"),
    (changed(n_classes=9), "tasks.csv ends with 10 classes, summary.json with 9"),
    (changed(head=None), "summary.json is damaged: head should be a valid string"),
    (lambda run: (run / "summary.json").write_text("[1]"), "summary.json is damaged"),
    (
        lambda run: (run / "tasks.csv").write_text("task\n1\n2\n3\n4\n5\n"),
        "tasks.csv is damaged",
    ),
    (lambda run: (run / "summary.json").unlink(), "no summary.json"),
    (lambda run: (run / "config.yaml").unlink(), "no config.yaml"),
    (lambda run: (run / "tasks.csv").unlink(), "no tasks.csv"),
]
PREDICTIONS = "predictions.parquet/task_0005.parquet"
KEPT: list[tuple[Change, str]] = [
    (
        cut(PREDICTIONS),
        "predictions.parquet is damaged",
    ),
]
"""Runs that are shown but for what is damaged."""


def test_damaged_runs_are_named_and_the_others_shown(real, tmp_path, capsys):
    shutil.copytree(real, tmp_path / "runs" / "whole" / "version_0")
    for i, (change, _) in enumerate([*DAMAGED, *KEPT]):
        run = tmp_path / "runs" / f"damaged{i}" / "version_0"
        shutil.copytree(real, run)
        # A seed of its own, else it replaces the whole run of the same seed.
        if i >= len(DAMAGED):
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["seed_everything"] = config["data"]["class_order"] = 100 + i
            (run / "config.yaml").write_text(yaml.safe_dump(config))
        change(run)
        assert is_complete(run) == (i >= len(DAMAGED))
    assert (
        main(["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]) == 0
    )
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    page = (tmp_path / "out" / "report.md").read_text()
    for i, (_, sentence) in enumerate([*DAMAGED, *KEPT]):
        assert any(
            f"damaged{i}/" in line and sentence in line for line in page.splitlines()
        ), (
            i,
            sentence,
        )
    (row,) = csv.DictReader(
        (tmp_path / "out" / "tables" / "results_digits_2_cls_task.csv").open(newline="")
    )
    assert int(row["seeds"]) == 1 + len(KEPT)
    summary = json.loads((real / "summary.json").read_text())
    assert float(row["A_K (%)"]) == pytest.approx(summary["A_K"])
    assert float(row["ECE (%)"]) == pytest.approx(summary["ece"])
    assert not {"nan", "inf"} & {cell for cell in row.values() if cell}


VALUES: list[Any] = [
    None,
    "x",
    [],
    {},
    [None],
    {"a": "b"},
    math.nan,
    -1,
    0,
    True,
    10**400,
    "\x1b[31m<b>$",
]


def test_any_entry_may_be_anything(real: Path, tmp_path: Path) -> None:
    """Each entry of a run's summary and configuration as something else: it is left out with a
    sentence, or shown.
    """
    shutil.copytree(real, tmp_path / "whole" / "version_0")
    shutil.copytree(real, tmp_path / "other" / "version_0")
    write_run(tmp_path / "more" / "version_0", seed=3, tasks=2)
    run = tmp_path / "other" / "version_0"
    summary = json.loads((run / "summary.json").read_text())
    config = yaml.safe_load((run / "config.yaml").read_text())
    for i, (key, section) in enumerate(
        itertools.product(range(0, len(summary), 2), (summary, config))
    ):
        if section is summary:
            inner = section
        else:
            inner = [config, config["data"], config["model"]][key % 3]
        name = list(inner)[key % len(inner)]
        value = VALUES[i % len(VALUES)]
        old = inner[name]
        inner[name] = value
        (run / "summary.json").write_text(json.dumps(summary))
        (run / "config.yaml").write_text(yaml.safe_dump(config))
        runs, left_out = read_runs([tmp_path])
        assert len(runs) + sum("other" in sentence for sentence in left_out) == 3
        for table in (
            table
            for section in all_tables(read_study([tmp_path])).values()
            for table in section
        ):
            assert "\x1b" not in to_html(table) + to_latex(table), (name, value)
        inner[name] = old


NAMES = [
    "<script>alert('x')</script> & co",
    "two $x_{ and $ formulas",
    "_underscore",
    "long " * 40,
    "x" * 200,
]


def test_many_methods_long_streams_and_odd_names_stay_legible(tmp_path: Path) -> None:
    """30 methods over two seeds, one of them none; 200 tasks; names with markup, and with 200
    characters.
    """
    heads = ("CIFNetHead", "RidgeHead", "ACILHead", "NCMHead", "KNNHead")
    for i, seed in itertools.product(range(30), (1, 2)):
        run = write_run(
            tmp_path / f"many{i}-{seed}" / "version_0",
            head=heads[i % 5],
            seed=seed,
            tasks=5,
            classes=2,
            final=40 + 1.3 * i,
            minutes=1 + i / 3,
            kwh=0.02 + i / 200,
            about={"title": NAMES[i] if i < len(NAMES) else f"method {i}"},
        )
        if i == 6:
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["seed_everything"] = config["data"]["class_order"] = None
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    for head in heads[:3]:
        write_run(
            tmp_path / f"long-{head}" / "version_0",
            head=head,
            tasks=200,
            classes=1,
            activations=True,
        )
    write_run(
        tmp_path / "long-0" / "version_0",
        head=heads[0],
        tasks=200,
        classes=1,
        activations=True,
        buffer=None,
    )
    study = read_study([tmp_path])
    for table in (table for section in all_tables(study).values() for table in section):
        assert "<script>" not in to_html(table)
    pictures = [
        picture for section in all_pictures(study).values() for picture in section
    ]
    lines = next(p for p in pictures if p.name == "trajectory_cifar_100_2_cls_task")
    assert [len(axes.containers) for axes in lines.figure.axes] == [8, 8, 7, 7]
    shown = [
        text.get_text()
        for axes in lines.figure.axes
        for text in axes.get_legend().get_texts()
    ]
    assert len(shown) == len(set(shown)) == 30
    assert any("_underscore" in text for text in shown)
    for picture in pictures:
        assert_labels_are_readable(picture)
