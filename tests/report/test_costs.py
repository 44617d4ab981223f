"""Times and energies are compared only where they can be: each number is recomputed from the run folders."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

import matplotlib.collections
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cifnet_pl.report import read_study
from cifnet_pl.report.costs import LARGEST, SMALLEST, energy_points, panels, time_bubbles
from cifnet_pl.report.markup import Table, to_csv_table
from cifnet_pl.report.study import Study
from cifnet_pl.report.tables import accuracy_table, efficiency_table, results_table
from tests.report.synthetic import write_run

GPU = {"machine": "NVIDIA H100", "energy_source": "cpu estimated (cpu_load), gpu nvml, ram estimated"}
CPU = {"machine": "some CPU, 2 cores"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two heads on a CPU; of one, seed 3 was killed, and more seeds ran with the cache and on a GPU."""
    root = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        write_run(
            root / f"ridge{seed}" / "version_0", seed=seed, head="RidgeHead", final=60.0 + seed, kwh=0.02, about=CPU
        )
        if seed < 3:
            write_run(
                root / f"cifnet{seed}" / "version_0", seed=seed, final=61.0 + seed, kwh=0.04 + seed / 100, about=CPU
            )
    cached = {**CPU, "cached_images": 500}
    for seed in (4, 5):
        write_run(root / f"cached{seed}" / "version_0", seed=seed, final=60.0, kwh=1e-5, minutes=0.01, about=cached)
    write_run(root / "gpu" / "version_0", seed=6, final=60.0, kwh=0.001, minutes=0.1, about=GPU)
    killed = root / "cifnet3"
    killed.mkdir()
    (killed / "point.yaml").write_text("seed_everything: 3\n")
    (killed / "failure.txt").write_text("killed by SIGKILL, as systems do when memory is short")
    return root


@pytest.fixture(scope="module")
def study(runs: Path) -> Study:
    return read_study([runs])


def rows_of(table: Table) -> dict[str, dict[str, str]]:
    return {row["method"]: row for row in csv.DictReader(io.StringIO(to_csv_table(table.without_empty())))
            if row["numbers"] == "measured"}  # fmt: skip


def measured(runs: Path, pattern: str, key: str) -> list[float]:
    return [json.loads(path.read_text())[key] for path in sorted(runs.glob(f"{pattern}/version_0/summary.json"))]


def test_energies_are_averaged_under_the_same_conditions_only(runs: Path, study: Study) -> None:
    (setting,) = study.settings
    table = efficiency_table(study, setting)
    rows = rows_of(table)
    names = {
        "CIFNet, some CPU, 2 cores, cpu estimated (cpu_load), ram estimated, embeddings computed": "cifnet?",
        "CIFNet, some CPU, 2 cores, cpu estimated (cpu_load), ram estimated, embeddings from the cache": "cached?",
        "CIFNet, NVIDIA H100, cpu estimated (cpu_load), gpu nvml, ram estimated, embeddings computed": "gpu",
        "Exact ridge": "ridge?",
    }
    assert rows.keys() == names.keys()
    for name, pattern in names.items():
        for column, key, scale in (
            ("energy (kWh)", "energy_kwh", 1), ("training (min)", "train_seconds", 1 / 60),
            ("A_K per kWh", "A_K_per_kwh", 1), ("A_K (%)", "A_K", 1),
        ):  # fmt: skip
            values = measured(runs, pattern, key)
            assert float(rows[name][column]) == pytest.approx(scale * statistics.fmean(values)), (name, column)
            assert rows[name][f"{column} n"] == str(len(values))
    assert len({row["conditions"] for row in rows.values()}) == 3
    # The ridge and CIFNet ran on one machine: the cached runs need a thousandth of their energy, and are not the best.
    position = {str(row[0]): i for i, row in enumerate(table.rows)}
    energy = [column.header for column in table.columns].index("energy (kWh)")
    assert {i for i, j in table.best if j == energy} <= {position["Exact ridge"]}
    assert "Embeddings were read from the cache" in " ".join(table.notes)


def test_energy_relative_to_a_method_under_the_same_conditions(runs: Path, study: Study) -> None:
    (setting,) = study.settings
    rows = rows_of(efficiency_table(study, setting))
    pairs = zip(measured(runs, "ridge[12]", "energy_kwh"), measured(runs, "cifnet?", "energy_kwh"), strict=True)
    wanted = statistics.fmean(a / b for a, b in pairs)
    assert float(rows["Exact ridge"]["energy ÷ CIFNet"]) == pytest.approx(wanted)
    other = read_study([runs], reference="Exact ridge")
    rows = rows_of(efficiency_table(other, setting))
    gpu = next(row for name, row in rows.items() if "H100" in name)
    assert gpu["energy ÷ Exact ridge"] == ""  # it ran on the other machine alone


def test_accuracies_need_no_common_machine(runs: Path, study: Study) -> None:
    rows = rows_of(accuracy_table(study))
    every = [v for p in ("cifnet?", "cached?", "gpu") for v in measured(runs, p, "A_K")]
    name = "CIFAR-100, 10 cls/task: A_K"
    assert float(rows["CIFNet"][name]) == pytest.approx(statistics.fmean(every))
    assert rows["CIFNet"][f"{name} n"] == "5"
    (setting,) = study.settings
    results = results_table(study, setting)
    assert rows_of(results)["CIFNet"]["energy (kWh)"] == ""
    assert "Seeds of CIFNet ran under different conditions" in " ".join(results.notes)


def test_a_missing_seed_is_named_and_lifts_nobody(study: Study) -> None:
    """Seed for seed CIFNet is one point above; the killed seed hides nothing and bolds nothing by itself."""
    assert study.missing == ["cifnet3: killed by SIGKILL, as systems do when memory is short"]
    table = accuracy_table(study)
    shown = [table.text(i, 2) for i, row in enumerate(table.rows) if row[1] == "measured"]
    assert [text.split("(")[1] for text in shown] == ["n = 5)", "n = 3)"]


def bubbles(figure: Figure) -> list[float]:
    """Areas of all bubbles, smallest first; every one is a circle."""
    result = []
    for axes in figure.axes:
        for drawn in axes.collections:
            if isinstance(drawn, matplotlib.collections.PathCollection):
                (size,) = drawn.get_sizes()
                circle = drawn.get_paths()[0].vertices
                assert abs(circle**2 @ [1, 1] - 0.25).max() < 0.02  # control points of its curves
                result.append(float(size))
    return sorted(result)


def test_areas_are_proportional_to_energy(tmp_path: Path) -> None:
    energies = {"CIFNetHead": 0.06, "RidgeHead": 0.03, "NCMHead": 1e-6, "ACILHead": 0.24}
    for i, (head, kwh) in enumerate(energies.items()):
        write_run(tmp_path / f"e{i}" / "version_0", head=head, kwh=kwh, minutes=0.01 * 40.0**i)
    study = read_study([tmp_path])
    (picture,) = time_bubbles(study, study.settings[0])
    wanted = [SMALLEST, *(LARGEST * kwh / 0.24 for kwh in (0.03, 0.06, 0.24))]
    assert bubbles(picture.figure) == pytest.approx(wanted)
    assert "dashed bubble is drawn larger" in picture.caption
    canvas = FigureCanvasAgg(picture.figure)
    canvas.draw()
    (axes,) = picture.figure.axes
    for drawn in axes.collections:
        (x, _), radius = axes.transData.transform(drawn.get_offsets())[0], drawn.get_sizes()[0] ** 0.5 / 2  # type: ignore[attr-defined]
        assert axes.bbox.x0 <= x - radius * picture.figure.dpi / 72, "a bubble is cut off"
        assert x + radius * picture.figure.dpi / 72 <= axes.bbox.x1, "a bubble is cut off"


def test_costs_of_unlike_conditions_have_panels_apart(study: Study) -> None:
    (setting,) = study.settings
    (bubbles_, *_), (points, *_) = time_bubbles(study, setting), energy_points(study, setting)
    assert len(bubbles_.figure.axes) == 3
    assert [axes.get_title().split(",")[0] for axes in points.figure.axes][-1] == "published"
    assert [len(groups) for _, groups in panels(study, study.compared(setting), "energy_kwh")] == [1, 2, 1]


def test_energies_are_points_at_their_numbers_on_a_log_axis(runs: Path, study: Study) -> None:
    """Without bars, whose length would depend on where a log axis begins."""
    (setting,) = study.settings
    per_kwh, ratios = energy_points(study, setting)
    assert [ratios.name, per_kwh.name] == ["energy_ratio_cifar_100_10_cls_task", "energy_cifar_100_10_cls_task"]
    pairs = zip(measured(runs, "ridge[12]", "energy_kwh"), measured(runs, "cifnet?", "energy_kwh"), strict=True)
    for picture, wanted in (
        (ratios, {statistics.fmean(a / b for a, b in pairs), 1.0}),
        (per_kwh, {statistics.fmean(measured(runs, name, "A_K_per_kwh")) for name in ("ridge?", "cifnet?")}),
    ):
        names = [[label.get_text() for label in axes.get_yticklabels()] for axes in picture.figure.axes]
        drawn = [axes for axes, labels in zip(picture.figure.axes, names, strict=True) if "Exact ridge" in labels]
        points = {x for axes in drawn for bars in axes.containers for x in bars.lines[0].get_xdata()}  # type: ignore[attr-defined]
        assert sorted(points) == pytest.approx(sorted(wanted))
        for axes in picture.figure.axes:
            assert axes.get_xscale() == "log"
            assert not [patch for patch in axes.patches if isinstance(patch, Rectangle)]
