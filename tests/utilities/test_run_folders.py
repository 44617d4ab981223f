"""Where a run learns and which one is evaluated."""

from contextlib import suppress
from pathlib import Path

from cifnet_pl.utilities.run_folders import experiment_of, versions


def test_versions_are_numbers_in_their_order(tmp_path: Path):
    for name in ("version_10", "version_9", "version_\u00b2", "version_x", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in versions(tmp_path)] == ["version_9", "version_10"]
    assert versions(tmp_path / "absent") == []


def test_folders_above_a_run_stay_if_they_hold_something_or_were_there(tmp_path: Path):
    (tmp_path / "old").mkdir()
    for logs, files, kept in (("new", [], False), ("new", ["file"], True), ("old", [], True)):
        folder = tmp_path / logs / "experiment" / "version_0"
        with suppress(ZeroDivisionError), experiment_of(folder):
            assert folder.parent.is_dir()
            for name in files:
                (folder.parent / name).touch()
            raise ZeroDivisionError
        assert (tmp_path / logs).exists() == kept
        assert folder.parent.exists() == bool(files)
