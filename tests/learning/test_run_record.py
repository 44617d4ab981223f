"""A run's record: tables and summary, with a gap where something was not measured, and where its
numbers come from.
"""

import csv
import io
import json
import subprocess

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images.reader import usable_cores
from cifnet_pl.learning.callbacks.task_metrics import (
    fingerprint,
    machine,
    package_commit,
)
from cifnet_pl.learning.run_record import PrequentialRow, RunRecord, TaskRow
from cifnet_pl.utilities.files import to_csv
from tests.command_line import make_images, rows


def record_of(accuracies, energy):
    """Tasks of two classes."""
    record = RunRecord(energy={"cpu": 1.5e-4, "ram": 0.5e-4, "co2_kg": 1e-5})
    for task, accuracy in enumerate(accuracies, 1):
        record.matrix.append([accuracy] * task)
        kwh = {"energy_kwh": energy, "eval_energy_kwh": energy}
        seen = {"task": task, "classes_seen": 2 * task, "A_k": accuracy}
        record.rows.append(TaskRow(train_seconds=2.0, average=accuracy, **seen, **kwh))
    return record


def test_what_was_not_measured_is_null_or_empty(tmp_path):
    record = record_of([None, None], None)
    record.class_counts = [torch.zeros(2, 2), torch.zeros(2, 4)]
    record.write_tables(tmp_path, [["a", "b"], ["c", "d"]])
    written = record.summary()
    nothing = "A_K A_bar forgetting bwt max_drop ece nll energy_kwh energy_source energy_cpu_kwh"
    nothing += " energy_gpu_kwh energy_ram_kwh co2_kg eval_energy_kwh A_K_per_kwh"
    assert {written[key] for key in nothing.split()} == {None}
    assert written["A_k"] == [None, None]
    for line in rows(tmp_path / "tasks.csv"):
        cells = {name: cell for name, cell in line.items() if cell}
        assert cells.keys() == {"task", "classes_seen", "train_seconds"}
    matrix = (tmp_path / "accuracy_matrix.csv").read_text().split()
    assert matrix == ["task,task_1,task_2", "1,,", "2,,"]


def test_round_trip_through_a_checkpoint():
    record = record_of([90.0, 80.0], 1e-4)
    for one in (record, record_of([None, None], None), RunRecord()):
        state = json.loads(json.dumps(one.state_dict(), allow_nan=False))
        assert RunRecord.from_state_dict(state) == one
    state = record.state_dict()
    state["matrix"][0][0] = 0.0
    assert record.matrix[0][0] == 90.0


def test_forward_transfer_is_the_gain_over_a_guess():
    seen = [PrequentialRow(2, 50, 40, 4), PrequentialRow(3, 20, 5, 5)]
    gain = RunRecord(prequential=seen).forward_transfer()
    assert gain == pytest.approx(((80 - 25) + (25 - 20)) / 2)


ODD = st.sampled_from(["\r", "\n", "\r\n", "a,b", '"', "'", " x "])
CELLS = st.none() | st.text(st.characters(exclude_characters="\0")) | ODD


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=5))
def test_csv_gives_back_every_cell(cells):
    text = to_csv(["a", "b", "c"], cells)
    lines = csv.reader(io.StringIO(text, newline=""))
    result = [list(line) for line in lines]
    assert result == [["a", "b", "c"], *([cell or "" for cell in row] for row in cells)]


def test_a_fingerprint_is_of_the_data_and_its_split(tmp_path):
    images = make_images(tmp_path / "images", ["ant", "bee"])
    copy = make_images(tmp_path / "copy", ["ant", "bee"])

    def of(root, **options):
        return fingerprint(build_source("folder", SourceOptions(root, **options)))  # type: ignore[arg-type]

    first = of(images)
    assert first == of(copy)
    assert len(first) == 16
    assert first != of(images, split_seed=1)
    path = images / "ant" / "3.png"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # the same size
    assert first != of(images)
    path.unlink()
    assert first != of(images)
    path.write_bytes(b"no image at all")
    assert len(of(images)) == 16


def test_the_machine_is_named(tmp_path):
    (tmp_path / "info").write_text("processor : 0\nmodel name\t: Some  CPU @ 2.1GHz\n")
    assert machine(torch.device("cpu"), tmp_path / "nothing")["processor"]
    result = machine(torch.device("cpu"), tmp_path / "info")
    assert result["gpu"] is None
    assert result["cores"] == usable_cores()
    assert result["machine"].startswith(f"Some CPU @ 2.1GHz, {usable_cores()} core")


def test_the_commit_is_the_packages_own(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")

    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.check_output(command, text=True)

    def found():
        package_commit.cache_clear()
        return package_commit(package)

    assert found() is None  # no repository
    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "first")
    assert found() is None  # installed below someone else's repository
    git("add", ".")
    git("commit", "-qm", "second")
    commit = git("rev-parse", "HEAD").strip()
    assert found() == commit
    (package / "__init__.py").write_text("1")
    assert found() == f"{commit}+changes"
