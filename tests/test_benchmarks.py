"""Benchmarks run, on data that takes no time; what they find is not a test."""

import importlib
import os
from pathlib import Path

import pytest

from benchmarks import fit_overhead, growth, head_update, http_load, reading
from benchmarks.__main__ import PLACES, chosen, main
from benchmarks.measure import Row, jpegs
from benchmarks.studies import trained
from tests.command_line import assert_ends
from tests.serving.services import ThreadServer

CPU = ("--model.backbone", "pixels:8", "--trainer.accelerator", "cpu")
TINY = fit_overhead.Setup(4, 3, 2, 8, 4, 0, 1, 2, "pixels", CPU)


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])


def test_letters_choose_rows() -> None:
    expected = ["fit_overhead.rows", "engines.start_rows", "growth.rows"]
    assert chosen(["b", "e", "l", "growth"]) == expected
    assert chosen(["k"]) == ["engines.network_rows", "bare_loop.rows"]
    for place in PLACES:
        name, _, function = place.partition(".")
        module = importlib.import_module(f"benchmarks.{name}")
        assert callable(getattr(module, function)), place


def test_an_unknown_row_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert_ends(main(["a", "z"]), 2, "unknown benchmark 'z'", capsys)


def test_the_table_has_the_rows_that_were_chosen(monkeypatch, capsys):
    row = Row("(a) something", "1 s", "2 s", "2", "", "settings")
    monkeypatch.setattr(head_update, "rows", lambda: [row])
    assert main(["a", "head_update"]) == 0
    # In the table, and below it with its settings.
    assert capsys.readouterr().out.count("(a) something") == 2


def test_reader_against_a_loader() -> None:
    rows = reading.rows(count=8, repeats=1)
    assert [row.name[:3] for row in rows] == ["(n)"] * 2


def test_training_pass_against_its_rivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_overhead, "HEADS", ("RidgeHead",))
    rows = list(fit_overhead.rows(TINY))
    assert [row.name[:3] for row in rows] == ["(b)", "(e)", "(e)"]
    rival = fit_overhead.Rivals.seconds
    for times in (rival.loop, rival.decode, rival.backbone):
        assert len(times) == TINY.rounds * TINY.tasks
    about = "2 runs of 2 tasks of 6 JPEGs, pixels, 8 px"
    assert all(about in row.settings for row in rows)


def test_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"FEATURES": 4, "SAMPLES": 3, "COHORTS": 3, "REPEATS": 2}
    for name, value in small.items():
        monkeypatch.setattr(growth, name, value)
    (row,) = growth.rows()
    assert row.name == "(f) CIFNetHead: one more task after 3 / as many systems solved"


@pytest.mark.parametrize(
    "study", sorted(path.stem for path in Path(trained.__file__).parent.glob("*.py"))
)
def test_a_study_can_be_imported(study: str) -> None:
    importlib.import_module(f"benchmarks.studies.{study}")


def test_clients_of_a_service(tmp_path: Path) -> None:
    """Every request is answered, and an answer without a class is an error."""
    server = ThreadServer(tmp_path / "w")
    try:
        good = http_load.ask(server.url, jpegs(3, (20, 16)), 12, 4)
        bad = http_load.ask(server.url, [b"no image"], 5, 2)
        process = http_load.Process(server.url, os.getpid())
        job = process.learn(jpegs(4, (20, 16), seed=1), "new")
        while job["state"] in ("waiting", "at work"):
            job = process.get(f"/jobs/{job['job']}")
    finally:
        server.stop()
    assert (len(good.times), good.errors, len(bad.times), bad.errors) == (12, 0, 5, 5)
    assert good.rate > 0
    assert max(good.times) >= good.percentile(99) >= good.percentile(50) > 0
    assert job["update"]["learned"] == {"new": 4}
