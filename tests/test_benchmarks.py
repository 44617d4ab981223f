"""Benchmarks run, on data that takes no time; what they find is not a test."""

import importlib
from pathlib import Path

import pytest

from benchmarks import fit_overhead, reading
from benchmarks.__main__ import PLACES, chosen
from benchmarks.studies import trained

CPU = ("--model.backbone", "pixels:8", "--trainer.accelerator", "cpu")
TINY = fit_overhead.Setup(4, 3, 2, 8, 4, 0, 1, 2, "pixels", CPU)


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])


def test_letters_choose_rows() -> None:
    assert chosen(["k"]) == ["engines.network_rows", "bare_loop.rows"]
    for place in PLACES:
        name, _, function = place.partition(".")
        module = importlib.import_module(f"benchmarks.{name}")
        assert callable(getattr(module, function)), place


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


@pytest.mark.parametrize(
    "study", sorted(path.stem for path in Path(trained.__file__).parent.glob("*.py"))
)
def test_a_study_can_be_imported(study: str) -> None:
    importlib.import_module(f"benchmarks.studies.{study}")
