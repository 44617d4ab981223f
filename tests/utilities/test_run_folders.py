"""Where a run learns and which one is evaluated."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.utilities.run_folders import (
    CHECKPOINT,
    experiment_folder,
    experiment_of,
    place_evaluation,
    place_fit,
    remove_unbegun,
    versions,
)


def make_run(folder: Path, checkpoint: bool = True) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    if checkpoint:
        (folder / CHECKPOINT).parent.mkdir()
        (folder / CHECKPOINT).write_text("")
    return folder


def test_versions_are_numbers_in_their_order(tmp_path: Path):
    for name in ("version_10", "version_9", "version_\u00b2", "version_x", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in versions(tmp_path)] == ["version_9", "version_10"]
    assert versions(tmp_path / "absent") == []


def test_a_run_learns_in_a_new_folder_or_goes_on(tmp_path: Path):
    assert place_fit(tmp_path, None).folder.name == "version_0"
    assert "starting with task 1" in str(place_fit(tmp_path, "last").news)
    first = make_run(tmp_path / "version_0")
    begun = make_run(tmp_path / "version_3", checkpoint=False)
    (tmp_path / "version_4").mkdir()  # refused before it began
    assert place_fit(tmp_path, None).folder.name == "version_5"
    again = place_fit(tmp_path, "last")
    assert (again.folder, again.checkpoint) == (begun, None)
    fresh = place_fit(tmp_path, str(first / CHECKPOINT))
    assert (fresh.folder.name, fresh.checkpoint) == ("version_5", first / CHECKPOINT)
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        place_fit(tmp_path, "absent")


def test_the_run_of_a_configuration_is_evaluated(tmp_path: Path):
    with pytest.raises(CheckpointError, match="fit one first"):
        place_evaluation(tmp_path, "last", [])
    first, second = make_run(tmp_path / "version_0"), make_run(tmp_path / "version_1")
    assert place_evaluation(tmp_path, "last", []).folder == second
    assert place_evaluation(tmp_path, "last", [first / "config.yaml"]).folder == first
    assert place_evaluation(tmp_path, str(first / CHECKPOINT), []).folder == first
    with pytest.raises(UsageError, match="nothing is learned yet"):
        place_evaluation(tmp_path, None, [])


def test_only_folders_of_refused_runs_are_removed(tmp_path: Path):
    run, refused = make_run(tmp_path / "version_0"), tmp_path / "version_1"
    refused.mkdir()
    (refused / "hparams.yaml").write_text("")
    for folder in (run, refused, tmp_path / "absent"):
        remove_unbegun(folder)
    assert run.is_dir()
    assert not refused.exists()


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


def test_names_and_places_that_cannot_be_used(tmp_path: Path):
    with pytest.raises(UsageError, match="not a plain name"):
        experiment_folder("logs", "../other")
    (tmp_path / "file").write_text("")
    with pytest.raises(CifnetError, match="choose another place with --logs"):
        experiment_of(tmp_path / "file" / "experiment" / "version_0").__enter__()
