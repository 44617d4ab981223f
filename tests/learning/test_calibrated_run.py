"""A run whose head is calibrated by its buffer."""

import json
from pathlib import Path

import pytest

from tests.command_line import BUFFER, assert_ends, checkpoint, fit, learned, rows


def test_a_run_calibrates_after_every_task(tmp_path: Path) -> None:
    head = ["--model.head", "RidgeHead", "--model.calibrate", "true"]
    run = learned(tmp_path, *BUFFER, *head)
    assert float(rows(run / "tasks.csv")[-1]["ece"]) < 5
    assert 0 < float(checkpoint(run)["state_dict"]["head.temperature"]) < 1
    stored = json.loads((run / "summary.json").read_text())["buffer_elements"] / 192
    assert 290 < stored <= 300  # whole groups


def test_what_cannot_be_calibrated_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*BUFFER, "--model.head", "NCMHead", "--model.calibrate", "true"]
    words = "NCMHead has no leave-one-out scores"
    assert_ends(fit(tmp_path, *options), 2, words, capsys)
