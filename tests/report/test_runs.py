import json
from pathlib import Path

import pytest

from cifnet_pl.__main__ import main
from cifnet_pl.report.runs import find_folders, is_complete, read_run, read_runs
from cifnet_pl.utilities.errors import UsageError
from tests.report.synthetic import write_run


def test_a_whole_run_is_read_as_written(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "e" / "version_0", seed=4, tasks=3, classes=5, activations=True)
    run = read_run(folder)
    assert run.seed == 4
    assert run.classes_seen == (5, 10, 15)
    assert len(run.summary["A_k"]) == 3
    assert run.activations is not None
    assert run.activations.shape == (3, 3)
    assert run.activations[0, 0] == 0.9


def test_folders_are_found_at_any_depth_in_natural_order(tmp_path: Path) -> None:
    for version in (10, 9):
        write_run(tmp_path / "logs" / "e" / f"version_{version}", tasks=2)
    (tmp_path / "logs" / "other").mkdir()
    result = find_folders([tmp_path, tmp_path / "logs" / "e"])
    assert [folder.name for folder in result] == ["version_9", "version_10"]
    with pytest.raises(UsageError, match="no folder"):
        find_folders([tmp_path / "none"])


def damage(folder: Path, how: str) -> None:
    if how == "no summary":
        (folder / "summary.json").unlink()
    elif how == "truncated summary":
        text = (folder / "summary.json").read_text()
        (folder / "summary.json").write_text(text[: len(text) // 2])
    elif how == "other summary":
        (folder / "summary.json").write_text('{"accuracy": 1}')
    elif how == "summary of a list":
        (folder / "summary.json").write_text("[1]")
    elif how == "fewer rows":
        lines = (folder / "tasks.csv").read_text().splitlines(keepends=True)
        (folder / "tasks.csv").write_text("".join(lines[:-1]))
    elif how == "no rows":
        (folder / "tasks.csv").unlink()
    elif how == "no config":
        (folder / "config.yaml").unlink()
    elif how == "damaged config":
        (folder / "config.yaml").write_text("data: [")
    elif how == "other tables":
        (folder / "tasks.csv").write_text("task\n1\n2\n3\n")


HOW = [
    ("no summary", "no summary.json"),
    ("truncated summary", "is damaged"),
    ("other summary", "is damaged: A_k"),
    ("summary of a list", "is damaged"),
    ("fewer rows", "tasks.csv has 2 rows, but summary.json says 3"),
    ("no rows", "no tasks.csv"),
    ("no config", "no config.yaml"),
    ("damaged config", "is damaged"),
    ("other tables", "tasks.csv is damaged"),
]


@pytest.mark.parametrize(("how", "reason"), HOW)
def test_half_written_runs_are_named_and_left_out(tmp_path: Path, how: str, reason: str) -> None:
    good = write_run(tmp_path / "good" / "version_0", tasks=3)
    bad = write_run(tmp_path / "bad" / "version_0", tasks=3)
    damage(bad, how)
    runs, left_out = read_runs([tmp_path])
    assert [run.folder for run in runs] == [good]
    (sentence,) = left_out
    assert str(bad) in sentence
    assert reason in sentence
    assert is_complete(good)
    assert not is_complete(bad)


def test_a_run_under_way_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "version_0" / "checkpoints").mkdir(parents=True)
    runs, left_out = read_runs([tmp_path])
    assert runs == []
    assert len(left_out) == 1


def test_unmeasured_values_are_allowed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "version_0", tasks=2, kwh=None)
    assert json.loads((folder / "summary.json").read_text())["energy_kwh"] is None
    assert read_run(folder).summary["A_K_per_kwh"] is None


def test_a_file_among_the_folders_is_passed_over_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of ``report lightning_logs/*``, where the runs lie beside a README."""
    write_run(tmp_path / "logs" / "e" / "version_0", tasks=2)
    readme = tmp_path / "logs" / "README.md"
    readme.write_text("about the runs")
    arguments = ["report", *map(str, sorted(readme.parent.iterdir())), "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert f"left out: {readme} is a file" in capsys.readouterr().out
    assert main(["report", str(readme), "--output", str(tmp_path / "none")]) == 1
