"""Figures show the numbers that they are given; costs are compared only where they can be."""

import matplotlib
import pandas as pd
import pytest
from matplotlib.collections import PathCollection

from cifnet_pl.report.figures import (
    LARGEST_BUBBLE,
    STYLE,
    draw_lines,
    time_bubbles,
    trajectories,
    value_curve,
)
from tests.report.labels import assert_labels_are_readable
from tests.report.synthetic import results_of


def test_thirty_lines_differ_and_stay_within_the_axes():
    index = pd.MultiIndex.from_product([[f"method {i}" for i in range(30)], [2, 4]])
    stats = pd.DataFrame({"mean": 99.0, "std": 3.0}, index=index)
    with matplotlib.rc_context(STYLE):
        _, axes = draw_lines(stats, "Many")
    assert axes.get_ylim()[1] <= 102
    looks = set()
    for drawn in axes.containers:
        line = drawn.lines[0]  # type: ignore[attr-defined]
        looks.add((line.get_color(), line.get_marker(), line.get_linestyle()))
    assert len(looks) == 30


def test_values_over_many_powers_of_ten_have_ticks_apart(tmp_path):
    ridges = [1e-6, 1.2e-6, 0.0123, 0.015, 0.02, 0.1, 1.0, 1.3, 10.0]
    results = results_of(tmp_path, *[{"head_options": {"ridge": r}} for r in ridges])
    with matplotlib.rc_context(STYLE):
        picture = value_curve(results, "head.ridge", "ridge")
    assert picture is not None
    assert_labels_are_readable(picture)


def test_areas_are_energies_and_unlike_conditions_have_panels(tmp_path):
    """Three heads on a CPU; one of them ran with the cache and on a GPU as well."""
    cpu = {"machine": "some CPU"}
    plan = [
        {"head": "CIFNetHead", "kwh": 0.06, "about": cpu},
        {"head": "RidgeHead", "kwh": 0.03, "about": cpu},
        {"head": "NCMHead", "kwh": None, "about": cpu},
        {"head": "KNNHead", "kwh": 0.0, "about": cpu},
        {"head": "CIFNetHead", "kwh": 0.12, "about": {**cpu, "cached_images": 500}},
        {"head": "CIFNetHead", "kwh": 0.24, "about": {"machine": "NVIDIA H100"}},
    ]
    results = results_of(tmp_path, *plan)
    picture = time_bubbles(results, *results.data)
    assert picture is not None
    panels = [len(axes.lines) for axes in picture.figure.axes]
    assert sorted(panels) == [1, 1, 1, 3]
    sizes = []
    for drawn in picture.figure.findobj(PathCollection):
        sizes += list(drawn.get_sizes())  # type: ignore[attr-defined]
    wanted = [LARGEST_BUBBLE * kwh / 0.24 for kwh in (0.03, 0.06, 0.12, 0.24)]
    assert sorted(sizes) == pytest.approx(wanted)


def test_one_figure_of_all_methods_and_one_for_each_network(tmp_path):
    runs = [
        {"head": "CIFNetHead", "backbone": "file:a.pth"},
        {"head": "RidgeHead", "backbone": "file:a.pth"},
        {"head": "NCMHead", "backbone": "random:r"},
    ]
    lines = [f"DER,1,{k},{90 - 3 * k},60,0.03,random:r" for k in range(1, 4)]
    lines.append("Energy alone,1,,,,0.5,random:r")
    path = tmp_path / "external.csv"
    path.write_text("\n".join(["method,seed,task,A_k,seconds,kWh,backbone", *lines]))
    name = "trajectory_cifar_100_10_cls_task"
    shown = {}
    for picture in trajectories(results_of(tmp_path, *runs, external=path)):
        assert picture is not None
        (legend,) = picture.figure.legends
        texts = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
        shown[picture.name] = set(texts)
    assert shown == {
        name: {"CIFNet", "Exact ridge", "NCM", "DER (external)"},
        f"{name}_file_a_pth_resnet18_224_px": {"CIFNet", "Exact ridge"},
        f"{name}_random_r_224_px": {"NCM", "DER (external)"},
    }
