"""What stands in one row, what a table leaves to be opened, and what is said of single classes and
of data.
"""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from cifnet_pl.report import read_study
from cifnet_pl.report.figures import STYLE, trajectories
from cifnet_pl.report.page import to_html
from cifnet_pl.report.settings import JOINT
from cifnet_pl.report.table_formats import (
    ReportTable,
    to_csv_table,
    to_latex,
    to_markdown,
)
from cifnet_pl.report.tables import accuracy_table, memory_table, results_table
from tests.report.synthetic import write_run

BOUND: dict[str, Any] = {
    "head": "LogisticHead",
    "head_options": {"inverse_penalty": 0.01},
    "buffer": {"capacity": 10_000_000, "oversample": False},
}
"""The options that make logistic regression the bound, see configs/paper/classifiers.yaml."""


def cells(table: ReportTable) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv_table(table.without_empty()))))


@pytest.mark.parametrize(
    "runs",
    [
        [
            (8192, 10, 1),
            (8192, 10, 2),
            (8192, 5, 1),
            (1024, 10, 1),
            (1024, 5, 1),
            (1024, 5, 2),
            (1024, 5, 3),
        ],
        [(8192, 10, 1), (1024, 5, 1), (1024, 5, 2)],
    ],
    ids=["most seeds of another width", "only another width"],
)
def test_a_row_is_one_configuration_in_every_setting(
    runs: list[tuple[int, int, int]], tmp_path: Path
) -> None:
    """Width, classes a task and seed of runs: the width that a setting has most of is not that of
    the other setting.
    """
    for i, (width, classes, seed) in enumerate(runs):
        write_run(
            tmp_path / f"e{i}" / "version_0",
            head="ACILHead",
            head_options={"width": width},
            classes=classes,
            tasks=20 // classes,
            seed=seed,
            final=80.0 if width == 8192 else 60.0,
        )
    rows = [
        row
        for row in cells(accuracy_table(read_study([tmp_path])))
        if row["origin"] == "measured"
    ]
    found = {
        (row["method"], name): (float(row[name]), int(row[f"{name} n"]))
        for row in rows
        for name in row
        if name.endswith(": A_K") and row[name]
    }
    assert len(rows) > 0
    for (label, name), (accuracy, seeds) in found.items():
        width = 1024 if "1024" in label else 8192
        count = sum(w == width and f"{classes} cls" in name for w, classes, _ in runs)
        assert (accuracy, seeds) == (
            pytest.approx(80.0 if width == 8192 else 60.0),
            count,
        ), (
            label,
            name,
        )


def test_the_bound_is_one_method_with_its_settings(tmp_path: Path) -> None:
    for i, options in enumerate(
        [
            {"final": 60.0},
            {"head": "LogisticHead", "final": 40.0},
            {**BOUND, "final": 70.0},
        ]
    ):
        write_run(tmp_path / f"e{i}" / "version_0", tasks=3, **options)
    study = read_study([tmp_path])
    rows = {
        row["method"]: row["CIFAR-100, 10 cls/task: A_K"]
        for row in cells(accuracy_table(study))
    }
    assert {name: float(value) for name, value in rows.items()} == pytest.approx(
        {"CIFNet": 60.0, "Logistic regression": 40.0, JOINT: 70.0}
    )
    with matplotlib.rc_context(STYLE):
        (heads,) = [p for p in trajectories(study) if p.name.startswith("trajectory")]
    shown = {
        text.get_text().replace("\n", " ")
        for text in heads.figure.legends[0].get_texts()
    }
    assert shown == {"CIFNet", "Logistic regression", JOINT}


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        ([1, 2], "seed_everything and the class order"),
        (
            [None, None],
            "the same class order; a seed",
        ),
        ([7, 7], "the same class order"),
        ([1, 3], "vary, but not together"),
    ],
)
def test_what_deviations_are_over_is_said(
    orders: list[int | None], said: str, tmp_path: Path
) -> None:
    for seed, order in zip((1, 2), orders, strict=True):
        write_run(
            tmp_path / f"e{seed}" / "version_0",
            tasks=2,
            seed=seed,
            data={"class_order": order},
        )
    assert said in accuracy_table(read_study([tmp_path])).notes[0]


def test_further_columns_are_opened_on_the_page_and_whole_elsewhere(
    tmp_path: Path,
) -> None:
    write_run(tmp_path / "e" / "version_0", tasks=3)
    study = read_study([tmp_path])
    table = results_table(study, study.settings[0]).without_empty()
    names = [column.header for column in table.columns]
    page = to_html(table)
    first, opened = page.split("<details>")
    headers = [
        re.findall(r'<th scope="col" class="\w+">(.*?)</th>', part)
        for part in (first, opened)
    ]
    plain = [
        [re.sub("<.*?>", "", name).replace("AK", "A_K") for name in part]
        for part in headers
    ]
    assert plain[1][:3] == plain[0][:3] == ["method", "origin", "seeds"]
    assert sorted([*plain[0], *plain[1][3:]]) == sorted(names)
    assert {"Ā (%)", "A_K (%)", "energy (kWh)"} <= set(plain[0])
    assert {"backward transfer (%)", "largest drop (%)"} <= set(plain[1])
    assert "backward transfer (%), largest drop (%)</summary>" in opened
    texts = {"method", "origin", "seeds", "conditions"}
    ends = {name: [""] if name in texts else ["", " sd", " n"] for name in names}
    assert list(cells(table)[0]) == [name + end for name in names for end in ends[name]]
    for text in (to_markdown(table), to_latex(table)):
        assert all(name.split(" ")[0] in text for name in names if name[0] not in "ĀA")


@pytest.mark.parametrize(
    ("head", "networks", "parameters", "kept"),
    [("ICaRLModule", 1, 11_500_000, 0.5), ("DERModule", 3, 34_000_000, 23)],
)
def test_a_trained_network_is_counted_without_one_backbone(
    head, networks, parameters, kept, tmp_path
):
    """Parameters at four bytes, exemplars at one; one network stands apart, as for frozen ones, and
    branches count.
    """
    run = write_run(tmp_path / "trained" / "version_0", tasks=2)
    path = run / "summary.json"
    more = {
        "head": head,
        "backbone_params": networks * 11_000_000,
        "network_params": 11_000_000,
        "state_components": {"parameters": parameters, "buffer": 6_000_000},
        "state_bytes_per_element": {"parameters": 4, "buffer": 1},
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    study = read_study([tmp_path])
    (row,) = [
        row
        for row in cells(memory_table(study, study.settings[0]))
        if row["origin"] == "measured"
    ]
    shown = {name: float(row[name]) for name in row if name.endswith(("(M)", "(MB)"))}
    assert shown == pytest.approx(
        {
            "parameters (M)": kept,
            "buffer (M)": 6.0,
            "total (M)": kept + 6,
            "stored (MB)": 4 * kept + 6,
            "backbone (M)": 11.0,
        }
    )


def test_runs_of_other_data_are_said(tmp_path: Path) -> None:
    for seed, mark in ((1, "aaaa"), (2, "aaaa"), (3, "bbbb")):
        write_run(
            tmp_path / f"e{seed}" / "version_0",
            seed=seed,
            tasks=2,
            about={"data_fingerprint": mark},
        )
    write_run(
        tmp_path / "old" / "version_0", seed=4, tasks=2
    )  # an earlier version did not say
    study = read_study([tmp_path])
    (sentence,) = study.data_notes
    assert "Runs of CIFAR-100, 10 cls/task had different data" in sentence
    assert "2 with aaaa, such as" in sentence
    assert f"1 with bbbb, such as {tmp_path / 'e3'}" in sentence
    assert (
        read_study([tmp_path / "e1", tmp_path / "e2", tmp_path / "old"]).data_notes
        == []
    )
