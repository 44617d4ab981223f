"""Run folders as disks and people leave them: no traceback, and every doubt is said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.report.runs import find_folders, read_runs
from cifnet_pl.utilities.errors import UsageError
from tests.command_line import assert_ends, learned
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
    paths = map(str, sorted(readme.parent.iterdir()))
    code = main(["report", *paths, "--output", str(tmp_path / "out")])
    assert_ends(code, 0, f"left out: {readme} is a file", capsys)
    assert main(["report", str(readme), "--output", str(tmp_path / "none")]) == 1


def test_a_run_that_is_still_going_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "e" / "version_0", tasks=3)
    (run / "summary.json").unlink()
    runs, (sentence,) = read_runs([tmp_path])
    assert not runs
    assert sentence.endswith("has no summary.json: the run has not finished")


Change = Callable[[Path], object]


def cut(name: str) -> Change:
    """Leave only the beginning of a file, as a full disk does."""

    def change(run: Path) -> None:
        content = (run / name).read_bytes()
        (run / name).write_bytes(content[: len(content) // 2])

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
    (cut("tasks.csv"), "tasks.csv"),
    (garbage("tasks.csv"), "tasks.csv is damaged"),
    (garbage("config.yaml"), "config.yaml is damaged"),
    (changed(A_K="high"), "summary.json is damaged"),
    (changed(A_k=[]), "summary.json says 0 tasks"),
    (lambda run: (run / "summary.json").write_text("[1]"), "summary.json is damaged"),
    (lambda run: (run / "config.yaml").write_text("a: 1"), "config.yaml is damaged"),
    (lambda run: (run / "tasks.csv").write_text("task\n1\n"), "tasks.csv is damaged"),
    (lambda run: (run / "config.yaml").unlink(), "no config.yaml"),
    (lambda run: (run / "tasks.csv").unlink(), "no tasks.csv"),
]


def test_damaged_runs_are_named_and_the_others_shown(tmp_path, capsys):
    real = learned(tmp_path / "real", "--model.head", "RidgeHead")
    shutil.copytree(real, tmp_path / "runs" / "whole" / "version_0")
    for i, (change, _) in enumerate(DAMAGED):
        run = tmp_path / "runs" / f"damaged{i}" / "version_0"
        shutil.copytree(real, run)
        change(run)
    words = ["report", str(tmp_path / "runs"), "--output", str(tmp_path / "out")]
    assert_ends(main(words), 0, "1 run of 1 configuration", capsys)
    lines = (tmp_path / "out" / "report.md").read_text().splitlines()
    for i, (_, sentence) in enumerate(DAMAGED):
        named = [line for line in lines if f"damaged{i}/" in line and sentence in line]
        assert named, (i, sentence)
