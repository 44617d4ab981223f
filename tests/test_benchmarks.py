"""Benchmarks run, on data that takes no time; what they find is not a test."""

from pathlib import Path

import pytest
import torch

from benchmarks import fit_overhead, gpu

TINY = fit_overhead.Setup(
    4, 3, 2, 8, 4, 0, 1, 2, "pixels", ("--model.backbone", "pixels:8", "--trainer.accelerator", "cpu")
)


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])


def test_training_pass_against_its_rivals() -> None:
    rows = fit_overhead.rows(TINY)
    assert [row.name[:3] for row in rows] == ["(b)", "(e)"] * 2
    rival = fit_overhead.Rivals.seconds
    assert len(rival.loop) == len(rival.decode) == len(rival.backbone) == TINY.rounds * TINY.tasks
    assert all("2 runs of 2 tasks of 6 JPEGs, pixels, 8 px" in row.settings for row in rows)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_benchmark_says_so() -> None:
    (row,) = gpu.rows()
    assert (row.ours, row.rival) == ("skipped", "no CUDA GPU here")
