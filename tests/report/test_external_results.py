import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from cifnet_pl.report.external_results import (
    published_groups,
    published_numbers,
    read_external,
)
from cifnet_pl.report.figures import STYLE, trajectories
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import Study
from cifnet_pl.utilities.errors import CifnetError, UsageError

CIFAR = Setting("CIFAR-100", 10, 100, "file:x", 32, "data", 0.0, "10")
FIVE = Setting("CIFAR-100", 20, 100, "file:x", 32, "data", 0.0, "5")
IMAGES = Setting("images", 10, 100, "file:x", 128, "p", 0.0, "10")


def test_the_papers_numbers() -> None:
    *keys, value = published_numbers().columns
    numbers = published_numbers().set_index(keys)[value].to_dict()
    assert len(numbers) == len(published_numbers())
    assert (
        numbers["tab:accuracy-results", "CORe50", "5", "CIFNet", "", "A_bar"] == 77.18
    )
    assert (
        numbers["tab:accuracy-results", "ImageNet-100", "10", "DS-AL", "", "A_K"]
        == 88.82
    )
    assert numbers["tab:sampling", "CIFAR-100", "5", "CIFNet", "kmeans", "A_K"] == 58.25
    assert (
        numbers["tab:ablation", "CIFAR-100", "10", "CIFNet", "no buffer", "A_K"]
        == 24.74
    )
    accuracy = [key for key in numbers if key[0] == "tab:accuracy-results"]
    assert len(accuracy) == 12 * 3 * 2 * 2


def test_published_efficiency_is_consistent() -> None:
    """A_K per kWh of the paper's tables is A_K / kWh, up to the paper's own rounding."""
    for group in published_groups([CIFAR]):
        ratio, accuracy, energy = (
            group.stat(k) for k in ("A_K_per_kwh", "A_K", "energy_kwh")
        )
        if ratio and accuracy and energy:
            assert ratio.mean == pytest.approx(accuracy.mean / energy.mean, rel=0.02)
            assert "published" in group.conditions[0].source


def test_published_rows_belong_to_their_data_and_protocol_only() -> None:
    assert {g.setting for g in published_groups([CIFAR, FIVE, IMAGES])} == {CIFAR, FIVE}
    assert published_groups([IMAGES]) == []
    part = Setting(
        "CIFAR-100", 5, 50, "file:x", 32, "data", 0.0, "10"
    )  # half of the classes
    assert published_groups([part]) == []
    names = [g.name for g in published_groups([CIFAR])]
    assert names[0] == "Finetune"
    assert len(names) == 12
    five = {g.name: g.stat("energy_kwh") for g in published_groups([FIVE])}
    assert five["CIFNet"] is None  # the paper's energies are of ten classes a task


def write(folder: Path, *lines: str) -> Path:
    path = folder / "external.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


HEADER = "method,seed,task,A_k,seconds,kWh"


def test_external_runs_with_missing_cells(tmp_path: Path) -> None:
    lines = [
        f"DER,{seed},{k + 1},{90 - 3 * k - seed},60,0.03"
        for seed in (1, 2)
        for k in range(10)
    ]
    lines += [
        f"PODNet,1,{k + 1},{'' if k == 3 else 80 - k},{'' if k == 5 else 60},"
        for k in range(10)
    ]
    lines += ["WA,,,51.9,600,0.3"]
    groups = read_external(write(tmp_path, HEADER, *lines), [CIFAR])
    der, pod, wa = groups
    assert [g.kind for g in groups] == ["external"] * 3
    means = {
        key: der.stat(key).mean
        for key in ("A_K", "energy_kwh", "train_seconds", "A_K_per_kwh")
    }
    wanted = {
        "A_K": 61.5,
        "energy_kwh": 0.3,
        "train_seconds": 600,
        "A_K_per_kwh": 61.5 / 0.3,
    }
    assert means == pytest.approx(wanted)
    assert der.stat("A_K").n == 2
    # A mean over some of the tasks would not compare with others: it is not given.
    assert [pod.stat(key) for key in ("A_bar", "train_seconds", "energy_kwh")] == [
        None
    ] * 3
    assert (pod.stat("A_K").mean, wa.stat("A_K").mean) == (71, 51.9)
    assert pod.curve()[3] is None
    assert wa.curve() == []


def test_external_methods_find_their_setting(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER, *(f"DER,1,{k + 1},50,," for k in range(20)))
    assert read_external(path, [CIFAR, FIVE, IMAGES])[0].setting == FIVE
    ten = [f"DER,1,{k + 1},50,,,images,10" for k in range(10)]
    path = write(tmp_path, HEADER + ",dataset,classes_per_task", *ten)
    assert read_external(path, [CIFAR, FIVE, IMAGES])[0].setting == IMAGES


def test_external_methods_name_one_of_several_backbones(tmp_path: Path) -> None:
    other = replace(CIFAR, backbone="timm:vit")
    lines = [f"DER,1,{k + 1},50,,,timm:vit" for k in range(10)]
    (group,) = read_external(
        write(tmp_path, HEADER + ",backbone", *lines), [CIFAR, other]
    )
    assert group.setting == other
    with pytest.raises(UsageError, match="dataset, classes_per_task and backbone"):
        read_external(
            write(tmp_path, HEADER, *(line.rpartition(",")[0] for line in lines)),
            [CIFAR, other],
        )


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        (["method,seed,task,A_k,seconds", "a,1,1,2,3"], "has no column kWh"),
        ([HEADER, "a,1,1,high,,"], "line 2: A_k is 'high'"),
        ([HEADER, "a,1,1,101,,"], "line 2: A_k is '101'"),
        ([HEADER, "a,1,1,50,-1,"], "seconds is '-1'"),
        ([HEADER, "a,1,1,nan,,"], "A_k is 'nan'"),
        ([HEADER, "a,1,0.5,50,,"], "task is '0.5'"),
        ([HEADER, ",1,1,50,,"], "line 2: method is empty"),
        ([HEADER, "a,1,1,50,,", "a,1,1,51,,"], "two lines for task 1"),
        ([HEADER, "a,1,,50,,"], "external.csv: a fits 3 of the settings"),
        (
            [HEADER, "a,1,1,50,,", "a,1,2,50"],
            "line 3: 4 cells, but the header names 6 columns",
        ),
        ([HEADER + ",A_k", "a,1,1,50,,,50"], "has a column twice"),
        ([], "has no column method"),
        ([HEADER, 'a,1,1,50,,"x'], "is not a CSV file"),
        (
            [HEADER, "a,1,1,0.86,,", "a,1,2,0.71,,"],
            "no A_k of a is above 0.86: give percentages",
        ),
        (
            [HEADER, *(f"a,1,{k + 1},50,," for k in range(30))],
            "fits none of the settings",
        ),
    ],
)
def test_bad_external_files_are_named(
    tmp_path: Path, lines: list[str], part: str
) -> None:
    with pytest.raises(CifnetError, match=re.escape(part)):
        read_external(write(tmp_path, *lines), [CIFAR, FIVE, IMAGES])
    with pytest.raises(CifnetError, match="no file"):
        read_external(tmp_path / "none.csv", [CIFAR])


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "external.csv"
    for content in (
        b"\xff\xfe\x00m",
        "method,seed,task,A_k,seconds,kWh\nM\u00fcller,1,1,50,,\n".encode("latin-1"),
    ):
        path.write_bytes(content)
        with pytest.raises(CifnetError, match="CSV file"):
            read_external(path, [CIFAR])


def test_a_method_with_energy_alone_has_no_line_in_a_figure(tmp_path: Path) -> None:
    lines = [f"DER,1,{k + 1},{90 - 3 * k},60,0.03" for k in range(10)]
    path = write(tmp_path, HEADER, *lines, "Elsewhere,1,,,,0.5")
    groups = read_external(path, [CIFAR])
    with matplotlib.rc_context(STYLE):
        (picture,) = [
            p for p in trajectories(Study(groups)) if p.name.startswith("trajectory")
        ]
    shown = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert shown == ["DER (external)"]
