"""Run folders as disks and people leave them: no traceback, and every doubt is said."""

import shutil

import pytest

from cifnet_pl.report.runs import find_folders, read_runs
from cifnet_pl.utilities.errors import UsageError
from tests.report.synthetic import write_run


def test_folders_are_found_at_any_depth_in_natural_order(tmp_path):
    for version in (10, 9):
        write_run(tmp_path / "logs" / "e" / f"version_{version}", tasks=2)
    (tmp_path / "logs" / "other").mkdir()
    result = find_folders([tmp_path, tmp_path / "logs" / "e"])
    assert [folder.name for folder in result] == ["version_9", "version_10"]
    with pytest.raises(UsageError, match="no folder"):
        find_folders([tmp_path / "none"])


DAMAGED = [
    ("summary.json", '{"head": "NCM', " is damaged"),
    ("summary.json", "{}", " is damaged"),
    ("summary.json", None, " has no summary.json: the run has not finished"),
    ("tasks.csv", "task\n1\n", " is damaged"),
    ("config.yaml", "a: 1", " is damaged"),
    ("config.yaml", None, " is damaged"),
]
"""A file of a run, what a full or failing disk leaves in it, and the sentence."""


def test_damaged_runs_are_named_and_the_others_read(tmp_path):
    whole = write_run(tmp_path / "whole" / "version_0", tasks=2)
    for number, (name, content, _) in enumerate(DAMAGED):
        run = tmp_path / f"damaged{number}"
        shutil.copytree(whole, run)
        (run / name).unlink()
        if content is not None:
            (run / name).write_text(content)
    (run,), sentences = read_runs([tmp_path])
    assert run.folder == whole
    assert len(sentences) == len(DAMAGED)
    for number, (_, _, part) in enumerate(DAMAGED):
        start = f"{tmp_path / f'damaged{number}'}{part}"
        assert any(sentence.startswith(start) for sentence in sentences), start
