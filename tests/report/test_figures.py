"""Figures show the numbers that they are given; times and energies are compared only where they can
be.
"""

from pathlib import Path

import matplotlib
import matplotlib.collections
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from cifnet_pl.report import read_study
from cifnet_pl.report.figures import (
    LARGEST_BUBBLE,
    SMALLEST_BUBBLE,
    STYLE,
    AccuracyBars,
    cost_panels,
    draw_bars,
    time_bubbles,
    trajectories,
    value_curves,
    wrapped_label,
)
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Outcome, Study
from cifnet_pl.report.table_formats import COST_HEADERS
from cifnet_pl.report.tables import efficiency_table, results_table
from tests.report.labels import assert_labels_are_readable
from tests.report.synthetic import write_run


def test_bars_are_as_long_as_their_numbers() -> None:
    bars = [
        AccuracyBars("full", Stat(80.0, 1.5, 3), Stat(70.0, None, 1)),
        AccuracyBars("published", None, Stat(64.2, None, 1)),
    ]
    chart = draw_bars(bars, "An ablation")
    (axes,), (legend,) = chart.axes, chart.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        r"average accuracy $\bar{A}$",
        "final accuracy $A_K$",
    ]
    lengths = sorted(
        bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)
    )
    assert lengths == pytest.approx([64.2, 70.0, 80.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "full",
        "published",
    ]
    assert sorted(text.get_text()[:4] for text in axes.texts) == [
        "64.2",
        "70.0",
        "80.0",
    ]
    assert axes.get_xlim()[1] > 81.5


def test_deviations_end_at_0_and_100_percent() -> None:
    setting = Setting("images", 2, 20, "file:x", 128, "p", 0.0, "10")
    seeds = [
        Outcome(seed, (99.0 + spread, 1.0 + spread), {}, key=str(seed))
        for seed, spread in ((1, 1.0), (2, -1.0))
    ]
    with matplotlib.rc_context(STYLE):
        (picture,) = trajectories(Study([Group(setting, "A", "external", seeds)]))
    (axes,) = picture.figure.axes
    (bars,) = axes.containers
    (segments,) = bars.lines[2]  # type: ignore[attr-defined]
    ends = [sorted(end for _, end in segment) for segment in segments.get_segments()]
    sd = 2**0.5
    assert ends == [pytest.approx([99 - sd, 100.0]), pytest.approx([0.0, 1 + sd])]
    assert axes.get_ylim()[0] >= -2
    assert axes.get_ylim()[1] <= 102


def test_costs_that_count_other_processes_are_marked_and_noted(tmp_path: Path) -> None:
    for seed in (1, 2, 3):
        for head, kwh in (("CIFNetHead", 0.06), ("RidgeHead", 0.03)):
            write_run(
                tmp_path / f"{head}{seed}" / "version_0",
                head=head,
                seed=seed,
                tasks=2,
                kwh=kwh * (1 + seed / 50),
                minutes=20 * kwh + seed / 99,
                final=60 + seed / 9 + (head == "RidgeHead") * (1 + seed / 40),
                about={"energy_counts_other_processes": True},
            )
    study = read_study([tmp_path])
    for table in (
        efficiency_table(study, study.settings[0]),
        results_table(study, study.settings[0]),
    ):
        costs = [
            j
            for j, column in enumerate(table.columns)
            if column.header.startswith(COST_HEADERS)
        ]
        measured = [i for i, row in enumerate(table.rows) if row[1] == "measured"]
        assert all(
            table.text(i, j).endswith("†")
            for i in measured
            for j in costs
            if table.rows[i][j]
        )
        assert any(note.startswith("†: ") for note in table.notes)


def test_labels_are_broken_between_words_alone() -> None:
    name = "CIFAR-100, 10 cls/task: a-method-with-hyphens, width 64"
    for width in range(23, 40):
        assert " ".join(wrapped_label(name, width, 4).split("\n")) == name
    assert max(map(len, wrapped_label("x" * 200, 24).split("\n"))) <= 24


def test_values_of_a_setting_over_many_powers_of_ten_have_ticks_apart(
    tmp_path: Path,
) -> None:
    for i, ridge in enumerate([1e-6, 1.2e-6, 0.0123, 0.015, 0.02, 0.1, 1.0, 1.3, 10.0]):
        write_run(
            tmp_path / f"e{i}" / "version_0", tasks=2, head_options={"ridge": ridge}
        )
    study = read_study([tmp_path])
    (picture,) = value_curves(study, "head.ridge")
    assert_labels_are_readable(picture)


def bubbles(figure: Figure) -> list[float]:
    """Areas of all bubbles, smallest first; every one is a circle."""
    result = []
    for axes in figure.axes:
        for drawn in axes.collections:
            if isinstance(drawn, matplotlib.collections.PathCollection):
                (size,) = drawn.get_sizes()
                circle = drawn.get_paths()[0].vertices
                assert (
                    abs(circle**2 @ [1, 1] - 0.25).max() < 0.02
                )  # control points of its curves
                result.append(float(size))
    return sorted(result)


def test_areas_are_proportional_to_energy(tmp_path: Path) -> None:
    energies = {
        "CIFNetHead": 0.06,
        "RidgeHead": 0.03,
        "NCMHead": 1e-6,
        "ACILHead": 0.24,
    }
    for i, (head, kwh) in enumerate(energies.items()):
        write_run(
            tmp_path / f"e{i}" / "version_0", head=head, kwh=kwh, minutes=0.01 * 40.0**i
        )
    study = read_study([tmp_path])
    (picture,) = time_bubbles(study, study.settings[0])
    wanted = [
        SMALLEST_BUBBLE,
        *(LARGEST_BUBBLE * kwh / 0.24 for kwh in (0.03, 0.06, 0.24)),
    ]
    assert bubbles(picture.figure) == pytest.approx(wanted)
    assert "dashed bubble is drawn larger" in picture.caption
    canvas = FigureCanvasAgg(picture.figure)
    canvas.draw()
    (axes,) = picture.figure.axes
    for drawn in axes.collections:
        (x, _), radius = (
            axes.transData.transform(drawn.get_offsets())[0],
            drawn.get_sizes()[0] ** 0.5 / 2,
        )  # type: ignore[attr-defined]
        assert axes.bbox.x0 <= x - radius * picture.figure.dpi / 72, (
            "a bubble is cut off"
        )
        assert x + radius * picture.figure.dpi / 72 <= axes.bbox.x1, (
            "a bubble is cut off"
        )


def test_costs_of_unlike_conditions_have_panels_apart(tmp_path: Path) -> None:
    """Two heads on a CPU; one of them ran with the cache and on a GPU as well."""
    cpu = {"machine": "some CPU, 2 cores"}
    gpu = {"machine": "NVIDIA H100"}
    plan = [
        ("CIFNetHead", cpu),
        ("RidgeHead", cpu),
        ("CIFNetHead", {**cpu, "cached_images": 500}),
        ("CIFNetHead", gpu),
    ]
    for seed, (head, about) in enumerate(plan):
        write_run(
            tmp_path / f"e{seed}" / "version_0", seed=seed, head=head, about=about
        )
    study = read_study([tmp_path])
    (setting,) = study.settings
    (picture,) = time_bubbles(study, setting)
    assert len(picture.figure.axes) == 3
    sizes = [
        len(groups)
        for groups in cost_panels(study, study.compared(setting), "energy_kwh").values()
    ]
    assert sorted(sizes) == [1, 1, 2]


def trained_beside_frozen(folder: Path) -> Study:
    """CIFNet and exact ridge on a pretrained network, and a method that trains its own; one
    machine, three seeds.
    """
    for seed in (1, 2, 3):
        for head, backbone, kwh in (
            ("CIFNetHead", "file:resnet32.pth", 0.01),
            ("RidgeHead", "file:resnet32.pth", 0.005),
            ("NCMHead", "random:resnet32_cifar", 0.2),
        ):
            write_run(
                folder / f"{head}{seed}" / "version_0",
                head=head,
                seed=seed,
                kwh=kwh * (1 + seed / 100),
                backbone=backbone,
                final=60.0 + (head == "NCMHead") * 10 + (head == "RidgeHead"),
            )
    return read_study([folder])


def test_networks_on_the_same_data_share_one_table_of_costs(tmp_path: Path) -> None:
    study = trained_beside_frozen(tmp_path)
    (setting,) = study.data_names
    table = efficiency_table(study, setting)
    measured = {str(row[0]): row for row in table.rows if row[1] == "measured"}
    assert measured.keys() == {"CIFNet", "Exact ridge", "NCM"}
    assert {label: row[3] for label, row in measured.items()} == {
        "CIFNet": "file:resnet32.pth (resnet18), 224 px",
        "Exact ridge": "file:resnet32.pth (resnet18), 224 px",
        "NCM": "random:resnet32_cifar, 224 px",
    }
    published = [row[0] for row in table.rows if row[1] == "published"]
    assert len(published) == len(set(published)) > 0


def test_one_figure_has_all_methods_of_its_data_and_one_those_on_each_network(
    tmp_path: Path,
) -> None:
    shown = {}
    for picture in trajectories(trained_beside_frozen(tmp_path)):
        (legend,) = picture.figure.legends
        shown[picture.name] = {text.get_text() for text in legend.get_texts()}
    assert shown == {
        "trajectory_cifar_100_10_cls_task": {"CIFNet", "Exact ridge", "NCM"},
        "trajectory_cifar_100_10_cls_task_file_resnet32_pth_resnet18": {
            "CIFNet",
            "Exact ridge",
        },
        "trajectory_cifar_100_10_cls_task_random_resnet32_cifar": {"NCM"},
    }
