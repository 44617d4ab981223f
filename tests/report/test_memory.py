"""The formulas against the paper's numbers, and against what heads really keep."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead
from cifnet_pl.report.memory import Sizes, numbers_in_paper, numbers_kept, scaling_tables
from cifnet_pl.report.page import to_csv_table
from cifnet_pl.report.runs import read_runs
from cifnet_pl.report.study import Study, group_runs
from tests.report.synthetic import write_run

CIFAR = Sizes(512, 100, 10, width=8192)
IMAGENET = Sizes(512, 100, 10, width=16384)


@pytest.mark.parametrize(
    ("method", "sizes", "millions", "megabytes"),
    [
        ("ACIL", CIFAR, 72.1, 288.5),
        ("DS-AL", CIFAR, 140.0, 560.2),
        ("CIFNet", CIFAR, 27.5, 109.9),
        ("ACIL", IMAGENET, 278.4, 1113.9),
        ("DS-AL", IMAGENET, 548.6, 2194.5),
        ("CIFNet", IMAGENET, 27.5, 109.9),
    ],
)
def test_the_papers_table(method: str, sizes: Sizes, millions: float, megabytes: float) -> None:
    total = sum(numbers_in_paper(sizes)[method].values())
    # The paper adds components that were rounded or truncated to 0.1 million.
    assert total / 1e6 == pytest.approx(millions, abs=0.1)
    assert 4 * total / 1e6 == pytest.approx(megabytes, abs=0.4)


def test_the_papers_components() -> None:
    in_millions = {k: round(v / 1e6, 1) for k, v in numbers_in_paper(CIFAR)["ACIL"].items()}
    assert in_millions == {"projection": 4.2, "factors": 67.1, "weights": 0.8}
    assert {k: round(v / 1e6, 1) for k, v in numbers_in_paper(IMAGENET)["DS-AL"].items()} == {
        "projection": 8.4,
        "factors": 536.9,
        "weights": 3.3,
    }
    assert {k: round(v / 1e6, 2) for k, v in numbers_in_paper(CIFAR)["CIFNet"].items()} == {
        "factors": 26.37,
        "moments": 0.05,
        "weights": 0.05,
        "buffer": 1.02,
    }


def learned(head: Head, buffer: CalibrationBuffer | None, tasks: int, per_task: int) -> Head:
    generator = torch.Generator().manual_seed(0)
    for k in range(tasks):
        labels = list(range(k * per_task, (k + 1) * per_task))
        y = torch.tensor(labels).repeat(6)
        z = torch.randn(len(y), head.in_features, generator=generator)
        head.begin_task(labels)
        head.observe(z, y)
        if buffer is not None:
            buffer.add(z, y, 1000 * k + torch.arange(len(y)))
            buffer.show_to(head)
            buffer.commit()
        head.solve()
        head.refresh()
    return head


@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize("per_task", [1, 4])
@pytest.mark.parametrize(
    ("make", "method"),
    [
        (lambda: CIFNetHead(7), "CIFNet"),
        (lambda: RidgeHead(7), "Exact ridge"),
        (lambda: ACILHead(7, width=30), "ACIL"),
        (lambda: DSALHead(7, width=30), "DS-AL"),
    ],
    ids=["cifnet", "ridge", "acil", "dsal"],
)
def test_a_head_keeps_what_its_formula_says(make: Callable[[], Head], method: str, tasks: int, per_task: int) -> None:
    buffer = CalibrationBuffer(24)
    head = learned(make(), buffer, tasks, per_task)
    sizes = Sizes(7, tasks * per_task, tasks, width=30, buffer=len(buffer.y))
    expected = numbers_kept(sizes)[method] | {"buffer": 7 * len(buffer.y)}
    assert {**head.state_elements(), "buffer": buffer.state_elements()} == expected
    # And that is what is in the tensors.
    tensors = [*head.state_dict().values(), *buffer.state_dict().values()]
    assert sum(t.numel() for t in tensors if t.is_floating_point() and t.ndim >= 2) == sum(expected.values())


def test_ratios_to_the_papers_cifnet() -> None:
    """At C=100, d=512 and a buffer of 2000: an eleventh at 10 tasks, a seventh at 20, half at 100."""
    ratios = {}
    for tasks in (10, 20, 50, 100):
        sizes = Sizes(512, 100, tasks)
        ratios[tasks] = sum(numbers_in_paper(sizes)["CIFNet"].values()) / sum(numbers_kept(sizes)["CIFNet"].values())
    assert ratios == pytest.approx({10: 11.2, 20: 7.3, 50: 3.56, 100: 1.92}, rel=0.02)
    exact = sum(numbers_in_paper(CIFAR)["CIFNet"].values()) / sum(numbers_kept(CIFAR)["Exact ridge"].values())
    assert exact == pytest.approx(117, rel=0.01)


def test_the_papers_tables_stand_beside_this_packages(tmp_path: Path) -> None:
    write_run(tmp_path / "e" / "version_0", head="ACILHead")
    breakdown, scaling = scaling_tables(Study(group_runs(read_runs([tmp_path])[0])[0]))
    rows = list(csv.DictReader(io.StringIO(to_csv_table(breakdown))))
    parts = {(row["method"], row["component"]): row for row in rows}
    cifar = "CIFAR-100, B = 8,192"
    acil = [float(parts["ACIL", "factors"][f"{cifar}: {kind} (M)"]) for kind in ("published", "formula", "here")]
    assert acil == pytest.approx([67.1, 67.1, 33.56], abs=0.01)
    cifnet = [float(parts["CIFNet", "total"][f"{cifar}: {kind} (M)"]) for kind in ("published", "formula", "here")]
    assert cifnet == pytest.approx([27.5, 27.49, 2.44], abs=0.01)
    assert parts["Exact ridge", "total"][f"{cifar}: formula (M)"] == ""
    sizes = {row["method"]: row for row in csv.DictReader(io.StringIO(to_csv_table(scaling)))}
    assert float(sizes["DS-AL"]["the paper's formula (MB)"]) == pytest.approx(560.2, abs=0.5)
    ours = [float(sizes["CIFNet"][f"here, {k} tasks (MB)"]) for k in (10, 100)]
    assert ours == pytest.approx([8e-6 * (k * 513 * 514 / 2 + 2 * 100 * 513) + 4e-6 * 2000 * 512 for k in (10, 100)])


def test_nobody_needs_those_tables_for_other_methods(tmp_path: Path) -> None:
    write_run(tmp_path / "e" / "version_0", head="NCMHead")
    assert scaling_tables(Study(group_runs(read_runs([tmp_path])[0])[0])) == []
