"""A run's record: tables and summary, with a gap where something was not measured, and where its
numbers come from.
"""

import csv
import io
import json
import subprocess
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images.reader import usable_cores
from cifnet_pl.learning.run_description import (
    fingerprint,
    machine,
    package_commit,
    processor,
)
from cifnet_pl.learning.run_record import RunRecord, TaskRow
from cifnet_pl.utilities.files import to_csv
from tests.command_line import make_images


def record_of(accuracies: list[float | None], energy: float | None) -> RunRecord:
    """Two tasks of two classes."""
    record = RunRecord(energy={"cpu": 1.5e-4, "ram": 0.5e-4, "co2_kg": 1e-5})
    for task, accuracy in enumerate(accuracies, 1):
        record.matrix.append([accuracy] * task)
        row = TaskRow(
            task=task,
            classes_seen=2 * task,
            A_k=accuracy,
            average=accuracy,
            energy_kwh=energy,
            eval_energy_kwh=energy,
            train_seconds=2.0,
        )
        record.rows.append(row)
    return record


@pytest.fixture
def record() -> RunRecord:
    return record_of([90.0, 80.0], 1e-4)


def unmeasured() -> RunRecord:
    return record_of([None, None], None)


def read(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_what_was_not_measured_is_null_or_empty(tmp_path: Path) -> None:
    record = unmeasured()
    record.class_counts = [torch.zeros(2, 2), torch.zeros(2, 4)]
    record.write_tables(tmp_path, [["a", "b"], ["c", "d"]])
    written = record.summary()
    nothing = "A_K A_bar forgetting bwt max_drop ece nll energy_kwh energy_source energy_cpu_kwh"
    nothing += " energy_gpu_kwh energy_ram_kwh co2_kg eval_energy_kwh A_K_per_kwh"
    assert {written[key] for key in nothing.split()} == {None}
    assert written["A_k"] == [None, None]
    table = read(tmp_path / "tasks.csv")
    for name in [
        "A_k",
        "average",
        "ece",
        "nll",
        "energy_kwh",
        "energy_source",
        "eval_energy_kwh",
    ]:
        assert [line[table[0].index(name)] for line in table[1:]] == ["", ""]
    assert read(tmp_path / "accuracy_matrix.csv")[1:] == [["1", "", ""], ["2", "", ""]]
    assert "nan" not in (tmp_path / "tasks.csv").read_text().lower()


def test_a_sum_with_a_gap_is_a_gap(record: RunRecord) -> None:
    record.rows[0].energy_kwh = None
    assert record.summary()["energy_kwh"] is None
    assert record.summary()["energy_cpu_kwh"] is None
    assert record.summary()["A_K_per_kwh"] is None
    assert record.summary()["eval_energy_kwh"] == pytest.approx(2e-4)
    record.rows[1].eval_energy_kwh = None
    assert record.summary()["eval_energy_kwh"] is None


def test_round_trip_through_a_checkpoint(record: RunRecord) -> None:
    for one in (record, unmeasured(), RunRecord()):
        state = json.loads(json.dumps(one.state_dict(), allow_nan=False))
        assert RunRecord.from_state_dict(state) == one
    state = record.state_dict()
    state["matrix"][0][0] = 0.0
    assert record.matrix[0][0] == 90.0


ODD = st.sampled_from(["\r", "\n", "\r\n", "a,b", '"', "'", " x "])
CELLS = st.none() | st.text(st.characters(exclude_characters="\0")) | ODD


@given(st.lists(st.lists(CELLS, min_size=3, max_size=3), max_size=5))
def test_csv_gives_back_every_cell(rows: list[list[str | None]]) -> None:
    text = to_csv(["a", "b", "c"], rows)
    lines = csv.reader(io.StringIO(text, newline=""))
    result = [list(line) for line in lines]
    assert result == [["a", "b", "c"], *([cell or "" for cell in row] for row in rows)]


def test_a_fingerprint_is_of_the_data_and_its_split(tmp_path: Path) -> None:
    images = make_images(tmp_path / "images", ["ant", "bee"])
    copy = make_images(tmp_path / "copy", ["ant", "bee"])

    def of(root: Path, **options: float) -> str:
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


def test_the_machine_is_named(tmp_path: Path) -> None:
    (tmp_path / "info").write_text("processor : 0\nmodel name\t: Some  CPU @ 2.1GHz\n")
    assert processor(tmp_path / "info") == "Some CPU @ 2.1GHz"
    assert processor(tmp_path / "nothing")
    result = machine(torch.device("cpu"))
    assert result["gpu"] is None
    assert result["cores"] == usable_cores()
    assert result["machine"].startswith(f"{result['processor']}, {usable_cores()} core")


def test_the_commit_is_the_packages_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert package_commit(package) is None  # no repository

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", "-C", str(tmp_path), *who, *arguments]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    (tmp_path / "other").write_text("")
    git("add", "other")
    git("commit", "-qm", "first")
    package_commit.cache_clear()
    assert package_commit(package) is None  # installed below someone else's repository
    git("add", ".")
    git("commit", "-qm", "second")
    package_commit.cache_clear()
    commit = git("rev-parse", "HEAD").strip()
    assert package_commit(package) == commit
    (package / "__init__.py").write_text("1")
    package_commit.cache_clear()
    assert package_commit(package) == f"{commit}+changes"
