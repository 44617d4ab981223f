from pathlib import Path

import pytest

from cifnet_pl.cli.sweep_plan import LOG, Cost, estimate, estimate_running, read_points, total
from tests.cli.test_grid import HEAD, write
from tests.report.synthetic import write_run


def begun(folder: Path, tasks: int, said: str) -> None:
    """What a run of five tasks has written after ``tasks`` of them: 12 s and 0.006 kWh each, 1 s of evaluation."""
    run = write_run(folder / "version_0", tasks=5, minutes=1.0, kwh=0.03)
    (run / "summary.json").unlink()
    lines = (run / "tasks.csv").read_text().splitlines(keepends=True)
    (run / "tasks.csv").write_text("".join(lines[: 1 + tasks]))
    (folder / LOG).write_text(said)


def test_a_running_point_is_estimated_from_its_first_task(tmp_path: Path) -> None:
    begun(tmp_path, 1, "10 classes in 5 tasks on cpu\ntask 1/5: A_k 97.2 %, ECE 2.4 %\n")
    cost = estimate_running(tmp_path, 20.0)
    assert cost is not None
    # 7 of the 20 seconds were needed to begin, the other 13 for a task.
    assert (cost.seconds, cost.kwh, cost.tasks) == (pytest.approx(7 + 5 * 13), pytest.approx(0.03), 5)
    assert estimate_running(tmp_path, 20.0, before=1) is None  # that task was learned by an earlier process
    # A point that went on after its first task: the second one was learned within 15 s.
    begun(tmp_path, 2, "task 1/5: A_k 97.2 %\ngoing on after task 1\nstep 2/5: 90 % of the test photos\n")
    cost = estimate_running(tmp_path, 15.0, before=1)
    assert cost is not None
    assert cost.seconds == pytest.approx(2 + 5 * 13)


def test_nothing_is_estimated_before_a_task_is_learned(tmp_path: Path) -> None:
    begun(tmp_path, 0, "10 classes in 5 tasks on cpu\n")
    assert estimate_running(tmp_path, 5.0) is None
    assert estimate_running(tmp_path / "none", 5.0) is None


def test_sums_of_estimates() -> None:
    assert "no estimate yet" in total([None])
    assert total([Cost(30.0, 0.01, 5), Cost(90.0, None, 5), None]) == (
        "2 min, 0.01 kWh for 2 of them; 1 without an estimate, as no other seed has run"
    )


def test_a_point_is_estimated_from_its_other_seeds_only(tmp_path: Path) -> None:
    """The same label on other data, and another method, say nothing; another label of the same configuration does."""
    heads = {"head": [{"label": "a"}, {"label": "b", HEAD: {"class_path": "RidgeHead"}}]}
    a1, a2, b1, b2 = read_points(write(tmp_path, axes=heads, seeds=[1, 2]))
    (elsewhere,) = read_points(write(tmp_path, axes={"head": heads["head"][:1]}, seeds=[3], fixed={"data.source": "x"}))
    (renamed,) = read_points(write(tmp_path, axes={"way": [{"label": "z"}]}, seeds=[3]))
    ran = [(a1, Cost(60.0, 0.01, 5))]
    assert estimate(a2, tmp_path / "a2", ran) == ran[0][1]
    assert estimate(renamed, tmp_path / "z", ran) == ran[0][1]
    assert [estimate(p, tmp_path / "none", ran) for p in (b1, b2, elsewhere)] == [None] * 3
